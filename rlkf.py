"""Reinforcement Learning from Knowledge Feedback, from end to end.

    python rlkf.py --stage all                      the built-in lab, minutes on a laptop
    python rlkf.py --stage all --preset smollm2     a real model
    python rlkf.py --stage ablate                   one thing changed at a time, over several seeds
    python rlkf.py --stage report --runs a b c      several runs in one table
    python rlkf.py --list                           the stages: what is done, what would run

Each stage below reads what earlier stages left in runs/NAME, calls a module of the method, and
writes its own. Read in the order of the stages.
"""

import contextlib
import math
import os
import shutil
import sys

import numpy as np
from transformers.utils import logging as transformers_logging

import dreamcatcher
import embed
import probe
import reward
from data import sources, world
from data.files import read_jsonl, write_json, write_jsonl
from evaluation import honesty
from experiment import (
    ablate,
    command_line,
    compare,
    evaluate,
    policy,
    preferences,
    probing,
    report,
    report_stages,
    runs,
)
from experiment import questions as asked
from experiment import settings as all_settings
from experiment.answering import hits_of, readings_of, sample_answers, uncertain_answers
from experiment.checkpoint import load_checkpoint, save_checkpoint
from experiment.inputs import (
    SPLITS,
    check_fit,
    load_embedder,
    load_generations,
    load_known,
    load_model,
    load_questions,
    load_reader,
)
from experiment.progress import bar, followed, say
from lm import model as language_model
from lm.chat import chat_prompt
from lm.errors import UserError, exit_status
from reading.answers import is_correct

# --------------------------------------------------------------------------------------- the stages


def stage_base(run):
    """Lab only: invent a world and pretrain a small model on a part of it."""
    s = run.settings
    instructions = dreamcatcher.UNCERTAIN_INSTRUCTIONS["en"]
    the_world = world.build_world(s.world, s.seed)
    wordings = [prompt["en"] for prompt in honesty.PROMPTS.values() if prompt]
    tokenizer = world.build_tokenizer(the_world, (*instructions, *wordings))
    with pretraining_log(run) as progress:
        model = world.pretrain(the_world, tokenizer, instructions, s.world, s.seed, progress)
    with run.output("base") as folder:
        language_model.save(language_model.wrap(model, tokenizer), folder)


def stage_data(run):
    """Questions, split by subject into train, valid and test; the lab adds its second skill."""
    s = run.settings
    in_lab = s.questions == all_settings.LAB
    split, extra = asked.lab_questions(s.world, s.seed) if in_lab else asked.real_questions(run)
    if s.general:
        extra["general"] = asked.general_pairs(s.general, s.seed)
    asked.check_splits(s.questions, split)
    with run.output("data") as folder:
        for name, records in {**split, **extra}.items():
            write_jsonl(os.path.join(folder, f"{name}.jsonl"), records)
        write_json(os.path.join(folder, "summary.json"), sources.summary(split))
    for line in sources.summary_lines(sources.summary(split)):
        say(line)
    say("  " + ", ".join(f"{len(split[name])} {name}" for name in SPLITS) + " questions")


def stage_probe(run):
    """Sections 3.1 and 3.2: sample k answers, label questions, capture activations, fit probes."""
    s, split = run.settings, load_questions(run)
    questions, train = [q for name in SPLITS for q in split[name]], split["train"]
    lm, embedder = load_model(run), load_embedder(run)
    check_fit(lm, {s.questions: questions, **evaluate.load_sets(s)}, s.sampling.max_new_tokens, s.seed)
    generations = sample_answers(run, lm, questions)
    hits = hits_of(questions, generations)
    greedy_right = np.array(list(map(is_correct, readings_of(questions, [g["greedy"] for g in generations]))))
    n = len(train)
    labels = probing.label_questions(embedder, train, generations[:n], hits[:n], greedy_right[:n], s.probe, s.model)
    prompts = [chat_prompt(lm, q["question"]) for q in questions]
    activations = probing.capture(lm, prompts, s.probe.rows, s.model)
    fitted = probe.fit(activations, labels, [q["subject"] for q in train], s.probe, s.seed)
    texts = probing.text_features(embedder, prompts[:n], train, generations[:n])
    accuracy = probing.accuracy_rows(fitted, activations, texts, s.probe, s.seed)
    ablations = probing.ablation_rows(fitted, activations, hits[:n], s.probe, s.seed)
    known = probing.known_records(split, fitted, hits, greedy_right)
    with run.output("probe") as folder:
        probe.save(fitted.in_use, folder, s.model)
        probing.save(folder, generations, known, accuracy, ablations)
    say(f"  {probing.sentence(fitted)}")
    say(report_stages.ablation_table(ablations))


