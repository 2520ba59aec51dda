"""General preference pairs for the reward model (section 4): a JSON-lines file or a Hugging Face
data set.

A record is {"prompt", "chosen", "rejected"}: the prompt a text or a list of {"role", "content"},
the two responses texts or lists of messages whose last one is the assistant's. In the
conversational form without "prompt", what both lists begin with is the prompt. Left out: other
columns, several responses a prompt.
"""

from data.files import read_lines
from lm.errors import UserError, first_line

HUB = "hf:"


def read(source):
    """Preference pairs of `source`, a file or "hf:NAME" or "hf:NAME:SPLIT", as {"prompt": messages,
    "chosen": text, "rejected": text}.

    Raises UserError, naming the line or record and the field.
    """
    if source.startswith(HUB):
        return [pair(record, f"{source}, record {n}") for n, record in enumerate(hub_records(source), 1)]
    pairs = [pair(record, f"{source}, line {n}") for n, record in read_lines(source)]
    if not pairs:
        raise UserError(f"{source}: holds no preference pairs")
    return pairs


def hub_records(source):
    """The records of "hf:NAME" (split "train") or "hf:NAME:SPLIT". Raises UserError where they
    cannot be had.
    """
    from datasets import load_dataset  # takes seconds, and most runs do not need it

    name, _, split = source[len(HUB) :].partition(":")
    try:
        return load_dataset(name, split=split or "train")
    except Exception as error:  # many kinds for one cause: no such data set or split, or no way to it
        raise UserError(f"{source}: cannot be loaded ({first_line(error)})") from error


def pair(record, where):
    """One record in the form that `read` returns. Raises UserError beginning with `where`."""
    for field in ("chosen", "rejected"):
        if field not in record:
            raise UserError(f'{where}: no field "{field}"')
    chosen, rejected = (
        as_messages(record[field], "assistant", f'{where}: "{field}"') for field in ("chosen", "rejected")
    )
    prompt = as_messages(record["prompt"], "user", f'{where}: "prompt"') if record.get("prompt") is not None else []
    if not prompt:
        if chosen[:-1] != rejected[:-1] or len(chosen) < 2:
            raise UserError(
                f'{where}: no field "prompt", and "chosen" and "rejected" do not begin with the same messages'
            )
        prompt = chosen[:-1]
    for field, conversation in (("chosen", chosen), ("rejected", rejected)):
        if conversation[-1]["role"] != "assistant":
            raise UserError(
                f'{where}: the last message of "{field}" must be the assistant\'s, not of role'
                f" {conversation[-1]['role']!r}"
            )
    texts = chosen[-1]["content"], rejected[-1]["content"]
    if texts[0] == texts[1]:
        raise UserError(f'{where}: "chosen" and "rejected" are the same text')
    return {"prompt": prompt, "chosen": texts[0], "rejected": texts[1]}


def as_messages(value, role, where):
    """A text (of `role`) or a list of messages as a list of {"role", "content"}. Raises UserError
    beginning with `where`.
    """
    messages = [{"role": role, "content": value}] if isinstance(value, str) else value
    if (
        not isinstance(messages, list)
        or not messages
        or not all(
            isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str)
            for m in messages
        )
    ):
        raise UserError(f'{where} must be a text, or a list of {{"role", "content"}} that is not empty')
    if not messages[-1]["content"].strip():
        raise UserError(f"{where} is empty")
    try:
        "".join(m["content"] for m in messages).encode()
    except UnicodeEncodeError:
        raise UserError(f"{where} holds half of a surrogate pair, which is no character") from None
    return [{"role": m["role"], "content": m["content"]} for m in messages]
