"""PPO over many steps: learning, KL to the reference, resuming bit for bit, what is logged, alarms,
what the settings change.
"""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
from tiny import PPO_CONFIG as CONFIG
from tiny import PPO_SAMPLING as SAMPLING
from tiny import make_tasks, odd_score, one_thread, start  # noqa: F401

import ppo
import reward
from experiment import alarms
from experiment.checkpoint import load_checkpoint, save_checkpoint
from lm.sampling import Sampling, generate


def new_progress(config):
    return {"step": 0, "kl_coef": config.kl_coef}


def run(
    policy, value_head, optimizer, config, score=odd_score, reference=None, sampling=SAMPLING, seed=0, progress=None
):
    """All figures of a PPO run."""
    progress = progress or new_progress(config)
    return list(
        ppo.optimise(
            policy, value_head, optimizer, score, reference, make_tasks(policy), config, sampling, seed, progress
        )
    )


# ---------------------------------------------------------------------------------- the update loop


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_first_ratio_is_exactly_1_with_padding_and_micro_batches(family, dtype):
    policy, value_head, optimizer = start(family=family)
    figures = run(replace(policy, dtype=dtype), value_head, optimizer, replace(CONFIG, steps=3, micro_rows=2))
    assert [f["first_ratio_off"] for f in figures] == [0.0, 0.0, 0.0]
    assert all(f["approx_kl"] > 0 for f in figures), "the second pass has moved"


def test_learning_rates_of_policy_and_value_head_follow_the_cosine():
    config = replace(CONFIG, steps=6, warmup=1 / 3, lr=0.01, value_lr=0.1, epochs=1)  # two steps rise
    policy, value_head, optimizer = start(config)
    rates = []
    for figures in ppo.optimise(
        policy, value_head, optimizer, odd_score, None, make_tasks(policy), config, SAMPLING, 0, new_progress(config)
    ):
        rates.append(figures["lr"] / 0.01)
        assert optimizer.param_groups[1]["lr"] == pytest.approx(10 * figures["lr"])
    assert rates == pytest.approx(
        [0.5, 1.0, 1.0, 0.5 + 0.5 * math.cos(math.pi / 4), 0.5, 0.5 - 0.5 * math.cos(math.pi / 4)]
    )


def test_guidance_share_of_the_steps_anneals_and_is_logged():
    policy, value_head, optimizer = start()
    figures = run(policy, value_head, optimizer, replace(CONFIG, steps=4, guidance_share=1.0, guidance_until=0.5))
    assert [f["guidance_share"] for f in figures] == [1.0, 0.5, 0.0, 0.0]
    assert math.isnan(figures[-1]["reward_guided"]) and not math.isnan(figures[0]["reward_guided"])


def test_a_bandit_is_solved():
    wanted = tiny.ids("red")[0]
    config = replace(CONFIG, steps=40, batch=9, lr=1e-2, missing_end=0.0, guidance_share=0.0, epochs=2)
    policy = tiny.lm("llama", 1)
    value_head = ppo.new_value_head(policy)
    sampling = Sampling(max_new_tokens=2)
    tasks = make_tasks(policy)

    def share():
        drawn = generate(policy, [t["prompt"] for t in tasks], sampling, samples=30, seed="bandit")
        return np.mean([r[0] == wanted for rows in drawn for r in rows])

    assert share() < 0.2
    score = lambda tasks, responses: torch.tensor([float(r[0] == wanted) for r in responses])
    figures = run(policy, value_head, ppo.new_optimizer(policy, value_head, config), config, score, sampling=sampling)
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
        results.append(
            (
                tiny.weights(policy.model, value_head),
                json.dumps([{k: v for k, v in f.items() if not k.startswith("kl")} for f in figures]),
            )
        )
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
    for step in ppo.optimise(
        broken,
        broken_head,
        optimizer,
        odd_score,
        reference,
        make_tasks(broken),
        config,
        SAMPLING,
        0,
        new_progress(config),
    ):
        figures.append(step)
        if step["step"] == 2:
            save_checkpoint(
                checkpoint,
                {"policy": broken.model, "value": broken_head},
                optimizer,
                {"step": 2, "kl_coef": config.kl_coef},
            )
            break
    resumed, resumed_head, optimizer = start(config, family, tied)
    facts = load_checkpoint(checkpoint, {"policy": resumed.model, "value": resumed_head}, optimizer)
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


def test_value_head_starts_at_zero_and_has_its_own_learning_rate():
    policy = tiny.lm("llama", 1, tied=True)
    value_head = ppo.new_value_head(policy)
    assert all((p == 0).all() for p in value_head.parameters()) and value_head.weight.dtype == torch.float32
    optimizer = ppo.new_optimizer(policy, value_head, CONFIG)
    groups = [{id(p) for p in group["params"]} for group in optimizer.param_groups]
    assert groups == [{id(p) for p in policy.model.parameters()}, {id(p) for p in value_head.parameters()}]
    assert [group["lr"] for group in optimizer.param_groups] == [CONFIG.lr, CONFIG.value_lr]


# ------------------------------------------------------------------------------------------ the log


