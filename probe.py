"""Knowledge state probing (section 3.2): does the model know, before it answers, whether it knows?

Three internal representations are read at the last token of the prompt, in every decoder layer, by forward hooks on the
unmodified model: *attention* (the attention output before its output projection), *mlp* (the feed-forward output before
the residual connection) and *hidden* (the layer's output; the last layer's is taken before the final norm). On each a
single linear layer predicts Known / Unknown. All layers and repeats are fitted in one batched second-order solve.

What is stricter than in the paper: the layer, the kind and the strength of L2 are chosen on a validation split, and the
test split is looked at once. Left out: probes of more than one layer, fine-tuning.
"""
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F

from lm import batches_by_length, generator_for, pad_left, positions

KINDS = ("attention", "mlp", "hidden")
ATTENTION_NAMES = ("self_attn", "self_attention", "attention", "attn")
PROJECTION_NAMES = ("o_proj", "out_proj", "c_proj", "dense")


@dataclass
class ProbeConfig:
    k: int = 5                    # answers sampled a question (paper: 5)
    rule: str = "gold"            # which questions are known: "gold" (hits, below) or "percentile" (the paper's)
    known_share: float = 0.5      # gold: known from this share of right samples on, if the greedy answer is right too
    unknown_share: float = 0.0    # gold: unknown up to this share of right samples; between the two a question is left out
    upper: float = 65.0           # percentile: samples above are correct (paper: 65)
    lower: float = 35.0           # percentile: samples below are incorrect (paper: 35)
    repeats: int = 10             # random splits (paper: 10)
    valid: float = 0.2            # share of the subjects that chooses layer, kind and l2
    test: float = 0.2             # share of the subjects that is looked at once
    l2: tuple = (1.0, 10.0, 100.0, 1000.0, 10000.0)  # strengths tried, for the sum of losses over the questions
    rows: int = 32                # prompts a forward pass


# ---------------------------------------------------------------------------------------------------- labels

def prelabel(scores, upper=65.0, lower=35.0):
    """The paper's pre-labels. scores (questions, k): sums of normalised consistency scores. Returns (questions,) of 1, 0, -1.

    A sample above the `upper` percentile of all scores is correct, one below the `lower` incorrect; a question is known
    (1) where all k are correct, unknown (0) where all are incorrect, and otherwise left out (-1).
    """
    high, low = np.percentile(scores, upper), np.percentile(scores, lower)
    return np.where((scores > high).all(1), 1, np.where((scores < low).all(1), 0, -1))


def gold_label(hits, greedy_right, known_share=0.5, unknown_share=0.0):
    """Labels from hits (questions, k) bool and greedy_right (questions,) bool: 1 known, 0 unknown, -1 left out."""
    share = hits.mean(1)
    known = (share >= known_share) & greedy_right
    return np.where(known, 1, np.where((share <= unknown_share) & ~greedy_right, 0, -1))


# ---------------------------------------------------------------------------------------------------- activations

def child(module, names):
    """The first submodule of `module` that has one of `names`, or None."""
    return next((getattr(module, name) for name in names if hasattr(module, name)), None)


def decoder_layers(model):
    """The model's decoder layers: the one module list as long as its config says."""
    count = model.config.get_text_config().num_hidden_layers
    for module in model.modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == count:
            return module
    raise ValueError(f"{type(model).__name__}: found no list of {count} decoder layers")


def hook_points(layer):
    """{"attention": module whose input is read, "mlp": module whose output is read, "hidden": likewise} of one layer.

    A layer without a separate output projection of its attention has no "attention".
    """
    attention = child(layer, ATTENTION_NAMES)
    projection = child(attention, PROJECTION_NAMES) if attention is not None else None
    points = {"attention": projection, "mlp": child(layer, ("mlp", "feed_forward")), "hidden": layer}
    return {kind: module for kind, module in points.items() if module is not None}


