"""lm.generate beside Hugging Face's generate(num_return_sequences=5): tokens a second, peak memory,
and the distribution.

    python tests/bench/bench_sample.py --model MODEL

Each side runs in a process of its own. Both get as many sequences at a time, the same type and
temperature, no top-k or top-p. Last, the log-probabilities with which our tokens were drawn are
compared with those of a plain forward pass.
"""

import argparse
import os
import random
import resource
import subprocess
import sys
import time

import torch

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", ".."))
from data import facts
from lm import model as language_model
from lm import sampling as sampling_module
from lm.batching import batches_by_length
from lm.chat import chat_prompt
from lm.sampling import Sampling, generate

SAMPLES = 5


def some_prompts(lm, count):
    questions = facts.questions("en", 0)
    random.Random(0).shuffle(questions)
    return [chat_prompt(lm, q["question"]) for q in questions[:count]]


def ours(lm, prompts, new, rows, temperature):
    sampling = Sampling(max_new_tokens=new, temperature=temperature, rows=rows)
    return [r for responses in generate(lm, prompts, sampling, SAMPLES) for r in responses]


@torch.no_grad()
def hugging_face(lm, prompts, new, rows, temperature):
    lm.tokenizer.padding_side, found = "left", []
    for start in range(0, len(prompts), rows // SAMPLES):
        batch = lm.tokenizer.pad({"input_ids": prompts[start : start + rows // SAMPLES]}, return_tensors="pt")
        with lm.autocast():
            out = lm.model.generate(
                **batch,
                do_sample=True,
                temperature=temperature,
                top_k=0,
                top_p=1.0,
                max_new_tokens=new,
                num_return_sequences=SAMPLES,
                pad_token_id=lm.tokenizer.pad_token_id,
            )
        for row in out[:, batch["input_ids"].shape[1] :].tolist():
            end = next((i + 1 for i, token in enumerate(row) if token in lm.end_ids), len(row))
            found.append(row[:end])
    return found


def measure(command):
    """Print "tokens/s peak-GB" of one side."""
    lm = language_model.load(command.model, dtype=getattr(torch, command.dtype))
    side = {"ours": ours, "hf": hugging_face}[command.side]
    prompts = some_prompts(lm, command.questions)
    side(lm, prompts[:8], 4, command.rows, command.temperature)
    torch.manual_seed(0)
    started = time.perf_counter()
    responses = side(lm, prompts, command.new, command.rows, command.temperature)
    print(
        sum(map(len, responses)) / (time.perf_counter() - started),
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    )


def largest_difference(lm, prompts, temperature):
    """Between the log-probabilities with which tokens were drawn and those of one plain forward
    pass a sequence, float32.
    """
    drawn, draw = [], sampling_module.draw

    def recording(logits, uniform, sampling):
        token = draw(logits, uniform, sampling)
        drawn.append((logits / sampling.temperature).log_softmax(-1).gather(1, token[:, None])[:, 0].tolist())
        return token

    sampling_module.draw = recording
    try:
        sampling = Sampling(max_new_tokens=24, temperature=temperature, rows=SAMPLES * len(prompts))
        responses = generate(lm, prompts, sampling, SAMPLES)
    finally:
        sampling_module.draw = draw
    rows = [
        (prompts[i], r, []) for i in batches_by_length([len(p) for p in prompts], len(prompts))[0] for r in responses[i]
    ]
    for step, values in enumerate(drawn):
        for (_, _, said), value in zip([row for row in rows if len(row[1]) > step], values):
            said.append(value)
    worst = 0.0
    for prompt, response, said in rows:
        with torch.no_grad():
            logits = lm.model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1] / temperature
        theirs = logits.log_softmax(-1).gather(1, torch.tensor(response)[:, None])[:, 0]
        worst = max(worst, (theirs - torch.tensor(said)).abs().max().item())
    return worst


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--questions", type=int, default=64)
    parser.add_argument("--rows", type=int, default=160)
    parser.add_argument("--temperature", type=float, default=0.6)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--new", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--side", choices=("ours", "hf"), help=argparse.SUPPRESS)
    command = parser.parse_args(argv)
    if command.side:
        return measure(command)
    for new in (24, 64):
        found = {}
        for side in ("hf", "ours"):
            done = subprocess.run(
                [sys.executable, __file__, *argv, "--side", side, "--new", str(new)],
                stdout=subprocess.PIPE,
                check=True,
                text=True,
            )
            found[side] = tuple(map(float, done.stdout.split()[-2:]))
            print(
                f"{new} new tokens, {side:5} {found[side][0]:7.1f} tokens/s, peak {found[side][1]:.2f} GB", flush=True
            )
        print(
            f"{new} new tokens: {found['ours'][0] / found['hf'][0]:.2f} times the tokens/s at"
            f" {found['ours'][1] / found['hf'][1]:.2f} times the peak memory"
        )
    lm = language_model.load(command.model)
    print(
        "log-probabilities of drawn tokens against a plain forward pass: largest difference"
        f" {largest_difference(lm, some_prompts(lm, 12), command.temperature):.1e}"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
