"""DreamCatcher (section 3.3): score generations, label them, and tell what the model knows.

For every question there are k normal generations. Four scores (s_s2g, s_p, s_o2a, s_s2a), each
normalised over the data set, add up to a generation's factuality. A rule turns factuality (or the
answers themselves) into "correct", and the k verdicts of a question into known / unknown / mixed.
Rankings (Figure 3) say which answers of a question stand for factual, uncertain and hallucinated,
best first: a known question ranks factual > uncertain, a mixed one factual > uncertain >
hallucination, an unknown one uncertain > hallucination. A factual response must be right, an
uncertain one a real refusal, a hallucination wrong: what breaks that is dropped and counted. As a
tool of its own it labels any questions, with a model or with generations made elsewhere:

    python dreamcatcher.py --model MODEL --questions questions.jsonl --out labels.jsonl

Left out: a judge model; the general reward model by which the release picks among uncertain
answers.
"""

import re
import sys
from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch

from embed import cosine, embed
from lm.chat import messages
from lm.sampling import generator_for
from reading import answers

STATES = ("known", "unknown", "mixed")
UNCERTAIN_INSTRUCTIONS = {
    "en": (
        "Reply to the question below by saying that you are not sure and do not know the answer.",
        "You do not know the answer to the following question. Say in one short sentence that you do not know.",
        "You are not sure about the answer to the question below. Say that you are not sure, and do not guess.",
        "Tell the user politely that you do not know the answer to this question:",
    ),
    "zh": (
        "请回复下面的问题，说明你不确定，也不知道答案。",
        "你不知道下面这个问题的答案。请用一句简短的话说你不知道。",
        "你不确定下面问题的答案。请说你不确定，不要猜测。",
        "请礼貌地告诉用户，你不知道这个问题的答案：",
    ),
}


@dataclass
class AnnotateConfig:
    rule: str = "gold"  # what makes a generation correct: median (paper), percentile (the release), threshold, gold
    known_share: float = 0.6  # gold: known from this share of correct generations on
    unknown_share: float = 0.2  # gold: unknown up to this share; between the two mixed
    # gold: weight of s_p in that share, beside the generations: the probe evens out what k samples
    # leave to chance
    s_p_weight: float = 0.0
    upper: float = 70.0  # percentile: a question is right if its best generation lies above (the release: 70)
    lower: float = 30.0  # percentile: a question is wrong if its worst generation lies below (the release: 30)
    uncertain_k: int = 4  # uncertain generations a question; 0: only what the model refuses of itself (the release: 5)
    uncertain_temperature: float = 1.0  # their temperature (the release: 0.8)
    # which wrong answer a ranking holds, by its factuality: lowest (paper), or highest, the most
    # like what the model says
    hallucination: str = "lowest"
    # which refusal a ranking holds: typical (of the question's own the one most like all others),
    # or
    # random (any of the question's own, so that the reward model learns no favourite wording)
    refusal: str = "typical"
    borrow: bool = True  # a question without a real refusal of its own takes the data set's most typical one
    normalise: str = "min-max"  # how a score is normalised over the data set: min-max (paper), z-score or rank
    shuffle_states: bool = False  # control: known and unknown change places between the rankings at random
    scores: tuple = ("s_s2g", "s_p", "s_o2a", "s_s2a")  # those that add up to the factuality (paper: all four)


def uncertain_instruction(question, seed):
    """The wording that asks for an uncertain answer to `question`, chosen by the seed and the
    question's id.
    """
    wordings = UNCERTAIN_INSTRUCTIONS[question["lang"]]
    return wordings[
        torch.randint(len(wordings), (), generator=generator_for(seed, f"uncertain {question['id']}")).item()
    ]


# ------------------------------------------------------------------------------------------- scores


def self_consistency(vectors):
    """s_s2g of unit vectors (questions, k, width): each generation's mean cosine with the
    question's others, (questions, k).

    A generation is not compared with itself. With k = 1 there is nothing to compare with: 1, as
    nothing contradicts it.
    """
    k = vectors.shape[1]
    if k == 1:
        return torch.ones(vectors.shape[:2])
    similar = vectors @ vectors.transpose(1, 2)  # (questions, k, k)
    return (similar.sum(2) - similar.diagonal(dim1=1, dim2=2)) / (k - 1)


