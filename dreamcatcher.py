"""DreamCatcher (section 3.3): score generations, label them, tell what the model knows, rank answers into preferences.

For every question there are k normal generations, and some *uncertain* ones that an instruction asked for. Four scores
(s_s2g, s_p, s_o2a, s_s2a), each normalised over the data set, add up to a generation's factuality. A rule turns
factuality (or the answers themselves) into "correct", the k verdicts of a question into known / unknown / mixed, and
the state into the ranking of Figure 3. Left out: a judge model, and the general reward model by which the authors'
release picks among uncertain generations.
"""
import re
from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch

import answers
from embed import cosine, embed
from lm import generator_for, messages

STATES = ("known", "unknown", "mixed")
RANKING = {"known": ("factual", "uncertain"), "mixed": ("factual", "uncertain", "hallucination"),
           "unknown": ("uncertain", "hallucination")}  # Figure 3, best first
UNCERTAIN_INSTRUCTIONS = {
    "en": ("Reply to the question below by saying that you are not sure and do not know the answer.",
           "You do not know the answer to the following question. Say in one short sentence that you do not know.",
           "You are not sure about the answer to the question below. Say that you are not sure, and do not guess.",
           "Tell the user politely that you do not know the answer to this question:"),
    "zh": ("请回复下面的问题，说明你不确定，也不知道答案。", "你不知道下面这个问题的答案。请用一句简短的话说你不知道。",
           "你不确定下面问题的答案。请说你不确定，不要猜测。", "请礼貌地告诉用户，你不知道这个问题的答案："),
}
SENTENCE_END = re.compile(r"[.!?](?=\s|$)|[。！？]")


@dataclass
class AnnotateConfig:
    rule: str = "gold"            # what makes a generation correct: median (paper), percentile (the release), threshold, gold
    known_share: float = 0.6      # gold: known from this share of correct generations on
    unknown_share: float = 0.2    # gold: unknown up to this share; between the two mixed
    upper: float = 70.0           # percentile: a question is right if its best generation lies above (the release: 70)
    lower: float = 30.0           # percentile: a question is wrong if its worst generation lies below (the release: 30)
    uncertain_k: int = 4          # uncertain generations a question (the release: 5)
    uncertain_temperature: float = 1.0  # their temperature (the release: 0.8)
    borrow: bool = True           # a question without a real refusal of its own takes the data set's most typical one
    scores: tuple = ("s_s2g", "s_p", "s_o2a", "s_s2a")  # those that add up to the factuality (paper: all four)


def uncertain_instruction(question, seed):
    """The wording that asks for an uncertain answer to `question`, chosen by the seed and the question's id."""
    wordings = UNCERTAIN_INSTRUCTIONS[question["lang"]]
    return wordings[torch.randint(len(wordings), (), generator=generator_for(seed, f"uncertain {question['id']}")).item()]


def finish(text, ended):
    """A text that was cut off (`ended` false) shortened to its last whole sentence, if it has one."""
    ends = [found.end() for found in SENTENCE_END.finditer(text)]
    return text if ended or not ends else text[:ends[-1]]


# ---------------------------------------------------------------------------------------------------- scores

def self_consistency(vectors):
    """s_s2g of unit vectors (questions, k, width): each generation's mean cosine with the question's others, (questions, k).

    A generation is not compared with itself. With k = 1 there is nothing to compare with: 1, as nothing contradicts it.
    """
    k = vectors.shape[1]
    if k == 1:
        return torch.ones(vectors.shape[:2])
    similar = vectors @ vectors.transpose(1, 2)                                       # (questions, k, k)
    return (similar.sum(2) - similar.diagonal(dim1=1, dim2=2)) / (k - 1)


def overlap_with_answer(questions, normal):
    """s_o2a (questions, k): share of the answer's tokens in each generation, the best over the aliases."""
    return torch.tensor([[answers.overlap(text, q["answers"]) for text in texts] for q, texts in zip(questions, normal)])


