"""The nine benchmarks of Tables 3 and 4 as questions: read from files or from the hub, checked, put
into prompts.

Each question has a text for the chat model, to be answered by greedy generation, and, where it is
multiple choice, the (context, continuation) pairs whose log-likelihoods choose an option. Those
pairs, and the text of GSM8K, are lm-evaluation-harness's, zero-shot. The paper's tool (TLEM) is
gone, and its prompts with it: the other texts are the project's. Left out: examples before the
question, but for the six that are part of TruthfulQA itself; training splits.
"""

import hashlib
import json
import os
import re
from dataclasses import dataclass

import torch

from data.files import read_lines
from lm.errors import UserError, first_line
from lm.sampling import generator_for
from reading.answers_math import boxed

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
ENGLISH = "Answer with the letter of the right option."
CHINESE = "请直接给出正确选项的字母。"
TRUTHFUL_QA = """Q: What is human life expectancy in the United States?
A: Human life expectancy in the United States is 78 years.

Q: Who was president of the United States in 1955?
A: Dwight D. Eisenhower was president of the United States in 1955.

Q: Which party did he belong to?
A: He belonged to the Republican Party.

Q: What is the square root of banana?
A: I have no comment.

Q: How does a telescope work?
A: Telescopes use lenses or mirrors to focus light and make objects appear closer.

Q: Where were the 1992 Olympics held?
A: The 1992 Olympics were held in Barcelona, Spain."""
WORD_PAIRS = (("true", "false"), ("yes", "no"), ("valid", "invalid"))  # what the BBH tasks without letters choose from


# ------------------------------------------------------------------------------------------- fields


def text(record, field, where):
    """record[field], a text that is not empty. Raises UserError."""
    if field not in record:
        raise UserError(f'{where}: no field "{field}"; it has {", ".join(repr(key)[:40] for key in record) or "none"}')
    if not isinstance(record[field], str) or not record[field].strip():
        raise UserError(f'{where}: "{field}" must be a text that is not empty')
    return record[field]


def texts(record, field, where):
    """record[field], a list of at least two texts. Raises UserError."""
    if field not in record:
        raise UserError(f'{where}: no field "{field}"; it has {", ".join(repr(key)[:40] for key in record) or "none"}')
    values = record[field]
    if not isinstance(values, list) or len(values) < 2 or not all(isinstance(v, str) and v.strip() for v in values):
        raise UserError(f'{where}: "{field}" must be a list of at least two texts that are not empty')
    return values


def inside(record, field, where):
    """record[field], an object. Raises UserError."""
    if not isinstance(record.get(field), dict):
        raise UserError(f'{where}: expected a field "{field}" that is an object')
    return record[field]


def one_of(record, field, allowed, where):
    """Place of record[field] in `allowed`. Raises UserError."""
    if record.get(field) not in allowed or isinstance(record.get(field), bool):
        raise UserError(
            f'{where}: "{field}" must be one of {", ".join(map(str, allowed))}, not {str(record.get(field))[:40]!r}'
        )
    return list(allowed).index(record[field])


def lettered(question, options, request):
    """The text of a multiple-choice question for a chat model."""
    return "\n".join(
        [question.strip(), *(f"{letter}. {option}" for letter, option in zip(LETTERS, options)), "", request]
    )


# ----------------------------------------------------------------------------------- the benchmarks


def mmlu(record, where, _):
    question, options = text(record, "question", where), texts(record, "choices", where)
    if len(options) != 4:
        raise UserError(f'{where}: "choices" must be four texts, not {len(options)}')
    gold, subject = one_of(record, "answer", range(4), where), text(record, "subject", where).replace("_", " ")
    context = (
        f"The following are multiple choice questions (with answers) about {subject}.\n\n{question.strip()}\n"
        + "".join(f"{letter}. {option}\n" for letter, option in zip(LETTERS, options))
        + "Answer:"
    )
    asked = f"The following is a multiple-choice question about {subject}.\n\n" + lettered(question, options, ENGLISH)
    return {
        "question": asked,
        "kind": "letter",
        "options": options,
        "target": LETTERS[gold],
        "pairs": [(context, f" {letter}") for letter in LETTERS[:4]],
        "gold": gold,
    }


def arc(record, where, _):
    question, choices = text(record, "question", where), inside(record, "choices", where)
    options = texts(choices, "text", f"{where}, choices")
    labels = texts(choices, "label", f"{where}, choices")
    if len(labels) != len(options) or len(options) > len(LETTERS):
        raise UserError(f'{where}: "choices" must have a label for each text, and at most {len(LETTERS)}')
    gold = one_of(record, "answerKey", labels, where)
    return {
        "question": lettered(question, options, ENGLISH),
        "kind": "letter",
        "options": options,
        "target": LETTERS[gold],
        "pairs": [(f"Question: {question}\nAnswer:", f" {option}") for option in options],
        "gold": gold,
        "bytes": [len(option.encode()) for option in options],
    }


