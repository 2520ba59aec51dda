"""The report of a small hand-made run: its tables hold the numbers on the disk, texts are made
safe, what is missing is left out.
"""

import csv
import json
import os
import re
import sys
from pathlib import Path

import hand_run
import pytest

from evaluation.honesty import FIGURE_1, METRICS
from experiment import figures, paper, report, report_stages, tables

LOGGED = {"base": [], "reward": [], "ppo": [*hand_run.STEPS, *hand_run.LOOKS]}
RECORDS = {"probe": {"seconds": 62.4, "peak_gb": 1.26}, "ppo": {"seconds": 117.6, "peak_gb": None}}


@pytest.fixture
def folder(tmp_path):
    return hand_run.write(tmp_path / "my-run", measured=hand_run.benchmarks())


@pytest.fixture(autouse=True)
def drawn(monkeypatch):
    """Figures are drawn only where a test asks for them by drawn(): they take the time."""
    real = figures.available
    monkeypatch.setattr(figures, "available", lambda: False)
    return lambda: monkeypatch.setattr(figures, "available", real)


def cells(line):
    """The cells of a row of a Markdown table: what stands between pipes that are not escaped."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def read_tables(text):
    """Every table of the report as a list of rows, without the line below the head."""
    return [
        [cells(line) for n, line in enumerate(block.splitlines()) if n != 1]
        for block in text.split("\n\n")
        if block.startswith("|")
    ]


def the_table(text, *head):
    """The rows of the first table whose head begins with these words."""
    return next(rows[1:] for rows in read_tables(text) if rows[0][: len(head)] == list(head))


def build(folder, shown=20, logged=LOGGED):
    said = []
    return report.build(folder, logged, RECORDS, shown, said.append), said


def test_the_report_says_what_was_run_on_what_and_how_long(folder):
    text, said = build(folder)
    with open(os.path.join(folder, "report.md"), encoding="utf-8") as f:
        assert f.read() == text
    run = dict(the_table(text, "what"))
    assert (
        run["model"] == "lab"
        and "77 (70 en, 7 zh)" in run["questions"]
        and "after step 2" in run["algorithm"]
        and run["preset, seed"] == "lab, 0"
    )
    assert (
        "torch 9.8.7" in run["machine"]
        and "Python 3.9.9" in run["machine"]
        and run["time"] == "probe 62 s, ppo 118 s; together 3.0 min"
    )
    assert run["peak memory"] == "1.3 GB"
    assert (
        "- **probe**: k 4, repeats 10, l2 1.0 10.0" in text and "- **ppo**: lr 0.25" in text and "**dpo**" not in text
    )


def test_every_metric_is_shown_of_every_policy_and_defined(folder):
    text, _ = build(folder)
    whole = {row[0]: row[1:] for row in the_table(text, "metric", "before", "after", "before, may abstain")}
    for i, (key, (name, what)) in enumerate(METRICS.items()):
        values = [0.1 + 0.1 * n + i / 1000 for n in range(7)]
        shown = [
            f"{value:.3f}" if key == "nths" else f"{value:.1f}" if key == "mean_words" else f"{100 * value:.1f}%"
            for value in values
        ]
        assert [cell.split(" ")[0] for cell in whole[name]] == [
            *shown[:5],
            "-" if key in ("over_refusal", "mean_words") else shown[5],
            shown[6],
        ], key
        assert [" [" in cell for cell in whole[name]] == [True, True, *[False] * 5]
        assert f"- **{name}**: {what}" in text
    assert whole["accuracy"][0] == "10.0% [5.0%, 15.0%]"
    head = the_table(text, "metric", "before", "after", "what it is")
    assert [row[0] for row in head] == [METRICS[key][0] for key in report.HEAD] and head[0] == [
        "accuracy",
        "10.0%",
        "20.0%",
        METRICS["accuracy"][1],
    ]


def test_figure_1_transitions_and_confidence_are_those_on_the_disk(folder):
    text, _ = build(folder)
    states = the_table(text, "state", "what it is: the model ...")
    assert [row[1] for row in states] == list(FIGURE_1.values())
    assert [row[2:4] for row in states] == [
        ["12 (30%)", "13 (32%)"],
        ["8 (20%)", "7 (18%)"],
        ["2 (5%)", "15 (38%)"],
        ["18 (45%)", "5 (12%)"],
    ]
    assert [row[1:] for row in the_table(text, "before", "after: 1")] == [
        ["11", "1", "0", "0"],
        ["2", "6", "0", "0"],
        ["0", "0", "2", "0"],
        ["0", "0", "13", "5"],
    ]
    assert the_table(text, "score") == [
        ["probe", "before", "38", "12", "0.876 [0.500, 0.900]", "0.200", "-", "0.070"],
        ["probe", "after", "20", "12", "0.750 [0.500, 0.900]", "0.200", "-", "0.070"],
        ["reward margin", "after", "20", "12", "-", "0.200", "-", "0.070"],
    ]
    assert (
        "40 questions, of which 16 known, 20 unknown, 4 mixed." in text
        and r'en: "You may say \| no."' in text
        and "可以说不知道。" in text
    )


def test_the_tables_of_the_stages_before_hold_their_figures(folder):
    text, _ = build(folder)
    assert the_table(text, "representation") == [
        ["hidden", "2", "0.830", "0.790", "0.860", "0.820", "0.910", "0.440"],  # best by validation, not by test
        ["mlp", "2", "0.800", "0.700", "0.850", "0.800", "0.850", "0.500"],
        ["in use: hidden of layers 2-3", "-", "0.860", "0.810", "0.900", "0.850", "0.940", "0.400"],
        ["majority", "-", "0.550", *"-----"],
    ]
    assert the_table(text, "probe", "kind") == [
        ["as set", "hidden", "0.400", "0.860", "0.850", "0.940"],
        ["one layer", "hidden", "0.440", "0.830", "0.820", "0.910"],
    ]
    assert the_table(text, "state", "pair")[0] == [
        "known",
        "factual \\> uncertain".replace("\\", ""),
        "8",
        "87.5% [52.9%, 97.8%]",
        "100.0%",
        "25.0%",
    ]
    assert the_table(text, "reward model of")[-1][1:] == ["87.5%", "75.0%", "50.0%", "81.2%"]
    assert the_table(text, "model", "questions")[-1][1:] == ["97", "31% (30)", "62% (60)", "7% (7)"], (
        "what rankings were made of"
    )
    assert the_table(text, "labels")[-1][1:] == ["Chinese", "91.0%", "82.0%", "73.0%", "0.640"]
    for words in (
        "31 known, 61 unknown, 8 mixed; 97 rankings; 3 questions dropped: no refusal",
        "AUROC 0.912",
        "Calibration error 0.021",
        "by 1.250, 0.123 before",
    ):
        assert words in text, words


def test_the_papers_figures_stand_beside_those_of_the_run(folder):
    text, _ = build(folder)
    for head in (
        ("labels",),
        ("reward model of",),
        ("model", "", "MMLU"),
        ("model", "measure"),
        ("model", "questions"),
    ):
        rows = the_table(text, *head)
        assert paper.OURS in rows[-1][0] or paper.OURS in rows[-2][0]
        assert len(rows) > 3
    assert "Qwen-chat-14B" in text and "82.7%" in text and "+2.0 [-3.0, +7.0] points" in text
    assert the_table(text, "benchmark")[1:3] == [
        ["arc", "generation", "40", "30.0% [20.0%, 40.0%]", "32.0% [22.0%, 42.0%]"],
        ["arc", "acc", "40", "61.0% [51.0%, 71.0%]", "52.0% [42.0%, 62.0%]"],
    ]


def test_gold_labels_agree_with_gold_by_construction_and_the_report_says_so(folder):
    assert "by construction" not in build(folder)[0]
    path = Path(folder, "annotate", "summary.json")
    path.write_text(
        json.dumps({**json.loads(path.read_text()), "rule": "gold", "agreement with the true states": 0.987})
    )
    text, _ = build(folder)
    assert "by construction" in text and "98.7%" in text


def test_what_a_run_does_not_have_is_left_out(tmp_path, drawn):
    """No benchmarks, no skill, no confidence, no single layers, no ablations, nothing logged."""
    folder = hand_run.write(tmp_path / "bare", {"test": hand_run.question_set(confidence=[])})
    Path(folder, "probe", "accuracy.csv").write_text(
        "kind,layer,accuracy,accuracy_min,accuracy_max,balanced_accuracy,auroc,valid_loss\nmajority,,0.55,,,,,\n"
    )
    Path(folder, "probe", "ablation.csv").write_text("\n")
    drawn()
    text, _ = build(folder, 0, {"ppo": []})
    assert (
        "## Tables 3 and 4" in text
        and "--benchmarks.names mmlu," in text
        and "MMLU" not in text
        and "Alignment tax" not in text
    )
    assert "A skill" not in text and "Answers before and after" not in text and "Calibration error" not in text
    assert sorted(os.listdir(os.path.join(folder, "figures"))) == ["four_states.png", "hits.png", "refusals.png"]


@pytest.mark.parametrize(
    "names, there, missing",
    [(("mmlu",), "MMLU", "mmlu,truthfulqa"), (("truthfulqa",), "| Qwen-chat-7B    | generation", "truthfulqa,mmlu")],
)
def test_one_of_tables_3_and_4_alone(names, there, missing, tmp_path):
    text, _ = build(hand_run.write(tmp_path / "some", measured=hand_run.benchmarks(names)))
    assert there in text and f"--benchmarks.names {missing}`" in text and "over 1 benchmark RLKF" in text


def test_the_skill_of_the_lab_is_one_line(folder):
    path = Path(folder, "evaluate", "honesty.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "skill": {"before": 0.95, "after": 0.925}}))
    assert "95.0% before, 92.5% after" in build(folder)[0]


def test_known_and_unknown_are_defined_by_samples_and_in_a_lab_of_all_or_nothing_by_construction(tmp_path):
    text = build(hand_run.write(tmp_path / "a"))[0]
    assert "A question is *known* if the greedy answer" in text and "all or nothing" in text


def test_every_set_of_questions_has_its_tables_and_figures(tmp_path, drawn):
    drawn()
    text, _ = build(
        hand_run.write(
            tmp_path / "two", {"test": hand_run.question_set(), "pop|qa_\x1b": hand_run.question_set(n_known=15)}
        )
    )
    assert "### Questions: test" in text and "### Questions: pop\\|qa\\_\ufffd" in text and "15 known" in text
    assert len([rows for rows in read_tables(text) if rows[0][:1] == ["score"]]) == 2
    assert {"refusals_2.png", "risk_coverage_2.png", "reliability_2.png"} <= set(
        os.listdir(tmp_path / "two" / "figures")
    )


def test_report_is_safe_whatever_the_model_said(folder):
    text, _ = build(folder)
    known, unknown = (rows for rows in read_tables(text) if rows[0] == ["question", "given answer", "before", "after"])
    assert (
        known[1:] == [["首都是哪里？", "巴黎", "巴黎", "巴黎 。"], ["second known", "x", "y", "z"]]
        and len(unknown) == 2
    )
    assert all(c.isprintable() or c == "\n" for c in text) and "<script>" not in text and "[l](http" not in text


def test_tables_are_rectangular_and_fit_into_160_columns(folder):
    text, _ = build(folder)
    assert all(len({len(row) for row in rows}) == 1 for rows in read_tables(text))
    assert max(tables.width(line) for line in text.splitlines() if line.startswith("|")) <= 160


def test_samples_take_the_states_in_turn_in_file_order(folder):
    samples = [{"state": state, "n": n} for n, state in enumerate(["known"] * 4 + ["unknown"] * 2 + ["mixed"])]
    assert [s["n"] for s in report.pick(samples, 6)] == [0, 4, 6, 1, 5, 2]
    assert (
        [s["n"] for s in report.pick(samples, 2)] == [0, 4]
        and report.pick(samples, 0) == []
        and len(report.pick(samples, 99)) == 7
    )
    text, _ = build(folder, shown=1)
    assert "### Known" in text and "### Unknown" not in text


def test_figures_are_written_and_shown_where_matplotlib_is_installed(folder, drawn, monkeypatch):
    drawn()
    text, said = build(folder)
    names = sorted(os.listdir(os.path.join(folder, "figures")))
    assert (
        names
        == sorted(re.findall(r"!\[\S+\]\(figures/(\S+)\)", text))
        == sorted(
            [
                "probe_accuracy.png",
                "four_states.png",
                "hits.png",
                "refusals.png",
                "risk_coverage.png",
                "reliability.png",
                "ppo.png",
            ]
        )
    )
    for name in names:
        with open(os.path.join(folder, "figures", name), "rb") as f:
            content = f.read()
        assert content.startswith(b"\x89PNG\r\n\x1a\n") and len(content) > 5000
    assert said == []
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # an import of it now fails
    bare, said = build(folder)
    assert (
        len(read_tables(bare)) == len(read_tables(text))
        and "figures/" not in bare
        and len(said) == 1
        and "matplotlib" in said[0]
    )


def test_building_again_gives_the_same_report(folder):
    assert build(folder)[0] == build(folder)[0]


def test_the_csv_files_of_the_probe_stage_are_read_as_written(tmp_path):
    """accuracy.csv of a run without calibration has fewer columns; rows of another kind come with
    what they have.
    """
    path = str(tmp_path / "ablation.csv")
    tables.write_csv(
        path,
        [
            {
                "variant": "v",
                "kind": "mlp",
                "valid_loss": 0.5,
                "accuracy": 0.75,
                "balanced_accuracy": None,
                "auroc": float("nan"),
            }
        ],
    )
    with open(path, newline="") as f:
        assert cells(report_stages.ablation_table(list(csv.DictReader(f))).splitlines()[-1]) == [
            "v",
            "mlp",
            "0.500",
            "0.750",
            "-",
            "-",
        ]
