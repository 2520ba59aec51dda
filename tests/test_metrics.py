"""Figures of merit against loops over pairs, questions and bins, exact binomial quantiles, and what
they must recover.
"""

import itertools
import math

import numpy as np
import pytest

from evaluation import metrics


def sigmoid(z):
    return 1 / (1 + math.exp(-z))


# ------------------------------------------------------------------------------- AUROC and accuracy


def auroc_by_pairs(scores, labels):
    pairs = [(p, n) for p, yes in zip(scores, labels) if yes for n, other in zip(scores, labels) if not other]
    return sum(1.0 if p > n else 0.5 if p == n else 0.0 for p, n in pairs) / len(pairs)


@pytest.mark.parametrize("levels", [2, 5, 1000])
def test_auroc_counts_pairs_and_ties_half(levels):
    generator = np.random.default_rng(levels)
    scores, labels = generator.integers(0, levels, 80) / levels, generator.random(80) < 0.3
    expected = auroc_by_pairs(scores, labels)
    assert metrics.auroc(scores, labels) == pytest.approx(expected, abs=1e-12)
    assert metrics.auroc(scores.reshape(16, 5), labels.reshape(16, 5)) == pytest.approx(expected, abs=1e-12)
    assert metrics.auroc(-scores, labels) == pytest.approx(1 - expected, abs=1e-12)


def test_auroc_of_perfect_constant_and_one_class_scores():
    assert metrics.auroc([0.1, 0.2, 0.8, 0.9], [0, 0, 1, 1]) == 1.0
    assert metrics.auroc([3.0, 3.0, 3.0], [1, 0, 1]) == 0.5
    assert math.isnan(metrics.auroc([0.1, 0.9], [1, 1])) and math.isnan(metrics.auroc([0.1, 0.9], [0, 0]))


def test_balanced_accuracy_is_the_mean_over_the_classes():
    labels, predicted = [1] * 8 + [0] * 2, [1] * 6 + [0] * 2 + [1, 0]
    assert metrics.balanced_accuracy(predicted, labels) == pytest.approx((6 / 8 + 1 / 2) / 2)
    assert math.isnan(metrics.balanced_accuracy([1, 0], [1, 1])) and math.isnan(
        metrics.balanced_accuracy([1, 0], [0, 0])
    )


def test_measure_predicts_known_above_zero():
    found = metrics.measure([2.0, -1.0, 0.5, -3.0, 1.0], [1, 1, 0, 0, 1])
    assert found == pytest.approx({"accuracy": 3 / 5, "balanced_accuracy": (2 / 3 + 1 / 2) / 2, "auroc": 5 / 6})
    assert metrics.measure([0.0, 0.0], [1, 0])["accuracy"] == 0.5, "0 means unknown"
    assert all(math.isnan(value) for value in metrics.measure([], []).values())


# ----------------------------------------------------------------------------------------- log loss


def test_log_loss_is_the_mean_surprise_at_each_label():
    generator = np.random.default_rng(0)
    logits, labels = generator.normal(scale=3, size=(2, 3, 20)), generator.integers(0, 2, 20)
    found = metrics.log_loss(logits, labels)
    assert found.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            p = [sigmoid(z) for z in logits[i, j]]
            assert found[i, j] == pytest.approx(
                sum(-math.log(q if y else 1 - q) for q, y in zip(p, labels)) / 20, rel=1e-9
            )
    assert metrics.log_loss(logits[0, 0], labels) == pytest.approx(found[0, 0])


def test_log_loss_of_certain_answers_is_their_logit_and_not_infinite():
    assert metrics.log_loss([1000.0, -1000.0], [1, 0]) == 0
    assert metrics.log_loss([1000.0, -1000.0], [0, 1]) == 1000
    assert metrics.log_loss([0.0], [1]) == pytest.approx(math.log(2))


def test_log_loss_without_questions_is_not_a_number_for_each():
    found = metrics.log_loss(np.zeros((2, 3, 0)), [])
    assert found.shape == (2, 3) and np.isnan(found).all()


# -------------------------------------------------------------------------------- risk and coverage


