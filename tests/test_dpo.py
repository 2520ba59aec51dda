"""DPO against the formula of its paper in float64, rejection sampling against a search by hand,
both resumed bit for bit.
"""

import copy
import json
import math
from dataclasses import replace

import pytest
import tiny
import torch
from tiny import one_thread  # noqa: F401

from baselines import dpo
from experiment.checkpoint import load_checkpoint, save_checkpoint
from lm import optim
from lm.sampling import Sampling, generate

SAMPLING = Sampling(max_new_tokens=5, rows=64)
EXAMPLES = [  # (prompt, responses best first, P(known)): rankings of two and of three, many lengths
    ([2, 4, 5, 6], [[7, 8, 1], [9, 1]], 0.5),
    ([2, 4], [[10, 1], [7, 7, 7, 1], [11, 12, 1]], 0.5),
    ([2, 5, 6, 7, 8], [[12, 1], [13, 14, 15, 16, 1]], 0.5),
    ([2, 9, 9], [[5, 6, 1], [4, 1], [6, 1]], 0.5),
]
TASKS = [{"id": f"q{i}", "prompt": [2, 4 + i, 5, 6][: 2 + i % 3], "preferred": [7, 1]} for i in range(7)]
CONFIG = dpo.DPOConfig(steps=4, batch=3, lr=1e-3, beta=0.3, micro_rows=3)
REJECTION = dpo.RejectionConfig(samples=3, rounds=2, epochs=2, batch=2, lr=1e-3)


def adamw(policy, lr=1e-3):
    return optim.adamw([{"params": list(policy.model.parameters()), "lr": lr}])


def odd_score(tasks, responses):
    """A score that depends on every token."""
    return torch.tensor(
        [math.sin(sum((n + 1) * token for n, token in enumerate(t["prompt"] + r))) for t, r in zip(tasks, responses)]
    )


def log_pi(model, prompt, response):
    """Log-probability of a response, alone and without padding, float64."""
    ids = torch.tensor([prompt + response])
    log_p = model(input_ids=ids).logits[0].log_softmax(-1)
    return sum(log_p[len(prompt) + n - 1, token] for n, token in enumerate(response))


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("micro_rows", [2, 64])
def test_a_step_has_the_gradient_of_the_papers_formula(family, micro_rows):
    policy, reference = tiny.lm(family, 1), tiny.lm(family, 2)
    model, ref = (copy.deepcopy(m.model).double() for m in (policy, reference))
    rankings = []
    for prompt, responses, _ in EXAMPLES:
        terms = []
        for i, better in enumerate(responses):
            for worse in responses[i + 1 :]:
                with torch.no_grad():
                    offset = log_pi(ref, prompt, better) - log_pi(ref, prompt, worse)
                terms.append(
                    torch.log1p(
                        torch.exp(-0.3 * (log_pi(model, prompt, better) - log_pi(model, prompt, worse) - offset))
                    )
                )
        rankings.append(sum(terms) / len(terms))
    loss = sum(rankings) / len(rankings)
    wanted = torch.autograd.grad(loss, list(model.parameters()))

    recorder, sums = tiny.GradientsOnly([policy.model]), dpo.reference_sums(reference, EXAMPLES, 3)
    config = replace(CONFIG, steps=1, batch=4, micro_rows=micro_rows, max_grad_norm=1e9)
    figures = next(dpo.learn(policy, recorder, EXAMPLES, sums, config, 0, {"step": 0}))
    assert figures["loss"] == pytest.approx(loss.item(), rel=1e-4)
    for gradient, exact in zip(recorder.steps[0], wanted):
        torch.testing.assert_close(gradient.double(), exact, rtol=1e-3, atol=1e-6)


def test_reference_sums_are_the_log_probabilities_of_whole_responses():
    policy = tiny.lm("gpt2", 3)
    model = copy.deepcopy(policy.model).double()
    for (prompt, responses, _), sums in zip(EXAMPLES, dpo.reference_sums(policy, EXAMPLES, 4)):
        with torch.no_grad():
            assert sums == pytest.approx([log_pi(model, prompt, r).item() for r in responses], rel=1e-4)


