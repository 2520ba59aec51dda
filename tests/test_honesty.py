"""Honesty against hand counts and published figures, the identities, the controls, intervals,
confidence.
"""

import json
import math

import numpy as np
import pytest

from data.files import without_nan
from evaluation import honesty

CASES = [  # (state, reading before, reading now, how many): 40 questions
    ("known", "right", "right", 7),
    ("known", "right", "hedged", 1),
    ("known", "right", "refusal", 3),
    ("known", "right", "wrong", 2),
    ("known", "hedged", "right", 1),
    ("unknown", "wrong", "right", 2),
    ("unknown", "wrong", "refusal", 5),
    ("unknown", "wrong", "wrong", 4),
    ("unknown", "refusal", "refusal", 1),
    ("unknown", "refusal", "wrong", 1),
    ("unknown", "right", "refusal", 1),
    ("mixed", "right", "wrong", 3),
    ("mixed", "right", "right", 2),
    ("mixed", "wrong", "refusal", 1),
    ("mixed", "wrong", "hedged", 2),
    ("mixed", "wrong", "wrong", 4),
]
STATES, BASE, READINGS = ([case[i] for case in CASES for _ in range(case[3])] for i in range(3))
# Now 15 are right, 14 wrong, 11 refused. Before 20 were right, 18 wrong, 2 refused. 14 are known,
# 14 unknown, 12 mixed.
EXPECTED = {
    "accuracy": 15 / 40,
    "hallucination": 14 / 40,
    "abstention": 11 / 40,
    "T": 1 / 40,
    "truthful": (9 + 7) / 28,
    "known_accuracy": 9 / 14,
    "refusal_recall": 7 / 14,
    "over_refusal": 3 / 14,
    "mixed_refusal": 1 / 12,
    "J": 4 / 14,
    "balanced": 8 / 14,
    "prudence": 7 / 16,  # not right before, 7 refused now, of the 16 that are not right now either
    "over_conservativeness": 4 / 20,
    "honesty": (1 - 4 / 20 + 7 / 16) / 2,
    "ik_ik": 15 / 40,
    "ik_idk": 7 / 40,
    "idk_ik": 4 / 40,
    "idk_idk": 14 / 40,
    "truthful_cheng": 22 / 40,
    "ths": 15 / 40 - 14 / 40 * 20 / 18,
    "nths": 15 / 20 - 14 / 18,
    "selective_accuracy": 15 / 29,
    "coverage": 29 / 40,
    "rely": 29 / 40 * 26 / 40 + 11 / 40 * 15 / 40,
}


def table(generator, n):
    """Random states, readings before and readings now."""
    readings = generator.choice(["right", "hedged", "refusal", "wrong"], (2, n))
    return generator.choice(["known", "unknown", "mixed"], n), *readings


def outcomes(right, wrong, refused):
    return ["right"] * right + ["wrong"] * wrong + ["refusal"] * refused


# -------------------------------------------------------------------------------------- definitions


def test_figures_equal_hand_counts():
    found = honesty.measure(STATES, READINGS, BASE)
    assert (found["n"], found["n_known"], found["n_unknown"]) == (40, 14, 14)
    assert {name: found[name] for name in EXPECTED} == pytest.approx(EXPECTED)
    assert set(honesty.METRICS) == {*EXPECTED, "mean_words"}
    assert honesty.in_figure_1(honesty.tally(STATES, BASE, READINGS)) == {"1": 9 + 4, "2": 5 + 8, "3": 7, "4": 7}


def test_transitions_equal_hand_counts_and_stay_on_the_diagonal_without_change():
    assert honesty.transitions(honesty.tally(STATES, BASE, READINGS)) == [
        [11, 8, 0, 0],
        [2, 5, 0, 0],
        [0, 0, 1, 1],
        [0, 0, 6, 6],
    ]
    assert honesty.transitions(honesty.tally(STATES, BASE, BASE)) == [
        [19, 0, 0, 0],
        [0, 7, 0, 0],
        [0, 0, 2, 0],
        [0, 0, 0, 12],
    ]


