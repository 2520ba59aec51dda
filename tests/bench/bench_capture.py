"""probe.capture beside a Hugging Face forward pass with output_hidden_states=True: prompts a second
and peak memory.

    python tests/bench/bench_capture.py --model MODEL           256 questions, float32

Each side runs in a process of its own, so that the peaks are its own; both see the same prompts in
batches of as many.
"""

import argparse
import os
import resource
import subprocess
import sys
import time

import torch

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", ".."))
import probe
from data import facts
from lm import model as language_model
from lm.chat import chat_prompt


def measure(side, model, count, rows):
    """Print "prompts/s peak-GB" of one side."""
    lm = language_model.load(model)
    prompts = [chat_prompt(lm, q["question"]) for q in facts.questions("en", 0)[:count]]
    run = {"ours": lambda some: probe.capture(lm, some, rows), "hf": lambda some: hugging_face(lm, some, rows)}[side]
    run(prompts[:rows])
    started = time.perf_counter()
    run(prompts)
    print(count / (time.perf_counter() - started), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)


@torch.no_grad()
def hugging_face(lm, prompts, rows):
    """The last token's hidden states of every layer, as one writes it at first: batches in order,
    all states kept until read.
    """
    lm.tokenizer.padding_side, kept = "left", []
    for start in range(0, len(prompts), rows):
        batch = lm.tokenizer.pad({"input_ids": prompts[start : start + rows]}, return_tensors="pt")
        states = lm.model(**batch, output_hidden_states=True).hidden_states
        kept.append(torch.stack([s[:, -1] for s in states[1:]], 1))
    return torch.cat(kept)


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--questions", type=int, default=256)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--side", choices=("ours", "hf"), help=argparse.SUPPRESS)
    command = parser.parse_args(argv)
    if command.side:
        return measure(command.side, command.model, command.questions, command.rows)
    found = {}
    for side in ("hf", "ours", "hf", "ours"):
        done = subprocess.run(
            [sys.executable, __file__, *argv, "--side", side], stdout=subprocess.PIPE, check=True, text=True
        )
        rate, peak = map(float, done.stdout.split()[-2:])
        found.setdefault(side, []).append((rate, peak))
        print(f"{side:5} {rate:6.1f} prompts/s, peak {peak:.2f} GB", flush=True)
    best = {side: (max(r for r, _ in runs), min(p for _, p in runs)) for side, runs in found.items()}
    print(
        f"ours / hf: {best['ours'][0] / best['hf'][0]:.2f} times the prompts/s at {best['ours'][1] / best['hf'][1]:.2f}"
        " times the peak memory"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
