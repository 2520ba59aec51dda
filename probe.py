"""Knowledge state probing (section 3.2): does the model know, before it answers, whether it knows?

Three internal representations are read at the last token of the prompt, in every decoder layer, by
forward hooks on the unmodified model: *attention* (the attention output before its output
projection), *mlp* (the feed-forward output before the residual connection) and *hidden* (the
layer's output; the last layer's is taken before the final norm). On each a single linear layer
predicts Known / Unknown; logistic.py fits them all at once.

    python probe.py --model MODEL --probes runs/NAME/probe "a question" ...

What is stricter than in the paper: the layers, the kind and the strength of L2 are chosen on a
validation split, and the test split is looked at once. The probe that goes on to be used averages
the logits of a few adjacent layers, and then the probabilities of the repeats' probes; temperature
and calibration error are those of the repeats' probes one by one. Left out: probes of more than one
layer of weights, fine-tuning. Controls and ablations: probe_study.py.
"""

import os
import sys
from dataclasses import dataclass

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from evaluation import metrics
from lm.batching import batches_by_length, behind_prefix, cache_argument, check_lengths, read_prefix
from lm.chat import chat_prompt
from lm.errors import UserError
from lm.layers import decoder_layers
from lm.logistic import fit_logistic
from lm.sampling import generator_for

ATTENTION_NAMES = ("self_attn", "self_attention", "attention", "attn")
PROJECTION_NAMES = ("o_proj", "out_proj", "c_proj", "dense")


@dataclass
class ProbeConfig:
    k: int = 5  # answers sampled a question (paper: 5)
    rule: str = "gold"  # which questions are known: "gold" (hits, below) or "percentile" (the paper's)
    known_share: float = 0.5  # gold: known from this share of right samples on, if the greedy answer is right too
    # gold: unknown up to this share of right samples; between the two a question is left out
    unknown_share: float = 0.0
    upper: float = 65.0  # percentile: samples above are correct (paper: 65)
    lower: float = 35.0  # percentile: samples below are incorrect (paper: 35)
    repeats: int = 10  # random splits (paper: 10)
    valid: float = 0.2  # share of the subjects that chooses layers, kind and l2
    test: float = 0.2  # share of the subjects that is looked at once
    l2: tuple = (10.0, 30.0, 100.0, 300.0, 1000.0, 10000.0)  # strengths tried, for the sum of losses over the questions
    band: int = 5  # adjacent layers whose logits the probe in use averages (paper: 1)
    standardise: bool = False  # each feature to deviation 1, or all of a layer by one number
    rows: int = 32  # prompts a forward pass


# ------------------------------------------------------------------------------------------- labels


def prelabel(scores, upper=65.0, lower=35.0):
    """The paper's pre-labels. scores (questions, k): sums of normalised consistency scores. Returns
    (questions,) of 1, 0, -1.

    A sample above the `upper` percentile of all scores is correct, one below the `lower` incorrect;
    a question is known (1) where all k are correct, unknown (0) where all are incorrect, and
    otherwise left out (-1).
    """
    high, low = np.percentile(scores, upper), np.percentile(scores, lower)
    return np.where((scores > high).all(1), 1, np.where((scores < low).all(1), 0, -1))


def gold_label(hits, greedy_right, known_share=0.5, unknown_share=0.0):
    """Labels from hits (questions, k) bool and greedy_right (questions,) bool: 1 known, 0 unknown,
    -1 left out.
    """
    share = hits.mean(1)
    known = (share >= known_share) & greedy_right
    return np.where(known, 1, np.where((share <= unknown_share) & ~greedy_right, 0, -1))


# -------------------------------------------------------------------------------------- activations


def child(module, names):
    """The first submodule of `module` that has one of `names`, or None."""
    return next((getattr(module, name) for name in names if hasattr(module, name)), None)


def hook_points(layer):
    """{"attention": module whose input is read, "mlp": module whose output is read, "hidden":
    likewise} of one layer.

    A layer without a separate output projection of its attention has no "attention".
    """
    attention = child(layer, ATTENTION_NAMES)
    projection = child(attention, PROJECTION_NAMES) if attention is not None else None
    points = {"attention": projection, "mlp": child(layer, ("mlp", "feed_forward")), "hidden": layer}
    return {kind: module for kind, module in points.items() if module is not None}


