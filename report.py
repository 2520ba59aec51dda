"""What a run did, in tables and pictures, from the files that its stages left.

Nothing is computed anew here. The report is Markdown, also printed at the end of a run; figures are PNG and need
matplotlib, without which there are only tables. Texts of models and data are escaped. Left out: the paper's
own benchmark figures, which are of other models.
"""
import csv
import math
import os

import benchmarks
from files import read_json, read_jsonl, whole
from honesty import FIGURE_1, METRICS, find_row

PAPER_TABLE_2 = {"known": "66-94%", "unknown": "82-89%", "mixed": "58-78%"}
PAPER_TABLE_7 = {"known": "45-52%", "unknown": "40-45%", "mixed": "8-10%"}


def write_csv(path, rows):
    """Write dicts as CSV; the columns are all their keys in order of first use."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with whole(path) as part, open(part, "w", newline="", encoding="utf-8") as f:
        writer = csv.DictWriter(f, columns)
        writer.writeheader()
        writer.writerows(rows)


def escape(text, width=110):
    """Text of a model or a file, made safe for a Markdown table cell and for a terminal, and cut to `width`."""
    text = " ".join("".join(c if c.isprintable() or c.isspace() else "\ufffd" for c in str(text)).split())
    text = text if len(text) <= width else text[:width - 1] + "…"
    for char in "\\|`*_<>[]":
        text = text.replace(char, "\\" + char)
    return text


def table(head, rows):
    """Markdown table; every cell a string."""
    widths = [max(len(str(row[i])) for row in [head, *rows]) for i in range(len(head))]
    line = lambda cells: "| " + " | ".join(str(c).ljust(w) for c, w in zip(cells, widths)) + " |"
    return "\n".join([line(head), "|" + "|".join("-" * (w + 2) for w in widths) + "|", *map(line, rows)])


def share(value, interval=None):
    """A share as per cent, with its interval where there is one."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.1%}" + (f" [{interval[0]:.1%}, {interval[1]:.1%}]" if interval else "")


