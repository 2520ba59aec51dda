"""One causal language model: loading it, and checking that it can be used.

Everything that touches the language model passes through this folder, so that the probe, the
labels, the reward model and PPO see the same prompt, the same token ids and the same temperature.
The model is an unmodified Hugging Face one. Weights stay float32; with dtype bfloat16, matrix
products run in bfloat16 under autocast. Left out: quantised weights, several devices.
"""

import contextlib
from dataclasses import dataclass

import torch
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

from lm.batching import behind_prefix, cache_argument, positions
from lm.chat import PLAIN_TEMPLATE, messages, rendered
from lm.errors import UserError
from lm.folders import check_folder, check_vocabulary, from_folder


@dataclass(frozen=True)
class LM:
    """A causal model with its tokenizer. `dtype` is the type of matrix products, not of the
    weights.
    """

    model: torch.nn.Module
    tokenizer: object
    dtype: torch.dtype
    end_ids: frozenset

    @property
    def device(self):
        return self.model.device

    @property
    def end_id(self):
        return self.tokenizer.eos_token_id

    def autocast(self):
        """Context in which matrix products run in `dtype`; does nothing for float32."""
        if self.dtype == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)


def load(path, device="cpu", dtype=torch.float32, say=print):
    """Load a causal LM from a Hugging Face folder or hub name. Returns LM, in eval mode, float32
    weights.

    Raises UserError where the folder is missing, is not a causal LM or has no safetensors weights.
    A tokenizer without chat template is given PLAIN_TEMPLATE, and `say` is told.
    """
    check_folder(path, "a causal language model", ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration"))
    tokenizer = from_folder(AutoTokenizer, path)
    if tokenizer.eos_token_id is None:
        raise UserError(f"{path}: its tokenizer has no eos_token, so a response cannot end")
    if tokenizer.chat_template is None:
        say(f"{path}: the tokenizer has no chat template; prompts read 'Question: ... Answer:' instead")
        tokenizer.chat_template = PLAIN_TEMPLATE
    model = from_folder(AutoModelForCausalLM, path)
    check_vocabulary(path, model, tokenizer)
    lm = wrap(model.to(device), tokenizer, dtype)
    check_reading(lm, path)
    if rendered(lm, messages("a")) == rendered(lm, messages("b")):
        raise UserError(f"{path}: its chat template leaves out what the user says")
    return lm


def wrap(model, tokenizer, dtype=torch.float32):
    """LM of a model in memory. A response ends with the tokenizer's end token or any that the
    model's generation config names.
    """
    configured = model.generation_config.eos_token_id if model.generation_config is not None else None
    configured = [] if configured is None else configured if isinstance(configured, list) else [configured]
    if not all(isinstance(end, int) for end in configured):
        raise UserError(
            "eos_token_id in the model's generation_config.json: expected a token id or a list of them, not"
            f" {str(configured)[:40]}"
        )
    return LM(model.eval(), tokenizer, dtype, frozenset([tokenizer.eos_token_id, *configured]))


@torch.no_grad()
def check_reading(lm, path):
    """Raise UserError unless the model reads rows that are padded, and continued behind a cache, as
    it reads each of them alone.

    That is what all of this project builds on; recurrent models and encoders that see what follows
    do not.
    """
    rows = [[1, 2, 3, 4], [1, 2]]
    try:
        alone = torch.stack(
            [lm.model(input_ids=torch.tensor([row], device=lm.device)).logits[0, -1] for row in rows]
        )  # (2, vocabulary)
        if not torch.isfinite(alone).all():
            raise UserError(f"{path}: the model returned logits that are not finite")
        inputs, cache = behind_prefix(lm, [row[:-1] for row in rows], (0, None))
        to_cache = {cache_argument(lm.model): cache, "use_cache": True}
        lm.model(**inputs, **to_cache)
        cache.batch_repeat_interleave(2)
        mask = F.pad(inputs["attention_mask"].repeat_interleave(2, 0), (0, 1), value=1)
        last = torch.tensor([row[-1:] for row in rows for _ in range(2)], device=lm.device)
        found = lm.model(input_ids=last, attention_mask=mask, position_ids=positions(mask)[:, -1:], **to_cache).logits[
            :, -1
        ]
        fits = torch.allclose(found, alone.repeat_interleave(2, 0), rtol=0, atol=1e-2 * float(alone.std()))
    except torch.OutOfMemoryError:
        raise
    except (
        AttributeError,
        TypeError,
        ValueError,
        IndexError,
        KeyError,
        RuntimeError,
    ):  # what such models raise on the way
        fits = False
    if not fits:
        raise UserError(
            f"{path}: {type(lm.model).__name__} does not read padded rows behind a cache of keys and values as it reads"
            " one row alone; expected a causal model of decoder layers with attention"
        )


def save(lm, folder):
    """Write model and tokenizer as a Hugging Face folder (safetensors)."""
    lm.model.save_pretrained(folder)
    lm.tokenizer.save_pretrained(folder)
