"""DreamCatcher against loops over generations, cuts tried one by one, tables worked out by hand,
and Figure 3.
"""

import itertools
import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import cosine_by_hand, unit_vectors

import dreamcatcher
import embed
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
NORMAL = [
    ["It is Paris.", "Paris, or Lutetia", "London, I believe."],
    ["William Shakespeare wrote it.", "It was Shakespeare", "Marlowe the bard"],
    ["首都是北京。", "南京", "上海"],
]


# --------------------------------------------------------------------------- instructions and texts


def test_the_uncertain_wording_depends_on_seed_and_question_and_its_language():
    chosen = {
        (seed, n, lang): dreamcatcher.uncertain_instruction({"id": f"q{n}", "lang": lang}, seed)
        for seed in (0, 1)
        for n in range(60)
        for lang in ("en", "zh")
    }
    for (seed, n, lang), wording in chosen.items():
        assert wording in dreamcatcher.UNCERTAIN_INSTRUCTIONS[lang]
        assert wording == dreamcatcher.uncertain_instruction({"id": f"q{n}", "lang": lang, "question": "other"}, seed)
    for lang in ("en", "zh"):
        assert {w for (_, _, its), w in chosen.items() if its == lang} == set(dreamcatcher.UNCERTAIN_INSTRUCTIONS[lang])
        assert [chosen[0, n, lang] for n in range(60)] != [chosen[1, n, lang] for n in range(60)]


# ------------------------------------------------------------------------------------------- scores


@pytest.mark.parametrize("k", [2, 3, 5])
def test_self_consistency_is_the_mean_cosine_with_the_questions_other_generations(k):
    vectors = unit_vectors(4, k, 7)
    got = dreamcatcher.self_consistency(vectors)
    assert got.shape == (4, k)
    for q, i in itertools.product(range(4), range(k)):
        others = [cosine_by_hand(vectors[q, i], vectors[q, j]) for j in range(k) if j != i]
        assert got[q, i].item() == pytest.approx(sum(others) / (k - 1), abs=1e-5)


def test_one_generation_contradicts_nothing():
    assert dreamcatcher.self_consistency(unit_vectors(3, 1, 7)).tolist() == [[1.0]] * 3


def test_equal_generations_are_fully_consistent():
    assert dreamcatcher.self_consistency(unit_vectors(2, 1, 7).repeat(1, 4, 1)).flatten().tolist() == pytest.approx(
        [1.0] * 8, abs=1e-6
    )


def test_overlap_is_counted_for_every_generation_against_its_own_questions_best_alias():
    got = dreamcatcher.overlap_with_answer(QUESTIONS, NORMAL)
    expected = [[1, 1, 0], [1, 1, 1 / 3], [1, 1 / 2, 0]]  # "Marlowe the bard": one of "bard of avon"
    assert got.tolist() == [pytest.approx(row) for row in expected]


def test_similarity_is_the_cosine_with_the_best_alias():
    vectors, aliases = unit_vectors(3, 4, 7), [unit_vectors(n, 7, seed=n) for n in (2, 3, 1)]
    got = dreamcatcher.similarity_to_answer(vectors, aliases)
    assert got.shape == (3, 4)
    for q, i in itertools.product(range(3), range(4)):
        assert got[q, i].item() == pytest.approx(max(cosine_by_hand(vectors[q, i], a) for a in aliases[q]), abs=1e-5)


