"""Reward training beside TRL's RewardTrainer: pairs a second and peak memory, the same model,
pairs, batch and type.

    python tests/bench/bench_reward.py --model MODEL --trl-python PYTHON [--dtype bfloat16]

PYTHON is an interpreter of an environment of its own with this project's requirements and
trl==1.12.0. Both sides train on the same pairs, 16 a step in micro-batches of 8 pairs; the first
step is left out of the time. Each side runs in a process of its own, one after the other.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time

import torch

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", ".."))
import reward
from data import facts
from lm import model as language_model
from lm import optim
from lm.chat import messages

STEPS, BATCH, PAIRS = 4, 16, 8


def records(count):
    """Preference pairs of the project's own questions: the answer before a refusal, every other one
    the other way round.
    """
    pairs = [
        (f"The answer is {q['answers'][0]}.", "I'm not sure, I don't know the answer to that.")
        for q in facts.questions("en", 0)[:count]
    ]
    return [
        {"prompt": messages(q["question"]), "ranking": list(pair if i % 2 else pair[::-1])}
        for i, (q, pair) in enumerate(zip(facts.questions("en", 0), pairs))
    ]


def ours(model, dtype):
    """Seconds of the steps after the first."""
    tokenizer = language_model.load(model).tokenizer
    scorer = reward.load(model, tokenizer, dtype, seed=0)
    config = reward.RewardConfig(batch=BATCH, micro_rows=2 * PAIRS)
    optimizer = optim.adamw([{"params": list(scorer.lm.model.parameters()), "lr": config.lr}])
    loop = reward.learn(
        scorer, [reward.tokenise(scorer.lm, r, 0.5) for r in records(STEPS * BATCH)], config, 0, optimizer
    )
    next(loop)
    started = time.perf_counter()
    list(loop)
    return time.perf_counter() - started


def theirs(model, dtype):
    """The same by TRL."""
    from datasets import Dataset
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, TrainerCallback
    from trl import RewardConfig, RewardTrainer

    ends = []

    class Clock(TrainerCallback):
        def on_step_end(self, *args, **options):
            ends.append(time.perf_counter())

    said = lambda text: [{"role": "assistant", "content": text}]
    data = Dataset.from_list(
        [
            {"prompt": r["prompt"], "chosen": said(r["ranking"][0]), "rejected": said(r["ranking"][1])}
            for r in records(STEPS * BATCH)
        ]
    )
    scorer = AutoModelForSequenceClassification.from_pretrained(model, num_labels=1, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(model)
    with tempfile.TemporaryDirectory() as folder:
        trainer = RewardTrainer(
            scorer,
            RewardConfig(
                output_dir=folder,
                per_device_train_batch_size=PAIRS,
                gradient_accumulation_steps=BATCH // PAIRS,
                num_train_epochs=1,
                use_cpu=True,
                bf16=dtype == torch.bfloat16,
                report_to="none",
                save_strategy="no",
                gradient_checkpointing=False,
                logging_steps=1000,
            ),
            train_dataset=data,
            processing_class=tokenizer,
            callbacks=[Clock()],
        )
        trainer.train()
    return ends[-1] - ends[0]


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--trl-python", required=True)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--side", choices=("ours", "trl"), help=argparse.SUPPRESS)
    command = parser.parse_args(argv)
    if command.side:
        seconds = {"ours": ours, "trl": theirs}[command.side](command.model, getattr(torch, command.dtype))
        print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)
        return
    found = {}
    for side, python in (("trl", command.trl_python), ("ours", sys.executable)):
        done = subprocess.run([python, __file__, *argv, "--side", side], stdout=subprocess.PIPE, check=True, text=True)
        found[side] = seconds, peak = [float(word) for word in done.stdout.split()[-2:]]
        print(f"{side:5} {(STEPS - 1) * BATCH / seconds:5.2f} pairs/s, peak {peak:.2f} GB", flush=True)
    print(
        f"ours / trl: {found['trl'][0] / found['ours'][0]:.2f} times the pairs/s at"
        f" {found['ours'][1] / found['trl'][1]:.2f} times the peak memory"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
