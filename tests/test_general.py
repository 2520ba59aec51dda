"""General preference pairs: every form that Hugging Face data sets have, and each mistake named
with its line.
"""

import json

import pytest

from data import general
from lm.errors import UserError

ASK, YES, NO = (
    {"role": "user", "content": "Why?"},
    {"role": "assistant", "content": "Because."},
    {"role": "assistant", "content": "No."},
)
WANTED = {"prompt": [ASK], "chosen": "Because.", "rejected": "No."}


def written(tmp_path, *records):
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(f"{r if isinstance(r, str) else json.dumps(r)}\n" for r in records))
    return str(path)


@pytest.mark.parametrize(
    "record",
    [
        {"prompt": "Why?", "chosen": "Because.", "rejected": "No."},
        {"prompt": [ASK], "chosen": [YES], "rejected": [NO]},
        {"prompt": "Why?", "chosen": [ASK, YES], "rejected": [ASK, NO], "score": 3},
        {"chosen": [ASK, YES], "rejected": [ASK, NO]},
    ],
)
def test_texts_and_conversations_mean_the_same(record, tmp_path):
    assert general.read(written(tmp_path, record)) == [WANTED]


def test_earlier_turns_stay_in_the_prompt(tmp_path):
    turns = [{"role": "system", "content": "Be brief."}, ASK, YES, {"role": "user", "content": "Sure?"}]
    record = {"prompt": turns, "chosen": "Yes.", "rejected": "No."}
    assert general.read(written(tmp_path, "", record))[0]["prompt"] == turns


@pytest.mark.parametrize(
    "record, words",
    [
        ("{", "line 2: not JSON"),
        ({"prompt": "Why?", "chosen": "a"}, 'line 2: no field "rejected"'),
        ({"chosen": "a", "rejected": "b"}, 'line 2: no field "prompt"'),
        ({"prompt": 3, "chosen": "a", "rejected": "b"}, 'line 2: "prompt"'),
        ({"prompt": "Why?", "chosen": " ", "rejected": "b"}, 'line 2: "chosen" is empty'),
        ({"prompt": "Why?", "chosen": "a", "rejected": "a"}, "the same"),
        ({"prompt": "Why?", "chosen": [ASK], "rejected": "b"}, 'line 2: the last message of "chosen"'),
        ({"prompt": "", "chosen": "a", "rejected": "b"}, "empty"),
        ({"prompt": "Why?", "chosen": [{"role": "assistant"}], "rejected": "b"}, 'line 2: "chosen"'),
        ('{"prompt": "\\ud800", "chosen": "a", "rejected": "b"}', "surrogate"),
    ],
)
def test_a_mistake_is_named_with_its_line(record, words, tmp_path):
    with pytest.raises(UserError) as caught:
        general.read(written(tmp_path, {"prompt": "Why?", "chosen": "Because.", "rejected": "No."}, record))
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_without_pairs_is_refused(tmp_path):
    with pytest.raises(UserError, match="holds no preference pairs"):
        general.read(written(tmp_path, ""))


def test_a_data_set_of_the_hub_is_read_by_name_and_split(monkeypatch):
    asked = []
    monkeypatch.setattr(
        "datasets.load_dataset",
        lambda name, split: (
            asked.append((name, split)) or [{"prompt": "Why?", "chosen": "Because.", "rejected": "No."}]
        ),
    )
    assert general.read("hf:some/pairs") == general.read("hf:some/pairs:test") == [WANTED]
    assert asked == [("some/pairs", "train"), ("some/pairs", "test")]


def test_a_data_set_that_cannot_be_had_is_a_users_mistake(monkeypatch):
    def fail(name, split):
        raise FileNotFoundError("no such\ndata set")

    monkeypatch.setattr("datasets.load_dataset", fail)
    with pytest.raises(UserError, match="hf:nowhere: cannot be loaded .no such"):
        general.read("hf:nowhere")
