"""One causal language model: loading, chat prompts, sampling.

Everything that touches the language model passes through here, so that the probe, the labels, the reward model and PPO
see the same prompt, the same token ids and the same temperature. The model is an unmodified Hugging Face one.

Conventions. A *prompt* is the list of token ids of a rendered chat up to the place where the assistant speaks. A
*response* is the list of token ids that follow, with the end token if there is one. Within a stage token ids
are never decoded and encoded again; between stages there are texts (generations, rankings), which people and other trainers
read too. What several prompts begin with is read once. To be answered, prompts are padded on the left, and masks come
from lengths: a pad token may well be the end token. Weights stay float32; with dtype bfloat16, matrix products run in
bfloat16 under autocast. The log-probabilities of responses are in forward.py.

Left out: beam search, repetition penalties, quantised weights, several devices.
"""
import contextlib
import copy
import hashlib
import inspect
from dataclasses import dataclass

import torch
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from files import UserError, first_line
from folders import check_folder, check_vocabulary, from_folder

# For tokenizers that bring no chat template of their own.
PLAIN_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}Answer: {{ message['content'] }}{{ eos_token }}\n"
    "{% else %}Question: {{ message['content'] }}\n{% endif %}{% endfor %}{% if add_generation_prompt %}Answer:{% endif %}"
)
BLOCK = 256  # tokens of the vocabulary that `draw` sums at once


@dataclass
class Sampling:
    max_new_tokens: int = 24     # a response longer than this is cut (paper: not given)
    temperature: float = 1.0     # divides the logits; 0 is greedy (paper: not given; the authors' release: 0.8)
    top_p: float = 1.0           # smallest set of tokens with this probability; 1 keeps all
    top_k: int = 0               # most probable tokens kept; 0 keeps all (the authors' release: 80)
    rows: int = 160              # sequences decoded side by side


@dataclass(frozen=True)
class LM:
    """A causal model with its tokenizer. `dtype` is the type of matrix products, not of the weights."""
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
    """Load a causal LM from a Hugging Face folder or hub name. Returns LM, in eval mode, float32 weights.

    Raises UserError where the folder is missing, is not a causal LM or has no safetensors weights. A tokenizer without
    chat template is given PLAIN_TEMPLATE, and `say` is told.
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
    """LM of a model in memory. A response ends with the tokenizer's end token or any that the model's generation config names."""
    configured = model.generation_config.eos_token_id if model.generation_config is not None else None
    configured = [] if configured is None else configured if isinstance(configured, list) else [configured]
    if not all(isinstance(end, int) for end in configured):
        raise UserError(f"eos_token_id in the model's generation_config.json: expected a token id or a list of them, not {str(configured)[:40]}")
    return LM(model.eval(), tokenizer, dtype, frozenset([tokenizer.eos_token_id, *configured]))


@torch.no_grad()
def check_reading(lm, path):
    """Raise UserError unless the model reads rows that are padded, and continued behind a cache, as it reads each of them alone.

    That is what all of this project builds on; recurrent models and encoders that see what follows do not.
    """
    rows = [[1, 2, 3, 4], [1, 2]]
    try:
        alone = torch.stack([lm.model(input_ids=torch.tensor([row], device=lm.device)).logits[0, -1] for row in rows])   # (2, vocabulary)
        if not torch.isfinite(alone).all():
            raise UserError(f"{path}: the model returned logits that are not finite")
        inputs, cache = behind_prefix(lm, [row[:-1] for row in rows], (0, None))
        to_cache = {cache_argument(lm.model): cache, "use_cache": True}
        lm.model(**inputs, **to_cache)
        cache.batch_repeat_interleave(2)
        mask = F.pad(inputs["attention_mask"].repeat_interleave(2, 0), (0, 1), value=1)
        last = torch.tensor([row[-1:] for row in rows for _ in range(2)], device=lm.device)
        found = lm.model(input_ids=last, attention_mask=mask, position_ids=positions(mask)[:, -1:], **to_cache).logits[:, -1]
        fits = torch.allclose(found, alone.repeat_interleave(2, 0), rtol=0, atol=1e-2 * float(alone.std()))
    except torch.OutOfMemoryError:
        raise
    except (AttributeError, TypeError, ValueError, IndexError, KeyError, RuntimeError):  # what such models raise on the way
        fits = False
    if not fits:
        raise UserError(f"{path}: {type(lm.model).__name__} does not read padded rows behind a cache of keys and values as it reads one row "
                        "alone; expected a causal model of decoder layers with attention")


def save(lm, folder):
    """Write model and tokenizer as a Hugging Face folder (safetensors)."""
    lm.model.save_pretrained(folder)
    lm.tokenizer.save_pretrained(folder)


def messages(question, instruction=None):
    """The conversation that asks `question`; an instruction (section 3.3, uncertainty generation) stands before it."""
    return [{"role": "user", "content": f"{instruction}\n\n{question}" if instruction else question}]


def rendered(lm, conversation):
    """The text that `render` encodes."""
    try:
        return lm.tokenizer.apply_chat_template(conversation, add_generation_prompt=True, tokenize=False)
    except Exception as error:  # a template is a program of the model's makers: it may fail in any way
        raise UserError(f"the model's chat template fails: {first_line(error)}") from None


def render(lm, conversation):
    """Token ids of a list of {"role", "content"} up to the assistant's turn: the prompt as generation sees it.

    Raises UserError where the chat template fails, or leaves nothing.
    """
    ids = lm.tokenizer(rendered(lm, conversation), add_special_tokens=False).input_ids
    if not ids:
        raise UserError("the model's chat template makes an empty prompt")
    return ids


def chat_prompt(lm, question, instruction=None):
    """Prompt ids of one question."""
    return render(lm, messages(question, instruction))


def response_ids(lm, text):
    """Token ids of a response given as text, with the end token. Behind PLAIN_TEMPLATE's "Answer:" it begins with a space."""
    encode = lambda text: lm.tokenizer(text, add_special_tokens=False).input_ids
    ids = encode(f"Answer: {text}")[len(encode("Answer:")):] if lm.tokenizer.chat_template == PLAIN_TEMPLATE else encode(text)
    return ids + [lm.end_id]


