"""Schedules at hand-worked steps, the guarded step, and checkpoints that continue bit for bit."""

import json
import math
import os

import pytest
import tiny
import torch
from tiny import one_thread  # noqa: F401

from experiment.checkpoint import load_checkpoint, save_checkpoint
from lm import optim
from lm.errors import UserError


def test_linear_schedule_rises_over_the_warm_up_and_falls_to_nothing():
    got = [optim.linear_schedule(step, 10, 0.2) for step in range(10)]
    assert got == pytest.approx([1 / 2, 1, 8 / 8, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8])


def test_one_per_cent_of_warm_up_as_in_the_paper():
    got = [optim.linear_schedule(step, 300, 0.01) for step in (0, 1, 2, 3, 4, 299)]
    assert got == pytest.approx([1 / 3, 2 / 3, 1, 1, 296 / 297, 1 / 297])


def test_cosine_schedule_rises_over_the_warm_up_and_falls_along_half_a_cosine():
    got = [optim.cosine_schedule(step, 10, 0.2) for step in range(10)]
    assert got == pytest.approx([0.5, 1] + [0.5 * (1 + math.cos(math.pi * k / 8)) for k in range(8)])
    assert got[6] == pytest.approx(0.5) and got[9] < 0.05


@pytest.mark.parametrize("schedule", [optim.linear_schedule, optim.cosine_schedule])
@pytest.mark.parametrize("steps, warmup", [(1, 0.0), (1, 1.0), (2, 0.5), (7, 0.0), (7, 1.0), (100, 0.01)])
def test_schedules_stay_between_nothing_and_one_and_never_start_at_nothing(schedule, steps, warmup):
    got = [schedule(step, steps, warmup) for step in range(steps)]
    assert all(0 < x <= 1 + 1e-12 for x in got) and max(got) == pytest.approx(1)


def test_adamw_has_the_betas_and_eps_of_the_paper_and_no_decay():
    weight = torch.nn.Parameter(torch.tensor([2.0, -3.0]))
    optimizer = optim.adamw([{"params": [weight], "lr": 0.1}])
    moment, square, value = [0.0, 0.0], [0.0, 0.0], [2.0, -3.0]
    for step in (1, 2, 3):  # AdamW written out, beta 0.9 and 0.99, eps 1e-5
        gradient = [0.5 * step, -1e-5]
        weight.grad = torch.tensor(gradient)
        optimizer.step()
        for i, g in enumerate(gradient):
            moment[i], square[i] = 0.9 * moment[i] + 0.1 * g, 0.99 * square[i] + 0.01 * g * g
            value[i] -= 0.1 * (moment[i] / (1 - 0.9**step)) / (math.sqrt(square[i] / (1 - 0.99**step)) + 1e-5)
    assert weight.tolist() == pytest.approx(value, rel=1e-5)


def test_every_group_gets_its_own_learning_rate():
    weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimizer = optim.adamw([{"params": [weights[0]], "lr": 1.0}, {"params": [weights[1]], "lr": 1.0}])
    optim.set_lr(optimizer, [2.0, 6.0], 0.25)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 1.5]


def sgd(*gradients):
    """Weights of zeros with these gradients, and plain gradient descent of rate 1 on them."""
    weights = [torch.nn.Parameter(torch.zeros(len(g))) for g in gradients]
    for weight, gradient in zip(weights, gradients):
        weight.grad = torch.tensor(gradient)
    return weights, torch.optim.SGD(weights, lr=1.0)


def test_guarded_step_clips_all_gradients_by_their_common_norm():
    weights, optimizer = sgd([3.0, 0.0], [4.0])
    assert optim.guarded_step(optimizer, weights, 2.5) == pytest.approx(5.0)
    assert weights[0].tolist() + weights[1].tolist() == pytest.approx([-1.5, 0, -2.0], rel=1e-5)
    assert all(w.grad is None for w in weights)


def test_guarded_step_leaves_small_gradients_as_they_are():
    weights, optimizer = sgd([0.3], [0.4])
    assert optim.guarded_step(optimizer, weights, 1.0) == pytest.approx(0.5)
    assert [w.item() for w in weights] == pytest.approx([-0.3, -0.4])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_guarded_step_skips_gradients_that_are_not_finite(bad):
    weights, optimizer = sgd([1.0, bad], [2.0])
    assert not math.isfinite(optim.guarded_step(optimizer, weights, 1.0))
    assert [w.tolist() for w in weights] == [[0.0, 0.0], [0.0]]
    assert all(w.grad is None for w in weights), "the next step must not meet them again"


# -------------------------------------------------------------------------------------- checkpoints


def modules(tied, seed):
    head = torch.nn.Linear(32, 1)
    for p in head.parameters():
        torch.nn.init.constant_(p, 0.01 * seed)
    return {"policy": tiny.causal(seed=seed, tied=tied), "head": head}


def optimizer_of(parts):
    return optim.adamw([{"params": list(part.parameters()), "lr": 1e-2} for part in parts.values()])


