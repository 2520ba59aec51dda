"""Fit the two classifiers of this package and write their coefficients: `python -m reading.fit
JUDGED.jsonl [--embedder DIR]`.

refusals.json   from refusals.csv and, as plain answers, right ones of JUDGED.jsonl
learned.json    from JUDGED.jsonl: question, answers, text, acceptable, source

Both are logistic regressions with L2. What is printed is cross-validated: refusals with a kind of
wording held out at a time, judgements with a tenth of the questions held out.
"""

import argparse
import json
import os

import numpy as np

from reading import learned, refusals
from reading.answers import is_correct, read
from reading.answers import kept as strict_kept

HERE = os.path.dirname(__file__)
PIECES_L2 = 400.0
PLAIN_ANSWERS = 250  # of JUDGED.jsonl, taken for texts that decline nothing
FOLDS = 10
REFUSAL_THRESHOLD = 0.6
EMBEDDING_L2 = 40.0
LEARNED_L2 = 10.0


def cross_validated(features, targets, fold, l2, standardise):
    """(out-of-fold logits (n,), weights (width,), bias) of a logistic regression with L2.

    features (n, width), targets (n,), fold (n,): the number of the fold that holds each row out.
    All folds and the fit on all rows are one solve of the project's own regression.
    """
    import torch

    from lm.logistic import fit_logistic

    folds = int(fold.max()) + 1
    train = np.vstack([fold[None] != np.arange(folds)[:, None], np.full((1, len(fold)), True)])
    x = torch.tensor(np.asarray(features), dtype=torch.float32)
    weight, bias = fit_logistic(x[None], torch.tensor(targets), torch.tensor(train), [l2], standardise)
    weight, bias = weight[0, :, 0].double().numpy(), bias[0, :, 0].double().numpy()
    logits = (np.asarray(features, float) @ weight.T + bias)[np.arange(len(fold)), fold]
    return logits, weight[-1], bias[-1]


# -------------------------------------------------- refusals


def piece_table(texts):
    """(0/1 matrix (texts, buckets), buckets) of the hashed pieces of texts."""
    sets = [refusals.buckets(text) for text in texts]
    columns = {bucket: i for i, bucket in enumerate(sorted(set().union(*sets)))}
    table = np.zeros((len(texts), len(columns)))
    for row, some in zip(table, sets):
        row[[columns[bucket] for bucket in some]] = 1
    return table, list(columns)


def held_out(examples, seed=0):
    """For each example the number of its fold: refusals by their kind of wording, all languages
    together; others at random.
    """
    kinds = sorted({e["kind"] for e in examples if e["refusal"] == "1"})
    draw = np.random.default_rng(seed)
    return np.array([kinds.index(e["kind"]) if e["refusal"] == "1" else draw.integers(len(kinds)) for e in examples])


def fit_refusals(plain, embed=None):
    """(what refusals.json holds, cross-validated figures) from the written list and `plain`, texts
    that decline nothing.
    """
    examples = refusals.examples()
    own = [refusals.own_words(e["text"]) for e in examples]
    wanted = np.array([e["refusal"] == "1" for e in examples])
    openings = [refusals.opening(text) for text in own + plain]
    target, fold = np.append(wanted, np.zeros(len(plain))), np.append(held_out(examples), np.arange(len(plain)) % 7)
    table, columns = piece_table(openings)
    fitted, figures = {}, {}
    for name, features, l2 in (("pieces", table, PIECES_L2),) + (
        (("embedding", np.asarray(embed(openings)), EMBEDDING_L2),) if embed else ()
    ):
        score, w, b = cross_validated(features, target, fold, l2, standardise=False)
        p = 1 / (1 + np.exp(-score[: len(own)]))
        figures[name] = refusal_figures(examples, own, wanted, p)
        w = [round(float(x), 3) for x in w]
        fitted[name] = {
            "bias": round(float(b), 3),
            "threshold": REFUSAL_THRESHOLD,
            "weight": {str(c): x for c, x in zip(columns, w) if abs(x) > 0.01} if name == "pieces" else w,
        }
    return fitted, figures


def refusal_figures(examples, own, wanted, p):
    """{language: (recall, precision, number of refusals)} of patterns and classifier together, and
    the texts read wrongly.
    """
    said = np.array(
        [
            bool(text.strip())
            and (
                refusals.by_pattern(text)
                and not refusals.GUESS.search(refusals.flat(text))
                or q > REFUSAL_THRESHOLD
                and refusals.may_decline(refusals.opening(text))
            )
            for text, q in zip(own, p)
        ]
    )
    languages = np.array([str(e["lang"]) for e in examples])
    found = {
        lang: (
            float((said & wanted & (languages == lang)).sum() / (wanted & (languages == lang)).sum()),
            float((said & wanted & (languages == lang)).sum() / (said & (languages == lang)).sum()),
            int((wanted & (languages == lang)).sum()),
        )
        for lang in dict.fromkeys(map(str, languages))
    }
    return {
        "by language": found,
        "wrong": [(e["text"], bool(w), round(float(q), 2)) for e, w, s, q in zip(examples, wanted, said, p) if w != s],
    }


