"""The learned reader: logistic regression on cheap features, for answers that say the right thing
in other words.

Features are what `equality` and `assertion` found, word overlap (whole, by beginnings of words, by
letter trigrams), dates and numbers that agree or differ, containment, negation, lengths and the
type of question; with an embedder, cosines of text and answer too, with and without the question.
`python -m reading.fit JUDGED.jsonl` makes learned.json. Compared with BEM (Bulian et al., 2022), a
BERT trained for this, it needs no model and reads a thousand answers a second. Left out: knowledge
of the world: that Sharyans Resources owns Phoenix Mills is for a judge to know.
"""

import json
import math
import os
import re
from functools import lru_cache

from reading.answers import SOMETHING, Reading, find, is_correct, reading
from reading.dates import dates_in, other_date
from reading.equality import asks_for_person, gold_of, match, question_words
from reading.refusals import by_pattern
from reading.words import Words, bare, is_number

HERE = os.path.dirname(__file__)
RULES = ("alias", "letters", "part", "date", "number", "name", "family name", "year of the date", "decade", "words")
TYPES = ("who", "when", "where", "how many", "how", "which", "what")
SHARES = ("overlap", "beginnings", "trigrams")
NEGATION = re.compile(r"\b(?:not|never|no|neither|nor)\b|n't", re.I)
NAMES = [
    *RULES,
    "mentioned, not asserted",
    *SHARES,
    "whole answer",
    "number agrees",
    "number missing",
    "date differs",
    "other dates",
    "names",
    "lower case",
    "letters of answer",
    "letters of text",
    "answers",
    "in the question",
    "declines",
    "negation",
    "short text",
    *TYPES,
    *(f"{share} {kind}" for share in SHARES for kind in TYPES),
    *(f"names {share}" for share in SHARES),
    *(f"lower case {share}" for share in SHARES),
    "nothing shared lower case",
    "words of answer",
    "head word",
    "family name in text",
    "long text nothing shared",
    "other year near",
]
COSINES = ["cosine", "cosine with question", "cosine missing"]


@lru_cache(maxsize=1 << 14)
def type_of(question):
    """One of TYPES, or "": what a question asks for by its first question word."""
    found = re.search(
        r"\b(who|whom|whose|when|what year|what date|where|how many|how much|how|which|what)\b", question.lower()
    )
    word = found[1] if found else ""
    return {"whom": "who", "whose": "who", "what year": "when", "what date": "when", "how much": "how many"}.get(
        word, word
    )


@lru_cache(maxsize=1 << 16)
def trigrams(word):
    """Runs of three letters of a word with its ends marked."""
    marked = f"^{word}$"
    return frozenset(marked[i : i + 3] for i in range(max(1, len(marked) - 2)))


def shares(gold, words, asked):
    """(overlap, by beginnings, by trigrams, head word): how much of one answer's own words stands
    in the text.
    """
    own = [form for form in gold.content if form not in asked] or list(gold.content)
    have = words.bare()
    starts, pieces = {form[:4] for form in have}, frozenset().union(*map(trigrams, have))
    same = [form in have for form in own]
    begun = [s or len(form) > 3 and not is_number(form) and form[:4] in starts for s, form in zip(same, own)]
    letters = [
        len(trigrams(form) & pieces) / len(trigrams(form)) if not is_number(form) else float(s)
        for s, form in zip(same, own)
    ]
    size = len(own)
    return sum(same) / size, sum(begun) / size, max(0.0, sum(letters) / size - 0.5) * 2, float(same[-1])


