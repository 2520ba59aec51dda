"""The reward model (section 4, Knowledge Feedback Modeling).

The initial language model with its head replaced by a linear layer to one scalar, read at the last token of prompt and
response. It learns the rankings of DreamCatcher by the K-wise loss of Ouyang et al. (all pairs of one prompt in one
batch element), with the regulariser of Köpf et al. On disk it is an ordinary Hugging Face folder, for
AutoModelForSequenceClassification. Left out: margins between ranks, several epochs' early stopping.
"""
import copy
from dataclasses import dataclass

import torch
from torch.nn import functional as F
from transformers import AutoModelForSequenceClassification

import optim
from folders import from_folder
from lm import LM, batches_by_length, generator_for, positions, render, response_ids


@dataclass
class RewardConfig:
    lr: float = 5e-6              # peak learning rate (paper: 5e-6)
    warmup: float = 0.01          # share of the steps that it rises (paper: 1%)
    epochs: int = 1               # passes over the rankings (paper: 1)
    batch: int = 64               # rankings a step (paper: 64 for 7B, 16 for 13B and 14B)
    beta: float = 1e-3            # regulariser, beta / 2 (r_i^2 + r_j^2) a pair (paper: not given; Open-Assistant: 1e-3)
    general: float = 1.0          # general preference pairs for each factual ranking, where there are any (paper: 1)
    max_grad_norm: float = 1.0    # gradients are clipped to this norm (paper: not given)
    held_out: float = 0.1         # share of the subjects whose rankings only measure (Table 2)
    micro_rows: int = 32          # sequences a forward pass
    save_every: int = 50          # steps between checkpoints


@dataclass
class RewardModel:
    """`lm.model` is the sequence classifier; normalised scores have mean 0 and deviation 1 on the initial policy's samples."""
    lm: LM
    mean: float = 0.0
    std: float = 1.0


def load(path, tokenizer, dtype, device="cpu", seed=None):
    """RewardModel of a folder. With a seed: a language model whose head becomes a fresh linear layer, N(0, 1 / (width + 1)).

    The classifier's pad token is made another than the end token, which Hugging Face would take for padding and read the
    score before it.
    """
    model = from_folder(AutoModelForSequenceClassification, path, num_labels=1).to(device).eval()
    if seed is not None:
        weight = model.score.weight
        fresh = torch.randn(weight.shape, generator=generator_for(seed, "reward head")) / (weight.shape[1] + 1) ** 0.5
        weight.data.copy_(fresh)
        model.config.pad_token_id = padding_id(tokenizer)
    return RewardModel(LM(model, tokenizer, dtype, frozenset([tokenizer.eos_token_id])),
                       getattr(model.config, "reward_mean", 0.0), getattr(model.config, "reward_std", 1.0))


def padding_id(tokenizer):
    """The id of a token that ends no response: the pad token, or another where that is the end token itself."""
    candidates = [tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.bos_token_id, *tokenizer.all_special_ids,
                  *reversed(range(len(tokenizer)))]
    return next(i for i in candidates if i is not None and i != tokenizer.eos_token_id)


def save(model, folder):
    """Write the reward model and its tokenizer as a Hugging Face folder; mean and deviation go into its config.json."""
    config, tokenizer = model.lm.model.config, copy.deepcopy(model.lm.tokenizer)
    config.reward_mean, config.reward_std = model.mean, model.std
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(config.pad_token_id)
    model.lm.model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def scores(model, prompts, responses):
    """Raw scores (batch,) float32 of prompts with responses (lists of token ids), read at each last token."""
    rows = [p + r for p, r in zip(prompts, responses)]
    device, width = model.lm.device, max(map(len, rows))
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows], device=device)      # (batch, time)
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=device)                  # (batch, time)
    with model.lm.autocast():
        states = model.lm.model.base_model(input_ids=ids, attention_mask=mask, position_ids=positions(mask),
                                           use_cache=False).last_hidden_state                            # (batch, time, width)
    last = states[torch.arange(len(rows), device=device), mask.sum(1) - 1]                               # (batch, width)
    return F.linear(last.float(), model.lm.model.score.weight)[:, 0]


@torch.no_grad()
def score_all(model, prompts, responses, rows=64, progress=lambda n: None):
    """Raw scores (n,) on the CPU of any number of pairs, batched by length."""
    result = torch.zeros(len(prompts))
    for index in batches_by_length([len(p) + len(r) for p, r in zip(prompts, responses)], rows):
        result[index] = scores(model, [prompts[i] for i in index], [responses[i] for i in index]).cpu()
        progress(len(index))
    return result


def normalised(model, prompts, responses, rows=64):
    """Scores (n,) shifted and scaled by what `set_normalisation` found."""
    return (score_all(model, prompts, responses, rows) - model.mean) / model.std


