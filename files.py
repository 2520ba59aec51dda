"""Files at the edges: JSON lines with line numbers, whole-or-nothing writes, question files. The same for every stage.

`UserError` is the one exception that stands for a user's mistake: a command (`exit_status`) prints its message as one line
and ends with status 2. Left out: anything about models.
"""
import contextlib
import errno
import json
import math
import os
import re
import shutil
import stat
import sys

from safetensors import SafetensorError


class UserError(Exception):
    """A mistake in an argument or a file. The message is one line: where it is and what was expected."""


def exit_status(work, where=lambda: None):
    """Run `work()`, a command, and return its exit status: 0, or 2 after a mistake of the user's, told in one line on standard error.

    where(): what the line names where the error itself names no file.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that has not all characters
    try:
        work()
        return 0
    except (UserError, FloatingPointError) as error:
        message = str(error)
    except BrokenPipeError:  # whoever read the output wants no more of it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        room = "; make room, and the same command goes on" if error.errno == errno.ENOSPC else ""
        message = f"{error.filename or where()}: {error.strerror or error}{room}"
    except SafetensorError as error:
        room = "; make room, and the same command goes on" if "No space left" in str(error) else ""
        message = f"{where()}: {error}{room}"
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not re.search(r"out of memory|allocate memory", str(error)):
            raise
        message = f"out of memory ({first_line(error)}); settings called rows or micro_rows say how much is held at a time"
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return 2


def raise_user_error(message):
    """What an argparse parser's `error` is set to, so that its complaint is one line as well."""
    raise UserError(message)


def first_line(error):
    """The first line of an exception's message, at most 200 characters, or its kind where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


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

    Raises UserError where the file cannot be read, or a line is not a JSON object in UTF-8 (naming the line), and for a
    pipe, since most files are read more than once.
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
                    raise UserError(f"{path}, line {number}: not JSON ({getattr(error, 'msg', error)}{where})") from None
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
    """A value of dicts, lists and numbers with None for every float that is not finite: what JSON can hold."""
    if isinstance(value, dict):
        return {key: without_nan(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextlib.contextmanager
def whole_file(path):
    """A temporary name beside `path` to write a file under; renamed to `path` only when the block ends well.

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
    """A new folder beside `path` to fill; renamed to `path`, in place of what is there, only when the block ends well."""
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
    """Append records as JSON lines and force them to the disk. A last line that an interruption tore is cut off first."""
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


def question_record(record, where, number, first_seen, with_answers=True):
    """The question in a record, with the fields that it lacks: see `each_question`. `where` begins what UserError says.

    `number` is the line that its id is made of where it has none; `first_seen` {id: number} is added to.
    """
    for field in ("question", "answers") if with_answers else ("question",):
        if field not in record:
            raise UserError(f'{where}: no field "{field}"')
    if not isinstance(record["question"], str) or not record["question"].strip():
        raise UserError(f'{where}: "question" must be a text that is not empty')
    answers = record.get("answers", [])
    if not with_answers and answers:
        raise UserError(f'{where}: has "answers", and the first question has none; give all of them or none')
    if with_answers and (not isinstance(answers, list) or not answers or not all(isinstance(a, str) and a.strip() for a in answers)):
        raise UserError(f'{where}: "answers" must be a list of at least one text that is not empty')
    try:
        json.dumps(record, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise UserError(f"{where}: holds half of a surrogate pair, which is no character") from None
    for field in ("id", "category", "subject"):
        if not isinstance(record.get(field, ""), (str, int, type(None))):
            raise UserError(f'{where}: "{field}" must be a text or a number')
    identity = str(f"line-{number}" if record.get("id") is None else record["id"])
    if identity in first_seen:
        raise UserError(f'{where}: "id" {identity!r} is already that of line {first_seen[identity]}')
    lang = record.get("lang", "en")
    if lang not in ("en", "zh"):
        raise UserError(f'{where}: "lang" must be "en" or "zh", not {str(lang)[:40]!r}')
    if record.get("true_state") not in (None, "known", "unknown"):
        raise UserError(f'{where}: "true_state" must be "known" or "unknown", not {str(record["true_state"])[:40]!r}')
    first_seen[identity] = number
    text_or = lambda field, default: default if record.get(field) in (None, "") else str(record[field])
    return {**record, "id": identity, "answers": answers, "lang": lang, "category": text_or("category", "all"), "subject": text_or("subject", identity)}


def read_questions(path):
    """`each_question` of a file, as a list. Raises UserError where there are none."""
    questions = list(each_question(path))
    if not questions:
        raise UserError(f"{path}: holds no questions")
    return questions


def each_question(path, with_answers=True):
    """Yield the questions of a JSON-lines file: {"id", "question", "answers": [canonical, aliases ...], "lang", "category", "subject"}.

    Only "question" and "answers" are required; "id" defaults to the line number, "lang" to "en", "category" to "all",
    "subject" (what a split keeps together) to the id. Without `with_answers` no line may have answers, and all get an
    empty list. Raises UserError, naming the line and the field.
    """
    first_seen = {}
    for number, record in read_lines(path):
        yield question_record(record, f"{path}, line {number}", number, first_seen, with_answers)