def decode(lm, response):
    """Text of a response."""
    return lm.tokenizer.decode(response, skip_special_tokens=True).strip()


def has_ended(lm, response):
    """True where the response closed itself with an end token."""
    return bool(response) and response[-1] in lm.end_ids


def batches_by_length(lengths, size):
    """Lists of indices, at most `size` each, neighbours in length together (shortest first)."""
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    return [order[i:i + size] for i in range(0, len(order), size)]


# ---------------------------------------------------------------------------------------------------- sampling

def generator_for(seed, key):
    """A CPU generator that depends on the run's seed and on `key` (a question's id) alone."""
    digest = hashlib.sha256(f"{seed}\0{key}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def keep_likely(logits, top_p, top_k):
    """`logits` (rows, vocabulary) with all but the `top_k` most probable, or the smallest set of mass `top_p`, at -inf."""
    if top_k:
        kth = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]                 # (rows, 1)
        logits = logits.masked_fill(logits < kth, float("-inf"))
    if top_p < 1:
        ordered, index = logits.sort(descending=True)                                  # (rows, vocabulary)
        mass_before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
        logits = logits.scatter(-1, index, ordered.masked_fill(mass_before >= top_p, float("-inf")))
    return logits


def draw(logits, uniform, sampling):
    """One token a row. logits (rows, vocabulary) float32, uniform (rows,) in [0, 1). Returns (rows,) ids.

    Inverts the cumulative distribution in two levels, blocks of the vocabulary and then one block: the distribution of
    torch.multinomial at a fraction of its time, and one uniform number decides, so a row's result is its own.
    """
    if not torch.isfinite(logits.amax(-1)).all():
        raise FloatingPointError("the model returned logits that are not finite")
    if sampling.temperature == 0:
        return logits.argmax(-1)
    probability = keep_likely(logits / sampling.temperature, sampling.top_p, sampling.top_k).softmax(-1)
    blocks = F.pad(probability, (0, -probability.shape[-1] % BLOCK)).unflatten(-1, (-1, BLOCK))   # (rows, blocks, BLOCK)
    upto = blocks.sum(-1).double().cumsum(-1)                                                     # (rows, blocks)
    target = uniform.to(upto)[:, None] * upto[:, -1:] * (1 - 1e-12)
    block = (upto <= target).sum(-1)                                                              # (rows,)
    rows = torch.arange(len(block), device=block.device)
    inside = blocks[rows, block].double().cumsum(-1)                                              # (rows, BLOCK)
    mass = upto[rows, block] - F.pad(upto, (1, 0))[rows, block]
    share = (target[:, 0] - F.pad(upto, (1, 0))[rows, block]) / mass
    within = (inside <= share.clamp(0, 1 - 1e-9)[:, None] * inside[:, -1:]).sum(-1)
    return block * BLOCK + within


def pad_left(prompts, device):
    """(ids, mask), both (batch, width), long. Padding is id 0 and masked: any valid id would do."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts], device=device)
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=device)
    return ids, mask


def positions(mask):
    """Position ids (batch, time) that count the unmasked tokens, for models with absolute positions."""
    return (mask.cumsum(-1) - 1).clamp(min=0)


def cache_argument(model):
    """The name of the forward argument that takes the key-value cache (renamed in transformers 5)."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def most_positions(lm):
    """How many tokens the model can read in a row; infinity where it names no limit."""
    return getattr(lm.model.config.get_text_config(), "max_position_embeddings", None) or float("inf")


def check_lengths(lm, prompts, room=0, keys=None):
    """Raise UserError where a prompt and `room` new tokens are more than the model's positions; it names the prompt's key or number."""
    limit = most_positions(lm)
    for key, prompt in zip(range(1, len(prompts) + 1) if keys is None else keys, prompts):
        if len(prompt) + room > limit:
            raise UserError(f"question {key}: its prompt of {len(prompt)} tokens and {room} new ones are more than the {limit} that the model takes")