def build(folder, logged, seconds, samples_shown, say):
    """Write report.md and figures/ in a run's folder and return the report's text.

    logged: {stage: lines of metrics.jsonl}; seconds: {stage: how long it took}.
    """
    config = read_json(os.path.join(folder, "config.json"))
    evaluated = read_json(os.path.join(folder, "evaluate", "honesty.json"))
    test, skill = evaluated["sets"]["test"], evaluated.get("skill")
    before, after = (find_row(test, policy) for policy in ("before", "after"))
    probed = next(c for c in test["confidence"] if (c["score"], c["policy"]) == ("probe", "before"))
    samples = [s for s in read_jsonl(os.path.join(folder, "evaluate", "answers.jsonl")) if s["set"] == "test"]
    summary = read_json(os.path.join(folder, "annotate", "summary.json"))
    reward_table = read_json(os.path.join(folder, "reward", "accuracy.json"))
    chosen = read_json(os.path.join(folder, "policy", "chosen.json"))
    with open(os.path.join(folder, "probe", "accuracy.csv"), newline="", encoding="utf-8") as f:
        probes = list(csv.DictReader(f))
    with open(os.path.join(folder, "probe", "ablation.csv"), newline="", encoding="utf-8") as f:
        ablations = list(csv.DictReader(f))
    calibrated = next(row for row in probes if row["ece"])
    settings = config["settings"]
    parts = [
        f"# RLKF run: {os.path.basename(folder)}",
        f"Model {settings['model']}, questions {settings['questions']}, preset {config['preset']}, seed {settings['seed']}, "
        f"{settings['dtype']} on {settings['device']}, torch {config['versions']['torch']}, transformers "
        f"{config['versions']['transformers']}. Every setting is in config.json.",
        "## Figure 1: the four states, before and after",
        f"{before['n']} test questions about subjects that nothing was trained or chosen on; greedy, plain prompt, no guidance. "
        f"What is known ({before['n_known']} questions) and unknown ({before['n_unknown']}) is a property of the model before RLKF.",
        table(["state", "what it is", "before", "after"],
              [[n, what, *(f"{r['states'][str(n)]} ({r['states'][str(n)] / r['n']:.0%})" for r in (before, after))]
               for n, what in FIGURE_1.items()]),
        table(["measure", "before [95% interval]", "after [95% interval]", "what it is"],
              [[name, *(share(r[key], r["intervals"].get(key)) for r in (before, after)), what]
               for key, (name, what) in METRICS.items() if key != "mean_words"]
              + ([["other skill", *(share(skill[policy]) for policy in ("before", "after")), "right on a skill that has nothing to do with facts"]] if skill else [])),
        f"The policy kept is the one after step {chosen['step']} of {chosen['algorithm'].upper()}, the best on the validation questions.",
        *benchmark_section(os.path.join(folder, "evaluate", "benchmarks.json"), settings),
        "## Probing (section 3.2)", probe_table(probes),
        "One linear probe; layer, kind and L2 chosen by the log loss on validation subjects, each figure the mean over "
        f"{settings['probe.repeats']} random splits of the subjects. Calibration error (ECE, 10 bins) {number(calibrated, 'ece')} after dividing the "
        f"logits by {number(calibrated, 'temperature')}, {number(calibrated, 'ece_uncalibrated')} before.",
        "One thing changed at a time, chosen and tested in the same way:", ablation_table(ablations),
        f"P(known) of the probe tells right from wrong greedy answers on the test questions at AUROC {number(probed, 'auroc')}.",
        "## DreamCatcher's labels (Table 7)",
        table(["state", "questions", "share", "paper"],
              [[state, n, f"{n / max(1, sum(summary['states'].values())):.0%}", PAPER_TABLE_7[state]] for state, n in summary["states"].items()]),
        f"Rule {summary['rule']}; {summary['rankings']} rankings"
        + "".join(f"; {n} questions dropped: {why}" for why, n in summary["dropped"].items())
        + f". Factuality tells right from wrong generations at AUROC {summary['score AUROC']:.3f}."
        + (f" States agree with the true ones on {summary['agreement with the true states']:.1%}." if "agreement with the true states" in summary else ""),
        "## Reward model (Table 2), held-out subjects",
        table(["state", "pair", "n", "accuracy [95% interval]", "always answer", "longer", "paper"],
              [[r["state"], r["pair"], r["n"], share(r["accuracy"], r["interval"]), share(r["always_answer"]), share(r["longer"]), PAPER_TABLE_2.get(r["state"], "-")]
               for r in reward_table]),
        "## Answers before and after",
        table(["state", "question", "answer", "before", "after"],
              [[s["state"], *(escape(s[key], 60) for key in ("question",)), escape(s["answers"][0], 30), escape(s["before"], 70), escape(s["after"], 70)]
               for s in pick(samples, samples_shown)]),
        "## Time",
        ", ".join(f"{stage} {time:.0f} s" for stage, time in seconds.items()) + f"; together {sum(seconds.values()) / 60:.1f} min.",
        "## Files",
        f"Policy {folder}/policy (AutoModelForCausalLM), reward model {folder}/reward (AutoModelForSequenceClassification), probes "
        f"{folder}/probe/probes.safetensors, labels {folder}/annotate/labels.jsonl, preferences {folder}/annotate/preferences.jsonl, "
        f"answers {folder}/evaluate/answers.jsonl, log {folder}/metrics.jsonl.",
    ]
    figures = draw(os.path.join(folder, "figures"), probes, logged, before, after, say)
    if figures:
        parts += ["## Figures", "\n".join(f"![{name}](figures/{name})" for name in figures)]
    text = "\n\n".join(parts) + "\n"
    with whole(os.path.join(folder, "report.md")) as part, open(part, "w", encoding="utf-8") as f:
        f.write(text)
    return text


