"""PPO with guidance (section 4, PPO Optimizing), after Ouyang et al.

One step: take prompts; let the policy answer them, some of them *guided*, that is, with the first
few tokens of the preferred response already written; score prompt + guidance + continuation with
the reward model; turn scores and KL into token rewards, these into advantages; improve the policy
by the clipped loss, a few passes over the batch. Guidance tokens are context: loss, KL, advantages
and whitening see the continuation only. So a guided answer teaches how to go on, not whether to
refuse: that falls in the first token, which guidance has written already.

Two models are easily confused. The *old policy* is this policy before the step's first update; its
log-probabilities are recomputed with the training forward, so the first ratio is exactly 1. The
*reference* is the policy before PPO; where `kl_coef` is 0 (the paper's setting) there is none in
memory.

Beyond the paper, each a setting: several samples of one prompt, whose mean score is the baseline
(`samples`, `baseline`); KL over the whole vocabulary as a loss (`kl`); layers left out of training
(`frozen`). Left out: whitening of the rewards (they are normalised once, by the reward model's mean
and deviation; advantages are whitened), distributed rollouts.
"""

import math
from dataclasses import dataclass, replace

import torch

from lm import optim
from lm.batching import batches_by_length
from lm.chat import decode, has_ended, render, response_ids
from lm.forward import collate, entropy, forward_arguments, log_probs, padded, response_logits, response_positions
from lm.layers import freeze
from lm.sampling import generate, generator_for
from reading import answers


@dataclass
class PPOConfig:
    steps: int = 200  # PPO steps; times batch: the responses that rejection sampling may generate (paper: not given)
    batch: int = 64  # prompts a step (paper: 64 for 7B, 32 for 13B and 14B)
    # responses to each of them, which `baseline` group or both compare with each other (paper: 1)
    samples: int = 1
    # what a score is compared with: value (GAE with a critic, paper), group (the mean score of the
    # prompt's samples, no critic), both (group first, then GAE)
    baseline: str = "value"
    # how kl_coef holds the policy to the reference: reward (subtracted from the reward, token by
    # token, of the sampled tokens; InstructGPT) or loss (over the whole vocabulary, in the loss)
    kl: str = "reward"
    # share of the layers, from below, that stay as they are, and the embeddings; 0: all are trained
    frozen: float = 0.0
    lr: float = 1e-6  # peak learning rate of the policy (paper: 1e-6)
    # head: values are read off the policy's trunk; reward: a model of its own, from the reward
    # model
    critic: str = "head"
    value_lr: float = 1e-4  # peak learning rate of the value head or the separate critic (paper: not given)
    warmup: float = 0.03  # share of the steps that the rates rise, before they fall along a cosine (paper: cosine)
    epochs: int = 2  # passes over a step's batch (paper: not given)
    kl_coef: float = 0.0  # KL to the reference that is subtracted from the reward, a token (paper: 0)
    kl_target: float = 0.0  # kl_coef is steered towards this KL a response (Ziegler et al.); 0: it stays (paper: 0)
    # the passes of a step end once the update's KL a token exceeds this; 0: never (paper: not
    # given)
    stop_kl: float = 0.0
    gamma: float = 1.0  # discount (paper: not given)
    lam: float = 0.95  # lambda of GAE (paper: not given)
    clip: float = 0.2  # policy ratio is clipped to 1 +- clip (paper: not given)
    value_clip: float = 0.2  # a value may move this far from the old one (paper: not given)
    value_coef: float = 0.1  # weight of the value loss (paper: not given)
    missing_end: float = 1.0  # taken from the score of a response that did not end (paper: not given)
    max_grad_norm: float = 1.0  # gradients are clipped to this norm (paper: not given)
    guidance_share: float = 0.5  # share of guided prompts at the first step (paper: "a portion")
    guidance_until: float = 0.7  # share of the steps after which no prompt is guided
    guidance_anneal: str = "share"  # what falls linearly until then: share, length (guidance_tokens) or both
    guidance_tokens: int = 4  # most tokens of guidance; 1 to this many, drawn a prompt (paper: "the first few")
    micro_rows: int = 32  # sequences a forward pass
    validate_every: int = 10  # steps between looks at the validation questions, whatever the algorithm
    save_every: int = 50  # steps between checkpoints, whatever the algorithm


# ----------------------------------------------------------------------------------- the arithmetic


def masked_mean(values, mask):
    """Mean of `values` where `mask`; 0 where nothing is."""
    return (values * mask).sum() / mask.sum().clamp(min=1)


