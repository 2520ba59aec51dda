"""What several stages read: the models of a run, its questions, and what is known before RLKF."""

import dreamcatcher
import embed
from data.files import read_jsonl
from evaluation import honesty
from evaluation.output import OutputReader
from experiment.progress import say
from lm import model as language_model
from lm.batching import check_lengths
from lm.chat import chat_prompt

SPLITS = ("train", "valid", "test")


def load_model(run, folder=None):
    """The language model that the run starts from (or that lies in `folder`), as lm.model.LM."""
    s = run.settings
    return language_model.load(folder or run.base_model, s.device, s.torch_dtype, say)


def load_reader(run):
    """Reader of the output of the model before RLKF if the reward model reads it, else None."""
    s = run.settings
    return OutputReader(load_model(run), s.sampling, s.probe.rows) if s.reward.reads == "output" else None


def load_embedder(run):
    """The sentence embedder: a folder or hub name, or the base model's own states."""
    s = run.settings
    return embed.load(run.base_model if s.embedder == "base" else s.embedder, s.device)


def load_questions(run):
    """{"train": records, "valid": ..., "test": ...}."""
    return {split: read_jsonl(run.path("data", f"{split}.jsonl")) for split in SPLITS}


def load_known(run):
    """{question id: record of probe/known.jsonl} of all splits: P(known), right samples, whether
    greedy is right.
    """
    return {k["id"]: k for k in read_jsonl(run.path("probe", "known.jsonl"))}


def load_generations(run):
    """{question id: record of probe/generations.jsonl} of all splits: k samples and the greedy
    answer of the model before RLKF.
    """
    return {g["id"]: g for g in read_jsonl(run.path("probe", "generations.jsonl"))}


def check_fit(lm, sets, max_new_tokens, seed):
    """Raise UserError where a question of `sets` {name: questions}, with the longest instruction
    that will stand before it, does not fit into the model's positions.
    """
    for name, questions in sets.items():
        for q in questions:
            asked = [texts[q["lang"]] for texts in honesty.PROMPTS.values() if texts]
            longest = max(dreamcatcher.uncertain_instruction(q, seed), *asked, key=len)
            check_lengths(lm, [chat_prompt(lm, q["question"], longest)], max_new_tokens, [f"{q['id']} of {name}"])


def states_of(questions, known, settings):
    """Known, unknown or mixed: what the model before RLKF knows of the questions
    (honesty.state_of). known: records like those of load_known.
    """
    k = settings.probe.k
    return [
        honesty.state_of(q, record["hits"] / k, record["greedy_right"], settings.evaluate)
        for q, record in zip(questions, known)
    ]
