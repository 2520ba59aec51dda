"""What stands beside a probe's figure before it means anything: controls and ablations (for section
3.2).

Controls see what is not knowledge: shuffled labels; the question's text alone, as counts of its
tokens and as a sentence embedding; and the confidence of the greedy answer, for which nothing needs
to be probed. Ablations change one thing of the probe at a time. All use the probe's own splits,
choose on validation and read the test split once. Left out: controls that need another language
model.
"""

import numpy as np
import torch

import probe
from lm.logistic import fit_logistic
from lm.sampling import generator_for

BANDS = (1, 3, 5, 9)  # adjacent layers averaged
SHARES = (0.125, 0.25, 0.5)  # of the training questions: the learning curve


def bag_of_words(prompts):
    """(questions, distinct tokens) counts of token ids: what the text alone says. Tokens seen in
    one question are left out.
    """
    seen = {}
    for prompt in prompts:
        for token in set(prompt):
            seen[token] = seen.get(token, 0) + 1
    column = {token: i for i, token in enumerate(sorted(t for t, n in seen.items() if n > 1))}
    bag = torch.zeros(len(prompts), max(1, len(column)))
    for row, prompt in enumerate(prompts):
        for token in prompt:
            if token in column:
                bag[row, column[token]] += 1
    return bag


def majority(labels):
    """Row of the constant answer: the larger class's share of the labelled questions."""
    known, unknown = (labels == 1).sum(), (labels == 0).sum()
    return {
        "kind": "majority",
        "accuracy": float(max(known, unknown) / (known + unknown)),
        "balanced_accuracy": 0.5,
        "auroc": 0.5,
    }


def controls(activations, best, labels, parts, config, seed, texts):
    """Rows of the controls: shuffled labels on the chosen representation, and `texts` {name:
    features (questions, width)}.
    """
    n = len(labels)
    shuffled = labels.copy()
    index = np.flatnonzero(labels >= 0)
    shuffled[index] = labels[index][torch.randperm(len(index), generator=generator_for(seed, "shuffle")).numpy()]
    chosen = activations[best["kind"]][:n, best["layers"]].transpose(0, 1)  # (layers of the band, questions, width)
    cases = {
        "shuffled labels": (chosen, shuffled),
        **{name: (features[None], labels) for name, features in texts.items()},
    }
    rows = []
    for name, (features, targets) in cases.items():
        weight, bias = fit_logistic(features, targets.clip(0), parts == 0, config.l2, config.standardise)
        logits = probe.predict(features, weight, bias).mean(0, keepdim=True)
        rows.append({"kind": name, **probe.score_probes(logits, targets, parts)[0]})
    return rows + [majority(labels)]


def ablations(activations, found, hits, labels, everyone, config, seed, progress=lambda n: None):
    """Rows, one a variant of the probe: band of layers, kind, soft targets, standardising, number
    of questions.

    found: the default's logits_everywhere. hits (questions,): share of right samples. everyone
    (repeats, questions): the parts of all questions, labelled or not. `progress(1)` is called after
    each variant that needs new probes.
    """
    n = len(labels)
    activations = {kind: states[:n] for kind, states in activations.items()}
    parts, hard = np.where(labels >= 0, everyone, -1), labels.clip(0)
    kinds = {f"{kind} alone": {kind: found[kind]} for kind in found}
    rows = [row("as set", found, labels, parts, config.band)]
    rows += [
        row(f"{width} adjacent layers" if width > 1 else "one layer", found, labels, parts, width)
        for width in BANDS
        if width != config.band
    ]
    rows += [row(name, only, labels, parts, config.band) for name, only in kinds.items()]
    standard = config.standardise
    refits = {
        "soft targets": (hits, parts == 0, standard),
        "soft targets, also of questions left out": (hits, everyone == 0, standard),
        "not standardised" if standard else "standardised": (hard, parts == 0, not standard),
    }
    for share in SHARES:
        refits[f"{share:.1%} of the training questions"] = hard, (parts == 0) & thinned(everyone, share, seed), standard
    for name, (targets, train, standardise) in refits.items():
        rows.append(
            row(
                name,
                probe.logits_everywhere(activations, targets, train, config.l2, standardise),
                labels,
                parts,
                config.band,
            )
        )
        progress(1)
    return rows


def row(variant, found, labels, parts, band):
    """The row of a variant: its probe chosen on validation, read on the test splits."""
    best = probe.choose(found, labels, parts, band)
    return {"variant": variant, **{key: value for key, value in best.items() if key not in ("logits", "strength")}}


def thinned(everyone, share, seed):
    """(repeats, questions) bool: a random `share` of the questions, the same for all repeats."""
    keep = torch.rand(everyone.shape[1], generator=generator_for(seed, "learning curve")).numpy() < share
    return np.broadcast_to(keep, everyone.shape)
