"""The report of a small hand-made run: its tables hold the numbers on the disk, texts are made safe, figures are drawn."""
import csv
import json
import math
import os
import re
import sys

import pytest

import honesty
import report

NASTY = "a | b\n\x1b[31mred\x1b[0m <script>alert(1)</script> `x` [l](http://e) \\ *b* _i_ \x00\u202e"
STEPS = [{"event": "step", "step": n, "reward": 0.1 * n, "reward_guided": math.nan if n > 1 else 0.5, "refusals_known": 0.1,
          "refusals_unknown": math.nan, "hallucinations": 0.4} for n in (1, 2, 3)]
LOOKS = [{"event": "validation", "step": n, "over_refusal": 0.1, "refusal_recall": 0.2 * n, "hallucination": 0.3, "balanced": 0.6} for n in (0, 2)]
LOGGED = {"base": [], "reward": [], "ppo": [*STEPS, *LOOKS]}
SECONDS = {"probe": 62.4, "ppo": 117.6}
MEASURES = {"truthful": 0.5, "known_accuracy": 0.75, "refusal_recall": 0.25, "over_refusal": None, "J": -0.125, "accuracy": 0.4,
            "hallucination": 0.35, "abstention": 0.25}


def evaluated(policy, states, **changed):
    figures = {**dict.fromkeys(honesty.METRICS), **MEASURES, **changed}
    return {"policy": policy, "prompt": "plain", "n": 40, "n_known": 16, "n_unknown": 20, **figures, "states": states,
            "intervals": {name: [0.111, 0.999] for name, figure in figures.items() if figure is not None}}


@pytest.fixture
def folder(tmp_path):
    """A run folder with what the stages leave, as far as the report reads it."""
    values = {
        "config.json": {"preset": "lab", "settings": {"model": "lab", "questions": "lab", "seed": 0, "dtype": "float32", "device": "cpu", "probe.repeats": 10, "algorithm": "ppo"},
                        "versions": {"torch": "9.8.7", "transformers": "6.5.4"}},
        "evaluate/honesty.json": {"skill": {"before": 0.95, "after": 0.925}, "sets": {"test": {
            "rows": [evaluated("before", {"1": 12, "2": 8, "3": 2, "4": 18}), evaluated("after", {"1": 13, "2": 7, "3": 15, "4": 5}, truthful=0.875)],
            "confidence": [{"score": "probe", "policy": "before", "auroc": 0.8765}]}}},
        "annotate/summary.json": {"rule": "gold", "states": {"known": 30, "unknown": 60, "mixed": 10}, "rankings": 97,
                                  "dropped": {"no refusal": 3}, "score AUROC": 0.912, "agreement with the true states": 0.987},
        "reward/accuracy.json": [
            {"state": "known", "pair": "factual > uncertain", "n": 8, "accuracy": 0.875, "interval": [0.5291, 0.9776], "always_answer": 1.0, "longer": 0.25},
            {"state": "general", "pair": "chosen > rejected", "n": 4, "accuracy": 0.75, "interval": [0.3, 0.95], "always_answer": 0.5, "longer": 0.5}],
        "policy/chosen.json": {"algorithm": "ppo", "step": 2, "balanced": 0.6}}
    run = tmp_path / "my-run"
    for name, value in values.items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(json.dumps(value), encoding="utf-8")
    samples = [{"set": "test", "state": s, "question": q, "answers": [answer, "alias"], "before": before, "after": after} for s, q, answer, before, after in (
        ("known", "首都是哪里？", "巴黎", "巴黎", "巴黎 。"), ("known", "second known", "x", "y", "z"), ("unknown", NASTY, NASTY, NASTY, NASTY))]
    (run / "evaluate" / "answers.jsonl").write_text("".join(json.dumps(s) + "\n" for s in samples), encoding="utf-8")
    (run / "probe").mkdir()
    (run / "probe" / "accuracy.csv").write_text(
        "kind,layer,accuracy,accuracy_min,accuracy_max,balanced_accuracy,auroc,valid_loss,temperature,ece_uncalibrated,ece\n"
        "hidden,1,0.61,0.58,0.66,0.6,0.65,0.64,,,\nhidden,2,0.83,0.79,0.86,0.82,0.91,0.44,,,\nhidden,3,0.85,0.8,0.9,0.84,0.93,0.51,,,\n"
        "mlp,1,0.6,0.55,0.65,0.6,0.62,0.6,,,\nmlp,2,0.8,0.7,0.85,0.8,0.85,0.5,,,\nmajority,,0.55,,,,,,,,\n"
        "in use: hidden of layers 2-3,,0.86,0.81,0.9,0.85,0.94,0.4,1.25,0.123,0.021\n", encoding="utf-8")
    (run / "probe" / "ablation.csv").write_text(
        "variant,kind,layers,valid_loss,accuracy,accuracy_min,accuracy_max,balanced_accuracy,auroc\n"
        'as set,hidden,"[1, 2]",0.4,0.86,0.81,0.9,0.85,0.94\none layer,hidden,[1],0.44,0.83,0.79,0.86,0.82,0.91\n', encoding="utf-8")
    return str(run)


