"""The probe stage around probe.py: labels of the questions, what its tables hold; and the command

python probe.py --model MODEL --probes runs/NAME/probe "a question" ...
"""

import argparse
import os
import sys

import torch
from transformers.utils import logging as transformers_logging

import dreamcatcher
import embed
import probe
from data.files import write_jsonl
from experiment import probe_study, tables
from experiment.progress import bar, say
from lm import model as language_model
from lm.errors import UserError, exit_status, raise_user_error

FEWEST = 10  # known and unknown questions without which no probe is fitted


def label_questions(embedder, questions, generations, hits, greedy_right, config, model):
    """(questions,) 1 known, 0 unknown, -1 left out, by config.rule (probe.ProbeConfig).

    hits (questions, k) bool, greedy_right (questions,) bool. Raises UserError, naming the `model`,
    where there are too few of either.
    """
    if config.rule == "percentile":
        scores = dreamcatcher.score_generations(embedder, questions, generations)
        summed = dreamcatcher.factuality(scores, ("s_s2g", "s_o2a", "s_s2a")).numpy()
        labels = probe.prelabel(summed, config.upper, config.lower)
    else:
        labels = probe.gold_label(hits, greedy_right, config.known_share, config.unknown_share)
    known, unknown = (labels == 1).sum(), (labels == 0).sum()
    if min(known, unknown) < FEWEST:
        raise UserError(
            f"{model}: only {known} known and {unknown} unknown questions among {len(questions)}; a probe needs at"
            f" least {FEWEST} of each (easier, harder or more --questions)"
        )
    return labels


def capture(lm, prompts, rows, model):
    """probe.capture under a bar; says so where the `model` has no attention output of its own."""
    with bar(len(prompts), "prompts", "capturing activations") as tick:
        activations = probe.capture(lm, prompts, rows, tick)
    if "attention" not in activations:
        say(f"  {model}: no layer has an attention output of its own; only mlp and hidden are probed")
    return activations


def place_of(fitted):
    """The layers of the probe in use, in words."""
    first, last = fitted.best["layers"][0] + 1, fitted.best["layers"][-1] + 1
    return f"{fitted.best['kind']} of " + (f"layer {first}" if first == last else f"layers {first}-{last}")


def accuracy_rows(fitted, activations, texts, config, seed):
    """Figures 2 and 4 as rows: every probe, the one in use, and the controls (probe_study.py).

    texts {control: features (training questions, width)}: what sees the question alone.
    """
    rows = []
    for kind, (_, _, logits) in fitted.found.items():
        scored = probe.score_probes(logits[..., : len(fitted.labels)], fitted.labels, fitted.parts)
        rows += [{"kind": kind, "layer": layer, **row} for layer, row in enumerate(scored, 1)]
    shown = {key: value for key, value in fitted.best.items() if key not in ("kind", "layers", "logits")}
    error = {"ece_uncalibrated": fitted.ece_uncalibrated, "ece": fitted.ece}
    rows.append({"kind": f"in use: {place_of(fitted)}", **shown, "temperature": fitted.temperature, **error})
    rows += probe_study.controls(activations, fitted.best, fitted.labels, fitted.parts, config, seed, texts)
    for row in rows:
        if "strength" in row:
            row["l2"] = config.l2[row.pop("strength")]
    return rows


def text_features(embedder, prompts, questions, generations):
    """{control: features (questions, width)} of what needs no probing."""
    return {
        "bag of words": probe_study.bag_of_words(prompts),
        "question embedding": embed.embed(embedder, [q["question"] for q in questions]),
        "answer confidence": torch.tensor([[g["greedy_log_prob"]] for g in generations]),
    }


def ablation_rows(fitted, activations, hits, config, seed):
    """Rows of the probe's ablations (probe_study.py). hits (training questions, k) bool."""
    with bar(None, "variants", "probe ablations") as tick:
        return probe_study.ablations(
            activations, fitted.found, hits.mean(1), fitted.labels, fitted.splits, config, seed, tick
        )


def known_records(split, fitted, hits, greedy_right):
    """The lines of known.jsonl: what the model knows of each of `split` {part: questions}."""
    labels = [*map(int, fitted.labels), *[None] * (len(hits) - len(fitted.labels))]
    asked = [(part, q["id"]) for part, questions in split.items() for q in questions]
    return [
        {"id": name, "split": part, "p_known": float(p), "hits": int(h.sum()), "greedy_right": bool(g), "label": label}
        for (part, name), p, h, g, label in zip(asked, fitted.p_known, hits, greedy_right, labels)
    ]


def save(folder, generations, known, accuracy, ablations):
    """Write what the probe stage leaves beside the probe itself."""
    write_jsonl(os.path.join(folder, "generations.jsonl"), generations)
    write_jsonl(os.path.join(folder, "known.jsonl"), known)
    tables.write_csv(os.path.join(folder, "accuracy.csv"), accuracy)
    tables.write_csv(os.path.join(folder, "ablation.csv"), ablations)


def sentence(fitted):
    """What the probe stage found, in one line."""
    labels, best = fitted.labels, fitted.best
    return (
        f"{(labels == 1).sum()} known, {(labels == 0).sum()} unknown, {(labels < 0).sum()} between; probe:"
        f" {place_of(fitted)} (by validation), test accuracy {best['accuracy']:.3f}, AUROC {best['auroc']:.3f},"
        f" calibration error {fitted.ece:.3f} at temperature {fitted.temperature:.2f}"
    )


# ------------------------------------------------------------------------------------ the command


def run_command(argv):
    """Print P(known) of questions given as arguments, or else one a line on standard input."""
    parser = argparse.ArgumentParser(
        prog="probe.py", description="Print P(known) of each question, as the model's own probe reads it."
    )
    parser.error = raise_user_error
    parser.add_argument("--model", required=True, help="the language model: a Hugging Face folder or name")
    parser.add_argument("--probes", required=True, help="a run's probe folder, or its probes.safetensors")
    parser.add_argument("questions", nargs="*", help="questions; without any, one a line from standard input")
    command = parser.parse_args(argv)
    try:
        questions = [q.strip() for q in command.questions or sys.stdin]
        "".join(questions).encode()
    except UnicodeError:
        raise UserError("a question is not UTF-8 text") from None
    if not questions:
        raise UserError("no questions: give them as arguments, or one a line on standard input")
    if not all(questions):
        raise UserError(f"question {questions.index('') + 1}: empty")
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    reader = probe.load(command.probes)
    lm = language_model.load(command.model, say=lambda text: print(text, file=sys.stderr))
    for question, p in zip(questions, probe.p_known(lm, reader, questions).tolist()):
        print(f"{p:.3f}\t{''.join(c if c.isprintable() else chr(0xFFFD) for c in question)}")


def main(argv):
    """The command line of the probe. Returns the exit status: 0, or 2 after a user's mistake."""
    return exit_status(lambda: run_command(argv))