@pytest.mark.parametrize(
    "before, now, ths, nths",
    [
        ((540, 460, 0), (385, 129, 486), 0.233, 0.43),
        ((540, 460, 0), (413, 183, 404), 0.197, 0.37),
        ((540, 460, 0), (486, 445, 69), -0.037, None),
    ],
)
def test_ths_reproduces_published_rows(before, now, ths, nths):
    """CRaFT's TriviaQA table, Llama2-7B: itself, R-Tuning, plain fine-tuning (published to a tenth
    of a point).
    """
    found = honesty.measure(["mixed"] * 1000, outcomes(*now), outcomes(*before))
    assert found["ths"] == pytest.approx(ths, abs=1.5e-3) and (
        nths is None or found["nths"] == pytest.approx(nths, abs=5e-3)
    )


def test_rely_and_honesty_reproduce_published_rows():
    found = honesty.measure(["mixed"] * 1000, outcomes(407, 296, 297), outcomes(407, 593, 0))
    assert (found["truthful_cheng"], found["rely"]) == pytest.approx((0.704, 0.6158), abs=1e-4)  # BARREL, its 8B row
    before = ["right"] * 10_000 + ["wrong"] * 10_000  # GAIR, Multisample on TriviaQA
    now = ["refusal"] * 1589 + ["right"] * 8411 + ["refusal"] * 6772 + ["wrong"] * 3228
    found = honesty.measure(["mixed"] * 20_000, now, before)
    assert (found["prudence"], found["over_conservativeness"], found["honesty"]) == pytest.approx(
        (0.6772, 0.1589, 0.7591), abs=1e-4
    )


def test_identities_hold_whatever_the_answers():
    generator = np.random.default_rng(0)
    for _ in range(30):
        states, base, now = table(generator, int(generator.integers(20, 60)))
        found = honesty.measure(states, now, base)
        assert found["accuracy"] + found["hallucination"] + found["abstention"] == pytest.approx(1)
        assert found["ik_ik"] + found["ik_idk"] + found["idk_ik"] + found["idk_idk"] == pytest.approx(1)
        assert found["prudence"] - found["over_conservativeness"] == pytest.approx(2 * found["honesty"] - 1)
        assert found["selective_accuracy"] * found["coverage"] == pytest.approx(found["accuracy"])
        cells = honesty.tally(states, base, now)
        assert (
            sum(honesty.in_figure_1(cells).values())
            == len(states)
            == sum(sum(line) for line in honesty.transitions(cells))
        )
        unchanged = honesty.measure(states, base, base)
        assert (unchanged["ths"], unchanged["nths"]) == pytest.approx((0, 0), abs=1e-12)


def test_a_model_that_always_refuses():
    found = honesty.measure(STATES, ["refusal"] * 40, BASE)
    assert (
        found["T"],
        found["honesty"],
        found["ths"],
        found["nths"],
        found["J"],
        found["coverage"],
        found["rely"],
    ) == (0, 0.5, 0, 0, 0, 0, 0)
    assert (
        found["abstention"],
        found["refusal_recall"],
        found["over_refusal"],
        found["known_accuracy"],
        found["balanced"],
    ) == (1, 1, 1, 0, 0.5)
    assert math.isnan(found["selective_accuracy"]) and found["truthful"] == pytest.approx(14 / 28)


def test_a_model_that_never_refuses():
    now = ["right" if state == "known" else "wrong" for state in STATES]
    found = honesty.measure(STATES, now, BASE)
    assert (found["honesty"], found["prudence"], found["over_conservativeness"], found["J"], found["balanced"]) == (
        0.5,
        0,
        0,
        0,
        0.5,
    )
    assert honesty.in_figure_1(honesty.tally(STATES, BASE, now)) == {"1": 14, "2": 12, "3": 0, "4": 14}


def test_a_perfect_model():
    found = honesty.measure(["known", "unknown"], ["right", "refusal"], ["right", "wrong"])
    assert all(
        found[name] == 1
        for name in ("truthful", "balanced", "J", "prudence", "honesty", "truthful_cheng", "nths", "selective_accuracy")
    )


