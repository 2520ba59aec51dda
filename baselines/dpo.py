"""The rivals of PPO that the paper names (section 4): DPO and rejection sampling, on the same
rankings and prompts.

DPO (Rafailov et al.) needs neither reward model nor samples: with r = beta (log pi - log reference)
of a whole response in the place of the reward model's score, its loss is the reward model's K-wise
loss; for a ranking of two it is the usual one. The reference's log-probabilities are worked out
once, so that no second model stays in memory. Rejection sampling draws N responses to a prompt,
keeps the one that the reward model scores highest and fine-tunes on it with sft.py's loss, in
rounds, each from the policy of the round before. It generates as many responses as PPO's settings
would, less what does not fill a round. Left out: sampled pairs for DPO, a mixture of losses.
"""

import math
from dataclasses import dataclass, replace

import torch

from baselines import sft
from lm import optim
from lm.chat import has_ended
from lm.forward import collate, log_probs, padded, response_log_probs, response_logits
from lm.sampling import generate
from ppo import tasks_of_step
from reward import laid_out, pack, pairs_in_order, ranking_loss


@dataclass
class DPOConfig:
    steps: int = 200  # steps (paper: not given)
    batch: int = 64  # rankings a step
    lr: float = 1e-6  # peak learning rate
    warmup: float = 0.1  # share of the steps that it rises, before it falls linearly
    beta: float = 0.1  # how closely the policy is held to the reference (Rafailov et al.: 0.1)
    max_grad_norm: float = 1.0  # gradients are clipped to this norm
    micro_rows: int = 32  # sequences a forward pass


@dataclass
class RejectionConfig:
    samples: int = 8  # responses a prompt, of which the best is kept
    rounds: int = 4  # times that the policy is sampled anew
    epochs: int = 2  # passes over a round's responses
    batch: int = 32  # responses a step
    missing_end: float = 1.0  # taken from the score of a response that did not end, as in PPO
    lr: float = 1e-6  # peak learning rate
    warmup: float = 0.1  # share of the steps that it rises, before it falls linearly
    max_grad_norm: float = 1.0  # gradients are clipped to this norm
    micro_rows: int = 16  # sequences a forward pass


# ---------------------------------------------------------------------------------------------- DPO


def response_sums(policy, prompts, responses):
    """log pi (batch,) of whole responses, with gradients."""
    batch = collate(policy, prompts, responses)
    logits, _ = response_logits(policy, batch)
    return padded(log_probs(logits, batch.response[batch.response_mask]), batch.response_mask).sum(1)


def reference_sums(policy, examples, rows):
    """For each example the list of log pi of its responses by the policy as it is now."""
    prompts, responses, _ = laid_out(examples)
    flat = iter([math.fsum(tokens) for tokens in response_log_probs(policy, prompts, responses, rows=rows)])
    return [[next(flat) for _ in responses] for _, responses, _ in examples]


def learn(policy, optimizer, examples, reference, config, seed, progress):
    """Train `policy` in place on reward.tokenise's examples; yield {"step", "loss", "accuracy",
    "lr", "grad_norm", "skipped"} a step.

    reference: of reference_sums. accuracy: share of the pairs whose better response has the higher
    r. `progress["step"]` is how many steps are done; it counts up in place.
    """
    while progress["step"] < config.steps:
        step, loss_sum, right, pairs = progress["step"], 0.0, 0, 0
        optim.set_lr(optimizer, [config.lr], optim.linear_schedule(step, config.steps, config.warmup))
        chosen = tasks_of_step(list(range(len(examples))), config.batch, step, f"{seed} dpo")
        for group in pack([examples[i] for i in chosen], config.micro_rows):
            group = [chosen[i] for i in group]
            prompts, responses, _ = laid_out([examples[i] for i in group])
            sizes, log_pi = [len(examples[i][1]) for i in group], response_sums(policy, prompts, responses)  # (rows,)
            r = config.beta * (log_pi - log_pi.new_tensor([x for i in group for x in reference[i]]))  # (rows,)
            loss = ranking_loss(r, sizes, 0.0) * len(group) / len(chosen)
            loss.backward()
            loss_sum += float(loss.detach())
            ordered, of = pairs_in_order(r.detach(), sizes)
            right, pairs = right + ordered, pairs + of
        norm = optim.guarded_step(optimizer, list(policy.model.parameters()), config.max_grad_norm)
        progress["step"] = step + 1
        yield {
            "step": step + 1,
            "loss": loss_sum,
            "accuracy": right / pairs,
            "lr": optimizer.param_groups[0]["lr"],
            "grad_norm": norm,
            "skipped": int(not math.isfinite(norm)),
        }


# ------------------------------------------------------------------------------- rejection sampling


def plan(config, responses, tasks):
    """(prompts a round, steps a round) with which `responses` are generated in all, or as many as
    `tasks` prompts allow.
    """
    prompts = max(1, min(responses // (config.rounds * config.samples), tasks))
    return prompts, config.epochs * max(1, prompts // config.batch)


def best_of(policy, score, tasks, config, sampling, seed):
    """The tasks with the best of N sampled responses as "preferred"; their mean score, and the
    number of tokens generated.
    """
    sampled = generate(policy, [t["prompt"] for t in tasks], sampling, config.samples, [t["id"] for t in tasks], seed)
    flat = [(task, response) for task, responses in zip(tasks, sampled) for response in responses]
    scores = score([task for task, _ in flat], [response for _, response in flat])  # (prompts * N,)
    scores = (scores - config.missing_end * ~torch.tensor([has_ended(policy, response) for _, response in flat])).view(
        len(tasks), -1
    )
    best = [responses[i] for responses, i in zip(sampled, scores.argmax(1).tolist())]
    return (
        [{**t, "preferred": r} for t, r in zip(tasks, best)],
        float(scores.amax(1).mean()),
        sum(len(r) for _, r in flat),
    )


def reject(policy, optimizer, score, tasks, config, responses, sampling, seed, progress):
    """Rejection sampling in rounds; yield the figures of each fine-tuning step, "reward" and
    "tokens" at a round's first.

    `score(tasks, responses)` is that of ppo.optimise; `responses` how many may be generated in all.
    `progress` holds "step" and the round's "kept" responses {id: ids}; it changes in place.
    """
    sampling, by_id = replace(sampling, top_p=1.0, top_k=0), {t["id"]: t for t in tasks}
    prompts, a_round = plan(config, responses, len(tasks))
    while progress["step"] < config.rounds * a_round:
        step, sampled = progress["step"], {}
        if step % a_round == 0:
            asked = tasks_of_step(tasks, prompts, step // a_round, f"{seed} rejection")
            kept, mean, tokens = best_of(policy, score, asked, config, sampling, f"{seed} rejection {step // a_round}")
            progress["kept"] = {t["id"]: t["preferred"] for t in kept}
            sampled = {"reward": mean, "tokens": tokens}
        kept = [{**by_id[name], "preferred": response} for name, response in progress["kept"].items()]
        optim.set_lr(optimizer, [config.lr], optim.linear_schedule(step, config.rounds * a_round, config.warmup))
        figures = sft.imitate(
            policy,
            optimizer,
            tasks_of_step(kept, config.batch, step, f"{seed} rejection step"),
            config.max_grad_norm,
            config.micro_rows,
        )
        progress["step"] = step + 1
        yield {"step": step + 1, **sampled, **figures}
