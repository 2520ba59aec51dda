"""What a run did, as a text that can be read on its own, from the files that its stages left.

Nothing is computed anew here. The report is Markdown, also printed at the end of a run; its figures
are PNG (figures.py), the paper's own figures stand in paper.py, several runs in one table in
compare.py. Texts of models and files are escaped. Left out: what is in the files already and nobody
reads twice (each question's scores, each step's figures).
"""

import os

from data.files import read_json, read_jsonl
from evaluation.honesty import FIGURE_1, METRICS, PROMPT_NAMES, STATES, find_row
from experiment import figures
from experiment.report_stages import benchmark_section, labels_section, probe_section, reward_section
from experiment.tables import definitions, escape, metric, number, read_csv, share, table, write_text

HEAD = (
    "accuracy",
    "hallucination",
    "known_accuracy",
    "refusal_recall",
    "over_refusal",
    "J",
    "nths",
)  # what the report begins with
SECTIONS = (
    "world",
    "sampling",
    "probe",
    "annotate",
    "reward",
    "sft",
    "ppo",
    "dpo",
    "rejection",
    "evaluate",
    "benchmarks",
)
GLOSSARY = {  # what the tables show beside METRICS
    "known, unknown, mixed": (
        "what the model before RLKF knows of a question, measured as said above; these states are the same before and"
        " after"
    ),
    "right": (
        "the answer matches one of the given answers, also where it adds that it is not sure; *refused*: it says that"
        " it does not know; *wrong*: all else"
    ),
    "base": "the model before RLKF under the plain prompt",
    "always refuse": "control: a model that refuses every question",
    "random refusal": "control: the answers before, refused at random as often as the model after refuses",
    "probe gate": "control: the answers before, as many refused as the model after refuses, those of lowest P(known)",
    "[a, b]": "95% interval, by bootstrap over the questions unless another is named",
    "AUROC": "chance that a right answer has a higher score than a wrong one; 50% is a coin",
    "AURC": (
        "area under the risk-coverage curve: mean share wrong among the answers of highest score, over all cuts; lower"
        " is better"
    ),
    "Brier": "mean squared distance between confidence and right (1) or wrong (0); lower is better",
    "ECE": "mean distance between confidence and the share right, over 10 bins of equal width; 0 is calibrated",
    "probe": "P(known) of the question by the linear probe of section 3.2, from the states of the model before RLKF",
    "reward margin": (
        "the reward model's score of the answer less that of the run's usual refusal, through the logistic function"
    ),
    "mean log-probability": "of the answer's tokens, by the model that gave it, as a probability",
    "question embedding (control)": "P(known) by a regression on a sentence embedding of the question alone",
    "balanced accuracy": (
        "mean of the accuracies on known and on unknown; of a reward model, of the pairs of known and of unknown"
        " questions"
    ),
    "min, max": "of the repeats, each another random split of the subjects",
    "validation loss": "mean negative log-likelihood in nats on the subjects that chose layer, kind and L2",
    "precision, recall, kappa": (
        'of the label "correct": share of those so labelled that are correct, share of the correct ones found;'
        " agreement beyond chance (Cohen)"
    ),
    "pair": (
        "two responses to one question, better > worse; accuracy: share of the pairs whose better one has the higher"
        " reward"
    ),
    "always answer, longer": (
        "baselines: prefer the answer to the refusal (a coin between two answers), prefer the longer text"
    ),
    "alignment tax": "what training for honesty costs on other benchmarks",
}


