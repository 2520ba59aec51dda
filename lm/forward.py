"""One forward pass over prompts with their responses, and the log-probabilities that training and
measuring read from it.

The reward model, PPO, its rivals, the warm-up and the confidence measures all go through here. What
several rows begin with is read once, with gradients: the system message of all prompts, and a
ranking's prompt for its responses. Logits exist only where a response token is predicted, never for
the prompt or for padding. Rows are padded on the right; masks come from lengths, since a pad token
may well be the end token.

Left out: packing several rows into one, chunks of the vocabulary.
"""

from dataclasses import dataclass

import torch
from torch.nn import functional as F
from transformers import DynamicCache

from lm.batching import batches_by_length, cache_argument, common_length, positions, reaches


@dataclass
class Batch:
    """Prompts with their responses for one forward pass, padded within and on the right; `time` is
    all of their columns.

    `shared` lists what several rows begin with, each time (stop, rows, readers): the columns up to
    `stop` of these `rows` are read next, and then handed on, row readers[i] of them to the i-th row
    that goes on.
    """

    input_ids: torch.Tensor  # (batch, time)
    attention_mask: torch.Tensor  # (batch, time), 1 where there is a token
    response: torch.Tensor  # (batch, response width) ids, padded right
    response_mask: torch.Tensor  # (batch, response width) bool
    before: torch.Tensor  # (batch,) column of the last prompt token, counted from the end: -1 is the last column
    shared: list  # of (stop, rows, readers)


def collate(lm, prompts, responses):
    """Batch of equally many prompts and responses (lists of token ids, none empty).

    Where all prompts begin alike, that is read as one row. Where prompts come up twice on the mean
    (rankings), each is read once, but for its last token, whose state predicts the first one of
    every response.

    Prompts [1 2 3 4] and [1 2 5 6], each with one response r: [1 2] is read once, and the rows keep
    [3 4 r ...] and [5 6 r ...]. With two responses each: [1 2] is read once, then [3] and [5] once
    each, and the four rows keep [4 r ...] or [6 r ...]. Until then every row has columns for all it
    is going to see: attention spans them.
    """
    reach = reaches(lm, max(map(len, prompts)) + max(map(len, responses)))
    length = min(common_length(prompts), min(map(len, prompts)) - 1) if reach and len(prompts) > 1 else 0
    names = [tuple(p) for p in prompts]
    different = list(dict.fromkeys(names))
    once = reach and 2 * len(different) <= len(prompts) and max(map(len, prompts)) > length + 1
    read = [len(p) - 1 if once else length for p in prompts]  # tokens before a row's own
    own = [(p + r)[n:] for p, r, n in zip(prompts, responses, read)]
    stop, width = max(read), max(map(len, own))
    lines = [(p[:length], stop - n, p[length:n] + o, width - len(o)) for p, n, o in zip(prompts, read, own)]
    ids = [a + [0] * gap + b + [0] * rest for a, gap, b, rest in lines]
    mask = [[1] * len(a) + [0] * gap + [1] * len(b) + [0] * rest for a, gap, b, rest in lines]
    shared = [(length, [0], [0] * len(different if once else prompts))] if length else []
    if once:
        shared.append((stop, [names.index(d) for d in different], [different.index(n) for n in names]))
    wide = max(map(len, responses))
    tensors = [
        torch.tensor(table, device=lm.device)
        for table in (
            ids,
            mask,
            [r + [0] * (wide - len(r)) for r in responses],
            [[True] * len(r) + [False] * (wide - len(r)) for r in responses],
            [len(o) - len(r) - 1 - width for o, r in zip(own, responses)],
        )
    ]
    return Batch(
        *tensors,
        [(stop, *(torch.tensor(x, device=lm.device) for x in (rows, readers))) for stop, rows, readers in shared],
    )


def forward_arguments(model, batch):
    """Arguments of the forward pass of `model` over what is each row's own; what rows share is read
    here, with gradients.

    All tokens are embedded at once: the gradient of each look-up is as large as the vocabulary.
    """
    place, embedded, begun = positions(batch.attention_mask), model.get_input_embeddings()(batch.input_ids), 0
    cache = DynamicCache(config=model.config) if batch.shared else None
    for stop, rows, readers in batch.shared:
        model.base_model(
            inputs_embeds=embedded[rows, begun:stop],
            attention_mask=batch.attention_mask[rows, :stop],
            position_ids=place[rows, begun:stop],
            **{cache_argument(model.base_model): cache, "use_cache": True},
        )
        cache.batch_select_indices(readers)
        begun = stop
    return {
        "inputs_embeds": embedded[:, begun:],
        "attention_mask": batch.attention_mask,
        "position_ids": place[:, begun:],
        cache_argument(model): cache,
        "use_cache": cache is not None,
    }


def response_positions(batch):
    """Index (rows, columns), columns from the end, of each response token's predecessor, whose
    state predicts it.
    """
    row, column = batch.response_mask.nonzero(as_tuple=True)
    return row, batch.before[row] + column


def response_logits(lm, batch, temperature=1.0):
    """Logits that predict the response tokens, and the hidden states that they are read from.

    Returns (tokens, vocabulary) float32, divided by the temperature, and (tokens, width), tokens in
    row-major order of `batch.response_mask`.
    """
    with lm.autocast():
        logits, hidden = logits_at(lm, forward_arguments(lm.model, batch), *response_positions(batch))
    return logits.div_(temperature), hidden


def logits_at(lm, inputs, row, column):
    """Logits (tokens, vocabulary) and hidden states (tokens, width), float32, at the positions
    (row, column) of one forward.

    A hook cuts the input of the language-model head down to those positions, so that no logits of
    the prompt or of padding are ever computed. `inputs` are the forward's arguments; the caller
    chooses autocast.
    """
    seen = {}

    def keep(head, args):
        seen["hidden"] = args[0][row, column]
        return (seen["hidden"],)

    hook = lm.model.get_output_embeddings().register_forward_pre_hook(keep)
    try:
        logits = lm.model(**inputs).logits
    finally:
        hook.remove()
    return logits.float(), seen["hidden"].float()


def log_probs(logits, ids):
    """Log-probability (tokens,) of `ids` under `logits` (tokens, vocabulary), float32."""
    return -F.cross_entropy(logits, ids, reduction="none")


def entropy(logits):
    """Entropy (tokens,) in nats of the distributions given by `logits` (tokens, vocabulary)."""
    log_p = logits.log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1)


def padded(values, mask):
    """Put flat `values` (tokens,) back into the shape of `mask` (batch, time), zero elsewhere."""
    return torch.zeros(mask.shape, dtype=values.dtype, device=values.device).masked_scatter(mask, values)


@torch.no_grad()
def response_log_probs(lm, prompts, responses, temperature=1.0, rows=32):
    """For each pair the list of its response tokens' log-probabilities (float)."""
    result = [None] * len(prompts)
    for index in batches_by_length([len(p) + len(r) for p, r in zip(prompts, responses)], rows):
        batch = collate(lm, [prompts[i] for i in index], [responses[i] for i in index])
        logits, _ = response_logits(lm, batch, temperature)
        flat = iter(log_probs(logits, batch.response[batch.response_mask]).tolist())
        for i in index:
            result[i] = [next(flat) for _ in responses[i]]
    return result
