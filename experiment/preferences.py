"""From labels to what is learnt of them: the annotate stage's records, and rankings as examples of
the reward model, split by subject.
"""

import os

import numpy as np
import torch

import dreamcatcher
import reward
from data.files import read_jsonl, write_json, write_jsonl
from evaluation import metrics
from experiment.progress import say
from lm.batching import most_positions
from lm.chat import render, response_ids
from lm.errors import UserError
from lm.sampling import generator_for

# ----------------------------------------------------------------------------------------- labels


def label_records(questions, scores, factuality, correct, states):
    """The lines of labels.jsonl: scores, factuality and verdicts of each question's generations."""
    return [
        {
            "id": q["id"],
            **{name: values[i].tolist() for name, values in scores.items()},
            "factuality": factuality[i].tolist(),
            "correct": correct[i].tolist(),
            "state": states[i],
        }
        for i, q in enumerate(questions)
    ]


def label_summary(questions, states, records, dropped, factuality, correct, hits, rule):
    """What summary.json says of the labels: how many, and how well they agree with the answers."""
    langs = np.array([q["lang"] for q in questions])
    summary = {
        "rule": rule,
        "questions": len(questions),
        "states": dreamcatcher.histogram(states)[0],
        "rankings": len(records),
        "dropped": dict(dropped),
        "score AUROC": metrics.auroc(factuality, hits),
        "agreement with gold": {
            lang: dreamcatcher.agreement(correct[langs == lang], hits[langs == lang]) for lang in sorted(set(langs))
        },
    }
    if questions[0].get("true_state"):
        agree = [q["true_state"] == state for q, state in zip(questions, states)]
        summary["agreement with the true states"] = float(np.mean(agree))
    return summary


def save(folder, generations, uncertain, labels, records, summary):
    """Write what the annotate stage leaves."""
    path = lambda name: os.path.join(folder, name)
    write_jsonl(path("generations.jsonl"), [{**g, "uncertain": u} for g, u in zip(generations, uncertain)])
    write_jsonl(path("labels.jsonl"), labels)
    write_jsonl(path("preferences.jsonl"), records)
    write_jsonl(path("pairs.jsonl"), [pair for record in records for pair in dreamcatcher.pairs(record)])
    write_json(path("summary.json"), summary)


def sentences(states, records, dropped):
    """What the annotate stage made, in a line; then a line for each thing that looks odd."""
    counts, warnings = dreamcatcher.histogram(states)
    made = ", ".join(f"{n} {state}" for state, n in counts.items()) + f"; {len(records)} rankings"
    return [made + "".join(f"; {n} dropped: {why}" for why, n in dropped.items()), *(f"warning: {w}" for w in warnings)]


# ---------------------------------------------------------------------------- the reward's examples


def split_rankings(records, subject_of, share, seed):
    """{"train": records, "test": records}: all rankings of a `share` of the subjects only measure.

    subject_of {question id: subject}. Raises UserError where nothing is left to learn from.
    """
    subjects = sorted({subject_of[r["id"]] for r in records})
    order = torch.randperm(len(subjects), generator=generator_for(seed, "reward held out")).tolist()
    held = {subjects[i] for i in order[: max(1, round(share * len(subjects)))]}
    parts = {
        "train": [r for r in records if subject_of[r["id"]] not in held],
        "test": [r for r in records if subject_of[r["id"]] in held],
    }
    if not parts["train"]:
        raise UserError(
            f"of {len(records)} rankings --reward.held_out {share} leaves none to learn from (see the annotate stage's"
            " counts)"
        )
    return parts


def general_records(path, lm, max_tokens):
    """The general preference pairs of a file as rankings, without those that are too long."""
    limit = min(max_tokens, most_positions(lm))
    kinds, pairs = ["chosen", "rejected"], read_jsonl(path)
    records = [
        {"prompt": g["prompt"], "ranking": [g["chosen"], g["rejected"]], "kinds": kinds, "state": "general"}
        for g in pairs
    ]
    tokens = lambda prompt, responses, _: len(prompt) + max(map(len, responses))
    kept = [record for record in records if tokens(*reward.tokenise(lm, record, 0.5)) <= limit]
    if len(kept) < len(records):
        say(f"  {len(records) - len(kept)} of {len(records)} general pairs have more than {limit} tokens: left out")
    return kept


def with_general(parts, pairs, share):
    """The `parts` with general pairs: as many as rankings in the test part, then `share` as many in
    the other.
    """
    n_test = len(parts["test"])
    n_train = round(share * len(parts["train"]))
    return {"train": parts["train"] + pairs[n_test : n_test + n_train], "test": parts["test"] + pairs[:n_test]}


def examples_of(lm, records, known):
    """reward.tokenise of the records, with P(known) of their questions; 0.5 for a general pair."""
    return [reward.tokenise(lm, r, known[r["id"]]["p_known"] if "id" in r else 0.5) for r in records]


def initial_samples(lm, records, generations, known):
    """(prompts, responses, p_known): the first answer of the model before RLKF to each ranking's
    question. On these the reward is normalised.
    """
    factual = [r for r in records if r["state"] != "general"]
    return (
        [render(lm, r["prompt"]) for r in factual],
        [response_ids(lm, generations[r["id"]]["normal"][0]) for r in factual],
        [known[r["id"]]["p_known"] for r in factual],
    )


def accuracy_sentence(row):
    """A row of reward.accuracy_by_state in one line."""
    low, high = row["interval"]
    return (
        f"{row['state']}, {row['pair']}: {row['accuracy']:.3f} [{low:.3f}, {high:.3f}] of {row['n']} (always answer"
        f" {row['always_answer']:.2f}, longer {row['longer']:.2f})"
    )
