"""The way to a probe against loops over questions, layers and repeats: labels, splits, logits, its
choice, its calibration.
"""

import math

import numpy as np
import pytest
import torch
from test_metrics import auroc_by_pairs, sigmoid
from tiny import one_thread  # noqa: F401

import probe
from evaluation import metrics
from lm.logistic import fit_logistic
from probe import ProbeConfig

# ------------------------------------------------------------------------------------------- labels


def percentile_by_hand(values, percent):
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


@pytest.mark.parametrize("upper, lower", [(65, 35), (70, 30), (50, 50)])
def test_prelabels_are_the_papers_for_all_k_samples(upper, lower):
    generator = np.random.default_rng(0)
    scores = generator.normal(size=(60, 1)) + 0.3 * generator.normal(size=(60, 3))
    high, low = (percentile_by_hand(scores.ravel().tolist(), p) for p in (upper, lower))
    expected = []
    for row in scores:
        above, below = sum(s > high for s in row), sum(s < low for s in row)
        expected.append(1 if above == 3 else 0 if below == 3 else -1)
    assert set(expected) == {1, 0, -1}
    assert probe.prelabel(scores, upper, lower).tolist() == expected
    if (upper, lower) == (65, 35):
        assert probe.prelabel(scores).tolist() == expected, "the paper's percentiles are the default"


def test_a_score_on_the_threshold_is_neither_correct_nor_incorrect():
    scores = np.array(
        [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [4.0, 4.0]]
    )  # percentiles 25 and 75 are the scores 1 and 3
    assert probe.prelabel(scores, 75, 25).tolist() == [0, -1, -1, -1, 1]


@pytest.mark.parametrize("known_share, unknown_share", [(0.5, 0.0), (0.75, 0.25), (1.0, 0.5)])
def test_gold_labels_need_the_share_of_hits_and_the_greedy_answer(known_share, unknown_share):
    rows = [[bool(n >> i & 1) for i in range(4)] for n in range(16)]
    hits, greedy = np.array(rows * 2), np.array([True] * 16 + [False] * 16)
    expected = []
    for row, right in zip(hits.tolist(), greedy.tolist()):
        share = sum(row) / 4
        expected.append(1 if right and share >= known_share else 0 if not right and share <= unknown_share else -1)
    assert set(expected) == {1, 0, -1}
    assert probe.gold_label(hits, greedy, known_share, unknown_share).tolist() == expected
    if (known_share, unknown_share) == (0.5, 0.0):
        assert probe.gold_label(hits, greedy).tolist() == expected


# ------------------------------------------------------------------------------------------- splits


@pytest.fixture(scope="module")
def groups():
    """Names of the groups of 250 questions: 1 to 4 questions each, in mixed order."""
    names = [f"subject {i}" for i in range(100) for _ in range(i % 4 + 1)]
    np.random.default_rng(1).shuffle(names)
    return names


def test_a_group_is_never_split_and_every_question_has_a_part(groups):
    parts = probe.split_by_group(groups, ProbeConfig(repeats=6), 0)
    assert parts.shape == (6, len(groups)) and set(parts.ravel()) == {0, 1, 2}
    for row in parts:
        part = {}
        for group, p in zip(groups, row):
            assert part.setdefault(group, p) == p


def test_the_parts_are_as_large_as_asked_in_groups(groups):
    for row in probe.split_by_group(groups, ProbeConfig(repeats=4, valid=0.3, test=0.1), 0):
        members = {part: {g for g, p in zip(groups, row) if p == part} for part in (0, 1, 2)}
        assert [len(members[part]) for part in (0, 1, 2)] == [60, 30, 10]


def test_repeats_and_seeds_split_differently_and_the_same_seed_the_same(groups):
    first = probe.split_by_group(groups, ProbeConfig(repeats=5), 7)
    assert np.array_equal(first, probe.split_by_group(groups, ProbeConfig(repeats=5), 7))
    assert not np.array_equal(first, probe.split_by_group(groups, ProbeConfig(repeats=5), 8))
    assert len({tuple(row) for row in first}) == 5


def test_the_split_depends_on_the_groups_names_not_on_the_order_or_number_of_questions(groups):
    order = np.random.default_rng(2).permutation(len(groups))
    there = probe.split_by_group(groups, ProbeConfig(), 0)
    assert np.array_equal(probe.split_by_group([groups[i] for i in order], ProbeConfig(), 0), there[:, order])
    assert np.array_equal(
        probe.split_by_group(groups + groups[:30], ProbeConfig(), 0), np.concatenate([there, there[:, :30]], 1)
    )


# ------------------------------------------------------------------------------------------- logits


