"""The batched probes of logistic.py beside scikit-learn's LogisticRegression, one fit at a time:
speed, weights, accuracy.

    python tests/bench/bench_probe.py --run runs/smollm2

Fits every layer x 3 kinds x 10 repeats on 1,000 of the run's questions (labelled known or unknown).
scikit-learn is installed for this only: pip install scikit-learn.
"""

import argparse
import os
import sys
import time
import warnings

import numpy as np
import torch

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", ".."))
import probe
from data.files import read_json, read_jsonl
from lm import logistic
from lm import model as language_model
from lm.chat import chat_prompt

PATH = tuple(10.0 ** np.linspace(0, 4, 8))


def read_run(folder, most):
    """{kind: (layers, questions, width)} and labels of `most` labelled questions of a run."""
    settings = read_json(os.path.join(folder, "config.json"))["settings"]
    known = {
        k["id"]: k["label"] for k in read_jsonl(os.path.join(folder, "probe", "known.jsonl")) if k["label"] in (0, 1)
    }
    questions = [q for q in read_jsonl(os.path.join(folder, "data", "train.jsonl")) if q["id"] in known][:most]
    lm = language_model.load(settings["model"], dtype=torch.bfloat16)
    states = probe.capture(lm, [chat_prompt(lm, q["question"]) for q in questions])
    return {kind: s.transpose(0, 1).contiguous() for kind, s in states.items()}, np.array(
        [known[q["id"]] for q in questions]
    )


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", required=True)
    parser.add_argument("--questions", type=int, default=1000)
    command = parser.parse_args(argv)
    from sklearn.linear_model import LogisticRegression

    warnings.filterwarnings("ignore")  # scikit-learn's, where its default of 100 steps is too few
    features, labels = read_run(command.run, command.questions)
    rng = np.random.default_rng(0)
    train = np.array([rng.permutation(len(labels)) < 0.6 * len(labels) for _ in range(10)])
    count = sum(len(x) for x in features.values()) * len(train)
    print(
        f"{count} probes on {len(labels)} questions, {train[0].sum()} of them learnt from, widths"
        f" {[x.shape[2] for x in features.values()]}, {torch.get_num_threads()} threads"
    )

    def ours(l2):
        started = time.perf_counter()
        fitted = {kind: logistic.fit_logistic(x, labels, train, l2) for kind, x in features.items()}
        return fitted, time.perf_counter() - started

    ours((1000.0,))  # the first call pays for memory
    alone = {}
    print("l2       scikit-learn  ours    ratio  test accuracy        largest distance of weights, of 30 probes")
    for l2 in (1.0, 10.0, 100.0, 1000.0):
        fitted, alone[l2] = ours((l2,))
        taken, accuracy, apart = 0.0, [], []
        for kind, x in features.items():
            weight, bias = fitted[kind]
            for layer in range(len(x)):
                for repeat, rows in enumerate(train):
                    part = x[layer].numpy()
                    started = time.perf_counter()
                    mean, scale = part[rows].mean(0), part[rows].std(0)
                    scale[scale < 1e-4 * abs(mean)] = np.inf  # constant up to rounding: no say, as in logistic.py
                    standard = (part - mean) / scale
                    model = LogisticRegression(C=1 / l2).fit(standard[rows], labels[rows])
                    taken += time.perf_counter() - started
                    w, b = weight[layer, repeat, 0].numpy(), bias[layer, repeat, 0].item()
                    accuracy.append(
                        (
                            (model.predict(standard[~rows]) == labels[~rows]).mean(),
                            ((part[~rows] @ w + b > 0) == labels[~rows]).mean(),
                        )
                    )
                    if repeat == 0 and layer % 3 == 0:
                        exact = (
                            LogisticRegression(C=1 / l2, tol=1e-8, max_iter=10_000)
                            .fit(standard[rows].astype(float), labels[rows])
                            .coef_[0]
                        )
                        apart.append(
                            np.linalg.norm(w * np.where(np.isinf(scale), 0, scale) - exact) / np.linalg.norm(exact)
                        )
        theirs, mine = np.mean(accuracy, 0)
        print(
            f"{l2:<8g} {taken:8.2f} s  {alone[l2]:6.2f} s  {taken / alone[l2]:5.1f}  {theirs:.4f} / {mine:.4f}     "
            f" {max(apart):.1e}",
            flush=True,
        )
    _, whole_path = ours(PATH)
    print(
        f"path of eight strengths {', '.join(f'{v:.3g}' for v in PATH)}: {whole_path:.2f} s,"
        f" {whole_path / alone[1.0]:.2f} times its weakest alone"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
