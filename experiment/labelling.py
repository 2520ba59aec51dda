"""The labelling tool: DreamCatcher on its own, for any model and any number of questions.

    python dreamcatcher.py --model MODEL --questions questions.jsonl --out labels.jsonl
    python dreamcatcher.py --generations made_elsewhere.jsonl --embedder EMBEDDER \
        --questions questions.jsonl --out labels.jsonl

Questions are read one block at a time: their answers and scores are appended to OUT.work, so an
interrupted call goes on. When all are there, the scores alone (a few numbers a generation) are held
in memory, normalised over the data set and labelled. Left out: uncertain generations and rankings,
which the annotate stage of rlkf.py makes.
"""

import argparse
import hashlib
import itertools
import json
import os
import re

import numpy as np
import torch
from transformers.utils import logging as transformers_logging

import embed as embedding
import probe
from data.files import append_jsonl, count_lines, read_lines, whole_file
from data.questions import each_question
from dreamcatcher import AnnotateConfig, agreement, factuality, histogram, label, score_generations
from evaluation import metrics
from experiment.command_line import check_device
from experiment.progress import bar, say
from lm import model as language_model
from lm.chat import chat_prompt, decode
from lm.errors import UserError, exit_status, raise_user_error
from lm.sampling import Sampling, generate
from reading import answers

READINGS = answers.KINDS
SURROGATE = re.compile("[\ud800-\udfff]")  # half of a character beyond the first 65,536
AT_ONCE = 128  # questions between two writes


def score_file(command, questions, part, tick):
    """Append to the JSON-lines file `part` what is missing of: id, lang, texts, readings and scores
    of every question.
    """
    done = count_lines(part) - 1
    tick(done)
    lm = (
        language_model.load(command.model, command.device, getattr(torch, command.dtype), say)
        if command.model
        else None
    )
    embedder = embedding.load(command.embedder or command.model, command.device)
    reader = probe.load(command.probes) if command.probes else None
    made = Generations(command.generations) if command.generations else None
    sampling = Sampling(max_new_tokens=command.max_new_tokens, temperature=command.temperature)
    block = []

    def write():
        if made:
            normal = [made.texts(q["id"]) for q in block]
        else:
            prompts = [chat_prompt(lm, q["question"]) for q in block]
            sampled = generate(lm, prompts, sampling, command.k, [q["id"] for q in block], command.seed)
            normal = [[decode(lm, r) for r in responses] for responses in sampled]
        p_known = probe.p_known(lm, reader, [q["question"] for q in block]) if reader else None
        scores = score_generations(embedder, block, [{"normal": texts} for texts in normal], p_known)
        append_jsonl(
            part,
            [
                {
                    "id": q["id"],
                    "lang": q["lang"],
                    "question": q["question"],
                    "normal": texts,
                    "readings": [answers.read(t, q["answers"], q["question"]) for t in texts],
                    **{name: value[i].tolist() for name, value in scores.items()},
                }
                for i, (q, texts) in enumerate(zip(block, normal))
            ],
        )
        tick(len(block))
        block.clear()

    for number, question in enumerate(questions):
        if number >= done:
            block.append(question)
            if len(block) == AT_ONCE:
                write()
    if block:
        write()


class Generations:
    """Texts by question id from a JSON-lines file of {"id", "normal": [k texts]}; only the places
    of the lines are in memory.
    """

    def __init__(self, path):
        self.path, line_of, k = path, {}, None
        for number, record in read_lines(path):
            identity, texts = record.get("id"), record.get("normal")
            if not isinstance(identity, (str, int)):
                raise UserError(f'{path}, line {number}: "id" must be that of a question')
            if str(identity) in line_of:
                raise UserError(
                    f'{path}, line {number}: "id" {str(identity)!r} is already that of line {line_of[str(identity)]}'
                )
            if (
                not isinstance(texts, list)
                or not texts
                or not all(isinstance(t, str) and not SURROGATE.search(t) for t in texts)
            ):
                raise UserError(
                    f'{path}, line {number}: "normal" must be a list of at least one text, of whole characters'
                )
            k = k or len(texts)
            if len(texts) != k:
                raise UserError(
                    f'{path}, line {number}: "normal" holds {len(texts)} texts, those of the lines before {k}'
                )
            line_of[str(identity)] = number
        self.file = open(path, "rb")
        starts = list(itertools.accumulate(map(len, self.file), initial=0))
        self.place = {identity: starts[number - 1] for identity, number in line_of.items()}

    def texts(self, identity):
        if identity not in self.place:
            raise UserError(f"{self.path}: no generations of question {identity!r}")
        self.file.seek(self.place[identity])
        return json.loads(self.file.readline().decode("utf-8-sig"))["normal"]


