"""Probing against Hugging Face's hidden states, attention by hand, and loops over questions, layers and repeats."""
import copy
import io
import math
import os
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file

import lm as language_model
import metrics
import probe
import tiny
from files import UserError
from logistic import fit_logistic
from probe import Probe, ProbeConfig
from test_metrics import auroc_by_pairs, sigmoid
from tiny import one_thread  # noqa: F401

FINAL_NORMS = ("norm", "final_layer_norm", "ln_f")
NORMS_BEHIND = ("gemma2", "gemma3", "olmo2")  # families that normalise attention and MLP output before they are added


# ---------------------------------------------------------------------------------------------------- activations

@pytest.fixture(scope="module")
def captured(architecture, prompts, llama):
    name, model = architecture
    return name, model, probe.capture(language_model.LM(model, llama.tokenizer, torch.float32, frozenset()), prompts, rows=3)


def hidden_states(model, prompt):
    """Hugging Face's hidden states of one prompt alone: embeddings, then every layer; (layers + 1, tokens, width)."""
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
    """Outputs of one head at the last position, from lists of vectors: the dot products, softmax and sum written out."""
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
            x = x / (x.pow(2).mean(-1, keepdim=True) + config.rms_norm_eps).sqrt() * layer.input_layernorm.weight.detach().double()
            q, k, v = (x @ getattr(layer.self_attn, f"{c}_proj").weight.detach().double().T for c in "qkv")
            outputs = []
            for head in range(heads):
                part, shared = slice(head * size, (head + 1) * size), head // (heads // groups)
                other = slice(shared * size, (shared + 1) * size)
                outputs.append(softmax_attention([rotate(u[part], t) for t, u in enumerate(q)],
                                                 [rotate(u[other], t) for t, u in enumerate(k)], v[:, other]))
            assert close(states[n, i], torch.cat(outputs).float()), (n, i)


def test_gpt2s_attention_is_the_dot_product_attention_by_hand(gpt2, prompts):
    states = probe.capture(gpt2, prompts)["attention"]
    for n, prompt in enumerate(prompts):
        streams = hidden_states(gpt2.model, prompt).double()
        for i, layer in enumerate(gpt2.model.transformer.h):
            x = streams[i]
            x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
            x = x * layer.ln_1.weight.detach().double() + layer.ln_1.bias.detach().double()
            q, k, v = (x @ layer.attn.c_attn.weight.detach().double() + layer.attn.c_attn.bias.detach().double()).split(32, -1)
            outputs = [softmax_attention(q[:, h:h + 8], k[:, h:h + 8], v[:, h:h + 8]) for h in range(0, 32, 8)]
            assert close(states[n, i], torch.cat(outputs).float()), (n, i)


def test_the_batch_and_its_padding_change_nothing(captured, prompts, llama):
    _, model, states = captured
    lm = language_model.LM(model, llama.tokenizer, torch.float32, frozenset())
    alone, backwards = probe.capture(lm, prompts, rows=1), probe.capture(lm, prompts[::-1], rows=100)
    assert set(states) == set(alone) == {"attention", "mlp", "hidden"}
    for kind in states:
        assert close(states[kind], alone[kind]) and close(states[kind], backwards[kind].flip(0))


def test_both_forms_of_a_layers_output_are_read(prompts, llama):
    """The same numbers, whether a layer returns its hidden states or a tuple that begins with them."""
    layers, seen = llama.model.model.layers, []
    expected = probe.capture(llama, prompts)["hidden"]
    as_tuple = [layer.register_forward_hook(lambda m, args, out: seen.append(type(out)) or (out,)) for layer in layers]
    as_tensor = [after.register_forward_pre_hook(lambda m, args: (args[0][0] if isinstance(args[0], tuple) else args[0], *args[1:]))
                 for after in [*layers[1:], llama.model.model.norm]]
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
        probe.decoder_layers(Flat())


# ---------------------------------------------------------------------------------------------------- labels

def percentile_by_hand(values, percent):
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


@pytest.mark.parametrize("upper, lower", [(65, 35), (70, 30), (50, 50)])
def test_prelabels_are_the_papers_for_all_k_samples(upper, lower):
    generator = np.random.default_rng(0)
    scores = generator.normal(size=(60, 1)) + 0.3 * generator.normal(size=(60, 3))
    high, low = (percentile_by_hand(scores.ravel().tolist(), p) for p in (upper, lower))
    expected = []
    for row in scores:
        above, below = sum(s > high for s in row), sum(s < low for s in row)
        expected.append(1 if above == 3 else 0 if below == 3 else -1)
    assert set(expected) == {1, 0, -1}
    assert probe.prelabel(scores, upper, lower).tolist() == expected
    if (upper, lower) == (65, 35):
        assert probe.prelabel(scores).tolist() == expected, "the paper's percentiles are the default"