@torch.no_grad()
def capture(lm, prompts, rows=32, progress=lambda n: None):
    """Representations of the last prompt token: {kind: (prompts, layers, width)}, float32 on the
    CPU.

    One forward pass of the trunk without language-model head; of each layer only the last token is
    kept. What all prompts begin with is read once.
    """
    layers, trunk = decoder_layers(lm.model), lm.model.base_model
    check_lengths(lm, prompts)
    prefix = read_prefix(lm, prompts) if prompts else None
    store, hooks, batch = {}, [], []

    def keep(kind, number, states):
        if kind not in store:
            store[kind] = torch.zeros(len(prompts), len(layers), states.shape[-1])
        store[kind][batch, number] = states[:, -1].float().cpu()

    for number, layer in enumerate(layers):
        for kind, module in hook_points(layer).items():
            if kind == "attention":
                hooks.append(
                    module.register_forward_pre_hook(
                        lambda _, args, kind=kind, number=number: keep(kind, number, args[0])
                    )
                )
            else:
                hooks.append(
                    module.register_forward_hook(
                        lambda _, args, out, kind=kind, number=number: keep(
                            kind, number, out[0] if isinstance(out, tuple) else out
                        )
                    )
                )
    try:
        for batch in batches_by_length([len(p) for p in prompts], rows):
            inputs, cache = behind_prefix(lm, [prompts[i] for i in batch], prefix)
            assert inputs["input_ids"][:, -1].tolist() == [prompts[i][-1] for i in batch], (
                "the last column must hold the last prompt tokens"
            )
            with lm.autocast():
                trunk(**inputs, **{cache_argument(trunk): cache, "use_cache": True})
            progress(len(batch))
    finally:
        for hook in hooks:
            hook.remove()
    return store


# -------------------------------------------------------------------------------- splits and choice


def split_by_group(groups, config, seed):
    """(repeats, questions) of 0 train, 1 validation, 2 test. All questions of a group stay
    together.
    """
    names = sorted(set(groups))
    place = {name: i for i, name in enumerate(names)}
    member = np.array([place[g] for g in groups])
    parts = np.zeros((config.repeats, len(groups)), int)
    for repeat in range(config.repeats):
        order = torch.randperm(len(names), generator=generator_for(seed, f"probe split {repeat}")).numpy()
        rank = np.empty(len(names), int)
        rank[order] = np.arange(len(names))
        share = (rank[member] + 0.5) / len(names)
        parts[repeat] = np.where(share < config.test, 2, np.where(share < config.test + config.valid, 1, 0))
    return parts


def logits_everywhere(activations, targets, train, l2, standardise):
    """Probes on every layer of every kind: {kind: (weight, bias, logits)}.

    activations {kind: (all questions, layers, width)}; the first len(targets) questions are learnt
    from where `train` (repeats, len(targets)) says so. Shapes (layers, repeats, strengths, width),
    (layers, repeats, strengths), and (layers, repeats, strengths, all questions).
    """
    found = {}
    for kind, states in activations.items():
        features = states.transpose(0, 1)  # (layers, questions, width)
        weight, bias = fit_logistic(features[:, : len(targets)], targets, train, l2, standardise)
        found[kind] = weight, bias, predict(features, weight, bias)
    return found


def predict(features, weight, bias):
    """Logits (groups, repeats, strengths, questions) of probes on features (groups, questions,
    width).
    """
    return torch.einsum("gnd,grsd->grsn", features, weight) + bias[..., None]