def build(folder, logged, records, samples_shown, say):
    """Write report.md and figures/ in a run's folder and return the report's text.

    logged: {stage: lines of metrics.jsonl}; records: {stage: its record in stages.json}.
    """
    path = lambda *parts: os.path.join(folder, *parts)
    config, honesty = read_json(path("config.json")), read_json(path("evaluate", "honesty.json"))
    settings, sets = config["settings"], honesty["sets"]
    probes = read_csv(path("probe", "accuracy.csv"))
    measured = (
        read_json(path("evaluate", "benchmarks.json")) if os.path.exists(path("evaluate", "benchmarks.json")) else {}
    )
    parts = [
        f"# RLKF run: {escape(os.path.basename(folder))}",
        *what_was_run(
            config, read_json(path("data", "summary.json")), read_json(path("policy", "chosen.json")), records
        ),
        *in_short(sets["test"], honesty.get("skill")),
        *how_measured(settings, honesty["prompts"]),
        *(part for name, result in sets.items() for part in honesty_section(name, result)),
        *labels_section(read_json(path("annotate", "summary.json")), read_jsonl(path("annotate", "preferences.jsonl"))),
        *reward_section(read_json(path("reward", "accuracy.json"))),
        *benchmark_section(measured, settings),
        *probe_section(probes, read_csv(path("probe", "ablation.csv")), settings),
        *samples_section(read_jsonl(path("evaluate", "answers.jsonl")), samples_shown),
    ]
    if figures.available():
        drawn = figures.draw_all(path("figures"), probes, logged["ppo"], sets, settings)
        parts += [
            "## Figures",
            "\n\n".join(f"![{name}](figures/{name})  \n{escape(caption, 200)}" for name, caption in drawn),
        ]
    else:
        say("  matplotlib is not installed: no figures")
    parts += [
        "## What the figures mean",
        *definitions({name: what for name, what in METRICS.values()}),
        *definitions(GLOSSARY),
        "## Files",
        definitions(
            {
                "policy/": "the trained model (AutoModelForCausalLM)",
                "reward/": "the reward model (AutoModelForSequenceClassification)",
                "probe/probes.safetensors": "the probe in use",
                "annotate/labels.jsonl, preferences.jsonl, pairs.jsonl": (
                    "scores and labels; rankings; the same as pairs"
                ),
                "evaluate/honesty.json, answers.jsonl": "every figure above; every answer",
                "config.json, metrics.jsonl": "every setting; a line a training step",
            }
        )[0],
    ]
    text = "\n\n".join(parts) + "\n"
    write_text(path("report.md"), text)
    return text


# ------------------------------------------------------------------------------------- what was run


def what_was_run(config, data, chosen, records):
    """Parts on model, questions, machine, settings, time and memory."""
    settings, seconds = config["settings"], {stage: record["seconds"] for stage, record in records.items()}
    peaks = [record["peak_gb"] for record in records.values() if record.get("peak_gb")]
    used = [
        name
        for name in SECTIONS
        if (name != "world" or settings["model"] == "lab")
        and (name not in ("dpo", "rejection") or name == settings["algorithm"])
        and (name != "benchmarks" or settings["benchmarks.names"])
    ]
    values = {
        name: ", ".join(
            f"{key.split('.', 1)[1]} {escape(' '.join(map(str, v)) if isinstance(v, list) else v)}"
            for key, v in settings.items()
            if key.startswith(f"{name}.")
        )
        for name in used
    }
    languages = ", ".join(f"{n} {escape(lang)}" for lang, n in data["lang"].items())
    return [
        (
            "Reinforcement Learning from Knowledge Feedback: a probe reads what a language model knows, its answers are"
            ' labelled, a reward model learns "factual > uncertain > hallucinated" from them, and the model is trained'
            " against that reward to answer what it knows and to admit what it does not."
        ),
        "## What was run",
        table(
            ["what", "this run"],
            [
                ["model", escape(settings["model"], 120)],
                [
                    "questions",
                    f"{escape(settings['questions'], 80)}: {data['questions']} ({languages}), split by subject",
                ],
                ["sentence embedder", escape(settings["embedder"], 120)],
                [
                    "algorithm",
                    f"{settings['algorithm']}; the policy kept is that after step {chosen['step']}"
                    + (" (where it began, after any warm-up)" if not chosen["step"] else "")
                    + ", the best on the validation questions",
                ],
                ["preset, seed", f"{config['preset']}, {settings['seed']}"],
                [
                    "machine",
                    f"{settings['device']}, {settings['dtype']}; Python {config.get('python', '-')}, "
                    + ", ".join(f"{name} {version}" for name, version in config["versions"].items()),
                ],
                [
                    "time",
                    ", ".join(f"{stage} {time:.0f} s" for stage, time in seconds.items())
                    + f"; together {sum(seconds.values()) / 60:.1f} min",
                ],
                ["peak memory", f"{max(peaks):.1f} GB" if peaks else "-"],
            ],
        ),
        *definitions({name: what for name, what in values.items() if what}),
    ]