def test_a_score_on_the_threshold_is_neither_correct_nor_incorrect():
    scores = np.array([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [4.0, 4.0]])  # percentiles 25 and 75 are the scores 1 and 3
    assert probe.prelabel(scores, 75, 25).tolist() == [0, -1, -1, -1, 1]


@pytest.mark.parametrize("known_share, unknown_share", [(0.5, 0.0), (0.75, 0.25), (1.0, 0.5)])
def test_gold_labels_need_the_share_of_hits_and_the_greedy_answer(known_share, unknown_share):
    rows = [[bool(n >> i & 1) for i in range(4)] for n in range(16)]
    hits, greedy = np.array(rows * 2), np.array([True] * 16 + [False] * 16)
    expected = []
    for row, right in zip(hits.tolist(), greedy.tolist()):
        share = sum(row) / 4
        expected.append(1 if right and share >= known_share else 0 if not right and share <= unknown_share else -1)
    assert set(expected) == {1, 0, -1}
    assert probe.gold_label(hits, greedy, known_share, unknown_share).tolist() == expected
    if (known_share, unknown_share) == (0.5, 0.0):
        assert probe.gold_label(hits, greedy).tolist() == expected


# ---------------------------------------------------------------------------------------------------- splits

@pytest.fixture(scope="module")
def groups():
    """Names of the groups of 250 questions: 1 to 4 questions each, in mixed order."""
    names = [f"subject {i}" for i in range(100) for _ in range(i % 4 + 1)]
    np.random.default_rng(1).shuffle(names)
    return names


def test_a_group_is_never_split_and_every_question_has_a_part(groups):
    parts = probe.split_by_group(groups, ProbeConfig(repeats=6), 0)
    assert parts.shape == (6, len(groups)) and set(parts.ravel()) == {0, 1, 2}
    for row in parts:
        part = {}
        for group, p in zip(groups, row):
            assert part.setdefault(group, p) == p


def test_the_parts_are_as_large_as_asked_in_groups(groups):
    for row in probe.split_by_group(groups, ProbeConfig(repeats=4, valid=0.3, test=0.1), 0):
        members = {part: {g for g, p in zip(groups, row) if p == part} for part in (0, 1, 2)}
        assert [len(members[part]) for part in (0, 1, 2)] == [60, 30, 10]


def test_repeats_and_seeds_split_differently_and_the_same_seed_the_same(groups):
    first = probe.split_by_group(groups, ProbeConfig(repeats=5), 7)
    assert np.array_equal(first, probe.split_by_group(groups, ProbeConfig(repeats=5), 7))
    assert not np.array_equal(first, probe.split_by_group(groups, ProbeConfig(repeats=5), 8))
    assert len({tuple(row) for row in first}) == 5


def test_the_split_depends_on_the_groups_names_not_on_the_order_or_number_of_questions(groups):
    order = np.random.default_rng(2).permutation(len(groups))
    there = probe.split_by_group(groups, ProbeConfig(), 0)
    assert np.array_equal(probe.split_by_group([groups[i] for i in order], ProbeConfig(), 0), there[:, order])
    assert np.array_equal(probe.split_by_group(groups + groups[:30], ProbeConfig(), 0), np.concatenate([there, there[:, :30]], 1))


# ---------------------------------------------------------------------------------------------------- logits

def test_predict_against_loops():
    features, weight, bias = torch.randn(2, 4, 3), torch.randn(2, 5, 2, 3), torch.randn(2, 5, 2)
    logits = probe.predict(features, weight, bias)
    assert logits.shape == (2, 5, 2, 4)
    for g in range(2):
        for r in range(5):
            for s in range(2):
                for n in range(4):
                    expected = sum((weight[g, r, s, d] * features[g, n, d]).item() for d in range(3)) + bias[g, r, s].item()
                    assert logits[g, r, s, n].item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("standardise", [True, False])
