"""The reward model (section 4, Knowledge Feedback Modeling).

The initial language model with its head replaced by a linear layer to one scalar, read at the last
token of prompt and response. It learns the rankings of DreamCatcher by the K-wise loss of Ouyang et
al. (all pairs of one prompt in one batch element), with the regulariser of Köpf et al. On disk it
is an ordinary Hugging Face folder, for AutoModelForSequenceClassification.

What it may read beside the text (`reads`, not in the paper). *p_known*: the layer has two outputs a
and b, and the score is a + (2 P(known) - 1) b: what the probe says of the question decides which
way a response counts. Added to the score, it would move all responses to a question alike and rank
none of them. *output*: a linear term on what the output distribution of the model before RLKF says
of the question and of the response (evaluation/output.py); its weights lie in the folder's
config.json. Both are of that model alone, so the policy cannot change them. Left out: margins
between ranks.
"""

import copy
import math
from dataclasses import dataclass

import torch
from torch.nn import functional as F
from transformers import AutoModelForSequenceClassification

from evaluation.metrics import wilson_interval
from evaluation.output import FEATURES, QUANTITIES, OutputReader, features
from lm import optim
from lm.batching import batches_by_length
from lm.chat import render, response_ids
from lm.folders import from_folder
from lm.forward import collate, forward_arguments
from lm.layers import freeze
from lm.model import LM
from lm.sampling import generator_for


@dataclass
class RewardConfig:
    lr: float = 5e-6  # peak learning rate (paper: 5e-6)
    warmup: float = 0.01  # share of the steps that it rises (paper: 1%)
    epochs: int = 1  # passes over the rankings (paper: 1)
    batch: int = 64  # rankings a step (paper: 64 for 7B, 16 for 13B and 14B)
    beta: float = 1e-3  # regulariser, beta / 2 (r_i^2 + r_j^2) a pair (paper: not given; Open-Assistant: 1e-3)
    general: float = 1.0  # general preference pairs for each factual ranking, where there are any (paper: 1)
    max_tokens: int = 512  # general pairs of more tokens, prompt and response together, are left out
    reads: str = "text"  # text (paper), p_known (and the probe), output (and the model's own output distribution)
    frozen: float = 0.0  # share of the layers, from below, that stay as they are; 1: the head alone is trained
    head_lr: float = 0.0  # peak learning rate of the head and of the term on the output; 0: that of the rest
    max_grad_norm: float = 1.0  # gradients are clipped to this norm (paper: not given)
    held_out: float = 0.1  # share of the subjects whose rankings only measure (Table 2)
    micro_rows: int = 32  # sequences a forward pass
    save_every: int = 50  # steps between checkpoints


@dataclass
class RewardModel:
    """`lm.model` is the sequence classifier; normalised scores have mean 0 and deviation 1 on the
    initial policy's samples.
    """

    lm: LM
    mean: float = 0.0
    std: float = 1.0
    output: "OutputTerm | None" = None  # what `reads` output adds
    reader: OutputReader | None = None  # reads the quantities that it needs


