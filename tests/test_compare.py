"""Several runs in one table: a row a run, means over seeds alone, and every mistake in one line."""

import csv
import os

import hand_run
import pytest

import rlkf
from evaluation.honesty import METRICS
from experiment import compare, figures, tables


def result(over_refusal, nths=0.5):
    """A test set whose policy after has these figures."""
    found = hand_run.question_set()
    found["rows"][1] = {**found["rows"][1], "over_refusal": over_refusal, "nths": nths}
    return {"test": found}


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """runs/a, b and c of seeds 0, 1 and 2, and runs/other with another learning rate."""
    monkeypatch.chdir(tmp_path)
    for seed, (name, value) in enumerate((("a", 0.1), ("b", 0.2), ("c", 0.6))):
        hand_run.write(tmp_path / "runs" / name, result(value, None if name == "c" else 0.5), seed=seed)
    hand_run.write(tmp_path / "runs" / "other", result(0.9), **{"ppo.lr": 0.5})
    return tmp_path / "runs"


def the_table(text):
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for n, line in enumerate(lines) if n != 1]


def rows_of(text):
    """{first cell: {head: cell}} of the table."""
    head, *rows = the_table(text)
    return {row[0]: dict(zip(head, row)) for row in rows}


def test_a_row_a_run_with_before_and_after(runs):
    text = compare.build(["a", "other"])
    assert (runs / "comparison.md").read_text(encoding="utf-8") == text
    rows = rows_of(text)
    assert list(rows) == ["a", "other"]
    assert list(rows["a"]) == ["run", "seed", *(METRICS[key][0] for key in compare.MEASURES), "RM"]
    assert rows["a"]["over-refusal"] == "10.7 → 10.0" and rows["other"]["over-refusal"] == "10.7 → 90.0"
    assert rows["a"]["accuracy"] == "10.0 → 20.0" and rows["a"]["nTHS"] == "0.12 → 0.50" and rows["a"]["RM"] == "81.2"
    assert "model lab; questions lab; algorithm ppo" in text and "- ppo.lr: a 0.25, other 0.5" in text
    assert all(f"- **{METRICS[key][0]}**: {METRICS[key][1]}" in text for key in compare.MEASURES)
    assert (runs / "comparison.png").read_bytes().startswith(b"\x89PNG") and "comparison.png" in text


def test_runs_that_differ_in_the_seed_alone_get_a_mean_and_an_interval_of_students_t(runs):
    text = compare.build(["a", "other", "b", "c"])
    assert [row[0] for row in the_table(text)[1:]] == ["a", "b", "c", "mean", "± (95%)", "other"], (
        "those of one mean stand together"
    )
    rows = rows_of(text)
    # 0.1, 0.2, 0.6: mean 0.3, variance (0.04 + 0.01 + 0.09) / 2, half width 4.303 * sqrt(0.07 / 3)
    # = 0.6573
    assert (
        rows["mean"]["over-refusal"] == "10.7 → 30.0"
        and rows["± (95%)"]["over-refusal"] == "0.0 → 65.7"
        and rows["mean"]["seed"] == "0 1 2"
    )
    assert rows["mean"]["nTHS"] == "0.12 → -" and rows["± (95%)"]["nTHS"] == "0.00 → -", "c has none"
    with open(runs / "comparison.csv", newline="", encoding="utf-8") as f:
        table = list(csv.DictReader(f))
    mean = table[3]
    assert [row["run"] for row in table] == ["a", "b", "c", "mean of a, b, c", "other"] and float(
        table[1]["over_refusal after"]
    ) == 0.2
    assert [float(mean[f"over_refusal after{end}"]) for end in ("", " low", " high")] == pytest.approx(
        [0.3, 0.3 - 0.65728, 0.3 + 0.65728], abs=1e-4
    )
    assert mean["nths after"] == "" and mean["RM low"] == mean["RM"] and table[0]["RM low"] == ""


def test_a_run_named_twice_counts_once_and_two_runs_of_one_seed_have_no_mean(runs, tmp_path):
    assert list(rows_of(compare.build(["a", os.path.join("runs", "a"), str(runs / "a") + os.sep]))) == ["a"]
    hand_run.write(tmp_path / "runs" / "again", result(0.3), seed=0)
    assert list(rows_of(compare.build(["a", "again", "b"]))) == ["a", "again", "b"]