def test_predict_against_loops():
    features, weight, bias = torch.randn(2, 4, 3), torch.randn(2, 5, 2, 3), torch.randn(2, 5, 2)
    logits = probe.predict(features, weight, bias)
    assert logits.shape == (2, 5, 2, 4)
    for g in range(2):
        for r in range(5):
            for s in range(2):
                for n in range(4):
                    expected = (
                        sum((weight[g, r, s, d] * features[g, n, d]).item() for d in range(3)) + bias[g, r, s].item()
                    )
                    assert logits[g, r, s, n].item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("standardise", [True, False])
def test_every_layer_of_every_kind_is_fitted_alone_and_read_on_all_questions(planted, standardise):
    activations, labels, _, parts, config = planted
    found = probe.logits_everywhere(activations, labels.clip(0), parts == 0, config.l2, standardise)
    assert list(found) == list(activations)
    for kind, (weight, bias, logits) in found.items():
        assert weight.shape == (4, 3, 2, 8) and bias.shape == (4, 3, 2) and logits.shape == (4, 3, 2, 210)
        for layer in range(4):
            w, b = fit_logistic(
                activations[kind][None, :200, layer], labels.clip(0), parts == 0, config.l2, standardise
            )
            expected = torch.einsum("nd,rsd->rsn", activations[kind][:, layer], w[0]) + b[0][..., None]
            torch.testing.assert_close(logits[layer], expected, rtol=0, atol=0.01)


@pytest.mark.parametrize(
    "layer, layers, width, expected",
    [
        (4, 10, 1, [4]),
        (0, 10, 1, [0]),
        (9, 10, 1, [9]),
        (4, 10, 5, [2, 3, 4, 5, 6]),
        (0, 10, 5, [0, 1, 2]),
        (1, 10, 5, [0, 1, 2, 3]),
        (8, 10, 5, [6, 7, 8, 9]),
        (9, 10, 5, [7, 8, 9]),
        (4, 10, 4, [3, 4, 5, 6]),
        (0, 10, 4, [0, 1, 2]),
        (9, 10, 4, [8, 9]),
        (4, 10, 2, [4, 5]),
        (9, 10, 2, [9]),
        (1, 3, 9, [0, 1, 2]),
        (0, 3, 9, [0, 1, 2]),
        (2, 3, 9, [0, 1, 2]),
        (0, 1, 5, [0]),
    ],
)
def test_a_band_is_as_wide_as_asked_in_the_middle_and_cut_at_both_ends(layer, layers, width, expected):
    assert list(probe.band_of(layer, layers, width)) == expected


