"""What several stages need: the models of a run, its questions, the answers to them, and what is known before RLKF."""
from dataclasses import replace

import numpy as np
import torch

import dreamcatcher
import embed
from data.files import read_jsonl
from evaluation import honesty
from experiment.runs import say
from lm import model as language_model
from lm.batching import check_lengths
from lm.chat import chat_prompt, decode, has_ended
from lm.forward import response_log_probs
from lm.sampling import generate
from reading import answers

SPLITS = ("train", "valid", "test")


def load_model(run, folder=None):
    """The language model that the run starts from (or that lies in `folder`), as lm.LM."""
    s = run.settings
    return language_model.load(folder or run.base_model, s.device, getattr(torch, s.dtype), say)


def load_embedder(run):
    """The sentence embedder: a folder or hub name, or the base model's own states."""
    s = run.settings
    return embed.load(run.base_model if s.embedder == "base" else s.embedder, s.device)


def load_questions(run):
    """{"train": records, "valid": ..., "test": ...}."""
    return {split: read_jsonl(run.path("data", f"{split}.jsonl")) for split in SPLITS}


def load_known(run):
    """{question id: record of probe/known.jsonl} of all splits: P(known), right samples, whether greedy is right."""
    return {k["id"]: k for k in read_jsonl(run.path("probe", "known.jsonl"))}


def load_generations(run):
    """{question id: record of probe/generations.jsonl} of all splits: k samples and the greedy answer of the model before RLKF."""
    return {g["id"]: g for g in read_jsonl(run.path("probe", "generations.jsonl"))}


def check_fit(run, lm, where, questions):
    """Raise UserError where a question, with the longest instruction that will stand before it, does not fit into the model's positions."""
    for q in questions:
        instructions = [dreamcatcher.uncertain_instruction(q, run.settings.seed), *(texts[q["lang"]] for texts in honesty.PROMPTS.values() if texts)]
        check_lengths(lm, [chat_prompt(lm, q["question"], max(instructions, key=len))], run.settings.sampling.max_new_tokens,
                                     [f"{q['id']} of {where}"])


def states_of(run, questions, known):
    """Known, unknown or mixed: what the model before RLKF knows of the questions (honesty.state_of). known: records like those of load_known."""
    k = run.settings.probe.k
    return [honesty.state_of(q, record["hits"] / k, record["greedy_right"], run.settings.evaluate) for q, record in zip(questions, known)]


def readings_of(questions, texts):
    """What one answer to each question says (answers.read)."""
    return [answers.read(text, q["answers"], q["question"]) for q, text in zip(questions, texts)]


def hits_of(questions, generations):
    """(questions, k) bool: which of the normal answers are right by alias match."""
    return np.array([[answers.is_correct(answers.read(text, q["answers"], q["question"])) for text in g["normal"]] for q, g in zip(questions, generations)])


def greedy(lm, questions, sampling, instructions=None, progress=lambda n: None):
    """(prompts, greedy responses) as token ids; `instructions` {lang: text} stand before the questions, None: the plain prompt."""
    prompts = [chat_prompt(lm, q["question"], instructions and instructions[q["lang"]]) for q in questions]
    responses = generate(lm, prompts, replace(sampling, temperature=0.0), keys=[q["id"] for q in questions], progress=progress)
    return prompts, [r[0] for r in responses]


def greedy_texts(lm, questions, sampling, progress=lambda n: None):
    """Greedy answers as texts, plain prompt."""
    return [decode(lm, r) for r in greedy(lm, questions, sampling, progress=progress)[1]]


def greedy_records(run, lm, questions, instructions=None):
    """Records {"id", "greedy", "greedy_log_prob"}: the greedy answer, and the mean log-probability of its tokens in nats."""
    prompts, responses = greedy(lm, questions, run.settings.sampling, instructions)
    log_probs = response_log_probs(lm, prompts, responses, rows=run.settings.probe.rows)
    return [{"id": q["id"], "greedy": decode(lm, r), "greedy_log_prob": float(np.mean(p))} for q, r, p in zip(questions, responses, log_probs)]


def answer_records(run, lm, questions):
    """Section 3.1: records of k sampled answers and the greedy one, plain prompt: those of greedy_records with "normal", k texts, and "normal_ended"."""
    s = run.settings
    prompts, keys = [chat_prompt(lm, q["question"]) for q in questions], [q["id"] for q in questions]
    sampled = generate(lm, prompts, s.sampling, s.probe.k, keys, s.seed)
    return [{"id": q["id"], "normal": [decode(lm, r) for r in responses], "normal_ended": [has_ended(lm, r) for r in responses], **record}
            for q, responses, record in zip(questions, sampled, greedy_records(run, lm, questions))]
