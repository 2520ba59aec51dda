"""forward.py against each sequence alone, unpadded, and against Hugging Face's own logits and
gradients.
"""

import copy
import math
from dataclasses import replace

import pytest
import torch
from conftest import ARCHITECTURES, full_log_probs, random_model

from lm import forward
from lm import model as language_model
from lm.sampling import Sampling, generate

BEGINNING = [1, 9, 8, 7]


def response_reference(model, prompt, response, temperature=1.0):
    log_p = full_log_probs(model, prompt + response, temperature)
    return [log_p[len(prompt) + i - 1, token].item() for i, token in enumerate(response)]


@pytest.fixture(scope="module")
def responses():
    """Responses of mixed lengths to `prompts`; ids 0, 1 and 2 (pads, bos, eos) among them and at
    the ends.
    """
    generator = torch.Generator().manual_seed(6)
    rows = [torch.randint(3, 50, (n,), generator=generator).tolist() for n in (3, 1, 6, 4, 2, 5, 9)]
    rows[0][-1], rows[2][2], rows[3][0], rows[6][-1], rows[6][-2] = 2, 2, 0, 0, 0
    return rows


# -------------------------------------------------------------------- batches and log-probabilities


def test_collate_masks_by_length_even_where_tokens_look_like_padding(gpt2):
    end = gpt2.tokenizer.pad_token_id
    assert end == gpt2.end_id
    batch = forward.collate(gpt2, [[5, end, 6], [0], [7, 8]], [[9, end], [end], [1, 0, 2, end]])
    rows = [[5, end, 6, 9, end], [0, end], [7, 8, 1, 0, 2, end]]
    assert (
        batch.attention_mask.tolist() == [[1] * len(row) + [0] * (6 - len(row)) for row in rows] and batch.shared == []
    )
    assert [ids[keep.bool()].tolist() for ids, keep in zip(batch.input_ids, batch.attention_mask)] == rows
    assert batch.response_mask.dtype == torch.bool
    assert batch.response_mask.tolist() == [[True, True, False, False], [True, False, False, False], [True] * 4]
    assert batch.response[batch.response_mask].tolist() == [9, end, end, 1, 0, 2, end]
    assert batch.input_ids[forward.response_positions(batch)].tolist() == [6, 9, 0, 8, 1, 0, 2]
    assert ((batch.input_ids >= 0) & (batch.input_ids <= end)).all(), "padding is a valid id"


def test_log_probabilities_are_those_of_each_sequence_alone(either, prompts, responses):
    for temperature in (1.0, 0.7):
        got = forward.response_log_probs(either, prompts, responses, temperature, rows=3)
        for prompt, response, row in zip(prompts, responses, got):
            assert len(row) == len(response)
            assert row == pytest.approx(response_reference(either.model, prompt, response, temperature), abs=1e-4)


def test_log_probabilities_are_right_for_every_architecture(architecture, prompts, responses, llama):
    lm = language_model.LM(architecture[1], llama.tokenizer, torch.float32, frozenset())
    for prompt, response, row in zip(prompts, responses, forward.response_log_probs(lm, prompts, responses)):
        assert row == pytest.approx(response_reference(lm.model, prompt, response), abs=1e-4)


def test_log_probabilities_of_sampled_tokens_are_those_they_were_sampled_with(gpt2, prompts):
    sampled = generate(gpt2, prompts, Sampling(max_new_tokens=9, temperature=0.8), samples=2, seed=5)
    flat_prompts = [p for p in prompts for _ in range(2)]
    flat = [row for rows in sampled for row in rows]
    for prompt, response, row in zip(flat_prompts, flat, forward.response_log_probs(gpt2, flat_prompts, flat, 0.8)):
        assert row == pytest.approx(response_reference(gpt2.model, prompt, response, 0.8), abs=1e-4)


def test_response_logits_are_the_naive_ones_and_nothing_else_is_computed(either, prompts, responses):
    batch = forward.collate(either, prompts, responses)
    seen = []
    head = either.model.get_output_embeddings()
    hook = head.register_forward_hook(lambda module, args, out: seen.append((args[0].shape, out.shape)))
    try:
        logits, hidden = forward.response_logits(either, batch, 0.5)
    finally:
        hook.remove()
    tokens, vocabulary = sum(map(len, responses)), either.model.config.vocab_size
    assert seen == [((tokens, either.model.config.hidden_size), (tokens, vocabulary))]
    assert logits.shape == (tokens, vocabulary) and logits.dtype == hidden.dtype == torch.float32
    expected_logits, expected_hidden = [], []
    with torch.no_grad():
        for p, r in zip(prompts, responses):
            out = either.model(torch.tensor([p + r]), output_hidden_states=True)
            expected_logits.append(out.logits[0, len(p) - 1 : -1] / 0.5)
            expected_hidden.append(out.hidden_states[-1][0, len(p) - 1 : -1])
    torch.testing.assert_close(logits, torch.cat(expected_logits), atol=2e-4, rtol=0)
    torch.testing.assert_close(hidden, torch.cat(expected_hidden), atol=1e-4, rtol=0)


