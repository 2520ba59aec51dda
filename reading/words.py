"""Words of a text in a form in which equal things are equal strings: case, accents, script, number
words, plural.

`normalise` is the plain form (case, accents, punctuation, articles, number words below a hundred)
that overlap and whole-string comparisons use. `Words` is the form that answers are looked for in:
besides, traditional Chinese becomes simplified, initials are joined ("J. K." -> "jk"), numbers in
words and in Chinese become digits, and plural and participle endings go. Left out: irregular verbs,
inflection outside English.
"""

import re
import unicodedata
from functools import lru_cache
from itertools import chain

from zhconv import convert  # the conversion table of MediaWiki; one module, no dependencies

ARTICLES = frozenset(("a", "an", "the"))
UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
).split()
TENS = {w: 10 * n for n, w in enumerate("twenty thirty forty fifty sixty seventy eighty ninety".split(), 2)}
TENS_AS_DIGITS = frozenset(str(n) for n in TENS.values())
NUMBERS = {**{word: n for n, word in enumerate(UNITS)}, **TENS}
ORDINALS = dict(
    zip(
        (
            "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth "
            "fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth twentieth"
        ).split(),
        range(1, 21),
    )
)
SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12}
CJK = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
TOKEN = re.compile(rf"\d+(?:\.\d+)+|[{CJK}]|[^\W_{CJK}]+")
DIGIT = re.compile(r"\d")
ANY_CJK = re.compile(f"[{CJK}]")

CHINESE_DIGITS = dict(zip("零〇一二两三四五六七八九", (0, 0, 1, 2, 2, 3, 4, 5, 6, 7, 8, 9)))
CHINESE_SCALES = {"十": 10, "百": 100, "千": 1000, "万": 10**4, "亿": 10**8}
CHINESE_NUMBER = re.compile("[零〇一二两三四五六七八九十百千万亿]+")
DIGITS_AND_SCALE = re.compile(r"(\d+(?:\.\d+)?)\s?(万|亿)")

INITIALS = re.compile(r"(?<![^\W_])([A-Z])\.\s*(?=[A-Z](?:\.|\s+[A-Z]|(?![\w'’])))")
THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
GLUED = re.compile(r"(?=[A-Z][a-z]{2}|\d)(?<=[a-z]{2})")  # "byRich Mullins", "about24"
YEARS = re.compile(r"(?<!\d)([12]\d)(\d\d)\s*[-\u2013]\s*(\d\d)(?!\d|-)")  # "1979-80"
QUOTED = re.compile(
    r"[\"“「『《«„][^\"”」』》»“]{2,120}[\"”」』》»“]|(?<![^\W_])['‘][^'’]{2,80}(?:['’]\w[^'’]{0,80})?['’](?![^\W_])"
)
CITATION = re.compile(r"(?<=[A-Za-z]{3})\d{1,2}(?=\s*(?:[.,;]|$))")  # "Garfield12." of a text with footnotes
NUMBER_AND_LETTERS = re.compile(
    r"(?<!\w)(\d+(?:\.\d+)?)(km|m|cm|mm|kg|g|mg|lbs?|ft|mi|mph|ml|l|bn|yrs?|hrs?|min|ghz|mhz|kb|mb|gb|tb)(?!\w)", re.I
)
POSSESSIVE = re.compile(r"(?<=\w)['’`]s\b")
IRREGULAR = dict(
    pair.split("=")
    for pair in (
        "men=man women=woman children=child feet=foot teeth=tooth mice=mouse people=person wolves=wolf "
        "lives=life leaves=leaf wives=wife data=datum knives=knife halves=half geese=goose bacteria=bacterium "
        "criteria=criterion laos=laos "
    ).split()
)
SAME = dict(
    pair.split("=")
    for pair in (
        "km=kilometer kilometre=kilometer metre=meter cm=centimeter centimetre=centimeter mm=millimeter "
        "millimetre=millimeter kg=kilogram kilo=kilogram g=gram mg=milligram lb=pound ft=foot mi=mile "
        "ml=milliliter millilitre=milliliter litre=liter yr=year hr=hour hrs=hour min=minute percent=% pct=% "
        "sq=square st=saint mt=mount ltd=limit inc=incorporat corp=corporation britain=unitkingdom ave=avenue "
        "rd=road dept=department govt=government gov=governor vs=versus colour=color grey=gray centre=center "
        "theatre=theater bn=billion junior=jr senior=sr organisation=organization aluminium=aluminum "
        "harbour=harbor honour=honor "
    ).split()
)


COUNTRIES = {"US": "unitstat", "USA": "unitstat", "UK": "unitkingdom"}  # as "United States" is joined; not "us"