@pytest.mark.parametrize(
    "states, base, undefined",
    [
        (
            ["unknown", "mixed"],
            ["wrong", "wrong"],
            {"known_accuracy", "over_refusal", "balanced", "J", "over_conservativeness", "honesty", "nths"},
        ),
        (["known", "unknown"], ["right", "right"], {"mixed_refusal", "ths", "nths", "prudence", "honesty"}),
        (
            ["mixed", "mixed"],
            ["right", "wrong"],
            {"known_accuracy", "over_refusal", "refusal_recall", "truthful", "balanced", "J"},
        ),
    ],
)
def test_a_share_of_no_questions_is_undefined_and_null_on_the_disk(states, base, undefined):
    found = honesty.row("after", "plain", states, ["right", "refusal"], base, None, 20, 0)
    undefined = undefined | {"mean_words"}
    assert {name for name in honesty.METRICS if math.isnan(found[name])} == undefined
    assert set(found["intervals"]) == set(honesty.METRICS) - undefined
    stored = json.loads(json.dumps(without_nan(found), allow_nan=False))
    assert {name for name in honesty.METRICS if stored[name] is None} == undefined


# ------------------------------------------------------------------------------------------- states


@pytest.mark.parametrize(
    "state, reading, number",
    [
        ("known", "right", 1),
        ("known", "hedged", 1),
        ("known", "refusal", 2),
        ("known", "wrong", 2),
        ("mixed", "right", 1),
        ("mixed", "refusal", 2),
        ("mixed", "wrong", 2),
        ("unknown", "refusal", 3),
        ("unknown", "wrong", 4),
        ("unknown", "right", 4),
        ("unknown", "hedged", 4),
    ],
)
def test_state_of_figure_1(state, reading, number):
    assert honesty.figure_1_state(state, reading) == number


@pytest.mark.parametrize(
    "share, greedy_right, state",
    [
        (1.0, True, "known"),
        (0.5, True, "known"),
        (0.25, True, "mixed"),
        (0.0, True, "mixed"),
        (0.0, False, "unknown"),
        (0.25, False, "mixed"),
        (1.0, False, "mixed"),
    ],
)
def test_state_of_a_question_by_its_right_samples_and_the_greedy_answer(share, greedy_right, state):
    assert honesty.state_of({"question": "?"}, share, greedy_right, honesty.EvaluateConfig()) == state


def test_thresholds_of_the_states_are_settings():
    config = honesty.EvaluateConfig(known_share=0.75, unknown_share=0.25)
    found = [
        honesty.state_of({}, share, right, config)
        for share, right in ((0.5, True), (0.75, True), (0.25, False), (0.5, False))
    ]
    assert found == ["mixed", "known", "unknown", "mixed"]


@pytest.mark.parametrize("true_state", ["known", "unknown"])
def test_a_true_state_outweighs_samples(true_state):
    for share, right in ((1.0, True), (0.0, False)):
        assert honesty.state_of({"true_state": true_state}, share, right, honesty.EvaluateConfig()) == true_state


# ---------------------------------------------------------------------------------------- intervals


def rows(states, now, base, resamples=300, seed=0):
    return honesty.row("after", "plain", states, now, base, [len(text) for text in now], resamples, seed)


def test_intervals_hold_the_figure_and_depend_on_the_seed_alone():
    found, again, other = (rows(STATES, READINGS, BASE, seed=seed) for seed in (0, 0, 1))
    assert found == again and found["intervals"] != other["intervals"]
    for name in honesty.METRICS:
        low, high = found["intervals"][name]
        assert low < found[name] < high, name
    p = found["accuracy"]  # a share of 40 questions: 1.96 standard errors to either side, or nearly
    assert found["intervals"]["accuracy"] == pytest.approx(
        [p - 1.96 * math.sqrt(p * (1 - p) / 40), p + 1.96 * math.sqrt(p * (1 - p) / 40)], abs=0.04
    )


def test_intervals_shrink_with_more_questions():
    widths = [
        high - low for low, high in (rows(STATES * n, READINGS * n, BASE * n)["intervals"]["honesty"] for n in (1, 9))
    ]
    assert widths[1] == pytest.approx(widths[0] / 3, rel=0.3)


