"""Gates: each score against an independent loop, threshold and figures against a count by hand."""

import math
from itertools import combinations

import numpy as np
import pytest
import tiny
import torch
from tiny import one_thread  # noqa: F401

from evaluation import gates, honesty, output
from lm.chat import chat_prompt, messages, render, response_ids

QUESTIONS = [
    "who is paris",
    "what is the capital of rome and oslo",
    "red",
    "where is lima",
    "who is the capital",
    "what blue",
]


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_the_first_tokens_entropy_and_ten_highest_are_those_of_each_prompt_alone(family):
    lm = tiny.lm(family)
    prompts = [chat_prompt(lm, question) for question in QUESTIONS]
    entropy, top = output.first_token_log_probs(lm, prompts, 4)
    assert entropy.shape == (6,) and top.shape == (6, output.TOP)
    for i, prompt in enumerate(prompts):
        with torch.no_grad():
            logits = lm.model(torch.tensor([prompt])).logits[0, -1].double().tolist()
        largest = max(logits)
        total = sum(math.exp(z - largest) for z in logits)
        log_p = sorted((z - largest - math.log(total) for z in logits), reverse=True)
        assert entropy[i] == pytest.approx(-sum(p * math.exp(p) for p in log_p), abs=1e-4)
        assert top[i] == pytest.approx(log_p[:10], abs=1e-4)


def test_one_prompt_alone_has_its_first_token_read_too():
    lm = tiny.lm()
    assert output.first_token_log_probs(lm, [chat_prompt(lm, "red")])[1].shape == (1, output.TOP)


def test_the_regression_on_the_ten_highest_is_at_the_minimum_of_its_loss_and_leaves_mixed_questions_out():
    generator = np.random.default_rng(0)
    train, asked = (-np.sort(generator.exponential(2, (n, 10)), 1) for n in (60, 7))
    labels = np.where(generator.random(60) < 0.2, -1, train[:, 0] + generator.normal(0, 0.2, 60) > -0.2)
    found = gates.top_ten(train, labels, asked, l2=2.0)

    x, y = torch.tensor(train[labels >= 0]), torch.tensor(labels[labels >= 0]).double()
    mean, scale = x.mean(0), x.std(0, correction=0)
    w, b = (torch.zeros(shape, dtype=torch.float64, requires_grad=True) for shape in ((10,), ()))
    optimizer = torch.optim.LBFGS([w, b], lr=1, max_iter=500, tolerance_grad=1e-10, line_search_fn="strong_wolfe")

    def loss():
        optimizer.zero_grad()
        z = (x - mean) / scale @ w + b
        value = torch.nn.functional.binary_cross_entropy_with_logits(z, y, reduction="sum") + w.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    expected = ((torch.tensor(asked) - mean) / scale @ w + b).sigmoid().detach().numpy()
    assert found == pytest.approx(expected, abs=2e-3)
    changed = train.copy()
    changed[labels < 0] += 5
    assert gates.top_ten(changed, labels, asked, l2=2.0) == pytest.approx(found, abs=1e-4)


def test_an_answers_log_probability_is_summed_and_averaged():
    total, mean = gates.answer_log_probability([[-1.0, -2.0, -0.5], [-4.0]])
    assert total.tolist() == [-3.5, -4.0] and mean == pytest.approx([-3.5 / 3, -4.0])


def test_self_consistency_is_the_share_of_samples_that_say_what_the_greedy_answer_says():
    same = lambda a, b: a[0] == b[0]
    assert gates.consistency(["ab", "cd"], [["ax", "bx", "a", "c"], ["d", "e", "f", "g"]], same).tolist() == [0.5, 0.0]


def test_self_consistency_by_embedding_is_the_mean_cosine_of_all_pairs():
    vectors = tiny.unit_vectors(3, 4, 8)
    for row, found in zip(vectors, gates.embedding_consistency(vectors)):
        pairs = [tiny.cosine_by_hand(row[i], row[j]) for i, j in combinations(range(4), 2)]
        assert found == pytest.approx(sum(pairs) / 6, abs=1e-6)


def test_samples_of_one_meaning_are_one_cluster_and_semantic_entropy_is_that_of_the_clusters():
    same = lambda a, b: a.lower() == b.lower()
    assert gates.clusters(["Rome", "Oslo", "ROME", "lima", "oslo"], same) == [0, 1, 0, 2, 1]
    found = gates.semantic_entropy([["Rome", "rome", "ROME", "Oslo"], ["a", "a", "a", "a"], ["a", "b", "c", "d"]], same)
    by_hand = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert found == pytest.approx([by_hand, 0.0, math.log(4)])


@pytest.mark.parametrize(
    "a, b, same",
    [
        ("The capital is Rome.", "Rome", False),
        ("Rome.", "rome", True),
        ("rome", "oslo", False),
        ("I do not know.", "Sorry, I am not sure.", True),
        ("I do not know.", "Rome", False),
    ],
)
def test_answers_are_the_same_where_each_says_the_other_or_both_decline(a, b, same):
    assert gates.same_answer(a, b) is same and gates.same_answer(b, a) is same


def test_yes_is_weighed_against_no_alone():
    found = gates.yes_over_no(np.log([0.2, 0.01]), np.log([0.1, 0.03]))
    assert found == pytest.approx([2 / 3, 0.25])