def without_accents(text):
    """Text of compatible forms (full-width to ASCII) without combining marks; special letters as
    they are typed.
    """
    if text.isascii():
        return text
    text = text.translate(SPECIAL)
    if text.isascii():
        return text
    text = "".join([c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c)])
    return unicodedata.normalize("NFKC", text)


SPECIAL = str.maketrans("øØłŁđĐðıʼ’‘“”–—\xa0", "oOlLdDdi'''\"\"-- ") | str.maketrans(
    {"æ": "ae", "Æ": "Ae", "œ": "oe", "þ": "th", "ʻ": "", "…": "..."}
)


def normalise(text):
    """Lower-case text without accents, punctuation or articles, words apart by one space; Chinese
    by character.

    Number words below a hundred become digits ("twenty-one" -> "21"). A capital A that no word
    follows is no article ("vitamin A").
    """
    text = THOUSANDS.sub("", without_accents(text))
    words = []
    for found in TOKEN.finditer(text):
        word = found.group().casefold()
        if word in ARTICLES and not (
            found.group() == "A" and not re.match(r"\s\w", text[found.end() : found.end() + 2])
        ):
            continue
        if word in NUMBERS:
            value = NUMBERS[word]
            if 0 < value < 10 and words and words[-1] in TENS_AS_DIGITS:
                words[-1] = str(int(words[-1]) + value)
                continue
            word = str(value)
        words.append(word)
    return " ".join(words)


def count_words(text):
    """Number of words in a text; a Chinese character counts as one."""
    return len(TOKEN.findall(text))


def chinese_value(numeral):
    """The integer of a Chinese numeral: "三十七" is 37, "一九六一" is 1961."""
    if len(numeral) > 1 and all(c in CHINESE_DIGITS for c in numeral):
        return int("".join(str(CHINESE_DIGITS[c]) for c in numeral))
    total = section = digit = 0
    for c in numeral:
        if c in CHINESE_DIGITS:
            digit = CHINESE_DIGITS[c]
        elif CHINESE_SCALES[c] < 10**4:
            section, digit = section + (digit or 1) * CHINESE_SCALES[c], 0
        else:
            total, section, digit = (total + section + digit or 1) * CHINESE_SCALES[c], 0, 0
    return total + section + digit


def simplified(text):
    """Text in simplified Chinese, numerals as digits."""
    text = convert(text, "zh-hans")
    text = DIGITS_AND_SCALE.sub(lambda f: f"{float(f[1]) * CHINESE_SCALES[f[2]]:.10g}", text)
    return CHINESE_NUMBER.sub(lambda found: str(chinese_value(found.group())), text)


def plain(text):
    """Text ready to be cut into words: no accents, one script, no thousands commas, initials
    joined.
    """
    if not text.isascii():
        text = without_accents(text)
        if ANY_CJK.search(text):
            text = simplified(text)
    if "." in text:
        text = INITIALS.sub(r"\1", text)
    if "'" in text or "`" in text:
        text = POSSESSIVE.sub("", text)
    if not DIGIT.search(text):
        return GLUED.sub(" ", text)
    text = GLUED.sub(" ", YEARS.sub(r"\1\2-\1\3", THOUSANDS.sub("", text)))
    return NUMBER_AND_LETTERS.sub(r"\1 \2", CITATION.sub("", text))


@lru_cache(maxsize=1 << 17)
def stem(word):
    """A lower-case word without plural and participle endings, spelled the American way (Harman's
    S-stemmer, 1991).
    """
    word = SAME.get(word, word)
    if word in IRREGULAR:
        return IRREGULAR[word]
    if len(word) > 4 and word.endswith("ies"):
        word = word[:-3] + "y"
    elif len(word) > 3 and re.search("(?:s|x|z|ch|sh)es$", word):
        word = word[:-2]
    elif len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    word = SAME.get(word, word)
    if len(word) > 5 and word.endswith("ing"):
        word = word[:-3]
    elif len(word) > 4 and word.endswith("ed"):
        word = word[:-2]
    if len(word) > 3 and word[-1] == word[-2] and word[-1] in "bdfgmnprt":
        word = word[:-1]
    if len(word) > 4 and word[-1] == "e":
        word = word[:-1]
    return SAME.get(word, word)


@lru_cache(maxsize=1 << 17)
def digits(word):
    """A number word as digits ("seven" -> "7", "third" -> "3rd"), or any other word as its stem."""
    if word in NUMBERS:
        return str(NUMBERS[word])
    if word in ORDINALS:
        return ordinal(ORDINALS[word])
    return stem(word)


def ordinal(n):
    """11 -> "11th"."""
    return f"{n}{'th' if n % 100 in (11, 12, 13) else {1: 'st', 2: 'nd', 3: 'rd'}.get(n % 10, 'th')}"


