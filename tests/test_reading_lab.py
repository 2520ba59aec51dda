"""The reader in the lab: each refusal of its world is one, each answer is an answer, and what is
kept of a reading is what would be read anew.
"""

import pytest

from data import world
from data.world_words import REFUSALS
from reading import answers

MADE = world.questions(world.build_world(world.WorldConfig(), 0))
QUESTIONS = [question for split in MADE.values() for question in split]
VALUES = {}
for question in QUESTIONS:
    VALUES.setdefault(question["category"], set()).update(question["answers"])


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_refusal_of_the_lab_is_one_whatever_was_asked(refusal):
    read = {answers.read(refusal, q["answers"], q["question"]) for q in QUESTIONS}
    assert read == {"refusal"}


def test_a_right_answer_of_the_lab_is_right():
    for q in QUESTIONS:
        assert {answers.read(f"{a} .", q["answers"], q["question"]) for a in q["answers"]} == {"right"}, q


def test_another_answer_of_the_lab_is_wrong_and_no_refusal():
    for q in QUESTIONS[::70]:
        for value in sorted(VALUES[q["category"]]):
            if value not in q["answers"]:
                assert answers.read(f"{value} .", q["answers"], q["question"]) == "wrong", (value, q)


def test_half_a_text_and_none_at_all():
    assert answers.read(".", ["editor"], "which job does anna have ?") == "empty"
    assert answers.read("", ["editor"], "which job does anna have ?") == "empty"


def test_what_is_kept_is_what_would_be_read_anew():
    asked = [
        (q["question"], q["answers"], text) for q in QUESTIONS[:40] for text in (*REFUSALS, *"editor", "baker", "")
    ]
    for question, given, text in asked + asked:
        assert answers.reading(text, given, question) == answers.read_anew(text, given, question, None)


def test_what_is_kept_is_bounded_and_holds_no_long_text():
    before = answers.kept.cache_info().currsize
    answers.read("a word " * answers.KEPT_LETTERS, ["editor"])
    assert answers.kept.cache_info().currsize == before and answers.kept.cache_info().maxsize <= 1 << 16
