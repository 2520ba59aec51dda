"""Generation against Hugging Face's own output, one unpadded sequence at a time, and draws against
plain loops and a sort.
"""

import copy
import math
from dataclasses import replace

import pytest
import torch
from conftest import ARCHITECTURES, full_log_probs, random_model

import probe
from lm import model as language_model
from lm import sampling as sampling_module
from lm.batching import batches_by_length, cache_argument, read_prefix
from lm.chat import has_ended
from lm.errors import UserError
from lm.sampling import BLOCK, Sampling, draw, generate, generator_for

GREEDY = Sampling(max_new_tokens=10, temperature=0.0)


def huggingface_greedy(model, prompt, new_tokens, end_ids=()):
    out = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False,
        max_new_tokens=new_tokens,
        eos_token_id=list(end_ids) or None,
        pad_token_id=0,
    )
    return out[0, len(prompt) :].tolist()


def without_end(lm):
    return replace(lm, end_ids=frozenset())


def with_early_end(lm, prompts, new_tokens=10):
    """`lm` with end tokens that its greedy answers meet at different steps, two kinds of them."""
    rows = [huggingface_greedy(lm.model, p, new_tokens) for p in prompts]
    return replace(lm, end_ids=frozenset([rows[0][2], rows[1][5]]))


# -------------------------------------------------------------------------------- greedy generation


def test_greedy_generation_is_huggingfaces_for_mixed_prompt_lengths(either, prompts):
    expected = [[huggingface_greedy(either.model, p, 10)] for p in prompts]
    assert generate(without_end(either), prompts, GREEDY) == expected
    assert generate(without_end(either), prompts, replace(GREEDY, rows=3)) == expected


def test_greedy_generation_is_huggingfaces_for_every_architecture(architecture, prompts, llama):
    model = architecture[1]
    lm = language_model.LM(model, llama.tokenizer, torch.float32, frozenset())
    assert generate(lm, prompts, GREEDY) == [[huggingface_greedy(model, p, 10)] for p in prompts]