def overlap_with_answer(questions, normal):
    """s_o2a (questions, k): share of the answer's tokens in each generation, the best over the
    aliases.
    """
    return torch.tensor(
        [[answers.overlap(text, q["answers"]) for text in texts] for q, texts in zip(questions, normal)]
    )


def similarity_to_answer(vectors, answer_vectors):
    """s_s2a (questions, k): cosine with the answer, the best over the aliases (list of (aliases,
    width)).
    """
    return torch.stack([cosine(v[:, None], a[None]).amax(1) for v, a in zip(vectors, answer_vectors)])


def normalise(score, way="min-max"):
    """A score (any shape) over the whole data set: to [0, 1] by its lowest and highest value
    (min-max), to mean 0 and deviation 1 (z-score), or to its share of smaller values, ties half
    (rank). All zeros where all are equal.
    """
    score = torch.as_tensor(score, dtype=torch.float64)
    if score.max() == score.min():
        return torch.zeros_like(score)
    if way == "rank":
        _, place, counts = score.unique(return_inverse=True, return_counts=True)
        return ((counts.cumsum(0) - (counts + 1) / 2) / (score.numel() - 1))[place]
    if way == "z-score":
        return (score - score.mean()) / score.std(correction=0)
    return (score - score.min()) / (score.max() - score.min())


def score_generations(embedder, questions, generations, p_known=None):
    """The scores as they are: {"s_s2g": (questions, k), "s_p": (questions,), "s_o2a": ..., "s_s2a":
    ...}.

    generations: records with "normal", a list of k texts; p_known (questions,): of the probe,
    without it there is no s_p. Where the questions have no answers there is no s_o2a and no s_s2a.
    """
    normal = [g["normal"] for g in generations]
    vectors = embed(embedder, [t for texts in normal for t in texts]).unflatten(0, (len(questions), -1))
    scores = {"s_s2g": self_consistency(vectors)}
    if p_known is not None:
        scores["s_p"] = torch.as_tensor(p_known, dtype=torch.float32)
    if questions[0]["answers"]:
        aliases = embed(embedder, [a for q in questions for a in q["answers"]])
        scores["s_o2a"] = overlap_with_answer(questions, normal)
        scores["s_s2a"] = similarity_to_answer(vectors, aliases.split([len(q["answers"]) for q in questions]))
    return scores


def factuality(scores, names, way="min-max"):
    """Sum of the normalised scores called `names`, (questions, k). s_p is one number a question and
    moves all its k.
    """
    parts = [normalise(scores[name], way) for name in names]
    parts = [part[:, None] if part.dim() == 1 else part for part in parts]
    return sum(parts).expand(torch.as_tensor(scores["s_s2g"]).shape)


# -------------------------------------------------------------------------------- labels and states


def least_variance_threshold(values):
    """The cut of `values` into two classes of least total within-class sum of squares (Otsu)."""
    ordered = np.sort(np.asarray(values, float).ravel())
    n = np.arange(1, len(ordered))
    total, upto = ordered.sum(), ordered.cumsum()[:-1]
    between = upto**2 / n + (total - upto) ** 2 / (len(ordered) - n)  # largest where the within-class sum is least
    cut = int(between.argmax())
    return float((ordered[cut] + ordered[cut + 1]) / 2)