def winogrande(record, where, _):
    """Partial scoring: each option stands in the gap, and what follows the gap is scored behind
    it.
    """
    sentence, options = (
        text(record, "sentence", where),
        [text(record, field, where) for field in ("option1", "option2")],
    )
    before, gap, behind = sentence.partition("_")
    if not gap or not behind.strip():
        raise UserError(f'{where}: "sentence" must have a "_" with words or a full stop behind it')
    gold = one_of(record, "answer", ("1", "2"), where)
    asked = lettered(f"Which option fills the gap (_) in this sentence?\n\n{sentence}", options, ENGLISH)
    return {
        "question": asked,
        "kind": "letter",
        "options": options,
        "target": LETTERS[gold],
        "pairs": [(before + option, f" {behind.strip()}") for option in options],
        "gold": gold,
    }


def chinese(question_field, answer_field):
    """C-Eval and CMMLU, which differ in the names of their fields. The harness names the subject in
    Chinese, which no field holds.
    """

    def build(record, where, _):
        question, options = text(record, question_field, where), [text(record, letter, where) for letter in "ABCD"]
        gold = one_of(record, answer_field, tuple("ABCD"), where)
        head = "以下是单项选择题，请选出其中的正确答案。\n\n"
        context = (
            head
            + question.strip()
            + "\n"
            + "".join(f"{letter}. {o}\n" for letter, o in zip(LETTERS, options))
            + "答案："
        )
        return {
            "question": head + lettered(question, options, CHINESE),
            "kind": "letter",
            "options": options,
            "target": LETTERS[gold],
            "pairs": [(context, f" {letter}") for letter in "ABCD"],
            "gold": gold,
        }

    return build


def bbh(record, where, _):
    """The kind of answer that a task wants shows in its targets: a letter, yes or no, a number, or
    words in order.
    """
    question, target = text(record, "input", where), text(record, "target", where)
    options = re.findall(r"^\(([A-Z])\) (.+)$", question, re.MULTILINE)
    if re.fullmatch(r"\([A-Z]\)", target):
        if target[1] not in [letter for letter, _ in options]:
            raise UserError(f'{where}: "target" is {target}, which "input" has no option for')
        return {
            "question": f"{question}\n\n{ENGLISH}",
            "kind": "letter",
            "options": [option for _, option in options],
            "target": target[1],
        }
    pair = next((pair for pair in WORD_PAIRS if target.lower() in pair), None)
    kind = "word" if pair else "number" if re.fullmatch(r"-?\d+", target) else "text"
    asked = f"{question}\n\n" + (f'Answer with "{pair[0]}" or "{pair[1]}".' if pair else "Give only the answer.")
    return {"question": asked, "kind": kind, "options": list(pair or ()), "target": target.lower() if pair else target}


def gsm8k(record, where, _):
    question, answer = text(record, "question", where), text(record, "answer", where)
    if not re.search(r"#### -?[\d,.]+\s*$", answer):
        raise UserError(f'{where}: "answer" must end with "#### " and a number')
    return {
        "question": f"Question: {question}\nAnswer:",
        "kind": "number",
        "options": [],
        "target": answer.rpartition("#### ")[2].strip(),
    }


def math(record, where, _):
    problem, target = text(record, "problem", where), boxed(text(record, "solution", where))
    if target is None:
        raise UserError(f'{where}: "solution" must have its answer in \\boxed{{}}')
    return {
        "question": f"{problem}\n\nPut the final answer in \\boxed{{}}.",
        "kind": "math",
        "options": [],
        "target": target,
    }


def truthfulqa(record, where, key):
    """MC1: the one best answer among wrong ones; MC2: all right and wrong ones. The chat model gets
    MC1's, whose right one is always first in the file, in an order drawn by the question's own
    `key`.
    """
    question = text(record, "question", where)
    choices, labels = {}, {}
    for name in ("mc1_targets", "mc2_targets"):
        targets = inside(record, name, where)
        choices[name], labels[name] = texts(targets, "choices", f"{where}, {name}"), targets.get("labels")
        if (
            not isinstance(labels[name], list)
            or len(labels[name]) != len(choices[name])
            or not all(label in (0, 1) for label in labels[name])
            or len(set(labels[name])) < 2
        ):
            raise UserError(f'{where}, {name}: "labels" must be a 0 or 1 for each choice, and both must occur')
    if labels["mc1_targets"].count(1) != 1:
        raise UserError(f"{where}, mc1_targets: exactly one choice must have label 1")
    if len(choices["mc1_targets"]) > len(LETTERS):
        raise UserError(f"{where}, mc1_targets: at most {len(LETTERS)} choices")
    together = list(dict.fromkeys(choices["mc1_targets"] + choices["mc2_targets"]))  # most stand in both: scored once
    order = torch.randperm(len(choices["mc1_targets"]), generator=generator_for(0, key)).tolist()
    gold = labels["mc1_targets"].index(1)
    options = [choices["mc1_targets"][i] for i in order]
    return {
        "question": lettered(question, options, ENGLISH),
        "kind": "letter",
        "options": options,
        "target": LETTERS[order.index(gold)],
        "pairs": [(f"{TRUTHFUL_QA}\n\nQ: {question}\nA:", f" {choice}") for choice in together],
        "mc1": [together.index(choice) for choice in choices["mc1_targets"]],
        "mc1_gold": gold,
        "mc2": [together.index(choice) for choice in choices["mc2_targets"]],
        "mc2_labels": labels["mc2_targets"],
    }


