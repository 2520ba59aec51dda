"""What several stages read: the models of a run, its questions, and what is known of them before RLKF."""
import torch

import embed
import evaluate
import lm as language_model
from files import read_jsonl
from runs import say

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


def states_of(run, questions):
    """Known, unknown or mixed: what the model before RLKF knows of validation and test questions (evaluate.state_of)."""
    known, k = load_known(run), run.settings.probe.k
    return [evaluate.state_of(q, known[q["id"]]["hits"] / k, known[q["id"]]["greedy_right"], run.settings.evaluate) for q in questions]