def benchmark_section(path, settings):
    """Parts of the report on benchmarks; none where the run has none."""
    if not os.path.exists(path):
        return []
    rows = [[name, measure, before["n"], *(share(r["value"], r["interval"]) for r in (before, result["after"][measure]))]
            for name, result in read_json(path).items() for measure, before in result["before"].items()]
    drawn = f"{settings['benchmarks.limit']} questions of each, drawn with seed {settings['seed']}" if settings["benchmarks.limit"] else "all questions"
    return ["## Benchmarks (Tables 3 and 4)", f"Zero-shot, {drawn}; generation is greedy, with the chat template; log-likelihoods are taken without it. "
            + "; ".join(f"{name}: {what}" for name, what in benchmarks.MEASURES.items()) + ".",
            table(["benchmark", "measure", "n", "before [95% interval]", "after [95% interval]"], rows)]


def pick(samples, n):
    """About n samples, the states in turn, in file order."""
    by_state = {state: [s for s in samples if s["state"] == state] for state in ("known", "unknown", "mixed")}
    chosen = []
    while len(chosen) < n and any(by_state.values()):
        for rows in by_state.values():
            if rows and len(chosen) < n:
                chosen.append(rows.pop(0))
    return chosen


def number(row, key):
    """A figure of a row of a CSV file with three decimals, or "-" where it has none."""
    value = row.get(key)
    return "-" if value in (None, "") else f"{float(value):.3f}"


def probe_table(rows):
    """The best single layer of each kind by validation, the probe in use, and the controls."""
    kinds = dict.fromkeys(r["kind"] for r in rows)
    best = [min((r for r in rows if r["kind"] == kind), key=lambda r: float(r["valid_loss"] or "inf")) for kind in kinds]
    return table(["representation", "layer", "accuracy", "min", "max", "balanced", "AUROC", "validation loss"],
                 [[r["kind"], r["layer"] or "-", *(number(r, k) for k in (
                     "accuracy", "accuracy_min", "accuracy_max", "balanced_accuracy", "auroc", "valid_loss"))] for r in best])


def ablation_table(rows):
    """One line a variant of the probe."""
    return table(["probe", "kind", "validation loss", "accuracy", "balanced", "AUROC"],
                 [[r["variant"], r["kind"], *(number(r, k) for k in ("valid_loss", "accuracy", "balanced_accuracy", "auroc"))] for r in rows])


# ---------------------------------------------------------------------------------------------------- figures

def draw(folder, probes, logged, before, after, say):
    """Write the figures; returns their file names, none where matplotlib is missing."""
    pyplot = drawing()
    if pyplot is None:
        say("  matplotlib is not installed: no figures")
        return []
    os.makedirs(folder, exist_ok=True)
    steps = [line for line in logged["ppo"] if line.get("event") == "step"]
    looks = [line for line in logged["ppo"] if line.get("event") == "validation"]
    figures = {"probe_accuracy.png": lambda: draw_probes(pyplot, probes), "four_states.png": lambda: draw_states(pyplot, before, after),
               "ppo.png": lambda: draw_ppo(pyplot, steps, looks)}
    for name, make in figures.items():
        save_figure(pyplot, make(), os.path.join(folder, name))
    return list(figures)


def drawing():
    """matplotlib.pyplot for files, or None where it is not installed."""
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot
    return pyplot


def save_figure(pyplot, figure, path):
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def draw_probes(pyplot, rows):
    """Figures 2 and 4: accuracy by layer, one panel a representation, band over the repeats, controls as lines."""
    kinds = [k for k in dict.fromkeys(r["kind"] for r in rows) if k in ("attention", "mlp", "hidden")]
    figure, axes = pyplot.subplots(1, len(kinds), figsize=(4 * len(kinds), 3.4), sharey=True, squeeze=False)
    controls = {r["kind"]: float(r["accuracy"]) for r in rows if not r["layer"]}
    for axis, kind in zip(axes[0], kinds):
        mine = [r for r in rows if r["kind"] == kind]
        layer = [int(r["layer"]) for r in mine]
        axis.fill_between(layer, [float(r["accuracy_min"]) for r in mine], [float(r["accuracy_max"]) for r in mine], alpha=0.25)
        axis.plot(layer, [float(r["accuracy"]) for r in mine], marker=".", label="probe (mean, range)")
        for n, (name, accuracy) in enumerate(controls.items()):
            axis.axhline(accuracy, color=f"C{n + 1}", linestyle=":", label=name)
        axis.set(title=kind, xlabel="layer")
        axis.xaxis.get_major_locator().set_params(integer=True)
    axes[0][0].set_ylabel("test accuracy")
    axes[0][-1].legend(fontsize=7)
    return figure


