"""Names of people: which words of a name a text must have to mean that person.

Given and family name are enough; middle names, initials, titles and nicknames are not needed. A
family name alone is enough where the question asks for a person and no other given name stands
before it.
"""

import re
from functools import lru_cache

TITLES = frozenset(
    (
        "sir dame lord lady dr doctor prof professor mr mrs ms miss saint st king queen prince princess "
        "emperor empress "
        "president senator general captain colonel major justice judge pope reverend rev father sister brother baron "
        "baroness count duke earl chief minister prime governor jr sr ii iii iv mbe obe cbe phd md esq"
    ).split()
)
PARTICLES = frozenset("de da di du la le van von der den del dos bin ibn al el of y e".split())
NAME_WORD = r"(?:[A-Z][\w'’.-]*|[dDlL]['’][A-Z]\w+)"
NAME = re.compile(
    rf"{NAME_WORD}(?:\s+(?:{NAME_WORD}|{'|'.join(sorted(PARTICLES))}|[\"“(‘'][\w .]+[\"”)’']))*,?(?:\s+(?:Jr|Sr)\.?)?"
)
NICKNAME = re.compile(r"[\"“(‘'][\w .]+[\"”)’']\s*")
NOT_A_PERSON = re.compile(
    r"\b(?:the|river|city|university|college|company|island|mountains?|lake|county|states?|war|act|league|team|party|"
    r"street|park|museum|ocean|sea|church|house|band|group|kingdom|republic|court|committee|association|"
    r"north|south|east|west|new|united)\b",
    re.I,
)
ASKS_FOR_PERSON = re.compile(
    r"\b(?:who|whom|whose|(?:what|which)\s(?:\w+\s){0,3}?(?:man|woman|person|actor|actress|singer|author|"
    r"writer|player|president|king|queen|"
    r"composer|director|artist|scientist|general|leader|explorer|inventor|character|philosopher|poet|name))\b|谁|哪位",
    re.I,
)


@lru_cache(maxsize=1 << 14)
def asks_for_person(question):
    """True where a question wants somebody's name."""
    return bool(ASKS_FOR_PERSON.search(question))


@lru_cache(maxsize=1 << 16)
def parts_of(answer):
    """(given names, family name) as words of lower case, or None where an answer does not look like
    a person's name.
    """
    bare = NICKNAME.sub("", answer).strip()
    if not NAME.fullmatch(bare) or NOT_A_PERSON.search(bare):
        return None
    words = [w for w in re.findall(r"[^\W\d_]+", bare.lower()) if w not in TITLES]
    return (tuple(words[:-1]), words[-1]) if 2 <= len(words) <= 6 else None


def same_given(given, said):
    """True where `said`, the capitalised words before a family name, may stand for the given names:
    "robert j", "rob" or "rj" for robert james. Initials count only where no other name stands
    there: "raven s" is no steven.
    """
    initials = "".join(name[0] for name in given)
    named = [word for word in said if len(word) > 2 and word not in TITLES]
    if any(word[:3] == name[:3] for word in named for name in given):
        return True
    short = [word for word in said if len(word) < 3]
    return not named and any(word in given or initials.startswith(word) or given[0].startswith(word) for word in short)