def band_of(layer, layers, width):
    """The `width` adjacent layers around `layer` (indices from 0), fewer at either end of the
    `layers`.
    """
    first = max(0, layer - (width - 1) // 2)
    return range(first, min(layers, layer + width // 2 + 1))


def banded(logits, width):
    """Mean of the logits (layers, ...) over the band around each layer."""
    return torch.stack([logits[list(band_of(layer, len(logits), width))].mean(0) for layer in range(len(logits))])


def score_probes(logits, labels, parts):
    """One row a group: the strength of L2 is chosen on the validation split, then the test split is
    read once.

    logits (groups, repeats, strengths, questions), labels (questions,), parts (repeats, questions).
    Rows hold "strength" (its index), "valid_loss" (mean log loss there, nats) and, of the test
    split, mean, min and max accuracy, balanced accuracy and AUROC over the repeats.
    """
    rows = []
    logits = logits.numpy()
    for group in logits:
        valid = np.nanmean(
            [metrics.log_loss(z[:, part == 1], labels[part == 1]) for z, part in zip(group, parts)], 0
        )  # (strengths,)
        strength = int(np.argmin(valid))
        tests = [metrics.measure(z[strength][part == 2], labels[part == 2]) for z, part in zip(group, parts)]
        accuracy = [t["accuracy"] for t in tests]
        rows.append(
            {
                "strength": strength,
                "valid_loss": float(valid[strength]),
                "accuracy": float(np.mean(accuracy)),
                "accuracy_min": min(accuracy),
                "accuracy_max": max(accuracy),
                "balanced_accuracy": float(np.nanmean([t["balanced_accuracy"] for t in tests])),
                "auroc": float(np.nanmean([t["auroc"] for t in tests])),
            }
        )
    return rows


def choose(found, labels, parts, band):
    """The probe in use: of all kinds and bands of layers the one with the least loss on validation.

    found: of logits_everywhere. Returns its row with "kind", "layers" (indices), "logits" (repeats,
    all questions).
    """
    best, n = None, len(labels)
    for kind, (_, _, logits) in found.items():
        averaged = banded(logits, band)
        for layer, row in enumerate(score_probes(averaged[..., :n], labels, parts)):
            if best is None or row["valid_loss"] < best["valid_loss"]:
                best = {
                    "kind": kind,
                    "layers": list(band_of(layer, len(logits), band)),
                    **row,
                    "logits": averaged[layer, :, row["strength"]],
                }
    return best


def out_of_fold(logits, parts):
    """P(known) (questions,) of the repeats' probes, logits (repeats, questions): the mean over the
    repeats that did not train on the question, so that a training question is not judged by what
    memorised its label.
    """
    probability = torch.as_tensor(logits).sigmoid().numpy()
    unseen = parts != 0
    unseen = unseen | (unseen.sum(0) == 0)
    return (probability * unseen).sum(0) / unseen.sum(0)


def calibrate(best, labels, parts):
    """Temperature of the probe from the validation splits, and its calibration error on the test
    splits, before and after.
    """
    logits = best["logits"].numpy()[:, : len(labels)]
    pooled = lambda part: (logits[parts == part], np.broadcast_to(labels, parts.shape)[parts == part])
    temperature = metrics.temperature(*pooled(1))
    test, truth = pooled(2)
    error = lambda z: metrics.calibration_error(torch.tensor(z).sigmoid().numpy(), truth)
    return temperature, error(test), error(test / temperature)


# --------------------------------------------------------------------------------- the probe in use


@dataclass
class Probe:
    """P(known) = mean over repeats of sigmoid((mean over layers of ((x - mean) / scale) . weight +
    bias) / temperature).
    """

    kind: str
    layers: list  # indices from 0
    mean: torch.Tensor  # (layers, width)
    scale: torch.Tensor  # (layers, width)
    weight: torch.Tensor  # (repeats, layers, width)
    bias: torch.Tensor  # (repeats, layers)
    temperature: float

    def p_known(self, activations):
        """(questions,) from {kind: (questions, layers, width)} of `capture`."""
        x = (activations[self.kind][:, self.layers] - self.mean) / self.scale
        logits = (torch.einsum("nld,rld->rnl", x, self.weight) + self.bias[:, None]).mean(2)  # (repeats, questions)
        return (logits / self.temperature).sigmoid().mean(0)


def probe_in_use(best, found, activations, temperature):
    """The chosen probe with everything that applying it needs. Mean and scale are those of the
    questions in `activations`.
    """
    weight, bias, _ = found[best["kind"]]
    weight = weight[best["layers"], :, best["strength"]].transpose(0, 1)  # (repeats, layers, width)
    bias = bias[best["layers"], :, best["strength"]].T
    x = activations[best["kind"]][:, best["layers"]]
    mean, scale = x.mean(0), x.std(0).clamp(min=1e-6)
    shift = torch.linalg.vecdot(mean.double(), weight.double()).float()
    return Probe(best["kind"], best["layers"], mean, scale, weight * scale, bias + shift, temperature)


# --------------------------------------------------------------------------------- the whole of 3.2


@dataclass
class Fitted:
    """The probe in use, what it says of every question, and how it was found."""

    in_use: Probe
    p_known: np.ndarray  # (all questions,), of a training question by probes that have not seen it
    best: dict  # the row of `choose`
    found: dict  # all probes: of `logits_everywhere`
    labels: np.ndarray  # (training questions,) 1 known, 0 unknown, -1 left out
    splits: np.ndarray  # (repeats, training questions) 0 train, 1 validation, 2 test
    parts: np.ndarray  # the same, -1 where a question's label is
    temperature: float
    ece_uncalibrated: float
    ece: float


def fit(activations, labels, groups, config, seed):
    """Fit probes on every layer, choose one by validation, calibrate it: Fitted (section 3.2).

    activations {kind: (all questions, layers, width)}, of which the first len(labels) questions are
    the training questions; groups: their subjects. Raises UserError where a split lacks a label.
    """
    splits = split_by_group(groups, config, seed)
    parts = np.where(labels >= 0, splits, -1)
    if any(set(labels[part == 0]) != {0, 1} or not (part == 1).any() or not (part == 2).any() for part in parts):
        raise UserError(
            f"--probe.valid {config.valid}, --probe.test {config.test}: of {len(set(groups))} subjects they leave no"
            " known and unknown question to train on, none to choose by or none to test on"
        )
    found = logits_everywhere(activations, labels.clip(0), parts == 0, config.l2, config.standardise)
    best = choose(found, labels, parts, config.band)
    temperature, ece_uncalibrated, ece = calibrate(best, labels, parts)
    everyone = best["logits"].shape[1]
    unseen = np.full((config.repeats, everyone - len(labels)), -1)
    p_known = out_of_fold(best["logits"] / temperature, np.concatenate([parts, unseen], 1))
    in_use = probe_in_use(best, found, activations, temperature)
    return Fitted(in_use, p_known, best, found, labels, splits, parts, temperature, ece_uncalibrated, ece)


# ----------------------------------------------------------------------------------------- on disk


def save(probe, folder, model):
    """Write probes.safetensors; `model` names the language model that it reads."""
    tensors = {name: getattr(probe, name).contiguous() for name in ("mean", "scale", "weight", "bias")}
    save_file(
        {**tensors, "temperature": torch.tensor(probe.temperature)},
        os.path.join(folder, "probes.safetensors"),
        {"kind": probe.kind, "layers": ",".join(str(i + 1) for i in probe.layers), "model": model},
    )


def load(path):
    """Probe from a run's probe folder or its probes.safetensors. Raises UserError where it is not
    one.
    """
    path = os.path.join(path, "probes.safetensors") if os.path.isdir(path) else path
    try:
        with safe_open(path, "pt") as f:
            about, tensors = f.metadata() or {}, {name: f.get_tensor(name) for name in f.keys()}
        layers = [int(i) - 1 for i in about["layers"].split(",")]
        found = Probe(
            about["kind"],
            layers,
            *(tensors[name] for name in ("mean", "scale", "weight", "bias")),
            tensors["temperature"].item(),
        )
        repeats, width = len(found.weight), found.mean.shape[-1]
        if [t.shape for t in (found.mean, found.scale, found.weight, found.bias)] != [
            (len(layers), width),
            (len(layers), width),
            (repeats, len(layers), width),
            (repeats, len(layers)),
        ] or min(layers) < 0:
            raise ValueError
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    except (SafetensorError, KeyError, ValueError, TypeError, IndexError, RuntimeError):
        raise UserError(f"{path}: not a file of probes (expected what the probe stage writes)") from None
    return found


def p_known(lm, probe, questions, rows=32):
    """P(known) (questions,) of question texts. Raises UserError where the probe was made for
    another architecture.
    """
    activations = capture(lm, [chat_prompt(lm, q) for q in questions], rows)
    shape = tuple(activations[probe.kind].shape[1:]) if probe.kind in activations else (0, 0)
    if max(probe.layers) >= shape[0] or probe.mean.shape[1] != shape[1]:
        raise UserError(
            f"the probe reads {probe.kind} of layers {probe.layers[0] + 1} to {probe.layers[-1] + 1}, width"
            f" {probe.mean.shape[1]}; this model has {shape[0]} layers of width {shape[1]}"
        )
    return probe.p_known(activations)


if __name__ == "__main__":
    from experiment.probing import main

    sys.exit(main(sys.argv[1:]))