def set_normalisation(model, prompts, responses):
    """Make scores have mean 0 and deviation 1 on these samples of the initial policy."""
    raw = score_all(model, prompts, responses)
    model.mean, model.std = float(raw.mean()), max(float(raw.std()), 1e-6)


# ---------------------------------------------------------------------------------------------------- learning

def ranking_loss(scores, sizes, beta):
    """K-wise loss of rankings laid end to end. scores (rows,), best first in each ranking; sizes: rows a ranking.

    For a ranking of K: the mean over its pairs i < j of -log sigmoid(r_i - r_j) + beta / 2 (r_i^2 + r_j^2), whose second
    term is beta times the mean of r^2; then the mean over rankings (Ouyang et al., equation 1; Köpf et al.).
    """
    total = scores.new_zeros(())
    for r in scores.split(list(sizes)):
        better, worse = torch.triu_indices(len(r), len(r), offset=1)
        total = total - F.logsigmoid(r[better] - r[worse]).mean() + beta * (r**2).mean()
    return total / len(sizes)


def tokenise(lm, record):
    """(prompt ids, [response ids, best first]) of a preference record."""
    return render(lm, record["prompt"]), [response_ids(lm, text) for text in record["ranking"]]


def pack(examples, rows):
    """Groups of example indices with at most `rows` sequences each (at least one example), similar lengths together."""
    order = sorted(range(len(examples)), key=lambda i: (len(examples[i][0]) + max(map(len, examples[i][1])), i))
    groups, size = [[]], 0
    for i in order:
        if groups[-1] and size + len(examples[i][1]) > rows:
            groups.append([])
            size = 0
        groups[-1].append(i)
        size += len(examples[i][1])
    return groups


def learn(model, examples, config, seed, optimizer, first_step=0):
    """Train on (prompt, responses) examples; yield {"step", "loss", "accuracy", "lr", "grad_norm"} after each step.

    A step's rankings are split into forward passes of `micro_rows` sequences whose gradients add up to those of the whole
    batch. The order of the examples depends on the seed and the epoch alone, so a run can go on at `first_step`.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    a_pass = -(-len(examples) // config.batch)
    steps = a_pass * config.epochs
    for step in range(first_step, steps):
        order = torch.randperm(len(examples), generator=generator_for(seed, f"reward epoch {step // a_pass}")).tolist()
        batch = [examples[i] for i in order[step % a_pass * config.batch:][:config.batch]]
        optim.set_lr(optimizer, [config.lr], optim.linear_schedule(step, steps, config.warmup))
        loss_sum = right = pairs = 0.0
        for group in pack(batch, config.micro_rows):
            prompts = [batch[i][0] for i in group for _ in batch[i][1]]
            responses = [r for i in group for r in batch[i][1]]
            sizes = [len(batch[i][1]) for i in group]
            r = scores(model, prompts, responses)
            loss = ranking_loss(r, sizes, config.beta) * len(group) / len(batch)
            loss.backward()
            loss_sum += float(loss.detach())
            for ranked in r.detach().split(sizes):
                better, worse = torch.triu_indices(len(ranked), len(ranked), offset=1)
                right += float((ranked[better] > ranked[worse]).sum())
                pairs += len(better)
        lr = optimizer.param_groups[0]["lr"]
        norm = optim.guarded_step(optimizer, parameters, config.max_grad_norm)
        yield {"step": step + 1, "steps": steps, "loss": loss_sum, "accuracy": right / pairs, "lr": lr, "grad_norm": norm}


# ---------------------------------------------------------------------------------------------------- Table 2

def accuracy_by_state(model, records, examples):
    """Table 2: for each state, and each pair of kinds in it, how often the better response scores higher.

    Returns rows {"state", "pair", "n", "accuracy", "always_answer", "longer"}; the last two are baselines: always prefer
    the answer to the refusal (a coin's 0.5 between two answers), prefer the longer text.
    """
    counts = {}
    flat = score_all(model, [p for p, rs in examples for _ in rs], [r for _, rs in examples for r in rs])
    for record, (_, responses), r in zip(records, examples, flat.split([len(rs) for _, rs in examples])):
        kinds = record["kinds"]
        for i in range(len(kinds)):
            for j in range(i + 1, len(kinds)):
                cell = counts.setdefault((record["state"], f"{kinds[i]} > {kinds[j]}"), [0, 0.0, 0.0, 0.0])
                cell[0] += 1
                cell[1] += float(r[i] > r[j])
                cell[2] += 1.0 if kinds[j] == "uncertain" else 0.0 if kinds[i] == "uncertain" else 0.5
                cell[3] += 1.0 if len(responses[i]) > len(responses[j]) else 0.5 if len(responses[i]) == len(responses[j]) else 0.0
    return [{"state": state, "pair": pair, "n": n, "accuracy": right / n, "always_answer": answer / n, "longer": longer / n}
            for (state, pair), (n, right, answer, longer) in sorted(counts.items())]