def test_columns_are_there_where_runs_differ_and_foreign_names_are_escaped(runs, tmp_path):
    hand_run.write(tmp_path / "runs" / "x|y\x1b[31m", result(0.3), model="m|\x1b[31m", algorithm="dpo")
    text = compare.build(["a", "x|y\x1b[31m"])
    assert (
        "| run " in text
        and "| model " in text
        and "| algorithm |" in text
        and r"x\|y" in text
        and all(c.isprintable() or c == "\n" for c in text)
    )


def test_the_table_fits_into_160_columns(runs):
    assert (
        max(
            map(
                tables.width, (line for line in compare.build(["a", "b", "other"]).splitlines() if line.startswith("|"))
            )
        )
        <= 160
    )


def test_without_matplotlib_there_is_the_table(runs, monkeypatch):
    monkeypatch.setattr(figures, "available", lambda: False)
    assert "comparison.png" not in compare.build(["a"]) and not (runs / "comparison.png").exists()


def test_runs_are_compared_from_the_command_line(runs, capsys):
    assert rlkf.main(["--stage", "report", "--runs", "a", "b"]) == 0
    assert capsys.readouterr().out.startswith("# RLKF runs compared") and (runs / "comparison.md").exists()


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--stage", "report", "--runs", "a", "nowhere"], ["nowhere: no such run", "--stage all --run nowhere"]),
        (
            ["--stage", "report", "--runs", "half"],
            ["evaluate/honesty.json: missing", "--stage all --run half --preset smollm2", "config.json"],
        ),
        (
            ["--stage", "report", "--runs", "runs/a/ablate/0/full"],
            ["honesty.json: missing", "--stage ablate --run a --preset lab"],
        ),
        (["--stage", "report", "--runs"], ["--runs"]),
        (["--stage", "report", "--runs", "a", "--seed", "3"], ["--runs", "--seed"]),
        (["--stage", "report", "--runs", "a", "--run", "b"], ["--runs", "--run"]),
        (["--runs", "a", "b"], ["--runs", "expected --stage report"]),
        (["--stage", "evaluate", "--runs", "a"], ["--runs", "not --stage evaluate"]),
    ],
)
def test_a_mistake_is_one_line_and_status_2(arguments, words, runs, capsys):
    for name, preset in (("half", "smollm2"), (os.path.join("a", "ablate", "0", "full"), "lab")):
        os.makedirs(runs / name)
        (runs / name / "config.json").write_text(f'{{"preset": "{preset}"}}')
    assert rlkf.main(arguments) == 2
    out, error = capsys.readouterr()
    assert len(error.strip().splitlines()) == 1 and all(word in error for word in words), error
    assert out == "" and not (runs / "comparison.md").exists()


@pytest.mark.parametrize(
    "file, content",
    [
        ("evaluate/honesty.json", "[]"),
        ("evaluate/honesty.json", '{"sets": {"test": {"rows": []}}}'),
        ("evaluate/honesty.json", '{"sets": {"test": {"rows": "x"}}}'),
        ("reward/accuracy.json", '[{"state": "known"}]'),
        ("reward/accuracy.json", '"x"'),
        ("stages.json", '["evaluate"]'),
        ("stages.json", '{"evaluate": {"facts": {}}}'),
    ],
)
def test_a_damaged_run_is_named(file, content, runs, capsys):
    (runs / "b" / file).write_text(content)
    assert rlkf.main(["--stage", "report", "--runs", "a", "b"]) == 2
    out, error = capsys.readouterr()
    assert (
        error.startswith("error: --runs: b: ")
        and error.count("\n") == 1
        and out == ""
        and not (runs / "comparison.md").exists()
    )


def test_a_run_called_as_the_comparison_is_not_overwritten(runs, capsys):
    os.rename(runs / "b", runs / "comparison.md")
    assert rlkf.main(["--stage", "report", "--runs", "a", "comparison.md"]) == 2
    assert "a folder is in the way" in capsys.readouterr().err and (runs / "comparison.md" / "config.json").exists()
