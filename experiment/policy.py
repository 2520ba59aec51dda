"""The policy stage: PPO with guidance (section 4), or one of its rivals, from the rankings to the policy that is kept.

Whatever the algorithm, the policy kept is the best on the validation questions, a look every few steps; the test
questions decide nothing. A checkpoint holds weights, moments and `progress`, a dict of what else a resumed run needs.
Left out: choosing by anything but the mean of known accuracy and refusals on unknown.
"""
import os
import shutil

import ppo
import reward
from baselines import dpo, sft
from data.files import read_jsonl, whole_folder, write_json
from evaluation import honesty
from experiment.checkpoint import load_checkpoint, save_checkpoint
from experiment.inputs import (
    greedy_texts,
    load_generations,
    load_known,
    load_model,
    load_questions,
    readings_of,
    states_of,
)
from experiment.runs import followed, say
from lm import model as language_model
from lm import optim
from lm.errors import UserError


def warm_up(run, tasks):
    """Folder or name of the policy that training starts from: the base model, or what a supervised warm-up makes of it."""
    config, folder = run.settings.sft, run.work("ppo", "warm")
    if not config.steps or run.settings.algorithm == "sft":
        return run.base_model
    if not os.path.isdir(folder):
        policy = load_model(run)
        sft.freeze(policy, config.frozen)
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
    model = reward.load(run.path("reward"), policy.tokenizer, policy.dtype, s.device)
    return lambda tasks, responses: reward.normalised(model, [t["prompt"] for t in tasks], responses, [t["p_known"] for t in tasks], s.sampling.rows)


# ---------------------------------------------------------------------------------------------------- the algorithms
#
# Each takes the run, the `policy` (an lm.LM) to train in place, `start` (folder or name of what it starts from), `tasks` of
# ppo.tokenise and the rankings' `records`, and gives ({name: module} of all that a checkpoint holds, optimizer, number of
# steps, loop). loop(progress) is a generator: it trains on from progress["step"], which it counts up, and yields each step's figures.

def by_ppo(run, policy, start, tasks, records):
    """PPO (ppo.py) with the critic and, where kl_coef is above 0, the reference that the settings ask for."""
    s, config = run.settings, run.settings.ppo
    reference = load_model(run, start) if config.kl_coef > 0 else None
    critic = ppo.new_value_head(policy) if config.critic == "head" else ppo.Critic(
        reward.load(run.path("reward"), policy.tokenizer, policy.dtype, s.device))
    optimizer, score = ppo.new_optimizer(policy, critic, config), scorer(run, policy)
    return {"policy": policy.model, "value": critic}, optimizer, config.steps, lambda progress: ppo.optimise(
        policy, critic, optimizer, score, reference, tasks, config, s.sampling, s.seed, progress)


def by_dpo(run, policy, start, tasks, records):
    """DPO (dpo.learn) on the rankings; the reference is the policy that it starts from."""
    s, config = run.settings, run.settings.dpo
    examples = [reward.tokenise(policy, record, 0.5) for record in records]
    reference, optimizer = dpo.reference_sums(policy, examples, config.micro_rows), policy_optimizer(policy, config)
    return {"policy": policy.model}, optimizer, config.steps, lambda progress: dpo.learn(
        policy, optimizer, examples, reference, config, s.seed, progress)


def by_rejection(run, policy, start, tasks, records):
    """Rejection sampling (dpo.reject) with as many generated responses as PPO's settings would take."""
    s, config, responses = run.settings, run.settings.rejection, run.settings.ppo.steps * run.settings.ppo.batch
    optimizer, score = policy_optimizer(policy, config), scorer(run, policy)
    steps = config.rounds * dpo.plan(config, responses, len(tasks))[1]
    return {"policy": policy.model}, optimizer, steps, lambda progress: dpo.reject(
        policy, optimizer, score, tasks, config, responses, s.sampling, s.seed, progress)


