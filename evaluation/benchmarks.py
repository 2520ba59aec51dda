"""Accuracy on benchmarks, zero-shot: MMLU, WinoGrande, ARC, BBH, GSM8K, MATH, C-Eval, CMMLU and
TruthfulQA (Tables 3 and 4).

Two ways. *Generation*: the chat model answers greedily and its answer is read from the text, as in
the paper. *Log-likelihood*: the option that is most probable behind the question, since small
models rarely say a letter. All figures are shares of the questions, each question counting the
same. Left out: averages over subjects, examples before the question, chain-of-thought prompts.
"""

import re
from dataclasses import dataclass

import numpy as np

from data.benchmark_data import LETTERS, SOURCES
from evaluation.likelihood import encode_pair, log_likelihoods
from evaluation.metrics import bootstrap_interval
from lm.batching import check_lengths
from lm.chat import chat_prompt, decode
from lm.errors import UserError
from lm.sampling import Sampling, generate
from reading import answers
from reading.answers_math import equal, final_answer, last_number

BLOCK = 64  # questions between two writes of what is done
MEASURES = {  # name: what it is
    "generation": "the greedy answer is right",
    "refused": "the greedy answer is not right and says that it does not know",
    "acc": "the right option is the most probable one",
    "acc_norm": "the same, log-likelihoods divided by the options' bytes",
    "mc1": "the best answer is more probable than each wrong one",
    "mc2": "share of the right answers in the probability of all answers",
}


@dataclass
class BenchmarkConfig:
    names: tuple = ()  # of mmlu,winogrande,arc,bbh,gsm8k,math,ceval,cmmlu,truthfulqa; none: no benchmarks
    dir: str = "hub"  # folder of their files in the hub's schema; "hub" downloads them
    limit: int = 200  # questions of each, drawn with the seed; 0 takes all


# ---------------------------------------------------------------------------------- reading answers


def chosen_letter(text, options):
    """The letter of `options` (texts, the first is A) that an answer chooses, or None.

    In this order: the text opens with a letter and stands it apart; it says "answer is B", "option
    B", "答案是B", "选B" or boxes it (the last of these counts); it mentions the words of exactly
    one option; one letter alone stands in brackets.
    """
    letters = LETTERS[: len(options)]
    text = text.strip()
    opening = re.match(rf"[\W_]*([{letters}])(?:[.):,：．、。）*\]]|\s*$|\s*\n)", text)
    if opening:
        return opening.group(1)
    said = re.findall(
        rf"(?i:answer|option|choice|correct)(?:\s+\w+)?\s*(?:is|:|：|=)?\s*[(\[*\"']*([{letters}])(?![\w'])"
        rf"|(?:答案|选项?)(?:应该|应|为|是|:|：|\s)*[(（\[*]*([{letters}])(?![A-Za-z])|\\boxed\{{\s*(?:\\text\{{)?\(?("
        rf"[{letters}])\b",
        text,
    )
    if said:
        return "".join(said[-1])
    mentioned = [letter for letter, option in zip(letters, options) if answers.mentions(text, [option])]
    if len(mentioned) == 1:
        return mentioned[0]
    bracketed = set(re.findall(rf"\(([{letters}])\)", text))
    return bracketed.pop() if len(bracketed) == 1 else None


def chosen_word(text, words):
    """Which of two opposite words (lower case) stands first in the text, or None."""
    found = re.search(rf"\b({'|'.join(words)})\b", text.lower())
    return found and found.group(1)


def is_right(question, text):
    """True where a generated text answers a question of benchmark_data.load."""
    kind, target = question["kind"], question["target"]
    if kind == "letter":
        return chosen_letter(text, question["options"]) == target
    if kind == "word":
        return chosen_word(text, question["options"]) == target
    if kind == "number":
        number = last_number(text)
        return number is not None and equal(number, target)
    if kind == "math":
        return equal(text, target) or equal(final_answer(text), target)
    plain = [re.sub(r"[\s,;\"'.]+", " ", t).strip().lower() for t in (text, target)]
    return plain[0] == plain[1] or plain[0].endswith(f" {plain[1]}")


