"""Rankings against Figure 3, written out by hand, and what must be dropped."""

import math

import numpy as np
import pytest
import torch
from tiny import cosine_by_hand, unit_vectors

import dreamcatcher
from dreamcatcher import AnnotateConfig

QUESTIONS = [
    {"id": "q0", "question": "What is the capital of France?", "answers": ["Paris", "Lutetia"], "lang": "en"},
    {
        "id": "q1",
        "question": "Who wrote Hamlet?",
        "answers": ["William Shakespeare", "Shakespeare", "The Bard of Avon"],
        "lang": "en",
    },
    {"id": "q2", "question": "中国的首都是哪里？", "answers": ["北京"], "lang": "zh"},
]


# -------------------------------------------------------------------------------------------- texts


@pytest.mark.parametrize(
    "text, whole",
    [
        ("I do not know. The book was wri", "I do not know."),
        ("Yes! No? May", "Yes! No?"),
        ("One. Two! Thr", "One. Two!"),
        ("no sentence at all", "no sentence at all"),
        ("Whole.", "Whole."),
        ("", ""),
        ("我不知道。这本书是", "我不知道。"),
        ("是吗？不是！也", "是吗？不是！"),
    ],
)
def test_a_text_that_was_cut_off_ends_with_its_last_whole_sentence(text, whole):
    assert dreamcatcher.finish(text, False) == whole
    assert dreamcatcher.finish(text, True) == text


def test_a_full_stop_inside_a_number_ends_no_sentence():
    assert dreamcatcher.finish("It is very long. It flows for 3.5 thousand kilo", False) == "It is very long."


# ----------------------------------------------------------------------------------------- rankings

QUESTION = QUESTIONS[0]
TEXTS = [
    "It is Rome.",
    "It is Paris.",
    "I am not sure, but I think it is Paris.",
    "Paris it is.",
    "It is Oslo.",
    "I do not know.",
]
VALUES = np.array([0.3, 0.5, 2.0, 0.9, 0.1, 0.0])
UNCERTAIN = ["I do not know that.", "I'm not sure.", "It is Paris."]


def rank(
    state,
    normal=TEXTS,
    factuality=VALUES,
    uncertain=UNCERTAIN,
    typicality=(0.2, 0.7, -np.inf),
    common=None,
    hallucination="lowest",
):
    return dreamcatcher.rank(
        QUESTION, state, normal, factuality, uncertain, np.array(typicality), common, hallucination
    )


@pytest.mark.parametrize(
    "state, kinds, ranking",
    [  # Figure 3
        ("known", ["factual", "uncertain"], ["Paris it is.", "I'm not sure."]),
        ("mixed", ["factual", "uncertain", "hallucination"], ["Paris it is.", "I'm not sure.", "It is Oslo."]),
        ("unknown", ["uncertain", "hallucination"], ["I'm not sure.", "It is Oslo."]),
    ],
)
def test_a_states_ranking_is_figure_3s(state, kinds, ranking):
    assert rank(state) == {
        "id": "q0",
        "prompt": [{"role": "user", "content": "What is the capital of France?"}],
        "ranking": ranking,
        "kinds": kinds,
        "state": state,
    }


def test_the_factual_response_is_the_best_right_one_and_never_a_hedged_one():
    assert rank("known", factuality=-VALUES)["ranking"][0] == "It is Paris."
    assert (
        rank("known", normal=["I'm not sure, but I think it is Paris.", "Rome"], factuality=[1, 0])
        == "known, without a factual response"
    )
    assert (
        rank("mixed", normal=["It is Rome.", "I do not know."], factuality=[1, 0])
        == "mixed, without a factual response"
    )


def test_the_hallucination_is_the_worst_wrong_one_and_neither_refusal_nor_empty():
    assert rank("unknown", factuality=-VALUES)["ranking"][1] == "It is Rome."
    normal = ["It is Rome.", "I do not know.", "", " ", "It is Paris."]
    assert rank("unknown", normal=normal, factuality=[4, 3, 2, 1, 0])["ranking"][1] == "It is Rome."
    assert (
        rank("unknown", normal=["I do not know.", "", "It is Paris."], factuality=[2, 1, 0])
        == "unknown, without a hallucination response"
    )