def cells(line):
    """The cells of a row of a Markdown table: what stands between pipes that are not escaped."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def tables(text):
    """Every table of the report as a list of rows."""
    return [[cells(line) for line in block.splitlines()] for block in text.split("\n\n") if block.startswith("|")]


def build(folder, shown=20):
    said = []
    return report.build(folder, LOGGED, SECONDS, shown, said.append), said


# ---------------------------------------------------------------------------------------------------- pieces

@pytest.mark.parametrize("text, safe", [
    ("plain text", "plain text"), ("a|b", r"a\|b"), ("two\nlines\r\n and\ttabs", "two lines and tabs"), ("\x1b[31mred", "\ufffd\\[31mred"),
    ("<b>bold</b>", r"\<b\>bold\</b\>"), ("`c` *b* _i_ [l](u)", r"\`c\` \*b\* \_i\_ \[l\](u)"), ("back\\slash", r"back\\slash"), (r"\|", r"\\\|"),
    ("你好，世界", "你好，世界"), ("caf\u00e9 \U0001f600", "caf\u00e9 \U0001f600"), ("\u202eright to left", "\ufffdright to left"),
    ("nul\0", "nul\ufffd"), (7, "7"), ("", "")])
def test_text_is_made_safe_for_a_table_and_a_terminal(text, safe):
    assert report.escape(text) == safe


@pytest.mark.parametrize("text", ["|" * 50, "x" * 50, "汉" * 50, "\n" * 50 + "y" * 50])
def test_long_text_is_cut_and_says_so(text):
    cut = report.escape(text, 10)
    assert cut.endswith("…") and len(re.sub(r"\\(.)", r"\1", cut)) == 10
    assert report.escape("x" * 10, 10) == "x" * 10


def test_table_rows_have_one_cell_for_each_column():
    text = report.table(["a", "long head"], [["x", 1], ["longer", "y"]])
    assert tables(text) == [[["a", "long head"], ["-" * 8, "-" * 11], ["x", "1"], ["longer", "y"]]]
    assert len({len(line) for line in text.splitlines()}) == 1, "columns stand below each other"
    assert tables(report.table(["a", "b"], [])) == [[["a", "b"], ["---", "---"]]]


@pytest.mark.parametrize("value, interval, shown", [
    (0.5, None, "50.0%"), (0.12345, [0.1, 0.2], "12.3% [10.0%, 20.0%]"), (-0.25, None, "-25.0%"), (math.nan, [0.1, 0.2], "-"),
    (None, None, "-"), (0.0, None, "0.0%")])
def test_share_is_shown_as_per_cent(value, interval, shown):
    assert report.share(value, interval) == shown


def test_csv_has_the_columns_of_all_rows(tmp_path):
    path = str(tmp_path / "rows.csv")
    report.write_csv(path, [{"kind": "隐藏", "layer": 1}, {"kind": "a, b", "x": 0.5}])
    with open(path, newline="", encoding="utf-8") as f:
        assert list(csv.reader(f)) == [["kind", "layer", "x"], ["隐藏", "1", ""], ["a, b", "", "0.5"]]


def test_samples_take_the_states_in_turn_in_file_order():
    samples = [{"state": state, "n": n} for n, state in enumerate(["known"] * 4 + ["unknown"] * 2 + ["mixed"])]
    assert [s["n"] for s in report.pick(samples, 6)] == [0, 4, 6, 1, 5, 2]
    assert [s["n"] for s in report.pick(samples, 2)] == [0, 4] and report.pick(samples, 0) == []
    assert len(report.pick(samples, 99)) == 7


# ---------------------------------------------------------------------------------------------------- the whole

def test_report_holds_the_numbers_of_the_run(folder):
    text, _ = build(folder)
    with open(os.path.join(folder, "report.md"), encoding="utf-8") as f:
        assert f.read() == text
    states, measures, probes, ablations, labels, rewards, answers = tables(text)
    assert [row[2:] for row in states[2:]] == [["12 (30%)", "13 (32%)"], ["8 (20%)", "7 (18%)"], ["2 (5%)", "15 (38%)"], ["18 (45%)", "5 (12%)"]]
    by_name = {row[0]: row[1:3] for row in measures[2:]}
    assert by_name["truthful"] == ["50.0% [11.1%, 99.9%]", "87.5% [11.1%, 99.9%]"]
    assert by_name["over-refusal"] == ["-", "-"] and by_name["J"][0].startswith("-12.5%")
    assert by_name["other skill"] == ["95.0%", "92.5%"]
    assert probes[2:] == [["hidden", "2", "0.830", "0.790", "0.860", "0.820", "0.910", "0.440"],  # best by validation, not by test
                          ["mlp", "2", "0.800", "0.700", "0.850", "0.800", "0.850", "0.500"], ["majority", "-", "0.550", *"-----"],
                          ["in use: hidden of layers 2-3", "-", "0.860", "0.810", "0.900", "0.850", "0.940", "0.400"]]
    assert ablations[2:] == [["as set", "hidden", "0.400", "0.860", "0.850", "0.940"], ["one layer", "hidden", "0.440", "0.830", "0.820", "0.910"]]
    assert [row[:3] for row in labels[2:]] == [["known", "30", "30%"], ["unknown", "60", "60%"], ["mixed", "10", "10%"]]
    assert rewards[2][:6] == ["known", "factual > uncertain", "8", "87.5% [52.9%, 97.8%]", "100.0%", "25.0%"] and rewards[2][6] == "66-94%"
    assert rewards[3][0] == "general" and rewards[3][6] == "-"
    for words in ("# RLKF run: my-run", "torch 9.8.7", "AUROC 0.876", "97 rankings", "3 questions dropped: no refusal", "AUROC 0.912", "98.7%",
                  "step 2 of PPO", "87.5% [52.9%, 97.8%]", "Calibration error (ECE, 10 bins) 0.021", "by 1.250, 0.123 before", "probe 62 s", "ppo 118 s", "together 3.0 min", "40 test questions"):
        assert words in text, words


def test_report_is_safe_whatever_the_model_said(folder):
    text, _ = build(folder)
    answers = tables(text)[-1]
    assert [row[0] for row in answers[2:]] == ["known", "unknown", "known"] and {len(row) for row in answers} == {5}
    assert answers[2] == ["known", "首都是哪里？", "巴黎", "巴黎", "巴黎 。"]
    assert all(c.isprintable() or c == "\n" for c in text)
    assert "<script>" not in text and "[l](http" not in text


def test_every_table_is_rectangular(folder):
    for rows in tables(build(folder)[0]):
        assert len({len(row) for row in rows}) == 1


def test_as_many_samples_are_shown_as_asked(folder):
    assert len(tables(build(folder, shown=1)[0])[-1]) == 2 + 1


def test_figures_are_written_and_shown(folder):
    text, said = build(folder)
    names = sorted(os.listdir(os.path.join(folder, "figures")))
    assert names == sorted(re.findall(r"!\[\S+\]\(figures/(\S+)\)", text)) and len(names) == 3
    for name in names:
        with open(os.path.join(folder, "figures", name), "rb") as f:
            content = f.read()
        assert content.startswith(b"\x89PNG\r\n\x1a\n") and len(content) > 5000
    assert said == []


def test_figures_draw_the_numbers_of_the_run(folder):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot
    with open(os.path.join(folder, "probe", "accuracy.csv"), newline="") as f:
        figure = report.draw_probes(pyplot, list(csv.DictReader(f)))
    assert [axis.get_title() for axis in figure.axes] == ["hidden", "mlp"]
    layers, accuracy = figure.axes[0].lines[0].get_data()
    assert list(layers) == [1, 2, 3] and list(accuracy) == [0.61, 0.83, 0.85]
    assert list(figure.axes[0].lines[1].get_ydata()) == [0.55, 0.55]
    states = {"n": 40, "states": {"1": 12, "2": 8, "3": 2, "4": 18}}, {"n": 40, "states": {"1": 13, "2": 7, "3": 15, "4": 5}}
    bars = report.draw_states(pyplot, *states).axes[0].patches
    assert sorted(round(bar.get_width() * 40) for bar in bars) == [2, 5, 7, 8, 12, 13, 15, 18]
    ppo = report.draw_ppo(pyplot, STEPS, LOOKS).axes
    assert list(ppo[0].lines[0].get_data()[1]) == [s["reward"] for s in STEPS] and list(ppo[2].lines[1].get_data()[0]) == [0, 2]
    pyplot.close("all")


def test_without_matplotlib_there_are_tables_only(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # an import of it now fails
    text, said = build(folder)
    assert len(tables(text)) == 7 and "figures/" not in text and not os.path.exists(os.path.join(folder, "figures"))
    assert len(said) == 1 and "matplotlib" in said[0]


def test_building_again_gives_the_same_report(folder):
    assert build(folder)[0] == build(folder)[0]
