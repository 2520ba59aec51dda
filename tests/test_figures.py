"""Figures draw what the data say: the artists' own data are read back, no pixels."""

import math

import pytest

pytest.importorskip("matplotlib")

import hand_run

from experiment import figures, figures_runs
from experiment.tables import read_csv


def points(axis):
    """{label: [(x, y), ...]} of an axis's labelled lines."""
    return {
        line.get_label(): [tuple(map(float, xy)) for xy in zip(*line.get_data())]
        for line in axis.lines
        if not line.get_label().startswith("_")
    }


def drawn_well(figure, tmp_path):
    """Saves the figure and checks that its labels lie inside it."""
    figures.save(figure, str(tmp_path / "figure.png"))
    assert (tmp_path / "figure.png").stat().st_size > 5000
    figure.draw_without_rendering()  # the layout for its own resolution, not for that of the file
    box = figure.bbox
    for text in [t for axis in figure.axes for t in (axis.title, axis.xaxis.label, axis.yaxis.label)] + [
        t
        for legend in (*figure.legends, *(a.get_legend() for a in figure.axes if a.get_legend()))
        for t in legend.get_texts()
    ]:
        if text.get_text():
            inside = text.get_window_extent()
            assert inside.x0 >= -1 and inside.y0 >= -1 and inside.x1 <= box.x1 + 1 and inside.y1 <= box.y1 + 1, (
                text.get_text()
            )


@pytest.fixture
def probes(tmp_path):
    (tmp_path / "accuracy.csv").write_text(hand_run.PROBES)
    return read_csv(str(tmp_path / "accuracy.csv"))


def test_probes_by_layer_with_range_and_levels(probes, tmp_path):
    figure = figures.draw_probes(probes)
    assert [axis.get_title() for axis in figure.axes] == ["hidden", "mlp"]
    found = points(figure.axes[0])
    assert found["probe of a layer (mean, range)"] == [(1, 0.61), (2, 0.83), (3, 0.85)]
    assert [y for _, y in found["majority"]] == [0.55, 0.55] and [
        y for _, y in found["in use: hidden of layers 2-3"]
    ] == [0.86, 0.86]
    corners = {tuple(xy) for xy in figure.axes[1].collections[0].get_paths()[0].vertices.round(3).tolist()}
    assert {(1, 0.55), (1, 0.65), (2, 0.7), (2, 0.85)} <= corners
    drawn_well(figure, tmp_path)


def test_states_are_bars_that_fill_the_line(tmp_path):
    figure = figures.draw_states(hand_run.question_set())
    bars = {
        container.get_label(): [bar.get_width() * 40 for bar in container] for container in figure.axes[0].containers
    }
    assert {name[0]: [round(n, 6) for n in counts] for name, counts in bars.items()} == {
        "1": [12, 13, 11, 10],
        "3": [2, 15, 8, 14],
        "2": [8, 7, 9, 10],
        "4": [18, 5, 12, 6],
    }
    assert all(sum(counts) == pytest.approx(40) for counts in zip(*bars.values()))
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [
        "before",
        "after",
        "before, may abstain",
        "after, may abstain",
    ]
    drawn_well(figure, tmp_path)


@pytest.mark.parametrize(
    "known, unknown, sides, edges",
    [
        (0.5, 0.25, {"unknown": {0: 15, 1: 6}, "mixed": {}, "known": {2: 4, 3: 3, 4: 12}}, [1.5, 1.5]),
        (0.75, 0.0, {"unknown": {0: 15}, "mixed": {1: 6, 2: 4}, "known": {3: 3, 4: 12}}, [2.5, 0.5]),
    ],
)
def test_hits_are_coloured_by_the_side_of_the_thresholds(known, unknown, sides, edges, tmp_path):
    figure = figures.draw_hits([15, 6, 4, 3, 12], (known, unknown))
    (axis,) = figure.axes
    found = {
        c.get_label().split(":")[0]: {round(b.get_x() + b.get_width() / 2): round(b.get_height()) for b in c}
        for c in axis.containers
    }
    assert found == {name: bars for name, bars in sides.items() if bars}
    assert [line.get_xdata()[0] for line in axis.lines] == edges
    drawn_well(figure, tmp_path)


