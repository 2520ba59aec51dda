"""Shared fixtures: tiny random models with tokenizers made in memory. Nothing here is trained,
downloaded or on disk.

The weights are drawn far wider than a new model's (0.02), so that a wrong mask, position or layer
changes every number.
"""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: a test that would use the network fails

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

import probe
from lm import model as language_model

VOCABULARY = ["<pad>", "<s>", "</s>", "<unk>", "<user>", "<bot>"] + (
    "what is the capital of france germany italy spain peru paris berlin rome madrid lima who wrote hamlet shakespeare"
    " i do not know sorry am sure about this it a in question answer : ? . , say that you are reply yes no one two"
    " three red blue green"
).split()
LLAMA_CHAT = (
    "<s>{% for m in messages %}{{ '<user> ' if m['role'] != 'assistant' else '<bot> ' }}{{ m['content'] }} </s>{%"
    " endfor %}{% if add_generation_prompt %}<bot>{% endif %}"
)
GPT2_CHAT = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def word_tokenizer():
    """Words apart by spaces, <s> before every text that is encoded with special tokens, and a pad
    token of its own.
    """
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(VOCABULARY)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", VOCABULARY.index("<s>"))]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        additional_special_tokens=["<user>", "<bot>"],
    )
    tokenizer.chat_template = LLAMA_CHAT
    return tokenizer


def byte_tokenizer():
    """One token a byte, as GPT-2's would be without merges; the pad token *is* the end token, id
    256.
    """
    alphabet = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    core = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<|endoftext|>", eos_token="<|endoftext|>", pad_token="<|endoftext|>"
    )
    tokenizer.chat_template = GPT2_CHAT
    return tokenizer


LLAMA_LIKE = dict(
    vocab_size=90,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    max_position_embeddings=96,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    initializer_range=0.3,
)
GROUPED = dict(LLAMA_LIKE, num_key_value_heads=2)
GPT2_LIKE = dict(n_embd=32, n_layer=3, n_head=4, n_positions=96, initializer_range=0.3)
FALCON_LIKE = {k: v for k, v in LLAMA_LIKE.items() if k not in ("intermediate_size", "max_position_embeddings")}
ARCHITECTURES = {  # sliding windows shorter than the prompts of the tests, where there are any
    "llama": lambda: transformers.LlamaConfig(**GROUPED),
    "qwen2": lambda: transformers.Qwen2Config(**GROUPED),
    "qwen3": lambda: transformers.Qwen3Config(**GROUPED, head_dim=16),
    "mistral": lambda: transformers.MistralConfig(**GROUPED, sliding_window=4),
    "gemma2": lambda: transformers.Gemma2Config(**GROUPED, head_dim=16, sliding_window=4, query_pre_attn_scalar=16),
    "gemma3": lambda: transformers.Gemma3TextConfig(**GROUPED, head_dim=16, sliding_window=4, query_pre_attn_scalar=16),
    "phi3": lambda: transformers.Phi3Config(**GROUPED),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(**LLAMA_LIKE),
    "gpt2": lambda: transformers.GPT2Config(**GPT2_LIKE, vocab_size=90, bos_token_id=1, eos_token_id=2),
    "olmo2": lambda: transformers.Olmo2Config(**GROUPED),
    "falcon": lambda: transformers.FalconConfig(**FALCON_LIKE),
}


def random_model(config, seed=0):
    """A causal model of `config` with random weights, in eval mode; its norms are not left at
    one.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config)
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


@pytest.fixture(scope="session", params=ARCHITECTURES)
def architecture(request):
    """(name, random model) of every supported family: a test that takes it runs once for each."""
    return request.param, random_model(ARCHITECTURES[request.param]())


@pytest.fixture(scope="session")
def llama():
    """LM of a tiny Llama: word tokenizer that would add <s>, a chat template that writes <s>
    itself, pad != eos.
    """
    config = transformers.LlamaConfig(**{**GROUPED, "vocab_size": len(VOCABULARY)})
    return language_model.wrap(random_model(config, 1), word_tokenizer())


@pytest.fixture(scope="session")
def gpt2():
    """LM of a tiny GPT-2 (absolute positions): byte tokenizer, pad == eos == 256."""
    config = transformers.GPT2Config(
        **GPT2_LIKE, vocab_size=257, bos_token_id=256, eos_token_id=256, tie_word_embeddings=False
    )
    return language_model.wrap(random_model(config, 2), byte_tokenizer())


@pytest.fixture(scope="session", params=["llama", "gpt2"])
def either(request, llama, gpt2):
    """Both of the above, one after the other."""
    return {"llama": llama, "gpt2": gpt2}[request.param]


@pytest.fixture(scope="session")
def prompts():
    """Prompts of mixed lengths, ids valid in every model here; one starts with id 0, one holds ids
    1 and 2 (bos, eos).
    """
    generator = torch.Generator().manual_seed(5)
    rows = [torch.randint(3, 50, (n,), generator=generator).tolist() for n in (4, 11, 1, 7, 7, 13, 2)]
    rows[1][0], rows[3][2], rows[3][3] = 0, 1, 2
    return rows


@pytest.fixture(scope="session")
def planted():
    """(activations, labels, truth, parts, config): layer 2 of "mlp" alone tells what is known.

    200 questions in groups of two, of which the last 20 have no label, and 10 more of another split
    behind them; `truth` (210,) is what is known of all of them.
    """
    generator = torch.Generator().manual_seed(0)
    truth = np.array([1, 0] * 105)
    labels = np.where(np.arange(200) < 180, truth[:200], -1)
    activations = {kind: torch.randn(210, 4, 8, generator=generator) for kind in ("attention", "mlp", "hidden")}
    activations["mlp"][:, 1, 4] += 2.5 * (2.0 * torch.tensor(truth) - 1)
    config = probe.ProbeConfig(repeats=3, l2=(1.0, 100.0))
    parts = probe.split_by_group([f"g{i // 2}" for i in range(200)], config, 0)
    return activations, labels, truth, np.where(labels >= 0, parts, -1), config


def full_log_probs(model, sequence, temperature=1.0):
    """log_softmax at every position of one sequence, alone, unpadded, in float64 after the forward:
    the reference.
    """
    with torch.no_grad():
        return (model(torch.tensor([sequence], device=model.device)).logits[0].double() / temperature).log_softmax(-1)
