"""Short, single-answer facts, the wordings that ask for them, and a split by subject.

`facts_en.csv` and `facts_zh.csv` hold one fact a row: a relation, a subject, the answer and
other accepted names of the answer. `wordings.csv` holds several ways to ask for each relation.
Left out: facts with several right answers, disputed or short-lived ones, questions that contain
their answer. How a model's answer is compared with the accepted ones is decided elsewhere.
"""

import csv
import hashlib
import math
import re
import unicodedata
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

TABLES = Path(__file__).parent
LANGUAGES = ("en", "zh")
FACT_COLUMNS = ["relation", "subject", "object", "aliases"]
WORDING_COLUMNS = ["lang", "relation", "wording"]
MIN_WORDINGS = 3
SHARES = {"train": 0.6, "valid": 0.15, "test": 0.25}


class Fact(NamedTuple):
    relation: str
    subject: str
    object: str
    aliases: tuple[str, ...]


def _hash(*parts):
    return hashlib.sha256("\x1f".join(map(str, parts)).encode("utf-8")).hexdigest()


def _rows(path, columns):
    with open(path, encoding="utf-8", newline="") as handle:
        reader = csv.reader(handle, strict=True)
        try:
            if next(reader, None) != columns:
                raise ValueError(f"{path}:1: expected the header {','.join(columns)}")
            for cells in reader:
                place = f"{path}:{reader.line_num}"
                if len(cells) != len(columns):
                    raise ValueError(f"{place}: expected {len(columns)} cells, found {len(cells)}")
                yield place, cells
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{path}:{reader.line_num + 1}: {error}") from error


def load_facts(lang, folder=TABLES):
    """Return the facts of one language as a list of `Fact`, in the order of the table.

    Raises ValueError for an unknown language and, naming file and line, for a malformed row, an
    empty or unstripped relation, subject, object or alias, an answer given twice, or a repeated
    (relation, subject).
    """
    if lang not in LANGUAGES:
        raise ValueError(f"unknown language {lang!r}, expected one of {', '.join(LANGUAGES)}")
    facts, place_of = [], {}
    for place, (relation, subject, answer, aliases) in _rows(Path(folder) / f"facts_{lang}.csv", FACT_COLUMNS):
        names = [answer, *(aliases.split("|") if aliases else [])]
        if any(not cell or cell != cell.strip() for cell in (relation, subject, *names)):
            raise ValueError(f"{place}: empty or unstripped relation, subject, object or alias")
        if len(set(names)) != len(names):
            raise ValueError(f"{place}: the same answer is given twice")
        key = (relation, subject.casefold())
        if key in place_of:
            raise ValueError(f"{place}: ({relation}, {subject}) already stands at {place_of[key]}")
        place_of[key] = place
        facts.append(Fact(relation, subject, answer, tuple(names[1:])))
    return facts


def load_wordings(lang, folder=TABLES):
    """Return relation -> list of the wordings of one language, in the order of the table.

    Raises ValueError, naming file and line, for a malformed row, a wording without exactly one
    `{subject}`, a repeated wording, or a relation with fewer than `MIN_WORDINGS` wordings.
    """
    path, wordings, place_of = Path(folder) / "wordings.csv", defaultdict(list), {}
    for place, (row_lang, relation, wording) in _rows(path, WORDING_COLUMNS):
        if row_lang not in LANGUAGES or re.findall(r"\{[^{}]*\}|[{}]", wording) != ["{subject}"]:
            raise ValueError(f"{place}: needs a known language and {{subject}} exactly once")
        if row_lang == lang:
            if wording in wordings[relation]:
                raise ValueError(f"{place}: repeated wording of {relation}")
            wordings[relation].append(wording)
            place_of[relation] = place
    for relation, known in wordings.items():
        if len(known) < MIN_WORDINGS:
            raise ValueError(f"{place_of[relation]}: {relation} needs {MIN_WORDINGS} wordings, has {len(known)}")
    return dict(wordings)


def _slug(text):
    plain = "".join(c for c in unicodedata.normalize("NFKD", text.lower()) if not unicodedata.combining(c))
    if any(c.isalnum() and not c.isascii() for c in plain):
        return _hash(text)[:8]
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-") or _hash(text)[:8]


def questions(lang, seed, folder=TABLES):
    """Return one record a fact: id, question, answers (best name first), lang, category, subject.

    The wording depends on the seed, the language, the relation and the subject alone. Raises
    ValueError as `load_facts` and `load_wordings` do, for a relation without wordings, and for
    two facts with the same id.
    """
    records, subject_of, wordings = [], {}, load_wordings(lang, folder)
    for relation, subject, answer, aliases in load_facts(lang, folder):
        if relation not in wordings:
            raise ValueError(f"{Path(folder) / 'wordings.csv'}: no {lang} wording of {relation}")
        chosen = int(_hash(seed, lang, relation, subject), 16) % len(wordings[relation])
        record_id = f"{lang}-{relation}-{_slug(subject)}"
        if record_id in subject_of:
            raise ValueError(f"id {record_id} stands for both {subject_of[record_id]!r} and {subject!r}")
        subject_of[record_id] = subject
        records.append(
            {
                "id": record_id,
                "question": wordings[relation][chosen].replace("{subject}", subject),
                "answers": [answer, *aliases],
                "lang": lang,
                "category": relation,
                "subject": subject,
            }
        )
    return records


def split_by_subject(records, seed, shares=SHARES):
    """Return split -> records, no subject in two splits, each category near the given shares.

    The subject is `record["subject"]`, or the id where there is none, without regard to case. The
    seed decides the split of a subject, the order of the records does not. Raises ValueError for
    shares that are negative or do not sum to 1, KeyError for a record with neither subject nor id.
    """
    if any(share < 0 for share in shares.values()) or not math.isclose(sum(shares.values()), 1.0):
        raise ValueError(f"shares must be at least 0 and sum to 1, got {shares}")
    groups = defaultdict(list)
    for record in records:
        groups[str(record["subject"] if "subject" in record else record["id"]).strip().casefold()].append(record)
    totals = Counter(record.get("category") for record in records)
    filled = {split: Counter() for split, share in shares.items() if share > 0}
    parts = {split: [] for split in shares}
    for subject in sorted(groups, key=lambda name: (-len(groups[name]), _hash(seed, name))):
        counts = Counter(record.get("category") for record in groups[subject])

        def fullness(split):
            by_category = sum(n * filled[split][c] / (shares[split] * totals[c]) for c, n in counts.items())
            return by_category, filled[split].total() / shares[split], _hash(seed, subject, split)

        emptiest = min(filled, key=fullness)
        filled[emptiest].update(counts)
        parts[emptiest].extend(groups[subject])
    return parts