@pytest.mark.parametrize("width", [1, 2, 3, 4, 7, 20])
def test_banded_logits_are_means_over_the_layers_within_reach(width):
    logits = torch.randn(6, 2, 3, 5, generator=torch.Generator().manual_seed(0))
    averaged = probe.banded(logits, width)
    assert averaged.shape == logits.shape
    for layer in range(6):
        near = [logits[other] for other in range(6) if -((width - 1) // 2) <= other - layer <= width // 2]
        torch.testing.assert_close(averaged[layer], sum(near) / len(near))


# ------------------------------------------------------------------------------------------- choice


def mean_loss(logits, labels, parts, part):
    """Mean over the repeats of the mean surprise on one part, by loops; logits (repeats,
    questions).
    """
    means = []
    for z, row in zip(logits.tolist(), parts):
        losses = [
            -math.log(sigmoid(v) if label else 1 - sigmoid(v)) for v, label, p in zip(z, labels, row) if p == part
        ]
        means.append(sum(losses) / len(losses))
    return sum(means) / len(means)


def random_choice(seed=0):
    """(found, labels, parts) without any probe: logits of two kinds, 4 layers, 2 repeats, 3
    strengths, 40 questions and 5 more.
    """
    g = torch.Generator().manual_seed(seed)
    labels = np.array([1, 0, 1, 0, -1] * 8)
    parts = np.where(labels >= 0, np.random.default_rng(seed).integers(0, 3, (2, 40)), -1)
    signs = torch.tensor([1.0, -1, 1, -1, 0] * 9)
    logits = {
        kind: signs * torch.rand(4, 1, 3, 1, generator=g) + torch.randn(4, 2, 3, 45, generator=g)
        for kind in ("mlp", "hidden")
    }
    return {kind: (None, None, z) for kind, z in logits.items()}, labels, parts


def test_strength_is_chosen_on_validation_and_only_then_is_the_test_split_read():
    labels = np.array([1, 0, 1, 0, 1, 0, 1, 0, -1])
    parts = np.array([[0, 0, 1, 1, 2, 2, 2, 2, -1], [2, 2, 2, 2, 1, 1, 0, 0, -1]])
    right = torch.tensor([1.0, -1, 1, -1, 1, -1, 1, -1, 1])
    logits = right.repeat(2, 2, 3, 1)  # (groups, repeats, strengths, questions), all of them right
    for r in range(2):
        valid, test, train = (torch.tensor(parts[r] == p) for p in (1, 2, 0))
        logits[0, r, 0, valid] *= -1  # strength 0: wrong on validation, right on test and train: must not be taken
        logits[
            0, r, 1, test & (right > 0)
        ] *= -1  # strength 1: right on validation, says unknown to all on test: to be taken
        logits[0, r, 2, valid & (right > 0)] *= -1  # strength 2: half right on validation
        logits[1, r, 0, train] *= -1  # the other group: all right but on the training rows
    logits[1, 0, 1:, torch.tensor(parts[0] == 1)] *= -1
    logits[0, 1, 1, 1] = 5.0  # second repeat, test split: one more wrong
    first, second = probe.score_probes(logits, labels, parts)
    sure = -math.log(sigmoid(1))  # the loss of logit 1 where it is right
    assert first["strength"] == 1 and first["valid_loss"] == pytest.approx(sure)
    assert first["accuracy"] == pytest.approx((2 / 4 + 1 / 4) / 2)
    assert (first["accuracy_min"], first["accuracy_max"]) == (0.25, 0.5)
    assert first["balanced_accuracy"] == pytest.approx((0.5 + 0.25) / 2)
    by_pairs = [auroc_by_pairs(logits[0, r, 1][parts[r] == 2].tolist(), labels[parts[r] == 2] == 1) for r in range(2)]
    assert first["auroc"] == pytest.approx(np.mean(by_pairs))
    assert (
        second["strength"] == 0
        and second["valid_loss"] == pytest.approx(sure)
        and second["accuracy"] == second["auroc"] == 1.0
    )


def test_strength_is_chosen_by_loss_and_not_by_accuracy():
    """Strength 0 is right more often on validation, but sure of itself where it is wrong."""
    labels, parts = np.array([1, 0] * 4), np.array([[1] * 6 + [2] * 2])
    logits = torch.tensor([[[[9.0, 9, 9, -9, 9, -9, 1, -1], [-0.1, 0.1, 2, -2, 2, -2, 1, -1]]]])
    row = probe.score_probes(logits, labels, parts)[0]
    assert row["strength"] == 1 and row["valid_loss"] == pytest.approx(mean_loss(logits[0, :, 1], labels, parts, 1))


@pytest.mark.parametrize("band", [1, 2, 3, 5])
def test_the_probe_chosen_has_the_least_loss_on_validation_of_all_by_loops(band):
    for seed in range(5):
        found, labels, parts = random_choice(seed)
        losses = {}
        for kind, (_, _, logits) in found.items():
            for layer in range(4):
                layers = [i for i in range(4) if -((band - 1) // 2) <= i - layer <= band // 2]
                for strength in range(3):
                    averaged = sum(logits[i, :, strength] for i in layers) / len(layers)
                    losses[mean_loss(averaged, labels, parts, 1), kind, tuple(layers), strength] = averaged
        (loss, kind, layers, strength), averaged = min(losses.items(), key=lambda item: item[0][0])
        best = probe.choose(found, labels, parts, band)
        assert (best["kind"], tuple(best["layers"]), best["strength"]) == (kind, layers, strength)
        assert best["valid_loss"] == pytest.approx(loss)
        torch.testing.assert_close(best["logits"], averaged)
        tested = [
            [(z > 0) == y for z, y, p in zip(row, labels, part) if p == 2]
            for row, part in zip(averaged.tolist(), parts)
        ]
        right = [sum(row) / len(row) for row in tested]
        assert best["accuracy"] == pytest.approx(sum(right) / 2)
        assert (best["accuracy_min"], best["accuracy_max"]) == pytest.approx((min(right), max(right)))


def test_the_choice_never_looks_at_the_test_split():
    """The kind that is not chosen comes to know the test questions by heart, and still is not; nor
    do their labels matter.
    """
    found, labels, parts = random_choice()
    parts[:, :15] = np.where(labels[:15] >= 0, 2, -1)  # in all repeats
    parts[:, 15:] = np.where(parts[:, 15:] == 2, 0, parts[:, 15:])
    before = probe.choose(found, labels, parts, 3)
    only_test, other = (parts == 2).all(0), "mlp" if before["kind"] == "hidden" else "hidden"
    assert 10 <= only_test.sum() == (parts == 2).any(0).sum() and before["accuracy"] > 0.5
    found[other][2][..., :15] = 50 * torch.tensor([1.0, -1, 1, -1, 0] * 3)
    flipped = np.where(only_test, 1 - labels, labels)
    for new in (labels, flipped):
        after = probe.choose(found, new, parts, 3)
        assert all(after[key] == before[key] for key in ("kind", "layers", "strength", "valid_loss"))
        assert torch.equal(after["logits"], before["logits"])
    assert after["accuracy"] == pytest.approx(1 - before["accuracy"]), (
        "but the test split's figures are those of its labels"
    )


def test_neither_fit_nor_choice_look_at_the_labels_and_activations_of_questions_that_are_only_tested(planted):
    activations, labels, _, parts, config = planted
    parts = np.where(parts == 2, 0, parts)
    parts[:, :60] = np.where(labels[:60] >= 0, 2, -1)
    changed, other = {kind: states.clone() for kind, states in activations.items()}, labels.copy()
    other[:60] = np.where(labels[:60] >= 0, 1 - labels[:60], -1)
    for states in changed.values():
        states[:60] = states[:60].roll(1, 1)  # another layer's
    best, after = (
        probe.choose(probe.logits_everywhere(x, y.clip(0), parts == 0, config.l2, config.standardise), y, parts, 1)
        for x, y in ((activations, labels), (changed, other))
    )
    assert (best["kind"], best["layers"]) == ("mlp", [1])
    assert all(after[key] == best[key] for key in ("kind", "layers", "strength"))
    assert (
        after["valid_loss"] == pytest.approx(best["valid_loss"], abs=1e-3)
        and after["accuracy"] < 0.6 < best["accuracy"]
    )


def test_the_layer_and_kind_that_know_are_found(planted):
    activations, labels, truth, parts, config = planted
    found = probe.logits_everywhere(activations, labels.clip(0), parts == 0, config.l2, config.standardise)
    best = probe.choose(found, labels, parts, 1)
    assert (best["kind"], best["layers"]) == ("mlp", [1]) and best["logits"].shape == (3, 210)
    assert best["accuracy"] > 0.93 and best["auroc"] > 0.97
    for kind, (_, _, logits) in found.items():
        for layer, row in enumerate(probe.score_probes(logits[..., :200], labels, parts)):
            assert (kind, layer) == ("mlp", 1) or (row["accuracy"] < 0.75 and row["valid_loss"] > best["valid_loss"])
    p, unlabelled = (
        probe.out_of_fold(best["logits"], np.append(parts, np.full((3, 10), -1), 1)),
        np.append(labels, [-1] * 10) < 0,
    )
    assert metrics.auroc(p[unlabelled], truth[unlabelled]) > 0.9, (
        "also on questions without label and on those of other splits"
    )


def test_p_known_is_the_mean_over_probes_that_did_not_see_the_question():
    parts = np.array([[0, 1, 0, -1, 2], [2, 0, 0, -1, 0], [1, 1, 0, -1, 0]])
    logits = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    got = probe.out_of_fold(logits, parts)
    for n in range(5):
        unseen = [r for r in range(3) if parts[r, n] != 0] or [0, 1, 2]  # nobody left: all of them
        assert got[n] == pytest.approx(sum(sigmoid(logits[r, n].item()) for r in unseen) / len(unseen), abs=1e-6)


def test_the_temperature_comes_from_validation_and_the_calibration_errors_from_test():
    """Logits are four times too sure on validation and test, and nonsense everywhere else, where
    they must not count.
    """
    generator = np.random.default_rng(0)
    honest = generator.normal(scale=2, size=6000)
    labels = (generator.random(6000) < 1 / (1 + np.exp(-honest))).astype(int)
    parts = generator.integers(0, 3, (2, 6000))
    labels[:500], parts[:, :500] = -1, -1
    logits = np.where(parts == 0, -honest, np.where(parts == -1, 1000, 4 * honest))
    logits = torch.tensor(
        np.append(logits, np.full((2, 7), -1000.0), 1), dtype=torch.float32
    )  # 7 questions of other splits
    temperature, before, after = probe.calibrate({"logits": logits}, labels, parts)
    assert temperature == pytest.approx(4, rel=0.07)
    for part, error, divisor in ((2, before, 1), (2, after, temperature)):
        pairs = [
            (logits[r, n].item() / divisor, labels[n]) for r in range(2) for n in range(6000) if parts[r, n] == part
        ]
        expected = metrics.calibration_error([sigmoid(z) for z, _ in pairs], [y for _, y in pairs])
        assert error == pytest.approx(expected, abs=1e-4)
    assert before > 0.08 and after < 0.03
    labels[(parts == 2).any(0) & (parts != 1).all(0)] = 1  # labels that only the test split reads
    assert probe.calibrate({"logits": logits}, labels, parts)[0] == temperature
