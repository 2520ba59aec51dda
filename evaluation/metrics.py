"""Figures of merit of a score against labels: accuracy, AUROC, calibration, and intervals. One
place, used everywhere.

Left out: several classes, weights.
"""

import math

import numpy as np

T_95 = (
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
)  # Student's t at 97.5%, 1 to 9 degrees of freedom


def auroc(scores, labels):
    """Area under the ROC curve: chance that a positive scores above a negative, ties half. NaN
    where one class is empty.
    """
    scores, labels = np.asarray(scores, float), np.asarray(labels, bool)
    positives, negatives = labels.sum(), (~labels).sum()
    if not positives or not negatives:
        return float("nan")
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    rank = (counts.cumsum() - (counts - 1) / 2)[inverse]
    return float((rank[labels].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def balanced_accuracy(predicted, labels):
    """Mean of the accuracies on the two classes; NaN where one is empty."""
    predicted, labels = np.asarray(predicted, bool), np.asarray(labels, bool)
    return (
        float((predicted[labels].mean() + (~predicted[~labels]).mean()) / 2)
        if labels.any() and (~labels).any()
        else float("nan")
    )


def measure(logits, labels):
    """{"accuracy", "balanced_accuracy", "auroc"} of logits against 0/1 labels; above 0 means 1."""
    logits, labels = np.asarray(logits), np.asarray(labels) == 1
    return {
        "accuracy": float(((logits > 0) == labels).mean()) if len(labels) else float("nan"),
        "balanced_accuracy": balanced_accuracy(logits > 0, labels),
        "auroc": auroc(logits, labels),
    }


def log_loss(logits, labels):
    """Mean negative log-likelihood in nats of 0/1 labels under logits (..., questions); an axis
    less. NaN without questions.
    """
    logits = np.asarray(logits, float)
    if not logits.shape[-1]:
        return np.full(logits.shape[:-1], np.nan)
    return (np.logaddexp(0, logits) - np.asarray(labels) * logits).mean(-1)


def reliability(probability, labels, bins=10):
    """[(mean probability, share of positives, number)] of the bins of equal width that hold any:
    the points of a reliability diagram.
    """
    probability, labels = np.asarray(probability, float), np.asarray(labels, float)
    bin_of = np.minimum((probability * bins).astype(int), bins - 1)
    return [
        (float(probability[bin_of == b].mean()), float(labels[bin_of == b].mean()), int((bin_of == b).sum()))
        for b in np.unique(bin_of)
    ]


def calibration_error(probability, labels, bins=10):
    """ECE: mean distance between the stated probability and the share of positives, over
    equal-width bins by their sizes.
    """
    gaps = [n * abs(stated - share) for stated, share, n in reliability(probability, labels, bins)]
    return float(sum(gaps) / len(labels)) if len(labels) else float("nan")


def brier(probability, labels):
    """Mean squared distance between the stated probability and the 0/1 label (Brier's score). NaN
    without questions.
    """
    return (
        float(((np.asarray(probability, float) - np.asarray(labels, float)) ** 2).mean())
        if len(labels)
        else float("nan")
    )


def risk_coverage(scores, right):
    """Risks (n,): share of wrong ones among the 1, 2, ... n answers of highest score. Errors are
    spread evenly over equal scores.
    """
    wrong = 1 - np.asarray(right, float)
    _, place, counts = np.unique(-np.asarray(scores, float), return_inverse=True, return_counts=True)
    spread = np.repeat(np.bincount(place, wrong, len(counts)) / counts, counts)  # (n,), highest score first
    return spread.cumsum() / np.arange(1, len(wrong) + 1)


def aurc(scores, right):
    """Area under the risk-coverage curve: its mean risk; the lower, the better. NaN without
    answers.
    """
    return float(risk_coverage(scores, right).mean()) if len(right) else float("nan")


def temperature(logits, labels):
    """The number that logits are best divided by (least log loss), to 1%, between 0.05 and 20; 1
    without any.
    """
    if not len(logits):
        return 1.0
    candidates = np.exp(np.linspace(np.log(0.05), np.log(20), 601))
    return float(candidates[np.argmin([log_loss(np.asarray(logits) / t, labels) for t in candidates])])


def bootstrap_interval(statistic, n, resamples=1000, seed=0):
    """95% intervals over resamples, with replacement, of the indices 0..n-1. `statistic(index)` is
    a number or several.

    Returns (low, high), each as `statistic` returns; resamples that give NaN do not count.
    """
    generator = np.random.default_rng(seed)
    values = [statistic(generator.integers(n, size=n)) for _ in range(resamples)]
    return tuple(np.nanpercentile(np.array(values), (2.5, 97.5), axis=0).tolist())


def mean_interval(values):
    """(mean, low, high): the 95% interval of a mean over seeds, by Student's t (over more than ten
    a little too wide); no width for a single one.
    """
    n, mean = len(values), float(np.mean(values))
    half = T_95[min(n, 10) - 2] * float(np.std(values, ddof=1)) / n**0.5 if n > 1 else 0.0
    return mean, mean - half, mean + half


def wilson_interval(right, n, z=1.959964):
    """95% interval [low, high] of a share of `right` of n (Wilson's score interval: sound for few
    cases and near 0 and 1).
    """
    share, scale = right / n, 1 + z * z / n
    centre = (share + z * z / (2 * n)) / scale
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / scale
    return [max(0.0, centre - half), min(1.0, centre + half)]
