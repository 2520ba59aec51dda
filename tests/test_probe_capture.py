"""Activations against Hugging Face's hidden states and attention by hand, and that reading them
leaves the model as it was.
"""

import copy
import math
from dataclasses import replace

import pytest
import torch
from tiny import one_thread  # noqa: F401

import probe
from lm import model as language_model
from lm.layers import decoder_layers

FINAL_NORMS = ("norm", "final_layer_norm", "ln_f")
NORMS_BEHIND = ("gemma2", "gemma3", "olmo2")  # families that normalise attention and MLP output before they are added


@pytest.fixture(scope="module")
def captured(architecture, prompts, llama):
    name, model = architecture
    return (
        name,
        model,
        probe.capture(language_model.LM(model, llama.tokenizer, torch.float32, frozenset()), prompts, rows=3),
    )


def hidden_states(model, prompt):
    """Hugging Face's hidden states of one prompt alone: embeddings, then every layer; (layers + 1,
    tokens, width).
    """
    with torch.no_grad():
        return torch.stack(model(torch.tensor([prompt]), output_hidden_states=True).hidden_states)[:, 0]


def child(module, *names):
    return next(getattr(module, name) for name in names if hasattr(module, name))


def layers_of(model):
    return child(model.base_model, "layers", "h")


def projection_of(layer):
    """The module that maps the heads' outputs to the width of the residual stream."""
    return child(child(layer, "self_attn", "attention", "attn", "self_attention"), "o_proj", "dense", "c_proj")


def close(got, expected):
    scale = expected.abs().max().clamp(min=1)
    return ((got - expected).abs().max() / scale).item() < 2e-5


def test_hidden_is_each_layers_output_at_the_last_token(captured, prompts):
    name, model, states = captured
    assert states["hidden"].shape == (len(prompts), 3, 32) and states["hidden"].dtype == torch.float32
    for row, prompt in zip(states["hidden"], prompts):
        assert close(row[:-1], hidden_states(model, prompt)[1:-1, -1]), name


def test_the_last_layers_hidden_is_taken_before_the_final_norm(captured, prompts):
    name, model, states = captured
    norm = child(model.base_model, *FINAL_NORMS)
    for row, prompt in zip(states["hidden"], prompts):
        last = hidden_states(model, prompt)[-1, -1]
        with torch.no_grad():
            assert close(norm(row[-1]), last), name
        assert not close(row[-1], last)


def test_attention_and_mlp_are_what_each_layer_adds_to_the_residual_stream(captured, prompts):
    name, model, states = captured
    for n, prompt in enumerate(prompts):
        stream = hidden_states(model, prompt)[0, -1]
        for i, layer in enumerate(layers_of(model)):
            with torch.no_grad():
                attention = projection_of(layer)(states["attention"][n, i][None])[0]
                mlp = states["mlp"][n, i]
                if name in NORMS_BEHIND:
                    attention, mlp = layer.post_attention_layernorm(attention), layer.post_feedforward_layernorm(mlp)
            assert close(stream + attention + mlp, states["hidden"][n, i]), (name, i)
            stream = states["hidden"][n, i]


def softmax_attention(q, k, v):
    """Outputs of one head at the last position, from lists of vectors: the dot products, softmax
    and sum written out.
    """
    scores = [(q[-1] @ key).item() / math.sqrt(len(key)) for key in k]
    weights = [math.exp(s - max(scores)) for s in scores]
    return sum(w / sum(weights) * value for w, value in zip(weights, v))


