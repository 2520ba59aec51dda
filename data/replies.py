"""A generator's reply read as a question with its answer: strict in what comes out, kind in what
goes in.

A reply (A.1) is one JSON object, or an agreed phrase that says "unable to ask". Models also put it
in a code fence, write text around it, use single or typographic quotes, full-width colons, a comma
too many, or Chinese field names: all that is read. Text is never evaluated; what is not an object
of texts is dropped. Left out: repairing an object that was cut off.
"""

import json
import re

UNABLE = re.compile(
    r"\b(unable|not able|cannot|can ?not|can't)( to)? (ask|generate|create|come"
    r" up)|无法(提问|提出|生成)|無法(提問|提出)|不能提问",
    re.IGNORECASE,
)
FIELDS = {
    "question": "question",
    "问题": "question",
    "問題": "question",
    "answer": "answer",
    "回答": "answer",
    "答案": "answer",
    "type": "type",
    "category": "type",
    "分类": "type",
    "类型": "type",
    "類型": "type",
    "options": "options",
    "choices": "options",
    "选项": "options",
}
QUOTES = {'"': '"', "'": "'", "“": "”", "‘": "’", "「": "」"}
ESCAPES = {"n": "\n", "t": "\t"}
LETTER = re.compile(r"^\s*[(（]?([A-Ha-h])(?:[.:)）、：．]\s*|\s+-\s+)")
MAX_REPLY = 20_000  # characters read
MAX_OBJECTS = 20  # places where an object may begin
MAX_CATEGORY = 30  # characters


class Broken(ValueError):
    """The text at hand is no object of texts."""


def skip(text, at):
    """The next place that is not white space."""
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def read_text(text, at):
    """(string, place behind it) of a quoted string that begins at `at`; a quote inside counts where
    no separator follows it.
    """
    end = QUOTES.get(text[at : at + 1])
    if end is None:
        raise Broken("no quote")
    parts, at = [], at + 1
    while at < len(text):
        if text[at] == "\\" and at + 1 < len(text):
            found = re.compile(r"u([0-9a-fA-F]{4})").match(text, at + 1)
            parts.append(chr(int(found.group(1), 16)) if found else ESCAPES.get(text[at + 1], text[at + 1]))
            at = found.end() if found else at + 2
            continue
        if text[at] == end:
            behind = skip(text, at + 1)
            if behind >= len(text) or text[behind] in ",，:：}]":
                return "".join(parts), at + 1
        parts.append(text[at])
        at += 1
    raise Broken("a string that does not end")


def read_value(text, at):
    """(value, place behind it): a string, a number (as text), a list of these, or an object of
    these one level down.
    """
    if text[at : at + 1] == "[":
        values, at = [], skip(text, at + 1)
        while text[at : at + 1] != "]":
            value, at = read_scalar(text, at)
            values.append(value)
            at = skip(text, at)
            if text[at : at + 1] in ("，", ","):
                at = skip(text, at + 1)
            elif text[at : at + 1] != "]":
                raise Broken("a list that does not end")
        return values, at + 1
    if text[at : at + 1] == "{":
        return read_object(text, at, read_scalar)
    return read_scalar(text, at)


def read_scalar(text, at):
    number = re.compile(r"-?\d[\d.]*").match(text, at)
    return (number.group(), number.end()) if number else read_text(text, at)


def read_object(text, at, value_of=read_value):
    """({name: value}, place behind it) of an object that begins at the brace at `at`. Raises
    Broken.
    """
    record, at = {}, skip(text, at + 1)
    while text[at : at + 1] != "}":
        name, at = read_text(text, at)
        at = skip(text, at)
        if text[at : at + 1] not in (":", "："):
            raise Broken("no colon")
        record[name], at = value_of(text, skip(text, at + 1))
        at = skip(text, at)
        if text[at : at + 1] in ("，", ","):
            at = skip(text, at + 1)
        elif text[at : at + 1] != "}":
            raise Broken("an object that does not end")
    return record, at + 1


def objects(reply):
    """The objects in a reply, in order: valid JSON as such, anything else as `read_object` reads
    it.
    """
    places = [found.start() for found in re.finditer(r"\{", reply)][:MAX_OBJECTS]
    for place in places:
        try:
            yield json.JSONDecoder(strict=False).raw_decode(reply, place)[0]
        except (ValueError, RecursionError):
            try:
                yield read_object(reply, place)[0]
            except Broken:
                continue


def plain(value):
    """A value as one line of printable text, or None: a number becomes its digits."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        return None
    value = " ".join(value.split())
    return value if value and value.isprintable() else None


def read_options(value):
    """Option texts without the letters before them, from a list or from {"A": ..., "B": ...}; None
    where they are none.
    """
    if isinstance(value, dict):
        if not all(re.fullmatch("[A-H]", str(letter).strip().upper()) for letter in value):
            return None
        value = [value[letter] for letter in sorted(value, key=lambda name: name.strip().upper())]
    if not isinstance(value, list):
        return None
    texts = [plain(option) for option in value]
    if not texts or None in texts:
        return None
    lettered = [LETTER.match(text) for text in texts]
    if all(lettered) and [found.group(1).upper() for found in lettered] == [chr(65 + n) for n in range(len(texts))]:
        texts = [text[found.end() :] for text, found in zip(texts, lettered)]
    return texts


def named_option(answer, options):
    """The option that an answer names by its letter ("B", "b)", "B. Rome"), or the answer
    itself.
    """
    found = re.fullmatch(r"[(（]?([A-Ha-h])[.)）:：、]?", answer)
    letter = found or LETTER.match(answer)
    if letter and ord(letter.group(1).upper()) - 65 < len(options):
        option = options[ord(letter.group(1).upper()) - 65]
        if found or answer[letter.end() :].strip().casefold() == option.casefold():
            return option
    return answer


def parse(reply, multiple_choice=False):
    """({"question", "answer", "type"[, "options"]}, None), or (None, the reason why not).

    The first object that has question and answer counts. "type" is "all" where there is none that
    one could print.
    """
    reply = reply[:MAX_REPLY]
    incomplete = False
    for record in objects(reply):
        if not isinstance(record, dict):
            continue
        record = {
            FIELDS[name.strip().casefold()]: value
            for name, value in record.items()
            if name.strip().casefold() in FIELDS
        }
        question, answer = plain(record.get("question")), plain(record.get("answer"))
        if question is None or answer is None:
            incomplete = incomplete or bool(record)
            continue
        category = plain(record.get("type"))
        pair = {
            "question": question,
            "answer": answer,
            "type": category.casefold() if category and len(category) <= MAX_CATEGORY else "all",
        }
        if not multiple_choice:
            return pair, None
        options = read_options(record.get("options"))
        if options is None:
            return None, "no options in the reply"
        return {**pair, "answer": named_option(answer, options), "options": options}, None
    if UNABLE.search(reply):
        return None, "unable to ask"
    return None, "question or answer missing" if incomplete else "no object in the reply"
