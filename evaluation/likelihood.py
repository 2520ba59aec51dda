"""Log-likelihood of the options of multiple-choice questions, each question read once.

An option counts as its tokens' summed log-probability behind the question, without a chat template,
as lm-evaluation-harness computes it: context and continuation are encoded together and cut where
the context alone ends, spaces at the end of the context belong to the continuation, and what does
not fit is cut on the left (of all options of a question alike, so that they still share a context;
the harness cuts each as far as it needs). What all questions begin with is read once, what the
options of one question share once more, and the options follow as a batch behind that cache. Left
out: continuations without any context, encoder-decoder models.
"""

import copy

import torch

from lm.batching import behind_prefix, cache_argument, common_length, most_positions, positions, read_prefix
from lm.errors import UserError
from lm.forward import log_probs, logits_at

SLOTS = 12288  # keys and values of that many tokens lie in one batch's cache
ENOUGH = {"cpu": 512, "cuda": 8192}  # tokens of a batch that keep the processor busy


def encode_pair(lm, context, continuation):
    """Token ids (context, continuation) of two texts, the first not empty; the tokenizer's own
    first token, if any, included.

    Raises UserError where the continuation leaves no token of its own.
    """
    bare = context.rstrip()
    text = context + continuation
    ids = lm.tokenizer(bare).input_ids
    behind = lm.tokenizer(text).input_ids[len(ids) :]
    if not behind:
        raise UserError(f"{continuation[:40]!r}: the tokenizer gives it no token behind {bare[-40:]!r}")
    return ids, behind


def cut_left(lm, context, longest):
    """The end of `context` that fits before `longest` tokens more; the last token predicted need
    not be read.

    Raises UserError where not even one token of it fits.
    """
    limit = most_positions(lm)
    if len(context) + longest - 1 <= limit:
        return context
    if longest > limit:
        raise UserError(f"an option of {longest} tokens is longer than the {limit} that the model takes")
    return context[longest - limit - 1 :]


def shared(pairs):
    """[(beginning, [(rest, scored), ...]), ...] of one question's (context, continuation) ids, its
    rows in order.

    The beginning is what all contexts share; the last `scored` tokens of the rest are the
    continuation. Contexts that share nothing (an option stands first in the sentence) make a
    beginning each.
    """
    contexts = [context for context, _ in pairs]
    length = common_length(contexts)
    if not length:
        return [(context, [(continuation, len(continuation))]) for context, continuation in pairs]
    return [
        (
            contexts[0][:length],
            [(context[length:] + continuation, len(continuation)) for context, continuation in pairs],
        )
    ]


@torch.no_grad()
def log_likelihoods(lm, questions):
    """For each question, a list of (context, continuation) id lists, the list of its continuations'
    log-likelihoods in nats.

    Raises FloatingPointError where one is not finite.
    """
    fitting = []
    for pairs in questions:
        longest = max(len(continuation) for _, continuation in pairs)
        fitting.append([(cut_left(lm, context, longest), continuation) for context, continuation in pairs])
    read = [unit for pairs in fitting for unit in shared(pairs)]
    beginnings = [beginning for beginning, _ in read]
    room = max((len(rest) for _, rests in read for rest, _ in rests), default=0)
    prefix = read_prefix(lm, beginnings, room) if read else None
    found = [None] * len(read)
    lengths = [len(beginning) for beginning in beginnings]
    for batch in groups([length - prefix[0] for length in lengths], lengths, ENOUGH[lm.device.type]) if read else ():
        with lm.autocast():
            values = score(lm, [read[i] for i in batch], prefix)
        for i, row in zip(batch, values):
            found[i] = row
    flat = iter([value for row in found for value in row])
    result = [[next(flat) for _ in pairs] for pairs in questions]
    if not all(abs(value) < float("inf") for row in result for value in row):
        raise FloatingPointError("the model returned log-likelihoods that are not finite")
    return result


def groups(lengths, slots, enough):
    """Lists of indices, neighbours in length together (shortest first), that are read as one padded
    batch each.

    slots: how much cache an index takes at most, in tokens; together at most SLOTS, but one index
    at least. A group of `enough` tokens, which keep the processor busy, takes in nothing that is
    more than a tenth longer than its shortest.
    """
    found, taken = [], 0
    for i in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        full = found and (
            taken + slots[i] > SLOTS
            or lengths[i] > 1.1 * lengths[found[-1][0]]
            and sum(lengths[j] for j in found[-1]) >= enough
        )
        if full or not found:
            found.append([])
            taken = 0
        found[-1].append(i)
        taken += slots[i]
    return found


def score(lm, read, prefix):
    """Log-likelihoods, a list for each of `read` (beginning, [(rest, scored), ...]), with `prefix`
    of read_prefix in the cache.

    The beginnings' last position predicts every rest's first token, so rests of one token need no
    second pass.
    """
    inputs, cache = behind_prefix(lm, [beginning for beginning, _ in read], prefix)
    to_cache = {cache_argument(lm.model): cache, "use_cache": True}
    last = lm.model(**inputs, **to_cache, logits_to_keep=1).logits[:, -1].float()  # (beginnings, vocabulary)
    rests = [(n, rest, scored) for n, (_, rows) in enumerate(read) for rest, scored in rows]
    owner = torch.tensor([n for n, _, _ in rests], device=lm.device)
    first = last.log_softmax(-1)[owner, torch.tensor([rest[0] for _, rest, _ in rests], device=lm.device)]
    values = [value if len(rest) == scored else 0.0 for value, (_, rest, scored) in zip(first.tolist(), rests)]
    longer = [(r, n, rest, scored) for r, (n, rest, scored) in enumerate(rests) if len(rest) > 1]
    slots = [inputs["attention_mask"].shape[1] + len(rest) for _, _, rest, _ in longer]
    for index in groups([len(rest) - 1 for _, _, rest, _ in longer], slots, ENOUGH[lm.device.type]):
        chunk = [longer[i] for i in index]
        for r, value in score_behind(lm, chunk, inputs["attention_mask"], copy.deepcopy(cache)):
            values[r] += value
    flat = iter(values)
    return [[next(flat) for _ in rows] for _, rows in read]


def score_behind(lm, chunk, mask, cache):
    """[(r, log-probability), ...] of the scored tokens but the first of (r, row of the cache, rest,
    scored) in `chunk`.
    """
    rows = torch.tensor([n for _, n, _, _ in chunk], device=lm.device)
    cache.batch_select_indices(rows)
    rests = [rest[:-1] for _, _, rest, _ in chunk]  # the last token predicts nothing
    width = max(map(len, rests))
    ids = torch.tensor([rest + [0] * (width - len(rest)) for rest in rests], device=lm.device)
    real = torch.tensor([[1] * len(rest) + [0] * (width - len(rest)) for rest in rests], device=lm.device)
    mask = torch.cat([mask[rows], real], 1)
    where = [
        (i, j)
        for i, (_, _, rest, scored) in enumerate(chunk)
        for j in range(max(0, len(rest) - scored - 1), len(rest) - 1)
    ]
    row, column = torch.tensor(where, device=lm.device).T
    inputs = {
        "input_ids": ids,
        "attention_mask": mask,
        "position_ids": positions(mask)[:, -width:],
        cache_argument(lm.model): cache,
        "use_cache": True,
    }
    logits, _ = logits_at(lm, inputs, row, column)
    wanted = torch.tensor([chunk[i][2][j + 1] for i, j in where], device=lm.device)
    return [(chunk[i][0], value) for (i, _), value in zip(where, log_probs(logits, wanted).tolist())]
