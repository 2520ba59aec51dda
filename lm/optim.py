"""What the training loops of RLKF share: AdamW as in A.4, learning-rate schedules, a guarded step.

Left out: several devices, other optimisers (the lab's pretraining has its own, in data/world.py).
"""

import math

import torch


def adamw(groups):
    """AdamW with the paper's betas and eps (A.4). groups: {"params": [...], "lr": x} each; no
    weight decay.
    """
    return torch.optim.AdamW(groups, betas=(0.9, 0.99), eps=1e-5, weight_decay=0.0, fused=True)


def linear_schedule(step, steps, warmup):
    """Factor of the learning rate at `step` (0 is the first): up over the share `warmup` of the
    steps, then down to 0.
    """
    rise = max(1, round(warmup * steps))
    return (step + 1) / rise if step < rise else (steps - step) / max(1, steps - rise)


def cosine_schedule(step, steps, warmup):
    """The same, falling along half a cosine."""
    rise = max(1, round(warmup * steps))
    return (step + 1) / rise if step < rise else 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))


def set_lr(optimizer, base, factor):
    """Give each group the learning rate base[group] * factor."""
    for group, lr in zip(optimizer.param_groups, base):
        group["lr"] = lr * factor


def guarded_step(optimizer, parameters, max_norm):
    """Clip the gradients to `max_norm` and step, unless they are not finite. Returns the norm
    before clipping; clears them.
    """
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    if torch.isfinite(norm):
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(norm)
