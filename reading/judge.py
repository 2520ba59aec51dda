"""A model behind an endpoint as the reader: what neither words nor features can tell, a judge may
know.

The client is handed in: anything with `ask(messages, temperature, max_tokens)` that returns
{"reply": text} or {"error": reason}, as data/endpoint.py's Endpoint does for OpenAI-compatible
servers. Verdicts are cached in a JSONL file by the hash of model and prompt, so that a run that is
started again asks nothing twice. The prompt is judge_prompt.txt. Source: the judges of Kamalloo et
al. (2023) and of Wang et al. (2023), "Evaluating open-QA evaluation" (EVOUNA), asked for one word.
Left out: several votes, probabilities of the words.
"""

import hashlib
import json
import os
import re
from functools import lru_cache

from reading.answers import SOMETHING, Reading, reading

MAX_TOKENS = 5
LONGEST_TEXT = 4000  # characters of an answer that the judge is shown
VERDICT = re.compile(r"\b(right|hedged|wrong|refusal)\b", re.I)


@lru_cache(maxsize=1)
def prompt_form():
    """The prompt with {question}, {answers} and {text} to be filled in."""
    with open(os.path.join(os.path.dirname(__file__), "judge_prompt.txt"), encoding="utf-8") as file:
        return file.read()


def prompt(text, answers, question):
    """The prompt for one answer; braces in the texts stay as they are."""
    given = {"question": question, "answers": "; ".join(answers), "text": text[:LONGEST_TEXT]}
    return re.sub(r"\{(question|answers|text)\}", lambda found: given[found[1]], prompt_form())


class Judge:
    """Reads by asking `client`; verdicts are kept in the file `cache`, and in memory as one word a
    prompt.
    """

    def __init__(self, client, cache):
        self.client, self.cache, self.known = client, cache, {}
        if os.path.exists(cache):
            with open(cache, encoding="utf-8") as file:
                lines = file.read().splitlines(keepends=True)
            whole = [line for line in lines if line.endswith("\n")]
            self.known = {entry["key"]: entry["verdict"] for entry in map(json.loads, whole)}
            if len(whole) < len(lines):  # a run was stopped while it wrote the last line
                with open(cache, "w", encoding="utf-8") as file:
                    file.writelines(whole)

    def read(self, text, answers, question=""):
        """The Reading of one text. Where the judge gives no verdict, the strict reader's, at half
        its confidence.
        """
        if not SOMETHING.search(text):
            return Reading("empty", 1.0, "no words")
        asked = prompt(text, answers, question)
        key = hashlib.sha256(f"{getattr(self.client, 'model', '')}\n{asked}".encode()).hexdigest()
        if key not in self.known:
            verdict = verdict_in(self.client.ask([{"role": "user", "content": asked}], 0.0, MAX_TOKENS))
            if verdict is None:
                strict = reading(text, answers, question)
                return Reading(strict.kind, strict.confidence / 2, f"no verdict of the judge; {strict.decided_by}")
            self.remember(key, verdict)
        return Reading(self.known[key], 0.9, "judge")

    def remember(self, key, verdict):
        """Keep a verdict, in the file at once."""
        self.known[key] = verdict
        with open(self.cache, "a", encoding="utf-8") as file:
            file.write(json.dumps({"key": key, "verdict": verdict}) + "\n")


def verdict_in(found):
    """The kind that a reply names, or None: an error, no such word, or two different ones."""
    kinds = {kind.lower() for kind in VERDICT.findall(found.get("reply", ""))}
    return kinds.pop() if len(kinds) == 1 else None
