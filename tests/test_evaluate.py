"""The evaluate stage in its parts: greedy answers, further sets of questions, the refusal that
rewards are compared with.

The whole stage, on a micro lab, is in test_rlkf.py.
"""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch
from tiny import one_thread  # noqa: F401

from data.files import write_jsonl
from experiment import answering, evaluate, inputs, runs, settings
from lm.errors import UserError
from lm.sampling import Sampling

QUESTIONS = [
    {"id": str(n), "question": text, "lang": "en"}
    for n, text in enumerate(("who is paris", "what is the capital of rome", "red", "where is oslo"))
]


def by_hand(lm, prompt, n):
    """Ids of the n most probable tokens behind `prompt`, one at a time, without cache or batch; and
    their log-probabilities.
    """
    ids, log_probs = list(prompt), []
    for _ in range(n):
        with torch.no_grad():
            token = lm.model(input_ids=torch.tensor([ids])).logits[0, -1].log_softmax(-1)
        ids.append(int(token.argmax()))
        log_probs.append(float(token.max()))
        if ids[-1] == lm.end_id:
            break
    return ids[len(prompt) :], log_probs


def test_answers_are_greedy_whatever_the_sampling_says():
    lm, seen = tiny.lm("gpt2", 1), []
    sampling = Sampling(max_new_tokens=6, temperature=1.5)
    found = answering.greedy_texts(lm, QUESTIONS, sampling, seen.append)
    assert found == answering.greedy_texts(lm, QUESTIONS, replace(sampling, temperature=0.3)) and sum(seen) == 4
    for question, text in zip(QUESTIONS, found):
        ids, _ = by_hand(lm, tiny.ids(f"<user> {question['question']} <assistant>"), 6)
        assert text == lm.tokenizer.decode(ids, skip_special_tokens=True).strip()


def test_an_instruction_stands_before_the_question_and_the_log_probability_is_the_tokens_mean():
    lm = tiny.lm("llama", 2)
    sampling, asked = Sampling(max_new_tokens=5, rows=1024), {"en": "do you know ."}
    for record, question in zip(answering.greedy_records(lm, QUESTIONS, sampling, 256, asked), QUESTIONS):
        ids, log_probs = by_hand(lm, tiny.ids(f"<user> do you know . {question['question']} <assistant>"), 5)
        assert record == {
            "id": question["id"],
            "greedy": lm.tokenizer.decode(ids, skip_special_tokens=True).strip(),
            "greedy_log_prob": pytest.approx(np.mean(log_probs), abs=1e-4),
        }
    sampled = answering.answer_records(lm, QUESTIONS, sampling, 3, 256, 0)
    assert [len(r["normal"]) for r in sampled] == [3] * 4 and [r["greedy"] for r in sampled] == answering.greedy_texts(
        lm, QUESTIONS, sampling
    )


# ------------------------------------------------------------------------------------- further sets


def write(path, *texts):
    path.write_text("".join(json.dumps({"question": text, "answers": ["red"]}) + "\n" for text in texts))
    return str(path)


def built(*paths):
    return settings.build("lab", {"eval_questions": tuple(map(str, paths))})


def test_a_set_is_called_by_its_file(tmp_path):
    (tmp_path / "b, c.csv").write_text("question,answers\nWho?,I|me\n")
    found = evaluate.load_sets(built(write(tmp_path / "a.x.jsonl", "One?", "Two?"), tmp_path / "b, c.csv"))
    assert {name: [q["question"] for q in questions] for name, questions in found.items()} == {
        "a.x": ["One?", "Two?"],
        "b, c": ["Who?"],
    }
    assert found["b, c"][0]["answers"] == ["I", "me"]


@pytest.mark.parametrize(
    "names, words",
    [(["test.jsonl"], "held-out"), (["a.jsonl", "other/a.jsonl"], "another file"), (["no.jsonl"], "No such file")],
)
def test_a_name_that_is_taken_and_a_missing_file_are_the_users_mistakes(names, words, tmp_path):
    (tmp_path / "other").mkdir()
    for name in names:
        if name != "no.jsonl":
            write(tmp_path / name, "One?")
    with pytest.raises(UserError, match=words) as caught:
        evaluate.check(built(*(tmp_path / name for name in names)))
    assert names[-1] in str(caught.value)


