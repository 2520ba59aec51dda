"""Logistic regressions against an exact float64 Newton method, scikit-learn, an explicit Hessian
model, and loops.
"""

import math

import numpy as np
import pytest
import torch
from tiny import one_thread  # noqa: F401

from lm import logistic
from lm.logistic import fit_logistic

STRENGTHS = (0.3, 3.0, 100.0)


def standardise(x, rows, one_scale=False):
    """Mean and deviation (width,) of features (questions, width) over the training rows, in
    float64; with `one_scale` of all alike.
    """
    x = x.double()
    mean = x[rows].mean(0)
    variance = ((x[rows] - mean) ** 2).mean(0)
    return mean, (variance.mean().expand_as(variance) if one_scale else variance).sqrt()


def newton(x, t, strength):
    """Exact minimiser of sum(log(1 + exp(z)) - t z) + strength / 2 |w|^2, z = x w + b, in float64.
    Returns w, b.
    """
    x = torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], 1)
    penalty = torch.full((x.shape[1],), float(strength), dtype=torch.float64)
    penalty[-1] = 0.0

    def objective(v):
        z = x @ v
        return (torch.nn.functional.softplus(z) - t * z).sum() + (penalty * v * v).sum() / 2

    v = torch.zeros(x.shape[1], dtype=torch.float64)
    for _ in range(200):
        p = torch.sigmoid(x @ v)
        gradient = x.T @ (p - t) + penalty * v
        if gradient.norm() < 1e-9 * len(x):
            return v[:-1], v[-1]
        step = torch.linalg.solve(x.T @ (x * (p * (1 - p))[:, None]) + torch.diag(penalty + 1e-12), gradient)
        size = 1.0
        while objective(v - size * step) > objective(v) and size > 1e-8:
            size /= 2
        v = v - size * step
    raise AssertionError("the reference did not converge")


