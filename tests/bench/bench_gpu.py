"""Sampling and PPO steps on a random-weight model of Qwen2.5-1.5B's shape: tokens/s, samples/s,
peak memory, share of the matrix rate.

    python tests/bench/bench_gpu.py --device cuda        1.5B, bfloat16
    python tests/bench/bench_gpu.py --device cpu          the same shape, far smaller

The share is the arithmetic of the matrix products (2 a weight and token forwards, 6 with the
backward pass; attention left out) over the time, beside what one large matrix product reaches on
the same device in the same type.
"""

import argparse
import os
import resource
import sys
import time

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", ".."))
import ppo
from lm import model as language_model
from lm.sampling import Sampling, generate

SIZES = {  # (hidden, mlp, layers, heads, key-value heads, vocabulary), prompts, new tokens, prompt tokens, matrix side
    "cuda": ((1536, 8960, 28, 12, 2, 151_936), 128, 48, 64, 8192),
    "cpu": ((64, 128, 2, 4, 2, 512), 8, 8, 16, 512),
}


def random_lm(shape, device):
    """lm.LM of the given shape with random weights; its words are w0, w1, ..."""
    hidden, mlp, layers, heads, kv_heads, vocabulary = shape
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(vocabulary)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", eos_token="w1", pad_token="w2")
    torch.manual_seed(0)
    with torch.device(device):
        model = Qwen2ForCausalLM(
            Qwen2Config(
                vocab_size=vocabulary,
                hidden_size=hidden,
                intermediate_size=mlp,
                num_hidden_layers=layers,
                num_attention_heads=heads,
                num_key_value_heads=kv_heads,
                tie_word_embeddings=True,
                bos_token_id=None,
                eos_token_id=1,
                pad_token_id=2,
            )
        )
    return language_model.wrap(model, tokenizer, torch.bfloat16)


def clock(device, work):
    """(seconds, result) of `work()`, the device's queue emptied before and after."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    started = time.perf_counter()
    result = work()
    wait()
    return time.perf_counter() - started, result


def matrix_rate(device, side):
    """FLOP/s of a bfloat16 product of two square matrices."""
    a, b = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    clock(device, lambda: a @ b)
    seconds, _ = clock(device, lambda: [a @ b for _ in range(10)])
    return 10 * 2 * side**3 / seconds


def peak(device):
    """Peak memory in GB."""
    return (
        torch.cuda.max_memory_allocated() / 1e9
        if device == "cuda"
        else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    )


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=SIZES, default="cuda" if torch.cuda.is_available() else "cpu")
    device = parser.parse_args(argv).device
    shape, prompts, new_tokens, prompt_tokens, side = SIZES[device]
    rate, policy = matrix_rate(device, side), random_lm(shape, device)
    weights = sum(p.numel() for p in policy.model.parameters())  # the tied embedding counts once: its use is the head
    config = ppo.PPOConfig(batch=prompts, epochs=2, micro_rows=32, guidance_share=0.0)
    sampling = Sampling(max_new_tokens=new_tokens, rows=prompts)
    tasks = [
        {
            "id": f"q{i}",
            "prompt": [3 + (7 * i + n) % 500 for n in range(prompt_tokens)],
            "preferred": [5, 1],
            "state": "known",
            "answers": ["none"],
            "question": "",
            "p_known": 0.5,
        }
        for i in range(prompts)
    ]
    score = lambda tasks, responses: torch.tensor([len(set(r)) / len(r) for r in responses])
    head = ppo.new_value_head(policy)
    optimizer = ppo.new_optimizer(policy, head, config)
    print(
        f"{weights / 1e6:.0f}M weights, {prompts} prompts of {prompt_tokens} tokens, {new_tokens} new; one large"
        f" product: {rate / 1e12:.2f} TFLOP/s"
    )
    for turn in ("warming up", "measured"):
        sampled, responses = clock(device, lambda: generate(policy, [t["prompt"] for t in tasks], sampling, seed=turn))
        rolled_in, (rolled, _) = clock(
            device, lambda: ppo.rollout(policy, head, score, None, tasks, config, sampling, turn, 0, 0.0)
        )
        improved, figures = clock(device, lambda: ppo.improve(policy, head, optimizer, rolled, config, 1.0))
    new = sum(len(r[0]) for r in responses)
    read = sum(map(len, rolled.continuation)) + prompts * prompt_tokens
    for name, seconds, flops, figure in (
        ("sampling", sampled, 2 * weights * (new + prompts * prompt_tokens), f"{new / sampled:.0f} tokens/s"),
        (
            "rollout (sampling and old log-probabilities)",
            rolled_in,
            4 * weights * read,
            f"{prompts / rolled_in:.1f} samples/s",
        ),
        ("update", improved, 6 * weights * read * figures["passes"], f"{prompts / improved:.1f} samples/s"),
        (
            "whole step",
            rolled_in + improved,
            (4 + 6 * figures["passes"]) * weights * read,
            f"{prompts / (rolled_in + improved):.1f} samples/s",
        ),
    ):
        print(f"{name:46} {seconds:7.2f} s  {figure:>18}  {flops / seconds / rate:6.1%} of the large product's rate")
    print(
        f"peak memory {peak(device):.1f} GB; first ratio off 1 by {figures['first_ratio_off']:.1e}; updates skipped"
        f" {figures['skipped']}"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
