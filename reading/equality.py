"""Where a text says the same thing as a given answer, however it puts it: dates, numbers with
units, names, abbreviations.

`found_in` yields the places, each with the rule that found it; whether what stands there is
asserted is decided by `assertion`. Sources: the kinds of answers that a lexical match misses are
those of Kamalloo et al. (2023), "Evaluating open-domain question answering in the era of large
language models", section 5.
"""

import re
from collections import namedtuple
from functools import lru_cache

from reading.dates import date_of, dates_in, near_decade, other_date, same_date
from reading.names import TITLES, asks_for_person, parts_of, same_given
from reading.words import ANY_CJK, Words, bare, is_number, ordinal, plain, stem, whole

Place = namedtuple("Place", "first last rule")  # words first..last of the text; (-1, -1) for a date
Gold = namedtuple("Gold", "text words variants date name number content short")

SMALL = frozenset(
    (
        "in on at of by with from to as during about around for and or it is was be he she they his her "
        "their its this that "
        "are were who which when had has have"
    ).split()
)
KINDS = frozenset("film films movie movies music game games language languages".split())
GENERIC = frozenset(
    "river city county mountain mountains island islands ocean sea street company team party people year years times "
    "state province region age".split()
)
UNITS = re.compile(
    r"(kilometer|meter|centimeter|millimeter|kilogram|gram|milligram|pound|foot|inch|mile|liter|"
    r"milliliter|year|month|week|day|"
    r"hour|minute|second|dollar|euro|%|degre|ton|acre|episod|season|time|person|peopl|player|member|"
    r"country|state|point)e?"
)
DESCRIBED = re.compile(
    r"^(?:[A-Z]?[\w'’.-]+\s+)*?[a-z][\w'’-]*\s+((?:The\s+)?[A-Z][\w'’.&-]*(?:\s+(?:of|the|and|&|de|van|"
    r"von|[A-Z][\w'’.&-]*))*)$"
)
BRACKETS = re.compile(r"\s*[(\[]([^)\]]*)[)\]]\s*")
ALTERNATIVES = re.compile(r"\s*/\s*|\s*;\s*|,?\s+or\s+|\s+aka\s+|,?\s+also known as\s+", re.I)
SHORT = re.compile("[A-Za-z]{1,2}[+#-]*")


@lru_cache(maxsize=1 << 16)
def gold_of(answer, person, place, asked):
    """What an answer is, worked out once: its forms to be found word by word, its date, name and
    number.
    """
    text = plain(answer)
    if SHORT.fullmatch(answer) and answer != answer.lower() and answer not in ("US", "UK"):
        return Gold(answer, None, (), None, None, None, (), True)
    words = Words(answer)
    return Gold(
        answer,
        words,
        tuple(variants(answer, person, place, asked)),
        date_of(text),
        parts_of(text),
        number_of(words),
        content(words.forms),
        False,
    )


def variants(answer, person, place, asked):
    """Forms, each as joined words, of which one is enough: with and without brackets, leading
    prepositions, what kind of thing it is.
    """
    texts = [answer]
    inner = BRACKETS.findall(answer)
    if inner:
        texts += [BRACKETS.sub(" ", answer).strip(), *(i for i in inner if len(i) > 1 and not i.isdigit())]
    texts += [part for t in texts[:1] for part in ALTERNATIVES.split(t) if len(part) > 3]
    described = DESCRIBED.match(answer)
    if described and person:
        texts.append(described[1])
    if place and answer.count(",") >= 1 and answer[0].isupper():
        texts.append(answer.split(",")[0])
    forms = []
    for text in texts:
        own = Words(text).forms
        while len(own) > 1 and (own[0] in SMALL or person and own[0] in TITLES):
            own = own[1:]
        last = text.split()[-1].lower().strip(".,") if text.split() else ""
        forms.append(own)
        if len(own) > 1 and (last in ("language", "languages") or last in KINDS and text == text.lower()):
            forms.append(own[:-1])
        less = own
        while len(less) > 1 and (less[-1] in asked or less[-1] in SMALL):
            less = less[:-1]
        while len(less) > 1 and (less[0] in asked or less[0] in SMALL):
            less = less[1:]
        if less != own and last not in KINDS and len(less[0]) > 3 and not is_number(less[0]) and less[0] not in asked:
            forms.append(less)
    return dict.fromkeys(
        Words(" ".join(form)).joined if any(is_number(f) for f in form) else "".join(form) for form in forms if form
    )


