"""Training the policy (section 4): PPO or a rival, from the rankings to the step that is kept.

Whatever the algorithm, the policy kept is the best on the validation questions, a look every few
steps; the test questions decide nothing. A checkpoint holds weights, moments and `progress`, a dict
of what else a resumed run needs. Left out: choosing by anything but the mean of known accuracy and
refusals on unknown.
"""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass

import ppo
import reward
from baselines import dpo, sft
from data.files import whole_folder
from evaluation import honesty
from experiment import alarms
from experiment.answering import greedy_texts, readings_of
from experiment.checkpoint import load_checkpoint, save_checkpoint
from experiment.inputs import load_generations, load_known, load_model, load_questions, load_reader, states_of
from experiment.progress import followed, say
from lm import model as language_model
from lm import optim
from lm.errors import UserError
from lm.layers import freeze


@dataclass
class Validation:
    """The questions that choose a step, and what the model before RLKF knows of them."""

    questions: list
    states: list
    base: list  # readings of that model's greedy answers

    def measure(self, policy, sampling):
        """honesty.measure of the policy's greedy answers."""
        return honesty.measure(
            self.states, readings_of(self.questions, greedy_texts(policy, self.questions, sampling)), self.base
        )


def validation_of(run):
    """The Validation of a run. Raises UserError where a state is missing, to choose by."""
    questions, known, generations = load_questions(run)["valid"], load_known(run), load_generations(run)
    states = states_of(questions, [known[q["id"]] for q in questions], run.settings)
    for state in ("known", "unknown"):
        if state not in states:
            raise UserError(
                f"{run.settings.questions}: none of the {len(states)} validation questions is {state}, so that no step"
                " could be chosen; more questions are needed"
            )
    return Validation(questions, states, readings_of(questions, [generations[q["id"]]["greedy"] for q in questions]))


def tasks_of(run, records):
    """What the algorithms learn from: ppo.tokenise of the rankings' `records`."""
    lm, known = load_model(run), load_known(run)
    by_id = {q["id"]: q for q in load_questions(run)["train"]}
    return [ppo.tokenise(lm, r, by_id[r["id"]], known[r["id"]]["p_known"]) for r in records]


def warm_up(run, tasks):
    """Folder or name of the policy that training starts from: the base model, or what a supervised
    warm-up makes of it.
    """
    config, folder = run.settings.sft, run.work("ppo", "warm")
    if not config.steps or run.settings.algorithm == "sft":
        return run.base_model
    if not os.path.isdir(folder):
        policy = load_model(run)
        freeze(policy.model, config.frozen)
        loop = sft.learn(policy, policy_optimizer(policy, config), tasks, config, run.settings.seed, {"step": 0})
        for _ in followed(run, "ppo", loop, "supervised warm-up", config.steps, event="warm-up"):
            pass
        with whole_folder(folder) as part:
            language_model.save(policy, part)
    return folder


def policy_optimizer(policy, config):
    """AdamW of all the policy's parameters."""
    return optim.adamw([{"params": list(policy.model.parameters()), "lr": config.lr}])


def scorer(run, policy):
    """score(tasks, responses) -> normalised rewards (n,) of the run's reward model."""
    s = run.settings
    model = reward.load(run.path("reward"), policy.tokenizer, policy.dtype, s.device, reader=load_reader(run))

    def score(tasks, responses):
        prompts, p_known = [t["prompt"] for t in tasks], [t["p_known"] for t in tasks]
        return reward.normalised(model, prompts, responses, p_known, s.sampling.rows)

    return score


# ---------------------------------------------------------------------------------- the algorithms


@dataclass
class Training:
    """An algorithm set up: what a checkpoint holds, and a loop that trains on from
    progress["step"], which it counts up, and yields each step's figures.
    """

    modules: dict  # {name: module}
    optimizer: object
    steps: int
    loop: Callable  # progress -> generator


def by_ppo(run, policy, start, tasks, records):
    """PPO (ppo.py) with the critic and, where kl_coef is above 0, the reference that the settings
    ask for; `start` is the folder or name of the policy that it starts from.
    """
    s, config = run.settings, run.settings.ppo
    reference = load_model(run, start) if config.kl_coef > 0 else None
    if config.critic == "head":
        critic = ppo.new_value_head(policy)
    else:
        critic = ppo.Critic(reward.load(run.path("reward"), policy.tokenizer, policy.dtype, s.device))
    optimizer, score = ppo.new_optimizer(policy, critic, config), scorer(run, policy)
    loop = lambda progress: ppo.optimise(
        policy, critic, optimizer, score, reference, tasks, config, s.sampling, s.seed, progress
    )
    return Training({"policy": policy.model, "value": critic}, optimizer, config.steps, loop)