def test_normalising_is_min_max_over_the_whole_data_set():
    score = torch.tensor([[1.0, 3.0], [2.0, 5.0]])
    assert dreamcatcher.normalise(score).tolist() == [[0.0, 0.5], [0.25, 1.0]]
    assert dreamcatcher.normalise(torch.tensor([-1.0, 0.0, 3.0])).tolist() == [0.0, 0.25, 1.0]
    assert dreamcatcher.normalise(torch.full((2, 2), 0.7)).tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_factuality_is_the_sum_of_the_normalised_scores_and_s_p_moves_whole_questions():
    g = torch.Generator().manual_seed(1)
    scores = {
        "s_s2g": torch.rand(5, 3, generator=g),
        "s_p": torch.rand(5, generator=g),
        "s_o2a": torch.rand(5, 3, generator=g) - 0.5,
        "s_s2a": 3 * torch.rand(5, 3, generator=g),
    }

    def scaled(table):
        flat = [x for row in table for x in row]
        return [[(x - min(flat)) / (max(flat) - min(flat)) for x in row] for row in table]

    tables = {name: scaled([[x] * 3 for x in s.tolist()] if s.dim() == 1 else s.tolist()) for name, s in scores.items()}
    for names in (("s_s2g", "s_p", "s_o2a", "s_s2a"), ("s_s2g", "s_o2a"), ("s_p",), ("s_s2a", "s_p")):
        got = dreamcatcher.factuality(scores, names)
        expected = [[sum(tables[name][q][i] for name in names) for i in range(3)] for q in range(5)]
        assert got.shape == (5, 3)
        assert got.tolist() == [pytest.approx(row, abs=1e-5) for row in expected]
    assert torch.equal(
        dreamcatcher.factuality(scores, ("s_p", "s_o2a"), "rank"),
        dreamcatcher.normalise(scores["s_p"], "rank")[:, None] + dreamcatcher.normalise(scores["s_o2a"], "rank"),
    )


@pytest.fixture
def fake_embed(monkeypatch):
    """Replaces embed by a vector that only depends on the text, so that mixed up texts show;
    returns it.
    """

    def vector(text):
        return unit_vectors(6, seed=sum(map(ord, text)))

    monkeypatch.setattr(dreamcatcher, "embed", lambda embedder, texts: torch.stack([vector(t) for t in texts]))
    return vector


def test_generations_are_scored_with_their_own_questions_answers(fake_embed):
    p_known = np.array([0.9, 0.2, 0.5])
    scores = dreamcatcher.score_generations(
        None, QUESTIONS, [{"normal": texts, "greedy": "x"} for texts in NORMAL], p_known
    )
    assert list(scores) == ["s_s2g", "s_p", "s_o2a", "s_s2a"]
    assert scores["s_p"].tolist() == pytest.approx(p_known)
    for q, question in enumerate(QUESTIONS):
        vectors, answers = [fake_embed(t) for t in NORMAL[q]], [fake_embed(a) for a in question["answers"]]
        for i in range(3):
            assert scores["s_s2a"][q, i].item() == pytest.approx(
                max(cosine_by_hand(vectors[i], a) for a in answers), abs=1e-5
            )
            others = [cosine_by_hand(vectors[i], vectors[j]) for j in range(3) if j != i]
            assert scores["s_s2g"][q, i].item() == pytest.approx(sum(others) / 2, abs=1e-5)
    assert scores["s_o2a"][1].tolist() == pytest.approx([1, 1, 1 / 3])


def test_what_is_not_known_is_not_scored(fake_embed):
    generations = [{"normal": texts} for texts in NORMAL]
    assert list(dreamcatcher.score_generations(None, QUESTIONS, generations)) == ["s_s2g", "s_o2a", "s_s2a"]
    unanswered = [{**q, "answers": []} for q in QUESTIONS]
    assert list(dreamcatcher.score_generations(None, unanswered, generations, [0.1, 0.2, 0.3])) == ["s_s2g", "s_p"]


def test_z_scores_have_mean_0_and_deviation_1_and_ranks_count_what_is_below():
    score = torch.tensor([[3.0, 1.0, 1.0], [7.0, 2.0, 9.0]])
    values = score.flatten().tolist()
    mean = sum(values) / 6
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / 6)
    assert dreamcatcher.normalise(score, "z-score").flatten().tolist() == pytest.approx(
        [(v - mean) / deviation for v in values]
    )
    below = [(sum(u < v for u in values) + (sum(u == v for u in values) - 1) / 2) / 5 for v in values]
    assert dreamcatcher.normalise(score, "rank").flatten().tolist() == pytest.approx(below)
    for way in ("min-max", "z-score", "rank"):
        assert dreamcatcher.normalise(torch.full((2, 3), 4.0), way).tolist() == [[0.0] * 3] * 2


