"""Rankings (Figure 3): which answers of a question stand for factual, uncertain and hallucinated, best first.

A known question ranks factual > uncertain, a mixed one factual > uncertain > hallucination, an unknown one uncertain >
hallucination. A factual response must be right, an uncertain one a real refusal, a hallucination wrong: what breaks that
is dropped and counted. Left out: the general reward model by which the authors' release picks among uncertain answers.
"""
import re
from collections import Counter

import numpy as np
import torch

import answers
from embed import cosine
from lm import generator_for, messages

RANKING = {"known": ("factual", "uncertain"), "mixed": ("factual", "uncertain", "hallucination"),
           "unknown": ("uncertain", "hallucination")}  # Figure 3, best first
SENTENCE_END = re.compile(r"[.!?](?=\s|$)|[。！？]")


def finish(text, ended):
    """A text that was cut off (`ended` false) shortened to its last whole sentence, if it has one."""
    ends = [found.end() for found in SENTENCE_END.finditer(text)]
    return text if ended or not ends else text[:ends[-1]]


def typical_refusals(texts, vectors, refusal):
    """Similarity (n,) of each text to the mean of the refusals, -inf for a text that is not one.

    texts (n,), vectors (n, width) unit, refusal (n,) bool. The typical refusal is the one with the highest value.
    """
    refusal = torch.as_tensor(refusal)
    if not refusal.any():
        return torch.full((len(texts),), float("-inf"))
    centre = torch.nn.functional.normalize(vectors[refusal].mean(0), dim=0)
    return cosine(vectors, centre[None]).masked_fill(~refusal, float("-inf"))


def rank(question, state, normal, factuality, uncertain, typicality, common, hallucination):
    """One preference record, or the reason (text) why there is none.

    The factual response is the right generation of highest factuality, the hallucination the wrong one of lowest (or
    highest: `hallucination`), the uncertain one the question's own refusal that is most typical of the data set's, else
    `common` (None: no record).
    """
    readings = [answers.read(text, question["answers"], question["question"]) for text in normal]
    order = np.argsort(-np.asarray(factuality), kind="stable")
    factual = [normal[i] for i in order if readings[i] == "right"]
    wrong = [normal[i] for i in order if readings[i] == "wrong" and normal[i].strip()]
    best = int(np.argmax(typicality)) if len(typicality) else 0
    own = uncertain[best] if len(typicality) and np.isfinite(typicality[best]) else common
    chosen = {"factual": factual[0] if factual else None, "uncertain": own,
              "hallucination": wrong[-1 if hallucination == "lowest" else 0] if wrong else None}
    for kind in RANKING[state]:
        if chosen[kind] is None:
            return f"{state}, without a {kind} response"
    return {"id": question["id"], "prompt": messages(question["question"]), "ranking": [chosen[k] for k in RANKING[state]],
            "kinds": list(RANKING[state]), "state": state}


def preferences(questions, states, normal, factuality, uncertain, uncertain_vectors, config):
    """Preference records and a Counter of what was left out, by reason.

    normal, uncertain: lists of texts a question; factuality (questions, k); uncertain_vectors (all uncertain texts in
    order, width).
    """
    flat = [text for texts in uncertain for text in texts]
    refusal = [answers.read(text, q["answers"], q["question"]) == "refusal" and bool(SENTENCE_END.search(text[-1:]))
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
        record = rank(question, states[i], normal[i], factuality[i], uncertain[i], mine, common[question["lang"]], config.hallucination)
        if isinstance(record, str):
            dropped[record] += 1
        else:
            records.append(record)
    return records, dropped


def shuffle_states(records, seed):
    """The control: the states known and unknown are dealt out anew among the rankings of two; one that changes is turned round."""
    two = [i for i, record in enumerate(records) if len(record["ranking"]) == 2]
    dealt = [records[two[j]]["state"] for j in torch.randperm(len(two), generator=generator_for(seed, "shuffled states")).tolist()]
    shuffled = list(records)
    for i, state in zip(two, dealt):
        if state != records[i]["state"]:
            shuffled[i] = {**records[i], "ranking": records[i]["ranking"][::-1], "kinds": list(RANKING[state]), "state": state}
    return shuffled


def pairs(record):
    """The pairs of a ranking in the conversational form that other trainers read: prompt, chosen and rejected messages."""
    turn = lambda text: [{"role": "assistant", "content": text}]
    ranking = record["ranking"]
    return [{"prompt": record["prompt"], "chosen": turn(ranking[i]), "rejected": turn(ranking[j]), "id": record["id"], "state": record["state"],
             "kinds": [record["kinds"][i], record["kinds"][j]]}
            for i in range(len(ranking)) for j in range(i + 1, len(ranking))]