def by_dpo(run, policy, start, tasks, records):
    """DPO (dpo.learn) on the rankings' `records`; the reference is where it starts from."""
    s, config = run.settings, run.settings.dpo
    examples = [reward.tokenise(policy, record, 0.5) for record in records]
    reference, optimizer = dpo.reference_sums(policy, examples, config.micro_rows), policy_optimizer(policy, config)
    loop = lambda progress: dpo.learn(policy, optimizer, examples, reference, config, s.seed, progress)
    return Training({"policy": policy.model}, optimizer, config.steps, loop)


def by_rejection(run, policy, start, tasks, records):
    """Rejection sampling (dpo.reject) with as many responses as PPO's settings would take."""
    s, config, responses = (
        run.settings,
        run.settings.rejection,
        run.settings.ppo.steps * run.settings.ppo.batch * run.settings.ppo.samples,
    )
    optimizer, score = policy_optimizer(policy, config), scorer(run, policy)
    steps = config.rounds * dpo.plan(config, responses, len(tasks))[1]
    loop = lambda progress: dpo.reject(policy, optimizer, score, tasks, config, responses, s.sampling, s.seed, progress)
    return Training({"policy": policy.model}, optimizer, steps, loop)


def by_sft(run, policy, start, tasks, records):
    """Imitation of the rankings' best responses (sft.learn) and no more."""
    s, config = run.settings, run.settings.sft
    freeze(policy.model, config.frozen)
    optimizer = policy_optimizer(policy, config)
    loop = lambda progress: sft.learn(policy, optimizer, tasks, config, s.seed, progress)
    return Training({"policy": policy.model}, optimizer, config.steps, loop)


ALGORITHMS = {"ppo": by_ppo, "dpo": by_dpo, "rejection": by_rejection, "sft": by_sft}


# ---------------------------------------------------------------------------- the step that is kept


def train(run, policy, training, validation):
    """Train `policy` and keep its best step by validation: (folder of that step, progress).

    An interrupted call goes on at its last checkpoint.
    """
    s = run.settings
    checkpoint, best_folder = run.work("ppo", "checkpoint"), lambda step: run.work("ppo", f"best-{step}")
    progress = load_checkpoint(checkpoint, training.modules, training.optimizer)

    def validate(step, tokens):
        found = validation.measure(policy, s.sampling)
        run.log("ppo", event="validation", step=step, tokens=tokens, **found)
        return found["balanced"]

    def keep(step, balanced):
        progress["best"] = {"step": step, "balanced": balanced, "algorithm": s.algorithm}
        with whole_folder(best_folder(step)) as part:
            language_model.save(policy, part)

    def save():
        """A checkpoint; what was kept before, and may be needed by the checkpoint before, goes
        after it.
        """
        save_checkpoint(checkpoint, training.modules, training.optimizer, progress)
        for name in os.listdir(run.work("ppo")):
            if name.startswith("best-") and name != f"best-{progress['best']['step']}":
                shutil.rmtree(run.work("ppo", name))

    if progress is None:
        first = validate(0, 0)
        progress = {"step": 0, "kl_coef": s.ppo.kl_coef, "tokens": 0, "start": None, "first": first}
        keep(0, first)
    steps = followed(
        run,
        "ppo",
        training.loop(progress),
        s.algorithm,
        training.steps,
        progress["step"],
        s.ppo.save_every,
        save,
        event="step",
    )
    for figures in steps:
        progress["tokens"] += figures.get("tokens", 0)
        at_first = progress["start"] is None
        progress["start"] = progress["start"] or figures
        balanced = None
        if figures["step"] % s.ppo.validate_every == 0 or figures["step"] == training.steps:
            balanced = validate(figures["step"], progress["tokens"])
        if s.algorithm == "ppo":
            tell(figures, progress, at_first, balanced)
        if balanced is not None and balanced > progress["best"]["balanced"]:
            keep(figures["step"], balanced)
    return best_folder(progress["best"]["step"]), progress


def tell(figures, progress, at_first, balanced):
    """Say what PPO starts from, and what looks wrong after a look at the validation questions."""
    if at_first:
        say(f"  before the first step: {alarms.abstention(figures)}")
    if balanced is not None:
        for alarm in alarms.alarms(figures, progress["start"], balanced, progress["first"]):
            say(f"  step {figures['step']}: {alarm}")


def sentence(progress):
    """Which step was kept and why, in one line."""
    best = progress["best"]
    return (
        f"{best['algorithm']}: kept step {best['step']}: {best['balanced']:.3f} on the validation questions (before the"
        f" first step: {progress['first']:.3f}); {progress['tokens']} tokens generated"
    )
