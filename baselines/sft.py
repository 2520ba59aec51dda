"""Supervised fine-tuning on the best response of each ranking: the warm-up before PPO, and a rival
of its own.

PPO reinforces what the policy samples; a policy that never abstains gives it nothing to reinforce,
and guidance tokens carry no loss of their own. Ouyang et al. start PPO from a supervised policy;
the paper does not say. The rankings' best responses are the model's own: its right answers where it
knows, its own refusals where it does not. Where there is a warm-up, the policy after it is what PPO
starts from and what its KL refers to. Steps make passes over the rankings, each in a fresh order.
Left out: other data.
"""

import math
from dataclasses import dataclass

import torch

from lm import optim
from lm.batching import batches_by_length
from lm.forward import collate, log_probs, response_logits
from ppo import tasks_of_step

FIRST = 4  # tokens of a response that first_weight is for


@dataclass
class SFTConfig:
    steps: int = 0  # steps of the warm-up, or of --algorithm sft; 0: none (paper: not given)
    # share of the layers, from below, that stay as they are, and the embeddings (with the output
    # head, if tied to them); 0: all are trained
    frozen: float = 0.0
    # weight of a response's FIRST tokens in the loss: whether to answer or to refuse falls there
    first_weight: float = 1.0
    lr: float = 1e-5  # peak learning rate
    warmup: float = 0.1  # share of the steps that it rises, before it falls linearly
    batch: int = 32  # rankings a step
    max_grad_norm: float = 1.0  # gradients are clipped to this norm
    micro_rows: int = 16  # sequences a forward pass


def imitation_loss(policy, prompts, responses, first_weight=1.0):
    """Sum over the response tokens of -log pi, the FIRST of each response weighted."""
    batch = collate(policy, prompts, responses)
    logits, _ = response_logits(policy, batch)
    weight = torch.ones_like(batch.response, dtype=torch.float32)  # (batch, response width)
    weight[:, :FIRST] = first_weight
    return -(weight[batch.response_mask] * log_probs(logits, batch.response[batch.response_mask])).sum()


def imitate(policy, optimizer, tasks, max_grad_norm, micro_rows, first_weight=1.0):
    """One step towards the "preferred" responses of tasks. Returns {"loss", "lr", "grad_norm",
    "skipped"}.

    The loss is the weighted mean over all response tokens, whatever the micro-batches.
    """
    tokens, total = sum(len(t["preferred"]) + (first_weight - 1) * min(FIRST, len(t["preferred"])) for t in tasks), 0.0
    for index in batches_by_length([len(t["prompt"]) + len(t["preferred"]) for t in tasks], micro_rows):
        loss = imitation_loss(
            policy, [tasks[i]["prompt"] for i in index], [tasks[i]["preferred"] for i in index], first_weight
        )
        (loss / tokens).backward()
        total += float(loss.detach()) / tokens
    norm = optim.guarded_step(optimizer, list(policy.model.parameters()), max_grad_norm)
    return {
        "loss": total,
        "lr": optimizer.param_groups[0]["lr"],
        "grad_norm": norm,
        "skipped": int(not math.isfinite(norm)),
    }


def learn(policy, optimizer, tasks, config, seed, progress):
    """Train `policy` in place on tasks ("prompt" and "preferred" ids); yield the figures of each
    step.

    `progress["step"]` is how many steps are done; it counts up in place. What `freeze` left out
    stays as it is.
    """
    while progress["step"] < config.steps:
        step = progress["step"]
        optim.set_lr(optimizer, [config.lr], optim.linear_schedule(step, config.steps, config.warmup))
        figures = imitate(
            policy,
            optimizer,
            tasks_of_step(tasks, config.batch, step, f"{seed} sft"),
            config.max_grad_norm,
            config.micro_rows,
            config.first_weight,
        )
        progress["step"] = step + 1
        yield {"step": step + 1, **figures}