def test_a_threshold_on_a_count_takes_it_in():
    """7 of 10 right is known at a share of 0.7, though 0.7 * 10 is a little more than 7 in floating
    point.
    """
    (axis,) = figures.draw_hits([1] * 11, (0.7, 0.3)).axes
    assert {c.get_label().split(":")[0]: len(c) for c in axis.containers} == {"unknown": 4, "mixed": 3, "known": 4}


def test_hits_of_states_that_do_not_come_from_samples_have_no_thresholds(tmp_path):
    figure = figures.draw_hits([15, 6, 4, 3, 12], None)
    (axis,) = figure.axes
    assert [bar.get_height() for bar in axis.patches] == [15, 6, 4, 3, 12] and not axis.lines
    drawn_well(figure, tmp_path)


def test_refusals_have_a_point_for_each_policy_lines_of_equal_j_and_intervals(tmp_path):
    result = hand_run.question_set()
    figure = figures.draw_refusals(result)
    (axis,) = figure.axes
    drawn = [row for row in result["rows"] if row["over_refusal"] is not None]
    expected = {
        row["policy"] + (", may abstain" if row["prompt"] == "may_abstain" else ""): [
            (row["over_refusal"], row["refusal_recall"])
        ]
        for row in drawn
    }
    assert points(axis) == expected and len(drawn) == 6, "random refusal has no over-refusal here"
    dashed = [line for line in axis.lines if line.get_linestyle() == "--"]
    assert len(dashed) == 4 and all(
        y - x == pytest.approx(line.get_ydata()[0] - line.get_xdata()[0])
        for line in dashed
        for x, y in zip(*line.get_data())
    )
    assert sorted(float(t.get_text().removeprefix("J = ")) for t in axis.texts) == [
        line.get_ydata()[0] for line in dashed
    ]
    ends = [
        (segment[:, 1].min(), segment[:, 1].max())
        for bars in axis.collections
        for segment in bars.get_segments()
        if segment[0, 0] == segment[1, 0]
    ]
    assert ends == [pytest.approx(row["intervals"]["refusal_recall"]) for row in drawn]
    drawn_well(figure, tmp_path)


def test_risk_coverage_and_reliability_have_a_line_a_score_and_a_panel_a_policy(tmp_path):
    confidence = hand_run.question_set()["confidence"]
    figure = figures.draw_risk_coverage(confidence)
    assert points(figure.axes[0]) == {"probe": [(0.5, 0.31), (1.0, 0.4)]}
    assert points(figure.axes[1]) == {"probe": [(0.5, 0.12), (1.0, 0.4)], "reward margin": [(0.5, 0.22), (1.0, 0.4)]}
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["probe", "reward margin"], (
        "of the panel that has more"
    )
    drawn_well(figure, tmp_path)
    figure = figures.draw_reliability(confidence)
    assert points(figure.axes[1])["reward margin"] == [(0.15, 0.2), (0.85, 0.22)]
    small, large = figure.axes[0].collections[0].get_sizes()
    assert large / small == pytest.approx(3), "10 and 30 answers"
    drawn_well(figure, tmp_path)


def test_a_score_without_points_has_no_line(tmp_path):
    confidence = [
        {**record, "risk_coverage": [], "reliability": None} for record in hand_run.question_set()["confidence"]
    ]
    for draw in (figures.draw_risk_coverage, figures.draw_reliability):
        figure = draw(confidence)
        assert not any(points(axis) for axis in figure.axes)
        drawn_well(figure, tmp_path)


def test_training_curves_leave_out_what_is_not_a_number_and_panels_without_any(tmp_path):
    figure = figures.draw_training(hand_run.STEPS, hand_run.LOOKS)
    axes = {axis.get_title(): points(axis) for axis in figure.axes}
    assert list(axes) == [
        "reward of the rollouts",
        "unguided rollouts",
        "KL to the start, nats a response",
        "validation questions, greedy",
    ]
    assert axes["reward of the rollouts"] == {
        "unguided": [(n, pytest.approx(0.1 * n)) for n in (1, 2, 3)],
        "guided": [(1, 0.5)],
    }
    assert axes["unguided rollouts"]["refusals, unknown"] == [] and axes["unguided rollouts"]["hallucinations"] == [
        (1, 0.4),
        (2, 0.4),
        (3, 0.4),
    ]
    assert axes["validation questions, greedy"]["refusals, unknown"] == [(0, 0.0), (2, 0.4)]
    drawn_well(figure, tmp_path)