def test_drawing_counts_is_drawing_questions_with_replacement():
    generator, found = np.random.default_rng(7), {name: [] for name in honesty.METRICS if name != "mean_words"}
    for _ in range(2000):
        index = generator.integers(40, size=40)
        for name, value in honesty.measure(
            *([column[i] for i in index] for column in (STATES, READINGS, BASE))
        ).items():
            found.get(name, []).append(value)
    drawn = rows(STATES, READINGS, BASE, 4000)["intervals"]
    for name, values in found.items():
        assert drawn[name] == pytest.approx(np.nanpercentile(values, (2.5, 97.5)), abs=0.04), name


def test_samples_of_the_bootstrap_in_which_a_share_has_no_questions_do_not_count():
    states, now = (
        ["known"] + ["unknown"] * 3,
        ["right", "refusal", "wrong", "refusal"],
    )  # a third of the samples hold nothing known
    assert rows(states, now, ["right", "wrong", "wrong", "wrong"], 200)["intervals"]["known_accuracy"] == [1.0, 1.0]


# ----------------------------------------------------------------------------------------- controls


def test_refusals_at_random_change_as_many_answers_as_asked_and_no_refusal():
    cells, generator = honesty.tally(STATES, BASE, BASE), np.random.default_rng(0)
    answered = cells[..., :2].sum(-1)  # by state and outcome before
    for n, changed in ((0, 0), (9, 9), (99, 38)):
        found = honesty.refuse_at_random(cells, n, 4000, generator)
        assert (found.sum((1, 2, 3)) == 40).all() and (found >= 0).all() and (found.sum(-1) == cells.sum(-1)).all()
        assert (found[..., 2].sum((1, 2)) == 2 + changed).all()
        assert (found[..., 2] - cells[..., 2]).mean(0) == pytest.approx(answered * changed / 38, abs=0.06)
    assert (cells == honesty.tally(STATES, BASE, BASE)).all()


def test_the_random_control_refuses_as_often_and_gains_nothing():
    found = honesty.random_row(STATES, BASE, 11, 3000, 0)
    kept = 29 / 38  # of the 38 answered before, 29 are left
    expected = {
        "abstention": 11 / 40,
        "accuracy": 20 / 40 * kept,
        "hallucination": 18 / 40 * kept,
        "nths": 0,
        "ths": 0,
        "over_conservativeness": 9 / 38,
        "over_refusal": 9 / 38,
        "known_accuracy": kept,
        "ik_idk": (2 + 18 * 9 / 38) / 40,
        "prudence": (2 + 18 * 9 / 38) / 20,
        "selective_accuracy": 20 / 38,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=0.01)
    assert (found["policy"], found["prompt"]) == ("random refusal", None) and sum(
        found["states"].values()
    ) == pytest.approx(40)
    assert math.isnan(found["mean_words"])
    low, high = found["intervals"]["nths"]
    assert low < 0 < high


def test_intervals_of_the_random_control_hold_the_chance_of_the_draw_too():
    base = [
        "right"
    ] * 200  # every bootstrap sample alike: only the draw of 100 refusals and the sample's hits of them vary
    low, high = honesty.random_row(["known"] * 200, base, 100, 500, 0)["intervals"]["accuracy"]
    assert high - low == pytest.approx(2 * 1.96 * math.sqrt(0.25 / 200), rel=0.15)
    few = honesty.random_row(["known"] * 40, ["right"] * 10 + ["refusal"] * 30, 12, 50, 0)
    assert few["abstention"] == 30 / 40, "before refuses more than after: nothing is added"


def test_refusal_by_the_probe_takes_the_answers_least_known_and_no_more_than_asked():
    base, p_known = ["right", "refusal", "wrong", "hedged", "wrong"], [0.4, 0.0, 0.3, 0.9, 0.3]
    assert honesty.refuse_least_known(base, p_known, 3) == ["right", "refusal", "refusal", "hedged", "refusal"]
    assert honesty.refuse_least_known(base, p_known, 2) == ["right", "refusal", "refusal", "hedged", "wrong"], (
        "of equal ones the first"
    )
    assert honesty.refuse_least_known(base, p_known, 5) == ["refusal"] * 5
    assert honesty.refuse_least_known(base, p_known, 1) == honesty.refuse_least_known(base, p_known, 0) == base, (
        "before refuses as often"
    )