@torch.no_grad()
def capture(lm, prompts, rows=32, progress=lambda n: None):
    """Representations of the last prompt token: {kind: (prompts, layers, width)}, float32 on the CPU.

    One forward pass of the trunk without language-model head; of each layer only the last token is kept.
    """
    layers = decoder_layers(lm.model)
    store, hooks, batch = {}, [], []

    def keep(kind, number, states):
        if kind not in store:
            store[kind] = torch.zeros(len(prompts), len(layers), states.shape[-1])
        store[kind][batch, number] = states[:, -1].float().cpu()

    for number, layer in enumerate(layers):
        for kind, module in hook_points(layer).items():
            if kind == "attention":
                hooks.append(module.register_forward_pre_hook(
                    lambda _, args, kind=kind, number=number: keep(kind, number, args[0])))
            else:
                hooks.append(module.register_forward_hook(
                    lambda _, args, out, kind=kind, number=number: keep(kind, number, out[0] if isinstance(out, tuple) else out)))
    try:
        for batch in batches_by_length([len(p) for p in prompts], rows):
            ids, mask = pad_left([prompts[i] for i in batch], lm.device)
            assert ids[:, -1].tolist() == [prompts[i][-1] for i in batch], "the last column must hold the last prompt tokens"
            with lm.autocast():
                lm.model.base_model(input_ids=ids, attention_mask=mask, position_ids=positions(mask), use_cache=False)
            progress(len(batch))
    finally:
        for hook in hooks:
            hook.remove()
    return store


# ---------------------------------------------------------------------------------------------------- fitting

def split_by_group(groups, labels, config, seed):
    """(repeats, questions) of 0 train, 1 validation, 2 test, -1 unlabelled. All questions of a group stay together."""
    names = sorted(set(groups))
    place = {name: i for i, name in enumerate(names)}
    member = np.array([place[g] for g in groups])
    parts = np.full((config.repeats, len(groups)), -1)
    for repeat in range(config.repeats):
        order = torch.randperm(len(names), generator=generator_for(seed, f"probe split {repeat}")).numpy()
        rank = np.empty(len(names), int)
        rank[order] = np.arange(len(names))
        share = (rank[member] + 0.5) / len(names)
        part = np.where(share < config.test, 2, np.where(share < config.test + config.valid, 1, 0))
        parts[repeat] = np.where(labels >= 0, part, -1)
    return parts


