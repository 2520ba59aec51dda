"""Whether a text says that the speaker does not know, cannot or would rather not answer.

Patterns decide what is certain; what they do not see goes to a small classifier: a logistic
regression on sentence embeddings where an embedder is handed in, else one on word and character
pieces (`pieces`) whose weights are in refusals.json. Both are fitted by `python -m reading.fit` on
refusals.csv. Quotations, titles and the answer itself are taken out first: a song called "Unknown
Pleasures" declines nothing. Left out: refusals in other languages than English, Chinese, German,
French and Spanish, beyond what an embedder of many languages sees.
"""

import csv
import json
import math
import os
import re
import zlib
from functools import lru_cache

from reading.refusal_words import (
    APOLOGY,
    ASSERTION,
    CAPITAL_INSIDE,
    CUES_EN,
    CUES_OTHER,
    EN,
    FOR_WHAT_WAS_SAID,
    GUESS,
    KINDS_OF_WORDS,
    NAMES_NOBODY,
    NO_ASSERTION,
    OTHER,
    SORRY,
    THIRD_PERSON,
    ZH,
)
from reading.words import ANY_CJK, QUOTED, simplified, without_accents

HERE = os.path.dirname(__file__)
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n+")
BITS, MOST_WORDS = 14, 40
LONGEST_TITLE = 250  # characters
KEPT_LETTERS = 120  # the longest text that is kept
SMALL_IN_TITLES = frozenset("a an and at by for from in of on or the to with s t".split())


def flat(text):
    """Lower-case text with punctuation as spaces, no accents, one Chinese script: what the patterns
    read.
    """
    if not text.isascii():
        text = without_accents(text)
        if ANY_CJK.search(text):
            text = simplified(text)
    return " ".join(re.findall(r"[^\W_]+", text.casefold()))


def is_title(text):
    """True where all words of a short text but the small ones have a capital, and it is no sentence
    of a speaker's.
    """
    if len(text) > LONGEST_TITLE:
        return False
    words = re.findall(r"[^\W\d_]+", text)
    return (
        2 <= len(words) <= 16
        and not text.isupper()
        and "I" not in words[:1]
        and all(w[0].isupper() or w in SMALL_IN_TITLES for w in words)
    )


def own_words(text, said=""):
    """`text` without quotations, without the answer that it gives (`said`) and, where it is nothing
    else, without a title.
    """
    left = QUOTED.sub(" ", text)
    if not re.search(r"[^\W_]", left):
        left = re.sub('["“”「」『』«»„]', "", text) if "《" not in text else ""
    if said and len(said) > 3:
        left = left.replace(said, " ")
    return "" if is_title(left.strip(" .")) and not NAMES_NOBODY.match(left.strip()) else left


def by_pattern(text):
    """True where a pattern says that `text` declines: a phrase that is certain, or an apology with
    no assertion after it.
    """
    line = flat(text)
    have = set(line.split())
    if not CUES_EN.isdisjoint(have) and EN.search(line) or not CUES_OTHER.isdisjoint(have) and OTHER.search(line):
        return True
    if not line.isascii() and declines_in_chinese(line):
        return True
    if not SORRY.search(line):
        return False
    clauses = [flat(clause) for clause in re.split("[.!?,。！？，]", text)]
    sorry = [i for i, clause in enumerate(clauses) if APOLOGY.search(clause)]
    return bool(sorry) and not any(
        ASSERTION.search(c) and not NO_ASSERTION.search(c) for i, c in enumerate(clauses) if i != sorry[0]
    )


def declines_in_chinese(line):
    """True where a Chinese line declines for its speaker: with "I" before, or with no subject
    before.
    """
    found = ZH.search(line)
    return bool(found) and (
        "我" in line[: found.end()] or not THIRD_PERSON.search(line) and not re.match("性|数", line[found.end() :])
    )


def refusal(text, said="", embed=None):
    """("" | "hedge" | "refusal", confidence, what decided it): whether `text` declines, and whether
    it then guesses.

    `said` is the part of the text that answers the question, if any does: such a text is not asked
    for its meaning. What short texts say is kept.
    """
    if embed is None and len(text) <= KEPT_LETTERS:
        return kept(text, said)
    return refusal_anew(text, said, embed)


@lru_cache(maxsize=1 << 14)
def kept(text, said):
    """`refusal` of a short text."""
    return refusal_anew(text, said, None)


