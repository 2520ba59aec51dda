"""PPO's arithmetic against loops and hand-worked rows: token rewards, GAE, whitening, both clipped
losses, KL.
"""

import math

import numpy as np
import pytest
import torch
from tiny import gae_by_definition, one_thread  # noqa: F401
from torch.nn import functional as F

import ppo


def rectangle(rows, fill):
    """Rows of different lengths as (tensor padded right with `fill`, mask), float32."""
    width = max(map(len, rows))
    return (
        torch.tensor([list(row) + [fill] * (width - len(row)) for row in rows]),
        torch.tensor([[True] * len(row) + [False] * (width - len(row)) for row in rows]),
    )


@pytest.mark.parametrize("gamma, lam", [(1.0, 0.95), (0.9, 0.8), (1.0, 1.0), (0.7, 0.0)])
def test_advantages_follow_the_definition_in_rows_of_different_lengths(gamma, lam):
    rng = np.random.default_rng(0)
    rewards, values = ([rng.normal(size=n).tolist() for n in (5, 1, 7, 3)] for _ in range(2))
    (r, mask), (v, _) = rectangle(rewards, 100.0), rectangle(values, -50.0)  # what lies behind the end must not matter
    got = ppo.advantages(r, v, mask, gamma, lam)
    for row, row_rewards, row_values in zip(got, rewards, values):
        wanted = gae_by_definition(row_rewards, row_values, gamma, lam)
        assert row.tolist() == pytest.approx(wanted + [0.0] * (7 - len(wanted)), abs=1e-5)


def test_score_is_rewarded_at_the_last_valid_token_and_kl_at_every_token():
    log_prob, mask = rectangle([[-1.0, -2.0, -3.0], [-0.5]], 77.0)
    reference, _ = rectangle([[-1.5, -1.0, -3.0], [-2.5]], -88.0)
    rewards = ppo.token_rewards(torch.tensor([10.0, -20.0]), log_prob, reference, mask, 0.5)
    torch.testing.assert_close(rewards, torch.tensor([[-0.25, 0.5, 10.0], [-20 - 1.0, 0.0, 0.0]]))
    rewards = ppo.token_rewards(torch.tensor([10.0, -20.0]), log_prob, None, mask, 0.0)
    torch.testing.assert_close(rewards, torch.tensor([[0.0, 0.0, 10.0], [-20.0, 0.0, 0.0]]))


def test_whitening_sees_masked_entries_only():
    rng = np.random.default_rng(1)
    rows = [(3 + 5 * rng.normal(size=n)).tolist() for n in (4, 2, 6)]
    values, mask = rectangle(rows, 1000.0)
    white = ppo.whiten(values, mask)
    flat = np.concatenate(rows)
    assert white[mask].numpy() == pytest.approx((flat - flat.mean()) / flat.std(), abs=1e-5)
    assert (white[~mask] == 0).all()
    assert torch.isfinite(ppo.whiten(torch.ones(2, 2), torch.ones(2, 2))).all(), "equal values have no deviation"


def test_masked_mean_of_nothing_is_zero():
    assert float(ppo.masked_mean(torch.tensor([5.0, 7.0, 9.0]), torch.tensor([1, 0, 1]))) == 7.0
    assert float(ppo.masked_mean(torch.tensor([5.0, 7.0]), torch.tensor([0, 0]))) == 0.0


def test_policy_loss_on_both_sides_of_the_clip_and_for_both_signs():
    ratio = torch.tensor([[1.5, 0.5, 1.5, 0.5, 1.1], [1.5, 0.9, 3.0, 3.0, 3.0]])
    advantage = torch.tensor([[1.0, 1.0, -2.0, -2.0, 3.0], [-1.0, -1.0, 9.0, 9.0, 9.0]])
    mask = torch.tensor([[True] * 5, [True, True, False, False, False]])
    log_prob = (ratio.log() - 2.0).requires_grad_()
    loss, clipped = ppo.policy_loss(log_prob, torch.full((2, 5), -2.0), advantage, mask, 0.2)
    # A > 0: up is clipped at 1.2, down is not; A < 0: down is clipped at 0.8, up is not
    assert loss.item() == pytest.approx(-1.2 + -0.5 + 3.0 + 1.6 + -3.3 + 1.5 + 0.9)
    assert clipped.item() == 2
    loss.backward()
    wanted = torch.tensor([[0.0, -0.5, 3.0, 0.0, -3.3], [1.5, 0.9, 0.0, 0.0, 0.0]])  # -A ratio, nothing where clipped
    torch.testing.assert_close(log_prob.grad, wanted)


def test_policy_loss_stays_finite_for_a_token_that_became_certain():
    loss, _ = ppo.policy_loss(
        torch.tensor([[0.0]]), torch.tensor([[-1000.0]]), torch.tensor([[-1.0]]), torch.tensor([[True]]), 0.2
    )
    assert math.isfinite(loss)