def test_the_hallucination_may_be_the_wrong_answer_that_is_most_like_what_the_model_says():
    normal = ["It is Paris.", "It is Rome.", "I do not know.", "It is Oslo.", ""]
    for state in ("mixed", "unknown"):
        chosen = {
            which: rank(state, normal=normal, factuality=[5, 3, 4, 2, 1], hallucination=which)["ranking"][-1]
            for which in ("lowest", "highest")
        }
        assert chosen == {"lowest": "It is Oslo.", "highest": "It is Rome."}


def test_a_question_without_a_refusal_of_its_own_borrows_the_common_one():
    none = [-np.inf] * 3
    for state in dreamcatcher.STATES:
        borrowed = rank(state, typicality=none, common="I cannot say.")
        assert borrowed["ranking"][borrowed["kinds"].index("uncertain")] == "I cannot say."
        assert (
            rank(state, typicality=none)
            == rank(state, uncertain=[], typicality=[])
            == f"{state}, without a uncertain response"
        )
    assert rank("known", uncertain=[], typicality=[], common="I cannot say.")["ranking"][1] == "I cannot say."
    assert rank("known", common="I cannot say.")["ranking"][1] == "I'm not sure.", "its own comes first"


def test_the_typical_refusal_is_the_nearest_to_the_mean_of_the_refusals():
    vectors = unit_vectors(8, 5)
    refusal = [True, False, True, True, False, True, False, True]
    got = dreamcatcher.typical_refusals(["t"] * 8, vectors, refusal)
    kept = [v for v, yes in zip(vectors, refusal) if yes]
    centre = torch.tensor([sum(v[d].item() for v in kept) / len(kept) for d in range(5)])
    for value, vector, yes in zip(got.tolist(), vectors, refusal):
        assert value == (pytest.approx(cosine_by_hand(vector, centre), abs=1e-5) if yes else -math.inf)
    assert dreamcatcher.typical_refusals(["t"] * 2, vectors[:2], [False, False]).tolist() == [-math.inf] * 2
    assert dreamcatcher.typical_refusals([], vectors[:0], []).shape == (0,)


def corpus():
    """Six questions with states, generations, factuality, uncertain texts and their vectors, all
    chosen by hand.

    Vectors: the first axis is the direction of the English refusals; of these "I do not know." is
    the most typical.
    """
    questions = [
        {"id": "a", "question": "A?", "answers": ["Paris"], "lang": "en"},
        {"id": "b", "question": "B?", "answers": ["Rome"], "lang": "en"},
        {"id": "c", "question": "C?", "answers": ["Oslo"], "lang": "en"},
        {"id": "d", "question": "D?", "answers": ["北京"], "lang": "zh"},
        {"id": "e", "question": "E?", "answers": ["Lima"], "lang": "en"},
        {"id": "f", "question": "F?", "answers": ["Bonn"], "lang": "en"},
    ]
    states = ["known", "unknown", "mixed", "unknown", None, "known"]
    normal = [
        ["Paris.", "It is Paris."],
        ["Bern.", "Bonn."],
        ["Oslo.", "Kiev."],
        ["南京。", "上海。"],
        ["Lima.", "Lima."],
        ["Berlin.", "Cologne."],
    ]
    factuality = np.array([[0.2, 0.8], [0.4, 0.1], [0.9, 0.3], [0.5, 0.6], [0.5, 0.5], [0.1, 0.2]])
    uncertain = [
        ["I do not know.", "I am not sure."],
        ["It is Rome.", "I have no idea", "I am not sure, but I think it is Rome."],
        [],
        ["我不知道。", "我不确定。"],
        ["I cannot answer that."],
        ["I do not know."],
    ]
    directions = [
        [10, 1, 0],
        [10, 8, 0],
        [0, 0, 1],
        [10, 0, 0],
        [10, 1, 0],
        [6, 0, 8],
        [4, 0, 9],
        [10, 0, -4],
        [10, 1, 0],
    ]
    vectors = torch.tensor(directions, dtype=torch.float32)
    return questions, states, normal, factuality, uncertain, vectors / vectors.norm(dim=1, keepdim=True)


