"""Sentence embeddings and cosine similarity (section 3.1; the paper uses bge-large).

Any Hugging Face encoder, or a causal LM, whose token states are pooled into one unit vector a text.
How to pool follows the model's training: BGE reads the first token, MiniLM, E5 and GTE average, and
`1_Pooling/config.json` in the model folder says which. Left out: instructions before the text
(needed for search, not for similarity), other poolings.
"""

import os
from dataclasses import dataclass

import torch
from transformers import AutoModel, AutoTokenizer

from lm.batching import batches_by_length
from lm.errors import UserError, first_line
from lm.folders import check_vocabulary, from_folder, read_config


@dataclass(frozen=True)
class Embedder:
    model: torch.nn.Module
    tokenizer: object
    pooling: str  # "mean" or "cls"
    max_length: int  # tokens; the rest of a text is cut


def read_pooling(path):
    """ "mean" or "cls" as the model folder's 1_Pooling/config.json says; "mean" where it has
    none.
    """
    file = os.path.join(path, "1_Pooling", "config.json")
    if not os.path.exists(file):
        return "mean"
    config = read_config(file)
    if not isinstance(config, dict):
        raise UserError(f"{file}: expected a JSON object")
    used = [name for name, on in config.items() if name.startswith("pooling_mode_") and on] or [
        f"pooling_mode_{config.get('pooling_mode')}"
    ]
    if used in (["pooling_mode_cls_token"], ["pooling_mode_cls"]):
        return "cls"
    if used in (["pooling_mode_mean_tokens"], ["pooling_mode_mean"]):
        return "mean"
    raise UserError(f"{file}: pools by {', '.join(used)}; only the first token (cls) or the mean is supported")


def load(path, device="cpu", pooling=None):
    """Embedder from a Hugging Face folder or hub name. Raises UserError where it cannot be
    loaded.
    """
    if not os.path.isdir(path) and path.count("/") != 1:
        raise UserError(f"{path}: no such model folder (expected a sentence embedder in Hugging Face form)")
    model = from_folder(AutoModel, path).to(device).eval()
    tokenizer = from_folder(AutoTokenizer, path)
    check_vocabulary(path, model, tokenizer)
    limit = getattr(model.config, "max_position_embeddings", 512)
    before = next(
        (
            m.padding_idx
            for name, m in model.named_modules()
            if name.endswith("position_embeddings") and isinstance(m, torch.nn.Embedding)
        ),
        None,
    )
    embedder = Embedder(
        model, tokenizer, pooling or read_pooling(path), min(512, limit if before is None else limit - before - 1)
    )  # RoBERTa counts from there
    try:
        embed(embedder, ["a", "a b"])
    except UserError:
        raise
    except Exception as error:  # other kinds of models fail in ways of their own
        raise UserError(f"{path}: {type(model).__name__} is not a sentence embedder ({first_line(error)})") from None
    return embedder


@torch.no_grad()
def embed(embedder, texts, rows=64, progress=lambda n: None):
    """Unit vectors (texts, width), float32 on the CPU. Equal texts are computed once; a text
    without tokens gets zeros.
    """
    distinct = list(dict.fromkeys(texts))
    ids = embedder.tokenizer(distinct, truncation=True, max_length=embedder.max_length).input_ids if distinct else []
    vectors = torch.zeros(len(distinct), embedder.model.config.hidden_size)
    done_by_text = {text: 0 for text in distinct}
    for text in texts:
        done_by_text[text] += 1
    for batch in batches_by_length([len(i) for i in ids], rows):
        progress(sum(done_by_text[distinct[i]] for i in batch))
        batch = [i for i in batch if ids[i]]
        if batch:
            vectors[batch] = pool(embedder, [ids[i] for i in batch]).cpu()
    if not torch.isfinite(vectors).all():
        raise UserError("the sentence embedder returned vectors that are not finite")
    place = {text: i for i, text in enumerate(distinct)}
    return vectors[[place[text] for text in texts]]


def pool(embedder, ids):
    """Unit vectors (batch, width) of token id lists, padded on the right."""
    device, width = embedder.model.device, max(map(len, ids))
    mask = torch.tensor([[1] * len(i) + [0] * (width - len(i)) for i in ids], device=device)
    ids = torch.tensor([i + [0] * (width - len(i)) for i in ids], device=device)
    states = embedder.model(input_ids=ids, attention_mask=mask).last_hidden_state
    if embedder.pooling == "cls":
        vector = states[:, 0]  # (batch, width)
    else:
        vector = (states * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)  # (batch, width)
    return torch.nn.functional.normalize(vector.float(), dim=-1)


def cosine(a, b):
    """Cosine similarity along the last axis of unit vectors, any matching leading shape."""
    return (a * b).sum(-1)
