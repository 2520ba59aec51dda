"""A supervised warm-up before PPO: imitate the best response of each ranking for a few steps.

PPO reinforces what the policy samples; a policy that never abstains gives it nothing to reinforce, and guidance tokens
carry no loss of their own. Ouyang et al. start PPO from a supervised policy; the paper does not say. The rankings' best
responses are the model's own: its right answers where it knows, its own refusals where it does not. Where there is a
warm-up, the policy after it is what PPO starts from and what its KL refers to. Left out: other data, several epochs.
"""
from dataclasses import dataclass

import optim
from lm import batches_by_length, collate, log_probs, response_logits
from ppo import tasks_of_step


@dataclass
class SFTConfig:
    steps: int = 0                # steps of the warm-up; 0: none (paper: not given)
    lr: float = 1e-5              # peak learning rate
    warmup: float = 0.1           # share of the steps that it rises, before it falls linearly
    batch: int = 32               # rankings a step
    max_grad_norm: float = 1.0    # gradients are clipped to this norm
    micro_rows: int = 16          # sequences a forward pass


def imitation_loss(policy, prompts, responses):
    """Sum over the response tokens of -log pi."""
    batch = collate(prompts, responses, policy.device)
    logits, _ = response_logits(policy, batch)
    return -log_probs(logits, batch.response[batch.response_mask]).sum()


def learn(policy, tasks, config, seed):
    """Train `policy` in place on tasks ("prompt" and "preferred" ids); yield {"step", "loss", "lr", "grad_norm"} a step.

    The loss is the mean over all response tokens of a step's batch, whatever its micro-batches.
    """
    parameters = list(policy.model.parameters())
    optimizer = optim.adamw([{"params": parameters, "lr": config.lr}])
    for step in range(config.steps):
        optim.set_lr(optimizer, [config.lr], optim.linear_schedule(step, config.steps, config.warmup))
        chosen = tasks_of_step(tasks, config.batch, step, f"{seed} sft")
        tokens, total = sum(len(t["preferred"]) for t in chosen), 0.0
        for index in batches_by_length([len(t["prompt"]) + len(t["preferred"]) for t in chosen], config.micro_rows):
            loss = imitation_loss(policy, [chosen[i]["prompt"] for i in index], [chosen[i]["preferred"] for i in index])
            (loss / tokens).backward()
            total += float(loss.detach()) / tokens
        lr = optimizer.param_groups[0]["lr"]
        yield {"step": step + 1, "loss": total, "lr": lr, "grad_norm": optim.guarded_step(optimizer, parameters, config.max_grad_norm)}