def common_length(rows):
    """How many token ids all `rows` begin with."""
    first, last = min(rows), max(rows)                                                  # in the order of lists
    return next((i for i, (a, b) in enumerate(zip(first, last)) if a != b), len(first))


def reaches(lm, tokens):
    """Whether a token sees `tokens` before it: a sliding window may not, and padding within a row takes up places in it."""
    window = getattr(lm.model.config.get_text_config(), "sliding_window", None)
    return not window or tokens <= window


@torch.no_grad()
def read_prefix(lm, prompts, room=0):
    """What all prompts begin with (a chat template's system message), read once: (number of tokens, key-value cache).

    At least one token of each prompt is left over. (0, None) where nothing is shared, or where a sliding window would
    not reach over a prompt and `room` tokens more.
    """
    length = min(common_length(prompts), min(map(len, prompts)) - 1)
    if len(prompts) < 2 or length < 1 or not reaches(lm, max(map(len, prompts)) + room):
        return 0, None
    cache = DynamicCache(config=lm.model.config)
    trunk = lm.model.base_model
    with lm.autocast():
        trunk(input_ids=torch.tensor([prompts[0][:length]], device=lm.device), **{cache_argument(trunk): cache, "use_cache": True})
    return length, cache


def behind_prefix(lm, prompts, prefix):
    """Forward arguments for `prompts`, the `prefix` of read_prefix already in the cache: ids without it, mask and cache with it."""
    length, read = prefix
    ids, mask = pad_left([p[length:] for p in prompts], lm.device)
    mask = F.pad(mask, (length, 0), value=1)
    cache = copy.deepcopy(read) if length else DynamicCache(config=lm.model.config)
    if length:
        cache.batch_repeat_interleave(len(prompts))
    return {"input_ids": ids, "attention_mask": mask, "position_ids": positions(mask)[:, length:]}, cache


@torch.no_grad()
def generate(lm, prompts, sampling, samples=1, keys=None, seed=0, progress=lambda n: None):
    """`samples` responses to each prompt: a list (prompts) of lists (samples) of token ids.

    Each prompt is read once and its cache shared by its samples, and so is what all prompts begin with; rows that have
    ended leave the batch. The random numbers of a prompt come from (`seed`, its key) alone, so its result does not depend
    on the others in the batch but for rounding. `progress(n)` is called as n more prompts are done. Nothing is taken from the model's own
    generation config but the end tokens. Raises FloatingPointError on logits that are not finite.
    """
    keys = range(len(prompts)) if keys is None else keys
    check_lengths(lm, prompts, sampling.max_new_tokens, keys)
    responses, prefix = [None] * len(prompts), read_prefix(lm, prompts, sampling.max_new_tokens) if prompts else None
    for batch in batches_by_length([len(p) for p in prompts], max(1, sampling.rows // samples)):
        uniform = torch.stack([
            torch.rand(samples, sampling.max_new_tokens, generator=generator_for(seed, keys[i]), dtype=torch.float64)
            for i in batch]).flatten(0, 1).to(lm.device)                                # (rows, max_new_tokens)
        with lm.autocast():
            rows = decode_batch(lm, [prompts[i] for i in batch], prefix, uniform, sampling, samples)
        for n, i in enumerate(batch):
            responses[i] = rows[n * samples:(n + 1) * samples]
        progress(len(batch))
    return responses


def decode_batch(lm, prompts, prefix, uniform, sampling, samples):
    """Responses (a list of id lists, prompts x samples in order) to prompts of similar length."""
    inputs, cache = behind_prefix(lm, prompts, prefix)
    to_cache = {cache_argument(lm.model): cache, "use_cache": True, "logits_to_keep": 1}
    logits = lm.model(**inputs, **to_cache).logits[:, -1]
    cache.batch_repeat_interleave(samples)
    logits = logits.float().repeat_interleave(samples, 0)                               # (rows, vocabulary)
    mask = inputs["attention_mask"].repeat_interleave(samples, 0)                       # (rows, time)
    responses = [[] for _ in range(len(mask))]
    alive = torch.arange(len(mask), device=lm.device)
    end_ids = torch.tensor(sorted(lm.end_ids), device=lm.device)
    for step in range(sampling.max_new_tokens):
        token = draw(logits, uniform[alive, step], sampling)                            # (alive,)
        for row, drawn in zip(alive.tolist(), token.tolist()):
            responses[row].append(drawn)
        going = ~torch.isin(token, end_ids)
        if step + 1 == sampling.max_new_tokens or not going.any():
            break
        if not going.all():
            alive, token, mask = alive[going], token[going], mask[going]
            cache.batch_select_indices(going.nonzero()[:, 0])
        mask = F.pad(mask, (0, 1), value=1)
        logits = lm.model(input_ids=token[:, None], attention_mask=mask,
                          position_ids=positions(mask)[:, -1:], **to_cache).logits[:, -1].float()
    return responses