def refusal_anew(text, said, embed):
    """`refusal`, worked out."""
    own = own_words(text, said)
    if not own.strip():
        return "", 0.95, "a title or a quotation"
    if by_pattern(own):
        return (
            ("hedge", 0.85, "declines, then guesses")
            if GUESS.search(flat(own))
            else ("refusal", 0.97, "declines in so many words")
        )
    if said:
        return "", 0.95, ""
    p, fits = probability(FOR_WHAT_WAS_SAID.sub(" ", own), embed), weights()["pieces"]["threshold"]
    if p > fits and not GUESS.search(flat(own)):
        return "refusal", p, "classifier of refusals"
    return "", max(0.5, 1 - p), "no answer found"


def declines(text, embed=None):
    """True where `text` says that the speaker does not know or cannot answer, whether or not it
    guesses then.
    """
    return bool(refusal(text, "", embed)[0])


def probability(text, embed=None):
    """Probability that the opening of a text declines; 0 where it has too little of what a refusal
    is made of.
    """
    text = opening(text)
    if not may_decline(text):
        return 0.0
    fitted = weights()["pieces"]
    p = sigmoid(fitted["bias"] + sum(fitted["weight"].get(piece, 0.0) for piece in buckets(text)))
    if embed is None:
        return p
    fitted = weights()["embedding"]
    q = sigmoid(fitted["bias"] + sum(w * float(x) for w, x in zip(fitted["weight"], embed([text])[0])))
    return (p + q) / 2  # a small embedder may know English alone


def sigmoid(score):
    return 1 / (1 + math.exp(-max(-30.0, min(30.0, score))))


def may_decline(text):
    """True where one sentence has two kinds of the words that refusals are made of and speaks of no
    third person alone.
    """
    return any(sentence_may_decline(sentence) for sentence in SENTENCE_END.split(text) if sentence)


def sentence_may_decline(text):
    """`may_decline` of one sentence."""
    have = kinds_of_words(text)
    if "T" in have and "S" not in have:
        return False
    return (
        len(have & set("SNKA")) > 1
        and not have.isdisjoint("SK")
        and not have.isdisjoint("NK")
        or len(units_of(text)) < 5
        and not have.isdisjoint("NK")
    )


def opening(text):
    """The first two sentences of a text, at most MOST_WORDS words: a refusal opens a reply, what
    comes later explains it.
    """
    parts = [p for p in SENTENCE_END.split(text.strip()) if p.strip()]
    return " ".join(" ".join(parts[:2]).split()[:MOST_WORDS])


# -------------------------------------------------- the model-free classifier


def units_of(text):
    """The first words of a text, a Chinese character counting as one."""
    return [u for w in flat(text).split() for u in ((w,) if w.isascii() or not ANY_CJK.search(w) else w)][:60]


def kinds_of_words(text):
    """Which of S (speaker), N (negation), K (knowing), A (asking back) a text has words of."""
    units = units_of(text)
    return {name for name, some in KINDS_OF_WORDS if not some.isdisjoint(units)}


def pieces(text):
    """Features for the model-free classifier: words, pairs, their first and last four letters, and
    which kinds of words meet.
    """
    units, have = units_of(text), kinds_of_words(text)
    first = units[0] if units else ""
    marks = ["".join(pair) for pair in ("SN", "NK", "SK", "SNK", "SA") if set(pair) <= have] + sorted(have)
    marks.append("first " + next((name for name, some in KINDS_OF_WORDS if first in some), "-"))
    marks += [
        f"length {min(len(units) // 4, 5)}",
        f"asks {text.rstrip()[-1:] in '?？'}",
        f"digits {any(c.isdigit() for c in text)}",
        f"capitals {min(len(CAPITAL_INSIDE.findall(text)), 2)}",
    ]
    return (
        [f"*{mark}" for mark in marks]
        + units
        + [f"{a} {b}" for a, b in zip(units, units[1:])]
        + [end for u in units if len(u) > 4 for end in (u[:4] + "-", "-" + u[-4:])]
    )


def buckets(text):
    """The hashed pieces of a text, each once."""
    return {zlib.crc32(piece.encode()) & ((1 << BITS) - 1) for piece in pieces(text)}


@lru_cache(maxsize=1)
def weights():
    """The fitted classifiers: {"pieces": {"bias", "weight": {bucket: number}}, "embedding":
    {"bias", "weight", "threshold"}}.
    """
    with open(os.path.join(HERE, "refusals.json"), encoding="utf-8") as file:
        fitted = json.load(file)
    fitted["pieces"]["weight"] = {int(bucket): w for bucket, w in fitted["pieces"]["weight"].items()}
    return fitted


def examples():
    """The written list: dicts of lang, refusal ("1" or "0"), kind and text."""
    with open(os.path.join(HERE, "refusals.csv"), encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