def stage_annotate(run):
    """Section 3.3, DreamCatcher: uncertain generations, four scores, labels, states, rankings."""
    s, config = run.settings, run.settings.annotate
    questions, known, normal = load_questions(run)["train"], load_known(run), load_generations(run)
    lm, embedder = load_model(run), load_embedder(run)
    generations = [normal[q["id"]] for q in questions]
    texts = [list(map(dreamcatcher.finish, g["normal"], g["normal_ended"])) for g in generations]
    uncertain = uncertain_answers(run, lm, questions, texts)
    s_p = np.array([known[q["id"]]["p_known"] for q in questions])
    scores = dreamcatcher.score_generations(embedder, questions, generations, s_p)
    factuality = dreamcatcher.factuality(scores, config.scores, config.normalise).numpy()
    hits = hits_of(questions, generations)
    correct, states = dreamcatcher.label(factuality, hits, config, s_p)
    vectors = embed.embed(embedder, sum(uncertain, []))
    ranked = (questions, states, texts, factuality, uncertain, vectors)
    records, dropped = dreamcatcher.preferences(*ranked, config, s.seed)
    if config.shuffle_states:
        records = dreamcatcher.shuffle_states(records, s.seed)
    labels = preferences.label_records(questions, scores, factuality, correct, states)
    agreed = preferences.label_summary(questions, states, records, dropped, factuality, correct, hits, config.rule)
    with run.output("annotate") as folder:
        preferences.save(folder, generations, uncertain, labels, records, agreed)
    for line in preferences.sentences(states, records, dropped):
        say(f"  {line}")


def stage_reward(run):
    """Section 4: a reward model of the same language model learns the rankings."""
    s, config = run.settings, run.settings.reward
    subject_of = {q["id"]: q["subject"] for q in load_questions(run)["train"]}
    records, known = read_jsonl(run.path("annotate", "preferences.jsonl")), load_known(run)
    parts = preferences.split_rankings(records, subject_of, config.held_out, s.seed)
    tokenizer, reader = load_model(run).tokenizer, load_reader(run)
    model = reward.load(run.base_model, tokenizer, s.torch_dtype, s.device, s.seed, config.reads, reader)
    if os.path.exists(run.path("data", "general.jsonl")):
        pairs = preferences.general_records(run.path("data", "general.jsonl"), model.lm, config.max_tokens)
        parts = preferences.with_general(parts, pairs, config.general)
    examples = {name: preferences.examples_of(model.lm, part, known) for name, part in parts.items()}
    learn_rewards(run, model, examples["train"])
    initial = preferences.initial_samples(model.lm, parts["train"], load_generations(run), known)
    reward.set_normalisation(model, *initial)
    table = reward.accuracy_by_state(model, parts["test"], examples["test"])
    with run.output("reward") as folder:
        reward.save(model, folder)
        write_json(os.path.join(folder, "accuracy.json"), table)
    for row in table:
        say(f"  {preferences.accuracy_sentence(row)}")


def stage_ppo(run):
    """Section 4: PPO with guidance, or another --algorithm; the best step by validation is kept."""
    records, validation = read_jsonl(run.path("annotate", "preferences.jsonl")), policy.validation_of(run)
    tasks = policy.tasks_of(run, records)
    start = policy.warm_up(run, tasks)
    trained = load_model(run, start)
    training = policy.ALGORITHMS[run.settings.algorithm](run, trained, start, tasks, records)
    best, progress = policy.train(run, trained, training, validation)
    with run.output("ppo") as folder:
        shutil.copytree(best, folder, dirs_exist_ok=True)
        write_json(os.path.join(folder, "chosen.json"), progress["best"])
    say(f"  {policy.sentence(progress)}")