def test_questions_that_the_run_was_trained_or_chosen_on_are_left_out_and_counted(tmp_path, capsys):
    run = runs.Run(
        str(tmp_path / "run"), built(write(tmp_path / "more.jsonl", "Where is Rome", "who is it?", "New?", "Held out?"))
    )
    for name, text in (("train", "where is rome ?"), ("valid", "Who is it ?"), ("test", "Held out?")):
        write_jsonl(run.path("data", f"{name}.jsonl"), [{"question": text}])
    assert [q["question"] for q in evaluate.unseen(run)["more"]] == ["New?", "Held out?"]
    assert "more: 2 of 4 questions are left out" in capsys.readouterr().out
    write(tmp_path / "more.jsonl", "Where is Rome?")
    with pytest.raises(UserError, match="all its questions"):
        evaluate.unseen(run)


def test_the_refusal_is_the_most_frequent_one_in_the_questions_language(tmp_path):
    run = runs.Run(str(tmp_path), settings.build("lab", {}))
    for name in inputs.SPLITS:
        write_jsonl(
            run.path("data", f"{name}.jsonl"),
            [{"id": "a", "lang": "en"}, {"id": "b", "lang": "zh"}] if name == "train" else [],
        )
    write_jsonl(
        run.path("annotate", "preferences.jsonl"),
        [
            {"id": identity, "ranking": ranking, "kinds": kinds}
            for identity, ranking, kinds in (
                ("a", ["Oslo", "Not sure."], ["factual", "uncertain"]),
                ("a", ["No idea.", "Rome"], ["uncertain", "hallucination"]),
                ("a", ["x", "No idea.", "y"], ["factual", "uncertain", "hallucination"]),
                ("b", ["不知道。", "罗马"], ["uncertain", "hallucination"]),
            )
        ],
    )
    assert evaluate.usual_refusals(run) == {"en": "No idea.", "zh": "不知道。", "": "No idea."}
    write_jsonl(
        run.path("annotate", "preferences.jsonl"),
        [{"id": "a", "ranking": ["Oslo", "Rome"], "kinds": ["factual", "hallucination"]}],
    )
    assert evaluate.usual_refusals(run) == {}, "a forker's rankings may have no refusals"


def test_a_margin_is_the_reward_of_the_answer_less_that_of_the_refusal_in_its_language(tmp_path, monkeypatch):
    model = SimpleNamespace(lm=tiny.lm())
    asked = evaluate.Asked(
        [
            {"id": "a", "question": "who is paris", "lang": "en"},
            {"id": "b", "question": "red", "lang": "zh"},
            {"id": "c", "question": "blue", "lang": "en"},
        ],
        [{"id": "a", "p_known": 0.5}, {"id": "b", "p_known": 0.25}, {"id": "c", "p_known": 1.0}],
        {
            ("before", "plain"): [{"greedy": text} for text in ("one", "one two three", "red")],
            ("after", "plain"): [{"greedy": text} for text in ("one two", "i do not know .", "red")],
        },
    )
    calls = []

    def scored(given, prompts, responses, p_known):  # a reward by hand: the tokens of the response times P(known)
        calls.append(
            sorted(tiny.ids(f"<user> {q['question']} <assistant>") for q in asked.questions) == sorted(prompts)
        )
        return torch.tensor([len(response) * p for response, p in zip(responses, p_known)])

    monkeypatch.setattr(evaluate.reward, "score_all", scored)
    found = evaluate.margins(
        runs.Run(str(tmp_path), settings.build("lab", {"sampling.rows": "3"})),
        model,
        {"en": "i do not know .", "": "red"},
        "test",
        asked,
    )
    assert found["before"].tolist() == [(2 - 6) * 0.5, (4 - 2) * 0.25, (2 - 6) * 1.0], (
        "with the end token; Chinese has no refusal of its own"
    )
    assert found["after"].tolist() == [(3 - 6) * 0.5, (6 - 2) * 0.25, (2 - 6) * 1.0] and calls == [True] * 3
