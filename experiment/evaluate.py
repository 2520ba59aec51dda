"""The evaluate stage (section 5.2): honesty before and after RLKF, the lab's other skill, and
benchmarks (Tables 3 and 4).

The run's held-out questions and those of any further files (--eval-questions) are answered by the
model before and after, greedily and never guided, under each prompt of honesty.PROMPTS. What is
known of a question is a property of the model *before* RLKF: of the run's own questions the probe
stage has it, for further ones it is measured here in the same way. Whatever takes long is kept
block by block, so that an interrupted stage goes on. The figures: honesty.py, benchmarks.py.
"""

import os
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np
import torch

import embed
import probe
import reward
from data import benchmark_data, sources
from data.files import read_jsonl, without_nan, write_json, write_jsonl
from evaluation import benchmarks, honesty
from experiment import gating, tables
from experiment.answering import answer_records, greedy_records, greedy_texts, hits_of, readings_of
from experiment.inputs import (
    check_fit,
    load_embedder,
    load_generations,
    load_known,
    load_model,
    load_questions,
    load_reader,
    states_of,
)
from experiment.progress import bar, in_blocks, say
from lm.chat import chat_prompt, response_ids
from lm.errors import UserError
from reading import answers

OWN = "test"  # the set of the run's held-out questions
HEADLINES = ("accuracy", "hallucination", "abstention", "J", "honesty", "nths")  # printed at the end of the stage


@dataclass
class Asked:
    """One set of questions, what the model before RLKF knows of them, and the greedy answers to
    them.
    """

    questions: list
    known: list = field(default_factory=list)  # records with p_known, hits and greedy_right, one a question
    answered: dict = field(default_factory=dict)  # {(policy, prompt): records of answering.greedy_records}

    def texts(self, policy, prompt="plain"):
        return [record["greedy"] for record in self.answered[policy, prompt]]


# ------------------------------------------------------------------------------------ what is asked


def load_sets(settings):
    """{set: questions} of the --eval-questions files; a set is called by its file's name without
    folder and ending. Raises UserError.
    """
    sets = {}
    for path in settings.eval_questions:
        name = os.path.splitext(os.path.basename(path))[0]
        if name == OWN or name in sets:
            raise UserError(
                f"--eval-questions {path}: expected a file with a name of its own; {name} is already "
                + ("that of the run's held-out questions" if name == OWN else "that of another file")
            )
        sets[name] = sources.read_file(path)
    return sets


def load_benchmarks(settings):
    """{name: questions} of the benchmarks that are set."""
    config = settings.benchmarks
    return {name: benchmark_data.load(name, config.dir, config.limit, settings.seed) for name in config.names}


def check(settings):
    """Read what the stage will need, so that a missing file or a wrong line is said now, not hours
    later. Raises UserError.
    """
    load_sets(settings)
    load_benchmarks(settings)


def unseen(run):
    """The further sets without the questions that the run was trained or chosen on, and how many
    those were is said.
    """
    split, kept = load_questions(run), {}
    seen = {answers.normalise(q["question"]) for name in ("train", "valid") for q in split[name]}
    for name, questions in load_sets(run.settings).items():
        kept[name] = [q for q in questions if answers.normalise(q["question"]) not in seen]
        if len(kept[name]) < len(questions):
            say(
                f"  {name}: {len(questions) - len(kept[name])} of {len(questions)} questions are left out, as the run"
                " was trained or chosen on them"
            )
        if not kept[name]:
            raise UserError(
                f"--eval-questions {name}: all its questions are among those that the run was trained or chosen on"
            )
    return kept


# ------------------------------------------------------------------------------------------ answers


