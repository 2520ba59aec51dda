"""Dates in a text, in any of the usual orders, and whether two of them are the same day, month,
year or decade.

A date is (year, month, day) with 0 for what is not said; a decade is (193, -10, 0), "1930s". The
patterns are plain regular expressions and not dateutil's parser: that one takes any number for a
date, fills what is missing from today, and reads a thousand texts a second.
"""

import re
from functools import lru_cache

MONTHS = {
    name: n
    for n, name in enumerate(
        ("january february march april may june july august september october november december").split(), 1
    )
}
BY_PREFIX = {name[:3]: n for name, n in MONTHS.items()}
MONTH = (
    r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|"
    r"aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\.?"
)
DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
YEAR = r"(?P<year>[12]\d{3})"
FORMS = [
    re.compile(form, re.I)
    for form in (
        rf"\b{MONTH}\s+{DAY}(?![\d:])(?:,?\s*(?:of\s+)?{YEAR})?",
        rf"(?<!\d)(?:the\s+)?{DAY}\s+(?:of\s+)?{MONTH}(?![a-z])(?:,?\s*{YEAR})?",
        rf"\b{MONTH},?\s+(?:of\s+)?{YEAR}",
        r"(?<!\d)(?P<year>[12]\d{3})[-/.](?P<month>\d{1,2})[-/.](?P<day>\d{1,2})(?!\d)",
        r"(?<!\d)(?P<year>[12]\d{3})\s*年\s*(?:(?P<month>\d{1,2})\s*月)?\s*(?:(?P<day>\d{1,2})\s*[日号])?",
    )
]
SLASHES = re.compile(r"(?<!\d)(\d{1,2})[/.](\d{1,2})[/.]([12]\d{3})(?!\d)")
DECADE = re.compile(r"(?<!\d)([12]\d{2})0['’]?s\b")
LONE_YEAR = re.compile(r"(?<![\d.,$£€])([12]\d{3})(?!\d|,\d|\.\d)")
FOOTNOTED = re.compile(r"(?<!\d)(1[5-9]\d\d|20[0-2]\d)(?=\d{1,2}\s*(?:[.,]|$))")  # "in 19741."
HAS_MONTH = re.compile(r"jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|[年/.-]", re.I)


def dates_in(text):
    """Set of (year, month, day) of `text` (accents gone, simplified Chinese, Chinese numerals as
    digits).
    """
    found, taken = set(), []
    if HAS_MONTH.search(text):
        for form in FORMS:
            for m in form.finditer(text):
                if not any(start < m.end() and m.start() < end for start, end in taken):
                    date = number(m)
                    if date:
                        found.add(date)
                        taken.append(m.span())
        for m in SLASHES.finditer(text):
            a, b = int(m[1]), int(m[2])
            found |= {(int(m[3]), month, day) for month, day in ((a, b), (b, a)) if month <= 12 and day <= 31}
            taken.append(m.span())
    for m in LONE_YEAR.finditer(text):
        if not any(start <= m.start() < end for start, end in taken) and text[m.end() : m.end() + 1] != "s":
            found.add((int(m[1]), 0, 0))
    found |= {(int(m[1]), 0, 0) for m in FOOTNOTED.finditer(text)}
    found |= {(int(m[1]), -10, 0) for m in DECADE.finditer(text)}
    return found


def number(found):
    """(year, month, day) of a match, or None where there is no such day."""
    parts = found.groupdict()
    month, day = parts["month"] or "0", int(parts.get("day") or 0)
    month = int(month) if month.isdigit() else BY_PREFIX[month[:3].lower()]
    return (int(parts.get("year") or 0), month, day) if month <= 12 and day <= 31 else None


DATE_ALONE = re.compile(
    rf"(?:(?:on|in|by|since|from|about|around|circa|c\.|early|late|mid|the|of|year|{MONTH.replace('?P<month>', '?:')}"
    r"|[12]\d{3}s?(?!\d)|\d{1,2}(?:st|nd|rd|th)?(?!\d)|[年月日号/.,-])\s*)++",
    re.I,
)


@lru_cache(maxsize=1 << 16)
def date_of(answer):
    """The one date that an answer (as `dates_in` reads it) consists of, or None where it says
    something else or more.
    """
    if not DATE_ALONE.fullmatch(answer.strip()):
        return None
    found = dates_in(answer)
    return next(iter(found)) if len(found) == 1 else None


def same_date(given, said):
    """True where `said` has every part that `given` has: 4 May 1999 is in May 1999, not the other
    way round.
    """
    return all(g == s for g, s in zip(given, said) if g)


def other_date(given, said):
    """True where both say a part and differ in it."""
    return any(g and s and g != s for g, s in zip(given, said))


PARTS_OF_DECADE = {"early": range(5), "mid": range(3, 8), "late": range(5, 10)}
PART_OF_DECADE = re.compile(r"\b(early|mid|late)\b", re.I)


def near_decade(answer, given, said):
    """True where the date `given` in `answer` is a decade and one of the dates `said` a year of it,
    in the "early 1980s" an early one; or where `given` is of the one decade that is said.
    """
    if given[1] != -10:
        decades = {date[0] for date in said if date[1] == -10}
        return decades == {given[0] // 10}
    part = PART_OF_DECADE.search(answer)
    years = range(10) if not part else PARTS_OF_DECADE[part[1].lower()]
    return any(date[1] >= 0 and date[0] // 10 == given[0] and date[0] % 10 in years for date in said)