def label_file(command, part, out):
    """Read the scores in `part` again, label over the whole data set, write `out`. Returns the
    lines of the summary.
    """
    records = lambda: (record for number, (_, record) in enumerate(read_lines(part)) if number)
    first = next(records())
    names = [name for name in AnnotateConfig.scores if name in first]
    columns = {name: [] for name in (*names, "readings", "lang")}
    for record in records():
        for name, column in columns.items():
            column.append(np.asarray(record[name], dtype=np.float32) if name in names else record[name])
    scores = {name: torch.as_tensor(np.array(columns[name])) for name in names}
    if command.rule == "threshold" and scores["s_s2g"].numel() < 2:
        raise UserError(f"{command.questions}: --rule threshold needs two generations at least, to cut between them")
    total = factuality(scores, names, command.normalise).numpy()
    hits = np.array([[answers.is_correct(r) for r in readings] for readings in columns["readings"]])
    correct, states = label(total, hits, AnnotateConfig(rule=command.rule))
    with whole_file(out) as unfinished, open(unfinished, "w", encoding="utf-8") as f:
        for record, row, verdicts, state in zip(records(), total.tolist(), correct.tolist(), states):
            f.write(
                json.dumps({**record, "factuality": row, "correct": verdicts, "state": state}, ensure_ascii=False)
                + "\n"
            )
    counts, warnings = histogram(states)
    lines = [
        f"{len(states)} questions by rule {command.rule}: "
        + ", ".join(f"{n} {state}" for state, n in counts.items())
        + (f", {states.count(None)} left out" if None in states else ""),
        *(f"warning: {w}" for w in warnings),
    ]
    lines.append(
        "answers read as: "
        + ", ".join(f"{sum(r.count(kind) for r in columns['readings'])} {kind}" for kind in READINGS)
    )
    if "s_o2a" not in names:
        return lines + [
            "no answers are given: s_o2a and s_s2a are left out, and right and wrong are told by the scores alone"
        ]
    langs = np.array(columns["lang"])
    for lang in sorted(set(langs)):
        lines.append(
            f"AUROC of the factuality for right answers, {lang}:"
            f" {metrics.auroc(total[langs == lang].ravel(), hits[langs == lang].ravel()):.3f}"
        )
        if command.rule != "gold":
            found = agreement(correct[langs == lang], hits[langs == lang])
            lines.append(
                f"agreement with the given answers, {lang}: "
                + ", ".join(f"{name} {value:.3f}" for name, value in found.items())
            )
    return lines


def read_people(path):
    """{question id: [(line, sample, label)]} of JSON lines {"id", "sample": index, "label": right,
    hedged, refusal or wrong}.
    """
    people = {}
    for number, record in read_lines(path):
        if record.get("label") not in READINGS or not isinstance(record.get("sample"), int):
            raise UserError(
                f'{path}, line {number}: expected "id", "sample" (a number from 0) and "label" (right, hedged, refusal,'
                ", wrong or empty)"
            )
        people.setdefault(str(record.get("id")), []).append((number, record["sample"], record["label"]))
    return people


def against_people(path, out):
    """Table 1: the labels in `out` against people's in `path` (see `read_people`)."""
    people, pairs = read_people(path), {}
    for _, record in read_lines(out):
        for number, sample, by_hand in people.pop(record["id"], ()):
            if not 0 <= sample < len(record["normal"]):
                raise UserError(
                    f'{path}, line {number}: "sample" {sample}, but {record["id"]!r} has {len(record["normal"])}'
                    " generations"
                )
            for lang in (record["lang"], "all"):
                pairs.setdefault(lang, []).append(
                    (
                        record["correct"][sample],
                        answers.is_correct(by_hand),
                        record["readings"][sample] == "refusal",
                        by_hand == "refusal",
                    )
                )
    if people:
        raise UserError(
            f"{path}, line {next(iter(people.values()))[0][0]}: no question with id {next(iter(people))!r} among the"
            " labelled"
        )
    lines = []
    for lang, rows in sorted(pairs.items()):
        correct, truth, refusal, refused = np.array(rows).T
        for what, found in (("correct", agreement(correct, truth)), ("refusal", agreement(refusal, refused))):
            lines.append(
                f"agreement with people, {lang}, {what}: "
                + ", ".join(f"{name} {value:.3f}" for name, value in found.items())
                + f", n {len(rows)}"
            )
    return lines