def test_gradients_through_response_logits_are_the_naive_ones(either, prompts, responses):
    weights = torch.linspace(-1, 2, sum(map(len, responses)))  # a different weight for every token
    ours, naive = copy.deepcopy(either.model), copy.deepcopy(either.model)
    batch = forward.collate(either, prompts, responses)
    logits, _ = forward.response_logits(replace(either, model=ours), batch, 0.8)
    (weights * forward.log_probs(logits, batch.response[batch.response_mask])).sum().backward()
    terms = []
    for p, r in zip(prompts, responses):
        log_p = (naive(torch.tensor([p + r])).logits[0] / 0.8).log_softmax(-1)
        terms += [log_p[len(p) + i - 1, token] for i, token in enumerate(r)]
    (weights * torch.stack(terms)).sum().backward()
    for (name, mine), other in zip(ours.named_parameters(), naive.parameters()):
        scale = other.grad.abs().max().clamp(min=1)
        assert (mine.grad - other.grad).abs().max() < 1e-4 * scale, name


def test_the_hook_on_the_head_is_removed_also_after_an_error(llama, prompts, responses):
    batch = forward.collate(llama, prompts, responses)
    head = llama.model.get_output_embeddings()
    forward.response_logits(llama, batch)
    assert not head._forward_pre_hooks
    broken = replace(batch, attention_mask=batch.attention_mask[:, 1:])
    with pytest.raises(Exception):
        forward.response_logits(llama, broken)
    assert not head._forward_pre_hooks


def test_bfloat16_leaves_weights_and_logits_in_float32_and_stays_near(llama, prompts, responses):
    narrow = replace(llama, dtype=torch.bfloat16)
    batch = forward.collate(llama, prompts, responses)
    (exact, _), (near, hidden) = forward.response_logits(llama, batch), forward.response_logits(narrow, batch)
    assert near.dtype == hidden.dtype == torch.float32
    assert {p.dtype for p in narrow.model.parameters()} == {torch.float32}
    assert 0 < (near - exact).abs().mean() < 0.05 * exact.abs().mean()
    rows = generate(narrow, prompts, Sampling(max_new_tokens=4), samples=2)
    assert [len(r) for r in rows] == [2] * len(prompts)


def test_padded_puts_values_back_in_row_order_with_zeros_elsewhere():
    mask = torch.tensor([[True, False, True], [False, False, False], [True, True, False]])
    values = torch.tensor([1.5, -2.0, 3.0, 4.0], requires_grad=True)
    table = forward.padded(values, mask)
    assert table.tolist() == [[1.5, 0, -2.0], [0, 0, 0], [3.0, 4.0, 0]]
    (table * torch.arange(9.0).reshape(3, 3)).sum().backward()
    assert values.grad.tolist() == [0, 2, 6, 7]


def test_log_probs_and_entropy_against_sums():
    logits = 3 * torch.randn(7, 30, generator=torch.Generator().manual_seed(8))
    ids = torch.tensor([0, 29, 3, 3, 12, 7, 15])
    log_p, entropy = forward.log_probs(logits, ids), forward.entropy(logits)
    for row, token, got_log_p, got_entropy in zip(logits.tolist(), ids.tolist(), log_p, entropy):
        total = sum(math.exp(x) for x in row)
        assert got_log_p.item() == pytest.approx(row[token] - math.log(total), abs=1e-5)
        assert got_entropy.item() == pytest.approx(
            -sum(math.exp(x) / total * math.log(math.exp(x) / total) for x in row), abs=1e-5
        )


