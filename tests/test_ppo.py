"""PPO with guidance: the arithmetic against loops and hand-worked rows, a whole step against an independent one, learning, resuming."""
import copy
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import critic as critics
import optim
import ppo
import reward
import tiny
from lm import Sampling, generate, generator_for, render
from tiny import one_thread  # noqa: F401

END = tiny.tokenizer().eos_token_id
SAMPLING = Sampling(max_new_tokens=7, temperature=0.7, rows=64)
CONFIG = ppo.PPOConfig(steps=6, batch=6, lr=1e-2, value_lr=1e-2, micro_rows=4, guidance_share=0.6, guidance_until=1.0, guidance_tokens=3)


def make_tasks(lm, n=9):
    """Tasks whose prompts and preferred responses have many lengths."""
    questions = ["who is paris", "what is the capital of rome", "where is oslo", "what", "who is the capital of lima and bonn", "red"]
    preferred = ["i do not know .", "rome", "sorry i do not know", "the capital is rome .", "one two three four five six seven"]
    return [{"id": f"q{i}", "prompt": render(lm, [{"role": "user", "content": questions[i % 6]}]), "answers": ["rome"], "question": "",
             "preferred": tiny.ids(f"{preferred[i % 5]} <end>"), "state": ("known", "unknown", "mixed")[i % 3], "p_known": i / n} for i in range(n)]


def odd_score(tasks, responses):
    """A reward that depends on every token of prompt and response."""
    return torch.tensor([math.sin(sum((n + 1) * token for n, token in enumerate(t["prompt"] + r))) for t, r in zip(tasks, responses)])


def head(policy, seed=0):
    """A value head that is not zero."""
    value_head = critics.new_value_head(policy)
    with torch.no_grad():
        value_head.weight.copy_(torch.randn(value_head.weight.shape, generator=torch.Generator().manual_seed(seed)) / 8)
        value_head.bias.fill_(0.1)
    return value_head


def new_progress(config):
    return {"step": 0, "kl_coef": config.kl_coef}


def run(policy, value_head, optimizer, config, score=odd_score, reference=None, sampling=SAMPLING, seed=0, progress=None):
    """All figures of a PPO run."""
    progress = progress or new_progress(config)
    return list(ppo.optimise(policy, value_head, optimizer, score, reference, make_tasks(policy), config, sampling, seed, progress))


def roll(policy, value_head, tasks, config, reference=None, seed=0, step=0):
    """ppo.rollout of one step by odd_score."""
    return ppo.rollout(policy, value_head, odd_score, reference, tasks, config, SAMPLING, seed, step, config.kl_coef)


def start(config=CONFIG, family="llama", tied=False):
    """A policy with its value head and optimizer."""
    policy = tiny.lm(family, 1, tied)
    value_head = head(policy)
    return policy, value_head, critics.new_optimizer(policy, value_head, config)


def rectangle(rows, fill):
    """Rows of different lengths as (tensor padded right with `fill`, mask), float32."""
    width = max(map(len, rows))
    return (torch.tensor([list(row) + [fill] * (width - len(row)) for row in rows]),
            torch.tensor([[True] * len(row) + [False] * (width - len(row)) for row in rows]))


def gae_by_definition(rewards, values, gamma, lam):
    """Sum over l of (gamma lam)^l delta_(t+l), for each t, term by term in float64; the value after the end is 0."""
    after = [*values[1:], 0.0]
    delta = [r + gamma * v_next - v for r, v, v_next in zip(rewards, values, after)]
    return [sum((gamma * lam) ** k * delta[t + k] for k in range(len(delta) - t)) for t in range(len(delta))]


# ---------------------------------------------------------------------------------------------------- the arithmetic

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
    loss, _ = ppo.policy_loss(torch.tensor([[0.0]]), torch.tensor([[-1000.0]]), torch.tensor([[-1.0]]), torch.tensor([[True]]), 0.2)
    assert math.isfinite(loss)


def test_value_loss_takes_the_larger_error_of_the_value_and_the_kept_value():
    value = torch.tensor([[1.0, 1.0, -1.0, 0.1, 5.0]], requires_grad=True)
    returns = torch.tensor([[2.0, 0.5, 0.5, 1.0, 0.0]])
    mask = torch.tensor([[True, True, True, True, False]])
    loss, kept = ppo.value_loss(value, torch.zeros(1, 5), returns, mask, 0.2)
    # old value 0, so a value is kept within 0.2 of it: errors of (value | kept) against the return
    wanted = [(1 - 2) ** 2, (0.2 - 2) ** 2], [(1 - 0.5) ** 2, (0.2 - 0.5) ** 2], [(-1 - 0.5) ** 2, (-0.2 - 0.5) ** 2], [(0.1 - 1) ** 2, (0.1 - 1) ** 2]
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
    assert ppo.explained_variance(returns + 3, returns, mask) == pytest.approx(1, abs=1e-5), "a constant shift explains all variance"
    assert ppo.explained_variance(torch.zeros_like(returns), returns, mask) == pytest.approx(0, abs=1e-5)
    assert ppo.explained_variance(returns, torch.ones_like(returns), mask) == 0