def test_records_take_the_most_typical_own_refusal_and_borrow_in_their_own_language():
    records, dropped = dreamcatcher.preferences(*corpus(), AnnotateConfig())
    assert [(r["id"], r["ranking"]) for r in records] == [
        ("a", ["It is Paris.", "I do not know."]),  # more typical than "I am not sure."
        ("b", ["I do not know.", "Bonn."]),  # of its own one is an answer, one has no end, one is a guess: borrowed
        ("c", ["Oslo.", "I do not know.", "Kiev."]),  # none of its own: borrowed
        ("d", ["我不知道。", "南京。"]),
    ]
    assert [r["kinds"] for r in records] == [
        list(dreamcatcher.RANKING[s]) for s in ("known", "unknown", "mixed", "unknown")
    ]
    assert dropped == {"neither right nor wrong by the rule": 1, "known, without a factual response": 1}


def test_without_borrowing_questions_without_refusal_are_dropped_and_counted():
    records, dropped = dreamcatcher.preferences(*corpus(), AnnotateConfig(borrow=False))
    assert [r["id"] for r in records] == ["a", "d"]
    assert dropped == {
        "neither right nor wrong by the rule": 1,
        "known, without a factual response": 1,
        "unknown, without a uncertain response": 1,
        "mixed, without a uncertain response": 1,
    }


def test_nothing_is_borrowed_from_another_language():
    questions, states, normal, factuality, uncertain, vectors = corpus()
    uncertain[3] = ["北京。", "我不知道"]  # an answer, and a refusal without an end: no refusal in Chinese is left
    records, dropped = dreamcatcher.preferences(
        questions, states, normal, factuality, uncertain, vectors, AnnotateConfig()
    )
    assert [(r["id"], r["ranking"][-1]) for r in records] == [("a", "I do not know."), ("b", "Bonn."), ("c", "Kiev.")]
    assert dropped["unknown, without a uncertain response"] == 1


def test_every_question_is_in_a_record_or_counted_as_dropped():
    for borrow in (True, False):
        records, dropped = dreamcatcher.preferences(*corpus(), AnnotateConfig(borrow=borrow))
        assert len(records) + sum(dropped.values()) == 6


def test_without_any_uncertain_text_nothing_can_be_ranked():
    questions, states, normal, factuality, _, _ = corpus()
    records, dropped = dreamcatcher.preferences(
        questions, states, normal, factuality, [[]] * 6, torch.zeros(0, 3), AnnotateConfig()
    )
    assert records == [] and sum(dropped.values()) == 6


# ------------------------------------------------------------------------- pairs for other trainers


def test_a_ranking_of_three_makes_its_three_pairs_best_first():
    record = {
        "id": "q",
        "prompt": [{"role": "user", "content": "Who?"}],
        "ranking": ["a", "b", "c"],
        "kinds": ["factual", "uncertain", "hallucination"],
        "state": "mixed",
    }
    made = dreamcatcher.pairs(record)
    assert [(p["chosen"], p["rejected"]) for p in made] == [
        ([{"role": "assistant", "content": x}], [{"role": "assistant", "content": y}]) for x, y in ("ab", "ac", "bc")
    ]
    assert all(p["prompt"] == record["prompt"] for p in made)
    assert [p["kinds"] for p in made] == [
        ["factual", "uncertain"],
        ["factual", "hallucination"],
        ["uncertain", "hallucination"],
    ]


# -------------------------------------------------------------------------------------- the control


def test_shuffled_states_keep_their_numbers_and_turn_round_what_changes():
    records = [
        {"id": str(i), "ranking": ["a", "b"], "kinds": list(dreamcatcher.RANKING[state]), "state": state}
        for i, state in enumerate(["known"] * 30 + ["unknown"] * 20)
    ]
    mixed = {"id": "m", "ranking": ["a", "b", "c"], "kinds": list(dreamcatcher.RANKING["mixed"]), "state": "mixed"}
    shuffled = dreamcatcher.shuffle_states([*records[:10], mixed, *records[10:]], 0)
    assert shuffled[10] == mixed and [r["state"] for r in shuffled].count("known") == 30
    del shuffled[10]
    changed = 0
    for before, after in zip(records, shuffled):
        turned = before["state"] != after["state"]
        changed += turned
        assert after["id"] == before["id"] and after["kinds"] == list(dreamcatcher.RANKING[after["state"]])
        assert after["ranking"] == (["b", "a"] if turned else ["a", "b"])
    assert 15 < changed < 35
    assert dreamcatcher.shuffle_states(records, 0) != dreamcatcher.shuffle_states(records, 1)