# (prompts, (stop, rows read) of what is shared): every way in which rows can have something in
# common
SHARING = {
    "a beginning": ([BEGINNING + [3], BEGINNING + [4, 5, 6, 2], BEGINNING + [3, 0], BEGINNING + [5]], [(4, 1)]),
    "a beginning that is a whole prompt": (
        [BEGINNING, BEGINNING + [4, 5, 6, 2], BEGINNING + [3, 0], BEGINNING + [5]],
        [(3, 1)],
    ),
    "one prompt": ([BEGINNING] * 4, [(3, 1)]),
    "prompts, in any order": ([[5, 6, 2, 0, 7], [3, 4], [5, 6, 2, 0, 7], [3, 4]], [(4, 2)]),
    "prompts, one of a single token": ([[5, 6, 2], [3], [3], [5, 6, 2]], [(2, 2)]),
    "a beginning and prompts": (
        [BEGINNING + [5, 6, 2], BEGINNING + [5, 6, 2], BEGINNING + [3], BEGINNING + [3]],
        [(4, 1), (6, 2)],
    ),
    "too few prompts twice": ([[5, 6, 2], [5, 6, 2], [3], [4, 4]], []),
    "one row": ([BEGINNING], []),
}


@pytest.mark.parametrize("case", SHARING)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_rows_share_is_read_once_and_changes_neither_states_nor_gradients(either, case, dtype):
    prompts, stages = SHARING[case]
    responses = [[9, 2, 5], [7], [8, 8, 0, 3, 2], [2]][: len(prompts)]
    ours, naive = (copy.deepcopy(either.model).to(dtype) for _ in range(2))
    batch = forward.collate(either, prompts, responses)
    assert [(stop, len(rows)) for stop, rows, _ in batch.shared] == stages
    shapes = []
    trunk = ours.base_model.register_forward_pre_hook(
        lambda m, args, kwargs: shapes.append(kwargs["inputs_embeds"].shape[:2]), with_kwargs=True
    )
    logits, hidden = forward.response_logits(replace(either, model=ours), batch, 0.8)
    trunk.remove()
    begun = [0, *(stop for stop, _ in stages)]
    assert shapes == [
        *((rows, stop - start) for start, (stop, rows) in zip(begun, stages)),
        (len(prompts), batch.input_ids.shape[1] - begun[-1]),
    ]

    states, log_p = [], []
    for p, r in zip(prompts, responses):  # each row alone and whole
        out = naive(torch.tensor([p + r]), output_hidden_states=True)
        states.append(out.hidden_states[-1][0, len(p) - 1 : -1])
        log_p.append((out.logits[0, len(p) - 1 : -1] / 0.8).log_softmax(-1))
    states, log_p = torch.cat(states), torch.cat(log_p)
    close = (
        {"atol": 2e-5, "rtol": 1e-4} if dtype == torch.float32 else {"atol": 2e-6, "rtol": 1e-5}
    )  # logits come back in float32
    torch.testing.assert_close(hidden, states.float(), **close)
    torch.testing.assert_close(forward.entropy(logits), -(log_p.exp() * log_p).sum(-1).float(), **close)
    tokens = batch.response[batch.response_mask]
    mine, wanted = forward.log_probs(logits, tokens), log_p[torch.arange(len(tokens)), tokens]
    torch.testing.assert_close(mine, wanted.float(), **close)
    weights = torch.linspace(-1, 2, len(tokens))
    ((weights * mine).sum() + (weights * hidden.sum(-1)).sum()).backward()
    ((weights * wanted).sum() + (weights * states.sum(-1)).sum()).backward()
    for (name, got), other in zip(ours.named_parameters(), naive.parameters()):
        assert (got.grad - other.grad).abs().max() <= (
            1e-4 if dtype == torch.float32 else 1e-6
        ) * other.grad.abs().max().clamp(min=1), name


def test_shared_reading_is_right_for_every_architecture(architecture, llama):
    lm = language_model.LM(architecture[1], llama.tokenizer, torch.float32, frozenset())
    for prompts, _ in SHARING.values():
        responses = [[9, 2, 5], [7], [8, 8, 0, 3, 2], [2]][: len(prompts)]
        for prompt, response, row in zip(prompts, responses, forward.response_log_probs(lm, prompts, responses)):
            assert row == pytest.approx(response_reference(lm.model, prompt, response), abs=1e-4)


def test_nothing_is_shared_where_a_sliding_window_would_lose_it(llama):
    windowed = language_model.LM(random_model(ARCHITECTURES["mistral"]()), llama.tokenizer, torch.float32, frozenset())
    assert forward.collate(windowed, [[3, 4], [3, 5]], [[1], [1, 2]]).shared
    for prompts, responses in (([[3, 4], [3, 5]], [[1], [1, 2, 2]]), ([[3, 4, 5], [3, 4, 5]], [[1], [1, 2]])):
        assert not forward.collate(windowed, prompts, responses).shared
