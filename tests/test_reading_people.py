"""answers.read against people: real answers of a small model, each read by eye beside the given
answers (readings.jsonl).

Sets facts, webquestions, popqa: plain samples; "asked to refuse": samples of the uncertain mode and
of a trained policy, the second lot read after the patterns were last changed but for a few
additions; zh: Chinese questions. A text without words is labelled wrong there and read as empty.
"""

import os
from collections import Counter

import pytest

import dreamcatcher
from data.files import read_jsonl
from reading import answers

RECORDS = read_jsonl(os.path.join(os.path.dirname(__file__), "readings.jsonl"))


def read(record):
    return answers.read(record["text"], record["answers"], record["question"])


def test_the_set_is_large_and_each_answer_was_read_once():
    assert all(r["label"] in ("right", "hedged", "refusal", "wrong") for r in RECORDS)
    assert Counter(r["set"] for r in RECORDS)["facts"] == 100 and sum(r["label"] == "refusal" for r in RECORDS) >= 60
    assert len({(r["set"], r["id"], r["text"]) for r in RECORDS}) == len(RECORDS) >= 500


@pytest.mark.parametrize(
    "name, accuracy, kappa",
    [("facts", 0.95, 0.90), ("webquestions", 0.94, 0.80), ("popqa", 0.96, 0.50), ("zh", 0.98, 0)],
)
def test_right_and_wrong_are_told_as_people_do(name, accuracy, kappa):
    """Three of the popqa answers are right and none of the Chinese: the kappas hang on single
    answers.
    """
    here = [r for r in RECORDS if r["set"] == name]
    found = dreamcatcher.agreement(
        [answers.is_correct(read(r)) for r in here], [answers.is_correct(r["label"]) for r in here]
    )
    assert found["accuracy"] >= accuracy and found["kappa"] >= kappa


def test_refusals_are_told_from_answers_as_people_do():
    said, meant = [read(r) == "refusal" for r in RECORDS], [r["label"] == "refusal" for r in RECORDS]
    both = sum(s and m for s, m in zip(said, meant))
    assert both / sum(said) >= 0.97 and both / sum(meant) >= 0.93


def test_a_hedged_right_answer_is_told_from_a_refusal():
    assert [read(r) for r in RECORDS if r["label"] == "hedged"] == ["hedged"] * 3
