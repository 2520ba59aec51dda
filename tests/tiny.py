"""Tiny random models and a small word-level tokenizer, made in memory: what a test needs of a
language model, in milliseconds.

The traps are set on purpose: the pad token is the end token, the GPT-2 has absolute positions and
dropout, and the weights are large enough that a wrong position, mask or token changes every number.

What the tests of PPO have in common stands at the end.
"""

import hashlib
import math

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

import ppo
from lm import model as language_model
from lm.chat import render
from lm.sampling import Sampling

SPECIAL = ["<unk>", "<end>", "<user>", "<assistant>"]
WORDS = (
    "i do not know sure sorry . who is where what the capital of paris rome oslo lima bonn red blue green one two three"
    " four five six seven eight nine ten"
).split()
TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}> {{ message['content'] }} "
    "{% if message['role'] == 'assistant' %}{{ eos_token }} {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
FAMILIES = ("llama", "gpt2")


@pytest.fixture(autouse=True)
def one_thread():
    """For modules that import it: on models as small as these, threads cost more than they
    bring.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tokenizer(only_end=False):
    """A word-level tokenizer with a chat template, whose pad token is its end token; `only_end`:
    its one special token, as in GPT-2.
    """
    vocabulary = {word: i for i, word in enumerate([*SPECIAL, *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    others = {} if only_end else {"unk_token": "<unk>", "additional_special_tokens": ["<user>", "<assistant>"]}
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        eos_token="<end>",
        pad_token="<end>",
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=128,
        **others,
    )


def causal(family="llama", seed=0, tied=False, scale=0.15):
    """A random language model of two layers, in memory: a Llama, or a GPT-2 with absolute positions
    and dropout.
    """
    words = tokenizer()
    ends = {"bos_token_id": None, "eos_token_id": words.eos_token_id, "pad_token_id": words.pad_token_id}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if family == "gpt2":
            return GPT2LMHeadModel(
                GPT2Config(
                    vocab_size=len(words),
                    n_positions=128,
                    n_embd=32,
                    n_layer=2,
                    n_head=4,
                    initializer_range=scale,
                    **ends,
                )
            )
        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(words),
                hidden_size=32,
                intermediate_size=48,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=128,
                initializer_range=scale,
                tie_word_embeddings=tied,
                **ends,
            )
        )


def lm(family="llama", seed=0, tied=False, scale=0.15):
    """The same as lm.LM."""
    return language_model.wrap(causal(family, seed, tied, scale), tokenizer())


def folder(path, family="llama", seed=0):
    """Write the same as a Hugging Face folder; returns its path as text."""
    language_model.save(lm(family, seed), str(path))
    return str(path)


def ids(text):
    """Token ids of a text of WORDS."""
    return tokenizer()(text, add_special_tokens=False).input_ids


def reloaded_tokenizer(path):
    return AutoTokenizer.from_pretrained(path)


class GradientsOnly(torch.optim.Optimizer):
    """Stands in for an optimizer: keeps the gradients of each step and leaves the weights alone."""

    def __init__(self, modules):
        super().__init__([p for module in modules for p in module.parameters()], {"lr": 0.0})
        self.steps = []

    def step(self, closure=None):
        self.steps.append(
            [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in self.param_groups[0]["params"]]
        )


def weights(*modules):
    """A fingerprint of all parameters: equal for two lists of modules where every bit is."""
    digest = hashlib.sha256()
    for module in modules:
        for p in module.parameters():
            digest.update(p.detach().numpy().tobytes())
    return digest.hexdigest()[:16]


def unit_vectors(*shape, seed=0):
    """Random vectors of length 1 along the last axis."""
    vectors = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return vectors / vectors.norm(dim=-1, keepdim=True)


def cosine_by_hand(a, b):
    """Cosine of two vectors, sums written out."""
    a, b = a.tolist(), b.tolist()
    dot = sum(x * y for x, y in zip(a, b))
    return dot / math.sqrt(sum(x * x for x in a)) / math.sqrt(sum(y * y for y in b))


# ---------------------------------------------------------------------------------------------- PPO

PPO_SAMPLING = Sampling(max_new_tokens=7, temperature=0.7, rows=64)
PPO_CONFIG = ppo.PPOConfig(
    steps=6, batch=6, lr=1e-2, value_lr=1e-2, micro_rows=4, guidance_share=0.6, guidance_until=1.0, guidance_tokens=3
)


def make_tasks(lm, n=9):
    """Tasks whose prompts and preferred responses have many lengths."""
    questions = [
        "who is paris",
        "what is the capital of rome",
        "where is oslo",
        "what",
        "who is the capital of lima and bonn",
        "red",
    ]
    preferred = [
        "i do not know .",
        "rome",
        "sorry i do not know",
        "the capital is rome .",
        "one two three four five six seven",
    ]
    return [
        {
            "id": f"q{i}",
            "prompt": render(lm, [{"role": "user", "content": questions[i % 6]}]),
            "answers": ["rome"],
            "question": "",
            "preferred": ids(f"{preferred[i % 5]} <end>"),
            "state": ("known", "unknown", "mixed")[i % 3],
            "p_known": i / n,
        }
        for i in range(n)
    ]


def odd_score(tasks, responses):
    """A reward that depends on every token of prompt and response."""
    return torch.tensor(
        [math.sin(sum((n + 1) * token for n, token in enumerate(t["prompt"] + r))) for t, r in zip(tasks, responses)]
    )


def head(policy, seed=0):
    """A value head that is not zero."""
    value_head = ppo.new_value_head(policy)
    with torch.no_grad():
        value_head.weight.copy_(torch.randn(value_head.weight.shape, generator=torch.Generator().manual_seed(seed)) / 8)
        value_head.bias.fill_(0.1)
    return value_head


def start(config=PPO_CONFIG, family="llama", tied=False):
    """A policy with its value head and optimizer."""
    policy = lm(family, 1, tied)
    value_head = head(policy)
    return policy, value_head, ppo.new_optimizer(policy, value_head, config)


def gae_by_definition(rewards, values, gamma, lam):
    """Sum over l of (gamma lam)^l delta_(t+l), for each t, term by term in float64; the value after
    the end is 0.
    """
    after = [*values[1:], 0.0]
    delta = [r + gamma * v_next - v for r, v, v_next in zip(rewards, values, after)]
    return [sum((gamma * lam) ** k * delta[t + k] for k in range(len(delta) - t)) for t in range(len(delta))]