def test_llamas_attention_is_the_dot_product_attention_by_hand(llama, prompts):
    states = probe.capture(llama, prompts)["attention"]
    config = llama.model.config
    heads, groups, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim

    def rotate(vector, position):
        result = vector.clone()
        for j in range(size // 2):
            angle = position * 10000.0 ** (-2 * j / size)
            a, b = vector[j], vector[j + size // 2]
            result[j] = a * math.cos(angle) - b * math.sin(angle)
            result[j + size // 2] = b * math.cos(angle) + a * math.sin(angle)
        return result

    for n, prompt in enumerate(prompts):
        streams = hidden_states(llama.model, prompt).double()
        for i, layer in enumerate(llama.model.model.layers):
            x = streams[i]
            x = (
                x
                / (x.pow(2).mean(-1, keepdim=True) + config.rms_norm_eps).sqrt()
                * layer.input_layernorm.weight.detach().double()
            )
            q, k, v = (x @ getattr(layer.self_attn, f"{c}_proj").weight.detach().double().T for c in "qkv")
            outputs = []
            for head in range(heads):
                part, shared = slice(head * size, (head + 1) * size), head // (heads // groups)
                other = slice(shared * size, (shared + 1) * size)
                outputs.append(
                    softmax_attention(
                        [rotate(u[part], t) for t, u in enumerate(q)],
                        [rotate(u[other], t) for t, u in enumerate(k)],
                        v[:, other],
                    )
                )
            assert close(states[n, i], torch.cat(outputs).float()), (n, i)


def test_gpt2s_attention_is_the_dot_product_attention_by_hand(gpt2, prompts):
    states = probe.capture(gpt2, prompts)["attention"]
    for n, prompt in enumerate(prompts):
        streams = hidden_states(gpt2.model, prompt).double()
        for i, layer in enumerate(gpt2.model.transformer.h):
            x = streams[i]
            x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
            x = x * layer.ln_1.weight.detach().double() + layer.ln_1.bias.detach().double()
            q, k, v = (x @ layer.attn.c_attn.weight.detach().double() + layer.attn.c_attn.bias.detach().double()).split(
                32, -1
            )
            outputs = [softmax_attention(q[:, h : h + 8], k[:, h : h + 8], v[:, h : h + 8]) for h in range(0, 32, 8)]
            assert close(states[n, i], torch.cat(outputs).float()), (n, i)


def test_the_batch_and_its_padding_change_nothing(captured, prompts, llama):
    _, model, states = captured
    lm = language_model.LM(model, llama.tokenizer, torch.float32, frozenset())
    alone, backwards = probe.capture(lm, prompts, rows=1), probe.capture(lm, prompts[::-1], rows=100)
    assert set(states) == set(alone) == {"attention", "mlp", "hidden"}
    for kind in states:
        assert close(states[kind], alone[kind]) and close(states[kind], backwards[kind].flip(0))


def test_both_forms_of_a_layers_output_are_read(prompts, llama):
    """The same numbers, whether a layer returns its hidden states or a tuple that begins with
    them.
    """
    layers, seen = llama.model.model.layers, []
    expected = probe.capture(llama, prompts)["hidden"]
    as_tuple = [layer.register_forward_hook(lambda m, args, out: seen.append(type(out)) or (out,)) for layer in layers]
    as_tensor = [
        after.register_forward_pre_hook(
            lambda m, args: (args[0][0] if isinstance(args[0], tuple) else args[0], *args[1:])
        )
        for after in [*layers[1:], llama.model.model.norm]
    ]
    try:
        assert torch.equal(probe.capture(llama, prompts)["hidden"], expected)
    finally:
        for hook in as_tuple + as_tensor:
            hook.remove()
    assert seen and set(seen) == {torch.Tensor}


def hooks_on(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_hooks_are_removed_also_after_an_error(llama, prompts):
    before, done = hooks_on(llama.model), []
    probe.capture(llama, prompts, rows=3, progress=done.append)
    assert hooks_on(llama.model) == before and done == [3, 3, 1]
    with pytest.raises(IndexError):
        probe.capture(llama, [[3, 10_000]])
    assert hooks_on(llama.model) == before
    with pytest.raises(KeyboardInterrupt):
        probe.capture(llama, prompts, progress=lambda n: (_ for _ in ()).throw(KeyboardInterrupt))
    assert hooks_on(llama.model) == before


def test_the_language_model_head_is_not_computed(llama, prompts):
    calls = []
    hook = llama.model.lm_head.register_forward_hook(lambda *args: calls.append(1))
    try:
        probe.capture(llama, prompts)
    finally:
        hook.remove()
    assert not calls


def test_bfloat16_gives_float32_near_the_exact_states(llama, prompts):
    exact, near = probe.capture(llama, prompts), probe.capture(replace(llama, dtype=torch.bfloat16), prompts)
    for kind in exact:
        assert near[kind].dtype == torch.float32
        assert 0 < (near[kind] - exact[kind]).abs().mean() < 0.05 * exact[kind].abs().mean()


def test_a_model_whose_layers_have_no_attention_projection_is_read_without_attention(llama, prompts):
    class Wrapped(torch.nn.Module):
        """The same attention, but with its output projection where no name tells of it."""

        def __init__(self, inside):
            super().__init__()
            self.inside = inside

        def forward(self, *args, **options):
            return self.inside(*args, **options)

    model, expected = copy.deepcopy(llama.model), probe.capture(llama, prompts)
    for layer in model.model.layers:
        layer.self_attn = Wrapped(layer.self_attn)
        assert probe.hook_points(layer) == {"mlp": layer.mlp, "hidden": layer}
    states = probe.capture(replace(llama, model=model), prompts)
    assert set(states) == {"mlp", "hidden"} and all(torch.equal(states[kind], expected[kind]) for kind in states)


def test_a_model_without_layers_is_an_error(llama):
    class Flat(torch.nn.Module):
        config = llama.model.config

    with pytest.raises(ValueError, match="3 decoder layers"):
        decoder_layers(Flat())
