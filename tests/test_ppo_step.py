"""One step of PPO: its guidance, its tasks, its rollouts, and a whole one against an independent
step in float64, row by row.
"""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
from tiny import PPO_CONFIG as CONFIG
from tiny import PPO_SAMPLING as SAMPLING
from tiny import gae_by_definition, head, make_tasks, odd_score, one_thread, start  # noqa: F401

import ppo
from lm.sampling import generate, generator_for

END = tiny.tokenizer().eos_token_id


def roll(policy, value_head, tasks, config, reference=None, seed=0, step=0):
    """ppo.rollout of one step by odd_score."""
    return ppo.rollout(policy, value_head, odd_score, reference, tasks, config, SAMPLING, seed, step, config.kl_coef)


# ------------------------------------------------------------------------------- guidance and tasks


def test_guidance_is_the_first_tokens_of_the_preferred_response_from_one_to_most():
    preferred = [list(range(100 * i, 100 * i + 12)) for i in range(300)]
    guidance = ppo.guide(preferred, 1.0, 4, torch.Generator().manual_seed(0))
    assert all(g == p[: len(g)] for g, p in zip(guidance, preferred))
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


@pytest.mark.parametrize(
    "anneal, shares, lengths",
    [
        ("share", [0.5, 0.375, 0.25, 0.125, 0, 0], [8, 8, 8, 8]),
        ("length", [0.5, 0.5, 0.5, 0.5, 0, 0], [8, 6, 4, 2]),
        ("both", [0.5, 0.375, 0.25, 0.125, 0, 0], [8, 6, 4, 2]),
    ],
)
def test_guidance_falls_linearly_to_nothing(anneal, shares, lengths):
    config = ppo.PPOConfig(steps=100, guidance_share=0.5, guidance_until=0.6, guidance_tokens=8, guidance_anneal=anneal)
    found = [ppo.guidance_of_step(step, config) for step in (0, 15, 30, 45, 60, 99)]
    assert [share for share, _ in found] == pytest.approx(shares)
    assert [most for _, most in found[:4]] == lengths
    assert ppo.guidance_of_step(59, config)[1] >= 1, "a guided prompt has at least one token of guidance"