def content(forms):
    """The words of an answer that carry its meaning."""
    return tuple(dict.fromkeys(bare(f) for f in forms if f not in SMALL)) or tuple(forms)


def number_of(words):
    """(value, unit or "") of an answer that is one number, with a unit or without, or None."""
    numbers = [i for i, form in enumerate(words.forms) if is_number(form)]
    rest = [form for i, form in enumerate(words.forms) if i not in numbers and form not in SMALL]
    if len(numbers) == 1 and len(rest) <= 1 and not re.search(r"\d[-–]\d", words.text):
        return words.forms[numbers[0]], rest[0] if rest else ""
    return None


def found_in(words, gold, question, said_dates):
    """Yield a Place for each place in `words` that says `gold`; `said_dates` returns the text's
    dates when they are needed.
    """
    if gold.short:
        for m in re.finditer(rf"(?<![A-Za-z0-9]){re.escape(gold.text)}(?![A-Za-z0-9])", words.text):
            yield place_of(words, m.start(), m.end(), "letters")
        return
    for form in gold.variants:
        for first, last in occurrences(words, form):
            if form == gold.words.joined:
                yield Place(first, last, "alias")
            elif "," in gold.text or not parted(words, first, last):
                yield Place(first, last, "part")
    if gold.date:
        said = said_dates()
        if any(same_date(gold.date, date) for date in said):
            yield Place(-1, -1, "date")
        elif near_decade(gold.text, gold.date, said):
            yield Place(-1, -1, "decade")
        elif (
            gold.date[1] > 0
            and not ASKS_FOR_DAY.search(question)
            and not any(other_date(gold.date, date) for date in said if date[1])
        ):
            years = {date[0] for date in said if date[0]}
            if years == {gold.date[0]} and any(not other_date(gold.date, date) for date in said if date[0]):
                yield Place(-1, -1, "year of the date")
    elif gold.number:
        yield from number_places(words, *gold.number)
    if gold.name:
        yield from name_places(words, *gold.name, asks_for_person(question))
    if len(gold.content) > 1 and not gold.date and not gold.number and not ANY_CJK.match(gold.content[0]):
        yield from scattered(words, gold.content)


ASKS_TWICE = re.compile(r"\band (?:in )?(?:what year|what date|when)\b", re.I)  # "who made it and when"
ASKS_FOR_DAY = re.compile(r"\b(?:date|day|birthday)\b")


PHRASE_END = re.compile("[,;:!?()]")
ENDS_OF_GLUED = ("as", "and", "in", "for", "on", "from", "with", "who", "is", "was", "a")


def occurrences(words, form):
    """(first, last) word of each place where `form` stands in the joined words, from a word's start
    to a word's end.

    A long form may have a small word glued to its end, as in texts that lost their links ("Lynda
    Carteras Diana").
    """
    at = words.joined.find(form)
    while at >= 0:
        starts, ends = words.edges()
        first, last = starts.get(at), ends.get(at + len(form))
        if first is not None:
            if last is None and len(form) > 9 and form.isalpha():
                end = next((end for end in ends if end > at + len(form)), 0)
                last = ends.get(end) if words.joined[at + len(form) : end] in ENDS_OF_GLUED else None
            if last is not None:
                yield first, last
        at = words.joined.find(form, at + 1)


def parted(words, first, last):
    """True where a mark that ends a phrase stands between words first and last: "Introverted,
    Sensing" are two things.
    """
    return bool(PHRASE_END.search(words.text[words.spans[first][1] : words.spans[last][0]]))


def place_of(words, start, end, rule):
    """The words at characters start..end of the text."""
    inside = [i for i, (a, b) in enumerate(words.spans) if a < end and start < b] or [0]
    return Place(inside[0], inside[-1], rule)


def number_places(words, value, unit):
    """Where the same number stands with the same unit, or with none."""
    for i, form in enumerate(words.forms):
        if form == value or not unit and form == ordinal(whole(value)):
            after = words.forms[i + 1] if i + 1 < len(words.forms) else ""
            if unit == after or not unit or not UNITS.fullmatch(after) and UNITS.fullmatch(unit):
                yield Place(i, i, "number")