def whiten(values, mask):
    """Mean 0 and deviation 1 over the masked entries of the whole batch; zero elsewhere."""
    mean = masked_mean(values, mask)
    deviation = masked_mean((values - mean) ** 2, mask).sqrt()
    return (values - mean) / (deviation + 1e-8) * mask


def token_rewards(score, log_prob, reference, mask, kl_coef):
    """Rewards (batch, time): -kl_coef (log pi - log reference) a token, and the score (batch,) on
    the last valid token.
    """
    rewards = torch.zeros_like(log_prob) if reference is None else -kl_coef * (log_prob - reference) * mask
    last = mask.sum(1) - 1  # (batch,)
    return rewards.scatter_add(1, last[:, None], score[:, None].to(rewards))


def centred(score, samples):
    """Scores (prompts * samples,) less the mean of their prompt's samples, side by side in it."""
    groups = score.view(-1, samples)
    return (groups - groups.mean(1, keepdim=True)).flatten()


def exact_kl(logits, reference):
    """KL(pi || reference) (tokens,) over the whole vocabulary, of logits (tokens, vocabulary)."""
    log_pi, log_reference = logits.log_softmax(-1), reference.log_softmax(-1)
    return (log_pi.exp() * (log_pi - log_reference)).sum(-1)


def advantages(rewards, values, mask, gamma, lam):
    """Generalised advantage estimation, not whitened. All (batch, time), padded right; the value
    after the end is 0.
    """
    rewards, values = rewards * mask, values * mask
    result, following, next_value = torch.zeros_like(rewards), 0.0, 0.0
    for t in reversed(range(rewards.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        following = (delta + gamma * lam * following) * mask[:, t]
        result[:, t], next_value = following, values[:, t]
    return result


def policy_loss(log_prob, old_log_prob, advantage, mask, clip):
    """Sum over tokens of max(-A ratio, -A clipped ratio), and how many were clipped. All (batch,
    time).
    """
    ratio = (log_prob - old_log_prob).clamp(-20, 20).exp()
    plain, clipped = -advantage * ratio, -advantage * ratio.clamp(1 - clip, 1 + clip)
    return (torch.maximum(plain, clipped) * mask).sum(), ((clipped > plain) * mask).sum()


def value_loss(value, old_value, returns, mask, clip):
    """Half the sum over tokens of the larger squared error, of the value or of it kept within
    `clip` of the old one; how many were kept.
    """
    kept = old_value + (value - old_value).clamp(-clip, clip)
    plain, clipped = (value - returns) ** 2, (kept - returns) ** 2
    return 0.5 * (torch.maximum(plain, clipped) * mask).sum(), ((clipped > plain) * mask).sum()


def adapted_kl_coef(kl_coef, kl, target):
    """The next step's KL penalty, after a step whose responses had `kl` on the mean (Ziegler et
    al., section 2.2).
    """
    return kl_coef * (1 + 0.1 * min(max(kl / target - 1, -0.2), 0.2))


def explained_variance(values, returns, mask):
    """1 - Var(returns - values) / Var(returns) over the masked entries; 0 where the returns do not
    vary.
    """

    def variance(x):
        return masked_mean((x - masked_mean(x, mask)) ** 2, mask)

    spread = variance(returns)
    return float(1 - variance(returns - values) / spread) if spread > 1e-12 else 0.0


# --------------------------------------------------------------------------------------- the critic


class Critic(torch.nn.Module):
    """The trunk of a reward.RewardModel with one output; values start as its normalised scores of
    what is written so far.

    Of a head that reads P(known) the scores are those at P(known) = 1/2.
    """

    def __init__(self, model):
        super().__init__()
        weight = model.lm.model.score.weight.detach()[:1]  # (1, width)
        self.trunk, self.autocast = model.lm.model.base_model, model.lm.autocast
        self.head = torch.nn.Linear(weight.shape[1], 1).to(weight.device)
        with torch.no_grad():
            self.head.weight.copy_(weight / model.std)
            self.head.bias.fill_(-model.mean / model.std)

    def forward(self, batch):
        """Values (tokens,) float32 of the states before each response token of a forward.Batch,
        tokens in row-major order.
        """
        with self.autocast():
            states = self.trunk(**forward_arguments(self.trunk, batch)).last_hidden_state  # (batch, own time, width)
        return self.head(states[response_positions(batch)].float())[:, 0]


def new_value_head(policy):
    """A linear layer from the policy's last hidden state to one value, zero at the start, in
    float32.
    """
    width = policy.model.get_output_embeddings().weight.shape[1]
    head = torch.nn.Linear(width, 1).to(policy.device)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    return head


def values(critic, hidden, batch):
    """Values (tokens,) by either kind: `hidden` (tokens, width) are the policy's states, `batch` is
    what they come from.
    """
    return critic(batch) if isinstance(critic, Critic) else critic(hidden)[:, 0]


def new_optimizer(policy, critic, config):
    """AdamW: one group for the policy's trained layers, one for the value head or critic."""
    freeze(policy.model, config.frozen)
    trained = [p for p in policy.model.parameters() if p.requires_grad]
    of_critic = list(critic.parameters())
    return optim.adamw([{"params": trained, "lr": config.lr}, {"params": of_critic, "lr": config.value_lr}])


# -------------------------------------------------------------------------------------- the rollout


def guidance_of_step(step, config):
    """(share of the prompts of this step that are guided, most tokens of guidance)."""
    last = config.guidance_until * config.steps
    if step >= last:
        return 0.0, 1
    left = 1 - step / last
    return (
        config.guidance_share * (left if config.guidance_anneal in ("share", "both") else 1),
        max(1, round(config.guidance_tokens * (left if config.guidance_anneal in ("length", "both") else 1))),
    )


def guide(preferred, share, most, generator):
    """Guidance tokens for each preferred response (token ids, with their end): the first m of some,
    none of the others.

    m is drawn from 1 to `most`, at most two less than the response has, so that something is left
    to be said.
    """
    guided = torch.rand(len(preferred), generator=generator) < share
    length = torch.randint(1, most + 1, (len(preferred),), generator=generator)
    return [ids[: max(0, min(int(m), len(ids) - 2))] if g else [] for ids, g, m in zip(preferred, guided, length)]


def tokenise(lm, record, question, p_known):
    """What PPO needs of a preference record: {"id", "prompt" ids, "preferred" ids, "state",
    "answers", "question", "p_known"}.
    """
    return {
        "id": record["id"],
        "prompt": render(lm, record["prompt"]),
        "preferred": response_ids(lm, record["ranking"][0]),
        "state": record["state"],
        "answers": question["answers"],
        "question": question["question"],
        "p_known": p_known,
    }


def tasks_of_step(tasks, size, step, seed):
    """The `size` tasks of a step: passes over all of them, each in a fresh order; what does not
    fill a step is left out.
    """
    size = min(size, len(tasks))
    a_pass = len(tasks) // size
    order = torch.randperm(len(tasks), generator=generator_for(seed, f"ppo pass {step // a_pass}")).tolist()
    return [tasks[i] for i in order[step % a_pass * size :][:size]]


@dataclass
class Rollout:
    """What a step learns from. Lists run over the batch; `log_prob` ... `returns` are (batch, time)
    a micro-batch.
    """

    tasks: list
    guidance: list  # token ids, empty where not guided
    continuation: list  # token ids
    score: torch.Tensor  # (batch,) reward model, normalised, less the penalty for a missing end
    micro: list  # of dicts: "batch" (forward.Batch), "log_prob", "value", "reference", "mask", "advantage", "returns"


def rollout(policy, critic, score, reference, tasks, config, sampling, seed, step, kl_coef):
    """Let the policy answer `tasks`, some of them guided, and work out the advantages. Returns
    (Rollout, mean entropy).

    The samples of one prompt lie side by side: config.samples tasks in a row are the same.
    """
    guidance = guide(
        [t["preferred"] for t in tasks], *guidance_of_step(step, config), generator_for(seed, f"ppo guidance {step}")
    )
    prompts = [t["prompt"] + g for t, g in zip(tasks, guidance)]
    keys = [t["id"] if not i % config.samples else f"{t['id']} {i % config.samples}" for i, t in enumerate(tasks)]
    continuation = [r[0] for r in generate(policy, prompts, sampling, keys=keys, seed=f"{seed} ppo {step}")]
    ended = torch.tensor([has_ended(policy, c) for c in continuation])
    scores = score(tasks, [g + c for g, c in zip(guidance, continuation)])
    scores = scores - config.missing_end * ~ended
    judged = scores if config.baseline == "value" else centred(scores, config.samples)
    lam = 1.0 if config.baseline == "group" else config.lam
    in_reward = reference is not None and config.kl == "reward"
    micro, entropies = [], 0.0
    with torch.no_grad():
        for index in batches_by_length([len(p) + len(c) for p, c in zip(prompts, continuation)], config.micro_rows):
            batch = collate(policy, [prompts[i] for i in index], [continuation[i] for i in index])
            mask = batch.response_mask
            log_prob, value, logits = token_figures(policy, critic, batch, sampling.temperature)
            ref = token_figures(reference, None, batch, sampling.temperature)[0] if reference is not None else None
            rewards = token_rewards(
                judged[index].to(policy.device), log_prob, ref if in_reward else None, mask, kl_coef
            )
            if config.baseline == "group":
                value = torch.zeros_like(value)
            advantage = advantages(rewards, value, mask, config.gamma, lam)
            micro.append(
                {
                    "batch": batch,
                    "log_prob": log_prob,
                    "value": value,
                    "reference": ref,
                    "mask": mask,
                    "advantage": advantage,
                    "returns": advantage + value,
                }
            )
            entropies += float(entropy(logits).sum())
    flat = [m["advantage"][m["mask"]] for m in micro]
    white = whiten(torch.cat(flat), torch.ones(sum(map(len, flat)), device=policy.device)).split([len(f) for f in flat])
    for m, values in zip(micro, white):
        m["advantage"] = padded(values, m["mask"])
    return Rollout(tasks, guidance, continuation, scores, micro), entropies / sum(map(len, flat))


def token_figures(policy, critic, batch, temperature):
    """(log-probabilities (batch, time), values (batch, time) or None, logits (tokens, vocabulary))
    of the response tokens.
    """
    logits, hidden = response_logits(policy, batch, temperature)
    log_prob = padded(log_probs(logits, batch.response[batch.response_mask]), batch.response_mask)
    value = padded(values(critic, hidden, batch), batch.response_mask) if critic is not None else None
    return log_prob, value, logits


# --------------------------------------------------------------------------------------- the update


def improve(policy, critic, optimizer, rolled, config, temperature, reference=None, kl_coef=0.0):
    """The clipped update: `epochs` passes over the rollout, one optimiser step a pass, so that
    nothing is clipped in the first.

    `reference` is given where KL to it belongs in the loss, weighted by kl_coef.

    Returns figures: means over the passes; of grad_norm and ratio_max the largest, of passes and
    skipped the sum.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    tokens = sum(int(m["mask"].sum()) for m in rolled.micro)
    value_coef = 0.0 if config.baseline == "group" else config.value_coef
    figures = dict.fromkeys(("policy_loss", "value_loss", "clip_fraction", "value_clip_fraction", "approx_kl"), 0.0)
    figures.update(grad_norm=0.0, ratio_max=0.0, passes=0, skipped=0)
    for epoch in range(config.epochs):
        sums, ratio_off = dict.fromkeys(figures, 0.0), 0.0
        for m in rolled.micro:
            log_prob, value, logits = token_figures(policy, critic, m["batch"], temperature)
            loss, clipped = policy_loss(log_prob, m["log_prob"], m["advantage"], m["mask"], config.clip)
            v_loss, v_clipped = value_loss(value, m["value"], m["returns"], m["mask"], config.value_clip)
            total = loss + value_coef * v_loss
            if reference is not None:
                with torch.no_grad():
                    of_reference, _ = response_logits(reference, m["batch"], temperature)
                total = total + kl_coef * exact_kl(logits, of_reference).sum()
            (total / tokens).backward()  # sums over the whole batch's tokens, not means of means
            log_ratio = (log_prob.detach() - m["log_prob"]) * m["mask"]
            ratio_off = max(ratio_off, float((log_ratio.exp() - 1).abs().max()))
            figures["ratio_max"] = max(figures["ratio_max"], float(log_ratio.max().exp()))
            for name, value_sum in (
                ("policy_loss", loss),
                ("value_loss", v_loss),
                ("clip_fraction", clipped),
                ("value_clip_fraction", v_clipped),
                ("approx_kl", (log_ratio.exp() - 1 - log_ratio).sum()),
            ):
                sums[name] += float(value_sum.detach()) / tokens
        if epoch == 0:
            figures["first_ratio_off"] = ratio_off
        elif config.stop_kl and sums["approx_kl"] > config.stop_kl:
            optimizer.zero_grad(set_to_none=True)
            break
        norm = optim.guarded_step(optimizer, parameters, config.max_grad_norm)
        sums.update(passes=1, skipped=int(not math.isfinite(norm)))
        figures["grad_norm"] = max(figures["grad_norm"], norm) if math.isfinite(norm) else norm
        for name in (
            "policy_loss",
            "value_loss",
            "clip_fraction",
            "value_clip_fraction",
            "approx_kl",
            "passes",
            "skipped",
        ):
            figures[name] += sums[name]
    for name in ("policy_loss", "value_loss", "clip_fraction", "value_clip_fraction", "approx_kl"):
        figures[name] /= figures["passes"]
    return figures


def behaviour(policy, rolled):
    """What the policy did, for the log: rewards of guided and unguided answers, lengths, and how
    unguided answers read.
    """
    guided = torch.tensor([bool(g) for g in rolled.guidance])
    readings = [
        answers.read(decode(policy, g + c), t["answers"], t["question"])
        for t, g, c in zip(rolled.tasks, rolled.guidance, rolled.continuation)
    ]

    def share(kinds, state=None):
        seen = [r in kinds for t, r, g in zip(rolled.tasks, readings, guided) if not g and state in (None, t["state"])]
        return sum(seen) / len(seen) if seen else float("nan")

    def mean(values):
        return float(values.float().mean()) if len(values) else float("nan")

    return {
        "reward": mean(rolled.score[~guided]),
        "reward_guided": mean(rolled.score[guided]),
        "reward_deviation": float(rolled.score.std()) if len(rolled.score) > 1 else 0.0,
        "length": sum(map(len, rolled.continuation)) / len(rolled.continuation),
        "tokens": sum(map(len, rolled.continuation)),
        "ended": sum(has_ended(policy, c) for c in rolled.continuation) / len(rolled.continuation),
        "refusals_known": share(("refusal",), "known"),
        "refusals_unknown": share(("refusal",), "unknown"),
        "refusals_guided": sum(r == "refusal" for r, g in zip(readings, guided) if g) / max(1, int(guided.sum())),
        "hallucinations": share(("wrong", "empty")),
    }


def optimise(policy, critic, optimizer, score, reference, tasks, config, sampling, seed, progress):
    """Run PPO; after each step yield its figures, a flat dict of numbers (the README says what they
    mean).

    `score(tasks, responses)` gives normalised rewards (batch,) on the CPU. `reference` is None
    where kl_coef is 0. `progress` holds "step" (how many are done) and "kl_coef" (for the next
    one); it, `policy` and `critic` change in place. Random numbers depend on the seed and the step
    alone.
    """
    # what is sampled and what log-probabilities mean must be one distribution
    sampling = replace(sampling, top_p=1.0, top_k=0)
    rates, in_loss = [config.lr, config.value_lr], reference if config.kl == "loss" else None
    while progress["step"] < config.steps:
        step, kl_coef = progress["step"], progress["kl_coef"]
        optim.set_lr(optimizer, rates, optim.cosine_schedule(step, config.steps, config.warmup))
        chosen = [t for t in tasks_of_step(tasks, config.batch, step, seed) for _ in range(config.samples)]
        rolled, mean_entropy = rollout(policy, critic, score, reference, chosen, config, sampling, seed, step, kl_coef)
        share, most = guidance_of_step(step, config)
        figures = {
            "step": step + 1,
            "lr": optimizer.param_groups[0]["lr"],
            "guidance_share": share,
            "guidance_tokens": most,
            "entropy": mean_entropy,
            "kl_coef": kl_coef,
            **behaviour(policy, rolled),
            **kl_figures(rolled),
            "explained_variance": explained(rolled),
            **improve(policy, critic, optimizer, rolled, config, sampling.temperature, in_loss, kl_coef),
        }
        if config.kl_target:
            progress["kl_coef"] = adapted_kl_coef(kl_coef, figures["kl"], config.kl_target)
        progress["step"] = step + 1
        yield figures


def kl_figures(rolled):
    """KL to the reference, a mean over responses of sums over tokens (k1), and its estimate that is
    never negative (k3).
    """
    if rolled.micro[0]["reference"] is None:
        return {}
    gaps = [(m["log_prob"] - m["reference"]) * m["mask"] for m in rolled.micro]
    rows = sum(len(g) for g in gaps)
    values = {
        "kl": sum(float(g.sum()) for g in gaps) / rows,
        "kl_k3": sum(float(((-g).exp() - 1 + g).sum()) for g in gaps) / rows,
    }
    return values


def explained(rolled):
    """Explained variance of the old values over all tokens of the rollout."""
    flat = {name: torch.cat([m[name][m["mask"]] for m in rolled.micro]) for name in ("value", "returns")}
    return explained_variance(flat["value"], flat["returns"], torch.ones_like(flat["value"]))
