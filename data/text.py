"""What passages and questions need to know of a text: its language, its sentences, its words that
carry meaning, and what is almost the same.

Rules for English and Chinese, without a model. Language is told by script and, for Latin script, by
the commonest English words. Near duplicates are texts whose sets of shingles (runs of words)
overlap; of a long text only the smallest hashes are kept (a bottom-k sketch), so that memory does
not grow with its length. Left out: other languages, stemming beyond a common prefix.
"""

import hashlib
import re
import zlib
from collections import defaultdict

from reading import answers
from reading.words import TOKEN

HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
HAN_CHARACTER = re.compile(f"[{HAN}]")
OTHER_SCRIPT = re.compile(
    r"[^\W\d_A-Za-z\u00c0-\u024f\u1e00-\u1eff\u0370-\u03ff" + HAN + "]"
)  # a letter, but neither Latin, Greek nor Han
LATIN = re.compile(r"[A-Za-z\u00c0-\u024f\u1e00-\u1eff]")
COMMON_EN = frozenset(
    "the of and to is are was were that for with by from what who when where which how did does it its as at be "
    "this have has had".split()
)
STOP_EN = COMMON_EN | frozenset(
    "a an in on or not no but than then there their they he she his her him them we our you your i my me do done been"
    " being can could would should may might will shall must whom whose why into about after before between during over"
    " under up out so such also one many much name named called known following these those".split()
)
STOP_ZH = frozenset("的是了在和与及为有于被由谁哪什么何几多少个位年一这那吗呢")
PIECE = re.compile(rf"[{HAN}]|\w+|[^\w\s]")
SENTENCE_END = re.compile(r"""[.!?]+["'”’)\]]*(?=\s|$)|[。！？]+[”’」』）)]*""")
ABBREVIATION = re.compile(
    r"(?:\b(?:[A-Z]|[a-z]\.[a-z]|[A-Z]\.[A-Z]|Mr|Mrs|Ms|Dr|St|Jr|Sr|No|vs|ca|cf|etc|approx|Prof|Gen|Col|Lt|Rev|"
    r"Inc|Ltd|Co|Mt|Ft|"
    r"Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sep|Sept|Oct|Nov|Dec))$"
)
SKETCH = 64  # smallest shingle hashes kept of a text
# of these, how many are looked up: two texts with Jaccard similarity s share none of them with a
# chance near (1 - s)^8
PROBES = 8
CROWD = 100  # a shingle that more texts have ("one of the") tells nothing apart, and is not looked up


def digest(*parts):
    """A 64-bit number that depends on the parts alone, the same in every process."""
    return int.from_bytes(
        hashlib.blake2b("\x1f".join(map(str, parts)).encode("utf-8", "replace"), digest_size=8).digest(), "big"
    )


def language_of(text):
    """ "en", "zh" or "other", by the script and the commonest words of `text`."""
    han, latin, other = (len(pattern.findall(text)) for pattern in (HAN_CHARACTER, LATIN, OTHER_SCRIPT))
    if other > 0.1 * (han + latin):
        return "other"
    if han > 0.2 * (han + latin):
        return "zh"
    words = re.findall(r"[a-z]+", text.lower())
    return "en" if words and sum(word in COMMON_EN for word in words) >= 0.08 * len(words) else "other"


def sentences(text):
    """The sentences of `text` in order; joined they are the text, but for what follows its last
    sentence end.
    """
    found, start = [], 0
    for end in SENTENCE_END.finditer(text):
        if not (end.group()[0] == "." and ABBREVIATION.search(text[start : end.start()])):
            found.append(text[start : end.end()])
            start = end.end()
    return found


def estimate_tokens(text):
    """About how many tokens a language model makes of `text`: a Chinese character, four letters of
    a word, or a mark each.
    """
    return sum(1 + (len(piece) - 1) // 6 for piece in PIECE.findall(text))


def content_words(text):
    """The words of `text` that carry meaning, as answers.normalise writes them: a list without
    function words.
    """
    return [word for word in answers.normalise(text).split() if word not in STOP_EN and word not in STOP_ZH]


def shingles(text, lang, size):
    """The set of runs of `size` words (English) or `size` + 1 characters (Chinese) of a text in
    lower case without punctuation.
    """
    words = TOKEN.findall(text.casefold())
    size += lang == "zh"
    return {" ".join(words[i : i + size]) for i in range(max(1, len(words) - size + 1))} if words else set()


def question_shingles(question, lang):
    """The set by which questions are compared: meaningful words, or for Chinese pairs of
    neighbouring characters.
    """
    return shingles(question, lang, 1) if lang == "zh" else set(content_words(question)) or shingles(question, lang, 1)


class NearDuplicates:
    """Sets of shingles under names; tells which of them a new set almost equals (Jaccard similarity
    >= `threshold`).

    Memory is SKETCH hashes a name, whatever the texts' length. What was added can be removed.
    """

    def __init__(self, threshold):
        self.threshold, self.sketches, self.buckets = threshold, {}, defaultdict(set)

    def find(self, sketch):
        """A name whose sketch is almost `sketch` (see `sketch_of`), or None."""
        wanted = frozenset(sketch)
        found = [self.buckets[value] for value in sketch[:PROBES] if 0 < len(self.buckets.get(value, ())) <= CROWD]
        for name in sorted(set().union(*found)):
            other = self.sketches[name]
            if len(wanted.intersection(other)) < self.threshold * max(len(wanted), len(other)):
                continue
            union = sorted(wanted.union(other))[:SKETCH]
            if len(wanted.intersection(other, union)) >= self.threshold * len(union):
                return name
        return None

    def add(self, name, sketch):
        self.sketches[name] = sketch
        for value in sketch[:PROBES]:
            self.buckets[value].add(name)

    def remove(self, name):
        for value in self.sketches.pop(name)[:PROBES]:
            self.buckets[value].discard(name)
            if not self.buckets[value]:
                del self.buckets[value]


def sketch_of(shingle_set):
    """The SKETCH smallest hashes of a set of shingles, in order."""
    return tuple(sorted(zlib.crc32(shingle.encode("utf-8", "replace")) for shingle in shingle_set)[:SKETCH])
