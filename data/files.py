"""Files at the edges: JSON lines with line numbers, and writes that are whole or not there at
all.
"""

import contextlib
import json
import math
import os
import shutil
import stat

from lm.errors import UserError


def read_json(path):
    """The value in a JSON file. Raises UserError where it is missing or not JSON."""
    try:
        with open(path, encoding="utf-8") as f:
            return json.load(f)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error})") from None


def read_lines(path):
    """Yield (line number, object) of a JSON-lines file; blank lines are passed over.

    Raises UserError where the file cannot be read, or a line is not a JSON object in UTF-8 (naming
    the line), and for a pipe, since most files are read more than once.
    """
    try:
        if stat.S_ISFIFO(os.stat(path).st_mode):
            raise UserError(f"{path}: a pipe; expected a file, as it is read more than once")
        with open(path, "rb") as f:
            for number, line in enumerate(f, 1):
                try:
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                    record = json.loads(text) if text.strip() else None
                except UnicodeDecodeError:
                    raise UserError(f"{path}, line {number}: not UTF-8 text") from None
                except (ValueError, RecursionError) as error:
                    where = f" at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else ""
                    raise UserError(
                        f"{path}, line {number}: not JSON ({getattr(error, 'msg', error)}{where})"
                    ) from None
                if not text.strip():
                    continue
                if not isinstance(record, dict):
                    raise UserError(f"{path}, line {number}: expected a JSON object, found {type(record).__name__}")
                yield number, record
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None


def read_jsonl(path):
    """The records of a JSON-lines file, as a list."""
    return [record for _, record in read_lines(path)]


def without_nan(value):
    """A value of dicts, lists and numbers with None for every float that is not finite: what JSON
    can hold.
    """
    if isinstance(value, dict):
        return {key: without_nan(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextlib.contextmanager
def whole_file(path):
    """A temporary name beside `path` to write a file under; renamed to `path` only when the block
    ends well.

    Raises UserError where a folder is in the way: it is somebody's, and stays.
    """
    part = f"{path}.part"
    for taken in (path, part):
        if os.path.isdir(taken):
            raise UserError(f"{taken}: a folder is in the way of the file {path}")
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    yield part
    os.replace(part, path)


@contextlib.contextmanager
def whole_folder(path):
    """A new folder beside `path` to fill; renamed to `path`, in place of what is there, only when
    the block ends well.
    """
    part, aside = f"{path}.part", f"{path}.old"
    for left_behind in (part, aside):
        shutil.rmtree(left_behind, ignore_errors=True)
    os.makedirs(part)
    yield part
    if os.path.exists(path):
        os.replace(path, aside)  # a folder cannot be renamed over another, and removing one takes time
    os.replace(part, path)
    shutil.rmtree(aside, ignore_errors=True)


def write_json(path, value):
    """Write one JSON value, whole or not at all."""
    with whole_file(path) as part, open(part, "w", encoding="utf-8") as f:
        json.dump(value, f, indent=1, ensure_ascii=False)
        f.write("\n")


def write_jsonl(path, records):
    """Write records as JSON lines, whole or not at all."""
    with whole_file(path) as part, open(part, "w", encoding="utf-8") as f:
        for record in records:
            f.write(json.dumps(record, ensure_ascii=False) + "\n")


def append_jsonl(path, records):
    """Append records as JSON lines and force them to the disk. A last line that an interruption
    tore is cut off first.
    """
    with open(path, "ab+") as f:
        if f.tell():
            f.seek(-1, os.SEEK_END)
            if f.read(1) != b"\n":
                f.seek(0)
                f.truncate(f.read().rfind(b"\n") + 1)
        f.write("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode())
        f.flush()
        os.fsync(f.fileno())


def count_lines(path):
    """Number of line ends in a file."""
    with open(path, "rb") as f:
        return sum(line.endswith(b"\n") for line in f)