def similarity_to_answer(vectors, answer_vectors):
    """s_s2a (questions, k): cosine with the answer, the best over the aliases (list of (aliases, width))."""
    return torch.stack([cosine(v[:, None], a[None]).amax(1) for v, a in zip(vectors, answer_vectors)])


def normalise(score):
    """Min-max over the whole data set: 0 for its lowest value, 1 for its highest (0 where all are equal)."""
    low, high = score.min(), score.max()
    return (score - low) / (high - low) if high > low else torch.zeros_like(score)


def score(vectors, answer_vectors, p_known, questions, normal):
    """The four scores as they are, {"s_s2g": (questions, k), "s_p": (questions,), "s_o2a": ..., "s_s2a": ...}."""
    return {"s_s2g": self_consistency(vectors), "s_p": torch.as_tensor(p_known, dtype=torch.float32),
            "s_o2a": overlap_with_answer(questions, normal), "s_s2a": similarity_to_answer(vectors, answer_vectors)}


def score_generations(embedder, questions, generations, p_known=None):
    """`score` of generations: records with "normal", a list of k texts. p_known (questions,) may be left out."""
    normal = [g["normal"] for g in generations]
    flat = embed(embedder, [t for texts in normal for t in texts])
    aliases = embed(embedder, [a for q in questions for a in q["answers"]])
    answer_vectors = aliases.split([len(q["answers"]) for q in questions])
    vectors = flat.unflatten(0, (len(questions), -1))
    return score(vectors, answer_vectors, np.zeros(len(questions)) if p_known is None else p_known, questions, normal)


def factuality(scores, names):
    """Sum of the normalised scores called `names`, (questions, k). s_p is one number a question and moves all its k."""
    parts = [normalise(scores[name]) for name in names]
    return sum(part[:, None] if part.dim() == 1 else part for part in parts).expand(scores["s_s2g"].shape)


# ---------------------------------------------------------------------------------------------------- labels and states

def least_variance_threshold(values):
    """The cut of `values` into two classes of least total within-class sum of squares (Otsu)."""
    ordered = np.sort(np.asarray(values, float).ravel())
    n = np.arange(1, len(ordered))
    total, upto = ordered.sum(), ordered.cumsum()[:-1]
    between = upto**2 / n + (total - upto)**2 / (len(ordered) - n)   # largest where the within-class sum is least
    cut = int(between.argmax())
    return float((ordered[cut] + ordered[cut + 1]) / 2)


def label(factuality, hits, config):
    """correct (questions, k) bool and states, a list of "known", "unknown", "mixed" or None (left out).

    factuality (questions, k); hits (questions, k) bool: generations read as right. By `config.rule`:
    - median, threshold: correct above the cut; known where all k are, unknown where none is, otherwise mixed (paper);
    - percentile: known where the best generation is above `upper` and the worst not below `lower`, unknown the other
      way round, mixed where both, left out where neither (the authors' release); correct above the middle of the cuts;
    - gold: correct is a hit; known and unknown by the share of hits, mixed between.
    """
    if config.rule == "gold":
        share = hits.mean(1)
        states = ["known" if s >= config.known_share else "unknown" if s <= config.unknown_share else "mixed" for s in share]
        return hits, states
    if config.rule == "percentile":
        upper, lower = np.percentile(factuality, config.upper), np.percentile(factuality, config.lower)
        right, wrong = factuality.max(1) > upper, factuality.min(1) < lower
        states = [{(1, 0): "known", (0, 1): "unknown", (1, 1): "mixed", (0, 0): None}[int(r), int(w)] for r, w in zip(right, wrong)]
        return factuality > (upper + lower) / 2, states
    cut = np.median(factuality) if config.rule == "median" else least_variance_threshold(factuality)
    correct = factuality > cut
    return correct, ["known" if row.all() else "mixed" if row.any() else "unknown" for row in correct]


def histogram(states):
    """{"known": n, "unknown": n, "mixed": n} and the warnings, plain sentences, where a rule did something odd."""
    counts = {state: states.count(state) for state in STATES}
    total = max(1, sum(counts.values()))
    warnings = [f"no question is {state}" for state in ("known", "unknown") if not counts[state]]
    if counts["mixed"] > 0.25 * total:
        warnings.append(f"{counts['mixed'] / total:.0%} of the questions are mixed; the paper found 8 to 10%")
    return counts, warnings