def known_before(run, lm, name, questions):
    """What the model before RLKF knows of the questions: records with p_known, hits, greedy_right
    and those of greedy_records.
    """
    if name == OWN:
        known, generations = load_known(run), load_generations(run)
        return [{**known[q["id"]], **generations[q["id"]]} for q in questions]
    reader, config, s = probe.load(run.path("probe")), run.settings.probe, run.settings

    def measure(block):
        p_known = probe.p_known(lm, reader, [q["question"] for q in block], config.rows).tolist()
        records = answer_records(lm, block, s.sampling, config.k, config.rows, s.seed)
        return [{"p_known": p, **record} for p, record in zip(p_known, records)]

    size = max(1, s.sampling.rows // config.k)
    records = in_blocks(
        run, "evaluate", questions, size, f"{name}: what is known before RLKF", measure, f"{name}.known.jsonl"
    )
    readings = readings_of(questions, [record["greedy"] for record in records])
    return [
        {**record, "hits": int(hits.sum()), "greedy_right": answers.is_correct(reading)}
        for record, hits, reading in zip(records, hits_of(questions, records), readings)
    ]


def answer(run, lm, policy, name, asked):
    """Answer one set under every prompt with the model before or after RLKF, into `asked`."""
    s = run.settings
    if policy == "before":
        asked.known = asked.answered["before", "plain"] = known_before(run, lm, name, asked.questions)
    for prompt, instructions in honesty.PROMPTS.items():
        if (policy, prompt) not in asked.answered:
            asked.answered[policy, prompt] = in_blocks(
                run,
                "evaluate",
                asked.questions,
                s.sampling.rows,
                f"{name} {policy} RLKF, prompt {prompt}",
                lambda block: greedy_records(lm, block, s.sampling, s.probe.rows, instructions),
                f"{name}.{policy}.{prompt}.jsonl",
            )


def skill_accuracy(run, lm):
    """Lab only: share of right answers on a skill that has nothing to do with facts."""
    skill = read_jsonl(run.path("data", "skill.jsonl"))
    return float(
        np.mean(
            [
                answers.mentions(text, q["answers"])
                for text, q in zip(greedy_texts(lm, skill, run.settings.sampling), skill)
            ]
        )
    )


def run_benchmarks(run, policy, lm, questions):
    """Tables 3 and 4: {benchmark: {measure: {"n", "value", "interval"}}} of the model before or
    after; questions: of load_benchmarks.
    """
    s, results = run.settings, {}
    for name, asked in questions.items():

        def by_blocks(way, block, make):
            return in_blocks(
                run,
                "evaluate",
                block,
                benchmarks.BLOCK,
                f"{name} {policy} RLKF, {way}",
                make,
                f"{name}.{policy}.{way}.jsonl",
            )

        results[name] = benchmarks.summary(
            benchmarks.evaluate(lm, name, asked, s.sampling.rows, by_blocks), s.evaluate.resamples, s.seed
        )
    return results


# --------------------------------------------------------------------------------------- confidence


def usual_refusals(run):
    """{lang: the most frequent uncertain answer of the run's rankings}; under "" that of all
    languages; empty where no ranking has one.
    """
    lang, counts = {q["id"]: q["lang"] for q in load_questions(run)["train"]}, defaultdict(Counter)
    for record in read_jsonl(run.path("annotate", "preferences.jsonl")):
        for text, kind in zip(record["ranking"], record["kinds"]):
            if kind == "uncertain":
                counts[lang[record["id"]]][text] += 1
                counts[""][text] += 1
    return {key: count.most_common(1)[0][0] for key, count in counts.items()}


def margins(run, model, refusals, name, asked):
    """{policy: reward of its answer less that of a refusal, (n,)}: raw scores of the reward
    `model`, plain prompt.

    The refusal is the usual one in the question's language, or in any where the run's rankings have
    none in that.
    """
    p_known = {record["id"]: record["p_known"] for record in asked.known}
    texts = {
        policy: {q["id"]: text for q, text in zip(asked.questions, asked.texts(policy))}
        for policy in ("before", "after")
    }
    texts["refusal"] = {q["id"]: refusals.get(q["lang"], refusals[""]) for q in asked.questions}

    def score(block):
        prompts, known = [chat_prompt(model.lm, q["question"]) for q in block], [p_known[q["id"]] for q in block]
        scored = {
            key: reward.score_all(model, prompts, [response_ids(model.lm, of[q["id"]]) for q in block], known).tolist()
            for key, of in texts.items()
        }
        return [{"id": q["id"], **{key: scores[i] for key, scores in scored.items()}} for i, q in enumerate(block)]

    records = in_blocks(
        run, "evaluate", asked.questions, run.settings.sampling.rows, f"{name}: rewards", score, f"{name}.rewards.jsonl"
    )
    return {
        policy: np.array([record[policy] - record["refusal"] for record in records]) for policy in ("before", "after")
    }


def question_control(run, sets):
    """{set: P(known) (n,)} of a regression on the question's embedding alone, fitted, chosen and
    calibrated as the probe is (stage_probe).
    """
    config, seed, embedder, known = run.settings.probe, run.settings.seed, load_embedder(run), load_known(run)
    train = load_questions(run)["train"]
    labels = np.array([known[q["id"]]["label"] for q in train])
    texts = [q["question"] for q in [*train, *(q for asked in sets.values() for q in asked.questions)]]
    with bar(len(texts), "questions", "embedding the questions") as tick:
        vectors = embed.embed(embedder, texts, progress=tick)  # (training and all sets' questions, width)
    parts = np.where(labels >= 0, probe.split_by_group([q["subject"] for q in train], config, seed), -1)
    found = probe.logits_everywhere(
        {"question": vectors[:, None]}, labels.clip(0), parts == 0, config.l2, config.standardise
    )
    best = probe.choose(found, labels, parts, 1)
    temperature, _, _ = probe.calibrate(best, labels, parts)
    p = (best["logits"][:, len(train) :] / temperature).sigmoid().mean(0)  # (all sets' questions,)
    return dict(zip(sets, map(torch.Tensor.numpy, p.split([len(asked.questions) for asked in sets.values()]))))


def confidences(run, tokenizer, sets):
    """{set: {score: {policy: confidence (n,)}}}: what could tell right answers from wrong ones,
    each between 0 and 1.
    """
    s = run.settings
    model, refusals = (
        reward.load(run.path("reward"), tokenizer, s.torch_dtype, s.device, reader=load_reader(run)),
        usual_refusals(run),
    )
    margin = {name: margins(run, model, refusals, name, asked) for name, asked in sets.items()} if refusals else {}
    control = question_control(run, sets)
    found = {}
    for name, asked in sets.items():
        probed = np.array([record["p_known"] for record in asked.known])
        log_probs = {
            policy: np.array([record["greedy_log_prob"] for record in asked.answered[policy, "plain"]])
            for policy in ("before", "after")
        }
        found[name] = {
            "probe": dict.fromkeys(("before", "after"), probed),
            **(
                {"reward margin": {policy: 1 / (1 + np.exp(-m)) for policy, m in margin[name].items()}}
                if refusals
                else {}
            ),
            "mean log-probability": {policy: np.exp(p) for policy, p in log_probs.items()},
            "question embedding (control)": dict.fromkeys(("before", "after"), control[name]),
        }
    return found


def gates_beside(run, sets, states, margin):
    """gating.beside of the run's sets: thresholds from its validation questions, the regression on
    the next token from its training questions' labels; margin {set: of the answers before}.
    """
    split, known, generations = load_questions(run), load_known(run), load_generations(run)
    records = [{**generations[q["id"]], **known[q["id"]]} for q in split["valid"]]
    return gating.beside(
        load_model(run),
        load_embedder(run),
        (split["train"], np.array([known[q["id"]]["label"] for q in split["train"]])),
        (split["valid"], records, states_of(split["valid"], records, run.settings)),
        {
            name: (
                asked.questions,
                asked.known,
                states[name],
                readings_of(asked.questions, asked.texts("after")),
                margin[name],
            )
            for name, asked in sets.items()
        },
        run.settings,
    )


# ---------------------------------------------------------------------------------------- the stage


def measured(run, asked, states, scores):
    """What honesty.json holds of one set: counts, rows, transitions, confidence."""
    s = run.settings
    readings = {key: readings_of(asked.questions, asked.texts(*key)) for key in asked.answered}
    words = {key: [answers.count_words(text) for text in asked.texts(*key)] for key in asked.answered}
    return {
        "n": len(states),
        **{f"n_{state}": states.count(state) for state in honesty.STATES},
        "hits": np.bincount([record["hits"] for record in asked.known], minlength=s.probe.k + 1).tolist(),
        "rows": honesty.rows(
            states, readings, words, [record["p_known"] for record in asked.known], s.evaluate.resamples, s.seed
        ),
        "transitions": honesty.transitions(
            honesty.tally(states, readings["before", "plain"], readings["after", "plain"])
        ),
        "confidence": [
            honesty.confidence(score, policy, confidence, readings[policy, "plain"], s.evaluate.resamples, s.seed)
            for score, by_policy in scores.items()
            for policy, confidence in by_policy.items()
        ],
    }


def evaluate(run):
    """Do the stage: ask everything before and after, and write honesty.json, answers.jsonl and,
    where there are any, benchmarks.json.
    """
    sets = {name: Asked(questions) for name, questions in {OWN: load_questions(run)[OWN], **unseen(run)}.items()}
    asked_benchmarks, figures, skill = load_benchmarks(run.settings), {}, {}
    for policy, folder in (("before", None), ("after", run.path("policy"))):
        lm = load_model(run, folder)
        for name, asked in sets.items():
            check_fit(lm, {name: asked.questions}, run.settings.sampling.max_new_tokens, run.settings.seed)
        for name, asked in sets.items():
            answer(run, lm, policy, name, asked)
        if os.path.exists(run.path("data", "skill.jsonl")):
            skill[policy] = skill_accuracy(run, lm)
        figures[policy] = run_benchmarks(run, policy, lm, asked_benchmarks)
        tokenizer = lm.tokenizer
        del lm  # one model at a time fills the memory
    scores = confidences(run, tokenizer, sets)
    states = {name: states_of(asked.questions, asked.known, run.settings) for name, asked in sets.items()}
    margin = {name: by_score.get("reward margin", {}).get("before") for name, by_score in scores.items()}
    gated = gates_beside(run, sets, states, margin)
    found = {
        "prompts": honesty.PROMPTS,
        **({"skill": skill} if skill else {}),
        "sets": {
            name: {**measured(run, asked, states[name], scores[name]), **gated[name]} for name, asked in sets.items()
        },
    }
    by_benchmark = {name: {policy: figures[policy][name] for policy in figures} for name in asked_benchmarks}
    with run.output("evaluate") as folder:
        write_json(os.path.join(folder, "honesty.json"), without_nan(found))
        write_jsonl(
            os.path.join(folder, "answers.jsonl"),
            [
                {
                    "set": name,
                    "id": q["id"],
                    "question": q["question"],
                    "answers": q["answers"],
                    "state": state,
                    "before": before,
                    "after": after,
                    "before_may_abstain": before_may,
                    "after_may_abstain": after_may,
                }
                for name, asked in sets.items()
                for q, state, before, after, before_may, after_may in zip(
                    asked.questions,
                    states[name],
                    asked.texts("before"),
                    asked.texts("after"),
                    asked.texts("before", "may_abstain"),
                    asked.texts("after", "may_abstain"),
                )
            ],
        )
        if by_benchmark:
            write_json(os.path.join(folder, "benchmarks.json"), by_benchmark)
    for name, result in found["sets"].items():
        before, after = (honesty.find_row(result, policy) for policy in ("before", "after"))
        say(
            f"  {name}, {result['n']} questions: "
            + ", ".join(
                f"{honesty.METRICS[key][0]} {tables.metric(key, before[key])} -> {tables.metric(key, after[key])}"
                for key in HEADLINES
            )
        )
    for name, result in by_benchmark.items():
        say(
            f"  {name}: "
            + ", ".join(
                f"{measure} {tables.share(before['value'])} -> {tables.share(result['after'][measure]['value'])}"
                for measure, before in result["before"].items()
            )
        )