def test_kl_figures_are_exact_on_a_vocabulary_of_two_tokens():
    policy, reference = (0.75, 0.25), (0.4, 0.6)
    drawn = [0, 0, 0, 1]  # as often as the policy says
    micro = []
    for part in ([drawn[:3]], [drawn[3:]]):  # two micro-batches of unequal size, garbage behind the ends
        log_prob, mask = rectangle([[math.log(policy[t])] for t in part[0]], 0.0)
        ref, _ = rectangle([[math.log(reference[t])] for t in part[0]], 0.0)
        micro.append({"log_prob": F.pad(log_prob, (0, 2), value=5.0), "reference": F.pad(ref, (0, 2), value=-5.0), "mask": F.pad(mask, (0, 2))})
    figures = ppo.kl_figures(ppo.Rollout([], [], [], None, micro))
    exact = sum(p * math.log(p / q) for p, q in zip(policy, reference))
    assert figures["kl"] == pytest.approx(exact, abs=1e-6), "k1 has the KL as its mean"
    assert figures["kl_k3"] == pytest.approx(exact, abs=1e-6), "so has k3"


def test_kl_figure_sums_over_tokens_and_averages_over_responses_and_k3_is_never_negative():
    log_prob, mask = rectangle([[-1.0, -2.0], [-3.0]], 0.0)
    reference, _ = rectangle([[-0.5, -1.0], [-2.0]], 0.0)  # the reference likes every token better: k1 is negative
    figures = ppo.kl_figures(ppo.Rollout([], [], [], None, [{"log_prob": log_prob, "reference": reference, "mask": mask}]))
    assert figures["kl"] == pytest.approx((-0.5 - 1.0 - 1.0) / 2)
    k3 = [math.exp(0.5) - 1 - 0.5, math.e - 2, math.e - 2]
    assert figures["kl_k3"] == pytest.approx(sum(k3) / 2)


# ---------------------------------------------------------------------------------------------------- guidance and tasks

def test_guidance_is_the_first_tokens_of_the_preferred_response_from_one_to_most():
    preferred = [list(range(100 * i, 100 * i + 12)) for i in range(300)]
    guidance = ppo.guide(preferred, 1.0, 4, torch.Generator().manual_seed(0))
    assert all(g == p[:len(g)] for g, p in zip(guidance, preferred))
    assert {len(g) for g in guidance} == {1, 2, 3, 4}
    counts = np.bincount([len(g) for g in guidance])[1:]
    assert counts.min() > 45, f"every length about as often: {counts}"


def test_guidance_leaves_at_least_two_tokens_to_be_said():
    preferred = [list(range(n)) for n in (1, 2, 3, 4, 5, 30)] * 40
    for ids, g in zip(preferred, ppo.guide(preferred, 1.0, 9, torch.Generator().manual_seed(1))):
        assert len(g) <= max(0, len(ids) - 2) and len(g) <= 9
        assert bool(g) == (len(ids) > 2)
    assert ppo.guide([[1, 2, 3]] * 20, 1.0, 9, torch.Generator().manual_seed(2)) == [[1]] * 20


def test_guidance_share_decides_how_many_and_the_generator_which():
    preferred = [list(range(9))] * 400
    assert ppo.guide(preferred, 0.0, 4, torch.Generator().manual_seed(0)) == [[]] * 400
    quarter, again, other = (ppo.guide(preferred, 0.25, 4, torch.Generator().manual_seed(seed)) for seed in (3, 3, 4))
    assert 60 < sum(map(bool, quarter)) < 140
    assert quarter == again and quarter != other


@pytest.mark.parametrize("anneal, shares, lengths", [
    ("share", [0.5, 0.375, 0.25, 0.125, 0, 0], [8, 8, 8, 8]), ("length", [0.5, 0.5, 0.5, 0.5, 0, 0], [8, 6, 4, 2]),
    ("both", [0.5, 0.375, 0.25, 0.125, 0, 0], [8, 6, 4, 2])])
def test_guidance_falls_linearly_to_nothing(anneal, shares, lengths):
    config = ppo.PPOConfig(steps=100, guidance_share=0.5, guidance_until=0.6, guidance_tokens=8, guidance_anneal=anneal)
    found = [ppo.guidance_of_step(step, config) for step in (0, 15, 30, 45, 60, 99)]
    assert [share for share, _ in found] == pytest.approx(shares)
    assert [most for _, most in found[:4]] == lengths
    assert ppo.guidance_of_step(59, config)[1] >= 1, "a guided prompt has at least one token of guidance"


