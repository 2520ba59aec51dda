"""What an answer says: right, hedged, wrong, refusal or empty. The one reading of model text that
the whole project uses.

Section 3.1 compares a generation with the correct answer; section 3.3 needs to know besides whether
it shows uncertainty. `read` is the strict reader: `equality` finds where a text says an answer,
`assertion` whether it stands by it, `refusals` whether it declines. `learned` adds paraphrase,
`judge` a model behind an endpoint. English and Chinese throughout; refusals in German, French and
Spanish as well.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from reading.assertion import asserted, names_the_question
from reading.equality import match, pairs_of
from reading.refusals import declines, refusal
from reading.words import count_words, normalise

__all__ = ["KINDS", "LOW", "Reading", "count_words", "declines", "find", "is_correct", "mentions", "normalise"]
__all__ += ["overlap", "read", "reading"]
KINDS = ("right", "hedged", "wrong", "refusal", "empty")
SURE = {
    "alias": 0.99,
    "letters": 0.97,
    "date": 0.93,
    "name": 0.96,
    "part": 0.92,
    "number": 0.95,
    "family name": 0.9,
    "year of the date": 0.85,
    "decade": 0.8,
    "words": 0.9,
}  # share that people agree with, on judged answers
SOMETHING = re.compile(r"[^\W_]")
KEPT_LETTERS = 120  # the longest text whose reading is kept
LOW = 0.7  # readings below it are worth a person's look


@dataclass(frozen=True)
class Reading:
    """How a text was read: its kind, how sure that is (0 to 1), and what decided it: a rule and
    what it found.
    """

    kind: str
    confidence: float
    decided_by: str


def find(text, answers, question=""):
    """(Words of `text`, the surest (Gold, Place) at which it asserts one of `answers`, or None)."""
    words, found = match(text, answers, question)
    if not found:
        return words, None

    def says(part):
        return bool(match(part, answers, question)[1])

    for gold, place in sorted(found, key=lambda f: -SURE[f[1].rule]):
        if not names_the_question(words, place, pairs_of(question)) and asserted(words, place, question, says):
            return words, (gold, place)
    return words, None


def mentions(text, answers, question=""):
    """True where `text` asserts any of `answers` to `question`, on word boundaries ("no" is not in
    "know").

    An answer of one or two letters with a capital ("Hg", "K") must stand there in its own case.
    """
    return find(text, answers, question)[1] is not None


def reading(text, answers, question="", embed=None):
    """The strict Reading of `text` as an answer to `question`; `embed` (texts -> unit vectors)
    helps to see refusals.

    A text that declines and then guesses something else ("I am not sure, but I think it is London")
    is wrong: it was an answer. A text without a letter or digit is empty. Readings of short texts
    are kept, since a model that is asked again says many of them again.
    """
    if embed is None and len(text) <= KEPT_LETTERS:
        return kept(text, tuple(answers), question)
    return read_anew(text, answers, question, embed)


@lru_cache(maxsize=1 << 16)
def kept(text, answers, question):
    """`reading` of a short text."""
    return read_anew(text, answers, question, None)


def read_anew(text, answers, question, embed):
    """`reading`, worked out."""
    if not SOMETHING.search(text):
        return Reading("empty", 1.0, "no words")
    words, found = find(text, answers, question)
    if not found:
        declined, sure, why = refusal(text, "", embed)
        return Reading("refusal" if declined == "refusal" else "wrong", sure, why)
    gold, place = found
    said = words.text[words.spans[place.first][0] : words.spans[place.last][1]] if place.first >= 0 else " "
    declined, sure, why = refusal(text, said, embed)
    decided_by = f"{place.rule}: {gold.text}"
    if declined:
        return Reading("hedged", min(sure, SURE[place.rule]), f"{decided_by}; {why}")
    return Reading("right", SURE[place.rule], decided_by)


def read(text, answers, question=""):
    """The kind of `reading`: "right", "hedged" (right, but says that it is not sure), "wrong",
    "refusal" or "empty".
    """
    return reading(text, answers, question).kind


def is_correct(kind):
    """True for "right" and "hedged"."""
    return kind in ("right", "hedged")


def overlap(text, answers):
    """Section 3.1, 3.3: share of the answer's tokens that stand in the text, the best over the
    aliases; 0 to 1.
    """

    def share(wanted):
        have = normalise(text).split()
        shared = 0
        for word in wanted:
            if word in have:
                have.remove(word)
                shared += 1
        return shared / len(wanted)

    return max((share(words) for words in (normalise(a).split() for a in answers) if words), default=0.0)