@lru_cache(maxsize=1 << 16)
def bare(form):
    """A word without an ordinal's ending: "2nd" is "2"."""
    return form[:-2] if form[0].isdigit() and form[-2:] in ("st", "nd", "rd", "th") else form


@lru_cache(maxsize=1 << 17)
def form_of(raw):
    """(form, None or "article", "scale", "number") of a word as it is written."""
    word = raw.lower()
    if word in ARTICLES:
        return word, "article"
    if word in SCALES:
        return word, "scale"
    return COUNTRIES.get(raw) or digits(word), "number" if word in NUMBERS or word in ORDINALS else None


class Words:
    """The words of a text: `forms` (what is compared), `spans` (where each stands in `text`),
    `joined` (all in one string).

    In `joined` no space stands between words, so that "anti meridian" is "antimeridian", but one
    between two numbers.
    """

    __slots__ = ("text", "forms", "spans", "joined", "have", "where")

    def __init__(self, text):
        self.text, self.have, self.where = plain(text), None, None
        self.forms, self.spans = forms, spans = [], []
        for found in TOKEN.finditer(self.text):
            raw = found.group()
            form, kind = form_of(raw)
            if kind is None:
                forms.append(form)
                spans.append(found.span())
            elif kind == "article":
                if raw == "A" and not self.text[found.end() : found.end() + 2].strip(" ").isalnum():
                    forms.append("a")
                    spans.append(found.span())
            elif kind == "scale" and forms and is_number(forms[-1]):
                self.scale(SCALES[form], found.end())
            else:
                forms.append(form)
                spans.append(found.span())
                if kind == "number" and len(forms) > 1:
                    self.join_number(raw.lower())
        self.joined = joined(forms)

    def scale(self, factor, end):
        """Multiply the last number: "2.5 million"; and add it to the one before: "one thousand two
        hundred".
        """
        forms, spans = self.forms, self.spans
        value = float(forms[-1]) * factor
        forms[-1], spans[-1] = f"{value:.15g}", (spans[-1][0], end)
        if len(forms) > 1 and is_number(forms[-2]) and whole(forms[-2]) > value and self.joins(spans[-2], spans[-1]):
            merge(forms, spans)

    def edges(self):
        """({offset: word that starts there}, {offset: word that ends there}) in `joined`; made when
        first wanted.
        """
        if self.where is None:
            starts, ends, at = {}, {}, 0
            for i, form in enumerate(self.forms):
                at += self.joined[at : at + 1] == " "
                starts[at] = i
                at += len(form)
                ends[at] = i
            self.where = starts, ends
        return self.where

    def bare(self):
        """The set of all words, ordinals as plain numbers; made when first wanted."""
        if self.have is None:
            self.have = frozenset(map(bare, self.forms))
        return self.have

    def joins(self, left, right):
        return self.text[left[1] : right[0]].strip() in ("", "-", "and")

    def join_number(self, word):
        """Put "twenty" and "one", "hundred" and "five" together."""
        forms, spans = self.forms, self.spans
        if (
            forms[-2] == "and"
            and len(forms) > 2
            and whole(forms[-3]) % 100 == 0
            and whole(forms[-3]) > 0
            and word in NUMBERS
        ):
            if re.search("hundred|thousand|million", self.text[slice(*spans[-3])].lower()):
                del forms[-2], spans[-2]
        before, value = whole(forms[-2]), NUMBERS.get(word, ORDINALS.get(word))
        written = self.text[slice(*spans[-2])].lower()
        room = 10 if written.endswith(tuple(TENS)) else next((SCALES[s] for s in SCALES if written.endswith(s)), 0)
        if (
            before > 0
            and 0 < value < room
            and self.joins(spans[-2], spans[-1])
            or before > 0
            and 0 < value < room
            and "and" in self.text[spans[-2][1] : spans[-1][0]]
        ):
            merge(forms, spans, ordinal(before + value) if word in ORDINALS else str(before + value))


def is_number(form):
    return form[0].isdigit() and form.replace(".", "", 1).isdigit()


def whole(form):
    return int(float(form)) if is_number(form) else -1


def merge(forms, spans, form=None):
    """Make one word of the last two."""
    forms[-2:] = [form or f"{float(forms[-2]) + float(forms[-1]):.15g}"]
    spans[-2:] = [(spans[-2][0], spans[-1][1])]


def joined(forms):
    """All forms in one string, with a space between two digits alone."""
    if not DIGIT.search("".join(forms)):
        return "".join(forms)
    gaps = (" " if a[-1].isdecimal() and b[0].isdecimal() else "" for a, b in zip(forms, forms[1:]))
    return "".join(part for pair in zip(forms, chain(gaps, ("",))) for part in pair)