def fit_probes(features, targets, train, l2, tolerance=1e-5, most_steps=30):
    """Logistic regressions with L2, all at once: Newton's method, its steps by conjugate gradients.

    features (groups, questions, width): one group a layer. targets (questions,) in [0, 1]: labels or soft ones.
    train (repeats, questions) bool: the rows that each repeat learns from. l2: strengths, each (lambda / 2) |w|^2 beside
    the sum of the losses; the bias is free. Features are standardised by each repeat's training rows.
    Returns weight (groups, repeats, strengths, width) and bias (groups, repeats, strengths) for the features as given.
    """
    groups, questions, width = features.shape
    repeats, strengths = len(train), len(l2)
    centre = features.mean(1, keepdim=True)                                                    # far from 0 in real models
    features = features - centre
    used = torch.as_tensor(np.asarray(train), dtype=torch.float32).T                           # (questions, repeats)
    count = used.sum(0)
    mean = torch.einsum("gnd,nr->gdr", features, used) / count                                 # (groups, width, repeats)
    square = torch.einsum("gnd,nr->gdr", features**2, used) / count
    variance = square - mean**2
    scale = torch.where(variance > 1e-6 * square + 1e-12, variance.sqrt(), float("inf"))       # a constant has no say
    columns = lambda t: t.repeat_interleave(strengths, -1)                                     # repeats -> columns
    mean, scale, used = columns(mean), columns(scale), columns(used)
    lam = torch.tensor(l2, dtype=torch.float32).repeat(repeats)                                # (columns,)
    target = torch.as_tensor(np.asarray(targets), dtype=torch.float32)[None, :, None]

    def forward(w, b):                                                                         # -> (groups, questions, columns)
        w = w / scale
        return torch.bmm(features, w) + (b - (mean * w).sum(1))[:, None]

    def adjoint(r):                                                                            # -> (groups, width, columns), (groups, columns)
        total = r.sum(1)
        return (torch.bmm(features.transpose(1, 2), r) - mean * total[:, None]) / scale, total

    def objective(w, z):
        loss = (F.softplus(z) - target * z) * used
        return loss.sum(1) + 0.5 * lam * (w**2).sum(1)                                         # (groups, columns)

    def dot(a, b):
        return (a[0] * b[0]).sum(1) + a[1] * b[1]                                              # (groups, columns)

    size = (groups, width, repeats * strengths)
    w, b = torch.zeros(size), torch.zeros(groups, repeats * strengths)
    z = forward(w, b)
    value = objective(w, z)
    first = None
    for _ in range(most_steps):
        p = z.sigmoid()
        gw, gb = adjoint((p - target) * used)
        gw = gw + lam * w
        norm = dot((gw, gb), (gw, gb)).sqrt()
        first = norm if first is None else first
        if (norm <= tolerance * first).all():
            break
        curvature = (p * (1 - p) * used).clamp(min=1e-10)
        mass = curvature.sum(1)                                                                # of the bias, and nearly of each feature
        # Preconditioned conjugate gradients for H s = -g; the preconditioner is the diagonal under unit-variance features.
        precondition = lambda v: (v[0] / (mass[:, None] + lam), v[1] / mass)
        step = (torch.zeros_like(w), torch.zeros_like(b))
        rest = (-gw, -gb)
        search = toward = precondition(rest)
        energy = dot(rest, toward)
        goal = energy * 1e-4
        for _ in range(60):
            hw, hb = adjoint(curvature * forward(*search))
            hw = hw + lam * search[0]
            alpha = energy / dot(search, (hw, hb)).clamp(min=1e-30)
            step = (step[0] + alpha[:, None] * search[0], step[1] + alpha * search[1])
            rest = (rest[0] - alpha[:, None] * hw, rest[1] - alpha * hb)
            toward = precondition(rest)
            fresh = dot(rest, toward)
            if (fresh <= goal).all():
                break
            beta = fresh / energy.clamp(min=1e-30)
            search, energy = (toward[0] + beta[:, None] * search[0], toward[1] + beta * search[1]), fresh
        size = torch.ones_like(value)
        for _ in range(8):                                                                     # halve the steps that overshoot
            z_new = forward(w + size[:, None] * step[0], b + size * step[1])
            new = objective(w + size[:, None] * step[0], z_new)
            worse = new > value + 1e-6 * value.abs()
            if not worse.any():
                break
            size = torch.where(worse, size / 2, size)
        w, b, z, value = w + size[:, None] * step[0], b + size * step[1], z_new, new
    weight = w / scale
    bias = (b.double() - ((mean + centre.transpose(1, 2)).double() * weight).sum(1)).float()
    shape = (groups, repeats, strengths)
    return weight.transpose(1, 2).reshape(*shape, width), bias.reshape(shape)


def predict(features, weight, bias):
    """Logits (groups, repeats, strengths, questions) of probes on features (groups, questions, width)."""
    return torch.einsum("gnd,grsd->grsn", features, weight) + bias[..., None]


# ---------------------------------------------------------------------------------------------------- figures of merit

def auroc(scores, labels):
    """Area under the ROC curve: chance that a positive scores above a negative, ties half. NaN where one class is empty."""
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
    return float((predicted[labels].mean() + (~predicted[~labels]).mean()) / 2) if labels.any() and (~labels).any() else float("nan")


def measure(logits, labels):
    """{"accuracy", "balanced_accuracy", "auroc"} of logits against 0/1 labels."""
    logits, labels = np.asarray(logits), np.asarray(labels) == 1
    return {"accuracy": float(((logits > 0) == labels).mean()) if len(labels) else float("nan"),
            "balanced_accuracy": balanced_accuracy(logits > 0, labels), "auroc": auroc(logits, labels)}