def in_short(test, skill):
    """Parts with the head figures, each with its definition."""
    before, after = find_row(test, "before"), find_row(test, "after")
    other = (
        [f"A skill that has nothing to do with facts: {share(skill['before'])} before, {share(skill['after'])} after."]
        if skill
        else []
    )
    return [
        "## In short",
        (
            f"{test['n']} test questions about subjects that nothing was trained or chosen on; greedy answers, plain"
            " prompt, no guidance."
        ),
        table(
            ["metric", "before", "after", "what it is"],
            [[METRICS[key][0], metric(key, before[key]), metric(key, after[key]), METRICS[key][1]] for key in HEAD],
        ),
        *other,
    ]


# ------------------------------------------------------------------------------------------ honesty


def how_measured(settings, prompts):
    """Parts on states and prompts, before the sets' tables."""
    by_samples = (
        "a question is *known* if the greedy answer of the model before RLKF is right and so are at least"
        f" {settings['evaluate.known_share']:.0%} of its {settings['probe.k']} samples, *unknown* if the greedy answer"
        f" is not right and at most {settings['evaluate.unknown_share']:.0%} of the samples are, else *mixed*."
    )
    in_lab = " (In a lab world of all or nothing it is known if the corpus states it, else unknown.)"
    texts = {
        name: text and "; ".join(f'{lang}: "{escape(words, 200)}"' for lang, words in text.items())
        for name, text in prompts.items()
    }
    return [
        "## Honesty",
        f"A{by_samples[1:]}" + (in_lab if settings["model"] == "lab" else ""),
        "Prompts: "
        + "; ".join(
            f"*{escape(name.replace('_', ' '))}*, "
            + (f"this instruction before the question ({text})" if text else "the question alone")
            for name, text in texts.items()
        )
        + ".",
    ]


def honesty_section(name, result):
    """Parts on one set of questions: Figure 1, all metrics beside the controls, who moved where,
    confidence.
    """
    rows = result["rows"]
    heads = [row["policy"] + PROMPT_NAMES[row["prompt"]] for row in rows]
    asked = [row for row in rows if row["prompt"]]
    plain = lambda row: row["prompt"] == "plain"
    return [
        f"### Questions: {escape(name)}",
        (
            f"{result['n']} questions, of which {result['n_known']} known, {result['n_unknown']} unknown,"
            f" {result['n_mixed']} mixed."
        ),
        "Figure 1, the four states:",
        table(
            ["state", "what it is: the model ...", *(row["policy"] + PROMPT_NAMES[row["prompt"]] for row in asked)],
            [
                [n, what, *(f"{row['states'][str(n)]} ({row['states'][str(n)] / row['n']:.0%})" for row in asked)]
                for n, what in FIGURE_1.items()
            ],
        ),
        "Every metric, with the 95% interval under the plain prompt:",
        table(
            ["metric", *heads],
            [
                [title, *(metric(key, row[key], row["intervals"].get(key) if plain(row) else None) for row in rows)]
                for key, (title, _) in METRICS.items()
            ],
        ),
        "Questions by their state before (line) and after (column), plain prompt:",
        table(
            ["before", *(f"after: {n}" for n in FIGURE_1)],
            [[f"{n}: {what}", *counts] for (n, what), counts in zip(FIGURE_1.items(), result["transitions"])],
        ),
        *gate_parts(result),
        *exposure_parts(result.get("exposure")),
        *confidence_parts(result["confidence"]),
    ]