def stage_evaluate(run):
    """Section 5.2: honesty before and after on test questions and others; benchmarks if named."""
    evaluate.evaluate(run)


def stage_report(run):
    """Tables and figures from what the stages left."""
    logged = {stage: run.logged(stage) for stage in ("base", "reward", "ppo")}
    say(report.build(run.folder, logged, run.records, run.settings.evaluate.samples_shown, say))


# ------------------------------------------------------------------------- loops that are logged


@contextlib.contextmanager
def pretraining_log(run):
    """A bar and a log of the lab's pretraining: yields progress(step, total, loss)."""
    with bar(None, "steps", "pretraining the lab's model") as tick:

        def progress(step, total, loss):
            tick(1)
            if not math.isfinite(loss):
                raise UserError(
                    f"--world.muon_lr, --world.adam_lr: the loss is not finite at step {step}; lower rates may help"
                )
            if step % 20 == 0 or step == total:
                run.log("base", step=step, steps=total, loss=float(loss))

        yield progress


def learn_rewards(run, model, examples):
    """reward.learn with a log and checkpoints; an interrupted call goes on at the last of them."""
    s, config = run.settings, run.settings.reward
    optimizer = reward.new_optimizer(model, config)
    modules, checkpoint = {"reward": model.lm.model}, run.work("reward", "checkpoint")
    if model.output is not None:
        reward.fit_scale(model, examples)
        modules["output"] = model.output
    progress = load_checkpoint(checkpoint, modules, optimizer) or {"step": 0}
    loop = reward.learn(model, examples, config, s.seed, optimizer, progress["step"])
    steps, save = reward.steps_of(examples, config), lambda: save_checkpoint(checkpoint, modules, optimizer, progress)
    for figures in followed(run, "reward", loop, "reward model", steps, progress["step"], config.save_every, save):
        progress["step"] = figures["step"]


# ----------------------------------------------------------------------------- the command line


STAGE_FUNCTIONS = {
    "base": stage_base,
    "data": stage_data,
    "probe": stage_probe,
    "annotate": stage_annotate,
    "reward": stage_reward,
    "ppo": stage_ppo,
    "evaluate": stage_evaluate,
    "report": stage_report,
}


def run_command(argv, place):
    """What the command line asks for; place["folder"] is where an error that names no file came
    from.
    """
    command = command_line.parse_command_line(argv, __doc__, (*runs.STAGES, "ablate"))
    if command.runs:
        return say(compare.build(command.runs))
    settings = all_settings.build(command.preset, command.given)
    run = runs.Run(os.path.join("runs", command.run or command.preset), settings)
    place["folder"] = run.folder
    if command.list:
        for number, stage in enumerate(run.stages, 1):
            state = (
                "done"
                if all(map(run.is_done, run.stages[:number]))
                else "would run again"
                if stage in run.records
                else "would run"
            )
            say(f"  {stage:10} {state:16} {STAGE_FUNCTIONS[stage].__doc__.splitlines()[0]}")
        return
    command_line.check_device(settings.device)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    if command.stage not in ("all", "ablate", *run.stages):
        raise UserError(f"--stage {command.stage}: only the lab has this stage, not {settings.model}")
    if command.stage in ("all", "evaluate", "ablate") and not run.is_done("evaluate"):
        evaluate.check(settings)
    run.open(command.preset)
    if command.stage == "ablate":
        ablate.ablate(
            run,
            command.preset,
            lambda given: all_settings.build(command.preset, {**command.given, **given}),
            STAGE_FUNCTIONS,
        )
    else:
        run.do(run.stages if command.stage == "all" else (command.stage,), STAGE_FUNCTIONS)


def main(argv):
    """The command line. Returns the exit status: 0, or 2 after a user's mistake."""
    place = {"folder": compare.FOLDER}
    return exit_status(lambda: run_command(argv, place), lambda: place["folder"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
