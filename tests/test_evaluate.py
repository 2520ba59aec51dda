"""Metrics against hand counts, what must hold for a model that always or never refuses, intervals, states."""
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import evaluate
import tiny
from lm import Sampling
from tiny import one_thread  # noqa: F401

CASES = [  # (state, reading, how many): every combination, each with a number of its own
    ("known", "right", 7), ("known", "hedged", 1), ("known", "refusal", 3), ("known", "wrong", 2),
    ("unknown", "right", 2), ("unknown", "hedged", 1), ("unknown", "refusal", 5), ("unknown", "wrong", 4),
    ("mixed", "right", 3), ("mixed", "hedged", 2), ("mixed", "refusal", 1), ("mixed", "wrong", 6)]
STATES = [state for state, _, n in CASES for _ in range(n)]
READINGS = [reading for _, reading, n in CASES for _ in range(n)]


def test_metrics_equal_hand_counts():
    found = evaluate.metrics(STATES, READINGS)
    assert (found["n"], found["n_known"], found["n_unknown"]) == (37, 13, 12)
    expected = {
        "accuracy": (7 + 1 + 2 + 1 + 3 + 2) / 37, "hallucination": (2 + 4 + 6) / 37, "abstention": (3 + 5 + 1) / 37,
        "truthful": (7 + 1 + 5) / 25, "known_accuracy": 8 / 13, "refusal_recall": 5 / 12, "over_refusal": 3 / 13,
        "balanced": (8 / 13 + 5 / 12) / 2, "J": 5 / 12 - 3 / 13}
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert found["states"] == {"1": 7 + 1 + 3 + 2, "2": 3 + 2 + 1 + 6, "3": 5, "4": 2 + 1 + 4}


def test_metrics_can_be_written_as_json():
    assert json.loads(json.dumps(evaluate.metrics(STATES, READINGS)))["n"] == 37


def test_shares_of_all_questions_add_up_to_one():
    rng = np.random.default_rng(0)
    for _ in range(20):
        n = rng.integers(1, 30)
        states, readings = rng.choice(["known", "unknown", "mixed"], n), rng.choice(["right", "hedged", "refusal", "wrong"], n)
        found = evaluate.metrics(states, readings)
        assert found["accuracy"] + found["hallucination"] + found["abstention"] == pytest.approx(1)
        assert sum(found["states"].values()) == n


def test_a_model_that_always_refuses():
    found = evaluate.metrics(STATES, ["refusal"] * len(STATES))
    assert (found["abstention"], found["refusal_recall"], found["over_refusal"], found["known_accuracy"]) == (1, 1, 1, 0)
    assert (found["accuracy"], found["hallucination"], found["J"], found["balanced"]) == (0, 0, 0, 0.5)
    assert found["truthful"] == pytest.approx(12 / 25)
    assert found["states"] == {"1": 0, "2": 25, "3": 12, "4": 0}


def test_a_model_that_never_refuses():
    readings = ["right" if state == "known" else "wrong" for state in STATES]
    found = evaluate.metrics(STATES, readings)
    assert (found["abstention"], found["refusal_recall"], found["over_refusal"], found["known_accuracy"]) == (0, 0, 0, 1)
    assert (found["J"], found["balanced"]) == (0, 0.5)
    assert found["truthful"] == pytest.approx(13 / 25)
    assert found["states"] == {"1": 13, "2": 12, "3": 0, "4": 12}


def test_a_perfect_model():
    found = evaluate.metrics(["known", "unknown"], ["right", "refusal"])
    assert (found["truthful"], found["balanced"], found["J"]) == (1, 1, 1)


@pytest.mark.parametrize("states, empty", [
    (["unknown", "mixed"], {"known_accuracy", "over_refusal", "balanced", "J"}), (["known", "mixed"], {"refusal_recall", "balanced", "J"}),
    (["mixed", "mixed"], {"known_accuracy", "over_refusal", "refusal_recall", "truthful", "balanced", "J"})])
def test_a_share_of_no_questions_is_not_a_number(states, empty):
    found = evaluate.metrics(states, ["right", "refusal"])
    assert {name for name, value in found.items() if isinstance(value, float) and math.isnan(value)} == empty