class OutputTerm(torch.nn.Module):
    """weight . features of the output distribution, quantities brought to mean 0, deviation 1."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(len(FEATURES)))
        self.mean, self.std = torch.zeros(len(QUANTITIES)), torch.ones(len(QUANTITIES))

    def forward(self, quantities, refuses):
        """(n,) on the CPU from what OutputReader gives."""
        return features(quantities, refuses, self.mean, self.std) @ self.weight

    def record(self):
        """What config.json keeps: everything that it takes to compute the term again."""
        lists = {name: getattr(self, name).tolist() for name in ("weight", "mean", "std")}
        return {"features": list(FEATURES), "quantities": list(QUANTITIES), **lists}

    @classmethod
    def from_record(cls, record):
        term = cls()
        term.weight.data = torch.tensor(record["weight"])
        term.mean, term.std = torch.tensor(record["mean"]), torch.tensor(record["std"])
        return term


def load(path, tokenizer, dtype, device="cpu", seed=None, reads="text", reader=None):
    """RewardModel of a folder. With a seed: a language model whose head becomes a fresh linear
    layer, N(0, 1 / (width + 1)), that `reads` what RewardConfig says. `reader`: the OutputReader of
    the model before RLKF, for one that reads its output.

    The classifier's pad token is made another than the end token, which Hugging Face would take for
    padding and read the score before it.
    """
    kept = {} if seed is None else {"num_labels": 2 if reads == "p_known" else 1}
    model = from_folder(AutoModelForSequenceClassification, path, **kept).to(device).eval()
    if seed is not None:
        weight = model.score.weight
        fresh = torch.randn(weight.shape, generator=generator_for(seed, "reward head")) / (weight.shape[1] + 1) ** 0.5
        weight.data.copy_(fresh)
        model.config.pad_token_id = padding_id(tokenizer)
        output = OutputTerm() if reads == "output" else None
    else:
        record = getattr(model.config, "reward_output", None)
        output = OutputTerm.from_record(record) if record else None
    return RewardModel(
        LM(model, tokenizer, dtype, frozenset([tokenizer.eos_token_id])),
        getattr(model.config, "reward_mean", 0.0),
        getattr(model.config, "reward_std", 1.0),
        output,
        reader,
    )


def padding_id(tokenizer):
    """The id of a token that ends no response: the pad token, or another where that is the end
    token itself.
    """
    candidates = [
        tokenizer.pad_token_id,
        tokenizer.unk_token_id,
        tokenizer.bos_token_id,
        *tokenizer.all_special_ids,
        *reversed(range(len(tokenizer))),
    ]
    return next(i for i in candidates if i is not None and i != tokenizer.eos_token_id)


def save(model, folder):
    """Write the reward model and its tokenizer as a Hugging Face folder; mean, deviation and the
    term on the output go into its config.json.
    """
    config, tokenizer = model.lm.model.config, copy.deepcopy(model.lm.tokenizer)
    config.reward_mean, config.reward_std = model.mean, model.std
    if model.output is not None:
        config.reward_output = model.output.record()
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(config.pad_token_id)
    model.lm.model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def scores(model, prompts, responses, p_known):
    """Raw scores (batch,) float32 of prompts with responses (lists of token ids), read at each last
    token.

    p_known: a number a prompt, None for a model that reads the text alone.
    """
    batch = collate(model.lm, prompts, responses)
    with model.lm.autocast():
        trunk = model.lm.model.base_model
        states = trunk(**forward_arguments(trunk, batch)).last_hidden_state  # (batch, own time, width)
    last = states[torch.arange(len(prompts)), batch.before + batch.response_mask.sum(1)]  # (batch, width)
    outputs = F.linear(last.float(), model.lm.model.score.weight)  # (batch, 1 or 2)
    if model.output is not None:
        beside = model.output(*model.reader(prompts, responses, p_known))
        return outputs[:, 0] + beside.to(outputs.device)
    if outputs.shape[1] == 1:
        return outputs[:, 0]
    return outputs[:, 0] + (2 * torch.tensor(p_known, device=outputs.device) - 1) * outputs[:, 1]


@torch.no_grad()
def score_all(model, prompts, responses, p_known, rows=64, progress=lambda n: None):
    """Raw scores (n,) on the CPU of any number of pairs, batched by length."""
    result = torch.zeros(len(prompts))
    for index in batches_by_length([len(p) + len(r) for p, r in zip(prompts, responses)], rows):
        result[index] = scores(model, *([column[i] for i in index] for column in (prompts, responses, p_known))).cpu()
        progress(len(index))
    return result


def normalised(model, prompts, responses, p_known, rows=64):
    """Scores (n,) shifted and scaled by what `set_normalisation` found."""
    return (score_all(model, prompts, responses, p_known, rows) - model.mean) / model.std


def set_normalisation(model, prompts, responses, p_known):
    """Make scores have mean 0 and deviation 1 on these samples of the initial policy."""
    raw = score_all(model, prompts, responses, p_known)
    model.mean, model.std = float(raw.mean()), max(float(raw.std()), 1e-6)


# ----------------------------------------------------------------------------------------- learning


def ranking_loss(scores, sizes, beta):
    """K-wise loss of rankings laid end to end. scores (rows,), best first in each ranking; sizes:
    rows a ranking.

    For a ranking of K: the mean over its pairs i < j of -log sigmoid(r_i - r_j) + beta / 2 (r_i^2 +
    r_j^2), whose second term is beta times the mean of r^2; then the mean over rankings (Ouyang et
    al., equation 1; Köpf et al.).
    """
    total = scores.new_zeros(())
    for r in scores.split(list(sizes)):
        better, worse = torch.triu_indices(len(r), len(r), offset=1)
        total = total - F.logsigmoid(r[better] - r[worse]).mean() + beta * (r**2).mean()
    return total / len(sizes)


def pairs_in_order(scores, sizes):
    """(pairs whose better response scores higher, pairs) of rankings laid end to end."""
    gaps = [r[:, None] - r[None] for r in scores.split(list(sizes))]  # (K, K) each
    upper = torch.cat([gap[torch.triu(torch.ones_like(gap), 1).bool()] for gap in gaps])  # (pairs,)
    return int((upper > 0).sum()), len(upper)


def tokenise(lm, record, p_known):
    """(prompt ids, [response ids, best first], P(known) of the question) of a preference record."""
    return render(lm, record["prompt"]), [response_ids(lm, text) for text in record["ranking"]], p_known


def laid_out(examples):
    """(prompts, responses, p_known), one a response, of (prompt, responses, p_known) examples end
    to end.
    """
    flat = [(prompt, response, known) for prompt, responses, known in examples for response in responses]
    return [list(column) for column in zip(*flat)]


def pack(examples, rows):
    """Groups of example indices with at most `rows` sequences each (at least one example), similar
    lengths together.
    """
    order = sorted(range(len(examples)), key=lambda i: (len(examples[i][0]) + max(map(len, examples[i][1])), i))
    groups, size = [[]], 0
    for i in order:
        if groups[-1] and size + len(examples[i][1]) > rows:
            groups.append([])
            size = 0
        groups[-1].append(i)
        size += len(examples[i][1])
    return groups


def new_optimizer(model, config):
    """AdamW with one group for the layers that are trained and one for the head and its terms."""
    freeze(model.lm.model, config.frozen)
    head = [*model.lm.model.score.parameters(), *(model.output.parameters() if model.output is not None else ())]
    of_head = set(map(id, head))
    trunk = [p for p in model.lm.model.parameters() if p.requires_grad and id(p) not in of_head]
    groups = [{"params": trunk, "lr": config.lr}, {"params": head, "lr": config.head_lr or config.lr}]
    return optim.adamw(groups)


def fit_scale(model, examples):
    """Bring what the output term reads to mean 0 and deviation 1 over the examples."""
    prompts, responses, p_known = laid_out(examples)
    quantities, _ = model.reader(prompts, responses, p_known)
    model.output.mean, model.output.std = quantities.mean(0), quantities.std(0).clamp(min=1e-6)


def steps_of(examples, config):
    """How many steps `learn` takes."""
    return -(-len(examples) // config.batch) * config.epochs


def learn(model, examples, config, seed, optimizer, first_step=0):
    """Train on (prompt, responses, p_known) examples; yield {"step", "loss", "accuracy", "lr",
    "grad_norm", "skipped"} a step.

    A step's rankings are split into forward passes of `micro_rows` sequences whose gradients add up
    to those of the whole batch. The order of the examples depends on the seed and the epoch alone,
    so a run can go on at `first_step`.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    a_pass, steps = -(-len(examples) // config.batch), steps_of(examples, config)
    for step in range(first_step, steps):
        order = torch.randperm(len(examples), generator=generator_for(seed, f"reward epoch {step // a_pass}")).tolist()
        batch = [examples[i] for i in order[step % a_pass * config.batch :][: config.batch]]
        rates = [config.lr, config.head_lr or config.lr]
        optim.set_lr(optimizer, rates, optim.linear_schedule(step, steps, config.warmup))
        loss_sum = right = pairs = 0.0
        for group in pack(batch, config.micro_rows):
            sizes = [len(batch[i][1]) for i in group]
            r = scores(model, *laid_out([batch[i] for i in group]))
            loss = ranking_loss(r, sizes, config.beta) * len(group) / len(batch)
            loss.backward()
            loss_sum += float(loss.detach())
            ordered, of = pairs_in_order(r.detach(), sizes)
            right, pairs = right + ordered, pairs + of
        lr = optimizer.param_groups[0]["lr"]
        norm = optim.guarded_step(optimizer, parameters, config.max_grad_norm)
        yield {
            "step": step + 1,
            "loss": loss_sum,
            "accuracy": right / pairs,
            "lr": lr,
            "grad_norm": norm,
            "skipped": int(not math.isfinite(norm)),
        }


# ------------------------------------------------------------------------------------------ Table 2


def accuracy_by_state(model, records, examples):
    """Table 2: for each state, and each pair of kinds in it, how often the better response scores
    higher.

    Returns rows {"state", "pair", "n", "accuracy", "interval", "always_answer", "longer"}; the
    interval is binomial (Wilson, 95%), the last two are baselines: always prefer the answer to the
    refusal (a coin's 0.5 between two answers), prefer the longer text.
    """
    counts = {}
    flat = score_all(model, *laid_out(examples))
    for record, (_, responses, _), r in zip(records, examples, flat.split([len(rs) for _, rs, _ in examples])):
        kinds = record["kinds"]
        for i in range(len(kinds)):
            for j in range(i + 1, len(kinds)):
                cell = counts.setdefault((record["state"], f"{kinds[i]} > {kinds[j]}"), [0, 0.0, 0.0, 0.0])
                cell[0] += 1
                cell[1] += float(r[i] > r[j])
                cell[2] += 1.0 if kinds[j] == "uncertain" else 0.0 if kinds[i] == "uncertain" else 0.5
                cell[3] += (
                    1.0
                    if len(responses[i]) > len(responses[j])
                    else 0.5
                    if len(responses[i]) == len(responses[j])
                    else 0.0
                )
    return [
        {
            "state": state,
            "pair": pair,
            "n": n,
            "accuracy": right / n,
            "interval": wilson_interval(right, n),
            "always_answer": answer / n,
            "longer": longer / n,
        }
        for (state, pair), (n, right, answer, longer) in sorted(counts.items())
    ]