def features(text, answers, question=""):
    """The numbers of NAMES for one text."""
    words, place = find(text, answers, question)
    asked, kind = question_words(question), type_of(question)
    person, at_place = asks_for_person(question), kind == "where"
    golds = [gold_of(answer, person, at_place, asked) for answer in answers]
    golds = [gold for gold in golds if not gold.short] or golds
    row = dict.fromkeys(NAMES, 0.0)
    if place:
        row[place[1].rule] = 1.0
    else:
        row["mentioned, not asserted"] = float(bool(match(words, answers, question)[1]))
    scored = [(shares(gold, words, asked), gold) for gold in golds if gold.words and gold.content and words.forms]
    best, gold = max(scored, key=lambda s: sum(s[0])) if scored else ((0.0,) * 4, None)
    row.update(zip(SHARES, (max(s[0][i] for s in scored) for i in range(3)) if scored else best))
    row["head word"] = best[3]
    nothing = float(row["overlap"] == 0)
    if gold:
        have = words.bare()
        numbers = {bare(f) for g in golds if g.words for f in g.words.forms if is_number(bare(f))}
        said, given = dates_in(words.text) if kind == "when" else (), [g.date for g in golds if g.date]
        name = float(gold.name is not None)
        lower = float(gold.text[:1].islower())
        row.update(
            {
                "whole answer": float(best[0] == 1),
                "number agrees": float(bool(numbers & have)),
                "number missing": float(bool(numbers) and not numbers & have),
                "date differs": float(bool(given and said) and all(other_date(g, s) for g in given for s in said)),
                "other dates": min(len(said), 4) / 4,
                "other year near": float(any(abs(g[0] - s[0]) <= 2 for g in given for s in said if s[0] > 999)),
                "names": name,
                "lower case": lower,
                "letters of answer": math.log1p(len(gold.text)),
                "words of answer": math.log1p(len(gold.content)),
                "family name in text": float(bool(gold.name) and Words(gold.name[1]).joined in have),
                "nothing shared lower case": nothing * lower,
                **{f"names {s}": name * row[s] for s in SHARES},
                **{f"lower case {s}": lower * row[s] for s in SHARES},
            }
        )
    size = math.log1p(len(words.forms))
    row.update(
        {
            "letters of text": size,
            "answers": math.log1p(len(answers)),
            "declines": float(by_pattern(text)),
            "negation": float(bool(NEGATION.search(text))),
            "in the question": float(bool(gold) and asked.issuperset(gold.content)),
            "short text": float(len(words.forms) <= 6),
            "long text nothing shared": nothing * size,
        }
    )
    if kind:
        row[kind] = 1.0
        row.update({f"{share} {kind}": row[share] for share in SHARES})
    return [row[name] for name in NAMES]


def cosines(texts, answers, questions, embed):
    """Rows of COSINES: the best over the aliases of the cosine of text and answer, alone and after
    the question.
    """
    flat = [(i, answer) for i, aliases in enumerate(answers) for answer in aliases[:4]]
    plain, asked = embed(list(texts)), embed([f"{q}? {t}" for q, t in zip(questions, texts)])
    gold, gold_asked = embed([a for _, a in flat]), embed([f"{questions[i]}? {a}" for i, a in flat])
    best = [[-1.0, -1.0] for _ in texts]
    for (i, _), g, q in zip(flat, gold, gold_asked):
        best[i] = [max(best[i][0], float((plain[i] * g).sum())), max(best[i][1], float((asked[i] * q).sum()))]
    shared = [[float(w) for w in row] for row in best]
    return [[a, b, max(0.0, 0.5 - b)] for a, b in shared]


@lru_cache(maxsize=1)
def fitted():
    """The coefficients: {"features" | "with cosines": {"bias", "threshold", "weight": {name:
    number}}}.
    """
    with open(os.path.join(HERE, "learned.json"), encoding="utf-8") as file:
        return json.load(file)


def probabilities(texts, answers, questions, embed=None):
    """Probability of each text that a person would call it right."""
    rows = [features(*given) for given in zip(texts, answers, questions)]
    use = fitted()["with cosines" if embed else "features"]
    if embed and rows:
        rows = [row + more for row, more in zip(rows, cosines(texts, answers, questions, embed))]
    weight = [use["weight"].get(name, 0.0) for name in NAMES + (COSINES if embed else [])]
    scores = [use["bias"] + sum(w * x for w, x in zip(weight, row) if x) for row in rows]
    return [1 / (1 + math.exp(-max(-30.0, min(30.0, score)))) for score in scores]


def read_many(texts, answers, questions, embed=None):
    """A Reading of each text: the strict reader's where it is empty or a refusal, else by the
    learned probability.
    """
    threshold = fitted()["with cosines" if embed else "features"]["threshold"]
    return [
        learned_reading(text, own, question, p, threshold, embed)
        for text, own, question, p in zip(texts, answers, questions, probabilities(texts, answers, questions, embed))
    ]


def learned_reading(text, answers, question, p, threshold, embed=None):
    """The Reading of one text whose learned probability is p."""
    strict = reading(text, answers, question, embed)
    if not SOMETHING.search(text) or strict.kind == "refusal":
        return strict
    right = p > threshold
    sure = 0.5 + 0.5 * ((p - threshold) / (1 - threshold) if right else (threshold - p) / threshold)
    if right == is_correct(strict.kind):
        return Reading(strict.kind, sure, strict.decided_by)
    return Reading("right" if right else "wrong", sure, f"learned: {p:.2f} against {threshold:.2f}")


def read(text, answers, question="", embed=None):
    """The kind of one text by the learned reader."""
    return read_many([text], [answers], [question], embed)[0].kind
