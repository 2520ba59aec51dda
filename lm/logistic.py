"""Very many logistic regressions with L2 in one solve: every linear probe of section 3.2 at once.

All groups of features (layers), training sets (repeats) and strengths of L2 advance together by
preconditioned conjugate gradients on the convex loss: one product with the features reads the
gradient, one reads a direction, and a Newton step is taken along it. What makes the steps few is a
second-order model of each group, the largest eigenvalues of its features' correlation from a random
sketch, shared by all regressions on these features. Those that have converged leave the batch, so a
path of strengths costs little more than its weakest one.

Sources: nonlinear conjugate gradients (Polak and Ribiere) with restarts; the randomised range
finder of Halko, Martinsson and Tropp (2011). Left out: more than two classes, L1, features that do
not fit in memory.
"""

import torch

RANK = 64  # eigenvalues in the second-order model
SKETCH_ROWS = 384  # questions that it is read from
CACHE_BYTES = 5_000_000  # features worked on at a time: about what a processor's cache holds
TOLERANCE = 1e-4  # converged: norm of the gradient, relative to its first
MOST_STEPS = 1000
MOST_HALVINGS = 12


def fit_logistic(features, targets, train, l2, standardise=True):
    """Minimise sum of losses + (lambda / 2) |w|^2 for every group of features, training set and
    strength lambda in `l2`.

    features (groups, questions, width), targets (questions,) in [0, 1]: labels or soft ones, train
    (repeats, questions) bool: the rows that each repeat learns from. The bias is free. Features are
    standardised by each repeat's training rows (without `standardise`: divided by one number a
    group and repeat, so that strengths stay comparable); constant ones have no say. Returns weight
    (groups, repeats, strengths, width) and bias (groups, repeats, strengths) for the features as
    given.
    """
    used = torch.as_tensor(train).float()
    target = torch.as_tensor(targets).float()
    at_once = max(1, CACHE_BYTES // (features[0].numel() * 4))
    parts = [fit_groups(part, target, used, l2, standardise) for part in features.split(at_once)]
    weight, bias = (torch.cat(part) for part in zip(*parts))
    shape = (len(features), len(used), len(l2))
    return weight.reshape(*shape, -1), bias.reshape(shape)


def fit_groups(features, target, used, l2, standardise):
    """fit_logistic for a few groups; its columns are the pairs of repeat and strength. Returns
    weight (groups, columns, width), bias.
    """
    groups, questions, width = features.shape
    centre = features.mean(1, keepdim=True)  # far from 0 in real models
    x = features - centre  # (groups, questions, width)
    mean, inverse = moments(x, used, standardise)  # (groups, repeats, width)
    basis, values, rest = leading_eigenvectors(x, inverse.mean(1))
    columns = lambda t: t.repeat_interleave(len(l2), -2)  # repeats -> columns
    mean, inverse, used = columns(mean), columns(inverse), columns(used)
    strength = torch.tensor(l2, dtype=torch.float32).repeat(len(used) // len(l2))  # (columns,)
    weight, bias = torch.zeros_like(mean), torch.zeros(groups, len(used))
    solved_mean, solved_inverse = mean, inverse

    going = torch.arange(len(used))  # columns not yet converged
    w, b, z = weight, bias, torch.zeros(groups, len(used), questions)  # z: the logits
    p = z.sigmoid()
    gradient = direction = toward = first = None
    for _ in range(MOST_STEPS):
        residual = (p - target).mul_(used)  # (groups, columns, questions)
        total = residual.sum(2)
        before = gradient
        gradient = ((torch.bmm(residual, x) - mean * total[..., None]) * inverse + strength[:, None] * w, total)
        norm = dot(gradient, gradient).sqrt()
        first = norm if first is None else first
        moving = (norm > TOLERANCE * first).any(0)
        if moving.sum() <= 0.8 * len(going):  # worth the copying
            weight[:, going], bias[:, going] = w, b
            if not moving.any():
                break
            k = moving.nonzero()[:, 0]
            going, strength, used = going[k], strength[k], used[k]
            mean, inverse, w, b, z, p, first = (t[:, k] for t in (mean, inverse, w, b, z, p, first))
            gradient, before, toward, direction = (
                v and (v[0][:, k], v[1][:, k]) for v in (gradient, before, toward, direction)
            )
        curvature = torch.addcmul(p, p, p, value=-1).mul_(used)  # of each question's loss
        previous, toward = (
            toward,
            precondition(gradient, curvature.sum(2).clamp(min=1e-10), strength, basis, values, rest),
        )
        if direction is None:
            direction = (-toward[0], -toward[1])
        else:
            beta = ((dot(toward, gradient) - dot(toward, before)) / dot(previous, before).clamp(min=1e-30)).clamp(min=0)
            beta = torch.where(
                beta * dot(direction, gradient) < dot(toward, gradient), beta, 0
            )  # downhill, or start again
            direction = (beta[..., None] * direction[0] - toward[0], beta * direction[1] - toward[1])
        scaled = direction[0] * inverse
        dz = torch.bmm(scaled, x.transpose(1, 2)).add_((direction[1] - torch.linalg.vecdot(mean, scaled))[..., None])
        slope, bend = dot(direction, gradient), strength * direction[0].square().sum(2)
        length = -slope / (torch.linalg.vecdot(curvature.mul_(dz), dz) + bend).clamp(
            min=1e-30
        )  # Newton's, along the direction
        pull = strength * torch.linalg.vecdot(w, direction[0])
        z = z + length[..., None] * dz
        for _ in range(MOST_HALVINGS):
            p = z.sigmoid()
            ahead = (
                torch.linalg.vecdot((p - target).mul_(used), dz) + pull + length * bend
            )  # the slope where the step ends
            too_far = ahead > -0.5 * slope
            if not too_far.any():
                break
            half = torch.where(too_far, length / 2, 0)
            length, z = length - half, z - half[..., None] * dz
        w, b = w + length[..., None] * direction[0], b + length * direction[1]
    else:
        weight[:, going], bias[:, going] = w, b
    weight *= solved_inverse
    shift = (solved_mean + centre).double()
    return weight, (bias - torch.linalg.vecdot(shift, weight.double())).float()


def moments(x, used, standardise):
    """Mean and 1 / standard deviation (0 for a constant) of x (groups, questions, width) over each
    repeat's rows.
    """
    share = used / used.sum(1, keepdim=True)  # (repeats, questions)
    mean, square = torch.matmul(share, x), torch.matmul(share, x.square())  # (groups, repeats, width)
    variance = square - mean.square()
    constant = variance <= 1e-5 * square + 1e-12  # float32's error of the line above
    if not standardise:
        variance = variance.mean(2, keepdim=True).expand_as(variance)
    return mean, torch.where(constant, 0, variance.rsqrt())


def leading_eigenvectors(x, scale):
    """Of the correlation of the features x (groups, questions, width) times scale (groups, width):
    the leading eigenvectors (groups, width, RANK), their eigenvalues (groups, RANK), and the mean
    of the other eigenvalues (groups,).
    """
    groups, questions, width = x.shape
    generator = torch.Generator().manual_seed(0)
    some = x[:, torch.randperm(questions, generator=generator)[:SKETCH_ROWS]]
    rank, scale = min(RANK, width, some.shape[1]), scale[..., None]
    guess = torch.randn(width, rank, generator=generator).expand(groups, -1, -1)
    basis = torch.linalg.qr(scale * torch.bmm(some.transpose(1, 2), torch.bmm(some, scale * guess))).Q
    seen = torch.bmm(some, scale * basis)
    values, turn = torch.linalg.eigh(torch.bmm(seen.transpose(1, 2), seen) / some.shape[1])
    everything = (some * scale.transpose(1, 2)).square().sum((1, 2)) / some.shape[1]
    return (
        torch.bmm(basis, turn),
        values.clamp(min=0),
        ((everything - values.sum(1)) / max(1, width - rank)).clamp(min=0),
    )


def precondition(gradient, mass, strength, basis, values, rest):
    """The gradient divided by a model of the Hessian: mass x (its leading eigenvalues, the rest's
    mean elsewhere) + strength.
    """
    elsewhere = 1 / (strength + mass * rest[:, None])  # (groups, columns)
    lead = 1 / (strength[:, None] + mass[..., None] * values[:, None]) - elsewhere[..., None]  # (groups, columns, RANK)
    weight = elsewhere[..., None] * gradient[0] + torch.bmm(lead * torch.bmm(gradient[0], basis), basis.transpose(1, 2))
    return weight, gradient[1] / mass


def dot(a, b):
    """Inner products (groups, columns) of two points (weight, bias)."""
    return torch.linalg.vecdot(a[0], b[0]) + a[1] * b[1]