@pytest.mark.parametrize("n, size", [(12, 4), (5, 5), (3, 8)])
def test_every_task_comes_once_a_pass_in_a_fresh_order(n, size):
    tasks, a_pass = list(range(n)), max(1, n // size)
    passes = [
        [ppo.tasks_of_step(tasks, size, step, 0) for step in range(k * a_pass, (k + 1) * a_pass)] for k in range(4)
    ]
    flat = [[task for part in one for task in part] for one in passes]
    assert all(sorted(one) == tasks for one in flat)
    assert len({tuple(one) for one in flat}) > 1
    assert flat[0] != [task for step in range(a_pass) for task in ppo.tasks_of_step(tasks, size, step, 1)] or n < 4, (
        "the seed decides"
    )


def test_a_pass_that_steps_do_not_divide_repeats_no_task():
    steps = [ppo.tasks_of_step(list(range(11)), 4, step, 0) for step in range(8)]
    assert all(len(step) == 4 for step in steps)
    assert all(len({*first, *second}) == 8 for first, second in zip(steps[::2], steps[1::2]))


def test_task_of_a_preference_record_prefers_its_best_response():
    lm = tiny.lm()
    record = {
        "id": "x",
        "prompt": [{"role": "user", "content": "who is paris"}],
        "ranking": ["i do not know", "red"],
        "state": "unknown",
    }
    assert ppo.tokenise(lm, record, {"answers": ["rome"], "question": "where ?"}, 0.75) == {
        "id": "x",
        "prompt": tiny.ids("<user> who is paris <assistant>"),
        "preferred": tiny.ids("i do not know <end>"),
        "state": "unknown",
        "answers": ["rome"],
        "question": "where ?",
        "p_known": 0.75,
    }


# ------------------------------------------------------------------------------- a step, done twice


def rows_of(rolled):
    """{(whole row of token ids): {"log_prob": [...], ...}} of the micro-batches, without
    padding.
    """
    rows = {}
    for m in rolled.micro:
        for i in range(len(m["mask"])):
            ids = tuple(m["batch"].input_ids[i][m["batch"].attention_mask[i].bool()].tolist())
            rows[ids] = {
                name: m[name][i][m["mask"][i]].tolist()
                for name in ("log_prob", "value", "reference", "advantage", "returns")
            }
    return rows


def independent_step(policy, value_head, reference, rolled, scores, config, temperature):
    """One step from the continuations: row by row without padding, full logits of Hugging Face,
    float64.

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
        lines.append(
            {
                "ids": tuple(context + continuation),
                "log_prob": log_prob,
                "value": value,
                "reference": ref_log_prob,
                "returns": [a + v for a, v in zip(advantage, value.tolist())],
                "advantage": advantage,
                "entropy": -(log_p.exp() * log_p).sum().item(),
            }
        )
    flat = np.concatenate([line["advantage"] for line in lines])
    loss = 0.0
    for line in lines:
        line["advantage"] = ((np.array(line["advantage"]) - flat.mean()) / flat.std()).tolist()
        for t in range(len(line["advantage"])):
            ratio = torch.exp(line["log_prob"][t] - line["log_prob"][t].detach())
            loss = (
                loss
                - line["advantage"][t] * ratio
                + config.value_coef * 0.5 * (line["value"][t] - line["returns"][t]) ** 2
            )
    gradients = torch.autograd.grad(loss / len(flat), [*model.parameters(), *values.parameters()])
    return lines, gradients, sum(line["entropy"] for line in lines) / len(flat)


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("micro_rows", [2, 64])
def test_a_step_with_guidance_and_padding_equals_an_independent_one(family, micro_rows):
    config = replace(
        CONFIG, kl_coef=0.3, gamma=0.95, lam=0.8, missing_end=0.7, epochs=1, micro_rows=micro_rows, max_grad_norm=1e9
    )
    policy, reference = tiny.lm(family, 1), tiny.lm(family, 2)
    value_head, tasks = head(policy), make_tasks(policy)
    rolled, entropy = roll(policy, value_head, tasks, config, reference)

    guided = [bool(g) for g in rolled.guidance]
    ended = [c[-1] == END for c in rolled.continuation]
    assert {*guided} == {*ended} == {True, False} and len({len(c) for c in rolled.continuation}) > 2, (
        "the case must hold all kinds"
    )
    assert len(rolled.micro) == -(-len(tasks) // micro_rows)
    raw = odd_score(tasks, [g + c for g, c in zip(rolled.guidance, rolled.continuation)])
    assert rolled.score.tolist() == pytest.approx(
        [s - (0 if e else 0.7) for s, e in zip(raw.tolist(), ended)], abs=1e-6
    )

    lines, gradients, mean_entropy = independent_step(
        policy, value_head, reference, rolled, raw, config, SAMPLING.temperature
    )
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


def test_loss_sees_the_continuation_only():
    policy, config = tiny.lm("llama", 1), replace(CONFIG, epochs=1)
    value_head, tasks, seen = head(policy), make_tasks(policy), []
    rolled, _ = roll(policy, value_head, tasks, replace(config, guidance_share=1.0))
    assert sum(map(len, rolled.guidance)) > 5
    hook = policy.model.lm_head.register_forward_hook(lambda head, args, logits: seen.append(logits.shape[:-1].numel()))
    ppo.improve(policy, value_head, tiny.GradientsOnly([policy.model]), rolled, config, SAMPLING.temperature)
    hook.remove()
    assert sum(seen) == sum(map(len, rolled.continuation)), "no logits of prompt, guidance or padding"
    learnt_from = sorted(
        m["batch"].response[i][m["mask"][i]].tolist() for m in rolled.micro for i in range(len(m["mask"]))
    )
    assert learnt_from == sorted(rolled.continuation)


def test_guided_rollouts_continue_from_the_guidance():
    policy = tiny.lm("llama", 1)
    tasks = make_tasks(policy)
    rolled, _ = roll(policy, head(policy), tasks, replace(CONFIG, guidance_share=1.0), seed=3, step=2)
    wanted = generate(
        policy,
        [t["prompt"] + g for t, g in zip(tasks, rolled.guidance)],
        SAMPLING,
        keys=[t["id"] for t in tasks],
        seed="3 ppo 2",
    )
    assert rolled.continuation == [r[0] for r in wanted]
    assert rolled.guidance == ppo.guide(
        [t["preferred"] for t in tasks], 1 - 2 / 6, CONFIG.guidance_tokens, generator_for(3, "ppo guidance 2")
    )


# --------------------------------------------------------------------------------------- the update


def test_figures_of_the_update_average_over_tokens_and_passes():
    policy, value_head, _ = start()
    config = replace(CONFIG, epochs=3, kl_coef=0.0)
    rolled, _ = roll(policy, value_head, make_tasks(policy), replace(config, guidance_share=0.0))
    figures = ppo.improve(
        policy, value_head, tiny.GradientsOnly([policy.model, value_head]), rolled, config, SAMPLING.temperature
    )
    # the weights stay, so that every ratio is 1: the mean loss is minus the mean whitened
    # advantage, that is 0
    assert figures["policy_loss"] == pytest.approx(0, abs=1e-5)
    errors = torch.cat([((m["value"] - m["returns"]) ** 2)[m["mask"]] for m in rolled.micro])
    assert figures["value_loss"] == pytest.approx(float(errors.mean()) / 2, rel=1e-4)
    assert (figures["clip_fraction"], figures["approx_kl"], figures["first_ratio_off"], figures["skipped"]) == (
        0,
        0,
        0,
        0,
    )


def test_gradients_are_clipped_as_one():
    policy, value_head, _ = start()
    config = replace(CONFIG, epochs=1, max_grad_norm=1e-3)
    rolled, _ = roll(policy, value_head, make_tasks(policy), replace(config, guidance_share=0.0))
    recorder = tiny.GradientsOnly([policy.model, value_head])
    figures = ppo.improve(policy, value_head, recorder, rolled, config, SAMPLING.temperature)
    assert figures["grad_norm"] > 1e-2
    assert math.sqrt(sum(float((g.double() ** 2).sum()) for g in recorder.steps[0])) == pytest.approx(1e-3, rel=1e-3)


def test_kl_penalty_of_the_progress_is_the_one_in_the_rewards():
    policy, reference, config = (
        tiny.lm("llama", 1),
        tiny.lm("llama", 2),
        replace(CONFIG, gamma=1.0, lam=1.0, kl_coef=0.1),
    )
    rolled = [
        ppo.rollout(policy, head(policy), odd_score, reference, make_tasks(policy), config, SAMPLING, 0, 0, coef)[0]
        for coef in (0.0, 0.4)
    ]
    for without, penalised in zip(
        rolled[0].micro, rolled[1].micro
    ):  # with gamma and lambda 1 a return is the sum of what follows
        gaps = ((penalised["log_prob"] - penalised["reference"]) * penalised["mask"]).tolist()
        expected = torch.tensor([[-0.4 * sum(row[t:]) for t in range(len(row))] for row in gaps]) * penalised["mask"]
        assert expected.abs().max() > 0.01
        torch.testing.assert_close(
            (penalised["returns"] - without["returns"]) * penalised["mask"], expected, rtol=1e-4, atol=1e-5
        )


# ---------------------------------------------------------------------- several samples of a prompt


@pytest.mark.parametrize("baseline", ["group", "both"])
def test_the_advantage_of_a_sample_is_over_the_mean_of_its_prompts_samples(baseline):
    config = replace(CONFIG, samples=3, baseline=baseline, gamma=1.0, lam=0.8, missing_end=0.7, guidance_share=0.0)
    policy = tiny.lm(seed=1)
    value_head, tasks = head(policy), [t for t in make_tasks(policy, 4) for _ in range(3)]
    rolled, _ = roll(policy, value_head, tasks, config)
    assert len({tuple(c) for c in rolled.continuation[:3]}) > 1, "the samples of one prompt differ"
    score = rolled.score.tolist()
    rows, expected = rows_without_reference(rolled), {}
    for i, (task, continuation) in enumerate(zip(tasks, rolled.continuation)):
        ids = tuple(task["prompt"] + continuation)
        rewards = [0.0] * len(continuation)
        rewards[-1] = score[i] - sum(score[i // 3 * 3 : i // 3 * 3 + 3]) / 3
        value = [0.0] * len(continuation) if baseline == "group" else rows[ids]["value"]
        expected[ids] = gae_by_definition(rewards, value, 1.0, 1.0 if baseline == "group" else 0.8)
    unique = [expected[tuple(t["prompt"] + c)] for t, c in zip(tasks, rolled.continuation)]
    flat = np.concatenate(unique)
    for ids, advantage in expected.items():
        assert rows[ids]["advantage"] == pytest.approx(list((np.array(advantage) - flat.mean()) / flat.std()), abs=1e-4)


def rows_without_reference(rolled):
    """rows_of a rollout that no reference has seen."""
    rows = {}
    for m in rolled.micro:
        for i, mask in enumerate(m["mask"]):
            ids = tuple(m["batch"].input_ids[i][m["batch"].attention_mask[i].bool()].tolist())
            rows[ids] = {name: m[name][i][mask].tolist() for name in ("value", "advantage")}
    return rows


def test_kl_in_the_loss_adds_the_gradient_of_the_exact_kl_and_leaves_the_rewards_alone():
    config = replace(CONFIG, kl="loss", kl_coef=0.5, epochs=1, max_grad_norm=1e9, guidance_share=0.0)
    policy, reference = tiny.lm(seed=1), tiny.lm(seed=2)
    value_head, tasks = head(policy), make_tasks(policy)
    rolled, _ = roll(policy, value_head, tasks, config, reference)
    without, _ = roll(policy, value_head, tasks, config)
    assert all(torch.equal(a["advantage"], b["advantage"]) for a, b in zip(rolled.micro, without.micro))
    steps = []
    for given in ((), (reference, 0.5)):
        recorder = tiny.GradientsOnly([policy.model, value_head])
        ppo.improve(policy, value_head, recorder, rolled, config, SAMPLING.temperature, *given)
        steps.append(recorder.steps[0])
    model, ref = copy.deepcopy(policy.model).double(), copy.deepcopy(reference.model).double()
    total, tokens = 0.0, 0
    for task, continuation in zip(rolled.tasks, rolled.continuation):
        ids, start = torch.tensor([task["prompt"] + continuation]), len(task["prompt"]) - 1
        log_p, log_q = ((m(input_ids=ids).logits[0] / SAMPLING.temperature).log_softmax(-1) for m in (model, ref))
        for t in range(start, start + len(continuation)):
            total = total + (log_p[t].exp() * (log_p[t] - log_q[t].detach())).sum()
            tokens += 1
    expected = torch.autograd.grad(0.5 * total / tokens, list(model.parameters()))
    for plain, held, wanted in zip(*steps, expected):
        torch.testing.assert_close((held - plain).double(), wanted, rtol=1e-3, atol=1e-5)


def test_frozen_layers_have_no_place_in_the_optimizer():
    policy = tiny.lm(seed=1)
    optimizer = ppo.new_optimizer(policy, head(policy), replace(CONFIG, frozen=0.5))
    trained = {id(p) for p in optimizer.param_groups[0]["params"]}
    names = {name for name, p in policy.model.named_parameters() if id(p) in trained}
    assert names and not any("layers.0." in name or "embed" in name for name in names)
    assert any("layers.1." in name for name in names)