@pytest.mark.parametrize("n, size", [(12, 4), (5, 5), (3, 8)])
def test_every_task_comes_once_a_pass_in_a_fresh_order(n, size):
    tasks, a_pass = list(range(n)), max(1, n // size)
    passes = [[ppo.tasks_of_step(tasks, size, step, 0) for step in range(k * a_pass, (k + 1) * a_pass)] for k in range(4)]
    flat = [[task for part in one for task in part] for one in passes]
    assert all(sorted(one) == tasks for one in flat)
    assert len({tuple(one) for one in flat}) > 1
    assert flat[0] != [task for step in range(a_pass) for task in ppo.tasks_of_step(tasks, size, step, 1)] or n < 4, "the seed decides"


def test_a_pass_that_steps_do_not_divide_repeats_no_task():
    steps = [ppo.tasks_of_step(list(range(11)), 4, step, 0) for step in range(8)]
    assert all(len(step) == 4 for step in steps)
    assert all(len({*first, *second}) == 8 for first, second in zip(steps[::2], steps[1::2]))


def test_task_of_a_preference_record_prefers_its_best_response():
    lm = tiny.lm()
    record = {"id": "x", "prompt": [{"role": "user", "content": "who is paris"}], "ranking": ["i do not know", "red"], "state": "unknown"}
    assert ppo.tokenise(lm, record, {"answers": ["rome"], "question": "where ?"}, 0.75) == {
        "id": "x", "prompt": tiny.ids("<user> who is paris <assistant>"), "preferred": tiny.ids("i do not know <end>"),
        "state": "unknown", "answers": ["rome"], "question": "where ?", "p_known": 0.75}


# ---------------------------------------------------------------------------------------------------- a step, done twice

def rows_of(rolled):
    """{(whole row of token ids): {"log_prob": [...], ...}} of the micro-batches, without padding."""
    rows = {}
    for m in rolled.micro:
        for i in range(len(m["mask"])):
            ids = tuple(m["batch"].input_ids[i][m["batch"].attention_mask[i].bool()].tolist())
            rows[ids] = {name: m[name][i][m["mask"][i]].tolist() for name in ("log_prob", "value", "reference", "advantage", "returns")}
    return rows


def independent_step(policy, value_head, reference, rolled, scores, config, temperature):
    """One step from the continuations: row by row without padding, full logits of Hugging Face, float64.

    Returns (figures of each row, gradients of policy and value head, mean entropy).
    """
    model, ref, values = (copy.deepcopy(m).double() for m in (policy.model, reference.model, value_head))
    lines = []
    for task, guidance, continuation, score in zip(rolled.tasks, rolled.guidance, rolled.continuation, scores.tolist()):
        context = task["prompt"] + guidance
        ids = torch.tensor([context + continuation])
        at = torch.arange(len(context) - 1, len(context) + len(continuation) - 1)  # where the continuation is predicted
        out = model(input_ids=ids, output_hidden_states=True)
        log_p = (out.logits[0] / temperature).log_softmax(-1)[at]
        chosen = torch.tensor(continuation)[:, None]
        log_prob, value = log_p.gather(1, chosen)[:, 0], values(out.hidden_states[-1][0, at])[:, 0]
        with torch.no_grad():
            ref_log_prob = (ref(input_ids=ids).logits[0] / temperature).log_softmax(-1)[at].gather(1, chosen)[:, 0]
        rewards = [-config.kl_coef * float(a - b) for a, b in zip(log_prob.detach(), ref_log_prob)]
        rewards[-1] += score - (config.missing_end if continuation[-1] != END else 0.0)
        advantage = gae_by_definition(rewards, value.detach().tolist(), config.gamma, config.lam)
        lines.append({"ids": tuple(context + continuation), "log_prob": log_prob, "value": value, "reference": ref_log_prob,
                      "returns": [a + v for a, v in zip(advantage, value.tolist())], "advantage": advantage,
                      "entropy": -(log_p.exp() * log_p).sum().item()})
    flat = np.concatenate([line["advantage"] for line in lines])
    loss = 0.0
    for line in lines:
        line["advantage"] = ((np.array(line["advantage"]) - flat.mean()) / flat.std()).tolist()
        for t in range(len(line["advantage"])):
            ratio = torch.exp(line["log_prob"][t] - line["log_prob"][t].detach())
            loss = loss - line["advantage"][t] * ratio + config.value_coef * 0.5 * (line["value"][t] - line["returns"][t]) ** 2
    gradients = torch.autograd.grad(loss / len(flat), [*model.parameters(), *values.parameters()])
    return lines, gradients, sum(line["entropy"] for line in lines) / len(flat)


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("micro_rows", [2, 64])
def test_a_step_with_guidance_and_padding_equals_an_independent_one(family, micro_rows):
    config = replace(CONFIG, kl_coef=0.3, gamma=0.95, lam=0.8, missing_end=0.7, epochs=1, micro_rows=micro_rows, max_grad_norm=1e9)
    policy, reference = tiny.lm(family, 1), tiny.lm(family, 2)
    value_head, tasks = head(policy), make_tasks(policy)
    rolled, entropy = roll(policy, value_head, tasks, config, reference)

    guided = [bool(g) for g in rolled.guidance]
    ended = [c[-1] == END for c in rolled.continuation]
    assert {*guided} == {*ended} == {True, False} and len({len(c) for c in rolled.continuation}) > 2, "the case must hold all kinds"
    assert len(rolled.micro) == -(-len(tasks) // micro_rows)
    raw = odd_score(tasks, [g + c for g, c in zip(rolled.guidance, rolled.continuation)])
    assert rolled.score.tolist() == pytest.approx([s - (0 if e else 0.7) for s, e in zip(raw.tolist(), ended)], abs=1e-6)

    lines, gradients, mean_entropy = independent_step(policy, value_head, reference, rolled, raw, config, SAMPLING.temperature)
    rows = rows_of(rolled)
    assert len(rows) == len(tasks)
    for line in lines:
        for name in ("log_prob", "value", "reference", "advantage", "returns"):
            wanted = [float(x.detach()) if torch.is_tensor(x) else x for x in line[name]]
            assert rows[line["ids"]][name] == pytest.approx(wanted, rel=1e-4, abs=1e-4), name
    assert entropy == pytest.approx(mean_entropy, rel=1e-4)

    recorder = tiny.GradientsOnly([policy.model, value_head])
    figures = ppo.improve(policy, value_head, recorder, rolled, config, SAMPLING.temperature)
    assert len(recorder.steps) == 1 and figures["skipped"] == 0
    for mine, wanted in zip(recorder.steps[0], gradients):
        torch.testing.assert_close(mine.double(), wanted, rtol=1e-3, atol=2e-6)
    norm = math.sqrt(sum(float((g**2).sum()) for g in gradients))
    assert figures["grad_norm"] == pytest.approx(norm, rel=1e-4)


def test_gradients_do_not_depend_on_the_micro_batches():
    policy = tiny.lm("gpt2", 1)
    value_head, found = head(policy), []
    for micro_rows in (2, 64):
        config = replace(CONFIG, epochs=1, micro_rows=micro_rows, max_grad_norm=1e9)
        rolled, _ = roll(policy, value_head, make_tasks(policy), config)
        recorder = tiny.GradientsOnly([policy.model, value_head])
        ppo.improve(policy, value_head, recorder, rolled, config, SAMPLING.temperature)
        found.append(torch.cat([g.flatten() for g in recorder.steps[0]]))
    assert float((found[0] - found[1]).abs().max()) < 1e-6


def test_loss_sees_the_continuation_only():
    policy, config = tiny.lm("llama", 1), replace(CONFIG, epochs=1)
    value_head, tasks, seen = head(policy), make_tasks(policy), []
    rolled, _ = roll(policy, value_head, tasks, replace(config, guidance_share=1.0))
    assert sum(map(len, rolled.guidance)) > 5
    hook = policy.model.lm_head.register_forward_hook(lambda head, args, logits: seen.append(logits.shape[:-1].numel()))
    ppo.improve(policy, value_head, tiny.GradientsOnly([policy.model]), rolled, config, SAMPLING.temperature)
    hook.remove()
    assert sum(seen) == sum(map(len, rolled.continuation)), "no logits of prompt, guidance or padding"
    learnt_from = sorted(m["batch"].response[i][m["mask"][i]].tolist() for m in rolled.micro for i in range(len(m["mask"])))
    assert learnt_from == sorted(rolled.continuation)


def test_guided_rollouts_continue_from_the_guidance():
    policy = tiny.lm("llama", 1)
    tasks = make_tasks(policy)
    rolled, _ = roll(policy, head(policy), tasks, replace(CONFIG, guidance_share=1.0), seed=3, step=2)
    wanted = generate(policy, [t["prompt"] + g for t, g in zip(tasks, rolled.guidance)], SAMPLING, keys=[t["id"] for t in tasks], seed="3 ppo 2")
    assert rolled.continuation == [r[0] for r in wanted]
    assert rolled.guidance == ppo.guide([t["preferred"] for t in tasks], 1 - 2 / 6, CONFIG.guidance_tokens, generator_for(3, "ppo guidance 2"))


# ---------------------------------------------------------------------------------------------------- the update loop

@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_first_ratio_is_exactly_1_with_padding_and_micro_batches(family, dtype):
    policy, value_head, optimizer = start(family=family)
    figures = run(replace(policy, dtype=dtype), value_head, optimizer, replace(CONFIG, steps=3, micro_rows=2))
    assert [f["first_ratio_off"] for f in figures] == [0.0, 0.0, 0.0]
    assert all(f["approx_kl"] > 0 for f in figures), "the second pass has moved"


def test_figures_of_the_update_average_over_tokens_and_passes():
    policy, value_head, _ = start()
    config = replace(CONFIG, epochs=3, kl_coef=0.0)
    rolled, _ = roll(policy, value_head, make_tasks(policy), replace(config, guidance_share=0.0))
    figures = ppo.improve(policy, value_head, tiny.GradientsOnly([policy.model, value_head]), rolled, config, SAMPLING.temperature)
    # the weights stay, so that every ratio is 1: the mean loss is minus the mean whitened advantage, that is 0
    assert figures["policy_loss"] == pytest.approx(0, abs=1e-5)
    errors = torch.cat([((m["value"] - m["returns"]) ** 2)[m["mask"]] for m in rolled.micro])
    assert figures["value_loss"] == pytest.approx(float(errors.mean()) / 2, rel=1e-4)
    assert (figures["clip_fraction"], figures["approx_kl"], figures["first_ratio_off"], figures["skipped"]) == (0, 0, 0, 0)


def test_learning_rates_of_policy_and_value_head_follow_the_cosine():
    config = replace(CONFIG, steps=6, warmup=1 / 3, lr=0.01, value_lr=0.1, epochs=1)  # two steps rise
    policy, value_head, optimizer = start(config)
    rates = []
    for figures in ppo.optimise(policy, value_head, optimizer, odd_score, None, make_tasks(policy), config, SAMPLING, 0, new_progress(config)):
        rates.append(figures["lr"] / 0.01)
        assert optimizer.param_groups[1]["lr"] == pytest.approx(10 * figures["lr"])
    assert rates == pytest.approx([0.5, 1.0, 1.0, 0.5 + 0.5 * math.cos(math.pi / 4), 0.5, 0.5 - 0.5 * math.cos(math.pi / 4)])


def test_guidance_share_of_the_steps_anneals_and_is_logged():
    policy, value_head, optimizer = start()
    figures = run(policy, value_head, optimizer, replace(CONFIG, steps=4, guidance_share=1.0, guidance_until=0.5))
    assert [f["guidance_share"] for f in figures] == [1.0, 0.5, 0.0, 0.0]
    assert math.isnan(figures[-1]["reward_guided"]) and not math.isnan(figures[0]["reward_guided"])


def test_a_bandit_is_solved():
    wanted = tiny.ids("red")[0]
    config = replace(CONFIG, steps=40, batch=9, lr=1e-2, missing_end=0.0, guidance_share=0.0, epochs=2)
    policy = tiny.lm("llama", 1)
    value_head = critics.new_value_head(policy)
    sampling = Sampling(max_new_tokens=2)
    tasks = make_tasks(policy)

    def share():
        drawn = generate(policy, [t["prompt"] for t in tasks], sampling, samples=30, seed="bandit")
        return np.mean([r[0] == wanted for rows in drawn for r in rows])

    assert share() < 0.2
    score = lambda tasks, responses: torch.tensor([float(r[0] == wanted) for r in responses])
    figures = run(policy, value_head, critics.new_optimizer(policy, value_head, config), config, score, sampling=sampling)
    assert share() > 0.95
    assert figures[-1]["reward"] == 1 and figures[-1]["entropy"] < figures[0]["entropy"]


def test_kl_to_the_reference_holds_the_policy_back():
    found = []
    for kl_coef in (0.0, 3.0):
        policy, value_head, optimizer = start()
        reference = tiny.lm("llama", 1)
        before = tiny.weights(reference.model)
        figures = run(policy, value_head, optimizer, replace(CONFIG, kl_coef=kl_coef), reference=reference)
        assert figures[0]["kl"] == pytest.approx(0, abs=1e-5) and figures[0]["kl_k3"] == pytest.approx(0, abs=1e-5)
        assert tiny.weights(reference.model) == before
        found.append(figures[-1]["kl_k3"])
    assert found[1] < 0.5 * found[0]


def test_without_kl_no_reference_is_needed_and_nothing_changes():
    results = []
    for reference in (None, tiny.lm("llama", 2)):
        policy, value_head, optimizer = start()
        figures = run(policy, value_head, optimizer, replace(CONFIG, kl_coef=0.0, steps=3), reference=reference)
        results.append((tiny.weights(policy.model, value_head), json.dumps([{k: v for k, v in f.items() if not k.startswith("kl")} for f in figures])))
    assert results[0] == results[1]
    assert "kl" in figures[0] and "kl" not in run(*start(), replace(CONFIG, steps=1))[0]


def test_sampling_is_never_cut_to_likely_tokens():
    results = []
    for sampling in (SAMPLING, replace(SAMPLING, top_k=1, top_p=0.1)):
        policy, value_head, optimizer = start()
        results.append(json.dumps(run(policy, value_head, optimizer, replace(CONFIG, steps=2), sampling=sampling)))
    assert results[0] == results[1]


@pytest.mark.parametrize("family, tied", [("llama", False), ("llama", True), ("gpt2", True)])
def test_resumed_run_equals_an_unbroken_one_bit_for_bit(family, tied, tmp_path):
    config, checkpoint = replace(CONFIG, steps=5, kl_coef=0.05), str(tmp_path / "checkpoint")
    reference = tiny.lm(family, 1, tied)
    policy, value_head, optimizer = start(config, family, tied)
    unbroken = run(policy, value_head, optimizer, config, reference=reference)

    broken, broken_head, optimizer = start(config, family, tied)
    figures = []
    for step in ppo.optimise(broken, broken_head, optimizer, odd_score, reference, make_tasks(broken), config, SAMPLING, 0, new_progress(config)):
        figures.append(step)
        if step["step"] == 2:
            optim.save_checkpoint(checkpoint, {"policy": broken.model, "value": broken_head}, optimizer, {"step": 2, "kl_coef": config.kl_coef})
            break
    resumed, resumed_head, optimizer = start(config, family, tied)
    facts = optim.load_checkpoint(checkpoint, {"policy": resumed.model, "value": resumed_head}, optimizer)
    figures += run(resumed, resumed_head, optimizer, config, reference=reference, progress=facts)
    assert json.dumps(figures) == json.dumps(unbroken) and [f["step"] for f in figures] == [1, 2, 3, 4, 5]
    assert tiny.weights(resumed.model, resumed_head) == tiny.weights(policy.model, value_head)
    assert tiny.weights(resumed.model) != tiny.weights(broken.model)


def test_the_seed_decides_a_run():
    runs = [json.dumps(run(*start(), replace(CONFIG, steps=2), seed=seed)) for seed in (0, 0, 1)]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_score_that_is_not_finite_skips_the_update_and_leaves_weights_alone(bad):
    def score(tasks, responses):
        values = odd_score(tasks, responses)
        values[1] = bad
        return values

    policy, value_head, optimizer = start()
    before = tiny.weights(policy.model, value_head)
    figures = run(policy, value_head, optimizer, replace(CONFIG, steps=2, epochs=2), score)
    assert [f["skipped"] for f in figures] == [2, 2]
    assert tiny.weights(policy.model, value_head) == before
    assert not optimizer.state, "its moments have seen nothing either"
    figures = run(policy, value_head, optimizer, replace(CONFIG, steps=1))
    assert figures[0]["skipped"] == 0 and tiny.weights(policy.model, value_head) != before


def test_gradients_are_clipped_as_one():
    policy, value_head, _ = start()
    config = replace(CONFIG, epochs=1, max_grad_norm=1e-3)
    rolled, _ = roll(policy, value_head, make_tasks(policy), replace(config, guidance_share=0.0))
    recorder = tiny.GradientsOnly([policy.model, value_head])
    figures = ppo.improve(policy, value_head, recorder, rolled, config, SAMPLING.temperature)
    assert figures["grad_norm"] > 1e-2
    assert math.sqrt(sum(float((g.double() ** 2).sum()) for g in recorder.steps[0])) == pytest.approx(1e-3, rel=1e-3)


def test_value_head_starts_at_zero_and_has_its_own_learning_rate():
    policy = tiny.lm("llama", 1, tied=True)
    value_head = critics.new_value_head(policy)
    assert all((p == 0).all() for p in value_head.parameters()) and value_head.weight.dtype == torch.float32
    optimizer = critics.new_optimizer(policy, value_head, CONFIG)
    groups = [{id(p) for p in group["params"]} for group in optimizer.param_groups]
    assert groups == [{id(p) for p in policy.model.parameters()}, {id(p) for p in value_head.parameters()}]
    assert [group["lr"] for group in optimizer.param_groups] == [CONFIG.lr, CONFIG.value_lr]


# ---------------------------------------------------------------------------------------------------- the log

def test_behaviour_counts_guided_and_unguided_answers_apart():
    policy = tiny.lm()
    cases = [  # state, guidance, continuation, score
        ("known", "", "rome <end>", 1.0), ("known", "", "i do not know <end>", -1.0), ("known", "i do", "not know <end>", 4.0),
        ("unknown", "", "i do not know", 3.0), ("unknown", "", "red <end>", -2.0), ("unknown", "the", "capital", 6.0),
        ("mixed", "", "blue <end>", 0.5)]
    rolled = ppo.Rollout([{"answers": ["rome"], "question": "", "state": state} for state, *_ in cases], [tiny.ids(g) for _, g, _, _ in cases],
                         [tiny.ids(c) for _, _, c, _ in cases], torch.tensor([s for *_, s in cases]), [])
    found = ppo.behaviour(policy, rolled)
    assert found["reward"] == pytest.approx((1 - 1 + 3 - 2 + 0.5) / 5) and found["reward_guided"] == pytest.approx(5.0)
    assert found["reward_deviation"] == pytest.approx(np.std([s for *_, s in cases], ddof=1), rel=1e-5)
    assert found["tokens"] == 2 + 5 + 3 + 4 + 2 + 1 + 2
    assert found["length"] == pytest.approx((2 + 5 + 3 + 4 + 2 + 1 + 2) / 7) and found["ended"] == pytest.approx(5 / 7)
    assert found["refusals_known"] == 1 / 2 and found["refusals_unknown"] == 1 / 2 and found["refusals_guided"] == 1 / 2
    assert found["hallucinations"] == pytest.approx(2 / 5), "of the unguided answers"


def test_behaviour_of_a_step_without_guidance_has_no_guided_reward():
    policy = tiny.lm()
    rolled = ppo.Rollout([{"answers": ["rome"], "question": "", "state": "known"}], [[]], [tiny.ids("rome <end>")], torch.tensor([2.0]), [])
    found = ppo.behaviour(policy, rolled)
    assert math.isnan(found["reward_guided"]) and math.isnan(found["refusals_unknown"])
    assert (found["reward"], found["reward_deviation"], found["refusals_guided"]) == (2.0, 0.0, 0.0)


FINE = {"first_ratio_off": 0.0, "reward_deviation": 1.0, "refusals_known": 0.1, "reward": 0.5, "skipped": 0}


def test_no_alarm_where_nothing_is_wrong():
    assert ppo.alarms({**FINE, "reward": 0.9}, FINE, 0.7, 0.6) == []


@pytest.mark.parametrize("change, balanced, words", [
    ({"first_ratio_off": 0.01}, 0.6, "first ratio"), ({"reward_deviation": 0.0}, 0.6, "rewards of the step are equal"),
    ({"refusals_known": 0.25}, 0.6, "refusals on known questions rose from 10% to 25%"), ({"reward": 0.9}, 0.5, "balanced on the validation questions fell"),
    ({"skipped": 1}, 0.6, "skipped")])
def test_an_alarm_names_what_is_wrong(change, balanced, words):
    found = ppo.alarms({**FINE, **change}, FINE, balanced, 0.6)
    assert len(found) == 1 and words in found[0] and "\n" not in found[0]


# ---------------------------------------------------------------------------------------------------- what the settings change

@pytest.mark.parametrize("kl, factor", [(2.0, 1.0), (2.2, 1.01), (20.0, 1.02), (1.8, 0.99), (-5.0, 0.98)])
def test_kl_penalty_is_steered_by_at_most_two_per_cent_a_step(kl, factor):
    assert ppo.adapted_kl_coef(0.5, kl, 2.0) == pytest.approx(0.5 * factor)


def test_an_adaptive_kl_penalty_follows_from_each_steps_own_kl_and_is_resumed():
    config = replace(CONFIG, steps=4, kl_coef=0.5, kl_target=0.01)
    progress = new_progress(config)
    figures = run(*start(config), config, reference=tiny.lm("llama", 1), progress=progress)
    coef = 0.5
    for f in figures:
        assert f["kl_coef"] == pytest.approx(coef)
        coef *= 1 + 0.1 * max(-0.2, min(0.2, f["kl"] / 0.01 - 1))
    assert progress == {"step": 4, "kl_coef": pytest.approx(coef)} and coef != pytest.approx(0.5, rel=1e-4)
    fixed = run(*start(config), replace(config, kl_target=0.0), reference=tiny.lm("llama", 1))
    assert {f["kl_coef"] for f in fixed} == {0.5}


def test_kl_penalty_of_the_progress_is_the_one_in_the_rewards():
    policy, reference, config = tiny.lm("llama", 1), tiny.lm("llama", 2), replace(CONFIG, gamma=1.0, lam=1.0, kl_coef=0.1)
    rolled = [ppo.rollout(policy, head(policy), odd_score, reference, make_tasks(policy), config, SAMPLING, 0, 0, coef)[0] for coef in (0.0, 0.4)]
    for without, penalised in zip(rolled[0].micro, rolled[1].micro):  # with gamma and lambda 1 a return is the sum of what follows
        gaps = ((penalised["log_prob"] - penalised["reference"]) * penalised["mask"]).tolist()
        expected = torch.tensor([[-0.4 * sum(row[t:]) for t in range(len(row))] for row in gaps]) * penalised["mask"]
        assert expected.abs().max() > 0.01
        torch.testing.assert_close((penalised["returns"] - without["returns"]) * penalised["mask"], expected, rtol=1e-4, atol=1e-5)


def test_passes_end_before_the_update_that_would_go_on_from_too_large_a_kl():
    config = replace(CONFIG, steps=1, epochs=5, lr=3e-2)
    free = run(*start(config), config)[0]
    stopped = run(*start(config), replace(config, stop_kl=1e-6))[0]
    one = run(*start(config), replace(config, epochs=1))[0]
    assert free["passes"] == 5 and stopped["passes"] == 1
    policies = []
    for changed in (replace(config, stop_kl=1e-6), replace(config, epochs=1)):
        policy, value_head, optimizer = start(config)
        run(policy, value_head, optimizer, changed)
        policies.append((tiny.weights(policy.model, value_head), all(p.grad is None for p in policy.model.parameters())))
    assert policies[0] == policies[1] == (policies[0][0], True), "as if there had been one pass, and no gradient is left over"
    assert stopped["grad_norm"] == one["grad_norm"]


def test_one_batch_of_8_has_the_gradient_of_four_of_2():
    policy = tiny.lm("llama", 1)
    value_head, found = head(policy), []
    for micro_rows in (8, 2):
        config = replace(CONFIG, epochs=1, batch=8, micro_rows=micro_rows, max_grad_norm=1e9)
        rolled, _ = roll(policy, value_head, make_tasks(policy, 8), config)
        recorder = tiny.GradientsOnly([policy.model, value_head])
        ppo.improve(policy, value_head, recorder, rolled, config, SAMPLING.temperature)
        assert len(rolled.micro) == 8 // micro_rows
        found.append(torch.cat([g.flatten() for g in recorder.steps[0]]))
    assert float((found[0] - found[1]).abs().max()) < 1e-6 < float(found[0].abs().max())


def test_ratio_and_clipped_values_of_the_update_are_logged():
    config = replace(CONFIG, steps=1, epochs=3, lr=3e-2, value_lr=1.0, value_clip=1e-3)
    figures = run(*start(config), config)[0]
    assert figures["ratio_max"] > 1.01 and figures["value_clip_fraction"] > 0
    still = run(*start(config), replace(config, lr=1e-12, value_lr=1e-12))[0]
    assert still["ratio_max"] == pytest.approx(1, abs=1e-4) and still["value_clip_fraction"] < 0.1


@pytest.mark.parametrize("unguided, guided, says", [(0.0, 0.0, True), (float("nan"), 0.01, True), (0.05, 0.0, False), (0.0, 0.3, False)])
def test_before_the_first_step_it_says_where_nothing_can_be_reinforced(unguided, guided, says):
    assert ("nothing to reinforce" in ppo.abstention({"refusals_unknown": unguided, "refusals_guided": guided})) == says


def test_with_a_separate_critic_a_run_resumes_bit_for_bit(tmp_path):
    config, checkpoint = replace(CONFIG, steps=3, value_lr=1e-3), str(tmp_path / "checkpoint")

    def begin():
        model = reward.load(tiny.folder(tmp_path / "base"), tiny.tokenizer(), torch.float32, seed=3)
        policy, critic = tiny.lm("llama", 1), critics.Critic(model)
        return policy, critic, critics.new_optimizer(policy, critic, config)

    policy, critic, optimizer = begin()
    unbroken = run(policy, critic, optimizer, config)
    broken, broken_critic, optimizer = begin()
    progress = new_progress(config)
    loop = ppo.optimise(broken, broken_critic, optimizer, odd_score, None, make_tasks(broken), config, SAMPLING, 0, progress)
    figures = [next(loop), next(loop)]
    optim.save_checkpoint(checkpoint, {"policy": broken.model, "value": broken_critic}, optimizer, progress)
    resumed, resumed_critic, optimizer = begin()
    progress = optim.load_checkpoint(checkpoint, {"policy": resumed.model, "value": resumed_critic}, optimizer)
    figures += run(resumed, resumed_critic, optimizer, config, progress=progress)
    assert json.dumps(figures) == json.dumps(unbroken)
    assert tiny.weights(resumed.model, resumed_critic) == tiny.weights(policy.model, critic)