def label(factuality, hits, config, s_p=None):
    """correct (questions, k) bool and states, a list of "known", "unknown", "mixed" or None (left
    out).

    factuality (questions, k); hits (questions, k) bool: generations read as right; s_p
    (questions,), for a weight of it. By `config.rule`:
    - median, threshold: correct above the cut; known where all k are, unknown where none is,
      otherwise mixed (paper);
    - percentile: known where the best generation is above `upper` and the worst not below `lower`,
      unknown the other way round, mixed where both, left out where neither (the authors' release);
      correct above the middle of the cuts;
    - gold: correct is a hit; known and unknown by the share of hits, or its weighted mean with s_p;
      mixed between.
    """
    if config.rule == "gold":
        share = hits.mean(1)
        if config.s_p_weight:
            share = (1 - config.s_p_weight) * share + config.s_p_weight * np.asarray(s_p)
        states = [
            "known" if s >= config.known_share else "unknown" if s <= config.unknown_share else "mixed" for s in share
        ]
        return hits, states
    if config.rule == "percentile":
        upper, lower = np.percentile(factuality, config.upper), np.percentile(factuality, config.lower)
        right, wrong = factuality.max(1) > upper, factuality.min(1) < lower
        states = [
            {(1, 0): "known", (0, 1): "unknown", (1, 1): "mixed", (0, 0): None}[int(r), int(w)]
            for r, w in zip(right, wrong)
        ]
        return factuality > (upper + lower) / 2, states
    cut = np.median(factuality) if config.rule == "median" else least_variance_threshold(factuality)
    correct = factuality > cut
    return correct, ["known" if row.all() else "mixed" if row.any() else "unknown" for row in correct]


def histogram(states):
    """{"known": n, "unknown": n, "mixed": n} and the warnings, plain sentences, where a rule did
    something odd.
    """
    counts = {state: states.count(state) for state in STATES}
    total = max(1, sum(counts.values()))
    warnings = [f"no question is {state}" for state in ("known", "unknown") if not counts[state]]
    if counts["mixed"] > 0.25 * total:
        warnings.append(f"{counts['mixed'] / total:.0%} of the questions are mixed; the paper found 8 to 10%")
    return counts, warnings


def agreement(correct, hits):
    """Table 1 against gold: accuracy, precision, recall and Cohen's kappa of `correct` against
    `hits` (same shape, bool).
    """
    correct, hits = np.asarray(correct).ravel(), np.asarray(hits).ravel()
    accuracy = float((correct == hits).mean())
    chance = correct.mean() * hits.mean() + (1 - correct.mean()) * (1 - hits.mean())
    both = (correct & hits).sum()
    return {
        "accuracy": accuracy,
        "precision": float(both / max(1, correct.sum())),
        "recall": float(both / max(1, hits.sum())),
        "kappa": float((accuracy - chance) / (1 - chance)) if chance < 1 else 1.0,
    }


# ----------------------------------------------------------------------------------------- rankings

RANKING = {
    "known": ("factual", "uncertain"),
    "mixed": ("factual", "uncertain", "hallucination"),
    "unknown": ("uncertain", "hallucination"),
}  # Figure 3, best first


SENTENCE_END = re.compile(r"[.!?](?=\s|$)|[。！？]")


def finish(text, ended):
    """A text that was cut off (`ended` false) shortened to its last whole sentence, if it has
    one.
    """
    ends = [found.end() for found in SENTENCE_END.finditer(text)]
    return text if ended or not ends else text[: ends[-1]]


def typical_refusals(texts, vectors, refusal):
    """Similarity (n,) of each text to the mean of the refusals, -inf for a text that is not one.

    texts (n,), vectors (n, width) unit, refusal (n,) bool. The typical refusal is the one with the
    highest value.
    """
    refusal = torch.as_tensor(refusal)
    if not refusal.any():
        return torch.full((len(texts),), float("-inf"))
    centre = torch.nn.functional.normalize(vectors[refusal].mean(0), dim=0)
    return cosine(vectors, centre[None]).masked_fill(~refusal, float("-inf"))


def shuffled_refusals(typicality, key, seed):
    """The same for a ranking that is to hold any of the question's refusals: ranks drawn at
    random.
    """
    drawn = torch.rand(len(typicality), generator=generator_for(seed, f"refusal {key}")).numpy()
    return np.where(np.isfinite(typicality), drawn, -np.inf)


