"""Passages to ask about: read from any source as a stream, drawn by seed, cut at a sentence end,
without stubs and near duplicates.

"We randomly select passages from Chinese and English Wikipedia" (section 3.1). Each row gets a
number from the seed and its own text, and the rows with the smallest numbers are kept (a bottom-k
sample): one pass, memory for the sample alone, and a result that does not depend on the order of
the rows but for near duplicates, of which the first read stays. Rows whose number is too large are
never looked into, so that a million pass quickly. Left out: markup; the opening of an article is
what is kept of it.
"""

import heapq
import os
import re
from collections import Counter
from itertools import islice

from data.files import read_lines
from data.hub import column_of, open_source, parse_source
from data.text import NearDuplicates, digest, language_of, sentences, shingles, sketch_of
from lm.errors import UserError

FIELDS = ("title", "passage", "lang")
TEXT_COLUMNS = ("passage", "text")  # where no column is mapped, the first of these that a row has
SAME_PASSAGE = 0.6  # Jaccard similarity of shingles of three words from which on two passages are the same
PIECE = 2000  # characters at which a text file is divided between paragraphs
LONGEST = 20_000  # characters of a passage that are read: far more than any is cut to
CITATION = re.compile(r"\[\d+\]|\[(?:citation needed|来源请求)\]|[(（]\s*[,;，；]?\s*[)）]")


def read_source(source, seed):
    """Yield rows {"title", "passage"[, "lang"]} of hf:..., a JSON-lines file or a folder of .txt
    files.

    Raises UserError, with file and line, where there is no such source or a row lacks title or
    passage.
    """
    check_source(source)
    if source.startswith("hf:"):
        yield from hub_rows(source, seed)
    elif os.path.isdir(source):
        yield from folder_rows(source)
    else:
        for number, record in read_lines(source):
            for field in ("title", "passage"):
                if not isinstance(record.get(field), str) or not record[field].strip():
                    raise UserError(f'{source}, line {number}: "{field}" must be a text that is not empty')
            if record.get("lang", "en") not in ("en", "zh"):
                raise UserError(
                    f'{source}, line {number}: "lang" must be "en" or "zh", not {str(record["lang"])[:40]!r}'
                )
            yield {field: record[field] for field in FIELDS if field in record}


def check_source(source):
    """Raise UserError where there is no such file or folder."""
    if not source.startswith("hf:") and not os.path.exists(source):
        raise UserError(
            f"--qa.passages {source}: no such file or folder (expected hf:NAME:CONFIG:SPLIT, a .jsonl file or a folder"
            " of .txt files)"
        )


def hub_rows(source, seed):
    """Rows of a data set whose columns are title and passage (or text), or as mapped."""
    where = parse_source(source, FIELDS)
    for row in open_source(where, seed):
        text_column = where.columns.get("passage") or next((name for name in TEXT_COLUMNS if name in row), None)
        title_column = where.columns.get("title", "title")
        if text_column is None or title_column.split(".")[0] not in row:
            raise UserError(
                f"hf:{where.name}: no column {'title' if text_column else 'passage or text'!r}; there are"
                f" {', '.join(row)} (map one with ?passage=COLUMN&title=COLUMN)"
            )
        title, text = column_of(row, title_column), column_of(row, text_column)
        if isinstance(title, str) and isinstance(text, str):
            yield {"title": title, "passage": text}


def folder_rows(folder):
    """Pieces of the .txt files of a folder, in the order of their names; a file's title is its
    name. Whole paragraphs, some PIECE characters.
    """
    names = sorted(name for name in os.listdir(folder) if name.endswith(".txt"))
    if not names:
        raise UserError(f"--qa.passages {folder}: holds no .txt files")
    for name in names:
        path, title, piece, size = os.path.join(folder, name), name.removesuffix(".txt"), [], 0
        try:
            with open(path, encoding="utf-8-sig") as f:
                for line in f:
                    if size >= PIECE and not line.strip():
                        yield {"title": title, "passage": "".join(piece)}
                        piece, size = [], 0
                    piece.append(line)
                    size += len(line)
        except UnicodeDecodeError:
            raise UserError(f"{path}: not UTF-8 text") from None
        except OSError as error:
            raise UserError(f"{path}: {error.strerror or error}") from None
        yield {"title": title, "passage": "".join(piece)}


