"""Rows of token ids side by side: padding, positions, and the beginning that several prompts share.

To be answered, prompts are padded on the left, and masks come from lengths: a pad token may well be
the end token. What all prompts begin with (a chat template's system message) is read once.
"""

import copy
import inspect

import torch
from torch.nn import functional as F
from transformers import DynamicCache

from lm.errors import UserError


def batches_by_length(lengths, size):
    """Lists of indices, at most `size` each, neighbours in length together (shortest first)."""
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    return [order[i : i + size] for i in range(0, len(order), size)]


def pad_left(prompts, device):
    """(ids, mask), both (batch, width), long. Padding is id 0 and masked: any valid id would do."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts], device=device)
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=device)
    return ids, mask


def positions(mask):
    """Position ids (batch, time) that count the unmasked tokens, for models with absolute
    positions.
    """
    return (mask.cumsum(-1) - 1).clamp(min=0)


def cache_argument(model):
    """The name of the forward argument that takes the key-value cache (renamed in transformers
    5).
    """
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def most_positions(lm):
    """How many tokens the model can read in a row; infinity where it names no limit."""
    return getattr(lm.model.config.get_text_config(), "max_position_embeddings", None) or float("inf")


def check_lengths(lm, prompts, room=0, keys=None):
    """Raise UserError where a prompt and `room` new tokens are more than the model's positions; it
    names the prompt's key or number.
    """
    limit = most_positions(lm)
    for key, prompt in zip(range(1, len(prompts) + 1) if keys is None else keys, prompts):
        if len(prompt) + room > limit:
            raise UserError(
                f"question {key}: its prompt of {len(prompt)} tokens and {room} new ones are more than the {limit} that"
                " the model takes"
            )


def common_length(rows):
    """How many token ids all `rows` begin with."""
    first, last = min(rows), max(rows)  # in the order of lists
    return next((i for i, (a, b) in enumerate(zip(first, last)) if a != b), len(first))


def reaches(lm, tokens):
    """Whether a token sees `tokens` before it: a sliding window may not, and padding within a row
    takes up places in it.
    """
    window = getattr(lm.model.config.get_text_config(), "sliding_window", None)
    return not window or tokens <= window


@torch.no_grad()
def read_prefix(lm, prompts, room=0):
    """What all prompts begin with (a chat template's system message), read once: (number of tokens,
    key-value cache).

    At least one token of each prompt is left over. (0, None) where nothing is shared, or where a
    sliding window would not reach over a prompt and `room` tokens more.
    """
    length = min(common_length(prompts), min(map(len, prompts)) - 1)
    if len(prompts) < 2 or length < 1 or not reaches(lm, max(map(len, prompts)) + room):
        return 0, None
    cache = DynamicCache(config=lm.model.config)
    trunk = lm.model.base_model
    with lm.autocast():
        trunk(
            input_ids=torch.tensor([prompts[0][:length]], device=lm.device),
            **{cache_argument(trunk): cache, "use_cache": True},
        )
    return length, cache


def behind_prefix(lm, prompts, prefix):
    """Forward arguments for `prompts`, the `prefix` of read_prefix already in the cache: ids
    without it, mask and cache with it.
    """
    length, read = prefix
    ids, mask = pad_left([p[length:] for p in prompts], lm.device)
    mask = F.pad(mask, (length, 0), value=1)
    cache = copy.deepcopy(read) if length else DynamicCache(config=lm.model.config)
    if length:
        cache.batch_repeat_interleave(len(prompts))
    return {"input_ids": ids, "attention_mask": mask, "position_ids": positions(mask)[:, length:]}, cache
