"""The judge: one question a text, verdicts kept in a file, and what happens without a verdict."""

import json

from reading.judge import Judge, prompt, verdict_in


class Client:
    """Replies in turn and keeps what it was asked."""

    model = "judge"

    def __init__(self, *replies):
        self.replies, self.asked = list(replies), []

    def ask(self, messages, temperature, max_tokens):
        self.asked.append(messages[0]["content"])
        return self.replies.pop(0)


def test_the_prompt_holds_question_references_and_text_with_their_braces():
    made = prompt("{answers} or Lima", ["Lima", "Ciudad de los Reyes"], "Which {city}?")
    assert (
        "Question: Which {city}?" in made
        and "References: Lima; Ciudad de los Reyes" in made
        and "Answer: {answers} or Lima" in made
    )


def test_a_verdict_is_asked_once_and_kept(tmp_path):
    cache = str(tmp_path / "verdicts.jsonl")
    client = Client({"reply": "Right."}, {"reply": "wrong"})
    judge = Judge(client, cache)
    assert judge.read("It is the city of kings.", ["Lima"], "Which?").kind == "right"
    assert judge.read("It is the city of kings.", ["Lima"], "Which?").kind == "right"
    assert judge.read("Quito", ["Lima"], "Which?").kind == "wrong"
    assert len(client.asked) == 2
    again = Judge(Client(), cache)
    assert again.read("Quito", ["Lima"], "Which?").kind == "wrong"


def test_a_half_written_line_is_dropped(tmp_path):
    cache = tmp_path / "verdicts.jsonl"
    cache.write_text(json.dumps({"key": "a", "verdict": "right"}) + "\n" + '{"key": "b", "ver')
    assert Judge(Client(), str(cache)).known == {"a": "right"}
    assert cache.read_text().count("\n") == 1 and cache.read_text().endswith("\n")


def test_without_a_verdict_the_strict_reader_decides_at_half_its_confidence(tmp_path):
    judge = Judge(Client({"error": "refused"}, {"reply": "right or wrong"}), str(tmp_path / "v.jsonl"))
    first = judge.read("It is Lima.", ["Lima"], "Which?")
    assert first.kind == "right" and first.confidence <= 0.5 and "no verdict" in first.decided_by
    assert judge.read("It is Lima.", ["Lima"], "Which?").kind == "right"
    assert not (tmp_path / "v.jsonl").exists()


def test_an_empty_text_is_not_sent(tmp_path):
    client = Client()
    assert Judge(client, str(tmp_path / "v.jsonl")).read("...", ["x"]).kind == "empty" and client.asked == []


def test_one_kind_is_a_verdict_two_are_none():
    assert verdict_in({"reply": "REFUSAL"}) == "refusal" and verdict_in({"reply": "right, right"}) == "right"
    assert (
        verdict_in({"reply": "right / wrong"}) is None
        and verdict_in({"reply": ""}) is None
        and verdict_in({"error": "x"}) is None
    )
