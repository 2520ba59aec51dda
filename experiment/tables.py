"""Text of tables: Markdown, shares, metrics, CSV. Texts of models and files are made safe here, and
nowhere else.

Left out: what the tables hold (report.py, paper.py, compare.py).
"""

import csv
import math
import unicodedata

from data.files import whole_file

DIGITS = {"nths": 3, "mean_words": 1}  # of the metrics that are no shares
MARKUP = "\\|`*_<>[]&~$"  # what Markdown reads as more than a character


def width(text):
    """Columns of a terminal that a text takes: two for a wide character, none for a combining
    one.
    """
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def escape(text, most=110):
    """Text of a model or a file, made safe for a Markdown table cell and for a terminal, and cut to
    `most` columns.
    """
    text = " ".join("".join(c if c.isprintable() or c.isspace() else "\ufffd" for c in str(text)).split())
    pieces = [f"\\{c}" if c in MARKUP else c for c in text]
    if max(len(pieces), width("".join(pieces))) > most:
        pieces = pieces[: most - 1]
        while width("".join(pieces)) > most - 1:
            pieces.pop()
        pieces.append("…")
    return "".join(pieces)


def table(head, rows):
    """Markdown table whose columns stand below each other; cells are shown by str()."""
    lines = [[str(cell) for cell in line] for line in (head, *rows)]
    widths = [max(3, *(width(line[i]) for line in lines)) for i in range(len(head))]
    head, *rows = [
        "| " + " | ".join(cell + " " * (w - width(cell)) for cell, w in zip(line, widths)) + " |" for line in lines
    ]
    return "\n".join([head, "|" + "|".join("-" * (w + 2) for w in widths) + "|", *rows])


def definitions(meaning):
    """One part: a list of {name: what it is}."""
    return ["\n".join(f"- **{name}**: {what}" for name, what in meaning.items())]


def share(value, interval=None):
    """A share as per cent, with its interval where there is one."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.1%}" + (f" [{interval[0]:.1%}, {interval[1]:.1%}]" if interval and None not in interval else "")


def number(value, digits=3, interval=None):
    """A number (or its text in a CSV file), with its interval where there is one; "-" where there
    is none.
    """
    if value in (None, "") or math.isnan(float(value)):
        return "-"
    return f"{float(value):.{digits}f}" + (
        f" [{interval[0]:.{digits}f}, {interval[1]:.{digits}f}]" if interval and None not in interval else ""
    )


def metric(key, value, interval=None):
    """A metric of honesty.METRICS: a share, or a number where it is none."""
    return number(value, DIGITS[key], interval) if key in DIGITS else share(value, interval)


def read_csv(path):
    """The rows of a CSV file as dicts of texts."""
    with open(path, newline="", encoding="utf-8") as f:
        return list(csv.DictReader(f))


def write_csv(path, rows):
    """Write dicts as CSV; the columns are all their keys in order of first use."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with whole_file(path) as part, open(part, "w", newline="", encoding="utf-8") as f:
        writer = csv.DictWriter(f, columns)
        writer.writeheader()
        writer.writerows(rows)


def write_text(path, text):
    """Write a text, whole or not at all."""
    with whole_file(path) as part, open(part, "w", encoding="utf-8") as f:
        f.write(text)
