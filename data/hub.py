"""Rows of a data set in Hugging Face form, streamed, and the columns that a user maps:
hf:NAME:CONFIG:SPLIT?field=column&...

Nothing is downloaded whole: rows come as they are read, shards in an order that the seed decides. A
column may lie inside another ("answer.aliases"). Left out: data sets that bring code of their own
(`datasets` no longer runs any), private ones.
"""

import os
import re
from typing import NamedTuple
from urllib.parse import parse_qsl

from lm.errors import UserError, first_line

FORM = "hf:NAME[:CONFIG[:SPLIT]][?field=column&...]"


class HubSource(NamedTuple):
    name: str  # hub name, or a folder of data files
    config: str  # "" where the data set has only one
    split: str
    columns: dict  # {field of ours: column, with dots into nested ones}


def parse_source(text, fields):
    """HubSource of a text in FORM whose mapped fields are among `fields`. Raises UserError."""
    found = re.fullmatch(r"hf:([^:?]+)(?::([^:?]*))?(?::([^:?]+))?(?:\?(.*))?", text)
    if not found:
        raise UserError(f"{text}: expected {FORM}")
    name, config, split, query = found.groups()
    try:
        columns = dict(parse_qsl(query or "", keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError:
        raise UserError(f"{text}: expected field=column with & between behind the question mark") from None
    for field, column in columns.items():
        if field not in fields:
            raise UserError(f"{text}: no field called {field!r}; there are {', '.join(fields)}")
        if not column:
            raise UserError(f"{text}: expected a column behind {field}=")
    return HubSource(name, config or "", split or "train", columns)


def open_source(source, seed):
    """An iterable of the rows (dicts) of a HubSource. Raises UserError where there is no such data
    set, config, split or column.
    """
    import datasets  # three seconds, which only those who use it should pay

    datasets.disable_progress_bars()
    where = f"hf:{source.name}"
    if not os.path.isdir(source.name) and (source.name.count("/") > 1 or source.name.startswith(("/", ".", "~"))):
        raise UserError(f"{where}: no such folder")
    try:
        rows = datasets.load_dataset(source.name, source.config or None, split=source.split, streaming=True).shuffle(
            seed=seed, buffer_size=1
        )
        features = list(rows.features) if rows.features else list(next(iter(rows), {}))
    except (
        Exception
    ) as error:  # `datasets` raises many kinds for one cause: the name, config, split or network is not usable
        raise UserError(f"{where}: cannot be read ({first_line(error)})") from error
    for field, column in source.columns.items():
        if column.split(".")[0] not in features:
            raise UserError(f"{where}: no column {column!r} for {field}; there are {', '.join(features)}")
    return checked(rows, where)


def checked(rows, where):
    """The rows; UserError where the stream breaks off."""
    try:
        yield from rows
    except Exception as error:
        raise UserError(
            f"{where}: breaks off ({first_line(error)}); the same command begins this source again"
        ) from error


def column_of(row, column):
    """The value at "a.b" of a row; of a list of objects each object's. None where it lacks."""
    value = row
    for part in column.split("."):
        if isinstance(value, list):
            value = [item.get(part) if isinstance(item, dict) else None for item in value]
        else:
            value = value.get(part) if isinstance(value, dict) else None
    return value
