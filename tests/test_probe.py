"""Probing against Hugging Face's hidden states, attention by hand, a float64 Newton method, and loops over pairs."""
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import lm as language_model
import probe
from probe import ProbeConfig

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


def test_a_layer_without_attention_projection_has_no_attention():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attn, self.mlp = torch.nn.Identity(), torch.nn.Identity()

    layer = Layer()
    assert probe.hook_points(layer) == {"mlp": layer.mlp, "hidden": layer}


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
def grouped():
    """Groups of 1 to 4 questions in mixed order, and labels of which some are missing."""
    generator = np.random.default_rng(1)
    groups = [f"subject {i}" for i in range(100) for _ in range(i % 4 + 1)]
    generator.shuffle(groups)
    return groups, generator.choice([1, 0, -1], len(groups), p=[0.4, 0.4, 0.2])


def test_a_group_is_never_split(grouped):
    groups, labels = grouped
    for row in probe.split_by_group(groups, labels, ProbeConfig(repeats=6), 0):
        part = {}
        for group, label, p in zip(groups, labels, row):
            assert (p == -1) == (label == -1)
            if label != -1:
                assert part.setdefault(group, p) == p


def test_the_parts_are_as_large_as_asked_in_groups(grouped):
    groups, labels = grouped
    config = ProbeConfig(repeats=4, valid=0.3, test=0.1)
    for row in probe.split_by_group(groups, np.ones(len(groups), int), config, 0):
        members = {part: {g for g, p in zip(groups, row) if p == part} for part in (0, 1, 2)}
        assert [len(members[part]) for part in (0, 1, 2)] == [60, 30, 10]


def test_repeats_and_seeds_split_differently_and_the_same_seed_the_same(grouped):
    groups, labels = grouped
    first = probe.split_by_group(groups, labels, ProbeConfig(repeats=5), 7)
    assert first.shape == (5, len(groups))
    assert np.array_equal(first, probe.split_by_group(groups, labels, ProbeConfig(repeats=5), 7))
    assert not np.array_equal(first, probe.split_by_group(groups, labels, ProbeConfig(repeats=5), 8))
    assert len({tuple(row) for row in first}) == 5


def test_the_split_depends_on_the_groups_names_not_on_the_order_of_questions(grouped):
    groups, labels = grouped
    order = np.random.default_rng(2).permutation(len(groups))
    there = probe.split_by_group(groups, labels, ProbeConfig(), 0)
    assert np.array_equal(probe.split_by_group([groups[i] for i in order], labels[order], ProbeConfig(), 0), there[:, order])


# ---------------------------------------------------------------------------------------------------- fitting

def standardise(x, rows):
    """Features (questions, width) in float64 by mean and deviation over the training rows."""
    x = x.double()
    mean = x[rows].mean(0)
    return mean, ((x[rows] - mean) ** 2).mean(0).sqrt()


def newton(x, t, strength):
    """Exact minimiser of sum(log(1 + exp(z)) - t z) + strength / 2 |w|^2, z = x w + b, in float64. Returns w, b."""
    x = torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], 1)
    penalty = torch.full((x.shape[1],), float(strength), dtype=torch.float64)
    penalty[-1] = 0.0

    def objective(v):
        z = x @ v
        return (torch.nn.functional.softplus(z) - t * z).sum() + (penalty * v * v).sum() / 2

    v = torch.zeros(x.shape[1], dtype=torch.float64)
    for _ in range(200):
        p = torch.sigmoid(x @ v)
        gradient = x.T @ (p - t) + penalty * v
        if gradient.norm() < 1e-9 * len(x):
            return v[:-1], v[-1]
        step = torch.linalg.solve(x.T @ (x * (p * (1 - p))[:, None]) + torch.diag(penalty + 1e-12), gradient)
        size = 1.0
        while objective(v - size * step) > objective(v) and size > 1e-8:
            size /= 2
        v = v - size * step
    raise AssertionError("the reference did not converge")