def problem(groups=2, questions=150, width=12, repeats=3, soft=False, seed=0, offset=3.0, spread=2.0, outliers=False):
    """Features of very different scales and offsets, targets that depend on them noisily, and
    training rows by repeat.
    """
    g = torch.Generator().manual_seed(seed)
    base = torch.randn(groups, questions, width, generator=g)
    if outliers:
        base[:, ::10] *= 10
    scale = 10 ** torch.linspace(-spread, spread, width)
    features = (base + offset * torch.randn(groups, 1, width, generator=g)) * scale
    chance = torch.sigmoid(1.5 * base[0, :, 0] - base[0, :, width // 2] + 0.5)
    targets = chance if soft else (torch.rand(questions, generator=g) < chance).float()
    train = torch.rand(repeats, questions, generator=g) < 0.7
    return features, targets.numpy(), train.numpy()


def separable(questions=80, width=6):
    """One group of features, of which the first alone decides the label, and training rows of three
    repeats.
    """
    features, _, train = problem(groups=1, questions=questions, width=width, offset=0.0)
    return features, (features[0, :, 0] > 0).float().numpy(), train


def logits_of(features, weight, bias):
    """Logits (groups, repeats, strengths, questions)."""
    return torch.einsum("gnd,grsd->grsn", features, weight) + bias[..., None]


def check_exact(found, features, targets, train, strengths, one_scale=False, tolerance=1e-3):
    """Compare every weight vector and bias, in the coordinates that the penalty is meant in, with
    Newton's.
    """
    weight, bias = found
    assert (
        weight.shape == (len(features), len(train), len(strengths), features.shape[2])
        and bias.shape == weight.shape[:-1]
    )
    assert weight.dtype == bias.dtype == torch.float32
    for g, x in enumerate(features):
        for r, rows in enumerate(train):
            mean, scale = standardise(x, rows, one_scale)
            for s, strength in enumerate(strengths):
                w, b = newton(
                    (x.double() - mean)[rows] / scale, torch.tensor(targets[rows], dtype=torch.float64), strength
                )
                got = weight[g, r, s].double()
                assert (got * scale - w).norm() < tolerance * w.norm(), (g, r, strength)
                assert abs(bias[g, r, s].double() + got @ mean - b) < tolerance * max(1, abs(b)), (g, r, strength)


# ------------------------------------------------------------------------------ the exact minimiser


@pytest.mark.parametrize(
    "case, strengths",
    [
        ({}, STRENGTHS),
        ({"soft": True}, STRENGTHS),
        ({"offset": 300.0}, STRENGTHS),
        ({"repeats": 1}, (3.0,)),
        ({"questions": 60, "width": 200, "repeats": 2}, (10.0, 100.0, 1000.0)),
        ({"questions": 600, "width": 80, "groups": 1}, STRENGTHS),
        ({"outliers": True}, STRENGTHS),
        ({"width": 1}, STRENGTHS),
        ({"repeats": 2}, (1000.0, 1.0, 30.0, 0.1, 10000.0, 3.0, 300.0)),
    ],
    ids=[
        "labels",
        "soft targets",
        "as far from the origin as real activations",
        "one repeat and strength",
        "wider than long",
        "more questions than the sketch",
        "questions ten times as far out",
        "one feature",
        "many strengths in any order",
    ],
)
def test_probes_are_the_exact_minimisers_for_every_group_repeat_and_strength(case, strengths):
    features, targets, train = problem(**case)
    check_exact(fit_logistic(features, targets, train, strengths), features, targets, train, strengths)


@pytest.mark.parametrize(
    "case, strengths",
    [
        ({}, STRENGTHS),
        ({"soft": True, "offset": 100.0}, STRENGTHS),
        ({"questions": 60, "width": 120, "repeats": 2}, (3.0, 30.0, 300.0)),
    ],
    ids=["labels", "soft targets far from the origin", "wider than long"],
)
def test_not_standardised_all_features_of_a_group_and_repeat_are_divided_by_the_same_number(case, strengths):
    features, targets, train = problem(**case, spread=0.5)
    features[1] *= 100
    found = fit_logistic(features, targets, train, strengths, standardise=False)
    check_exact(found, features, targets, train, strengths, one_scale=True)
    scale = standardise(features[0], train[0])[1]
    assert scale.max() > 5 * scale.min(), "or both were the same"


def test_weights_are_those_of_scikit_learn_at_one_over_the_strength():
    linear_model = pytest.importorskip("sklearn.linear_model")
    features, targets, train = problem(groups=1, questions=200, width=20)
    weight, bias = fit_logistic(features, targets, train, STRENGTHS)
    for r, rows in enumerate(train):
        mean, scale = standardise(features[0], rows)
        for s, strength in enumerate(STRENGTHS):
            other = linear_model.LogisticRegression(C=1 / strength, tol=1e-10, max_iter=10_000)
            other.fit(((features[0].double() - mean) / scale)[rows].numpy(), targets[rows])
            got = weight[0, r, s].double()
            np.testing.assert_allclose(
                (got * scale).numpy(), other.coef_[0], rtol=0, atol=1e-3 * np.linalg.norm(other.coef_)
            )
            assert (bias[0, r, s].double() + got @ mean).item() == pytest.approx(other.intercept_[0], abs=1e-3)


@pytest.mark.parametrize(
    "case",
    [
        {"questions": 300, "width": 40, "seed": 1},
        {"questions": 100, "width": 150, "soft": True},
        {"questions": 500, "width": 30, "outliers": True},
    ],
    ids=["long", "wide and soft", "outliers"],
)
def test_the_gradient_at_the_solution_is_as_small_as_promised(case):
    features, targets, train = problem(**case)
    strengths = (0.1, *STRENGTHS, 1e4)
    weight, bias = fit_logistic(features, targets, train, strengths)
    t = torch.tensor(targets, dtype=torch.float64)

    def length(left, z, penalty=0.0):
        return ((z.T @ left + penalty).square().sum() + left.sum() ** 2).sqrt()

    for g, x in enumerate(features):
        for r, rows in enumerate(train):
            mean, scale = standardise(x, rows)
            z = (x.double() - mean)[rows] / scale
            for s, strength in enumerate(strengths):
                w = weight[g, r, s].double() * scale
                left = torch.sigmoid(z @ w + bias[g, r, s].double() + weight[g, r, s].double() @ mean) - t[rows]
                assert length(left, z, strength * w) < 1.1 * logistic.TOLERANCE * length(0.5 - t[rows], z), (
                    g,
                    r,
                    strength,
                )


def test_a_soft_target_is_as_many_copies_with_labels():
    """Of four copies of a question with target 1/4 one is positive; four times the data balance
    four times the strength.
    """
    features, _, train = problem(repeats=2)
    quarters = np.random.default_rng(0).integers(0, 5, 150)
    copies = np.concatenate([quarters > i for i in range(4)]).astype(float)
    soft = fit_logistic(features, quarters / 4, train, (0.5, 25.0))
    hard = fit_logistic(features.repeat(1, 4, 1), copies, np.tile(train, (1, 4)), (2.0, 100.0))
    torch.testing.assert_close(logits_of(features, *soft), logits_of(features, *hard), rtol=0, atol=5e-3)


# --------------------------------------------------------------------------------------- hard cases


@pytest.mark.parametrize("strength", [1e-3, 1.0])
def test_separable_data_does_not_blow_up(strength):
    features, targets, train = separable()
    weight, bias = fit_logistic(features, targets, train, (strength,))
    for rows, z in zip(train, logits_of(features, weight, bias)[0, :, 0]):
        mean, scale = standardise(features[0], rows)
        w, b = newton(
            (features[0].double() - mean)[rows] / scale, torch.tensor(targets[rows], dtype=torch.float64), strength
        )
        exact = (features[0].double() - mean) / scale @ w + b
        assert (z.double() - exact).norm() < 0.01 * exact.norm()
        assert strength == 1.0 or ((z > 0).numpy() == (targets == 1))[rows].all()


def test_almost_no_regularisation_still_gives_finite_probes():
    features, targets, train = separable()
    weight, bias = fit_logistic(features, targets, train, (1e-6,))
    logits = logits_of(features, weight, bias)[0, :, 0]
    assert logits.isfinite().all()
    assert all(((z > 0).numpy() == (targets == 1))[rows].all() for rows, z in zip(train, logits))


def test_weak_strengths_do_not_disturb_strong_ones_solved_in_the_same_call():
    features, targets, train = separable()
    strengths = (1e-6, 30.0, 1e-4, 3000.0)
    weight, bias = fit_logistic(features, targets, train, strengths)
    strong = weight[:, :, 1::2], bias[:, :, 1::2]
    check_exact(strong, features, targets, train, strengths[1::2])
    alone = fit_logistic(features, targets, train, strengths[1::2])
    torch.testing.assert_close(logits_of(features, *strong), logits_of(features, *alone), rtol=0, atol=2e-3)
    assert (weight[:, :, 0].norm(dim=-1) > 10 * weight[:, :, 1].norm(dim=-1)).all(), "the weak ones had far to go"


def test_those_that_have_converged_leave_the_batch(monkeypatch):
    features, targets, train = separable()
    columns, precondition = [], logistic.precondition
    monkeypatch.setattr(
        logistic, "precondition", lambda *given: columns.append(given[0][0].shape[1]) or precondition(*given)
    )
    fit_logistic(features, targets, train, (1e-4, 1000.0, 3000.0, 10000.0))
    assert columns[0] == 12 and columns[-1] <= 3 and columns == sorted(columns, reverse=True)
    assert columns.count(12) < len(columns) / 2


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_out_of_steps_the_best_so_far_is_returned(monkeypatch, steps):
    features, targets, train = problem(questions=100, width=40, repeats=2)
    monkeypatch.setattr(logistic, "MOST_STEPS", steps)
    weight, bias = fit_logistic(features, targets, train, (0.01, 1e6))
    for g, x in enumerate(features):
        for r, rows in enumerate(train):
            mean, scale = standardise(x, rows)
            t = torch.tensor(targets[rows], dtype=torch.float64)
            z = x.double()[rows] @ weight[g, r, 0].double() + bias[g, r, 0].double()
            loss = (torch.nn.functional.softplus(z) - t * z).sum() + 0.005 * (
                weight[g, r, 0].double() * scale
            ).square().sum()
            w, b = newton((x.double() - mean)[rows] / scale, t, 0.01)
            exact = (x.double() - mean)[rows] / scale @ w + b
            least = (torch.nn.functional.softplus(exact) - t * exact).sum() + 0.005 * w.square().sum()
            assert least < loss < 0.8 * len(t) * math.log(2), "better than nothing, but not converged"
            if steps == 4:
                w, b = newton((x.double() - mean)[rows] / scale, t, 1e6)
                assert bias[g, r, 1].double() + weight[g, r, 1].double() @ mean == pytest.approx(b.item(), abs=1e-3)


def test_features_that_say_nothing_are_fitted_beside_others_that_do():
    features = torch.zeros(2, 40, 3)
    features[1] = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    targets, train = np.array([1.0, 0.0] * 20), np.ones((1, 40), bool)
    weight, bias = fit_logistic(features, targets, train, (1.0,))
    assert (weight[0] == 0).all() and (bias[0] == 0).all()
    check_exact((weight[1:], bias[1:]), features[1:], targets, train, (1.0,))


def test_one_class_alone_gives_finite_probes():
    features, _, train = problem()
    for value in (0.0, 1.0):
        weight, bias = fit_logistic(features, np.full(150, value), train, (1.0,))
        assert weight.isfinite().all() and bias.isfinite().all()
        assert ((logits_of(features, weight, bias) > 0) == bool(value)).all()


def test_the_bias_is_free_and_huge_strength_leaves_only_the_base_rate():
    features, _, train = problem(repeats=2)
    targets = (np.arange(150) % 10 == 0).astype(float)
    logits = logits_of(features, *fit_logistic(features, targets, train, (1e7,)))
    for r, rows in enumerate(train):
        share = targets[rows].mean()
        assert (logits[:, r] - math.log(share / (1 - share))).abs().max() < 0.01


def test_rows_outside_the_training_part_do_not_matter():
    features, targets, train = problem()
    weight, bias = fit_logistic(features, targets, train[:1], (1.0,))
    changed, other = features.clone(), targets.copy()
    changed[:, ~torch.tensor(train[0])] *= -7
    other[~train[0]] = 1 - other[~train[0]]
    again, bias_again = fit_logistic(changed, other, train[:1], (1.0,))
    torch.testing.assert_close(
        logits_of(features, weight, bias), logits_of(features, again, bias_again), rtol=0, atol=2e-3
    )


@pytest.mark.parametrize("constant", [0.0, 0.1, 5.0, 100.3, 1234.5])
@pytest.mark.parametrize("scaled", [True, False], ids=["standardised", "not standardised"])
def test_a_feature_that_is_constant_in_training_has_no_say(constant, scaled):
    """Real models have such: a head that attends to the same tokens for every question."""
    features, targets, train = problem(offset=0.0, spread=0.0)
    train[:, :10] = False
    extra = torch.full((2, 150, 1), constant)
    extra[:, :10] += 1.0
    weight, bias = fit_logistic(torch.cat([features, extra], 2), targets, train, STRENGTHS, scaled)
    assert (weight[..., -1] == 0).all()
    shrunk = 1 if scaled else 12 / 13  # the constant counts in the mean variance, by which strengths are measured then
    check = fit_logistic(features, targets, train, [s * shrunk for s in STRENGTHS], scaled)
    got = logits_of(features, weight[..., :-1], bias)
    torch.testing.assert_close(got, logits_of(features, *check), rtol=0, atol=0.01)


# ------------------------------------------------------------------------------ parts of the solver


@pytest.mark.parametrize("room, sizes", [(2.5, [2, 2, 1]), (1.0, [1] * 5), (0.001, [1] * 5), (5.0, [5])])
def test_how_many_groups_fit_into_the_cache_changes_nothing(monkeypatch, room, sizes):
    features, targets, train = problem(groups=5)
    check_exact(fit_logistic(features, targets, train, (0.3, 30.0)), features, targets, train, (0.3, 30.0))
    seen, fit_groups = [], logistic.fit_groups
    monkeypatch.setattr(logistic, "fit_groups", lambda part, *rest: seen.append(len(part)) or fit_groups(part, *rest))
    monkeypatch.setattr(logistic, "CACHE_BYTES", int(room * 150 * 12 * 4))
    check_exact(fit_logistic(features, targets, train, (0.3, 30.0)), features, targets, train, (0.3, 30.0))
    assert seen == sizes


@pytest.mark.parametrize("scaled", [True, False])
def test_moments_of_the_training_rows_against_loops(scaled):
    features, _, train = problem(questions=30, width=4, spread=0.5)
    features[1, :, 2] = 7.0
    mean, inverse = logistic.moments(features, torch.tensor(train).float(), scaled)
    for g in range(2):
        for r in range(3):
            columns = [[features[g, n, d].item() for n in range(30) if train[r, n]] for d in range(4)]
            means = [sum(c) / len(c) for c in columns]
            variances = [sum((v - m) ** 2 for v in c) / len(c) for c, m in zip(columns, means)]
            for d in range(4):
                assert mean[g, r, d].item() == pytest.approx(means[d], rel=1e-5)
                variance = variances[d] if scaled else sum(variances) / 4
                assert inverse[g, r, d].item() == pytest.approx(0 if variances[d] == 0 else variance**-0.5, rel=1e-3)


@pytest.mark.parametrize("width, questions", [(10, 100), (200, 300), (100, 20)])
def test_the_leading_eigenvalues_are_found_and_the_rest_is_kept_as_a_mean(width, questions):
    g = torch.Generator().manual_seed(0)
    planted = torch.randn(2, questions, 5, generator=g) * torch.tensor([20.0, 15, 10, 8, 6])
    directions = torch.linalg.qr(torch.randn(2, width, 5, generator=g)).Q
    x = planted @ directions.transpose(1, 2) + 0.3 * torch.randn(2, questions, width, generator=g)
    scale = 0.5 + torch.rand(2, width, generator=g)
    basis, values, rest = logistic.leading_eigenvectors(x, scale)
    rank = min(width, questions, logistic.RANK)
    assert basis.shape == (2, width, rank) and values.shape == (2, rank)
    for i in range(2):
        scaled = (x[i] * scale[i]).double()
        correlation = scaled.T @ scaled / questions
        exact = torch.linalg.eigvalsh(correlation)
        torch.testing.assert_close(basis[i].T @ basis[i], torch.eye(rank), rtol=0, atol=1e-4)
        torch.testing.assert_close(values[i].sort().values[-5:].double(), exact[-5:], rtol=1e-3, atol=0)
        torch.testing.assert_close(
            torch.linalg.vecdot(basis[i], correlation.float() @ basis[i], dim=0), values[i], rtol=1e-3, atol=1e-3
        )
        left = (exact.sum() - values[i].double().sum()) / max(1, width - rank)
        assert rest[i].item() == pytest.approx(left.item(), rel=1e-3, abs=1e-3)


def test_preconditioning_divides_by_the_model_of_the_hessian_written_out():
    g = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(2, 9, 3, generator=g)).Q
    values, rest, mass = (
        5 + torch.rand(2, 3, generator=g),
        torch.tensor([0.5, 0.1]),
        1 + 10 * torch.rand(2, 4, generator=g),
    )
    strength, gradient = (
        torch.tensor([0.1, 1.0, 10.0, 100.0]),
        (torch.randn(2, 4, 9, generator=g), torch.randn(2, 4, generator=g)),
    )
    weight, bias = logistic.precondition(gradient, mass, strength, basis, values, rest)
    for i in range(2):
        inside = basis[i] @ basis[i].T
        model = basis[i] @ values[i].diag() @ basis[i].T + rest[i] * (torch.eye(9) - inside)
        for c in range(4):
            expected = torch.linalg.solve(mass[i, c] * model + strength[c] * torch.eye(9), gradient[0][i, c])
            torch.testing.assert_close(weight[i, c], expected, rtol=1e-4, atol=1e-5)
            assert bias[i, c].item() == pytest.approx((gradient[1][i, c] / mass[i, c]).item(), rel=1e-5)