def test_training_by_another_algorithm_shows_what_it_logs(tmp_path):
    figure = figures.draw_training(
        [{"event": "step", "step": n, "loss": 1 / n, "accuracy": 0.5} for n in (1, 2)], hand_run.LOOKS
    )
    assert [axis.get_title() for axis in figure.axes] == ["training loss", "validation questions, greedy"]
    assert points(figure.axes[0]) == {"loss": [(1, 1.0), (2, 0.5)]}
    drawn_well(figure, tmp_path)


def test_comparison_has_a_point_a_run_and_a_line_from_where_it_began(tmp_path):
    first, second = hand_run.question_set(), hand_run.question_set()
    second["rows"][1] = {**second["rows"][1], "over_refusal": 0.5}
    third = hand_run.question_set()
    third["rows"][0] = {**third["rows"][0], "over_refusal": None}
    figure = figures_runs.draw_comparison(["_a$b", "x" * 20, "without"], [first, second, third])
    recall = first["rows"][1]["refusal_recall"]
    assert points(figure.axes[0]) == {"a\\$b": [(first["rows"][1]["over_refusal"], recall)], "x" * 20: [(0.5, recall)]}
    paths = [list(zip(*line.get_data())) for line in figure.axes[0].lines if line.get_linestyle() == "-"]
    assert (
        paths[1] == [(second["rows"][0]["over_refusal"], second["rows"][0]["refusal_recall"]), (0.5, recall)]
        and len(paths) == 2
    )
    drawn_well(figure, tmp_path)


def test_ablation_has_a_point_a_variant_and_a_curve_a_seed(tmp_path):
    row = lambda name, x, y: {
        "variant": name,
        "truthful": 0.5,
        "over_refusal": x,
        "over_refusal low": x - 0.1,
        "over_refusal high": x + 0.1,
        "refusal_recall": y,
        "refusal_recall low": y - 0.1,
        "refusal_recall high": y + 0.1,
    }
    curves = {"full": [[[0, 0.5], [100, 0.9]], [[0, 0.5], [120, 0.8]]], "DPO": [[[0, 0.5], [0, 0.7]]]}
    figure = figures_runs.draw_ablation([row("full", 0.1, 0.9), row("DPO", 0.2, 0.8), {"variant": "failed"}], curves)
    left, right = figure.axes
    assert [tuple(map(float, line.get_xydata()[0])) for line in left.lines if line.get_marker() in "os^"] == [
        (0.1, 0.9),
        (0.2, 0.8),
    ]
    assert points(right) == {"full": [(0, 0.5), (100, 0.9)], "DPO": [(0, 0.7), (1, 0.7)]} and math.isclose(
        right.lines[1].get_ydata()[1], 0.8
    )
    drawn_well(figure, tmp_path)


def test_a_set_without_known_or_without_unknown_questions_has_no_plane_of_refusals(probes, tmp_path):
    settings = {"model": "a model", "probe.k": 4, "evaluate.known_share": 0.5, "evaluate.unknown_share": 0.0}
    sets = {
        "test": hand_run.question_set(),
        "b": hand_run.question_set(n_known=0),
        "c": hand_run.question_set(n_unknown=0),
    }
    assert [name for name, _ in figures.draw_all(str(tmp_path), probes, [], sets, settings) if "refusals" in name] == [
        "refusals.png"
    ]


def test_all_figures_of_a_run_have_a_caption(probes, tmp_path):
    settings = {"model": "a model", "probe.k": 4, "evaluate.known_share": 0.5, "evaluate.unknown_share": 0.0}
    made = figures.draw_all(
        str(tmp_path / "f"),
        probes,
        [*hand_run.STEPS, *hand_run.LOOKS],
        {"test": hand_run.question_set(), "$x_": hand_run.question_set()},
        settings,
    )
    assert len(made) == 10 and all((tmp_path / "f" / name).exists() and caption for name, caption in made)
    assert [name for name, caption in made if "$x_" in caption] == [
        "refusals_2.png",
        "risk_coverage_2.png",
        "reliability_2.png",
    ]