def score_probes(logits, labels, parts):
    """One row a group: the strength of L2 is chosen on the validation split, then the test split is read once.

    logits (groups, repeats, strengths, questions), parts (repeats, questions). Rows hold "strength" (its index), "valid"
    (mean accuracy there) and, of the test split, mean, min and max accuracy, balanced accuracy and AUROC over the repeats.
    """
    rows = []
    logits = logits.numpy()
    for group in range(len(logits)):
        valid = [np.mean([measure(logits[group, r, s][parts[r] == 1], labels[parts[r] == 1])["accuracy"]
                          for r in range(len(parts))]) for s in range(logits.shape[2])]
        strength = int(np.argmax(valid))
        tests = [measure(logits[group, r, strength][parts[r] == 2], labels[parts[r] == 2]) for r in range(len(parts))]
        accuracy = [t["accuracy"] for t in tests]
        rows.append({"strength": strength, "valid": float(valid[strength]), "accuracy": float(np.mean(accuracy)),
                     "accuracy_min": min(accuracy), "accuracy_max": max(accuracy),
                     "balanced_accuracy": float(np.nanmean([t["balanced_accuracy"] for t in tests])),
                     "auroc": float(np.nanmean([t["auroc"] for t in tests]))})
    return rows


def out_of_fold(logits, parts):
    """P(known) (questions,) of the repeats' probes, logits (repeats, questions): the mean over the repeats that did not
    train on the question, so that a training question is not judged by what memorised its label."""
    probability = torch.as_tensor(logits).sigmoid().numpy()
    unseen = parts != 0
    unseen = unseen | (unseen.sum(0) == 0)
    return (probability * unseen).sum(0) / unseen.sum(0)


def bag_of_words(prompts):
    """(questions, distinct tokens) counts of token ids: what the text alone says. Tokens seen in one question are left out."""
    seen = {}
    for prompt in prompts:
        for token in set(prompt):
            seen[token] = seen.get(token, 0) + 1
    column = {token: i for i, token in enumerate(sorted(t for t, n in seen.items() if n > 1))}
    bag = torch.zeros(len(prompts), len(column))
    for row, prompt in enumerate(prompts):
        for token in prompt:
            if token in column:
                bag[row, column[token]] += 1
    return bag


def fit_everywhere(activations, labels, parts, config):
    """Probes on every layer and kind. Returns their rows, the one best on validation, and P(known) of all questions."""
    rows, best, n = [], None, len(labels)
    for kind, states in activations.items():
        features = states.transpose(0, 1).contiguous()                                     # (layers, questions, width)
        weight, bias = fit_probes(features[:, :n], labels.clip(0), parts == 0, config.l2)
        logits = predict(features, weight, bias)
        for layer, row in enumerate(score_probes(logits[..., :n], labels, parts)):
            rows.append({"kind": kind, "layer": layer + 1, "l2": config.l2[row["strength"]], **row})
            if best is None or row["valid"] > best["valid"]:
                best = {**rows[-1], "weight": weight[layer, :, row["strength"]].contiguous(),
                        "bias": bias[layer, :, row["strength"]].contiguous(), "logits": logits[layer, :, row["strength"]]}
    everywhere = np.concatenate([parts, np.full((len(parts), best["logits"].shape[1] - n), -1)], 1)
    return rows, best, out_of_fold(best["logits"], everywhere)


def controls(activations, best, labels, parts, config, seed, texts):
    """Rows of the controls: shuffled labels on the best representation, and features that see the text alone."""
    n = len(labels)
    shuffled = labels.copy()
    index = np.flatnonzero(labels >= 0)
    shuffled[index] = labels[index][torch.randperm(len(index), generator=generator_for(seed, "shuffle")).numpy()]
    cases = {"shuffled labels": (activations[best["kind"]][:n, best["layer"] - 1], shuffled), **{k: (v, labels) for k, v in texts.items()}}
    rows = []
    for name, (features, targets) in cases.items():
        weight, bias = fit_probes(features[None].contiguous(), targets.clip(0), parts == 0, config.l2)
        rows.append({"kind": name, "layer": "", **score_probes(predict(features[None], weight, bias), targets, parts)[0]})
    return rows