def test_value_loss_takes_the_larger_error_of_the_value_and_the_kept_value():
    value = torch.tensor([[1.0, 1.0, -1.0, 0.1, 5.0]], requires_grad=True)
    returns = torch.tensor([[2.0, 0.5, 0.5, 1.0, 0.0]])
    mask = torch.tensor([[True, True, True, True, False]])
    loss, kept = ppo.value_loss(value, torch.zeros(1, 5), returns, mask, 0.2)
    # old value 0, so a value is kept within 0.2 of it: errors of (value | kept) against the return
    wanted = (
        [(1 - 2) ** 2, (0.2 - 2) ** 2],
        [(1 - 0.5) ** 2, (0.2 - 0.5) ** 2],
        [(-1 - 0.5) ** 2, (-0.2 - 0.5) ** 2],
        [(0.1 - 1) ** 2, (0.1 - 1) ** 2],
    )
    assert loss.item() == pytest.approx(0.5 * sum(map(max, wanted)))
    loss.backward()
    assert value.grad.tolist()[0] == pytest.approx([0.0, 0.5, -1.5, -0.9, 0.0])  # the clipped token pulls no more
    assert kept.item() == 1


def test_explained_variance_equals_numpy():
    rng = np.random.default_rng(2)
    rows = [rng.normal(size=n).tolist() for n in (4, 1, 6)]
    returns, mask = rectangle(rows, 40.0)
    flat = np.concatenate(rows)
    noisy = [[x + 0.5 * rng.normal() for x in row] for row in rows]
    wanted = 1 - (flat - np.concatenate(noisy)).var() / flat.var()
    assert ppo.explained_variance(rectangle(noisy, -9.0)[0], returns, mask) == pytest.approx(wanted, abs=1e-5)
    assert ppo.explained_variance(returns + 3, returns, mask) == pytest.approx(1, abs=1e-5), (
        "a constant shift explains all variance"
    )
    assert ppo.explained_variance(torch.zeros_like(returns), returns, mask) == pytest.approx(0, abs=1e-5)
    assert ppo.explained_variance(returns, torch.ones_like(returns), mask) == 0


def test_kl_figures_are_exact_on_a_vocabulary_of_two_tokens():
    policy, reference = (0.75, 0.25), (0.4, 0.6)
    drawn = [0, 0, 0, 1]  # as often as the policy says
    micro = []
    for part in ([drawn[:3]], [drawn[3:]]):  # two micro-batches of unequal size, garbage behind the ends
        log_prob, mask = rectangle([[math.log(policy[t])] for t in part[0]], 0.0)
        ref, _ = rectangle([[math.log(reference[t])] for t in part[0]], 0.0)
        micro.append(
            {
                "log_prob": F.pad(log_prob, (0, 2), value=5.0),
                "reference": F.pad(ref, (0, 2), value=-5.0),
                "mask": F.pad(mask, (0, 2)),
            }
        )
    figures = ppo.kl_figures(ppo.Rollout([], [], [], None, micro))
    exact = sum(p * math.log(p / q) for p, q in zip(policy, reference))
    assert figures["kl"] == pytest.approx(exact, abs=1e-6), "k1 has the KL as its mean"
    assert figures["kl_k3"] == pytest.approx(exact, abs=1e-6), "so has k3"


def test_kl_figure_sums_over_tokens_and_averages_over_responses_and_k3_is_never_negative():
    log_prob, mask = rectangle([[-1.0, -2.0], [-3.0]], 0.0)
    reference, _ = rectangle([[-0.5, -1.0], [-2.0]], 0.0)  # the reference likes every token better: k1 is negative
    figures = ppo.kl_figures(
        ppo.Rollout([], [], [], None, [{"log_prob": log_prob, "reference": reference, "mask": mask}])
    )
    assert figures["kl"] == pytest.approx((-0.5 - 1.0 - 1.0) / 2)
    k3 = [math.exp(0.5) - 1 - 0.5, math.e - 2, math.e - 2]
    assert figures["kl_k3"] == pytest.approx(sum(k3) / 2)


@pytest.mark.parametrize("kl, factor", [(2.0, 1.0), (2.2, 1.01), (20.0, 1.02), (1.8, 0.99), (-5.0, 0.98)])
def test_kl_penalty_is_steered_by_at_most_two_per_cent_a_step(kl, factor):
    assert ppo.adapted_kl_coef(0.5, kl, 2.0) == pytest.approx(0.5 * factor)


# ---------------------------------------------------------------------- several samples of a prompt


def test_scores_are_centred_on_the_mean_of_their_own_prompt():
    score = torch.tensor([1.0, 2.0, 6.0, -1.0, -1.0, -1.0])
    found = ppo.centred(score, 3).tolist()
    by_hand = [s - sum(score.tolist()[i // 3 * 3 : i // 3 * 3 + 3]) / 3 for i, s in enumerate(score.tolist())]
    assert found == pytest.approx(by_hand) and found[3:] == [0, 0, 0]
    assert ppo.centred(score, 1).tolist() == [0] * 6


def test_exact_kl_and_its_gradient_equal_a_float64_loop():
    logits, reference = (torch.randn(4, 7, generator=torch.Generator().manual_seed(s)) for s in (0, 1))
    logits.requires_grad_()
    found = ppo.exact_kl(logits, reference)
    (gradient,) = torch.autograd.grad(found.sum(), logits)
    for row, of_reference, kl, slope in zip(logits.tolist(), reference.tolist(), found.tolist(), gradient.tolist()):
        p, q = ([math.exp(x) / sum(map(math.exp, r)) for x in r] for r in (row, of_reference))
        by_hand = sum(a * math.log(a / b) for a, b in zip(p, q))
        assert kl == pytest.approx(by_hand, abs=1e-5) and kl > 0
        # d KL / d logit_j = p_j (log p_j / q_j - KL)
        assert slope == pytest.approx([a * (math.log(a / b) - by_hand) for a, b in zip(p, q)], abs=1e-5)
    assert ppo.exact_kl(logits, logits).abs().max() < 1e-6