def test_loss_starts_at_log_2_and_the_better_response_wins_in_the_end():
    policy = tiny.lm("llama", 1)
    sums = dpo.reference_sums(policy, EXAMPLES, 8)
    config = replace(CONFIG, steps=40, batch=4, lr=3e-3)
    figures = list(dpo.learn(policy, adamw(policy), EXAMPLES, sums, config, 0, {"step": 0}))
    assert figures[0]["loss"] == pytest.approx(math.log(2), rel=1e-5), "policy and reference are the same"
    assert figures[-1]["accuracy"] == 1 and figures[-1]["loss"] < 0.3


@pytest.mark.parametrize(
    "responses, tasks, wanted", [(60, 100, (10, 10)), (60, 4, (4, 4)), (3, 100, (1, 2)), (65, 100, (10, 10))]
)
def test_a_round_has_as_many_prompts_as_the_budget_allows(responses, tasks, wanted):
    assert dpo.plan(REJECTION, responses, tasks) == wanted
    prompts = wanted[0]
    assert prompts == 1 or prompts * REJECTION.samples * REJECTION.rounds <= responses


def test_best_of_keeps_the_highest_score_of_each_prompts_samples():
    policy = tiny.lm("llama", 1)
    kept, mean, tokens = dpo.best_of(policy, odd_score, TASKS, REJECTION, SAMPLING, "seed")
    sampled = generate(policy, [t["prompt"] for t in TASKS], SAMPLING, 3, [t["id"] for t in TASKS], "seed")
    best = []
    for task, responses, chosen in zip(TASKS, sampled, kept):
        scores = [
            float(odd_score([task], [r])[0]) - (0 if r[-1] == policy.end_id else REJECTION.missing_end)
            for r in responses
        ]
        best.append(max(scores))
        assert chosen == {**task, "preferred": responses[scores.index(max(scores))]}
    assert mean == pytest.approx(sum(best) / len(best), rel=1e-5)
    assert tokens == sum(len(r) for responses in sampled for r in responses)
    assert {r[-1] == policy.end_id for responses in sampled for r in responses} == {True, False}, (
        "some end, some do not"
    )


def test_rejection_sampling_raises_the_score_round_by_round():
    policy = tiny.lm("llama", 1)
    wanted = tiny.ids("red")[0]
    config = dpo.RejectionConfig(samples=8, rounds=5, epochs=4, batch=4, lr=1e-2, missing_end=0.0)
    score = lambda tasks, responses: torch.tensor([float(wanted in r) for r in responses])
    figures = list(dpo.reject(policy, adamw(policy), score, TASKS, config, 7 * 8 * 5, SAMPLING, 0, {"step": 0}))
    rewards = [f["reward"] for f in figures if "reward" in f]
    assert len(rewards) == 5 and rewards[-1] == 1 > rewards[0]
    assert sum(f.get("tokens", 0) for f in figures) <= 7 * 8 * 5 * SAMPLING.max_new_tokens


def loops(policy, progress):
    """{algorithm: (loop, optimizer)} of a policy."""
    first, second = adamw(policy), adamw(policy)
    sums = dpo.reference_sums(tiny.lm("llama", 1), EXAMPLES, 8)
    return {
        "dpo": (dpo.learn(policy, first, EXAMPLES, sums, CONFIG, 0, progress), first),
        "rejection": (dpo.reject(policy, second, odd_score, TASKS, REJECTION, 30, SAMPLING, 0, progress), second),
    }


@pytest.mark.parametrize("algorithm", ["dpo", "rejection"])
@pytest.mark.parametrize("stop", [1, 2, 3])
def test_resumed_run_equals_an_unbroken_one_bit_for_bit(algorithm, stop, tmp_path):
    policy, checkpoint = tiny.lm("llama", 1), str(tmp_path / "checkpoint")
    unbroken = list(loops(policy, {"step": 0})[algorithm][0])
    broken, progress = tiny.lm("llama", 1), {"step": 0}
    loop, optimizer = loops(broken, progress)[algorithm]
    figures = [next(loop) for _ in range(stop)]
    save_checkpoint(checkpoint, {"policy": broken.model}, optimizer, progress)
    resumed, progress = tiny.lm("llama", 1), {}
    loop, optimizer = loops(resumed, progress)[algorithm]
    progress.update(load_checkpoint(checkpoint, {"policy": resumed.model}, optimizer))
    figures += list(loop)
    assert json.dumps(figures) == json.dumps(unbroken) and len(figures) > stop
    assert tiny.weights(resumed.model) == tiny.weights(policy.model) != tiny.weights(broken.model)
