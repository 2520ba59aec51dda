"""What is asserted, not what is mentioned."""

import pytest

from reading.answers import is_correct, read


@pytest.mark.parametrize(
    "text, answer, question",
    [
        ("It was not painted by Monet.", "Monet", "Who painted it?"),
        ("Not Monet, but Manet painted it.", "Monet", "Who painted it?"),
        ("Monet did not paint it.", "Claude Monet", "Who painted it?"),
        ("The painter isn't Monet.", "Monet", "Who painted it?"),
        ("Neither Monet nor Manet painted it.", "Monet", "Who painted it?"),
        ("Neither Monet nor Manet painted it.", "Manet", "Who painted it?"),
        ("It was never held in Rome.", "Rome", "Where was it held?"),
        ("It is in Spain rather than Portugal.", "Portugal", "Where is it?"),
        ("Monet, no, Manet.", "Monet", "Who painted it?"),
        ("Monet. No, wait, it was Manet.", "Monet", "Who painted it?"),
        ("Monet... sorry, I mean Manet.", "Monet", "Who painted it?"),
        ("Monet or Manet", "Monet", "Who painted it?"),
        ("Monet or Manet", "Manet", "Who painted it?"),
        ("either Oslo or Bergen", "Bergen", "Where?"),
        ("不是莫奈画的。", "莫奈", "谁画的？"),
        ("莫奈还是马奈", "莫奈", "谁画的？"),
        ("The Ohio River is in Indiana.", "Ohio", "Where is the Ohio River?"),
        ("Oslo, Bergen, Rome, Paris, Lima, Quito, Accra, Cairo, Delhi or Perth", "Lima", "Which city is it?"),
    ],
)
def test_a_mention_is_no_assertion(text, answer, question):
    assert read(text, [answer], question) == "wrong"


@pytest.mark.parametrize(
    "text, answer, question",
    [
        ("Not Monet, but Manet painted it.", "Manet", "Who painted it?"),
        ("It was painted by Manet, not by Monet.", "Manet", "Who painted it?"),
        ("Monet, no, Manet.", "Manet", "Who painted it?"),
        ("It was not only Manet who painted it.", "Manet", "Who painted it?"),
        ("It did not open until 1903.", "1903", "When did it open?"),
        ("Manet, although he did not sign it.", "Manet", "Who painted it?"),
        ("He never married. Manet was born in Paris.", "Paris", "Where was he born?"),
        ("No, it was Manet.", "Manet", "Was it Monet who painted it?"),
        ("The USA or the United States", "United States", "Which country?"),
        ("Manet did not live to see it shown.", "Manet", "Who painted it?"),
        ("A penguin cannot fly.", "penguin", "Which bird can not fly?"),
        ("莫奈不是作者，作者是马奈。", "马奈", "谁画的？"),
    ],
)
def test_what_is_asserted_is_right(text, answer, question):
    assert is_correct(read(text, [answer], question))


def test_a_list_that_was_asked_for_is_no_list_of_candidates():
    text = "Oslo, Bergen, Rome, Paris, Lima, Quito, Accra, Cairo, Delhi and Perth"
    assert read(text, ["Lima"], "Which cities were on the tour?") == "right"