def test_risk_is_the_mean_over_all_orders_of_equal_scores():
    scores, right = [0.5, 0.9, 0.5, 0.5, 0.1], [1, 0, 0, 1, 1]
    curves = []
    for order in itertools.permutations(range(5)):
        if all(scores[a] >= scores[b] for a, b in zip(order, order[1:])):
            wrong = [1 - right[i] for i in order]
            curves.append([sum(wrong[:n]) / n for n in range(1, 6)])
    assert metrics.risk_coverage(scores, right) == pytest.approx(np.mean(curves, 0))
    assert metrics.aurc(scores, right) == pytest.approx(np.mean(curves)) and len(curves) == 6


def test_a_score_that_knows_everything_has_the_least_risk():
    right = np.array([1] * 60 + [0] * 40)
    assert metrics.aurc(right, right) == pytest.approx(sum(n / (60 + n) for n in range(1, 41)) / 100)
    assert metrics.aurc(np.zeros(100), right) == pytest.approx(0.4) and metrics.brier(right, right) == 0
    assert math.isnan(metrics.aurc([], [])) and math.isnan(metrics.brier([], []))


# -------------------------------------------------------------------------------------- calibration


@pytest.mark.parametrize("bins", [1, 4, 10])
def test_calibration_error_against_a_loop_over_bins(bins):
    generator = np.random.default_rng(bins)
    probability = np.append(generator.random(200), [0.0, 1.0, 1.0])
    labels = np.append(generator.random(200) < 0.4, [0, 1, 0])
    expected = 0
    for b in range(bins):
        inside = [
            (p, y) for p, y in zip(probability, labels) if b / bins <= p < (b + 1) / bins or (b == bins - 1 and p == 1)
        ]
        stated, share = (sum(column) / len(inside) for column in zip(*inside))
        expected += len(inside) / 203 * abs(stated - share)
    assert metrics.calibration_error(probability, labels, bins) == pytest.approx(expected, abs=1e-12)
    if bins == 10:
        assert metrics.calibration_error(probability, labels) == pytest.approx(expected, abs=1e-12), (
            "ten bins are the default"
        )


def test_calibration_error_of_right_wrong_and_no_statements():
    labels = [1, 0, 0, 0] + [1, 1, 1, 0]
    assert metrics.calibration_error([0.25] * 4 + [0.75] * 4, labels) == pytest.approx(0, abs=1e-12)
    assert metrics.calibration_error([0.45] * 4 + [0.95] * 4, labels) == pytest.approx(0.2)
    assert metrics.calibration_error([0.0] * 4 + [0.75] * 4, labels) == pytest.approx(0.125)
    assert metrics.calibration_error([1.0, 1.0], [0, 0]) == 1.0
    assert math.isnan(metrics.calibration_error([], []))


@pytest.mark.parametrize("planted", [0.3, 1.0, 4.0])
def test_the_temperature_that_logits_were_multiplied_by_is_found(planted):
    generator = np.random.default_rng(0)
    honest = generator.normal(scale=2, size=20_000)
    labels = (generator.random(20_000) < 1 / (1 + np.exp(-honest))).astype(int)
    found = metrics.temperature(honest * planted, labels)
    assert found == pytest.approx(planted, rel=0.05)
    least = metrics.log_loss(honest * planted / found, labels)
    assert all(
        metrics.log_loss(honest * planted / (found * other), labels) > least for other in (0.97, 0.985, 1.015, 1.03)
    )
    divided = 1 / (1 + np.exp(-honest * planted / found))
    assert metrics.calibration_error(divided, labels) < 0.02
    if planted != 1:
        assert metrics.calibration_error(1 / (1 + np.exp(-honest * planted)), labels) > 0.05


def test_the_temperature_stays_within_its_limits():
    assert metrics.temperature([3.0, -3.0, 1.0], [1, 0, 1]) == pytest.approx(0.05)
    assert metrics.temperature([3.0, -3.0, 1.0], [0, 1, 0]) == pytest.approx(20)


# ---------------------------------------------------------------------------------------- intervals