def train(parts, optimizer, steps):
    """Some steps on batches that depend on the step alone."""
    for step in steps:
        ids = torch.randint(4, 30, (3, 6), generator=torch.Generator().manual_seed(step))
        out = parts["policy"](input_ids=ids, labels=ids, output_hidden_states=True)
        (out.loss + parts["head"](out.hidden_states[-1]).square().mean()).backward()
        optim.guarded_step(optimizer, [p for part in parts.values() for p in part.parameters()], 1.0)


@pytest.mark.parametrize("tied", [False, True])
def test_training_goes_on_from_a_checkpoint_bit_for_bit(tied, tmp_path):
    folder = str(tmp_path / "checkpoint")
    straight = modules(tied, 1)
    train(straight, optimizer_of(straight), range(6))

    first = modules(tied, 1)
    optimizer = optimizer_of(first)
    train(first, optimizer, range(3))
    facts = {"step": 3, "best": {"balanced": 0.5}, "text": "不知道"}
    save_checkpoint(folder, first, optimizer, facts)
    second = modules(tied, 2)
    optimizer = optimizer_of(second)
    assert load_checkpoint(folder, second, optimizer) == facts
    assert tiny.weights(*second.values()) == tiny.weights(*first.values())
    assert (second["policy"].lm_head.weight is second["policy"].model.embed_tokens.weight) == tied
    train(second, optimizer, range(3, 6))
    assert tiny.weights(*second.values()) == tiny.weights(*straight.values())
    assert tiny.weights(*second.values()) != tiny.weights(*first.values())


def test_a_checkpoint_can_be_replaced_and_saved_twice(tmp_path):
    folder = str(tmp_path / "checkpoint")
    parts = modules(True, 1)
    optimizer = optimizer_of(parts)
    for step in (1, 2):
        train(parts, optimizer, [step])
        save_checkpoint(folder, parts, optimizer, {"step": step})
    fresh = modules(True, 3)
    assert load_checkpoint(folder, fresh, optimizer_of(fresh)) == {"step": 2}
    assert tiny.weights(*fresh.values()) == tiny.weights(*parts.values())
    assert os.listdir(tmp_path) == ["checkpoint"]


def test_a_checkpoint_before_the_first_step_restores_the_weights(tmp_path):
    first, second = modules(False, 1), modules(False, 2)
    save_checkpoint(str(tmp_path / "checkpoint"), first, optimizer_of(first), {"step": 0})
    load_checkpoint(str(tmp_path / "checkpoint"), second, optimizer_of(second))
    assert tiny.weights(*second.values()) == tiny.weights(*first.values())


def test_without_a_checkpoint_nothing_changes(tmp_path):
    parts = modules(False, 1)
    before = tiny.weights(*parts.values())
    assert load_checkpoint(str(tmp_path / "none"), parts, optimizer_of(parts)) is None
    assert tiny.weights(*parts.values()) == before


def test_a_checkpoint_is_whole_or_not_there(tmp_path):
    folder = str(tmp_path / "checkpoint")
    parts = modules(False, 1)
    optimizer = optimizer_of(parts)
    save_checkpoint(folder, parts, optimizer, {"step": 1})
    train(parts, optimizer, [0])
    with pytest.raises(TypeError):
        save_checkpoint(folder, parts, optimizer, {"step": object()})  # fails after the tensors are written
    other = modules(False, 1)
    assert load_checkpoint(folder, other, optimizer_of(other)) == {"step": 1}
    assert tiny.weights(*other.values()) == tiny.weights(*modules(False, 1).values())


def test_a_checkpoint_is_safetensors_and_json(tmp_path):
    parts = modules(False, 1)
    save_checkpoint(str(tmp_path / "checkpoint"), parts, optimizer_of(parts), {"step": 1})
    assert sorted(os.listdir(tmp_path / "checkpoint")) == ["training.json", "training.safetensors"]
    assert json.loads((tmp_path / "checkpoint" / "training.json").read_text()) == {"step": 1}


@pytest.mark.parametrize(
    "file, content",
    [
        ("training.safetensors", b"torn"),
        ("training.safetensors", None),
        ("training.json", b"{"),
        ("training.json", None),
    ],
)
def test_a_damaged_checkpoint_is_named_and_what_to_do(file, content, tmp_path):
    parts = modules(False, 1)
    save_checkpoint(str(tmp_path / "checkpoint"), parts, optimizer_of(parts), {"step": 0})
    (tmp_path / "checkpoint" / file).unlink()
    if content is not None:
        (tmp_path / "checkpoint" / file).write_bytes(content)
    with pytest.raises(UserError, match="checkpoint"):
        load_checkpoint(str(tmp_path / "checkpoint"), parts, optimizer_of(parts))


def test_another_models_checkpoint_is_refused(tmp_path):
    parts = modules(False, 1)
    save_checkpoint(str(tmp_path / "c"), parts, optimizer_of(parts), {"step": 0})
    other = {**parts, "head": torch.nn.Linear(16, 1)}
    with pytest.raises(UserError, match="not a whole checkpoint of this model; delete it"):
        load_checkpoint(str(tmp_path / "c"), other, optimizer_of(other))