def test_every_layer_of_every_kind_is_fitted_alone_and_read_on_all_questions(planted, standardise):
    activations, labels, _, parts, config = planted
    found = probe.logits_everywhere(activations, labels.clip(0), parts == 0, config.l2, standardise)
    assert list(found) == list(activations)
    for kind, (weight, bias, logits) in found.items():
        assert weight.shape == (4, 3, 2, 8) and bias.shape == (4, 3, 2) and logits.shape == (4, 3, 2, 210)
        for layer in range(4):
            w, b = fit_logistic(activations[kind][None, :200, layer], labels.clip(0), parts == 0, config.l2, standardise)
            expected = torch.einsum("nd,rsd->rsn", activations[kind][:, layer], w[0]) + b[0][..., None]
            torch.testing.assert_close(logits[layer], expected, rtol=0, atol=0.01)


@pytest.mark.parametrize("layer, layers, width, expected", [
    (4, 10, 1, [4]), (0, 10, 1, [0]), (9, 10, 1, [9]),
    (4, 10, 5, [2, 3, 4, 5, 6]), (0, 10, 5, [0, 1, 2]), (1, 10, 5, [0, 1, 2, 3]), (8, 10, 5, [6, 7, 8, 9]), (9, 10, 5, [7, 8, 9]),
    (4, 10, 4, [3, 4, 5, 6]), (0, 10, 4, [0, 1, 2]), (9, 10, 4, [8, 9]), (4, 10, 2, [4, 5]), (9, 10, 2, [9]),
    (1, 3, 9, [0, 1, 2]), (0, 3, 9, [0, 1, 2]), (2, 3, 9, [0, 1, 2]), (0, 1, 5, [0])])
def test_a_band_is_as_wide_as_asked_in_the_middle_and_cut_at_both_ends(layer, layers, width, expected):
    assert list(probe.band_of(layer, layers, width)) == expected