def by_sft(run, policy, start, tasks, records):
    """Imitation of the rankings' best responses (sft.learn) and no more."""
    s, config = run.settings, run.settings.sft
    sft.freeze(policy, config.frozen)
    optimizer = policy_optimizer(policy, config)
    return {"policy": policy.model}, optimizer, config.steps, lambda progress: sft.learn(policy, optimizer, tasks, config, s.seed, progress)


ALGORITHMS = {"ppo": by_ppo, "dpo": by_dpo, "rejection": by_rejection, "sft": by_sft}


# ---------------------------------------------------------------------------------------------------- the stage

def train(run):
    """Train the policy by the run's algorithm, keep the step that does best on the validation questions."""
    s, config = run.settings, run.settings.ppo
    split = load_questions(run)
    by_id, known, generations, lm = {q["id"]: q for q in split["train"]}, load_known(run), load_generations(run), load_model(run)
    states = states_of(run, split["valid"], [known[q["id"]] for q in split["valid"]])
    for state in ("known", "unknown"):
        if state not in states:
            raise UserError(f"{s.questions}: none of the {len(states)} validation questions is {state}, so that no step could be chosen; more questions are needed")
    base = readings_of(split["valid"], [generations[q["id"]]["greedy"] for q in split["valid"]])
    records = read_jsonl(run.path("annotate", "preferences.jsonl"))
    tasks = [ppo.tokenise(lm, r, by_id[r["id"]], known[r["id"]]["p_known"]) for r in records]
    del lm  # only its tokenizer was needed; the policy, its reference and the reward model fill the memory
    start = warm_up(run, tasks)
    policy = load_model(run, start)
    modules, optimizer, steps, loop = ALGORITHMS[s.algorithm](run, policy, start, tasks, records)
    checkpoint, best_folder = run.work("ppo", "checkpoint"), lambda step: run.work("ppo", f"best-{step}")
    progress = load_checkpoint(checkpoint, modules, optimizer)

    def validate(step, tokens):
        found = honesty.measure(states, readings_of(split["valid"], greedy_texts(policy, split["valid"], s.sampling)), base)
        run.log("ppo", event="validation", step=step, tokens=tokens, **found)
        return found["balanced"]

    def keep(step, balanced):
        progress["best"] = {"step": step, "balanced": balanced, "algorithm": s.algorithm}
        with whole_folder(best_folder(step)) as part:
            language_model.save(policy, part)

    def save():
        """A checkpoint; what was kept before, and may be needed by the checkpoint before, goes after it."""
        save_checkpoint(checkpoint, modules, optimizer, progress)
        for name in os.listdir(run.work("ppo")):
            if name.startswith("best-") and name != f"best-{progress['best']['step']}":
                shutil.rmtree(run.work("ppo", name))

    if progress is None:
        first = validate(0, 0)
        progress = {"step": 0, "kl_coef": config.kl_coef, "tokens": 0, "start": None, "first": first}
        keep(0, first)
    for figures in followed(run, "ppo", loop(progress), s.algorithm, steps, progress["step"], config.save_every, save, event="step"):
        progress["tokens"] += figures.get("tokens", 0)
        if progress["start"] is None:
            progress["start"] = figures
            if s.algorithm == "ppo":
                say(f"  before the first step: {ppo.abstention(figures)}")
        if figures["step"] % config.validate_every == 0 or figures["step"] == steps:
            balanced = validate(figures["step"], progress["tokens"])
            for alarm in ppo.alarms(figures, progress["start"], balanced, progress["first"]) if s.algorithm == "ppo" else ():
                say(f"  step {figures['step']}: {alarm}")
            if balanced > progress["best"]["balanced"]:
                keep(figures["step"], balanced)
    with run.output("ppo") as folder:
        shutil.copytree(best_folder(progress["best"]["step"]), folder, dirs_exist_ok=True)
        write_json(os.path.join(folder, "chosen.json"), progress["best"])
    say(f"  {s.algorithm}: kept step {progress['best']['step']}: {progress['best']['balanced']:.3f} on the validation questions "
        f"(before the first step: {progress['first']:.3f}); {progress['tokens']} tokens generated")
