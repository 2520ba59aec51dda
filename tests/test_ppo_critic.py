"""What stands for the value of a state: a separate critic's values against the reward model's own
scores, and what it learns.
"""

import pytest
import tiny
import torch
from tiny import one_thread  # noqa: F401

import ppo
import reward
from lm import forward
from lm.sampling import Sampling

PROMPTS, RESPONSES = [[2, 4, 5, 6], [2, 9]], [[7, 8, 1], [10, 11, 12, 1]]


@pytest.fixture(params=tiny.FAMILIES)
def model(request, tmp_path):
    found = reward.load(tiny.folder(tmp_path / "base", request.param), tiny.tokenizer(), torch.float32, seed=3)
    found.mean, found.std = 0.7, 2.5
    return found


def test_a_new_critics_values_are_the_normalised_scores_of_what_is_written_before_each_token(model):
    values = ppo.Critic(model)(forward.collate(model.lm, PROMPTS, RESPONSES)).detach()
    so_far = [(prompt, response[:n]) for prompt, response in zip(PROMPTS, RESPONSES) for n in range(len(response))]
    with torch.no_grad():
        wanted = [(model.lm.model(input_ids=torch.tensor([p + r])).logits[0, 0] - 0.7) / 2.5 for p, r in so_far]
    torch.testing.assert_close(values, torch.stack(wanted), rtol=1e-4, atol=1e-5)


def test_of_a_head_that_reads_p_known_the_critic_takes_the_part_that_does_not(tmp_path):
    model = reward.load(tiny.folder(tmp_path / "base"), tiny.tokenizer(), torch.float32, seed=3, reads="p_known")
    values = ppo.Critic(model)(forward.collate(model.lm, PROMPTS[:1], RESPONSES[:1])).detach()
    assert float(values[0]) != 0 and model.lm.model.score.weight.shape[0] == 2
    again = reward.scores(model, PROMPTS[:1], [RESPONSES[0][:2]], [0.5]).detach()
    torch.testing.assert_close(values[2:3], again, rtol=1e-4, atol=1e-5)  # P(known) = 1/2 leaves the first output alone


def test_a_separate_critic_sends_no_gradient_into_the_policy(model):
    policy, apart = tiny.lm("llama", 1), ppo.Critic(model)
    batch = forward.collate(model.lm, PROMPTS, RESPONSES)
    _, value, _ = ppo.token_figures(policy, apart, batch, 1.0)
    value.sum().backward()
    assert all(p.grad is None for p in policy.model.parameters())
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in apart.trunk.parameters())


def test_ppo_teaches_a_separate_critic_what_the_rewards_are(model):
    policy, apart = tiny.lm("llama", 1), ppo.Critic(model)
    config = ppo.PPOConfig(
        steps=25, batch=6, lr=1e-6, value_lr=3e-3, value_clip=100.0, value_coef=1.0, guidance_share=0.0, missing_end=0.0
    )
    tasks = [
        {
            "id": f"q{i}",
            "prompt": [2, 4 + i],
            "preferred": [7, 1],
            "state": "known",
            "answers": ["rome"],
            "question": "",
            "p_known": 0.5,
        }
        for i in range(6)
    ]
    score = lambda tasks, responses: torch.tensor(
        [float(t["prompt"][1]) / 3 for t in tasks]
    )  # depends on the question alone
    optimizer = ppo.new_optimizer(policy, apart, config)
    figures = list(
        ppo.optimise(
            policy,
            apart,
            optimizer,
            score,
            None,
            tasks,
            config,
            Sampling(max_new_tokens=3),
            0,
            {"step": 0, "kl_coef": 0.0},
        )
    )
    assert figures[-1]["value_loss"] < 0.2 * figures[0]["value_loss"]
    assert all(f["first_ratio_off"] == 0 for f in figures)
