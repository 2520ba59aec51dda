"""Several runs in one table: what each was, what RLKF changed in it, and the mean over the seeds of
runs that differ in nothing else.

`python rlkf.py --stage report --runs a b c` prints the table and leaves
runs/comparison.{md,csv,png}. Nothing is computed anew but means. All figures are of the test
questions under the plain prompt. Left out: tests of whether two runs differ.
"""

import os

from data.files import read_json
from evaluation.honesty import METRICS, find_row
from evaluation.metrics import mean_interval
from experiment import figures, figures_runs, paper
from experiment.tables import DIGITS, escape, table, write_csv, write_text
from lm.errors import UserError, first_line

FOLDER = "runs"
MEASURES = ("accuracy", "hallucination", "refusal_recall", "over_refusal", "J", "known_accuracy", "nths", "honesty")
REWARD = "RM"
IDENTITY = ("model", "questions", "algorithm", "seed")


def build(names):
    """Write comparison.md, .csv and .png in runs/ and return the text. names: of runs, or folders.
    Raises UserError where one is not there.
    """
    runs = list({run["name"]: run for run in map(checked_run, names)}.values())
    rows = []
    for group in groups(runs):
        members = [row_of(run) for run in group]
        rows += members + ([mean_row(members)] if len({row["seed"] for row in members}) == len(members) > 1 else [])
    write_csv(os.path.join(FOLDER, "comparison.csv"), rows)
    parts = ["# RLKF runs compared", *markdown(rows, differences(runs))]
    if figures.available():
        figures.save(
            figures_runs.draw_comparison([run["name"] for run in runs], [run["test"] for run in runs]),
            os.path.join(FOLDER, "comparison.png"),
        )
        parts.append(
            "![comparison.png](comparison.png)  \nRefusals on unknown against over-refusal: a run a point; up and to"
            " the left is better."
        )
    text = "\n\n".join(parts) + "\n"
    write_text(os.path.join(FOLDER, "comparison.md"), text)
    return text


def checked_run(name):
    """`read_run`, where what is damaged or of an older version is a UserError too."""
    try:
        run = read_run(name)
        row_of(run)
    except (AttributeError, IndexError, KeyError, StopIteration, TypeError, ValueError) as error:
        raise UserError(
            f"--runs: {name}: its config.json, stages.json, honesty.json or accuracy.json is not what this program"
            f" writes ({type(error).__name__} {first_line(error)})"
        ) from None
    return run


def read_run(name):
    """{"name", "facts", "test", "reward"} of a run: the settings its evaluate stage was done with,
    its test set, accuracies of its reward model.
    """
    folder = next(
        (path for path in (os.path.join(FOLDER, name), name) if os.path.isfile(os.path.join(path, "config.json"))), None
    )
    if not name.strip() or folder is None:
        raise UserError(
            f"--runs: {name}: no such run under {FOLDER}/; python rlkf.py --stage all --run"
            f" {os.path.basename(os.path.normpath(name))} makes it"
        )
    where, short = os.path.join(folder, "evaluate", "honesty.json"), os.path.relpath(folder, FOLDER)
    records = (
        read_json(os.path.join(folder, "stages.json")) if os.path.exists(os.path.join(folder, "stages.json")) else {}
    )
    if "evaluate" not in records or not os.path.exists(where):
        preset, main_run = read_json(os.path.join(folder, "config.json")).get("preset"), short.split(os.sep)[0]
        command = f"--stage ablate --run {main_run}" if main_run != short else f"--stage all --run {short}"
        raise UserError(
            f"--runs: {where}: missing; python rlkf.py {command} --preset {preset}, with the settings in"
            f" {folder}/config.json, makes it"
        )
    return {
        "name": short,
        "facts": records["evaluate"]["facts"],
        "test": read_json(where)["sets"]["test"],
        "reward": paper.reward_accuracy(read_json(os.path.join(folder, "reward", "accuracy.json"))),
    }


def row_of(run):
    """One row: run, model, questions, algorithm, seed, "METRIC before", "METRIC after", the reward
    model's balanced accuracy.
    """
    before, after = find_row(run["test"], "before"), find_row(run["test"], "after")
    return {
        "run": run["name"],
        **{key: run["facts"][key] for key in IDENTITY},
        **{f"{key} {when}": row[key] for key in MEASURES for when, row in (("before", before), ("after", after))},
        REWARD: run["reward"]["balanced"],
    }