def gate_parts(result):
    """Parts on the gates: was training worth it? The policy's rows stand on top."""
    policies = [["**" + policy + " RLKF**", "", find_row(result, policy), "1 answer"] for policy in ("before", "after")]
    gated = [
        [row["title"] + (" (trained)" if row["trained"] else ""), row["source"], row, f"{row['passes']:.0f}"]
        for row in result.get("gates", ())
    ]
    if not gated:
        return []
    cell = lambda row, key: metric(key, row[key], row["intervals"].get(key)) if row.get(key) is not None else "-"
    shown = ("J", "nths", "known_accuracy", "hallucination")
    return [
        "Was training worth it? The model before, refusing where a score of its own lies below a threshold (chosen on"
        " the validation questions), beside the policy. AUROC: known questions against unknown ones; AURC: of the"
        " answers before, lower is better; passes: forward passes until a question is answered or refused.",
        table(
            ["who refuses", "source", *(METRICS[key][0] for key in shown), "AUROC", "AURC", "passes"],
            [
                [name, escape(source, 80), *(cell(row, key) for key in shown), *ranked(row), passes]
                for name, source, row, passes in policies + gated
            ],
        ),
    ]


def ranked(row):
    """AUROC and AURC of a gate's row; a policy has none."""
    return [number(row[key], 3, row["intervals"][key]) if "threshold" in row else "-" for key in ("auroc", "aurc")]


def exposure_parts(rows):
    """Parts on what is known by exposure, the lab's ground truth; none elsewhere."""
    if not rows:
        return []
    return [
        "What the model knows by how often its corpus stated the fact (95% intervals by Wilson; no method sees it):",
        table(
            [
                "exposure",
                "questions",
                "greedy right",
                "samples right",
                "P(known)",
                "entropy",
                "after: right",
                "refused",
            ],
            [
                [
                    r["exposure"],
                    r["n"],
                    share(r["greedy_right"], r["greedy_interval"]),
                    share(r["samples_right"], r["samples_interval"]),
                    number(r["p_known"], 2),
                    number(r["entropy"], 2),
                    share(r["after_right"]),
                    share(r["after_refused"], r["after_interval"]),
                ]
                for r in rows
            ],
        ),
    ]


def confidence_parts(confidence):
    """Parts on the scores of confidence; none where there are none."""
    if not confidence:
        return []
    return [
        "Does a score tell right from wrong greedy answers? Plain prompt, over the questions that the policy answered:",
        table(
            ["score", "policy", "answered", "right", "AUROC", "AURC", "Brier", "ECE"],
            [
                [
                    escape(c["score"]),
                    c["policy"],
                    c["n"],
                    c["right"],
                    *(number(c[key], 3, c["intervals"].get(key)) for key in ("auroc", "aurc", "brier", "ece")),
                ]
                for c in confidence
            ],
        ),
    ]


# -------------------------------------------------------------------------------- the stages before


def samples_section(samples, n):
    """Parts with about n answers side by side, a table a state, the sets mixed in file order."""
    chosen = pick(samples, n)
    parts = ["## Answers before and after"] if chosen else []
    for state in STATES:
        rows = [
            [escape(s["question"], 55), escape(s["answers"][0], 20), escape(s["before"], 36), escape(s["after"], 36)]
            for s in chosen
            if s["state"] == state
        ]
        if rows:
            parts += [f"### {state.capitalize()}", table(["question", "given answer", "before", "after"], rows)]
    return parts


def pick(samples, n):
    """About n samples, the states in turn, in file order."""
    by_state = {state: [s for s in samples if s["state"] == state] for state in STATES}
    chosen = []
    while len(chosen) < n and any(by_state.values()):
        for rows in by_state.values():
            if rows and len(chosen) < n:
                chosen.append(rows.pop(0))
    return chosen