# ------------------------------------------------------------------------------------------- asking


def ask(lm, questions, new_tokens, rows):
    """Greedy answers: [{"id", "text"}]. A question that does not fit into the model's positions is
    answered with nothing.
    """
    prompts = [chat_prompt(lm, q["question"]) for q in questions]
    fitting = [i for i, prompt in enumerate(prompts) if fits(lm, prompt, new_tokens)]
    responses = generate(lm, [prompts[i] for i in fitting], Sampling(new_tokens, temperature=0.0, rows=rows))
    texts = {i: decode(lm, r[0]) for i, r in zip(fitting, responses)}
    return [{"id": q["id"], "text": texts.get(i, "")} for i, q in enumerate(questions)]


def fits(lm, prompt, new_tokens):
    """True where a prompt and its answer are not more than the model's positions."""
    try:
        check_lengths(lm, [prompt], new_tokens)
    except UserError:
        return False
    return True


def weigh(lm, questions):
    """Log-likelihoods of the options in nats: [{"id", "log_likelihoods": one for each of the
    question's pairs}].
    """
    found = log_likelihoods(lm, [[encode_pair(lm, *pair) for pair in q["pairs"]] for q in questions])
    return [{"id": q["id"], "log_likelihoods": values} for q, values in zip(questions, found)]


# ------------------------------------------------------------------------------------------ scoring


def choice_scores(question, values):
    """{"acc"}, {"acc", "acc_norm"} or {"mc1", "mc2"} of one question, each 0 or 1 but for "mc2"; a
    tie goes to the first option.
    """
    values = np.array(values)
    if "mc2" in question:
        best, every = values[question["mc1"]], values[question["mc2"]]
        mass = np.exp(every - every.max())  # the sum of exp(-400) would be zero
        return {
            "mc1": float(best.argmax() == question["mc1_gold"]),
            "mc2": float(mass[np.array(question["mc2_labels"]) == 1].sum() / mass.sum()),
        }
    found = {"acc": float(values.argmax() == question["gold"])}
    if "bytes" in question:  # letters and WinoGrande's suffixes are of one length
        found["acc_norm"] = float((values / np.array(question["bytes"])).argmax() == question["gold"])
    return found


def scores(questions, asked, weighed):
    """{measure: one number a question} from the records of `ask` and of `weigh` ([] where there are
    no options).
    """
    right = [is_right(q, a["text"]) for q, a in zip(questions, asked)]
    found = {
        "generation": [float(r) for r in right],
        "refused": [float(not r and answers.read(a["text"], []) == "refusal") for r, a in zip(right, asked)],
    }
    for question, record in zip(questions, weighed):
        for name, value in choice_scores(question, record["log_likelihoods"]).items():
            found.setdefault(name, []).append(value)
    return found


def summary(found, resamples, seed):
    """{measure: {"n", "value", "interval"}}: means of `scores` with 95% bootstrap intervals over
    the questions.
    """
    result = {}
    for name, values in found.items():
        values = np.array(values)
        low, high = bootstrap_interval(lambda index: values[index].mean(), len(values), resamples, seed)
        result[name] = {"n": len(values), "value": float(values.mean()), "interval": [low, high]}
    return result


def evaluate(lm, name, questions, rows, in_blocks):
    """`scores` of one model on one benchmark's questions.

    `in_blocks(way, questions, make)` calls make(block) on blocks and returns all records in the
    order of the questions: what is done of a half-done run stays with the caller.
    """
    asked = in_blocks("generation", questions, lambda block: ask(lm, block, SOURCES[name].new_tokens, rows))
    weighed = in_blocks("log-likelihood", questions, lambda block: weigh(lm, block)) if "pairs" in questions[0] else []
    return scores(questions, asked, weighed)
