"""Asking a run's questions: k samples, greedy and uncertain answers, and what they are read as."""

from dataclasses import replace

import numpy as np

import dreamcatcher
from experiment.progress import in_blocks
from lm.chat import chat_prompt, decode, has_ended
from lm.forward import response_log_probs
from lm.sampling import generate
from reading import answers


def readings_of(questions, texts):
    """What one answer to each question says (answers.read)."""
    return [answers.read(text, q["answers"], q["question"]) for q, text in zip(questions, texts)]


def hits_of(questions, generations):
    """(questions, k) bool: which of the normal answers are right by alias match."""
    return np.array(
        [
            [answers.is_correct(answers.read(text, q["answers"], q["question"])) for text in g["normal"]]
            for q, g in zip(questions, generations)
        ]
    )


def greedy(lm, questions, sampling, instructions=None, progress=lambda n: None):
    """(prompts, greedy responses) as token ids; `instructions` {lang: text} stand before the
    questions, None: the plain prompt.
    """
    prompts = [chat_prompt(lm, q["question"], instructions and instructions[q["lang"]]) for q in questions]
    responses = generate(
        lm, prompts, replace(sampling, temperature=0.0), keys=[q["id"] for q in questions], progress=progress
    )
    return prompts, [r[0] for r in responses]


def greedy_texts(lm, questions, sampling, progress=lambda n: None):
    """Greedy answers as texts, plain prompt."""
    return [decode(lm, r) for r in greedy(lm, questions, sampling, progress=progress)[1]]


def greedy_records(lm, questions, sampling, rows, instructions=None):
    """Records {"id", "greedy", "greedy_log_prob"}: the greedy answer, and the mean log-probability
    of its tokens in nats. rows: sequences a forward pass.
    """
    prompts, responses = greedy(lm, questions, sampling, instructions)
    log_probs = response_log_probs(lm, prompts, responses, rows=rows)
    return [
        {"id": q["id"], "greedy": decode(lm, r), "greedy_log_prob": float(np.mean(p))}
        for q, r, p in zip(questions, responses, log_probs)
    ]


def answer_records(lm, questions, sampling, k, rows, seed):
    """Section 3.1: records of k sampled answers and the greedy one, plain prompt: those of
    greedy_records with "normal", k texts, and "normal_ended".
    """
    prompts, keys = [chat_prompt(lm, q["question"]) for q in questions], [q["id"] for q in questions]
    sampled = generate(lm, prompts, sampling, k, keys, seed)
    return [
        {
            "id": q["id"],
            "normal": [decode(lm, r) for r in responses],
            "normal_ended": [has_ended(lm, r) for r in responses],
            **record,
        }
        for q, responses, record in zip(questions, sampled, greedy_records(lm, questions, sampling, rows))
    ]


def sample_answers(run, lm, questions):
    """Section 3.1: `answer_records` of all questions; an interrupted call goes on."""
    s, k = run.settings, run.settings.probe.k
    ask = lambda block: answer_records(lm, block, s.sampling, k, s.probe.rows, s.seed)
    return in_blocks(run, "probe", questions, max(1, s.sampling.rows // k), f"answering, k = {k}", ask)


def uncertain_answers(run, lm, questions, texts):
    """Section 3.3: for each question the answers under an instruction to be uncertain.

    Without any (annotate.uncertain_k 0): what the model refuses of itself among `texts`, its normal
    answers.
    """
    config, seed = run.settings.annotate, run.settings.seed
    if not config.uncertain_k:
        refuses = lambda q, text: answers.read(text, q["answers"], q["question"]) == "refusal"
        return [[text for text in own if refuses(q, text)] for q, own in zip(questions, texts)]
    sampling = replace(run.settings.sampling, temperature=config.uncertain_temperature)

    def ask(block):
        prompts = [chat_prompt(lm, q["question"], dreamcatcher.uncertain_instruction(q, seed)) for q in block]
        sampled = generate(lm, prompts, sampling, config.uncertain_k, [f"uncertain {q['id']}" for q in block], seed)
        return [
            {"id": q["id"], "uncertain": [dreamcatcher.finish(decode(lm, r), has_ended(lm, r)) for r in responses]}
            for q, responses in zip(block, sampled)
        ]

    size = max(1, sampling.rows // config.uncertain_k)
    return [record["uncertain"] for record in in_blocks(run, "annotate", questions, size, "uncertain answers", ask)]