def groups(runs):
    """The runs in lists of those whose settings differ in the seed at most, in order of first
    appearance.
    """
    found = {}
    for run in runs:
        found.setdefault(repr(sorted((key, value) for key, value in run["facts"].items() if key != "seed")), []).append(
            run
        )
    return list(found.values())


def differences(runs):
    """{setting: {run: value}} of the settings that all runs have and that differ, but for those
    that are columns.
    """
    shared = set.intersection(*(set(run["facts"]) for run in runs)) - set(IDENTITY)
    found = {key: {run["name"]: run["facts"][key] for run in runs} for key in sorted(shared)}
    return {
        key: values for key, values in found.items() if any(value != runs[0]["facts"][key] for value in values.values())
    }


def mean_row(rows):
    """Mean over the seeds of each figure, with "FIGURE low" and "FIGURE high", its 95% interval by
    Student's t; None where a seed has none.
    """
    mean = {
        **rows[0],
        "run": f"mean of {', '.join(row['run'] for row in rows)}",
        "seed": " ".join(str(row["seed"]) for row in rows),
    }
    for key in [key for key in rows[0] if key not in ("run", *IDENTITY)]:
        values = [row[key] for row in rows]
        mean[key], mean[f"{key} low"], mean[f"{key} high"] = (
            (None, None, None) if None in values else mean_interval(values)
        )
    return mean


# ---------------------------------------------------------------------------------------- the table


def figure(key, value):
    """A figure in a narrow cell: per cent without the sign, or a number that is no share; "-" where
    there is none.
    """
    return "-" if value is None else f"{value:.2f}" if key in DIGITS else f"{100 * value:.1f}"


def markdown(rows, differ):
    """Parts: what all rows share, the table, its definitions, and the other settings that
    differ.
    """
    same = [key for key in ("model", "questions", "algorithm") if len({row[key] for row in rows}) == 1]
    shown = [key for key in IDENTITY if key not in same]
    lines = []
    for row in rows:
        mean = f"{REWARD} low" in row
        lines.append(
            [
                "mean" if mean else escape(row["run"], 24),
                *(escape(row[key], 24) for key in shown),
                *(f"{figure(key, row[f'{key} before'])} → {figure(key, row[f'{key} after'])}" for key in MEASURES),
                figure(REWARD, row[REWARD]),
            ]
        )
        if mean:
            half = lambda key, name: figure(
                key, None if row[name] is None else (row[f"{name} high"] - row[f"{name} low"]) / 2
            )
            lines.append(
                [
                    "± (95%)",
                    *("" for _ in shown),
                    *(f"{half(key, f'{key} before')} → {half(key, f'{key} after')}" for key in MEASURES),
                    half(REWARD, REWARD),
                ]
            )
    meaning = {
        **{METRICS[key][0]: METRICS[key][1] for key in MEASURES},
        REWARD: (
            "balanced accuracy of the reward model: mean of those on held-out pairs of known and of unknown questions"
        ),
        "known, unknown": (
            "what the model before RLKF knows of a question, as each run's report.md says; *base*: that model, plain"
            " prompt"
        ),
        "mean, ±": (
            "of the runs above it, which differ in the seed alone; half the width of its 95% interval, by Student's t"
            " over the seeds"
        ),
    }
    return [
        "Test questions, greedy, plain prompt; before → after RLKF, in per cent but for nTHS"
        + "".join(f"; {key} {escape(rows[0][key])}" for key in same)
        + ".",
        table(["run", *shown, *(METRICS[key][0] for key in MEASURES), REWARD], lines),
        "\n".join(f"- **{name}**: {what}" for name, what in meaning.items()),
        *(
            [
                "Other settings that differ:\n\n"
                + "\n".join(
                    f"- {escape(key)}: "
                    + ", ".join(f"{escape(run, 24)} {escape(value)}" for run, value in values.items())
                    for key, values in differ.items()
                )
            ]
            if differ
            else []
        ),
    ]
