"""The learned reader: what its features are, and that it sees paraphrase where the strict one does
not.
"""

import json

import numpy as np
import pytest

from reading import fit, learned


def test_a_row_has_a_number_for_each_name():
    row = learned.features("It was a cat.", ["dog"], "What was it?")
    assert len(row) == len(learned.NAMES) and all(isinstance(x, float) for x in row)
    assert len(set(learned.NAMES)) == len(learned.NAMES)


def test_some_features_by_hand():
    row = dict(
        zip(
            learned.NAMES,
            learned.features("They went to the old market hall.", ["the market square"], "Where did they go?"),
        )
    )
    assert (
        row["overlap"] == 1 / 2
        and row["head word"] == 0
        and row["where"] == 1
        and row["overlap where"] == 1 / 2
        and row["alias"] == 0
    )
    assert dict(zip(learned.NAMES, learned.features("market square", ["the market square"], "Where?")))["alias"] == 1


@pytest.mark.parametrize(
    "question, kind",
    [
        ("Whose hat is it?", "who"),
        ("in what year was it", "when"),
        ("how many are there", "how many"),
        ("name a river", ""),
    ],
)
def test_the_type_of_a_question(question, kind):
    assert learned.type_of(question) == kind


def test_a_paraphrase_is_right_and_a_refusal_stays_one():
    assert (
        learned.read(
            "the slowing down of the vehicle", ["slowing vehicles down"], "what is the purpose of an engine brake"
        )
        == "right"
    )
    assert learned.read("The capital is Oslo.", ["Lisbon"], "what is the capital of portugal") == "wrong"
    assert learned.read("I don't know.", ["Lisbon"], "what is the capital of portugal") == "refusal"
    assert learned.read("", ["Lisbon"]) == "empty"


def test_confidence_is_low_near_the_threshold_and_high_away_from_it():
    threshold = learned.fitted()["features"]["threshold"]
    near, far = (
        learned.learned_reading("Oslo", ["Lisbon"], "where is it", p, threshold) for p in (threshold - 0.01, 0.01)
    )
    assert near.kind == far.kind == "wrong" and near.confidence < 0.55 < 0.9 < far.confidence


def test_many_texts_are_read_as_one_at_a_time():
    texts, answers = ["Oslo", "It is in Lisbon.", ""], [["Lisbon"]] * 3
    many = learned.read_many(texts, answers, ["where is it"] * 3)
    assert (
        [r.kind for r in many]
        == [learned.read(t, a, "where is it") for t, a in zip(texts, answers)]
        == ["wrong", "right", "empty"]
    )


def test_cosines_are_the_best_over_the_aliases():
    table = {"Oslo": [1, 0], "Rome": [0, 1], "where? Oslo": [1, 0], "where? Rome": [0, 1]}
    rows = learned.cosines(
        ["Oslo"], [["Rome", "Oslo"]], ["where"], lambda texts: np.array([table[t] for t in texts], float)
    )
    assert rows == [[1.0, 1.0, 0.0]]


def test_held_out_rows_are_judged_by_fits_that_have_not_seen_them():
    draw = np.random.default_rng(0)
    x, fold = draw.normal(size=(200, 3)), np.arange(200) % 4
    y = (x[:, 0] > 0).astype(float)
    y[fold == 3] = 1 - y[fold == 3]
    logits, weight, _ = fit.cross_validated(x, y, fold, 1.0, standardise=True)
    assert weight[0] > abs(weight[1]) and ((logits > 0) == y)[fold == 3].mean() < 0.2


def test_rows_of_one_question_share_a_fold():
    questions = [f"q{i % 50}" for i in range(200)]
    folds = fit.folds_of(questions)
    assert (
        all(len({f for f, q in zip(folds, questions) if q == one}) == 1 for one in set(questions))
        and len(set(folds)) == 10
    )


def test_the_script_writes_what_the_reader_reads(tmp_path, monkeypatch, capsys):
    draw = np.random.default_rng(0)
    towns = ["Oslo", "Rome", "Lima", "Quito", "Accra", "Cairo"]
    lines = []
    for i in range(120):
        right, said = draw.choice(towns, 2)
        lines.append(
            {
                "question": f"where is house {i}",
                "answers": [right],
                "text": f"It is in {said}.",
                "acceptable": bool(right == said),
                "source": "made",
            }
        )
    judged = tmp_path / "judged.jsonl"
    judged.write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setattr(fit, "HERE", str(tmp_path))
    fit.main([str(judged)])
    made = json.loads((tmp_path / "learned.json").read_text())
    assert set(made["features"]["weight"]) == set(learned.NAMES) and (tmp_path / "refusals.json").exists()
    assert "made" in capsys.readouterr().out


def test_a_million_readings_need_no_more_memory_than_ten_thousand():
    """The caches are bounded: none grows without end."""
    from reading import equality, names, words

    for module in (equality, names, words, learned):
        for thing in vars(module).values():
            if hasattr(thing, "cache_info"):
                assert thing.cache_info().maxsize is not None
