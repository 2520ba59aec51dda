"""What the training loops of RLKF share: AdamW as in A.4, learning-rate schedules, a guarded step, whole checkpoints.

A checkpoint holds weights and AdamW moments as safetensors and the rest as JSON, and is renamed into place when whole.
Random numbers need no saving: every draw has a generator made from the run's seed and the step. Left out: several
devices, other optimisers (the lab's pretraining has its own, in data/world.py).
"""
import math
import os

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from files import UserError, read_json, whole_folder, write_json


def adamw(groups):
    """AdamW with the paper's betas and eps (A.4). groups: {"params": [...], "lr": x} each; no weight decay."""
    return torch.optim.AdamW(groups, betas=(0.9, 0.99), eps=1e-5, weight_decay=0.0, fused=True)


def linear_schedule(step, steps, warmup):
    """Factor of the learning rate at `step` (0 is the first): up over the share `warmup` of the steps, then down to 0."""
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
    """Clip the gradients to `max_norm` and step, unless they are not finite. Returns the norm before clipping; clears them."""
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    if torch.isfinite(norm):
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(norm)


def named_parameters(modules):
    """{"module.parameter": tensor} of a dict of modules, each tensor once (tied weights share one)."""
    return {f"{name}.{key}": p for name, module in modules.items() for key, p in module.named_parameters()}


def save_checkpoint(folder, modules, optimizer, facts):
    """Write modules {"name": module}, optimizer and `facts` (JSON) as one folder, whole or not at all."""
    named = named_parameters(modules)
    tensors = {f"weight/{key}": p.detach() for key, p in named.items()}
    for key, p in named.items():
        tensors.update({f"{slot}/{key}": value for slot, value in optimizer.state.get(p, {}).items()})
    with whole_folder(folder) as part:
        save_file({key: t.contiguous() for key, t in tensors.items()}, os.path.join(part, "training.safetensors"))
        write_json(os.path.join(part, "training.json"), facts)


def load_checkpoint(folder, modules, optimizer):
    """Put a checkpoint back into modules and optimizer; returns its facts, or None where there is no checkpoint.

    Raises UserError where the checkpoint is not whole, or another model's.
    """
    if not os.path.isdir(folder):
        return None
    named = named_parameters(modules)
    try:
        facts, tensors = read_json(os.path.join(folder, "training.json")), load_file(os.path.join(folder, "training.safetensors"))
        with torch.no_grad():
            for key, p in named.items():
                p.copy_(tensors[f"weight/{key}"])
    except (OSError, SafetensorError, KeyError, RuntimeError):
        raise UserError(f"{folder}: not a whole checkpoint of this model; delete it, and the stage begins where it began") from None
    owner = {p: key for key, p in named.items()}
    for group in optimizer.param_groups:
        for p in group["params"]:
            slots = {slot: tensors[f"{slot}/{owner[p]}"] for slot in ("step", "exp_avg", "exp_avg_sq")
                     if f"{slot}/{owner[p]}" in tensors}
            if slots:
                optimizer.state[p] = {slot: t.to(p.device) for slot, t in slots.items()}  # fused AdamW counts its steps there too
    return facts
