"""Question files: what a question needs, what it may lack, and what is said of a wrong line."""

import json

from data.files import read_lines
from lm.errors import UserError


def question_record(record, where, number, first_seen, with_answers=True):
    """The question in a record, with the fields that it lacks: see `each_question`. `where` begins
    what UserError says.

    `number` is the line that its id is made of where it has none; `first_seen` {id: number} is
    added to.
    """
    for field in ("question", "answers") if with_answers else ("question",):
        if field not in record:
            raise UserError(f'{where}: no field "{field}"')
    if not isinstance(record["question"], str) or not record["question"].strip():
        raise UserError(f'{where}: "question" must be a text that is not empty')
    answers = record.get("answers", [])
    if not with_answers and answers:
        raise UserError(f'{where}: has "answers", and the first question has none; give all of them or none')
    if with_answers and (
        not isinstance(answers, list) or not answers or not all(isinstance(a, str) and a.strip() for a in answers)
    ):
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
    return {
        **record,
        "id": identity,
        "answers": answers,
        "lang": lang,
        "category": text_or("category", "all"),
        "subject": text_or("subject", identity),
    }


def read_questions(path):
    """`each_question` of a file, as a list. Raises UserError where there are none."""
    questions = list(each_question(path))
    if not questions:
        raise UserError(f"{path}: holds no questions")
    return questions


def each_question(path, with_answers=True):
    """Yield the questions of a JSON-lines file: {"id", "question", "answers": [canonical, aliases
    ...], "lang", "category", "subject"}.

    Only "question" and "answers" are required; "id" defaults to the line number, "lang" to "en",
    "category" to "all", "subject" (what a split keeps together) to the id. Without `with_answers`
    no line may have answers, and all get an empty list. Raises UserError, naming the line and the
    field.
    """
    first_seen = {}
    for number, record in read_lines(path):
        yield question_record(record, f"{path}, line {number}", number, first_seen, with_answers)