def binomial_quantile(n, p, share):
    total = 0
    for k in range(n + 1):
        total += math.comb(n, k) * p**k * (1 - p) ** (n - k)
        if total >= share:
            return k


@pytest.mark.parametrize("n, right", [(40, 16), (200, 180)])
def test_an_interval_of_a_share_is_that_of_the_binomial_distribution(n, right):
    """Resampled with replacement, the number of right answers is binomial: its quantiles are known
    exactly.
    """
    hits = np.arange(n) < right
    low, high = metrics.bootstrap_interval(lambda index: hits[index].sum(), n, 4000)
    assert abs(low - binomial_quantile(n, right / n, 0.025)) <= 1
    assert abs(high - binomial_quantile(n, right / n, 0.975)) <= 1


def test_an_interval_covers_the_true_mean_nineteen_times_of_twenty():
    generator = np.random.default_rng(0)
    covered = 0
    for trial in range(400):
        values = generator.exponential(size=80) if trial % 2 else generator.normal(1.0, 3.0, size=80)
        low, high = metrics.bootstrap_interval(lambda index: values[index].mean(), 80, 200, seed=trial)
        covered += low <= 1.0 <= high
    assert 0.91 <= covered / 400 <= 0.97


def test_several_statistics_share_the_resamples_of_one_alone():
    values = np.random.default_rng(0).normal(size=(50, 2))
    low, high = metrics.bootstrap_interval(lambda index: values[index].mean(0), 50, 300, seed=4)
    assert isinstance(low, list) and len(low) == len(high) == 2
    for column in range(2):
        alone = metrics.bootstrap_interval(lambda index: values[index, column].mean(), 50, 300, seed=4)
        assert (low[column], high[column]) == pytest.approx(alone)
        assert low[column] < values[:, column].mean() < high[column]
        assert all(isinstance(end, float) for end in alone)


def test_intervals_depend_on_the_seed_alone():
    values = np.random.default_rng(0).normal(size=30)
    found = [metrics.bootstrap_interval(lambda index: values[index].mean(), 30, 100, seed) for seed in (3, 3, 4)]
    assert found[0] == found[1] != found[2]


def test_every_resample_has_as_many_indices_with_repeats_among_them():
    seen = []
    metrics.bootstrap_interval(lambda index: seen.append(index) or 0.0, 12, 50)
    assert len(seen) == 50 and all(len(index) == 12 and set(index) <= set(range(12)) for index in seen)
    assert set(np.concatenate(seen)) == set(range(12)) and all(len(set(index)) < 12 for index in seen[:20])


def test_resamples_without_a_value_do_not_count():
    """One of the two questions has no value: half of the resamples begin with it."""
    values = np.array([7.0, np.nan])
    low, high = metrics.bootstrap_interval(lambda index: (values[index][0], 1.0), 2, 200)
    assert (low, high) == ([7.0, 1.0], [7.0, 1.0])


@pytest.mark.parametrize("right, n", [(0, 1), (1, 1), (0, 12), (9, 12), (50, 60), (60, 60)])
def test_wilson_interval_holds_the_shares_from_which_the_count_is_less_than_1_96_deviations_away(right, n):
    low, high = metrics.wilson_interval(right, n)
    inside = [p for p in np.linspace(0, 1, 20001) if abs(right / n - p) <= 1.959964 * (p * (1 - p) / n) ** 0.5]
    assert (low, high) == pytest.approx((min(inside), max(inside)), abs=1e-4)


def test_mean_interval_over_seeds_is_students():
    mean, low, high = metrics.mean_interval([0.9, 0.8, 1.0])
    assert (mean, high - mean, mean - low) == pytest.approx((0.9, 4.303 * 0.1 / 3**0.5, 4.303 * 0.1 / 3**0.5))
    assert metrics.mean_interval([0.7]) == (0.7, 0.7, 0.7)
    many = [0.0, 1.0] * 6  # twelve: t is 2.201, and the interval a little too wide
    assert metrics.mean_interval(many)[2] - 0.5 == pytest.approx(2.262 * 0.5 * (12 / 11) ** 0.5 / 12**0.5)