def problem(groups=2, questions=150, width=12, repeats=3, soft=False, seed=0, offset=3.0):
    """Features of very different scales and offsets, targets that depend on them noisily, and training rows by repeat."""
    g = torch.Generator().manual_seed(seed)
    base = torch.randn(groups, questions, width, generator=g)
    scale = 10 ** torch.linspace(-2, 2, width)
    features = (base + offset * torch.randn(groups, 1, width, generator=g)) * scale
    chance = torch.sigmoid(1.5 * base[0, :, 0] - base[0, :, width // 2] + 0.5)
    targets = chance if soft else (torch.rand(questions, generator=g) < chance).float()
    train = torch.rand(repeats, questions, generator=g) < 0.7
    return features, targets.numpy(), train.numpy()


STRENGTHS = (0.3, 3.0, 100.0)


@pytest.mark.parametrize("case", [{}, {"soft": True}, {"questions": 40, "width": 90, "repeats": 2}, {"offset": 300.0}],
                         ids=["labels", "soft targets", "wider than long", "as far from the origin as real activations"])
def test_probes_are_the_exact_minimisers_for_every_group_repeat_and_strength(case):
    features, targets, train = problem(**case)
    weight, bias = probe.fit_probes(features, targets, train, STRENGTHS)
    assert weight.shape == (*features.shape[:1], len(train), 3, features.shape[2]) and bias.shape == weight.shape[:-1]
    for g, x in enumerate(features):
        for r, rows in enumerate(train):
            mean, scale = standardise(x, rows)
            for s, strength in enumerate(STRENGTHS):
                w, b = newton((x.double() - mean)[rows] / scale, torch.tensor(targets[rows], dtype=torch.float64), strength)
                got = weight[g, r, s].double()
                assert (got * scale - w).norm() < 1e-3 * w.norm(), (g, r, strength)
                assert abs(bias[g, r, s].double() + got @ mean - b) < 1e-3 * max(1, abs(b)), (g, r, strength)


def test_the_gradient_at_the_solution_is_nearly_zero():
    features, targets, train = problem(questions=300, width=40, seed=1)
    weight, bias = probe.fit_probes(features, targets, train, STRENGTHS)
    t = torch.tensor(targets, dtype=torch.float64)
    for g, x in enumerate(features):
        for r, rows in enumerate(train):
            mean, scale = standardise(x, rows)
            z = (x.double() - mean)[rows] / scale
            start = z.T @ (0.5 - t[rows])
            for s, strength in enumerate(STRENGTHS):
                w = weight[g, r, s].double() * scale
                b = bias[g, r, s].double() + weight[g, r, s].double() @ mean
                left = torch.sigmoid(z @ w + b) - t[rows]
                assert (z.T @ left + strength * w).norm() < 1e-4 * start.norm()
                assert abs(left.sum()) < 1e-4 * start.norm()


@pytest.mark.parametrize("strength", [1e-3, 1.0])
def test_separable_data_does_not_blow_up(strength):
    features, _, train = problem(questions=80, width=6, offset=0.0)
    targets = (features[0, :, 0] > 0).float().numpy()
    weight, bias = probe.fit_probes(features[:1], targets, train, (strength,))
    logits = probe.predict(features[:1], weight, bias)[0, :, 0]
    for rows, z in zip(train, logits):
        mean, scale = standardise(features[0], rows)
        w, b = newton((features[0].double() - mean)[rows] / scale, torch.tensor(targets[rows], dtype=torch.float64), strength)
        exact = (features[0].double() - mean) / scale @ w + b
        assert (z.double() - exact).norm() < 0.01 * exact.norm()
        assert strength == 1.0 or ((z > 0).numpy() == (targets == 1))[rows].all()


def test_almost_no_regularisation_still_gives_finite_probes():
    features, _, train = problem(questions=80, width=6, offset=0.0)
    targets = (features[0, :, 0] > 0).float().numpy()
    for strength in (0.0, 1e-9):
        weight, bias = probe.fit_probes(features[:1], targets, train, (strength,))
        logits = probe.predict(features[:1], weight, bias)[0, :, 0]
        assert logits.isfinite().all()
        assert all(((z > 0).numpy() == (targets == 1))[rows].all() for rows, z in zip(train, logits))


def test_features_that_say_nothing_are_fitted_beside_others_that_do():
    features = torch.zeros(2, 40, 3)
    features[1] = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    targets, train = np.array([1.0, 0.0] * 20), np.ones((1, 40), bool)
    weight, bias = probe.fit_probes(features, targets, train, (1.0,))
    assert (weight[0] == 0).all() and (bias[0] == 0).all()
    alone = probe.fit_probes(features[1:], targets, train, (1.0,))
    torch.testing.assert_close((weight[1:], bias[1:]), alone, rtol=1e-3, atol=1e-5)


def test_one_class_alone_gives_finite_probes():
    features, _, train = problem()
    for value in (0.0, 1.0):
        weight, bias = probe.fit_probes(features, np.full(150, value), train, (1.0,))
        assert weight.isfinite().all() and bias.isfinite().all()
        assert (((probe.predict(features, weight, bias) > 0) == bool(value)).all())


def test_the_bias_is_free_and_huge_strength_leaves_only_the_base_rate():
    features, _, train = problem(repeats=2)
    targets = (np.arange(150) % 10 == 0).astype(float)
    weight, bias = probe.fit_probes(features, targets, train, (1e7,))
    logits = probe.predict(features, weight, bias)
    for r, rows in enumerate(train):
        share = targets[rows].mean()
        assert (logits[:, r] - math.log(share / (1 - share))).abs().max() < 0.01


def test_rows_outside_the_training_part_do_not_matter():
    features, targets, train = problem()
    weight, bias = probe.fit_probes(features, targets, train[:1], (1.0,))
    changed, other = features.clone(), targets.copy()
    changed[:, ~torch.tensor(train[0])] *= -7
    other[~train[0]] = 1 - other[~train[0]]
    again, bias_again = probe.fit_probes(changed, other, train[:1], (1.0,))
    torch.testing.assert_close(weight, again, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(bias, bias_again, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("constant", [0.0, 0.1, 5.0, 100.3, 1234.5])
def test_a_feature_that_is_constant_in_training_has_no_say(constant):
    """Real models have such: a head that attends to the same tokens for every question."""
    features, targets, train = problem(offset=0.0)
    train[:, :10] = False
    extra = torch.full((2, 150, 1), constant)
    extra[:, :10] += 1.0
    weight, bias = probe.fit_probes(torch.cat([features, extra], 2), targets, train, STRENGTHS)
    without, bias_without = probe.fit_probes(features, targets, train, STRENGTHS)
    got, expected = probe.predict(torch.cat([features, extra], 2), weight, bias), probe.predict(features, without, bias_without)
    torch.testing.assert_close(got, expected, rtol=0, atol=0.01)


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


# ---------------------------------------------------------------------------------------------------- figures of merit

def auroc_by_pairs(scores, labels):
    pairs = [(p, n) for p, yes in zip(scores, labels) if yes for n, other in zip(scores, labels) if not other]
    return sum(1.0 if p > n else 0.5 if p == n else 0.0 for p, n in pairs) / len(pairs)


@pytest.mark.parametrize("levels", [2, 5, 1000])
def test_auroc_counts_pairs_and_ties_half(levels):
    generator = np.random.default_rng(levels)
    scores, labels = generator.integers(0, levels, 80) / levels, generator.random(80) < 0.3
    expected = auroc_by_pairs(scores, labels)
    assert probe.auroc(scores, labels) == pytest.approx(expected, abs=1e-12)
    assert probe.auroc(scores.reshape(16, 5), labels.reshape(16, 5)) == pytest.approx(expected, abs=1e-12)
    assert probe.auroc(-scores, labels) == pytest.approx(1 - expected, abs=1e-12)


def test_auroc_of_perfect_constant_and_one_class_scores():
    assert probe.auroc([0.1, 0.2, 0.8, 0.9], [0, 0, 1, 1]) == 1.0
    assert probe.auroc([3.0, 3.0, 3.0], [1, 0, 1]) == 0.5
    assert math.isnan(probe.auroc([0.1, 0.9], [1, 1])) and math.isnan(probe.auroc([0.1, 0.9], [0, 0]))


def test_balanced_accuracy_is_the_mean_over_the_classes():
    labels, predicted = [1] * 8 + [0] * 2, [1] * 6 + [0] * 2 + [1, 0]
    assert probe.balanced_accuracy(predicted, labels) == pytest.approx((6 / 8 + 1 / 2) / 2)
    assert math.isnan(probe.balanced_accuracy([1, 0], [1, 1]))


def test_measure_predicts_known_above_zero():
    found = probe.measure([2.0, -1.0, 0.5, -3.0, 1.0], [1, 1, 0, 0, 1])
    assert found["accuracy"] == pytest.approx(3 / 5)
    assert found["balanced_accuracy"] == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert found["auroc"] == pytest.approx(5 / 6)
    assert math.isnan(probe.measure([], [])["accuracy"])


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
    assert first["strength"] == 1 and first["valid"] == 1.0
    assert first["accuracy"] == pytest.approx((2 / 4 + 1 / 4) / 2)
    assert (first["accuracy_min"], first["accuracy_max"]) == (0.25, 0.5)
    assert first["balanced_accuracy"] == pytest.approx((0.5 + 0.25) / 2)
    by_pairs = [auroc_by_pairs(logits[0, r, 1][parts[r] == 2].tolist(), labels[parts[r] == 2] == 1) for r in range(2)]
    assert first["auroc"] == pytest.approx(np.mean(by_pairs))
    assert second["strength"] == 0 and second["valid"] == second["accuracy"] == second["auroc"] == 1.0


def test_p_known_is_the_mean_over_probes_that_did_not_see_the_question():
    parts = np.array([[0, 1, 0, -1, 2], [2, 0, 0, -1, 0], [1, 1, 0, -1, 0]])
    logits = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    got = probe.out_of_fold(logits, parts)
    for n in range(5):
        unseen = [r for r in range(3) if parts[r, n] != 0] or [0, 1, 2]  # nobody left: all of them
        assert got[n] == pytest.approx(sum(1 / (1 + math.exp(-logits[r, n].item())) for r in unseen) / len(unseen), abs=1e-6)


def test_bag_of_words_counts_tokens_that_more_than_one_question_has():
    bag = probe.bag_of_words([[7, 3, 3], [3, 9], [7, 5, 5], [8]])
    assert bag.tolist() == [[2, 1], [1, 0], [0, 1], [0, 0]]  # columns: tokens 3 and 7; 5 is twice in one question only
    assert probe.bag_of_words([[1], [2]]).shape == (2, 0)


# ---------------------------------------------------------------------------------------------------- all layers together

@pytest.fixture(scope="module")
def planted():
    """Activations in which layer 2 of "mlp" alone tells the label, with 10 more questions behind those that have one."""
    g = torch.Generator().manual_seed(0)
    labels = np.array([1, 0] * 90 + [-1] * 20)
    activations = {kind: torch.randn(210, 3, 8, generator=g) for kind in probe.KINDS}
    truth = torch.tensor(list(labels[:180]) + [1, 0] * 15) * 2.0 - 1
    activations["mlp"][:, 1, 4] += 2.5 * truth
    config = ProbeConfig(repeats=3, l2=(1.0, 100.0))
    groups = [f"g{i // 2}" for i in range(200)]
    parts = probe.split_by_group(groups, labels, config, 0)
    return activations, labels, parts, config, truth


def test_the_layer_and_kind_that_know_are_found(planted):
    activations, labels, parts, config, truth = planted
    rows, best, p_known = probe.fit_everywhere(activations, labels, parts, config)
    assert [(row["kind"], row["layer"]) for row in rows] == [(kind, layer) for kind in probe.KINDS for layer in (1, 2, 3)]
    assert (best["kind"], best["layer"]) == ("mlp", 2)
    assert best["accuracy"] > 0.93 and best["auroc"] > 0.97
    assert all(row["accuracy"] < 0.75 for row in rows if (row["kind"], row["layer"]) != ("mlp", 2))
    assert all(row["l2"] == config.l2[row["strength"]] for row in rows)
    assert best["valid"] == max(row["valid"] for row in rows)
    assert p_known.shape == (210,) and ((p_known > 0) & (p_known < 1)).all()
    assert probe.auroc(p_known, truth > 0) > 0.97, "also on questions without label and on those of other splits"
    logits = torch.einsum("nd,rd->rn", activations["mlp"][:, 1], best["weight"]) + best["bias"][:, None]
    everywhere = np.concatenate([parts, np.full((3, 10), 1)], 1)
    np.testing.assert_allclose(p_known, probe.out_of_fold(logits, everywhere), atol=1e-5)


def test_controls_find_nothing_where_there_is_nothing(planted):
    activations, labels, parts, config, _ = planted
    _, best, _ = probe.fit_everywhere(activations, labels, parts, config)
    telling = torch.tensor(labels).float()[:, None].repeat(1, 2)
    before = labels.copy()
    rows = probe.controls(activations, best, labels, parts, config, 0, {"noise": torch.randn(200, 6), "telling": telling})
    assert [row["kind"] for row in rows] == ["shuffled labels", "noise", "telling"]
    assert rows[0]["accuracy"] < 0.75 and rows[1]["accuracy"] < 0.75 and rows[2]["accuracy"] == 1.0
    assert np.array_equal(labels, before), "the caller's labels are left alone"