def draw_states(pyplot, before, after):
    """Shares of the four states of Figure 1 before and after, stacked."""
    figure, axis = pyplot.subplots(figsize=(5.5, 3.4))
    left = [0.0, 0.0]
    for n, color in zip((1, 3, 2, 4), ("tab:green", "tab:olive", "tab:orange", "tab:red")):
        width = [r["states"][str(n)] / r["n"] for r in (before, after)]
        axis.barh(["before", "after"], width, left=left, color=color, label=f"{n}: {FIGURE_1[n]}")
        left = [a + b for a, b in zip(left, width)]
    axis.invert_yaxis()
    axis.set_xlabel("share of the test questions")
    axis.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
    return figure


def draw_ppo(pyplot, steps, looks):
    """Reward, refusals and hallucinations of unguided rollouts by step, and the same on the validation questions."""
    figure, axes = pyplot.subplots(1, 3, figsize=(12, 3.4))
    at = [s["step"] for s in steps]
    for key, name in (("reward", "unguided"), ("reward_guided", "guided")):
        axes[0].plot(at, [s[key] for s in steps], label=name)
    axes[0].set(title="reward (normalised)", xlabel="PPO step")
    for key, name in (("refusals_known", "refusals, known"), ("refusals_unknown", "refusals, unknown"), ("hallucinations", "hallucinations")):
        axes[1].plot(at, [s[key] for s in steps], label=name)
    axes[1].set(title="rollouts", xlabel="PPO step", ylim=(-0.02, 1.02))
    for key, name in (("over_refusal", "refusals, known"), ("refusal_recall", "refusals, unknown"), ("hallucination", "hallucinations"),
                      ("balanced", "balanced truthfulness")):
        axes[2].plot([s["step"] for s in looks], [s[key] for s in looks], marker=".", label=name)
    axes[2].set(title="validation questions, greedy", xlabel="PPO step", ylim=(-0.02, 1.02))
    for axis in axes:
        axis.legend(fontsize=7)
    return figure


def draw_ablation(path, rows, curves):
    """Refusals on unknown against over-refusal, a point with its interval a variant; validation against generated tokens.

    rows: ablate.summary's; curves: {variant: [[[tokens, balanced], ...] a seed]}. Nothing where matplotlib is missing.
    """
    pyplot = drawing()
    if pyplot is None:
        return
    figure, (points, lines) = pyplot.subplots(1, 2, figsize=(13, 5))
    for n, row in enumerate(row for row in rows if "truthful" in row):
        reach = lambda key: [[row[key] - row[f"{key} low"]], [row[f"{key} high"] - row[key]]]
        points.errorbar(row["over_refusal"], row["refusal_recall"], reach("refusal_recall"), reach("over_refusal"), marker="os^Dv<>pP*hX"[n // 10],
                        color=f"C{n % 10}", capsize=2, elinewidth=0.6, label=row["variant"])
    points.set(xlabel="over-refusal: refusals on known", ylabel="refusals on unknown", xlim=(-0.05, 1.05), ylim=(-0.05, 1.05))
    for n, (name, seeds) in enumerate(curves.items()):
        for i, curve in enumerate(seeds):
            label = name if i == 0 else None
            if curve[-1][0]:
                lines.plot(*zip(*curve), marker=".", color=f"C{n % 10}", linestyle="-" if n < 10 else "--", linewidth=0.9, label=label)
            else:  # nothing generated: its best look, as a level
                lines.axhline(max(y for _, y in curve), color=f"C{n % 10}", linestyle=":", label=label)
    lines.set(xlabel="tokens generated in training", ylabel="validation: (accuracy on known + refusals on unknown) / 2", ylim=(0.4, 1.02))
    for axis in (points, lines):
        axis.legend(fontsize=6)
    save_figure(pyplot, figure, path)
