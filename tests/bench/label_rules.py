"""Which labelling rule agrees with people? Every rule on every data set, and at known rates from
0.1 to 0.75 (Table 1).

    python tests/bench/label_rules.py --runs runs/facts runs/popqa runs/webquestions

The runs are of one model, their probe stages done. The generations in tests/readings.jsonl were
read one by one against the given answers; a rule labels all generations of a data set and is
compared with the reading where there is one.
"""

import argparse
import os
import random
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", ".."))
import dreamcatcher
import embed
from data.files import read_json, read_jsonl
from evaluation import metrics
from experiment.tables import table
from reading import answers

RULES = ("gold", "median", "percentile", "threshold")
BLIND = ("s_s2g", "s_p")  # what is left without given answers


def read_run(folder, embedder):
    """Questions with their generations, hits, scores and (where read) {sample: right or not} of a
    run.
    """
    questions = [
        q for split in ("train", "valid", "test") for q in read_jsonl(os.path.join(folder, "data", f"{split}.jsonl"))
    ]
    generations = {g["id"]: g for g in read_jsonl(os.path.join(folder, "probe", "generations.jsonl"))}
    p_known = {k["id"]: k["p_known"] for k in read_jsonl(os.path.join(folder, "probe", "known.jsonl"))}
    normal = [generations[q["id"]] for q in questions]
    scores = dreamcatcher.score_generations(embedder, questions, normal, [p_known[q["id"]] for q in questions])
    hits = np.array(
        [
            [answers.is_correct(answers.read(t, q["answers"], q["question"])) for t in g["normal"]]
            for q, g in zip(questions, normal)
        ]
    )
    return questions, {name: value.numpy() for name, value in scores.items()}, hits


def row(name, rule, index, questions, scores, hits, read):
    """Accuracy, kappa and share mixed of a rule on the questions at `index`."""
    part = {key: value[index] for key, value in scores.items()}
    names = BLIND if rule.endswith("without answers") else dreamcatcher.AnnotateConfig().scores
    total = dreamcatcher.factuality(part, names).numpy()
    correct, states = dreamcatcher.label(total, hits[index], dreamcatcher.AnnotateConfig(rule=rule.split()[0]))
    pairs = [
        (correct[n, sample], truth, total[n, sample])
        for n, i in enumerate(index)
        for sample, truth in read.get(questions[i]["id"], ())
    ]
    found = dreamcatcher.agreement([p[0] for p in pairs], [p[1] for p in pairs])
    auroc = metrics.auroc([p[2] for p in pairs], [p[1] for p in pairs])
    return [
        name,
        rule,
        len(pairs),
        *(f"{found[key]:.3f}" for key in ("accuracy", "precision", "recall", "kappa")),
        f"{auroc:.3f}",
        f"{states.count('known') / len(states):.0%}",
        f"{states.count('mixed') / len(states):.0%}",
    ]


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", required=True)
    command = parser.parse_args(argv)
    settings = read_json(os.path.join(command.runs[0], "config.json"))["settings"]
    embedder = embed.load(settings["model"] if settings["embedder"] == "base" else settings["embedder"])
    read = {}
    for record in read_jsonl(os.path.join(os.path.dirname(__file__), "..", "readings.jsonl")):
        if record.get("sample") is not None:
            read.setdefault(record["id"], []).append((record["sample"], answers.is_correct(record["label"])))
    rules = (*RULES, "threshold without answers")
    head = ["questions", "rule", "read", "accuracy", "precision", "recall", "kappa", "AUROC", "known", "mixed"]
    rows, everything = [], []
    for folder in command.runs:
        questions, scores, hits = read_run(folder, embedder)
        name = os.path.basename(os.path.normpath(folder))
        rows += [row(name, rule, np.arange(len(questions)), questions, scores, hits, read) for rule in rules]
        everything.append((questions, scores, hits))
    print(table(head, rows), flush=True)
    questions = [q for part in everything for q in part[0]]
    scores = {name: np.concatenate([part[1][name] for part in everything]) for name in everything[0][1]}
    hits = np.concatenate([part[2] for part in everything])
    known, unknown = (list(np.flatnonzero(m)) for m in (hits.mean(1) >= 0.5, hits.mean(1) < 0.5))
    random.Random(0).shuffle(known)
    random.Random(1).shuffle(unknown)
    rows = []
    for rate in (0.1, 0.25, 0.5, 0.75):
        size = int(min(len(known) / rate, len(unknown) / (1 - rate)))
        index = np.array(sorted(known[: round(size * rate)] + unknown[: size - round(size * rate)]))
        rows += [row(f"all, {rate:.0%} known", rule, index, questions, scores, hits, read) for rule in rules]
    print(table(head, rows))


if __name__ == "__main__":
    main(sys.argv[1:])