@pytest.mark.parametrize("state, reading, number", [
    ("known", "right", 1), ("known", "hedged", 1), ("known", "refusal", 2), ("known", "wrong", 2), ("mixed", "right", 1),
    ("mixed", "refusal", 2), ("mixed", "wrong", 2), ("unknown", "refusal", 3), ("unknown", "wrong", 4), ("unknown", "right", 4),
    ("unknown", "hedged", 4)])
def test_state_of_figure_1(state, reading, number):
    assert evaluate.figure_1_state(state, reading) == number


@pytest.mark.parametrize("share, greedy_right, state", [
    (1.0, True, "known"), (0.5, True, "known"), (0.25, True, "mixed"), (0.0, True, "mixed"),
    (0.0, False, "unknown"), (0.25, False, "mixed"), (1.0, False, "mixed")])
def test_state_of_a_question_by_its_right_samples_and_the_greedy_answer(share, greedy_right, state):
    assert evaluate.state_of({"question": "?"}, share, greedy_right, evaluate.EvaluateConfig()) == state


def test_thresholds_of_the_states_are_settings():
    config = evaluate.EvaluateConfig(known_share=0.75, unknown_share=0.25)
    found = [evaluate.state_of({}, share, right, config) for share, right in ((0.5, True), (0.75, True), (0.25, False), (0.5, False))]
    assert found == ["mixed", "known", "unknown", "mixed"]


@pytest.mark.parametrize("true_state", ["known", "unknown"])
def test_a_true_state_outweighs_samples(true_state):
    for share, right in ((1.0, True), (0.0, False)):
        assert evaluate.state_of({"true_state": true_state}, share, right, evaluate.EvaluateConfig()) == true_state


NAMES = ("accuracy", "hallucination", "abstention", "truthful", "known_accuracy", "refusal_recall", "over_refusal", "J")


def test_intervals_hold_the_point_estimate_and_depend_on_the_seed_alone():
    point = evaluate.metrics(STATES, READINGS)
    found, again, other = (evaluate.intervals(STATES, READINGS, NAMES, 300, seed) for seed in (0, 0, 1))
    assert found == again != other
    for name in NAMES:
        low, high = found[name]
        assert low < point[name] < high, name
    p = point["accuracy"]  # a share of 37 questions: 1.96 standard errors to either side, or nearly
    assert found["accuracy"] == pytest.approx([p - 1.96 * math.sqrt(p * (1 - p) / 37), p + 1.96 * math.sqrt(p * (1 - p) / 37)], abs=0.04)


def test_intervals_shrink_with_more_questions():
    widths = []
    for times in (1, 9):
        low, high = evaluate.intervals(STATES * times, READINGS * times, ("truthful",), 300, 0)["truthful"]
        widths.append(high - low)
    assert widths[1] == pytest.approx(widths[0] / 3, rel=0.3)


def test_intervals_leave_out_samples_where_a_share_has_no_questions():
    states, readings = ["known"] + ["unknown"] * 3, ["right", "refusal", "wrong", "refusal"]  # a third of the samples hold nothing known
    assert evaluate.intervals(states, readings, ("known_accuracy",), 200, 0)["known_accuracy"] == [1.0, 1.0]


def test_answers_are_greedy_whatever_the_sampling_says():
    lm = tiny.lm("gpt2", 1)
    questions = [{"question": text} for text in ("who is paris", "what is the capital of rome", "red", "where is oslo")]
    sampling, seen = Sampling(max_new_tokens=6, temperature=1.5), []
    found = evaluate.greedy(lm, questions, sampling, seen.append)
    assert found == evaluate.greedy(lm, questions, replace(sampling, temperature=0.3)) and sum(seen) == 4
    for question, text in zip(questions, found):
        ids = tiny.ids(f"<user> {question['question']} <assistant>")
        for _ in range(6):  # the most probable token, one at a time, without cache or batch
            with torch.no_grad():
                token = int(lm.model(input_ids=torch.tensor([ids])).logits[0, -1].argmax())
            ids.append(token)
            if token == lm.end_id:
                break
        assert text == lm.tokenizer.decode(ids[len(tiny.ids(f"<user> {question['question']} <assistant>")):], skip_special_tokens=True).strip()