def content_of(path):
    """Digest of a file, or of the probes in a folder."""
    with open(os.path.join(path, "probes.safetensors") if os.path.isdir(path) else path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def check_places(command):
    """Raise UserError where OUT cannot be written, or where it, or the half-done work beside it, is
    one of the files that are read.
    """
    out, part = command.out, f"{command.out}.work"
    if os.path.isdir(out) or os.path.basename(out) == "":
        raise UserError(f"--out {out!r}: expected the name of a file, not of a folder")
    if not os.path.isdir(os.path.dirname(out) or "."):
        raise UserError(f"--out {out}: there is no folder {os.path.dirname(out)}")
    for name in ("questions", "generations", "human"):
        path = getattr(command, name)
        if path and os.path.realpath(path) in (os.path.realpath(out), os.path.realpath(part)):
            raise UserError(f"--out {out}: would overwrite --{name} {path}")
    if os.path.exists(part) and "made with" not in next(read_lines(part), (0, ["made with"]))[1]:
        raise UserError(f"{part}: is in the way, and not the half-done work of this tool")


def read_command_line(argv):
    """The arguments. Raises UserError."""
    parser = argparse.ArgumentParser(
        prog="dreamcatcher.py", description="Label what a model answers, and what it knows."
    )
    parser.error = raise_user_error
    parser.add_argument(
        "--questions",
        required=True,
        help="JSON lines with question, answers (on all lines or on none), and id, lang if you like",
    )
    parser.add_argument(
        "--out",
        required=True,
        help="the labels, JSON lines; what is half done stands in OUT.work, and the same command goes on",
    )
    parser.add_argument("--model", help="language model that answers: a Hugging Face folder or name")
    parser.add_argument(
        "--generations", help="answers made elsewhere, instead: JSON lines with id and normal, a list of texts"
    )
    parser.add_argument("--embedder", help="sentence embedder (default: the model's own states)")
    parser.add_argument("--probes", help="the model's probes, for s_p (a run's probe folder)")
    parser.add_argument("--human", help="labels by people to compare with: JSON lines with id, sample, label")
    parser.add_argument(
        "--rule",
        choices=("gold", "median", "percentile", "threshold"),
        help="default: gold, or threshold where no answers are given",
    )
    parser.add_argument("--normalise", choices=("min-max", "z-score", "rank"), default="min-max")
    parser.add_argument("--k", type=int, default=5)
    parser.add_argument("--temperature", type=float, default=0.6)
    parser.add_argument("--max-new-tokens", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    command = parser.parse_args(argv)
    check_device(command.device)
    check_places(command)
    if bool(command.model) == bool(command.generations):
        raise UserError("give either --model, which answers, or --generations")
    if command.probes and not command.model:
        raise UserError("--probes reads the model's states: give --model too")
    if not (command.embedder or command.model):
        raise UserError("--generations needs an --embedder for the scores")
    if command.k < 1 or command.max_new_tokens < 1 or not 0 < command.temperature < float("inf"):
        raise UserError("--k and --max-new-tokens: expected at least 1; --temperature: a number above 0")
    return command


def run_command(argv):
    """What the arguments ask for."""
    command = read_command_line(argv)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    _, first = next(read_lines(command.questions), (0, None))
    if first is None:
        raise UserError(f"{command.questions}: holds no questions")
    has_answers = bool(first.get("answers"))
    command.rule = command.rule or ("gold" if has_answers else "threshold")
    if command.rule == "gold" and not has_answers:
        raise UserError(f"{command.questions}: --rule gold needs answers, and the questions have none")
    questions = each_question(command.questions, has_answers)
    part = f"{command.out}.work"
    if command.human:
        read_people(command.human)
    mark = {
        "made with": {
            **{n: v for n, v in vars(command).items() if n not in ("out", "rule", "normalise", "human", "device")},
            "content": [content_of(path) for path in (command.questions, command.generations, command.probes) if path],
        }
    }
    if os.path.exists(part) and next(read_lines(part), (0, None))[1] != mark:
        say(f"{part}: made with other settings or other files; starting again")
        os.remove(part)
    if not os.path.exists(part):
        append_jsonl(part, [mark])
    with bar(count_lines(command.questions), "questions", "labelling") as tick:
        score_file(command, questions, part, tick)
    for line in label_file(command, part, command.out) + (
        against_people(command.human, command.out) if command.human else []
    ):
        say(line)
    os.remove(part)


def main(argv):
    """The command line of the tool. Returns the exit status: 0, or 2 after a user's mistake."""
    return exit_status(lambda: run_command(argv))
