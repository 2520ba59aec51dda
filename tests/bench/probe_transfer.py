"""Do probes travel? Trained on the questions of one run, tested on those of the others, beside what
the text alone says.

    python tests/bench/probe_transfer.py --runs runs/facts runs/popqa runs/webquestions

All runs are of one model, their probe stages done. Every question with a known / unknown label
(gold rule) counts. Within a run a question is judged by the probes of the splits that neither
trained nor chose on it; across runs by all of them, layer, kind and strength of L2 chosen on the
first run alone. AUROC and balanced accuracy, each with a 95% bootstrap interval over the questions;
"gain" is the probe's AUROC less the question embedding's, on the same resamples.
"""

import argparse
import os
import sys

import numpy as np
import torch

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", ".."))
import embed
import probe
from data.files import read_json, read_jsonl
from evaluation import metrics
from experiment import probe_study
from experiment.tables import table, write_csv
from lm import model as language_model
from lm.chat import chat_prompt

BAND = {"probe": None, "question embedding": 1, "bag of words": 1, "answer confidence": 1}


def read_run(folder, lm, embedder, config):
    """{"labels", "subjects", "prompts", "features": {name: activations or {"text": (questions, 1,
    width)}}} of the labelled questions.
    """
    known = {k["id"]: k for k in read_jsonl(os.path.join(folder, "probe", "known.jsonl"))}
    confidence = {g["id"]: g["greedy_log_prob"] for g in read_jsonl(os.path.join(folder, "probe", "generations.jsonl"))}
    questions = [
        q for split in ("train", "valid", "test") for q in read_jsonl(os.path.join(folder, "data", f"{split}.jsonl"))
    ]
    share = np.array([known[q["id"]]["hits"] / config.k for q in questions])
    labels = probe.gold_label(
        share[:, None],
        np.array([known[q["id"]]["greedy_right"] for q in questions]),
        config.known_share,
        config.unknown_share,
    )
    questions = [q for q, label in zip(questions, labels) if label >= 0]
    prompts = [chat_prompt(lm, q["question"]) for q in questions]
    text = lambda features: {"text": features[:, None]}
    return {
        "labels": labels[labels >= 0],
        "subjects": [q["subject"] for q in questions],
        "prompts": prompts,
        "features": {
            "probe": probe.capture(lm, prompts, config.rows),
            "question embedding": text(embed.embed(embedder, [q["question"] for q in questions])),
            "answer confidence": text(torch.tensor([[confidence[q["id"]]] for q in questions])),
        },
    }


def scores(name, home, away, config, seed):
    """Logits of the questions of `home` (out of fold; NaN where no split tested on it) and of every
    run in `away`.
    """
    parts = probe.split_by_group(home["subjects"], config, seed)
    runs = [home, *away]
    if name == "bag of words":
        counts = probe_study.bag_of_words([p for run in runs for p in run["prompts"]])
        stacked = {"text": counts[:, None]}
    else:
        stacked = {kind: torch.cat([run["features"][name][kind] for run in runs]) for kind in home["features"][name]}
    found = probe.logits_everywhere(stacked, home["labels"], parts == 0, config.l2, config.standardise)
    best = probe.choose(found, home["labels"], parts, BAND[name] or config.band)
    logits, n = best["logits"].numpy(), len(home["labels"])
    tested = parts == 2
    inside = np.where(tested.any(0), (logits[:, :n] * tested).sum(0) / np.maximum(1, tested.sum(0)), np.nan)
    outside = np.split(logits[:, n:].mean(0), np.cumsum([len(run["labels"]) for run in away])[:-1])
    return [inside, *outside], best


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--csv", help="also write the table here")
    command = parser.parse_args(argv)
    settings = read_json(os.path.join(command.runs[0], "config.json"))["settings"]
    config = probe.ProbeConfig(k=settings["probe.k"])
    lm = language_model.load(settings["model"], dtype=getattr(torch, settings["dtype"]))
    embedder = embed.load(settings["model"] if settings["embedder"] == "base" else settings["embedder"])
    names = [os.path.basename(os.path.normpath(run)) for run in command.runs]
    runs = {name: read_run(folder, lm, embedder, config) for name, folder in zip(names, command.runs)}
    for name, run in runs.items():
        print(f"{name}: {(run['labels'] == 1).sum()} known, {(run['labels'] == 0).sum()} unknown questions", flush=True)
    rows = []
    for home in names:
        away = [name for name in names if name != home]
        found = {}
        for name in BAND:
            found[name], best = scores(name, runs[home], [runs[other] for other in away], config, command.seed)
            if name == "probe":
                print(
                    f"trained on {home}: {best['kind']} of layers {[i + 1 for i in best['layers']]}, l2"
                    f" {config.l2[best['strength']]:g}",
                    flush=True,
                )
        for place, tested in enumerate([home, *away]):
            labels = runs[tested]["labels"]
            ok = ~np.isnan(found["probe"][place])
            y = labels[ok]
            s = {name: found[name][place][ok] for name in BAND}

            def figures(index):
                auroc = {name: metrics.auroc(s[name][index], y[index]) for name in BAND}
                return [
                    auroc["probe"],
                    metrics.balanced_accuracy(s["probe"][index] > 0, y[index]),
                    *(auroc[name] for name in list(BAND)[1:]),
                    auroc["probe"] - auroc["question embedding"],
                ]

            point = figures(np.arange(len(y)))
            low, high = metrics.bootstrap_interval(figures, len(y), 1000, command.seed)
            cells = [f"{p:.3f} [{a:.3f}, {b:.3f}]" for p, a, b in zip(point, low, high)]
            rows.append(
                dict(
                    zip(
                        [
                            "trained on",
                            "tested on",
                            "AUROC",
                            "balanced accuracy",
                            "question embedding",
                            "bag of words",
                            "answer confidence",
                            "gain",
                        ],
                        [home, tested, *cells],
                    )
                )
            )
    print(table(list(rows[0]), [list(row.values()) for row in rows]))
    if command.csv:
        write_csv(command.csv, rows)


if __name__ == "__main__":
    main(sys.argv[1:])