def rank(question, state, normal, factuality, uncertain, typicality, common, hallucination):
    """One preference record, or the reason (text) why there is none.

    The factual response is the right generation of highest factuality, the hallucination the wrong
    one of lowest (or highest: `hallucination`), the uncertain one the question's own refusal that
    is most typical of the data set's, else `common` (None: no record).
    """
    readings = [answers.read(text, question["answers"], question["question"]) for text in normal]
    order = np.argsort(-np.asarray(factuality), kind="stable")
    factual = [normal[i] for i in order if readings[i] == "right"]
    wrong = [normal[i] for i in order if readings[i] == "wrong"]
    best = int(np.argmax(typicality)) if len(typicality) else 0
    own = uncertain[best] if len(typicality) and np.isfinite(typicality[best]) else common
    chosen = {
        "factual": factual[0] if factual else None,
        "uncertain": own,
        "hallucination": wrong[-1 if hallucination == "lowest" else 0] if wrong else None,
    }
    for kind in RANKING[state]:
        if chosen[kind] is None:
            return f"{state}, without a {kind} response"
    return {
        "id": question["id"],
        "prompt": messages(question["question"]),
        "ranking": [chosen[k] for k in RANKING[state]],
        "kinds": list(RANKING[state]),
        "state": state,
    }


def preferences(questions, states, normal, factuality, uncertain, uncertain_vectors, config, seed=0):
    """Preference records and a Counter of what was left out, by reason.

    normal, uncertain: lists of texts a question; factuality (questions, k); uncertain_vectors (all
    uncertain texts in order, width).
    """
    flat = [text for texts in uncertain for text in texts]
    refusal = [
        answers.read(text, q["answers"], q["question"]) == "refusal" and bool(SENTENCE_END.search(text[-1:]))
        for q, texts in zip(questions, uncertain)
        for text in texts
    ]
    typicality = typical_refusals(flat, uncertain_vectors, refusal).numpy()
    common = {}
    for lang in {q["lang"] for q in questions}:
        here = np.array([q["lang"] == lang for q, texts in zip(questions, uncertain) for _ in texts], bool)
        similar = np.where(here, typicality, -np.inf)
        common[lang] = flat[int(similar.argmax())] if config.borrow and np.isfinite(similar).any() else None
    records, dropped, start = [], Counter(), 0
    for i, question in enumerate(questions):
        mine = typicality[start : start + len(uncertain[i])]
        start += len(uncertain[i])
        if config.refusal == "random":
            mine = shuffled_refusals(mine, question["id"], seed)
        if states[i] is None:
            dropped["neither right nor wrong by the rule"] += 1
            continue
        record = rank(
            question,
            states[i],
            normal[i],
            factuality[i],
            uncertain[i],
            mine,
            common[question["lang"]],
            config.hallucination,
        )
        if isinstance(record, str):
            dropped[record] += 1
        else:
            records.append(record)
    return records, dropped


def shuffle_states(records, seed):
    """The control: the states known and unknown are dealt out anew among the rankings of two; one
    that changes is turned round.
    """
    two = [i for i, record in enumerate(records) if len(record["ranking"]) == 2]
    dealt = [
        records[two[j]]["state"]
        for j in torch.randperm(len(two), generator=generator_for(seed, "shuffled states")).tolist()
    ]
    shuffled = list(records)
    for i, state in zip(two, dealt):
        if state != records[i]["state"]:
            shuffled[i] = {
                **records[i],
                "ranking": records[i]["ranking"][::-1],
                "kinds": list(RANKING[state]),
                "state": state,
            }
    return shuffled


def pairs(record):
    """The pairs of a ranking in the conversational form that other trainers read: prompt, chosen
    and rejected messages.
    """
    turn = lambda text: [{"role": "assistant", "content": text}]
    ranking = record["ranking"]
    return [
        {
            "prompt": record["prompt"],
            "chosen": turn(ranking[i]),
            "rejected": turn(ranking[j]),
            "id": record["id"],
            "state": record["state"],
            "kinds": [record["kinds"][i], record["kinds"][j]],
        }
        for i in range(len(ranking))
        for j in range(i + 1, len(ranking))
    ]


if __name__ == "__main__":
    from experiment.labelling import main  # the tool, which imports this module

    sys.exit(main(sys.argv[1:]))
