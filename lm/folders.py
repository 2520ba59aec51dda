"""Model folders in Hugging Face form, opened with care: what is wrong with one is a user's mistake,
said in one line.

No remote code, no pickles, no weights filled in at random. Left out: quantised weights, other
formats.
"""

import json
import os

import torch
from transformers import AutoTokenizer

from lm.errors import UserError, first_line


def check_folder(path, kind, suffixes):
    """Raise UserError unless `path` is a Hugging Face folder (or, without such a folder, may be a
    hub name) of this kind.
    """
    if not os.path.isdir(path):
        if os.path.exists(path) or path.startswith(("/", ".", "~")) or path.count("/") != 1:
            raise UserError(f"{path}: no such model folder (expected {kind} in Hugging Face form)")
        return
    config = read_config(
        os.path.join(path, "config.json"), f"{path}: no config.json in it (expected {kind} in Hugging Face form)"
    )
    names = config.get("architectures") or [] if isinstance(config, dict) else []
    names = [str(name) for name in names] if isinstance(names, list) else []
    if not any(name.endswith(suffixes) for name in names):
        raise UserError(f"{path}: architecture {', '.join(names) or 'not given'}, expected {kind}")
    if not any(name.endswith(".safetensors") for name in os.listdir(path)):
        raise UserError(f"{path}: no .safetensors file in it (weights in other formats are not read)")


def read_config(file, where_missing=None):
    """The value in a model folder's JSON file. Raises UserError, in the words `where_missing`."""
    try:
        with open(file, encoding="utf-8") as f:
            return json.load(f)
    except FileNotFoundError:
        raise UserError(where_missing or f"{file}: No such file or directory") from None
    except OSError as error:
        raise UserError(f"{file}: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise UserError(f"{file}: not valid JSON") from None


def from_folder(auto_class, path, may_lack=("score.weight",), **options):
    """`auto_class.from_pretrained` without remote code and without pickles; UserError in one line
    where it fails.

    A weight that the folder lacks would be filled at random: that is an error too, but for those in
    `may_lack`.
    """
    try:
        if auto_class is AutoTokenizer:
            return auto_class.from_pretrained(path, trust_remote_code=False)
        model, found = auto_class.from_pretrained(
            path,
            dtype=torch.float32,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            **options,
        )
    except Exception as error:  # Hugging Face raises many kinds for one cause: the folder or name is not usable
        raise UserError(f"{path}: cannot be loaded ({first_line(error)})") from error
    missing = sorted(name for name in found["missing_keys"] if name not in may_lack and not name.startswith("pooler."))
    if missing:
        raise UserError(
            f"{path}: its weights lack {len(missing)} tensors of the model that its config.json describes, such as"
            f" {missing[0]}"
        )
    return model


def check_vocabulary(path, model, tokenizer):
    """Raise UserError where the tokenizer has token ids for which the model has no embedding."""
    rows = model.get_input_embeddings().weight.shape[0]
    largest = max(tokenizer.get_vocab().values(), default=0)
    if largest >= rows:
        raise UserError(f"{path}: its tokenizer has token id {largest}, but the model embeds only {rows} tokens")