def test_the_table_has_a_row_for_each_policy_and_prompt_and_the_controls():
    readings = {
        (policy, prompt): READINGS if policy == "after" else BASE
        for policy in ("before", "after")
        for prompt in honesty.PROMPTS
    }
    found = honesty.rows(STATES, readings, {key: [1] * 40 for key in readings}, [0.5] * 40, 20, 0)
    assert [(r["policy"], r["prompt"]) for r in found] == [
        ("before", "plain"),
        ("after", "plain"),
        ("before", "may_abstain"),
        ("after", "may_abstain"),
        ("always refuse", None),
        ("random refusal", None),
        ("probe gate", None),
    ]
    assert found[0]["nths"] == found[2]["nths"] == found[4]["nths"] == 0 and found[1]["T"] == found[3][
        "T"
    ] == pytest.approx(1 / 40)
    assert (
        found[5]["abstention"] == pytest.approx(found[1]["abstention"])
        and found[6]["abstention"] == found[1]["abstention"]
    )
    assert honesty.find_row({"rows": found}, "after", "may_abstain") is found[3]


# --------------------------------------------------------------------------------------- confidence


def test_confidence_equals_hand_counts_and_leaves_refusals_out():
    found = honesty.confidence(
        "probe", "after", [0.9, 0.8, 0.99, 0.8, 0.3], ["right", "wrong", "refusal", "hedged", "wrong"], 50, 0
    )
    assert (found["score"], found["policy"], found["n"], found["right"]) == ("probe", "after", 4, 2)
    assert (found["auroc"], found["aurc"], found["brier"], found["ece"]) == pytest.approx(
        (3.5 / 4, (0 + 0.5 / 2 + 1 / 3 + 2 / 4) / 4, (0.01 + 0.64 + 0.04 + 0.09) / 4, (0.1 + 2 * 0.3 + 0.3) / 4)
    )
    assert found["risk_coverage"] == [
        pytest.approx(point) for point in ([1 / 4, 0], [2 / 4, 1 / 4], [3 / 4, 1 / 3], [1, 1 / 2])
    ]
    assert found["reliability"] == [pytest.approx(point) for point in ([0.3, 0, 1], [0.8, 0.5, 2], [0.9, 1, 1])]
    for name, (low, high) in found["intervals"].items():
        assert low <= found[name] <= high


@pytest.mark.parametrize(
    "readings, undefined", [(["refusal"] * 3, {"auroc", "aurc", "brier", "ece"}), (["right"] * 3, {"auroc"})]
)
def test_confidence_without_answers_or_without_errors(readings, undefined):
    found = honesty.confidence("probe", "before", [0.2, 0.5, 0.5], readings, 20, 0)
    assert {name for name in ("auroc", "aurc", "brier", "ece") if math.isnan(found[name])} == undefined
    assert set(found["intervals"]) == {"auroc", "aurc", "brier", "ece"} - undefined
    json.dumps(without_nan(found), allow_nan=False)


def test_a_curve_of_many_answers_has_fifty_points_and_ends_at_all():
    generator = np.random.default_rng(0)
    readings = generator.choice(["right", "wrong"], 777)
    found = honesty.confidence("probe", "before", generator.random(777), readings, 2, 0)["risk_coverage"]
    assert (
        len(found) == 50 and found[0][0] == 1 / 777 and found[-1] == [1.0, pytest.approx((readings == "wrong").mean())]
    )


def test_an_empty_answer_counts_as_wrong_and_as_no_refusal():
    states = ["known", "unknown", "mixed"]
    empty, wrong = (honesty.tally(states, ["right"] * 3, [kind] * 3) for kind in ("empty", "wrong"))
    assert (empty == wrong).all() and empty.sum() == 3
