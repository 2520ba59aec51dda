"""Sampling: k responses to each prompt, the same for the probe's answers and for PPO's rollouts.

Each prompt is read once and its cache shared by its samples; the random numbers of a prompt depend
on the run's seed and the prompt's key alone. Left out: beam search, repetition penalties.
"""

import hashlib
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from lm.batching import batches_by_length, behind_prefix, cache_argument, check_lengths, positions, read_prefix

BLOCK = 256  # tokens of the vocabulary that `draw` sums at once


@dataclass
class Sampling:
    max_new_tokens: int = 24  # a response longer than this is cut (paper: not given)
    temperature: float = 1.0  # divides the logits; 0 is greedy (paper: not given; the authors' release: 0.8)
    top_p: float = 1.0  # smallest set of tokens with this probability; 1 keeps all
    top_k: int = 0  # most probable tokens kept; 0 keeps all (the authors' release: 80)
    rows: int = 160  # sequences decoded side by side


def generator_for(seed, key):
    """A CPU generator that depends on the run's seed and on `key` (a question's id) alone."""
    digest = hashlib.sha256(f"{seed}\0{key}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def keep_likely(logits, top_p, top_k):
    """`logits` (rows, vocabulary) with all but the `top_k` most probable, or the smallest set of
    mass `top_p`, at -inf.
    """
    if top_k:
        kth = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]  # (rows, 1)
        logits = logits.masked_fill(logits < kth, float("-inf"))
    if top_p < 1:
        ordered, index = logits.sort(descending=True)  # (rows, vocabulary)
        mass_before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
        logits = logits.scatter(-1, index, ordered.masked_fill(mass_before >= top_p, float("-inf")))
    return logits


def draw(logits, uniform, sampling):
    """One token a row. logits (rows, vocabulary) float32, uniform (rows,) in [0, 1). Returns
    (rows,) ids.

    Inverts the cumulative distribution in two levels, blocks of the vocabulary and then one block:
    the distribution of torch.multinomial at a fraction of its time, and one uniform number decides,
    so a row's result is its own.
    """
    if not torch.isfinite(logits.amax(-1)).all():
        raise FloatingPointError("the model returned logits that are not finite")
    if sampling.temperature == 0:
        return logits.argmax(-1)
    probability = keep_likely(logits / sampling.temperature, sampling.top_p, sampling.top_k).softmax(-1)
    blocks = F.pad(probability, (0, -probability.shape[-1] % BLOCK)).unflatten(-1, (-1, BLOCK))  # (rows, blocks, BLOCK)
    upto = blocks.sum(-1).double().cumsum(-1)  # (rows, blocks)
    target = uniform.to(upto)[:, None] * upto[:, -1:] * (1 - 1e-12)
    block = (upto <= target).sum(-1)  # (rows,)
    rows = torch.arange(len(block), device=block.device)
    inside = blocks[rows, block].double().cumsum(-1)  # (rows, BLOCK)
    mass = upto[rows, block] - F.pad(upto, (1, 0))[rows, block]
    share = (target[:, 0] - F.pad(upto, (1, 0))[rows, block]) / mass
    within = (inside <= share.clamp(0, 1 - 1e-9)[:, None] * inside[:, -1:]).sum(-1)
    return block * BLOCK + within


@torch.no_grad()
def generate(lm, prompts, sampling, samples=1, keys=None, seed=0, progress=lambda n: None):
    """`samples` responses to each prompt: a list (prompts) of lists (samples) of token ids.

    Each prompt is read once and its cache shared by its samples, and so is what all prompts begin
    with; rows that have ended leave the batch. The random numbers of a prompt come from (`seed`,
    its key) alone, so its result does not depend on the others in the batch but for rounding.
    `progress(n)` is called as n more prompts are done. Nothing is taken from the model's own
    generation config but the end tokens. Raises FloatingPointError on logits that are not finite.
    """
    keys = range(len(prompts)) if keys is None else keys
    check_lengths(lm, prompts, sampling.max_new_tokens, keys)
    responses, prefix = [None] * len(prompts), read_prefix(lm, prompts, sampling.max_new_tokens) if prompts else None
    for batch in batches_by_length([len(p) for p in prompts], max(1, sampling.rows // samples)):
        uniform = (
            torch.stack(
                [
                    torch.rand(
                        samples, sampling.max_new_tokens, generator=generator_for(seed, keys[i]), dtype=torch.float64
                    )
                    for i in batch
                ]
            )
            .flatten(0, 1)
            .to(lm.device)
        )  # (rows, max_new_tokens)
        with lm.autocast():
            rows = decode_batch(lm, [prompts[i] for i in batch], prefix, uniform, sampling, samples)
        for n, i in enumerate(batch):
            responses[i] = rows[n * samples : (n + 1) * samples]
        progress(len(batch))
    return responses


def decode_batch(lm, prompts, prefix, uniform, sampling, samples):
    """Responses (a list of id lists, prompts x samples in order) to prompts of similar length."""
    inputs, cache = behind_prefix(lm, prompts, prefix)
    to_cache = {cache_argument(lm.model): cache, "use_cache": True, "logits_to_keep": 1}
    logits = lm.model(**inputs, **to_cache).logits[:, -1]
    cache.batch_repeat_interleave(samples)
    logits = logits.float().repeat_interleave(samples, 0)  # (rows, vocabulary)
    mask = inputs["attention_mask"].repeat_interleave(samples, 0)  # (rows, time)
    responses = [[] for _ in range(len(mask))]
    alive = torch.arange(len(mask), device=lm.device)
    end_ids = torch.tensor(sorted(lm.end_ids), device=lm.device)
    for step in range(sampling.max_new_tokens):
        token = draw(logits, uniform[alive, step], sampling)  # (alive,)
        for row, drawn in zip(alive.tolist(), token.tolist()):
            responses[row].append(drawn)
        going = ~torch.isin(token, end_ids)
        if step + 1 == sampling.max_new_tokens or not going.any():
            break
        if not going.all():
            alive, token, mask = alive[going], token[going], mask[going]
            cache.batch_select_indices(going.nonzero()[:, 0])
        mask = F.pad(mask, (0, 1), value=1)
        logits = (
            lm.model(input_ids=token[:, None], attention_mask=mask, position_ids=positions(mask)[:, -1:], **to_cache)
            .logits[:, -1]
            .float()
        )
    return responses
