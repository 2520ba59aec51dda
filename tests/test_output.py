"""What a reward model reads of the output distribution, against each sequence alone in float64."""

import copy
import math
from dataclasses import replace

import pytest
import tiny
import torch
from tiny import one_thread  # noqa: F401

import reward
from evaluation import output
from lm.sampling import Sampling

SAMPLING = Sampling(max_new_tokens=6, temperature=0.7, rows=64)
PROMPTS = [
    tiny.ids(f"<user> {text} <assistant>") for text in ("who is paris", "what is the capital of rome", "red", "red")
]
RESPONSES = [tiny.ids(f"{text} <end>") for text in ("rome", "i do not know .", "i do not know .", "blue green")]


def log_p(model, ids):
    """Log-probabilities (time, vocabulary) of one sequence in float64."""
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)


def by_hand(lm, prompt, response, p):
    """(quantities, refuses) of one pair, token by token."""
    model = copy.deepcopy(lm.model).double()
    first = log_p(model, prompt)[-1].tolist()
    greedy, total = list(prompt), 0.0
    for _ in range(SAMPLING.max_new_tokens):
        row = log_p(model, greedy)[-1]
        total += row.max().item()
        greedy.append(row.argmax().item())
        if greedy[-1] in lm.end_ids:
            break
    rows = log_p(model, prompt + response)
    said = sum(rows[len(prompt) - 1 + i, token].item() for i, token in enumerate(response))
    return [said, -sum(math.exp(x) * x for x in first), total, math.log(p / (1 - p))]


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_quantities_equal_those_of_each_sequence_alone(family):
    lm, known = tiny.lm(family, 3), [0.9, 0.2, 0.5, 0.7]
    reader = output.OutputReader(lm, SAMPLING, rows=2)
    quantities, refuses = reader(PROMPTS, RESPONSES, known)
    assert refuses.tolist() == [0, 1, 1, 0]
    for row, prompt, response, p in zip(quantities.tolist(), PROMPTS, RESPONSES, known):
        assert row == pytest.approx(by_hand(lm, prompt, response, p), abs=1e-4)


def test_what_was_read_once_is_not_read_again(monkeypatch):
    reader = output.OutputReader(tiny.lm(), SAMPLING)
    before, _ = reader(PROMPTS, RESPONSES, [0.5] * 4)
    monkeypatch.setattr(output, "generate", None)
    monkeypatch.setattr(output, "response_log_probs", None)
    after, _ = reader(PROMPTS[::-1], RESPONSES[::-1], [0.5] * 4)
    assert torch.equal(before, after.flip(0))


def test_features_count_a_quantity_for_refusals_or_for_answers():
    quantities, refuses = torch.tensor([[1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 9.0]]), torch.tensor([1.0, 0.0])
    mean, std = torch.tensor([0.0, 1.0, 1.0, 2.0]), torch.tensor([2.0, 1.0, 4.0, 1.0])
    found = output.features(quantities, refuses, mean, std).tolist()
    assert found == [[1, 1, 0.5, 2, 0, 0, 0], [0, 0, 0, 0, 0.5, 1, 4]], "a quantity is kept within 4 deviations"
    assert len(found[0]) == len(output.FEATURES) and quantities.shape[1] == len(output.QUANTITIES)


def test_a_reward_model_that_reads_the_output_adds_its_term_and_is_the_same_after_loading(tmp_path):
    base = tiny.folder(tmp_path / "base")
    reader = output.OutputReader(tiny.lm(), SAMPLING)
    model = reward.load(base, tiny.tokenizer(), torch.float32, seed=1, reads="output", reader=reader)
    text = reward.load(base, tiny.tokenizer(), torch.float32, seed=1)
    known = [0.9, 0.2, 0.5, 0.7]
    reward.fit_scale(model, [(p, [r], k) for p, r, k in zip(PROMPTS, RESPONSES, known)])
    model.output.weight.data = torch.linspace(-1, 1, len(output.FEATURES))
    quantities, refuses = reader(PROMPTS, RESPONSES, known)
    assert model.output.mean.tolist() == pytest.approx(quantities.mean(0).tolist())
    term = output.features(quantities, refuses, model.output.mean, model.output.std) @ model.output.weight.data
    plain, found = (reward.score_all(m, PROMPTS, RESPONSES, known) for m in (text, model))
    assert (found - plain).tolist() == pytest.approx(term.tolist(), abs=1e-5)
    reward.save(model, tmp_path / "reward")
    again = reward.load(str(tmp_path / "reward"), tiny.tokenizer(), torch.float32, reader=reader)
    assert torch.equal(reward.score_all(again, PROMPTS, RESPONSES, known), found)


def test_with_a_frozen_trunk_the_output_alone_can_tell_a_refusal_of_the_unknown(tmp_path):
    base = tiny.folder(tmp_path / "base")
    reader = output.OutputReader(tiny.lm(), SAMPLING)
    model = reward.load(base, tiny.tokenizer(), torch.float32, seed=1, reads="output", reader=reader)
    fact, refusal = RESPONSES[0], RESPONSES[1]
    examples = [(PROMPTS[0], [fact, refusal], 0.95), (PROMPTS[1], [refusal, fact], 0.05)]
    config = replace(reward.RewardConfig(), lr=1e-3, head_lr=0.1, frozen=1.0, batch=2, epochs=40)
    reward.fit_scale(model, examples)
    optimizer = reward.new_optimizer(model, config)
    assert list(reward.learn(model, examples, config, 0, optimizer))[-1]["accuracy"] == 1
    names = [name for name, p in model.lm.model.named_parameters() if p.requires_grad]
    assert all("layers" not in name and "embed" not in name for name in names)
