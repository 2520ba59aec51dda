"""Log-likelihood of the options of multiple-choice questions, each question read once.

An option counts as its tokens' summed log-probability behind the question, without a chat template, as
lm-evaluation-harness computes it: context and continuation are encoded together and cut where the context alone ends,
spaces at the end of the context belong to the continuation, and what does not fit is cut on the left. What all
questions begin with is read once, what the options of one question share once more, and the options follow as a batch
behind that cache. Left out: continuations without any context, encoder-decoder models.
"""
import torch

from files import UserError
from lm import behind_prefix, cache_argument, log_probs, logits_at, positions, read_prefix

SLOTS = 12288  # keys and values of that many tokens lie in one batch's cache


def encode_pair(lm, context, continuation):
    """Token ids (context, continuation) of two texts, the first not empty; the tokenizer's own first token, if any, included.

    Raises UserError where the continuation leaves no token of its own.
    """
    bare = context.rstrip()
    text = context + continuation
    ids = lm.tokenizer(bare).input_ids
    behind = lm.tokenizer(text).input_ids[len(ids):]
    if not behind:
        raise UserError(f"{continuation[:40]!r}: the tokenizer gives it no token behind {bare[-40:]!r}")
    return ids, behind


def cut_left(lm, context, longest):
    """The end of `context` that fits before `longest` tokens more; the last token predicted need not be read.

    Raises UserError where not even one token of it fits.
    """
    limit = getattr(lm.model.config.get_text_config(), "max_position_embeddings", None)
    if limit is None or len(context) + longest - 1 <= limit:
        return context
    if longest > limit:
        raise UserError(f"an option of {longest} tokens is longer than the {limit} that the model takes")
    return context[longest - limit - 1:]


def shared(pairs):
    """[(beginning, [(rest, scored), ...]), ...] of one question's (context, continuation) ids, its rows in order.

    The beginning is what all contexts share; the last `scored` tokens of the rest are the continuation. Contexts that
    share nothing (an option stands first in the sentence) make a beginning each.
    """
    contexts = [context for context, _ in pairs]
    first, last = min(contexts), max(contexts)                                          # in the order of lists
    length = next((i for i, (a, b) in enumerate(zip(first, last)) if a != b), len(first))
    if not length:
        return [(context, [(continuation, len(continuation))]) for context, continuation in pairs]
    return [(first[:length], [(context[length:] + continuation, len(continuation)) for context, continuation in pairs])]


@torch.no_grad()
def log_likelihoods(lm, questions, progress=lambda n: None):
    """For each question, a list of (context, continuation) id lists, the list of its continuations' log-likelihoods in nats.

    `progress(n)` is called as n more beginnings are done. Raises FloatingPointError where one is not finite.
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
    for batch in batches(read):
        with lm.autocast():
            values = score(lm, [read[i] for i in batch], prefix)
        for i, row in zip(batch, values):
            found[i] = row
        progress(len(batch))
    flat = iter([value for row in found for value in row])
    result = [[next(flat) for _ in pairs] for pairs in questions]
    if not all(abs(value) < float("inf") for row in result for value in row):
        raise FloatingPointError("the model returned log-likelihoods that are not finite")
    return result


def batches(read):
    """Lists of indices, neighbours in length together, at most SLOTS tokens in the cache of each (but one question at least)."""
    found, widest, rows = [], 0, 0
    for i in sorted(range(len(read)), key=lambda i: (len(read[i][0]), i)):
        beginning, rests = read[i]
        width = len(beginning) + max(len(rest) for rest, _ in rests)
        if not found or max(widest, width) * (rows + len(rests)) > SLOTS:
            found.append([])
            widest = rows = 0
        found[-1].append(i)
        widest, rows = max(widest, width), rows + len(rests)
    return found


def score(lm, read, prefix):
    """Log-likelihoods, a list for each of `read` (beginning, [(rest, scored), ...]), with `prefix` of read_prefix in the cache.

    The beginnings' last position predicts every rest's first token, so rests of one token need no second pass.
    """
    inputs, cache = behind_prefix(lm, [beginning for beginning, _ in read], prefix)
    to_cache = {cache_argument(lm.model): cache, "use_cache": True}
    last = lm.model(**inputs, **to_cache, logits_to_keep=1).logits[:, -1].float()       # (beginnings, vocabulary)
    rests = [(n, rest, scored) for n, (_, rows) in enumerate(read) for rest, scored in rows]
    owner = torch.tensor([n for n, _, _ in rests], device=lm.device)
    first = last.log_softmax(-1)[owner, torch.tensor([rest[0] for _, rest, _ in rests], device=lm.device)]
    values = [value if len(rest) == scored else 0.0 for value, (_, rest, scored) in zip(first.tolist(), rests)]
    longer = [r for r, (_, rest, _) in enumerate(rests) if len(rest) > 1]
    if longer:
        kept = owner[longer]
        cache.batch_select_indices(kept)
        width = max(len(rests[r][1]) for r in longer) - 1                               # the last token predicts nothing
        ids = torch.tensor([rests[r][1][:-1] + [0] * (width + 1 - len(rests[r][1])) for r in longer], device=lm.device)
        real = torch.tensor([[1] * (len(rests[r][1]) - 1) + [0] * (width + 1 - len(rests[r][1])) for r in longer], device=lm.device)
        mask = torch.cat([inputs["attention_mask"][kept], real], 1)
        where = [(n, j) for n, r in enumerate(longer) for j in range(max(0, len(rests[r][1]) - rests[r][2] - 1), len(rests[r][1]) - 1)]
        row, column = torch.tensor(where, device=lm.device).T
        logits, _ = logits_at(lm, {"input_ids": ids, "attention_mask": mask, "position_ids": positions(mask)[:, -width:], **to_cache}, row, column)
        wanted = torch.tensor([rests[longer[n]][1][j + 1] for n, j in where], device=lm.device)
        for (n, _), value in zip(where, log_probs(logits, wanted).tolist()):
            values[longer[n]] += value
    flat = iter(values)
    return [[next(flat) for _ in rows] for _, rows in read]
