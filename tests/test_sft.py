"""The supervised warm-up: its loss against Hugging Face's own, micro-batches, and that it learns
what it is shown.
"""

import copy

import pytest
import tiny
import torch

from baselines import sft
from lm import model as language_model
from lm import optim
from lm.layers import decoder_layers, freeze
from lm.sampling import Sampling, generate

TASKS = [
    {"prompt": [2, 4, 5, 6], "preferred": [7, 8, 1]},
    {"prompt": [2, 4, 9], "preferred": [10, 1]},
    {"prompt": [2, 5, 6, 7, 8, 9], "preferred": [11, 12, 9, 1]},
]


def learn(policy, config):
    """The figures of all steps."""
    optimizer = optim.adamw([{"params": list(policy.model.parameters()), "lr": config.lr}])
    return list(sft.learn(policy, optimizer, TASKS, config, 0, {"step": 0}))


@pytest.fixture(params=tiny.FAMILIES)
def policy(request):
    return tiny.lm(request.param)


def test_loss_is_hugging_faces_loss_on_the_response_tokens(policy):
    loss = sft.imitation_loss(policy, [t["prompt"] for t in TASKS], [t["preferred"] for t in TASKS])
    total = 0.0
    for task in TASKS:
        ids = torch.tensor([task["prompt"] + task["preferred"]])
        labels = ids.clone()
        labels[:, : len(task["prompt"])] = -100
        total += policy.model(ids, labels=labels).loss.item() * len(task["preferred"])
    assert loss.item() == pytest.approx(total, rel=1e-5)


def test_the_first_tokens_weigh_as_much_as_the_settings_say(policy):
    tasks = [{"prompt": [2, 4, 5], "preferred": [7, 8, 9, 10, 11, 12, 1]}, {"prompt": [2, 9], "preferred": [10, 1]}]
    terms, weights = [], []
    for task in tasks:  # token by token
        for n, token in enumerate(task["preferred"]):
            logits = policy.model(torch.tensor([task["prompt"] + task["preferred"][:n]])).logits[0, -1]
            terms.append(-logits.log_softmax(-1)[token].item())
            weights.append(3.0 if n < 4 else 1.0)
    expected = sum(t * w for t, w in zip(terms, weights)) / sum(weights)
    for rows in (1, 2):
        other = language_model.wrap(copy.deepcopy(policy.model), policy.tokenizer)
        optimizer = optim.adamw([{"params": list(other.model.parameters()), "lr": 1e-3}])
        assert sft.imitate(other, optimizer, tasks, 1.0, rows, 3.0)["loss"] == pytest.approx(expected, rel=1e-4)


def test_micro_batches_add_up_to_the_whole_batch(policy):
    weights = []
    for rows in (1, 2, 16):
        other = language_model.wrap(copy.deepcopy(policy.model), policy.tokenizer)
        losses = [f["loss"] for f in learn(other, sft.SFTConfig(steps=2, lr=1e-3, batch=3, micro_rows=rows))]
        weights.append((losses, torch.cat([p.detach().flatten() for p in other.model.parameters()])))
    for losses, flat in weights[1:]:
        assert losses == pytest.approx(weights[0][0], rel=1e-5)
        torch.testing.assert_close(flat, weights[0][1], rtol=0, atol=1e-4)


def test_the_policy_comes_to_say_what_it_imitates(policy):
    learn(policy, sft.SFTConfig(steps=60, lr=1e-2, batch=3))
    said = generate(policy, [t["prompt"] for t in TASKS], Sampling(max_new_tokens=6, temperature=0.0))
    assert [r[0] for r in said] == [t["preferred"] for t in TASKS]


def test_what_is_frozen_stays_and_the_rest_learns(policy):
    layers = decoder_layers(policy.model)
    frozen = [policy.model.get_input_embeddings().weight, *(p for layer in layers[:1] for p in layer.parameters())]
    free = [p for layer in layers[1:] for p in layer.parameters()]
    before = [[p.detach().clone() for p in part] for part in (frozen, free)]
    assert len(layers) == 2 and free
    freeze(policy.model, 0.5)
    learn(policy, sft.SFTConfig(steps=3, lr=1e-2, batch=3))
    assert all(torch.equal(p, was) for p, was in zip(frozen, before[0]))
    assert not any(torch.equal(p, was) for p, was in zip(free, before[1]))


def test_nothing_is_frozen_at_zero(policy):
    freeze(policy.model, 0.0)
    assert all(p.requires_grad for p in policy.model.parameters())


def test_without_steps_nothing_changes(policy):
    before = copy.deepcopy(policy.model.state_dict())
    assert learn(policy, sft.SFTConfig()) == []
    assert all(torch.equal(before[name], value) for name, value in policy.model.state_dict().items())