def clean(text):
    """Plain text of one line: without citation marks, empty brackets, and lines of several that end
    no sentence (headings, lists).
    """
    lines = [line.strip() for line in CITATION.sub("", text[:LONGEST]).splitlines()]
    if len(lines) > 1:
        lines = [line for line in lines if re.search(r"""[.!?。！？]["'”’」』)）]*$""", line)] or lines
    text = " ".join(" ".join(lines).split())
    return text if text.isprintable() else "".join(c for c in text if c.isprintable())


def cut(text, most, count_tokens):
    """The first sentences of `text` that together have at most `most` tokens."""
    kept, tokens = [], 0
    for sentence in sentences(text):
        tokens += count_tokens(sentence)
        if tokens > most:
            break
        kept.append(sentence)
    return "".join(kept).strip()


def prepare(row, config, count_tokens):
    """(passage record, None) of a row, or (None, the reason to drop it)."""
    if len(row["passage"]) < config.min_tokens:
        return None, "stub"
    text = clean(row["passage"])
    lang = language_of(text)
    if lang != row.get("lang", lang) or lang == "other":
        return None, "neither English nor Chinese, or not the language given"
    text = cut(text, config.max_tokens, count_tokens)
    if count_tokens(text) < config.min_tokens:
        return None, "stub"
    title = " ".join(clean(row["title"].replace("_", " ")).split())
    if not title:
        return None, "no title"
    return {"title": title, "passage": text, "lang": lang}, None


def sample(rows, size, number_of, prepared, tick=lambda n: None, dropped=lambda item: None):
    """The up to `size` items with the smallest numbers among `rows`, in the order of the numbers.

    `number_of(row)` decides, equal numbers are equal rows and kept once; `prepared(row)` makes an
    item of a row, or None to leave it out, and is called only for rows whose number is small
    enough; `dropped(item)` is told of an item that a smaller number drove out.
    """
    heap, present = [], set()
    for n, row in enumerate(rows):
        if n % 1000 == 999:
            tick(1000)
        number = number_of(row)
        if number in present or len(heap) == size and number >= -heap[0][0]:
            continue
        item = prepared(row)
        if item is None:
            continue
        present.add(number)
        if len(heap) == size:
            last = heapq.heappushpop(heap, (-number, n, item))
            present.discard(-last[0])
            dropped(last[2])
        else:
            heapq.heappush(heap, (-number, n, item))
    return [item for _, _, item in sorted(heap, reverse=True)]


def select(sources, config, seed, count_tokens, tick=lambda n: None):
    """(passages, counts): up to `config.count` passages of each source, {"id", "title", "passage",
    "lang"}, and a Counter of what was read and dropped.

    `count_tokens(text)` measures length. Of rows that the draw did not look into no reason is
    counted. A passage that two sources share is kept once.
    """
    near, counts, passages = NearDuplicates(SAME_PASSAGE), Counter(), []

    def number_of(row):
        counts["read"] += 1
        return digest(seed, row["title"], row["passage"][:LONGEST])

    def prepared(row):
        counts["looked into"] += 1
        passage, reason = prepare(row, config, count_tokens)
        if passage:
            sketch = sketch_of(shingles(passage["passage"], passage["lang"], 3))
            passage = {"id": f"wiki-{digest(passage['title'], passage['passage']):016x}", **passage}
            if passage["id"] not in near.sketches and near.find(sketch) is None:
                near.add(passage["id"], sketch)
                return passage
            reason = "near duplicate"
        counts[reason] += 1
        return None

    def dropped(passage):
        near.remove(passage["id"])

    for source in sources:
        found = sample(islice(read_source(source, seed), config.scan), config.count, number_of, prepared, tick, dropped)
        counts[f"drawn from {source}"] = len(found)
        passages += found
    if not passages:
        reasons = [f"{n} {why}" for why, n in counts.items() if n and why not in ("read", "looked into")]
        raise UserError(
            f"--qa.passages {','.join(sources)}: no passage left of {counts['read']} read "
            f"({', '.join(reasons) or 'the source is empty'})"
        )
    return passages, counts