def test_greedy_generation_is_huggingfaces_own_padded_batch(gpt2, prompts):
    width = max(map(len, prompts))
    ids = torch.tensor([[7] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    out = gpt2.model.generate(
        ids, attention_mask=mask, do_sample=False, max_new_tokens=10, eos_token_id=None, pad_token_id=256
    )
    assert [r[0] for r in generate(without_end(gpt2), prompts, GREEDY)] == out[:, width:].tolist()


def test_rows_stop_at_any_end_token_and_the_others_go_on(either, prompts):
    lm = with_early_end(either, prompts)
    expected = [huggingface_greedy(lm.model, p, 10, lm.end_ids) for p in prompts]
    lengths = {len(row) for row in expected}
    assert len(lengths) > 2 and min(lengths) < 10 == max(lengths), "the case must mix early, late and cut rows"
    assert {row[-1] for row in expected} >= lm.end_ids, "both end tokens must occur"
    got = generate(lm, prompts, GREEDY, samples=2)
    assert got == [[row, row] for row in expected]
    for row in expected:
        assert has_ended(lm, row) == (row[-1] in lm.end_ids)
        assert not any(token in lm.end_ids for token in row[:-1])
    assert not has_ended(lm, [])


def test_only_the_asked_number_of_tokens_is_made(llama, prompts):
    for length in (1, 2):
        rows = generate(without_end(llama), prompts, replace(GREEDY, max_new_tokens=length), samples=3)
        assert all(len(row) == length for group in rows for row in group)
        assert [len(group) for group in rows] == [3] * len(prompts)


def forward_shapes(lm, run):
    """Shapes of the ids of every forward pass that the model makes during `run()`."""
    shapes = []
    hook = lm.model.register_forward_pre_hook(
        lambda m, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    try:
        run()
    finally:
        hook.remove()
    return shapes


def test_rows_that_ended_cost_no_more_forward_passes(llama, prompts):
    lm = with_early_end(llama, prompts)
    length = {tuple(p): len(huggingface_greedy(lm.model, p, 10, lm.end_ids)) for p in prompts}
    for some in (
        prompts,
        [p for p in prompts if length[tuple(p)] < 10],
    ):  # the second time all rows end before the last step
        shapes = forward_shapes(lm, lambda: generate(lm, some, GREEDY))
        going = [sum(length[tuple(p)] > step for p in some) for step in range(1, 10)]
        assert shapes == [(len(some), max(map(len, some)))] + [(n, 1) for n in going if n]


def test_a_prompts_prefix_is_computed_once_for_all_its_samples(llama, prompts):
    sampling = Sampling(max_new_tokens=2, rows=1000)
    shapes = forward_shapes(llama, lambda: generate(without_end(llama), prompts, sampling, samples=4))
    assert [rows for rows, _ in shapes] == [len(prompts), 4 * len(prompts)]


def test_no_more_rows_than_asked_are_decoded_side_by_side(llama, prompts):
    done, sampling = [], Sampling(max_new_tokens=3, rows=6)
    shapes = forward_shapes(
        llama, lambda: generate(without_end(llama), prompts, sampling, samples=2, progress=done.append)
    )
    assert max(rows for rows, _ in shapes) == 6
    assert done == [3, 3, 1]


def test_a_prompt_that_leaves_no_room_for_the_response_is_a_users_mistake(either):
    sampling = replace(GREEDY, max_new_tokens=6)
    assert len(generate(without_end(either), [[5] * 90], sampling)[0][0]) == 6, "96 positions are just enough"
    with pytest.raises(UserError) as error:
        generate(either, [[5] * 10, [5] * 91], sampling, keys=["short", "long-one"])
    assert "long-one" in str(error.value) and "96" in str(error.value) and "\n" not in str(error.value)


def test_nothing_of_the_models_generation_config_but_its_end_tokens_is_used(llama, prompts):
    before = generate(llama, prompts, GREEDY), generate(llama, prompts, Sampling(), seed=3)
    model = copy.deepcopy(llama.model)
    config = model.generation_config
    config.do_sample, config.temperature, config.top_k, config.top_p, config.repetition_penalty = True, 0.1, 2, 0.3, 5.0
    config.max_new_tokens, config.min_new_tokens = 2, 24
    changed = language_model.wrap(model, llama.tokenizer)
    assert (generate(changed, prompts, GREEDY), generate(changed, prompts, Sampling(), seed=3)) == before


def test_generation_of_a_model_with_weights_that_are_not_finite_raises(llama, prompts):
    model = copy.deepcopy(llama.model)
    with torch.no_grad():
        model.lm_head.weight[9, 3] = float("nan")
    for sampling in (GREEDY, Sampling()):
        with pytest.raises(FloatingPointError):
            generate(replace(llama, model=model), prompts, sampling)


# ----------------------------------------------------------------------------------------- sampling


def sample_by_hand(lm, prompt, uniform, temperature):
    """Inverse of the cumulative distribution, token by token, on whole unpadded sequences without a
    cache.
    """
    response = []
    for u in uniform.tolist():
        cumulative = full_log_probs(lm.model, prompt + response, temperature)[-1].exp().cumsum(0)
        response.append(int((cumulative / cumulative[-1] <= u).sum()))
        if response[-1] in lm.end_ids:
            break
    return response


def test_samples_follow_the_models_distribution_and_their_own_random_numbers(either, prompts):
    lm = with_early_end(either, prompts)
    sampling = Sampling(max_new_tokens=8, temperature=0.7)
    keys = [f"question {i}" for i in range(len(prompts))]
    got = generate(lm, prompts, sampling, samples=3, keys=keys, seed=11)
    for prompt, key, rows in zip(prompts, keys, got):
        uniform = torch.rand(3, 8, generator=generator_for(11, key), dtype=torch.float64)
        assert rows == [sample_by_hand(lm, prompt, numbers, 0.7) for numbers in uniform]
    assert len({len(row) for rows in got for row in rows}) > 2


def test_a_questions_samples_are_the_same_alone_and_in_any_batch(either, prompts):
    keys = [f"q{i}" for i in range(len(prompts))]
    sampling = Sampling(max_new_tokens=12)
    together = generate(either, prompts, sampling, samples=3, keys=keys, seed=4)
    alone = [generate(either, [p], sampling, samples=3, keys=[k], seed=4)[0] for p, k in zip(prompts, keys)]
    backwards = generate(either, prompts[::-1], replace(sampling, rows=6), samples=3, keys=keys[::-1], seed=4)
    assert together == alone == backwards[::-1]


def test_samples_differ_between_k_keys_and_seeds_and_repeat_otherwise(llama, prompts):
    prompt, sampling = prompts[1], Sampling(max_new_tokens=12)
    once = generate(llama, [prompt, prompt], sampling, samples=5, keys=["a", "b"], seed=0)
    assert once == generate(llama, [prompt, prompt], sampling, samples=5, keys=["a", "b"], seed=0)
    assert len({tuple(row) for rows in once for row in rows}) == 10
    other = generate(llama, [prompt], sampling, samples=5, keys=["a"], seed=1)
    assert not {tuple(row) for row in other[0]} & {tuple(row) for row in once[0]}


def test_without_keys_the_same_prompt_twice_is_sampled_differently(llama, prompts):
    first, second = generate(llama, [prompts[1]] * 2, Sampling(max_new_tokens=12))
    assert first != second


def test_no_prompts_no_responses(llama):
    assert generate(llama, [], Sampling()) == []


def test_generators_depend_on_seed_and_key_alone():
    numbers = {
        (seed, key): torch.rand(4, generator=generator_for(seed, key)).tolist()
        for seed in (0, 1, 11)
        for key in ("a", "b", "1a", 1, 11)
    }
    assert len({tuple(n) for n in numbers.values()}) == len(numbers)
    torch.manual_seed(99)
    assert torch.rand(4, generator=generator_for(1, "a")).tolist() == numbers[1, "a"]


# --------------------------------------------------------------------------------------------- draw


def grid(n):
    return (torch.arange(n, dtype=torch.float64) + 0.5) / n


def counts_on_grid(row, sampling, n=20_000):
    """How often each token is drawn from one row of logits over `n` evenly spaced numbers, times 1
    / n.
    """
    return torch.bincount(draw(row.expand(n, -1), grid(n), sampling), minlength=len(row)) / n


def naive_distribution(row, temperature, top_k=0, top_p=1.0):
    """softmax after top-k and then top-p, by sorting one row in a loop, in float64."""
    p = (row.double() / temperature).softmax(0)
    order = sorted(range(len(row)), key=lambda i: -p[i].item())
    kept = order[:top_k] if top_k else order
    total, mass, chosen = sum(p[i].item() for i in kept), 0.0, []
    for i in kept:
        chosen.append(i)
        mass += p[i].item() / total
        if mass >= top_p:
            break
    result = torch.zeros(len(row), dtype=torch.float64)
    result[chosen] = p[chosen] / p[chosen].sum()
    return result


@pytest.mark.parametrize("size", [5, BLOCK, BLOCK + 1, 1000])
@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_draws_are_distributed_as_softmax(size, temperature):
    row = 2 * torch.randn(size, generator=torch.Generator().manual_seed(size))
    share = counts_on_grid(row, Sampling(temperature=temperature))
    assert len(share) == size
    assert (share - naive_distribution(row, temperature)).abs().max() < 2 / 20_000


def test_draws_from_random_numbers_pass_a_chi_square_test():
    row = torch.randn(300, generator=torch.Generator().manual_seed(1))
    n = 30_000
    uniform = torch.rand(n, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    seen = torch.bincount(draw(row.expand(n, -1), uniform, Sampling()), minlength=300)
    expected = n * row.double().softmax(0)
    chi_square = ((seen - expected) ** 2 / expected).sum().item()
    assert abs(chi_square - 299) < 4 * math.sqrt(2 * 299)


@pytest.mark.parametrize(
    "top_k, top_p", [(1, 1.0), (7, 1.0), (80, 1.0), (5000, 1.0), (0, 0.5), (0, 0.95), (0, 1e-6), (40, 0.8), (3, 0.2)]
)
def test_top_k_and_top_p_keep_what_a_sort_keeps(top_k, top_p):
    row = 3 * torch.randn(600, generator=torch.Generator().manual_seed(3))
    expected = naive_distribution(row, 0.9, top_k, top_p)
    share = counts_on_grid(row, Sampling(temperature=0.9, top_k=top_k, top_p=top_p))
    assert (share - expected).abs().max() < 2 / 20_000
    assert (share[expected == 0] == 0).all()


def test_rows_are_filtered_and_drawn_each_by_its_own_logits_and_number():
    logits = 3 * torch.randn(50, 600, generator=torch.Generator().manual_seed(4))
    uniform = torch.rand(50, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    for sampling in (Sampling(), Sampling(top_p=0.7), Sampling(top_k=9)):
        together = draw(logits, uniform, sampling)
        for row, u, token in zip(logits, uniform, together):
            upto = naive_distribution(row, 1.0, sampling.top_k, sampling.top_p).cumsum(0)
            assert token == (upto <= u).sum()


@pytest.mark.parametrize("possible", [[0], [255], [256], [599], [0, 599], [255, 256], [3, 300, 511, 512], [520, 530]])
def test_tokens_without_probability_are_never_drawn(possible):
    row = torch.full((600,), float("-inf"))
    row[possible] = torch.linspace(-1, 1, len(possible))
    edges = torch.tensor([0.0, 1e-300, 2.0**-53, 1 - 2.0**-53, 1 - 1e-9], dtype=torch.float64)
    uniform = torch.cat([edges, grid(997)])
    drawn = draw(row.expand(len(uniform), -1), uniform, Sampling())
    assert set(drawn.tolist()) == set(possible)


def test_the_extreme_numbers_draw_the_first_and_the_last_token():
    row = torch.zeros(700)
    uniform = torch.tensor([0.0, 1 - 2.0**-53], dtype=torch.float64)
    assert draw(row.expand(2, -1), uniform, Sampling()).tolist() == [0, 699]
    assert draw(row.expand(2, -1), uniform.float().clamp(max=1 - 2.0**-24), Sampling()).tolist() == [0, 699]


def test_temperature_zero_takes_the_largest_logit_whatever_the_number():
    logits = torch.randn(20, 600, generator=torch.Generator().manual_seed(7))
    expected = [max(range(600), key=lambda i: row[i].item()) for row in logits]
    for u in (0.0, 0.5, 0.999):
        assert draw(logits, torch.full((20,), u), Sampling(temperature=0.0, top_k=3, top_p=0.1)).tolist() == expected


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), None])
def test_logits_that_are_not_finite_raise_even_in_one_row(bad, temperature):
    logits = torch.randn(4, 600)
    if bad is None:
        logits[2] = float("-inf")
    else:
        logits[2, 400] = bad
    with pytest.raises(FloatingPointError):
        draw(logits, torch.full((4,), 0.5), Sampling(temperature=temperature))


# ------------------------------------------------------------------------------------------ batches


def test_batches_hold_every_index_once_shortest_first():
    lengths = [5, 1, 4, 1, 9, 2, 2]
    batches = batches_by_length(lengths, 3)
    assert [len(b) for b in batches] == [3, 3, 1]
    assert sorted(sum(batches, [])) == list(range(7))
    ordered = [lengths[i] for b in batches for i in b]
    assert ordered == sorted(lengths)
    assert batches_by_length([], 3) == []


def test_the_caches_argument_is_found_under_both_its_names():
    class Old:
        def forward(self, input_ids, past_key_values=None):
            pass

    class New:
        def forward(self, input_ids, cache=None):
            pass

    assert (cache_argument(Old()), cache_argument(New())) == ("past_key_values", "cache")


# ------------------------------------------------------------------------------- a shared beginning

BEGINNING = [1, 9, 8, 7]


def test_the_longest_common_beginning_is_read_and_one_token_left_over(llama):
    for prompts, length in (
        ([[3, 4, 5], [3, 4, 6, 7]], 2),
        ([[3, 4], [3, 4, 6]], 1),
        ([[3, 4, 5], [3, 4, 5]], 2),
        ([[5, 4], [3, 4]], 0),
        ([[3], [3, 4]], 0),
        ([[3, 4, 5]], 0),
    ):
        found, cache = read_prefix(llama, prompts)
        assert found == length and (cache is None) == (length == 0)
        assert cache is None or cache.get_seq_length() == length


def test_a_beginning_is_not_shared_where_a_sliding_window_would_lose_it(llama):
    windowed = language_model.LM(random_model(ARCHITECTURES["mistral"]()), llama.tokenizer, torch.float32, frozenset())
    assert read_prefix(windowed, [[3, 4], [3, 5]], 2)[0] == 1
    assert read_prefix(windowed, [[3, 4], [3, 5]], 3) == (0, None)


def test_sharing_the_beginning_changes_neither_states_nor_samples(architecture, prompts, llama, monkeypatch):
    _, model = architecture
    lm = language_model.LM(model, llama.tokenizer, torch.float32, frozenset({2}))
    whole = [BEGINNING + prompt for prompt in prompts]
    sampling = Sampling(max_new_tokens=5, temperature=1.0)
    shared = read_prefix(lm, whole)[0]
    assert shared == (0 if getattr(model.config, "sliding_window", None) else 4)
    states, samples = probe.capture(lm, whole, rows=3), generate(lm, whole, sampling, 3, seed=4)
    for module in (sampling_module, probe):
        monkeypatch.setattr(module, "read_prefix", lambda lm, prompts, room=0: (0, None))
    for kind, expected in probe.capture(lm, whole, rows=3).items():
        assert (states[kind] - expected).abs().max() <= 2e-5 * expected.abs().max().clamp(min=1), kind
    assert generate(lm, whole, sampling, 3, seed=4) == samples
