"""A half-done training on disk: weights and AdamW moments as safetensors, the rest as JSON.

A checkpoint is renamed into place when whole. Random numbers need no saving: every draw has a
generator made from the run's seed and the step.
"""

import os

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from data.files import read_json, whole_folder, write_json
from lm.errors import UserError


def named_parameters(modules):
    """{"module.parameter": tensor} of a dict of modules, each tensor once (tied weights share
    one).
    """
    return {f"{name}.{key}": p for name, module in modules.items() for key, p in module.named_parameters()}


def save_checkpoint(folder, modules, optimizer, facts):
    """Write modules {"name": module}, optimizer and `facts` (JSON) as one folder, whole or not at
    all.
    """
    named = named_parameters(modules)
    tensors = {f"weight/{key}": p.detach() for key, p in named.items()}
    for key, p in named.items():
        tensors.update({f"{slot}/{key}": value for slot, value in optimizer.state.get(p, {}).items()})
    with whole_folder(folder) as part:
        save_file({key: t.contiguous() for key, t in tensors.items()}, os.path.join(part, "training.safetensors"))
        write_json(os.path.join(part, "training.json"), facts)


def load_checkpoint(folder, modules, optimizer):
    """Put a checkpoint back into modules and optimizer; returns its facts, or None where there is
    no checkpoint.

    Raises UserError where the checkpoint is not whole, or another model's.
    """
    if not os.path.isdir(folder):
        return None
    named = named_parameters(modules)
    try:
        facts, tensors = (
            read_json(os.path.join(folder, "training.json")),
            load_file(os.path.join(folder, "training.safetensors")),
        )
        with torch.no_grad():
            for key, p in named.items():
                p.copy_(tensors[f"weight/{key}"])
    except (OSError, SafetensorError, KeyError, RuntimeError):
        raise UserError(
            f"{folder}: not a whole checkpoint of this model; delete it, and the stage begins where it began"
        ) from None
    owner = {p: key for key, p in named.items()}
    for group in optimizer.param_groups:
        for p in group["params"]:
            slots = {
                slot: tensors[f"{slot}/{owner[p]}"]
                for slot in ("step", "exp_avg", "exp_avg_sq")
                if f"{slot}/{owner[p]}" in tensors
            }
            if slots:
                optimizer.state[p] = {
                    slot: t.to(p.device) for slot, t in slots.items()
                }  # fused AdamW counts its steps there too
    return facts