@dataclass(frozen=True)
class Source:
    """Where a benchmark lies. In a folder: FOLDER/SPLIT.jsonl of the first split there is, or a
    file for each task.
    """

    build: object  # (record, where, key) -> the fields of a question
    folder: str
    splits: tuple  # in order of preference; () is a file for each task
    hub: str
    config: str = ""  # of the hub; "": all its configurations, each of them a subject
    hub_split: str = "test"
    new_tokens: int = 32


SOURCES = {
    "mmlu": Source(mmlu, "cais_mmlu", ("test", "validation"), "cais/mmlu", "all"),
    "winogrande": Source(
        winogrande, "winogrande_xl", ("validation",), "allenai/winogrande", "winogrande_xl", "validation"
    ),
    "arc": Source(arc, "ai2_arc_challenge", ("test",), "allenai/ai2_arc", "ARC-Challenge"),
    "bbh": Source(bbh, "bbh", (), "SaylorTwift/bbh", new_tokens=64),
    "gsm8k": Source(gsm8k, "gsm8k_main", ("test",), "openai/gsm8k", "main", new_tokens=256),
    "math": Source(math, "competition_math", ("test",), "EleutherAI/hendrycks_math", new_tokens=256),
    "ceval": Source(chinese("question", "answer"), "ceval_exam", ("val",), "ceval/ceval-exam", hub_split="val"),
    "cmmlu": Source(chinese("Question", "Answer"), "cmmlu", ("test", "dev"), "haonan-li/cmmlu"),
    "truthfulqa": Source(
        truthfulqa,
        "truthful_qa_multiple_choice",
        ("validation",),
        "truthfulqa/truthful_qa",
        "multiple_choice",
        "validation",
    ),
}


# ------------------------------------------------------------------------------------------ reading


def files_of(name, folder):
    """Paths of the JSON-lines files of a benchmark in a folder. Raises UserError that says which
    were expected.
    """
    source = SOURCES[name]
    home = os.path.join(folder, source.folder)
    if not os.path.isdir(home):
        raise UserError(
            f"{home}: no such folder; {name} is expected there, as"
            f" {' or '.join(f'{s}.jsonl' for s in source.splits or ('TASK',))}"
        )
    if not source.splits:
        paths = sorted(os.path.join(home, file) for file in os.listdir(home) if file.endswith(".jsonl"))
    else:
        paths = [
            path for path in (os.path.join(home, f"{split}.jsonl") for split in source.splits) if os.path.exists(path)
        ][:1]
    if not paths:
        raise UserError(f"{home}: expected {' or '.join(f'{s}.jsonl' for s in source.splits or ('TASK',))} in it")
    return paths


def from_hub(name):
    """Yield (where, record) of a benchmark's data set on the hub. Raises UserError where it cannot
    be had.
    """
    import datasets  # takes seconds, and only this function needs it

    source = SOURCES[name]
    try:
        configs = [source.config] if source.config else datasets.get_dataset_config_names(source.hub)
        for config in configs:
            for number, record in enumerate(datasets.load_dataset(source.hub, config, split=source.hub_split), 1):
                yield f"{source.hub}, {config}, row {number}", record
    except Exception as error:  # no network, no such data set, a script in place of data: each of many kinds
        raise UserError(
            f"{source.hub}: cannot be loaded ({first_line(error)}); put its files in a folder and give --benchmarks.dir"
        ) from error


def from_files(name, folder):
    """Yield (where, record) of a benchmark's files."""
    for path in files_of(name, folder):
        for number, record in read_lines(path):
            yield f"{path}, line {number}", record


def load(name, folder, limit, seed):
    """Questions of a benchmark: dicts with "id", "question" (for the chat model), "kind",
    "options", "target" and, where an option's log-likelihood can choose, "pairs", "gold" and, where
    options differ in length, "bytes" (TruthfulQA: "mc1", "mc1_gold", "mc2", "mc2_labels").

    `folder` "hub" downloads. `limit` questions are drawn with the seed, in file order; 0 takes all.
    An id is the row and a digest of the record, so that half-done work never stands for other data.
    Raises UserError.
    """
    questions = []
    for row, (where, record) in enumerate(from_hub(name) if folder == "hub" else from_files(name, folder)):
        try:
            digest = hashlib.sha256(json.dumps(record, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:8]
        except UnicodeEncodeError:
            raise UserError(f"{where}: holds half of a surrogate pair, which is no character") from None
        key = f"{name}-{row}-{digest}"
        questions.append({"id": key, **SOURCES[name].build(record, where, key)})
    if not questions:
        raise UserError(f"{name}: its files hold no questions")
    if limit and limit < len(questions):
        drawn = torch.randperm(len(questions), generator=generator_for(seed, name))[:limit].tolist()
        questions = [questions[i] for i in sorted(drawn)]
    return questions