# -------------------------------------------------- the learned reader


def agreement(said, wanted):
    """(accuracy, Cohen's kappa) of two boolean arrays."""
    accuracy, p, q = (said == wanted).mean(), said.mean(), wanted.mean()
    chance = p * q + (1 - p) * (1 - q)
    return float(accuracy), float((accuracy - chance) / (1 - chance)) if chance < 1 else 1.0


def folds_of(questions, seed=0):
    """The fold of each row; rows of one question share it."""
    order = list(dict.fromkeys(questions))
    place = dict(zip(order, np.random.default_rng(seed).permutation(len(order)) % FOLDS))
    return np.array([place[question] for question in questions])


def fit_learned(rows, names, wanted, questions):
    """(coefficients, out-of-fold probabilities, threshold) of features (n, len(names)),
    standardised inside the coefficients.
    """
    x, fold = np.asarray(rows, float), folds_of(questions)
    score, w, b = cross_validated(x, wanted, fold, LEARNED_L2, standardise=True)
    p = 1 / (1 + np.exp(-score))
    threshold = max((round(t, 2) for t in np.arange(0.3, 0.71, 0.02)), key=lambda t: agreement(p > t, wanted)[0])
    return (
        {
            "bias": round(float(b), 4),
            "threshold": float(threshold),
            "weight": {n: round(float(v), 4) for n, v in zip(names, w)},
        },
        p,
        threshold,
    )


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("judged", help="JSONL: question, answers, text, acceptable, source")
    parser.add_argument("--embedder", help="folder of a sentence embedder: fits the classifiers on embeddings too")
    given = parser.parse_args(arguments)
    with open(given.judged, encoding="utf-8") as file:
        judged = [json.loads(line) for line in file]
    embed = None
    if given.embedder:
        import embed as embedder_module  # the project's, only where it is asked for

        model = embedder_module.load(given.embedder)
        embed = lambda texts: embedder_module.embed(model, texts).numpy()
    right = [r["text"] for r in judged if r["acceptable"] and not refusals.by_pattern(refusals.own_words(r["text"]))]
    plain = [
        right[i] for i in np.random.default_rng(0).choice(len(right), min(PLAIN_ANSWERS, len(right)), replace=False)
    ]
    fitted, figures = fit_refusals(plain, embed)
    for name, found in figures.items():
        print(
            name,
            {
                lang: "recall {:.3f} precision {:.3f} of {}".format(*three)
                for lang, three in found["by language"].items()
            },
        )
    write("refusals.json", fitted)
    for kept in (refusals.weights, refusals.kept, strict_kept):
        kept.cache_clear()

    texts, answers, questions = ([r[key] for r in judged] for key in ("text", "answers", "question"))
    wanted = np.array([r["acceptable"] for r in judged])
    rows = [learned.features(*each) for each in zip(texts, answers, questions)]
    kinds = {"features": (rows, learned.NAMES)}
    if embed:
        more = learned.cosines(texts, answers, questions, embed)
        kinds["with cosines"] = ([row + own for row, own in zip(rows, more)], learned.NAMES + learned.COSINES)
    coefficients = {}
    for name, (table, names) in kinds.items():
        coefficients[name], p, threshold = fit_learned(table, names, wanted, questions)
        print(name, f"threshold {threshold}")
        print_by([r["source"] for r in judged], p > threshold, wanted)
        print_by([learned.type_of(q) or "other" for q in questions], p > threshold, wanted)
    write("learned.json", coefficients)
    print("strict")
    strict = np.array([is_correct(read(*each)) for each in zip(texts, answers, questions)])
    print_by([r["source"] for r in judged], strict, wanted)
    print_by([learned.type_of(q) or "other" for q in questions], strict, wanted)


def print_by(keys, said, wanted):
    """A line for each key and for all: answers, accuracy, kappa, false rights and false wrongs as
    shares of all.
    """
    keys = np.array(keys)
    for key in (*sorted(set(keys.tolist())), "all"):
        at = keys == key if key != "all" else np.full(len(keys), True)
        print(
            "  {:9} {:5} accuracy {:.3f} kappa {:.3f} false rights {:.3f} false wrongs {:.3f}".format(
                key,
                at.sum(),
                *agreement(said[at], wanted[at]),
                (said & ~wanted)[at].mean(),
                (~said & wanted)[at].mean(),
            )
        )


def write(name, data):
    with open(os.path.join(HERE, name), "w", encoding="utf-8") as file:
        json.dump(data, file, indent=0 if name == "learned.json" else None, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