def name_places(words, given, family, alone):
    """Where a given and the family name stand with at most two words between; with `alone`, the
    family name by itself too.
    """
    family, any_case = stem(family), words.text.islower()
    for i, form in enumerate(words.forms):
        if form != family:
            continue
        near = range(max(0, i - 3) if alone else one_phrase(words, i), i)
        before = [words.forms[k] for k in near if any_case or words.text[words.spans[k][0]].isupper()]
        if same_given(given, [f for f in before if f not in SMALL]):
            yield Place(i - 1, i, "name")
        elif alone and len(family) > 2 and words.text[words.spans[i][0]].isupper() and not named_otherwise(words, i):
            yield Place(i, i, "family name")


def one_phrase(words, i):
    """The first of the up to three words before word i that no comma or other mark parts from
    it.
    """
    first = i
    while first > max(0, i - 3) and not parted(words, first - 1, first):
        first -= 1
    return first


def named_otherwise(words, i):
    """True where a capitalised word that is no title stands right before word i, or right after (a
    family name used as a given one), or an indefinite article before it ("a prominent French").
    """
    start, end = words.spans[i]
    if re.search(r"\b[Aa]n?\s+(?:[a-z]+\s+)?$", words.text[max(0, start - 30) : start]):
        return True
    before = re.search(r"([A-Z][\w'.-]*)\s+$", words.text[max(0, start - 30) : start])
    sentence_start = i == 0 or re.search(r"[.!?:]\s*\w+\s+$", words.text[max(0, start - 30) : start])
    if before and before[1].lower().strip(".") not in TITLES and not (sentence_start and before[1].lower() in SMALL):
        return True
    return bool(re.match(r"-|\s+(?:[A-Z]\.?\s+)?[A-Z][a-z]+", words.text[end : end + 30]))


def scattered(words, wanted):
    """Where the words of an answer stand close together: three and more in any order, two in theirs
    with none but small words between; "season 2" is "second season", the other way round too,
    since it holds a number.
    """
    if not words.bare().issuperset(wanted):
        return
    at, free = {}, len(wanted) > 2 or any(is_number(form) for form in wanted)
    for i, form in enumerate(words.forms):
        form = bare(form)
        if form not in wanted:
            if not free and form not in SMALL:
                at = {}
            continue
        if not free and wanted.index(form) != len(at):
            at = {}
        at[form] = i
        if len(at) == len(wanted) and max(at.values()) - min(at.values()) <= 2 * len(wanted):
            yield Place(min(at.values()), max(at.values()), "words")


@lru_cache(maxsize=1 << 14)
def question_words(question):
    """The words of a question that carry its meaning, as a set."""
    return frozenset(Words(question).forms) - SMALL


def match(text, answers, question=""):
    """(Words of the text, [(Gold, Place)]) of every place where `text` says one of `answers`."""
    words = text if isinstance(text, Words) else Words(text)
    said = []

    def said_dates():
        if not said:
            said.append(dates_in(words.text))
        return said[0]

    asked = question_words(question)
    person, place = asks_for_person(question), question.lower().startswith("where") or " where " in question
    golds = [gold_of(answer, person, place, asked) for answer in answers]
    found = [(gold, at) for gold in golds for at in found_in(words, gold, question, said_dates)]
    found = [
        (gold, at)
        for gold, at in found
        if at.rule not in ("part", "words") or not asked.issuperset(words.forms[at.first : at.last + 1])
    ]
    dates = [gold.date is not None for gold in golds]
    if (
        found
        and len(set(dates)) == 2
        and ASKS_TWICE.search(question)
        and len({gold.date is not None for gold, _ in found}) < 2
    ):
        found = []
    if found and sum(dates) > 1:
        found = [(gold, at) for gold, at in found if not gold.date or not contradicted(gold.date, golds, said_dates())]
    return words, found


def contradicted(date, golds, said):
    """True where a year is given alone and with its day too, and the text says another day of that
    year.
    """
    fuller = [gold.date for gold in golds if gold.date and gold.date[0] == date[0] and gold.date[1] > 0]
    days = [other for other in said if other[0] == date[0] and other[1] > 0]
    return bool(fuller and days) and all(other_date(given, other) for given in fuller for other in days)


@lru_cache(maxsize=1 << 14)
def pairs_of(question):
    """Neighbouring words of a question, as a set of pairs."""
    forms = Words(question).forms
    return frozenset(zip(forms, forms[1:]))