def test_generations_are_scored_by_a_real_embedder_too(llama):
    embedder = embed.Embedder(llama.model.base_model, llama.tokenizer, "mean", 96)
    questions = [{"answers": ["paris"]}, {"answers": ["rome", "berlin"]}]
    generations = [{"normal": ["paris", "paris"]}, {"normal": ["berlin", "lima"]}]
    scores = dreamcatcher.score_generations(embedder, questions, generations, [0.5, 0.5])
    assert scores["s_s2a"][0].tolist() == pytest.approx([1, 1], abs=1e-5) and scores["s_s2a"][
        1, 0
    ].item() == pytest.approx(1, abs=1e-5)
    assert scores["s_s2g"][0].tolist() == pytest.approx([1, 1], abs=1e-5) and scores["s_s2g"][1, 0] < 0.999


# ------------------------------------------------------------------------------------------- labels


def within_class_squares(values, cut):
    parts = [v for v in values if v <= cut], [v for v in values if v > cut]
    return sum(sum((v - statistics.fmean(part)) ** 2 for v in part) for part in parts if part)


@pytest.mark.parametrize("seed", range(6))
def test_the_least_variance_threshold_is_the_best_of_all_cuts(seed):
    generator = np.random.default_rng(seed)
    values = np.concatenate([generator.normal(0, 1, 20 + 5 * seed), generator.normal(3, 0.5, 12)]).round(seed % 3 + 1)
    generator.shuffle(values)
    cut = dreamcatcher.least_variance_threshold(values.reshape(2, -1) if len(values) % 2 == 0 else values)
    best = min(within_class_squares(values.tolist(), c) for c in sorted(set(values.tolist()))[:-1])
    assert within_class_squares(values.tolist(), cut) == pytest.approx(best)
    assert min(abs(values - cut)) > 0, "the cut lies between two values"


def test_the_threshold_of_two_heaps_lies_half_way_between_them():
    assert dreamcatcher.least_variance_threshold([0.0, 1.0, 9.0, 10.0, 1.0]) == 5.0
    assert dreamcatcher.least_variance_threshold([7.0, 7.0, 7.0]) == 7.0


FACTUALITY = np.array([[3.0, 3.1, 2.9], [0.1, 0.3, 0.2], [0.4, 2.8, 1.0], [1.1, 1.2, 1.3]])
HITS = np.array([[True, True, True], [False, False, False], [True, False, True], [False, True, False]])


def test_the_papers_rule_cuts_at_the_median():
    correct, states = dreamcatcher.label(FACTUALITY, HITS, AnnotateConfig(rule="median"))
    cut = statistics.median(FACTUALITY.ravel().tolist())  # 1.15
    assert correct.tolist() == [[f > cut for f in row] for row in FACTUALITY.tolist()]
    assert states == ["known", "unknown", "mixed", "mixed"]
    correct, _ = dreamcatcher.label(np.array([[1.0, 2.0, 3.0]]), None, AnnotateConfig(rule="median"))
    assert correct.tolist() == [[False, False, True]], "the median itself is not above the median"


def test_the_threshold_rule_cuts_between_the_two_heaps():
    correct, states = dreamcatcher.label(FACTUALITY, HITS, AnnotateConfig(rule="threshold"))
    assert correct.tolist() == [[f > 2 for f in row] for row in FACTUALITY.tolist()]
    assert states == ["known", "unknown", "mixed", "unknown"]


def test_the_releases_rule_looks_at_the_best_and_the_worst_generation():
    table = np.arange(10.0)[[[9, 8], [0, 1], [2, 7], [4, 5], [3, 6]]]
    config = AnnotateConfig(rule="percentile", upper=70.0, lower=30.0)  # of 0 .. 9: 6.3 and 2.7
    correct, states = dreamcatcher.label(table, None, config)
    assert states == ["known", "unknown", "mixed", None, None]
    assert correct.tolist() == [[True, True], [False, False], [False, True], [False, True], [False, True]]  # above 4.5
    _, states = dreamcatcher.label(
        table, None, AnnotateConfig(rule="percentile", upper=50.0, lower=40.0)
    )  # 4.5 and 3.6
    assert states == ["known", "unknown", "mixed", "known", "mixed"]


