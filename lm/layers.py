"""The decoder layers of a model, and which of its weights are trained."""

import torch


def decoder_layers(model):
    """The model's decoder layers: the one module list as long as its config says."""
    count = model.config.get_text_config().num_hidden_layers
    for module in model.modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == count:
            return module
    raise ValueError(f"{type(model).__name__}: found no list of {count} decoder layers")


def freeze(model, share):
    """Leave the embeddings and this share of the layers, from below, out of training; 0 leaves out
    nothing.

    What the probe reads stands in the middle layers already: above them a policy need only learn
    to heed it, and what is not trained cannot learn the training questions by heart.
    """
    layers = decoder_layers(model)
    embeddings = [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    for module in (*embeddings, *layers[: round(share * len(layers))]) if share else ():
        module.requires_grad_(False)