def test_behaviour_counts_guided_and_unguided_answers_apart():
    policy = tiny.lm()
    cases = [  # state, guidance, continuation, score
        ("known", "", "rome <end>", 1.0),
        ("known", "", "i do not know <end>", -1.0),
        ("known", "i do", "not know <end>", 4.0),
        ("unknown", "", "i do not know", 3.0),
        ("unknown", "", "red <end>", -2.0),
        ("unknown", "the", "capital", 6.0),
        ("mixed", "", "blue <end>", 0.5),
    ]
    rolled = ppo.Rollout(
        [{"answers": ["rome"], "question": "", "state": state} for state, *_ in cases],
        [tiny.ids(g) for _, g, _, _ in cases],
        [tiny.ids(c) for _, _, c, _ in cases],
        torch.tensor([s for *_, s in cases]),
        [],
    )
    found = ppo.behaviour(policy, rolled)
    assert found["reward"] == pytest.approx((1 - 1 + 3 - 2 + 0.5) / 5) and found["reward_guided"] == pytest.approx(5.0)
    assert found["reward_deviation"] == pytest.approx(np.std([s for *_, s in cases], ddof=1), rel=1e-5)
    assert found["tokens"] == 2 + 5 + 3 + 4 + 2 + 1 + 2
    assert found["length"] == pytest.approx((2 + 5 + 3 + 4 + 2 + 1 + 2) / 7) and found["ended"] == pytest.approx(5 / 7)
    assert found["refusals_known"] == 1 / 2 and found["refusals_unknown"] == 1 / 2 and found["refusals_guided"] == 1 / 2
    assert found["hallucinations"] == pytest.approx(2 / 5), "of the unguided answers"


def test_behaviour_of_a_step_without_guidance_has_no_guided_reward():
    policy = tiny.lm()
    rolled = ppo.Rollout(
        [{"answers": ["rome"], "question": "", "state": "known"}],
        [[]],
        [tiny.ids("rome <end>")],
        torch.tensor([2.0]),
        [],
    )
    found = ppo.behaviour(policy, rolled)
    assert math.isnan(found["reward_guided"]) and math.isnan(found["refusals_unknown"])
    assert (found["reward"], found["reward_deviation"], found["refusals_guided"]) == (2.0, 0.0, 0.0)


FINE = {"first_ratio_off": 0.0, "reward_deviation": 1.0, "refusals_known": 0.1, "reward": 0.5, "skipped": 0}


def test_no_alarm_where_nothing_is_wrong():
    assert alarms.alarms({**FINE, "reward": 0.9}, FINE, 0.7, 0.6) == []


@pytest.mark.parametrize(
    "change, balanced, words",
    [
        ({"first_ratio_off": 0.01}, 0.6, "first ratio"),
        ({"reward_deviation": 0.0}, 0.6, "rewards of the step are equal"),
        ({"refusals_known": 0.25}, 0.6, "refusals on known questions rose from 10% to 25%"),
        ({"reward": 0.9}, 0.5, "balanced on the validation questions fell"),
        ({"skipped": 1}, 0.6, "skipped"),
    ],
)
def test_an_alarm_names_what_is_wrong(change, balanced, words):
    found = alarms.alarms({**FINE, **change}, FINE, balanced, 0.6)
    assert len(found) == 1 and words in found[0] and "\n" not in found[0]


# ------------------------------------------------------------------------- what the settings change


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
        policies.append(
            (tiny.weights(policy.model, value_head), all(p.grad is None for p in policy.model.parameters()))
        )
    assert policies[0] == policies[1] == (policies[0][0], True), (
        "as if there had been one pass, and no gradient is left over"
    )
    assert stopped["grad_norm"] == one["grad_norm"]


def test_ratio_and_clipped_values_of_the_update_are_logged():
    config = replace(CONFIG, steps=1, epochs=3, lr=3e-2, value_lr=1.0, value_clip=1e-3)
    figures = run(*start(config), config)[0]
    assert figures["ratio_max"] > 1.01 and figures["value_clip_fraction"] > 0
    still = run(*start(config), replace(config, lr=1e-12, value_lr=1e-12))[0]
    assert still["ratio_max"] == pytest.approx(1, abs=1e-4) and still["value_clip_fraction"] < 0.1


@pytest.mark.parametrize(
    "unguided, guided, says", [(0.0, 0.0, True), (float("nan"), 0.01, True), (0.05, 0.0, False), (0.0, 0.3, False)]
)
def test_before_the_first_step_it_says_where_nothing_can_be_reinforced(unguided, guided, says):
    assert (
        "nothing to reinforce" in alarms.abstention({"refusals_unknown": unguided, "refusals_guided": guided})
    ) == says


def test_with_a_separate_critic_a_run_resumes_bit_for_bit(tmp_path):
    config, checkpoint = replace(CONFIG, steps=3, value_lr=1e-3), str(tmp_path / "checkpoint")

    def begin():
        model = reward.load(tiny.folder(tmp_path / "base"), tiny.tokenizer(), torch.float32, seed=3)
        policy, critic = tiny.lm("llama", 1), ppo.Critic(model)
        return policy, critic, ppo.new_optimizer(policy, critic, config)

    policy, critic, optimizer = begin()
    unbroken = run(policy, critic, optimizer, config)
    broken, broken_critic, optimizer = begin()
    progress = new_progress(config)
    loop = ppo.optimise(
        broken, broken_critic, optimizer, odd_score, None, make_tasks(broken), config, SAMPLING, 0, progress
    )
    figures = [next(loop), next(loop)]
    save_checkpoint(checkpoint, {"policy": broken.model, "value": broken_critic}, optimizer, progress)
    resumed, resumed_critic, optimizer = begin()
    progress = load_checkpoint(checkpoint, {"policy": resumed.model, "value": resumed_critic}, optimizer)
    figures += run(resumed, resumed_critic, optimizer, config, progress=progress)
    assert json.dumps(figures) == json.dumps(unbroken)
    assert tiny.weights(resumed.model, resumed_critic) == tiny.weights(policy.model, critic)


def test_without_unguided_answers_to_unknown_questions_there_is_no_share_of_them():
    said = alarms.abstention({"refusals_unknown": float("nan"), "refusals_guided": 0.17})
    assert said == "- of unguided answers to unknown questions and 17% of guided answers refuse"