def test_the_gold_rule_goes_by_the_share_of_hits():
    hits = np.array([[i < n for i in range(5)] for n in range(6)])
    correct, states = dreamcatcher.label(
        np.zeros((6, 5)), hits, AnnotateConfig(rule="gold", known_share=0.6, unknown_share=0.2)
    )
    assert np.array_equal(correct, hits)
    assert states == ["unknown", "unknown", "mixed", "known", "known", "known"]
    _, states = dreamcatcher.label(
        np.zeros((6, 5)), hits, AnnotateConfig(rule="gold", known_share=1.0, unknown_share=0.0)
    )
    assert states == ["unknown", "mixed", "mixed", "mixed", "mixed", "known"]


def test_s_p_evens_out_the_share_of_hits_by_its_weight():
    hits = np.array([[i < n for i in range(5)] for n in (0, 1, 2, 5, 5)])
    config = AnnotateConfig(rule="gold", known_share=0.5, unknown_share=0.35, s_p_weight=0.25)
    s_p = [0.9, 0.9, 0.9, 0.1, 0.0]  # weighted: 0.225, 0.375, 0.525, 0.775, 0.75
    correct, states = dreamcatcher.label(np.zeros((5, 5)), hits, config, s_p)
    assert states == ["unknown", "mixed", "known", "known", "known"] and np.array_equal(correct, hits), (
        "what is correct stays a hit"
    )
    _, states = dreamcatcher.label(np.zeros((5, 5)), hits, replace(config, s_p_weight=1.0), s_p)
    assert states == ["known", "known", "known", "unknown", "unknown"]
    assert dreamcatcher.label(np.zeros((5, 5)), hits, replace(config, s_p_weight=0.0))[1] == [
        "unknown",
        "unknown",
        "mixed",
        "known",
        "known",
    ]


def test_one_generation_a_question_is_never_mixed():
    values = np.array([[0.1], [0.9], [0.2], [0.8]])
    for rule in ("median", "threshold", "gold"):
        _, states = dreamcatcher.label(values, values > 0.5, AnnotateConfig(rule=rule))
        assert states == ["unknown", "known", "unknown", "known"], rule


def test_the_histogram_counts_states_and_warns_of_odd_ones():
    states = ["known"] * 6 + ["unknown"] * 3 + ["mixed"] * 3 + [None] * 5
    assert dreamcatcher.histogram(states) == ({"known": 6, "unknown": 3, "mixed": 3}, [])
    counts, warnings = dreamcatcher.histogram(["known"] * 2 + ["unknown"] * 4 + ["mixed"] * 4)
    assert counts["mixed"] == 4 and len(warnings) == 1 and "40%" in warnings[0]
    assert any("unknown" in w for w in dreamcatcher.histogram(["known"] * 4)[1])
    assert any("no question is known" == w for w in dreamcatcher.histogram(["unknown"] * 4)[1])
    assert dreamcatcher.histogram([])[0] == {"known": 0, "unknown": 0, "mixed": 0}


def test_agreement_is_table_1s_with_cohens_kappa():
    # 20 both correct, 5 only ours, 10 only gold's, 15 neither: the textbook table, kappa 0.4
    correct = np.array([True] * 20 + [True] * 5 + [False] * 10 + [False] * 15).reshape(10, 5)
    hits = np.array([True] * 20 + [False] * 5 + [True] * 10 + [False] * 15).reshape(10, 5)
    found = dreamcatcher.agreement(correct, hits)
    assert found == pytest.approx({"accuracy": 0.7, "precision": 20 / 25, "recall": 20 / 30, "kappa": 0.4})


@pytest.mark.parametrize(
    "correct, hits, expected",
    [
        ([True, False], [False, True], {"accuracy": 0, "precision": 0, "recall": 0, "kappa": -1}),
        ([True, False, True], [True, False, True], {"accuracy": 1, "precision": 1, "recall": 1, "kappa": 1}),
        ([True, True], [True, True], {"accuracy": 1, "precision": 1, "recall": 1, "kappa": 1}),
        ([False, False], [True, True], {"accuracy": 0, "precision": 0, "recall": 0, "kappa": 0}),
    ],
)
def test_agreement_at_the_extremes(correct, hits, expected):
    assert dreamcatcher.agreement(np.array(correct), np.array(hits)) == pytest.approx(expected)