def agreement(correct, hits):
    """Table 1 against gold: accuracy, precision, recall and Cohen's kappa of `correct` against `hits` (same shape, bool)."""
    correct, hits = np.asarray(correct).ravel(), np.asarray(hits).ravel()
    accuracy = float((correct == hits).mean())
    chance = correct.mean() * hits.mean() + (1 - correct.mean()) * (1 - hits.mean())
    both = (correct & hits).sum()
    return {"accuracy": accuracy, "precision": float(both / max(1, correct.sum())), "recall": float(both / max(1, hits.sum())),
            "kappa": float((accuracy - chance) / (1 - chance)) if chance < 1 else 1.0}


# ---------------------------------------------------------------------------------------------------- rankings

def typical_refusals(texts, vectors, refusal):
    """Similarity (n,) of each text to the mean of the refusals, -inf for a text that is not one.

    texts (n,), vectors (n, width) unit, refusal (n,) bool. The typical refusal is the one with the highest value.
    """
    refusal = torch.as_tensor(refusal)
    if not refusal.any():
        return torch.full((len(texts),), float("-inf"))
    centre = torch.nn.functional.normalize(vectors[refusal].mean(0), dim=0)
    return cosine(vectors, centre[None]).masked_fill(~refusal, float("-inf"))


def rank(question, state, normal, factuality, uncertain, typicality, common):
    """One preference record, or the reason (text) why there is none.

    The factual response is the right generation of highest factuality, the hallucination the wrong one of lowest, the
    uncertain one the question's own refusal that is most typical of the data set's, else `common` (None: no record).
    """
    readings = [answers.read(text, question["answers"]) for text in normal]
    order = np.argsort(-np.asarray(factuality), kind="stable")
    factual = [normal[i] for i in order if readings[i] == "right"]
    wrong = [normal[i] for i in order if readings[i] == "wrong" and normal[i].strip()]
    best = int(np.argmax(typicality)) if len(typicality) else 0
    own = uncertain[best] if len(typicality) and np.isfinite(typicality[best]) else common
    chosen = {"factual": factual[0] if factual else None, "uncertain": own, "hallucination": wrong[-1] if wrong else None}
    for kind in RANKING[state]:
        if chosen[kind] is None:
            return f"{state}, without a {kind} response"
    return {"id": question["id"], "prompt": messages(question["question"]), "ranking": [chosen[k] for k in RANKING[state]],
            "kinds": list(RANKING[state]), "state": state}


def rankings(questions, states, normal, factuality, uncertain, uncertain_vectors, config):
    """Preference records and a Counter of what was left out, by reason.

    normal, uncertain: lists of texts a question; factuality (questions, k); uncertain_vectors (all uncertain texts in
    order, width).
    """
    flat = [text for texts in uncertain for text in texts]
    refusal = [answers.read(text, q["answers"]) == "refusal" and bool(SENTENCE_END.search(text[-1:]))
               for q, texts in zip(questions, uncertain) for text in texts]
    typicality = typical_refusals(flat, uncertain_vectors, refusal).numpy()
    common = {}
    for lang in {q["lang"] for q in questions}:
        here = np.array([q["lang"] == lang for q, texts in zip(questions, uncertain) for _ in texts], bool)
        similar = np.where(here, typicality, -np.inf)
        common[lang] = flat[int(similar.argmax())] if config.borrow and np.isfinite(similar).any() else None
    records, dropped, start = [], Counter(), 0
    for i, question in enumerate(questions):
        mine = typicality[start:start + len(uncertain[i])]
        start += len(uncertain[i])
        if states[i] is None:
            dropped["neither right nor wrong by the rule"] += 1
            continue
        record = rank(question, states[i], normal[i], factuality[i], uncertain[i], mine, common[question["lang"]])
        if isinstance(record, str):
            dropped[record] += 1
        else:
            records.append(record)
    return records, dropped
