"""Gates beside the policy: what refusing by a score of the model before training would have done.

Every score of evaluation/gates.py is read off the model before; a threshold is chosen on the run's
validation questions and used on a set's. In the lab, too: what the model knows by exposure, the
number of times that the corpus states a fact.
"""

import numpy as np
import torch

import embed
from evaluation import gates, metrics
from evaluation.output import first_token_log_probs
from experiment.answering import readings_of
from lm.chat import chat_prompt, response_ids
from lm.forward import response_log_probs

FIXED = {"always": -np.inf, "reward": 0.5}  # thresholds that nothing chooses: 0.5 is a margin of 0


def raw_scores(lm, embedder, questions, records, rows, seed):
    """({gate: confidence (n,)}, ten highest next-token log-probs (n, 10), tokens of an answer).

    records: what is known of each question (p_known) and its answers (normal, greedy).
    """
    prompts, greedy = [chat_prompt(lm, q["question"]) for q in questions], [r["greedy"] for r in records]
    samples = [r["normal"] for r in records]
    entropy, top = first_token_log_probs(lm, prompts, rows)
    log_probs = response_log_probs(lm, prompts, [response_ids(lm, text) for text in greedy], rows=rows)
    total, mean = gates.answer_log_probability(log_probs)
    vectors = embed.embed(embedder, [text for texts in samples for text in texts]).unflatten(0, (len(samples), -1))
    found = {
        "probe": np.array([r["p_known"] for r in records]),
        "entropy": -entropy,
        "log_prob": total,
        "mean_log_prob": mean,
        "consistency": gates.consistency(greedy, samples, gates.same_answer),
        "embedding": gates.embedding_consistency(vectors),
        "semantic_entropy": -gates.semantic_entropy(samples, gates.same_answer),
        "always": np.zeros(len(questions)),
        "random": gates.random_confidence(len(questions), seed),
    }
    if response_ids(lm, "Yes")[:1] != response_ids(lm, "No")[:1]:  # the lab's model has no such words
        asked = [(q["question"], answer) for q, answer in zip(questions, greedy)]
        found["p_true"] = gates.p_yes(lm, [gates.p_true_conversation(*pair) for pair in asked], rows)
        found["sure"] = gates.p_yes(lm, [gates.sure_conversation(*pair) for pair in asked], rows)
    if all("exposure" in q for q in questions):
        found["exposure"] = np.array([float(q["exposure"]) for q in questions])
    return found, top, float(np.mean([len(row) for row in log_probs]))


def top_ten_of(lm, questions, rows):
    """The ten highest next-token log-probs (n, 10) of questions, plain prompt."""
    return first_token_log_probs(lm, [chat_prompt(lm, q["question"]) for q in questions], rows)[1]


def gate_rows(chosen_on, measured_on, base, k, resamples, seed):
    """The table's rows of one set, each with title, source, passes and its risk-coverage curve.

    chosen_on: (scores, states) of the validation questions; measured_on: (scores, states, tokens of
    an answer) of the set's; base: readings of the answers before.
    """
    scores, states, tokens = measured_on
    rows = []
    for name, gate in gates.GATES.items():
        if name not in scores:
            continue
        if name in FIXED:
            threshold = FIXED[name]
        else:
            threshold = gates.choose_threshold(chosen_on[0][name], chosen_on[1])
        row = gates.measure(name, scores[name], threshold, states, base, resamples, seed)
        about = {"title": gate.title, "source": gate.source, "trained": gate.trained}
        cost = {"passes": gates.cost(gate, k, tokens), "curve": gates.curve(scores[name], base)}
        rows.append({**row, **about, **cost, "threshold": float(threshold) if np.isfinite(threshold) else None})
    return rows


def exposure_rows(questions, records, entropy, k, before, after):
    """What is known by exposure: one row each, with counts and Wilson intervals; lab only.

    before, after: readings of the greedy answers of the model before and of the policy.
    """
    rows, exposures = [], np.array([q["exposure"] for q in questions])
    right = lambda readings, index: int(sum(readings[i] in ("right", "hedged") for i in index))
    for exposure in sorted(set(exposures.tolist())):
        index = np.flatnonzero(exposures == exposure).tolist()
        n, hits = len(index), sum(records[i]["hits"] for i in index)
        refused = sum(after[i] == "refusal" for i in index)
        rows.append(
            {
                "exposure": exposure,
                "n": n,
                "greedy_right": right(before, index) / n,
                "greedy_interval": metrics.wilson_interval(right(before, index), n),
                "samples_right": hits / (n * k),
                "samples_interval": metrics.wilson_interval(hits, n * k),
                "p_known": float(np.mean([records[i]["p_known"] for i in index])),
                "entropy": float(np.mean([entropy[i] for i in index])),
                "after_right": right(after, index) / n,
                "after_refused": refused / n,
                "after_interval": metrics.wilson_interval(refused, n),
            }
        )
    return rows


@torch.no_grad()
def beside(lm, embedder, train, valid, sets, settings):
    """{set: {"gates": rows, "exposure": rows, the latter in the lab only}}.

    train: (questions, labels); valid: (questions, records, states); sets {name: (questions,
    records, states, readings after, reward margins as a probability or None)}; records hold
    p_known, hits, normal and greedy.
    """
    rows, k, seed = settings.probe.rows, settings.probe.k, settings.seed
    train_top, labels = top_ten_of(lm, train[0], rows), train[1]
    questions, records, valid_states = valid
    of_valid, top, _ = raw_scores(lm, embedder, questions, records, rows, seed)
    of_valid["top_ten"] = gates.top_ten(train_top, labels, top)
    found = {}
    for name, (questions, records, states, after, margins) in sets.items():
        scores, top, tokens = raw_scores(lm, embedder, questions, records, rows, seed)
        scores["top_ten"] = gates.top_ten(train_top, labels, top)
        shared = {gate: values for gate, values in scores.items() if gate in of_valid}
        if margins is not None:
            shared["reward"] = margins
        base = readings_of(questions, [r["greedy"] for r in records])
        measured = (shared, states, tokens)
        found[name] = {
            "gates": gate_rows((of_valid, valid_states), measured, base, k, settings.evaluate.resamples, seed)
        }
        if "exposure" in shared:
            found[name]["exposure"] = exposure_rows(questions, records, -scores["entropy"], k, base, after)
    return found