@pytest.mark.parametrize("width", [1, 2, 3, 4, 7, 20])
def test_banded_logits_are_means_over_the_layers_within_reach(width):
    logits = torch.randn(6, 2, 3, 5, generator=torch.Generator().manual_seed(0))
    averaged = probe.banded(logits, width)
    assert averaged.shape == logits.shape
    for layer in range(6):
        near = [logits[other] for other in range(6) if -((width - 1) // 2) <= other - layer <= width // 2]
        torch.testing.assert_close(averaged[layer], sum(near) / len(near))


# ---------------------------------------------------------------------------------------------------- choice

def mean_loss(logits, labels, parts, part):
    """Mean over the repeats of the mean surprise on one part, by loops; logits (repeats, questions)."""
    means = []
    for z, row in zip(logits.tolist(), parts):
        losses = [-math.log(sigmoid(v) if label else 1 - sigmoid(v)) for v, label, p in zip(z, labels, row) if p == part]
        means.append(sum(losses) / len(losses))
    return sum(means) / len(means)


def random_choice(seed=0):
    """(found, labels, parts) without any probe: logits of two kinds, 4 layers, 2 repeats, 3 strengths, 40 questions and 5 more."""
    g = torch.Generator().manual_seed(seed)
    labels = np.array([1, 0, 1, 0, -1] * 8)
    parts = np.where(labels >= 0, np.random.default_rng(seed).integers(0, 3, (2, 40)), -1)
    signs = torch.tensor([1.0, -1, 1, -1, 0] * 9)
    logits = {kind: signs * torch.rand(4, 1, 3, 1, generator=g) + torch.randn(4, 2, 3, 45, generator=g) for kind in ("mlp", "hidden")}
    return {kind: (None, None, z) for kind, z in logits.items()}, labels, parts


def test_strength_is_chosen_on_validation_and_only_then_is_the_test_split_read():
    labels = np.array([1, 0, 1, 0, 1, 0, 1, 0, -1])
    parts = np.array([[0, 0, 1, 1, 2, 2, 2, 2, -1], [2, 2, 2, 2, 1, 1, 0, 0, -1]])
    right = torch.tensor([1.0, -1, 1, -1, 1, -1, 1, -1, 1])
    logits = right.repeat(2, 2, 3, 1)  # (groups, repeats, strengths, questions), all of them right
    for r in range(2):
        valid, test, train = (torch.tensor(parts[r] == p) for p in (1, 2, 0))
        logits[0, r, 0, valid] *= -1  # strength 0: wrong on validation, right on test and train: must not be taken
        logits[0, r, 1, test & (right > 0)] *= -1  # strength 1: right on validation, says unknown to all on test: to be taken
        logits[0, r, 2, valid & (right > 0)] *= -1  # strength 2: half right on validation
        logits[1, r, 0, train] *= -1  # the other group: all right but on the training rows
    logits[1, 0, 1:, torch.tensor(parts[0] == 1)] *= -1
    logits[0, 1, 1, 1] = 5.0  # second repeat, test split: one more wrong
    first, second = probe.score_probes(logits, labels, parts)
    sure = -math.log(sigmoid(1))  # the loss of logit 1 where it is right
    assert first["strength"] == 1 and first["valid_loss"] == pytest.approx(sure)
    assert first["accuracy"] == pytest.approx((2 / 4 + 1 / 4) / 2)
    assert (first["accuracy_min"], first["accuracy_max"]) == (0.25, 0.5)
    assert first["balanced_accuracy"] == pytest.approx((0.5 + 0.25) / 2)
    by_pairs = [auroc_by_pairs(logits[0, r, 1][parts[r] == 2].tolist(), labels[parts[r] == 2] == 1) for r in range(2)]
    assert first["auroc"] == pytest.approx(np.mean(by_pairs))
    assert second["strength"] == 0 and second["valid_loss"] == pytest.approx(sure) and second["accuracy"] == second["auroc"] == 1.0


def test_strength_is_chosen_by_loss_and_not_by_accuracy():
    """Strength 0 is right more often on validation, but sure of itself where it is wrong."""
    labels, parts = np.array([1, 0] * 4), np.array([[1] * 6 + [2] * 2])
    logits = torch.tensor([[[[9.0, 9, 9, -9, 9, -9, 1, -1], [-0.1, 0.1, 2, -2, 2, -2, 1, -1]]]])
    row = probe.score_probes(logits, labels, parts)[0]
    assert row["strength"] == 1 and row["valid_loss"] == pytest.approx(mean_loss(logits[0, :, 1], labels, parts, 1))


@pytest.mark.parametrize("band", [1, 2, 3, 5])
def test_the_probe_chosen_has_the_least_loss_on_validation_of_all_by_loops(band):
    for seed in range(5):
        found, labels, parts = random_choice(seed)
        losses = {}
        for kind, (_, _, logits) in found.items():
            for layer in range(4):
                layers = [i for i in range(4) if -((band - 1) // 2) <= i - layer <= band // 2]
                for strength in range(3):
                    averaged = sum(logits[i, :, strength] for i in layers) / len(layers)
                    losses[mean_loss(averaged, labels, parts, 1), kind, tuple(layers), strength] = averaged
        (loss, kind, layers, strength), averaged = min(losses.items(), key=lambda item: item[0][0])
        best = probe.choose(found, labels, parts, band)
        assert (best["kind"], tuple(best["layers"]), best["strength"]) == (kind, layers, strength)
        assert best["valid_loss"] == pytest.approx(loss)
        torch.testing.assert_close(best["logits"], averaged)
        tested = [[(z > 0) == y for z, y, p in zip(row, labels, part) if p == 2] for row, part in zip(averaged.tolist(), parts)]
        right = [sum(row) / len(row) for row in tested]
        assert best["accuracy"] == pytest.approx(sum(right) / 2)
        assert (best["accuracy_min"], best["accuracy_max"]) == pytest.approx((min(right), max(right)))


def test_the_choice_never_looks_at_the_test_split():
    """The kind that is not chosen comes to know the test questions by heart, and still is not; nor do their labels matter."""
    found, labels, parts = random_choice()
    parts[:, :15] = np.where(labels[:15] >= 0, 2, -1)  # in all repeats
    parts[:, 15:] = np.where(parts[:, 15:] == 2, 0, parts[:, 15:])
    before = probe.choose(found, labels, parts, 3)
    only_test, other = (parts == 2).all(0), "mlp" if before["kind"] == "hidden" else "hidden"
    assert 10 <= only_test.sum() == (parts == 2).any(0).sum() and before["accuracy"] > 0.5
    found[other][2][..., :15] = 50 * torch.tensor([1.0, -1, 1, -1, 0] * 3)
    flipped = np.where(only_test, 1 - labels, labels)
    for new in (labels, flipped):
        after = probe.choose(found, new, parts, 3)
        assert all(after[key] == before[key] for key in ("kind", "layers", "strength", "valid_loss"))
        assert torch.equal(after["logits"], before["logits"])
    assert after["accuracy"] == pytest.approx(1 - before["accuracy"]), "but the test split's figures are those of its labels"


def test_neither_fit_nor_choice_look_at_the_labels_and_activations_of_questions_that_are_only_tested(planted):
    activations, labels, _, parts, config = planted
    parts = np.where(parts == 2, 0, parts)
    parts[:, :60] = np.where(labels[:60] >= 0, 2, -1)
    changed, other = {kind: states.clone() for kind, states in activations.items()}, labels.copy()
    other[:60] = np.where(labels[:60] >= 0, 1 - labels[:60], -1)
    for states in changed.values():
        states[:60] = states[:60].roll(1, 1)  # another layer's
    best, after = (probe.choose(probe.logits_everywhere(x, y.clip(0), parts == 0, config.l2, config.standardise), y, parts, 1)
                   for x, y in ((activations, labels), (changed, other)))
    assert (best["kind"], best["layers"]) == ("mlp", [1])
    assert all(after[key] == best[key] for key in ("kind", "layers", "strength"))
    assert after["valid_loss"] == pytest.approx(best["valid_loss"], abs=1e-3) and after["accuracy"] < 0.6 < best["accuracy"]


def test_the_layer_and_kind_that_know_are_found(planted):
    activations, labels, truth, parts, config = planted
    found = probe.logits_everywhere(activations, labels.clip(0), parts == 0, config.l2, config.standardise)
    best = probe.choose(found, labels, parts, 1)
    assert (best["kind"], best["layers"]) == ("mlp", [1]) and best["logits"].shape == (3, 210)
    assert best["accuracy"] > 0.93 and best["auroc"] > 0.97
    for kind, (_, _, logits) in found.items():
        for layer, row in enumerate(probe.score_probes(logits[..., :200], labels, parts)):
            assert (kind, layer) == ("mlp", 1) or (row["accuracy"] < 0.75 and row["valid_loss"] > best["valid_loss"])
    p, unlabelled = probe.out_of_fold(best["logits"], np.append(parts, np.full((3, 10), -1), 1)), np.append(labels, [-1] * 10) < 0
    assert metrics.auroc(p[unlabelled], truth[unlabelled]) > 0.9, "also on questions without label and on those of other splits"


def test_p_known_is_the_mean_over_probes_that_did_not_see_the_question():
    parts = np.array([[0, 1, 0, -1, 2], [2, 0, 0, -1, 0], [1, 1, 0, -1, 0]])
    logits = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    got = probe.out_of_fold(logits, parts)
    for n in range(5):
        unseen = [r for r in range(3) if parts[r, n] != 0] or [0, 1, 2]  # nobody left: all of them
        assert got[n] == pytest.approx(sum(sigmoid(logits[r, n].item()) for r in unseen) / len(unseen), abs=1e-6)


def test_the_temperature_comes_from_validation_and_the_calibration_errors_from_test():
    """Logits are four times too sure on validation and test, and nonsense everywhere else, where they must not count."""
    generator = np.random.default_rng(0)
    honest = generator.normal(scale=2, size=6000)
    labels = (generator.random(6000) < 1 / (1 + np.exp(-honest))).astype(int)
    parts = generator.integers(0, 3, (2, 6000))
    labels[:500], parts[:, :500] = -1, -1
    logits = np.where(parts == 0, -honest, np.where(parts == -1, 1000, 4 * honest))
    logits = torch.tensor(np.append(logits, np.full((2, 7), -1000.0), 1), dtype=torch.float32)  # 7 questions of other splits
    temperature, before, after = probe.calibrate({"logits": logits}, labels, parts)
    assert temperature == pytest.approx(4, rel=0.07)
    for part, error, divisor in ((2, before, 1), (2, after, temperature)):
        pairs = [(logits[r, n].item() / divisor, labels[n]) for r in range(2) for n in range(6000) if parts[r, n] == part]
        expected = metrics.calibration_error([sigmoid(z) for z, _ in pairs], [y for _, y in pairs])
        assert error == pytest.approx(expected, abs=1e-4)
    assert before > 0.08 and after < 0.03
    labels[(parts == 2).any(0) & (parts != 1).all(0)] = 1  # labels that only the test split reads
    assert probe.calibrate({"logits": logits}, labels, parts)[0] == temperature


# ---------------------------------------------------------------------------------------------------- the probe in use

@pytest.fixture(scope="module")
def chosen(planted):
    """(activations, found, best, probe) with a band of layers and a temperature that is not one."""
    activations, labels, truth, parts, config = planted
    activations = {**activations, "mlp": activations["mlp"].clone()}
    activations["mlp"][:, 1:, 2] += torch.tensor(truth)[:, None] * 2.0  # three layers that all tell something
    activations["mlp"][:, 2, 5] = 3.0  # a constant feature in one of them
    found = probe.logits_everywhere(activations, labels.clip(0), parts == 0, config.l2, config.standardise)
    best = probe.choose(found, labels, parts, 3)
    return activations, found, best, probe.probe_in_use(best, found, activations, 1.6)


def test_the_probe_in_use_gives_the_mean_over_repeats_of_the_chosen_probes_calibrated_probabilities(chosen):
    activations, _, best, in_use = chosen
    assert (best["kind"], best["layers"]) == ("mlp", [1, 2, 3])
    expected = (best["logits"] / 1.6).sigmoid().mean(0)
    torch.testing.assert_close(in_use.p_known(activations), expected, rtol=0, atol=1e-5)
    some = {kind: states[50:53] for kind, states in activations.items()}
    torch.testing.assert_close(in_use.p_known(some), expected[50:53], rtol=0, atol=1e-5)
    assert expected.std() > 0.2


def test_p_known_is_the_formula_by_hand_from_the_weights_found(chosen):
    activations, found, best, in_use = chosen
    weight, bias, _ = found["mlp"]
    p = in_use.p_known(activations)
    for n in (0, 7, 205):
        repeats = []
        for r in range(3):
            layers = [sum((weight[i, r, best["strength"], d] * activations["mlp"][n, i, d]).item() for d in range(8))
                      + bias[i, r, best["strength"]].item() for i in best["layers"]]
            repeats.append(sigmoid(sum(layers) / 3 / 1.6))
        assert p[n].item() == pytest.approx(sum(repeats) / 3, abs=1e-5)


def test_the_probe_in_use_standardises_by_the_questions_it_was_given(chosen):
    activations, _, best, in_use = chosen
    for row, layer in enumerate(best["layers"]):
        for d in range(8):
            values = activations["mlp"][:, layer, d].tolist()
            mean = sum(values) / 210
            assert in_use.mean[row, d].item() == pytest.approx(mean, abs=1e-5)
            deviation = (sum((v - mean) ** 2 for v in values) / 209) ** 0.5
            assert in_use.scale[row, d].item() == pytest.approx(max(deviation, 1e-6), rel=1e-4)
    assert in_use.weight.shape == (3, 3, 8) and in_use.bias.shape == (3, 3)


def some_probe(kind="mlp", layers=(0, 1), width=32, repeats=3):
    """A probe of random numbers."""
    g = torch.Generator().manual_seed(0)
    shape = len(layers), width
    return Probe(kind, list(layers), torch.randn(shape, generator=g), 0.5 + torch.rand(shape, generator=g),
                 torch.randn(repeats, *shape, generator=g), torch.randn(repeats, len(layers), generator=g), 2.5)


@pytest.mark.parametrize("kind, layers", [("mlp", (0, 2)), ("hidden", (1,)), ("attention", (0, 1, 2))])
def test_a_probe_reads_its_own_kind_and_layers_by_hand(kind, layers):
    in_use, g = some_probe(kind, layers, width=4), torch.Generator().manual_seed(1)
    activations = {name: torch.randn(5, 3, 4, generator=g) for name in probe.KINDS}
    p = in_use.p_known(activations)
    for n in range(5):
        repeats = []
        for r in range(3):
            z = 0
            for row, layer in enumerate(layers):
                x = (activations[kind][n, layer] - in_use.mean[row]) / in_use.scale[row]
                z += (sum((x[d] * in_use.weight[r, row, d]).item() for d in range(4)) + in_use.bias[r, row].item()) / len(layers)
            repeats.append(sigmoid(z / 2.5))
        assert p[n].item() == pytest.approx(sum(repeats) / 3, abs=1e-5)


# ---------------------------------------------------------------------------------------------------- files

def test_a_saved_probe_comes_back_from_its_folder_or_file(chosen, tmp_path):
    activations, _, _, in_use = chosen
    probe.save(in_use, str(tmp_path), "some/model")
    for path in (tmp_path, tmp_path / "probes.safetensors"):
        again = probe.load(str(path))
        assert (again.kind, again.layers) == (in_use.kind, in_use.layers) and again.temperature == pytest.approx(1.6)
        assert all(torch.equal(getattr(again, name), getattr(in_use, name)) for name in ("mean", "scale", "weight", "bias"))
        torch.testing.assert_close(again.p_known(activations), in_use.p_known(activations), rtol=0, atol=1e-6)


def test_the_file_says_what_was_read_counting_layers_from_one(tmp_path):
    probe.save(some_probe("attention", (2, 3, 4)), str(tmp_path), "some/model")
    with safe_open(str(tmp_path / "probes.safetensors"), "pt") as f:
        assert f.metadata() == {"kind": "attention", "layers": "3,4,5", "model": "some/model"}


GOOD = {"mean": (2, 8), "scale": (2, 8), "weight": (3, 2, 8), "bias": (3, 2), "temperature": ()}
ABOUT = {"kind": "mlp", "layers": "1,2", "model": "m"}


def written(path, shapes, about=ABOUT):
    save_file({name: torch.ones(shape) for name, shape in shapes.items()}, str(path), about)
    return str(path)


def test_the_file_that_the_broken_ones_differ_from_is_read(tmp_path):
    assert probe.load(written(tmp_path / "p.safetensors", GOOD)).layers == [0, 1]


@pytest.mark.parametrize("changed", [
    {"mean": (2, 7)}, {"mean": (8,)}, {"mean": ()}, {"scale": (1, 8)}, {"scale": (2, 1)}, {"weight": (3, 8)}, {"weight": (3, 1, 8)},
    {"weight": ()}, {"bias": (2, 2)}, {"bias": (3, 2, 1)}, {"temperature": (2,)}], ids=str)
def test_tensors_of_wrong_shapes_are_a_users_mistake(changed, tmp_path):
    path = written(tmp_path / "p.safetensors", {**GOOD, **changed})
    with pytest.raises(UserError) as error:
        probe.load(path)
    assert str(error.value).startswith(f"{path}: not a file of probes") and "\n" not in str(error.value)


@pytest.mark.parametrize("shapes, about", [
    ({"weight": (3, 8), "bias": (3,)}, {"kind": "mlp", "layer": "2", "l2": "3.0"}), ({"embed.weight": (5, 8)}, ABOUT), (GOOD, None),
    (GOOD, {"kind": "mlp"}), (GOOD, {"layers": "1,2"}), (GOOD, {**ABOUT, "layers": "1"}), (GOOD, {**ABOUT, "layers": "one,two"}),
    (GOOD, {**ABOUT, "layers": ""}), ({name: shape for name, shape in GOOD.items() if name != "temperature"}, ABOUT)])
def test_other_safetensors_files_are_a_users_mistake(shapes, about, tmp_path):
    path = written(tmp_path / "p.safetensors", shapes, about)
    with pytest.raises(UserError) as error:
        probe.load(path)
    assert str(error.value).startswith(f"{path}: not a file of probes")


def test_what_is_missing_or_is_no_safetensors_file_is_a_users_mistake(tmp_path):
    (tmp_path / "text").write_text("kind: mlp\n" * 9)
    (tmp_path / "empty").write_text("")
    (tmp_path / "folder").mkdir()
    for name, named, reason in (("none", "none", "No such file"), ("folder", os.path.join("folder", "probes.safetensors"), "No such file"),
                                ("text", "text", "not a file of probes"), ("empty", "empty", "not a file of probes")):
        with pytest.raises(UserError) as error:
            probe.load(str(tmp_path / name))
        assert str(error.value).startswith(f"{tmp_path / named}: {reason}"), name


# ---------------------------------------------------------------------------------------------------- the command

QUESTIONS = ["what is the capital of paris", "who", "where is rome . one two three four five"]


def by_hand(lm, in_use, question):
    """P(known) of one question alone, from its activations."""
    states = probe.capture(lm, [language_model.chat_prompt(lm, question)])[in_use.kind][0]
    x = (states[in_use.layers] - in_use.mean) / in_use.scale
    logits = [((x * w).sum(1) + b).mean().item() for w, b in zip(in_use.weight, in_use.bias)]
    return sum(sigmoid(z / in_use.temperature) for z in logits) / len(logits)


@pytest.mark.parametrize("kind, layers, width", [("mlp", (0, 1), 32), ("hidden", (1,), 32), ("attention", (0,), 32)])
def test_p_known_of_questions_is_that_of_their_chat_prompts(kind, layers, width):
    lm, in_use = tiny.lm(), some_probe(kind, layers, width)
    p = probe.p_known(lm, in_use, QUESTIONS, rows=2)
    assert p.tolist() == pytest.approx([by_hand(lm, in_use, question) for question in QUESTIONS], abs=1e-5)
    assert p.std() > 0.01


@pytest.mark.parametrize("kind, layers, width", [("mlp", (0, 1), 48), ("mlp", (0, 1), 1), ("hidden", (1, 2), 32), ("experts", (0,), 32)])
def test_a_probe_of_another_architecture_is_a_users_mistake(kind, layers, width):
    with pytest.raises(UserError) as error:
        probe.p_known(tiny.lm(), some_probe(kind, layers, width), QUESTIONS)
    message = str(error.value)
    assert f"{kind} of layers {layers[0] + 1} to {layers[-1] + 1}, width {width}" in message
    assert ("2 layers of width 32" in message) == (kind != "experts") and "\n" not in message


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """Arguments that name a tiny model's folder and a probe's, and the two in memory."""
    folder, in_use = tmp_path_factory.mktemp("command"), some_probe("hidden", (0, 1))
    probe.save(in_use, str(folder), "tiny")
    arguments = ["--model", tiny.folder(folder / "model"), "--probes", str(folder)]
    return arguments, tiny.lm(), in_use


@pytest.fixture
def run(command, monkeypatch, capsys):
    """Call the command with questions as arguments or text on standard input; returns (status, lines out, lines of error)."""
    verbosity = transformers.logging.get_verbosity()

    def call(*questions, stdin="", options=command[0]):
        source = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8") if isinstance(stdin, bytes) else io.StringIO(stdin)
        monkeypatch.setattr(sys, "stdin", source)
        capsys.readouterr()
        status = probe.main([*options, *questions])
        out, err = capsys.readouterr()
        return status, out.split("\n")[:-1], err.split("\n")[:-1]

    yield call
    transformers.logging.set_verbosity(verbosity)
    transformers.logging.enable_progress_bar()


def test_the_command_prints_each_questions_probability(run, command):
    _, lm, in_use = command
    status, lines, errors = run(*QUESTIONS)
    assert (status, errors) == (0, [])
    assert lines == [f"{by_hand(lm, in_use, question):.3f}\t{question}" for question in QUESTIONS]
    assert len({line.split("\t")[0] for line in lines}) == 3


def test_without_arguments_it_reads_a_question_a_line(run):
    assert run(stdin="".join(f"{question}\n" for question in QUESTIONS)) == run(*QUESTIONS)
    assert run(stdin=QUESTIONS[0]) == run(f"  {QUESTIONS[0]} ") == run(QUESTIONS[0], stdin=QUESTIONS[1])
    assert run(stdin="who is caf\u00e9\r\n".encode())[1][0].endswith("\twho is caf\u00e9")


@pytest.mark.parametrize("questions, stdin, reason", [
    (["who", ""], "", "question 2: empty"), ([" \t"], "", "question 1: empty"), ([], "who\n\nwhere\n", "question 2: empty"),
    ([], "", "no questions"), ([], b"who \xff\n", "a question is not UTF-8"), (["who \udcff"], "", "a question is not UTF-8")])
def test_empty_and_undecodable_questions_are_one_line_of_error_and_status_2(run, questions, stdin, reason):
    status, lines, errors = run(*questions, stdin=stdin)
    assert (status, lines, len(errors)) == (2, [], 1)
    assert errors[0].startswith(f"error: {reason}")


def test_a_missing_probe_or_model_and_one_that_does_not_fit_are_too(run, command, tmp_path):
    model, folder = command[0][1], command[0][3]
    probe.save(some_probe("hidden", (0, 1), 16), str(tmp_path), "another")
    for options, reason in ((["--model", model, "--probes", "/no/such"], "/no/such: No such file"),
                            (["--model", "/no/such", "--probes", folder], "/no/such"),
                            (["--model", model, "--probes", str(tmp_path)], "the probe reads hidden of layers 1 to 2, width 16; ")):
        status, lines, errors = run("who", options=options)
        assert (status, lines, len(errors)) == (2, [], 1)
        assert errors[0].startswith(f"error: {reason}")


def test_control_characters_of_a_question_do_not_reach_the_terminal(run):
    _, lines, _ = run("who \x1b[31mis\x07\nthe\tcapital \u202eof\u2028rome \u9f8d", "where\x00")
    assert [line.split("\t", 1)[1] for line in lines] == [
        "who \ufffd[31mis\ufffd\ufffdthe\ufffdcapital \ufffdof\ufffdrome \u9f8d", "where\ufffd"]