def test_p_yes_is_read_from_the_next_token_of_each_conversation(monkeypatch):
    lm = tiny.lm()
    monkeypatch.setattr(gates, "response_ids", lambda lm, word: response_ids(lm, {"Yes": "one", "No": "two"}[word]))
    conversations = [messages(question) for question in QUESTIONS]
    for conversation, found in zip(conversations, gates.p_yes(lm, conversations, 4)):
        with torch.no_grad():
            logits = lm.model(torch.tensor([render(lm, conversation)])).logits[0, -1].double()
        yes, no = logits[tiny.ids("one")[0]].exp(), logits[tiny.ids("two")[0]].exp()
        assert found == pytest.approx(float(yes / (yes + no)), abs=1e-5)


def test_the_two_questions_about_an_answer_hold_it():
    assert "rome" in gates.p_true_conversation("what", "rome")[0]["content"]
    assert [m["role"] for m in gates.sure_conversation("what", "rome")] == ["user", "assistant", "user"]
    assert gates.sure_conversation("what", "rome")[1]["content"] == "rome"


def test_the_threshold_is_that_of_largest_j_and_refuses_least_among_equals():
    confidence, states = [1, 2, 3, 4, 5, 6], ["unknown", "unknown", "known", "unknown", "mixed", "known"]
    assert gates.choose_threshold(confidence, states) == 2.5  # 2/3 - 0; at 4.5: 1 - 1/2
    assert gates.choose_threshold([1, 2], ["known", "unknown"]) == -math.inf  # refusing harms
    assert gates.choose_threshold([3, 3, 3], ["known", "unknown", "unknown"]) == -math.inf
    # not 2.5, which refuses more
    assert gates.choose_threshold([1, 2, 3], ["unknown", "mixed", "known"]) == 1.5


def test_the_threshold_is_no_worse_than_any_other():
    generator = np.random.default_rng(1)
    confidence = generator.integers(0, 12, 80) / 4
    states = generator.choice(honesty.STATES, 80)

    def j(threshold):
        share = lambda state: np.mean([c < threshold for c, s in zip(confidence, states) if s == state])
        return share("unknown") - share("known")

    assert j(gates.choose_threshold(confidence, states)) == pytest.approx(max(j(t) for t in np.arange(-1, 4, 0.05)))


STATES = ["known", "known", "known", "unknown", "unknown", "unknown", "unknown", "mixed"]
BASE = ["right", "hedged", "right", "wrong", "wrong", "wrong", "refusal", "right"]
CONFIDENCE = [0.9, 0.8, 0.3, 0.6, 0.2, 0.1, 0.7, 0.5]


def test_a_gates_figures_are_those_of_a_count_by_hand():
    row = gates.measure("gate", CONFIDENCE, 0.4, STATES, BASE, 50, 0)
    now = ["right", "hedged", "refusal", "wrong", "refusal", "refusal", "refusal", "right"]
    assert gates.gated(CONFIDENCE, 0.4, BASE) == now
    assert (row["policy"], row["threshold"], row["n"]) == ("gate", 0.4, 8)
    assert row["J"] == pytest.approx(3 / 4 - 1 / 3) and row["known_accuracy"] == pytest.approx(2 / 3)
    assert row["hallucination"] == pytest.approx(1 / 8) and row["accuracy"] == pytest.approx(3 / 8)
    assert row["nths"] == pytest.approx((3 / 8) / (4 / 8) - (1 / 8) / (3 / 8))
    pairs = [(k > u) for k in (0.9, 0.8, 0.3) for u in (0.6, 0.2, 0.1, 0.7)]
    assert row["auroc"] == pytest.approx(sum(pairs) / len(pairs))
    answered = [0, 0, 1, 0, 0, 1, 1]  # wrong, by falling confidence; no refusal
    assert row["aurc"] == pytest.approx(sum(sum(answered[:i]) / i for i in range(1, 8)) / 7)
    for key in ("J", "nths", "known_accuracy", "hallucination", "auroc", "aurc"):
        low, high = row["intervals"][key]
        assert low <= row[key] <= high
    assert row == gates.measure("gate", CONFIDENCE, 0.4, STATES, BASE, 50, 0)


def test_always_answering_leaves_the_model_before_as_it_is():
    zeros = np.zeros(8)
    row = gates.measure("always", zeros, gates.choose_threshold(zeros, STATES), STATES, BASE, 20, 0)
    assert row["nths"] == pytest.approx(0) and row["known_accuracy"] == 1 and row["auroc"] == 0.5
    assert row["J"] == pytest.approx(1 / 4)  # the model before refused one itself


def test_a_risk_coverage_curve_leaves_refusals_out_and_ends_at_all_answers():
    points = gates.curve(CONFIDENCE, BASE)
    assert len(points) == 7 and points[0] == [pytest.approx(1 / 7), 0.0]
    assert points[2] == [pytest.approx(3 / 7), pytest.approx(1 / 3)]
    assert points[-1] == [1.0, pytest.approx(3 / 7)]
    assert gates.curve([0.1, 0.2], ["refusal", "refusal"]) == []
    many = gates.curve(np.arange(400.0), ["right", "wrong"] * 200)
    assert len(many) == gates.CURVE_POINTS and many[-1] == [1.0, 0.5]


def test_a_question_costs_its_passes_and_its_answers_token_by_token():
    cost = {name: gates.cost(gate, 10, 4) for name, gate in gates.GATES.items()}
    expected = {"probe": 1, "entropy": 1, "log_prob": 4, "embedding": 40, "consistency": 44, "p_true": 5, "always": 0}
    assert {name: cost[name] for name in expected} == expected


def test_random_confidence_depends_on_its_seed_alone():
    first, again, other = (gates.random_confidence(5, seed).tolist() for seed in (1, 1, 2))
    assert first == again != other
