"""What a text asserts of what it mentions: not what it denies, takes back, leaves open or only
lists.

Rules on the words around a place where an answer stands: negation in its clause, "neither ... nor",
"A or B", an answer that is corrected ("London, no, Paris"), a long list of candidates where one was
asked for, and the question's own words ("The Illinois River is in Ohio" does not answer Illinois).
Left out: negation by a verb's meaning ("fails to"), irony.
"""

import re
from functools import lru_cache

from reading.words import QUOTED

CLAUSE_END = re.compile(
    r"[,;:!?()。，；：！？、]|\.(?:\s|$)|\n|\b(?:but|although|though|because|while|which|who|whom|where|when|"
    r"until|before|after|since)\b|但|而是|而",
    re.I,
)
NEGATION = re.compile(
    r"\b(?:not|never|neither|nor|isn't|wasn't|aren't|weren't|didn't|doesn't|don't|cannot|can't|couldn't|hasn't|haven't|"
    r"wouldn't|without|rather than|instead of|other than|except(?: for)?|unlike|contrary to)\b"
    r"|不是|并非|不在|没有|而非",
    re.I,
)
NO_NEGATION = re.compile(
    r"\bnot\s(?:only|just|merely|simply|until|exactly|entirely|sure|certain|know|limited|necessarily|too|"
    r"far|long)\b|\bif not\b|\bwhether or not\b"
    r"|\b(?:do|did|could|ca)(?:n't| not) (?:know|be sure|confirm|have|say)\b|don't know|didn't know|n't sure|不仅|不只",
    re.I,
)
DENIED_AFTER = re.compile(
    r"\s*(?:(?:is|was|were|are)(?:\s+not\b|n't)\s*(?:the\b|it\b|correct|right|true|an?\s+answer|[.!,]|$)|"
    r"(?:did|does|do|has|have|could|would)(?:\s+not\b|n't)\s+"
    r"(?:write|direct|invent|win|play|discover|sing|compose|paint|found|make|do|create|star|appear|build)|不是|并不是|没有)",
    re.I,
)
TAKEN_BACK = re.compile(
    r"(?:[,.;!?…—-]+|\s)\s*(?:sorry,\s+i\s+mea?nt?\b|no(?:pe)?,?\s*(?:wait|sorry|rather|actually|it(?:'s| "
    r"is)|that(?:'s| is)|[,.—-])|wait,|actually,?\s+(?:no|it|that|the)|oops|correction\b|scratch that|"
    r"(?:i|let me)\s+(?:mean|meant|correct myself|take that back)\b|sorry,\s+(?:i mean|it|that|no)"
    r"|不对|不，|不是|更正)",
    re.I,
)
EITHER = re.compile(r"\beither\b", re.I)
FILLER = r"(?:(?:maybe|perhaps|possibly|in|the|an?)\s+)*"
OR_BEFORE = re.compile(rf"([^\s,.;:!?]+(?:\s[^\s,.;:!?]+){{0,4}},?\s+or\s+{FILLER})$|(\w*(?:还是|或者?))$", re.I)
OR_AFTER = re.compile(rf"(?:\s+[^\s,.;:!?]+){{0,2}}?,?\s+or\s+{FILLER}(?P<other>[^\s,.;:!?]+)|\s*(?:还是|或者?)", re.I)
OR = re.compile(r"\bor\b|还是|或", re.I)
MANY = re.compile(
    r"\b(?:what|which|who)\s+(?:\w+\s+)?(?:are|were)\b|\b(?:name|list|give|some|all|examples?|any|many|"
    r"other)\b|\b(?:what|which|whose)\s+(?:\w+\s)?\w+[^s\W]s\b|哪些",
    re.I,
)
LIST_ITEM = re.compile(r",\s*(?:and|or)?\s*|\s+(?:and|or)\s+|、|\n\s*(?:[-*•]|\d+[.)])\s*", re.I)
LONGEST_LIST = 7  # candidates; a text that names more of them where one was asked for has not chosen


def asserted(words, place, question, others):
    """True where `words` assert what stands at `place`; `others(text)` tells whether a text says an
    answer too.
    """
    if place.first < 0:
        return True
    text, start, end = words.text, words.spans[place.first][0], words.spans[place.last][1]
    clause = start_of_clause(text, start)
    before, after = text[clause:start], text[end : end + 80]
    if denied(before, after, question):
        return False
    if taken_back(text, end, others):
        return False
    if left_open(text, before, start, end, others):
        return False
    return not in_long_list(text, start, end, question)


def start_of_clause(text, at):
    """Where the clause that holds character `at` starts."""
    start = max(0, at - 120)
    last = start
    for found in CLAUSE_END.finditer(text, start, at):
        last = found.end()
    return last


def denied(before, after, question):
    """True where a negation stands before an answer in its clause, or denies it right after."""
    if is_negative(question):
        return False
    negation, before = None, QUOTED.sub(" ", before)
    for negation in NEGATION.finditer(before):
        pass
    if negation and not NO_NEGATION.search(before) and len(before[negation.end() :].split()) <= 7:
        return True
    return bool(DENIED_AFTER.match(after))


@lru_cache(maxsize=1 << 14)
def is_negative(question):
    """True where the question itself asks what is not so."""
    return bool(NEGATION.search(question))


def taken_back(text, end, others):
    """True where a correction follows and what comes after it says no answer: "London, no, Paris"
    of London.
    """
    found = TAKEN_BACK.match(text, end) or TAKEN_BACK.search(text, end, end + 60)
    return bool(found) and not others(text[found.end() :]) and len(text) < 400


def left_open(text, before, start, end, others):
    """True where the answer is one side of "A or B" and the other side is no answer; synonyms in
    brackets are none.
    """
    if not OR.search(text, max(0, start - 80), end + 60):
        return False
    right = OR_AFTER.match(text, end)
    if right and right.end() - end < 60:
        other = text[right.start("other") if right["other"] else right.end() :][:60]
        return is_choice(text, before) and not others(first_words(other))
    left = OR_BEFORE.search(text[max(0, start - 80) : start])
    if left and is_choice(text, before):
        return not others(left[0])
    return False


def is_choice(text, before):
    """True where "or" leaves a choice open: the text is short, or says "either". Long texts use it
    for synonyms.
    """
    return len(text) < 60 or bool(EITHER.search(before)) or bool(EITHER.search(text[:200]))


def first_words(text):
    return re.split(r"[.;!?。]", text)[0]


def in_long_list(text, start, end, question):
    """True where the answer is one of more than LONGEST_LIST candidates and the question asks for
    one thing.
    """
    if wants_many(question):
        return False
    left = max(text.rfind(". ", 0, start), text.rfind("。", 0, start), 0)
    right = min(x for x in (text.find(". ", end), text.find("。", end), len(text)) if x >= 0)
    items = [item for item in LIST_ITEM.split(text[left:right]) if 0 < len(item.split()) <= 4]
    return len(items) > LONGEST_LIST


@lru_cache(maxsize=1 << 14)
def wants_many(question):
    """True where the question asks for several things."""
    return bool(MANY.search(question))


def names_the_question(words, place, pairs):
    """True where the answer goes on as it does in the question (`pairs` of its neighbouring words):
    its own words repeated.
    """
    return (
        place.first >= 0
        and place.last + 1 < len(words.forms)
        and (words.forms[place.last], words.forms[place.last + 1]) in pairs
    )
