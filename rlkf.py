"""Reinforcement Learning from Knowledge Feedback, from end to end.

    python rlkf.py --stage all                      the built-in lab, minutes on a laptop
    python rlkf.py --stage all --preset smollm2     a real model
    python rlkf.py --stage ablate                   one thing left out or changed at a time, over several seeds
    python rlkf.py --stage report --runs a b c      several runs in one table
    python rlkf.py --list                           the stages: what is done, what would run

Each stage below reads what earlier stages left in runs/NAME, calls a module, and writes its own. The algorithms are in
the modules, the command line is in settings.py, and the two longest stages have a module each (policy.py, evaluate.py). Read
in the order of the stages.
"""
import math
import os
import sys
from dataclasses import replace

import numpy as np
import torch
from transformers.utils import logging as transformers_logging

import dreamcatcher
import embed
import probe
import reward
from data import facts, general, sources, world
from data.files import read_jsonl, write_json, write_jsonl
from evaluation import honesty, metrics
from experiment import ablate, asking, compare, evaluate, policy, probe_study, report, runs, tables
from experiment import settings as all_settings
from experiment.checkpoint import load_checkpoint, save_checkpoint
from experiment.inputs import (
    SPLITS,
    answer_records,
    check_fit,
    hits_of,
    load_embedder,
    load_generations,
    load_known,
    load_model,
    load_questions,
    readings_of,
)
from experiment.runs import bar, followed, say
from lm import model as language_model
from lm import optim
from lm.batching import most_positions
from lm.chat import chat_prompt, decode, has_ended, render, response_ids
from lm.errors import UserError, exit_status
from lm.sampling import generate, generator_for
from reading import answers

# ---------------------------------------------------------------------------------------------------- the stages

def stage_base(run):
    """Lab only: invent a world and pretrain a small model on a part of it."""
    s = run.settings
    instructions, asked = dreamcatcher.UNCERTAIN_INSTRUCTIONS["en"], [prompt["en"] for prompt in honesty.PROMPTS.values() if prompt]
    the_world = world.build_world(s.world, s.seed)
    tokenizer = world.build_tokenizer(the_world, (*instructions, *asked))
    with bar(None, "steps", "pretraining the lab's model") as tick:
        def progress(step, total, loss):
            tick(1)
            if not math.isfinite(loss):
                raise UserError(f"--world.muon_lr, --world.adam_lr: the loss is not finite at step {step}; lower rates may help")
            if step % 20 == 0 or step == total:
                run.log("base", step=step, steps=total, loss=float(loss))
        model = world.pretrain(the_world, tokenizer, instructions, s.world, s.seed, progress)
    with run.output("base") as folder:
        language_model.save(language_model.wrap(model, tokenizer), folder)


def stage_data(run):
    """Questions, split so that all about one subject lie in one part; the lab adds its second skill."""
    s = run.settings
    extra = {}
    if s.questions == all_settings.LAB:
        the_world = world.build_world(s.world, s.seed)
        split = world.questions(the_world)
        extra = {"general": world.general_preferences(len(split["train"]), s.seed, the_world),
                 "skill": world.skill_questions(200, s.seed + 1, the_world)}
    else:
        wanted = sources.parse_mix(s.questions)
        for name, _ in wanted:
            if name not in sources.NAMED and not name.startswith("hf:") and not os.path.exists(name):
                raise UserError(f"{name}: No such file{all_settings.nearest(name, (*sources.NAMED, all_settings.LAB))}")
        parts = [(sources.read_source(name, s.qa, s.seed, lambda: asking.make_wiki_qa(run, extra), bar, say), weight) for name, weight in wanted]
        split = facts.split_by_subject(sources.keep_repeats_together(sources.mix(parts, s.seed)), s.seed)
    if s.general:
        pairs = general.read(s.general)
        order = torch.randperm(len(pairs), generator=generator_for(s.seed, "general")).tolist()
        extra["general"] = [pairs[i] for i in order]
    for name in SPLITS:
        if len(split[name]) < 5:
            raise UserError(f"{s.questions}: {sum(map(len, split.values()))} questions on {len({q['subject'] for r in split.values() for q in r})} "
                            f"subjects leave {len(split[name])} in the {name} split; at least 5 are needed")
    with run.output("data") as folder:
        for name, records in {**split, **extra}.items():
            write_jsonl(os.path.join(folder, f"{name}.jsonl"), records)
        write_json(os.path.join(folder, "summary.json"), sources.summary(split))
    for line in sources.summary_lines(sources.summary(split)):
        say(line)
    say("  " + ", ".join(f"{len(split[name])} {name}" for name in SPLITS) + " questions")


def stage_probe(run):
    """Sections 3.1 and 3.2: sample k answers, pre-label the questions, capture activations, fit the probes."""
    s, config = run.settings, run.settings.probe
    split = load_questions(run)
    questions = [q for name in SPLITS for q in split[name]]
    lm, embedder = load_model(run), load_embedder(run)
    for where, asked in ((s.questions, questions), *evaluate.load_sets(s).items()):
        check_fit(run, lm, where, asked)
    generations = runs.in_blocks(run, "probe", questions, max(1, s.sampling.rows // config.k), f"answering, k = {config.k}",
                                 lambda block: answer_records(run, lm, block))
    hits = hits_of(questions, generations)
    greedy_right = np.array([answers.is_correct(reading) for reading in readings_of(questions, [g["greedy"] for g in generations])])
    train = np.arange(len(split["train"]))
    if config.rule == "percentile":
        scores = dreamcatcher.score_generations(embedder, [questions[i] for i in train], [generations[i] for i in train])
        labels = probe.prelabel(dreamcatcher.factuality(scores, ("s_s2g", "s_o2a", "s_s2a")).numpy(), config.upper, config.lower)
    else:
        labels = probe.gold_label(hits[train], greedy_right[train], config.known_share, config.unknown_share)
    if min((labels == 0).sum(), (labels == 1).sum()) < 10:
        raise UserError(f"{s.model}: only {(labels == 1).sum()} known and {(labels == 0).sum()} unknown questions among "
                        f"{len(train)}; a probe needs at least 10 of each (easier, harder or more --questions)")
    prompts = [chat_prompt(lm, q["question"]) for q in questions]
    with bar(len(prompts), "prompts", "capturing activations") as tick:
        activations = probe.capture(lm, prompts, config.rows, tick)
    if "attention" not in activations:
        say(f"  {s.model}: its layers have no attention output of their own before a projection; only mlp and hidden are probed")
    everyone = probe.split_by_group([questions[i]["subject"] for i in train], config, s.seed)
    parts = np.where(labels >= 0, everyone, -1)  # -1: left out
    if any(set(labels[part == 0]) != {0, 1} or not (part == 1).any() or not (part == 2).any() for part in parts):
        raise UserError(f"--probe.valid {config.valid}, --probe.test {config.test}: of {len({q['subject'] for q in split['train']})} subjects they leave no "
                        "known and unknown question to train on, none to choose by or none to test on")
    found = probe.logits_everywhere(activations, labels.clip(0), parts == 0, config.l2, config.standardise)
    best = probe.choose(found, labels, parts, config.band)
    temperature, raw_error, error = probe.calibrate(best, labels, parts)
    elsewhere = np.full((config.repeats, len(questions) - len(train)), -1)
    p_known = probe.out_of_fold(best["logits"] / temperature, np.concatenate([parts, elsewhere], 1))
    first, last = best["layers"][0] + 1, best["layers"][-1] + 1
    layers = f"layer {first}" if first == last else f"layers {first}-{last}"
    rows = [{"kind": kind, "layer": layer + 1, **row} for kind, (_, _, logits) in found.items()
            for layer, row in enumerate(probe.score_probes(logits[..., :len(train)], labels, parts))]
    rows.append({"kind": f"in use: {best['kind']} of {layers}", **{k: v for k, v in best.items() if k not in ("kind", "layers", "logits")},
                 "temperature": temperature, "ece_uncalibrated": raw_error, "ece": error})
    rows += probe_study.controls(activations, best, labels, parts, config, s.seed, {
        "bag of words": probe_study.bag_of_words([prompts[i] for i in train]),
        "question embedding": embed.embed(embedder, [questions[i]["question"] for i in train]),
        "answer confidence": torch.tensor([[generations[i]["greedy_log_prob"]] for i in train])})
    for row in rows:
        if "strength" in row:
            row["l2"] = config.l2[row.pop("strength")]
    with bar(None, "variants", "probe ablations") as tick:
        ablations = probe_study.ablations(activations, found, hits[train].mean(1), labels, everyone, config, s.seed, tick)
    in_use = probe.probe_in_use(best, found, activations, temperature)
    names = [name for name in SPLITS for _ in split[name]]
    with run.output("probe") as folder:
        probe.save(in_use, folder, s.model)
        write_jsonl(os.path.join(folder, "generations.jsonl"), generations)
        write_jsonl(os.path.join(folder, "known.jsonl"), [
            {"id": q["id"], "split": name, "p_known": float(p), "hits": int(h.sum()), "greedy_right": bool(g),
             "label": int(labels[i]) if i < len(train) else None}
            for i, (q, name, p, h, g) in enumerate(zip(questions, names, p_known, hits, greedy_right))])
        tables.write_csv(os.path.join(folder, "accuracy.csv"), rows)
        tables.write_csv(os.path.join(folder, "ablation.csv"), ablations)
    say(f"  {(labels == 1).sum()} known, {(labels == 0).sum()} unknown, {(labels < 0).sum()} between; probe: {best['kind']} of {layers} "
        f"(by validation), test accuracy {best['accuracy']:.3f}, AUROC {best['auroc']:.3f}, calibration error {error:.3f} at temperature {temperature:.2f}")
    say(report.ablation_table(ablations))


def stage_annotate(run):
    """Section 3.3, DreamCatcher: uncertain generations, the four scores, labels, states, rankings."""
    s, config = run.settings, run.settings.annotate
    questions = read_jsonl(run.path("data", "train.jsonl"))
    normal, known = load_generations(run), load_known(run)
    lm, embedder = load_model(run), load_embedder(run)
    sampling = replace(s.sampling, temperature=config.uncertain_temperature)

    def answer(block):
        prompts = [chat_prompt(lm, q["question"], dreamcatcher.uncertain_instruction(q, s.seed)) for q in block]
        sampled = generate(lm, prompts, sampling, config.uncertain_k, [f"uncertain {q['id']}" for q in block], s.seed)
        return [{"id": q["id"], "uncertain": [dreamcatcher.finish(decode(lm, r), has_ended(lm, r)) for r in rs]}
                for q, rs in zip(block, sampled)]

    generations = [normal[q["id"]] for q in questions]
    texts = [[dreamcatcher.finish(t, e) for t, e in zip(g["normal"], g["normal_ended"])] for g in generations]
    if config.uncertain_k:
        made = runs.in_blocks(run, "annotate", questions, max(1, s.sampling.rows // config.uncertain_k), "uncertain answers", answer)
        uncertain = [record["uncertain"] for record in made]
    else:
        uncertain = [[t for t in own if answers.read(t, q["answers"], q["question"]) == "refusal"] for q, own in zip(questions, texts)]
    s_p = np.array([known[q["id"]]["p_known"] for q in questions])
    scores = dreamcatcher.score_generations(embedder, questions, generations, s_p)
    factuality = dreamcatcher.factuality(scores, config.scores, config.normalise).numpy()
    hits = hits_of(questions, generations)
    correct, states = dreamcatcher.label(factuality, hits, config, s_p)
    vectors = embed.embed(embedder, [t for u in uncertain for t in u])
    records, dropped = dreamcatcher.preferences(questions, states, texts, factuality, uncertain, vectors, config)
    if config.shuffle_states:
        records = dreamcatcher.shuffle_states(records, s.seed)
    counts, warnings = dreamcatcher.histogram(states)
    table = {"rule": config.rule, "questions": len(questions), "states": counts, "rankings": len(records), "dropped": dict(dropped),
             "score AUROC": metrics.auroc(factuality, hits)}
    langs = np.array([q["lang"] for q in questions])
    table["agreement with gold"] = {lang: dreamcatcher.agreement(correct[langs == lang], hits[langs == lang]) for lang in sorted(set(langs))}
    if questions[0].get("true_state"):
        table["agreement with the true states"] = float(np.mean([q["true_state"] == t for q, t in zip(questions, states)]))
    with run.output("annotate") as folder:
        write_jsonl(os.path.join(folder, "generations.jsonl"), [{**g, "uncertain": u} for g, u in zip(generations, uncertain)])
        write_jsonl(os.path.join(folder, "labels.jsonl"), [
            {"id": q["id"], **{name: value[i].tolist() for name, value in scores.items()}, "factuality": factuality[i].tolist(),
             "correct": correct[i].tolist(), "state": states[i]} for i, q in enumerate(questions)])
        write_jsonl(os.path.join(folder, "preferences.jsonl"), records)
        write_jsonl(os.path.join(folder, "pairs.jsonl"), [pair for record in records for pair in dreamcatcher.pairs(record)])
        write_json(os.path.join(folder, "summary.json"), table)
    say(f"  {', '.join(f'{n} {state}' for state, n in counts.items())}; {len(records)} rankings"
        + "".join(f"; {n} dropped: {why}" for why, n in dropped.items()))
    for warning in warnings:
        say(f"  warning: {warning}")


def general_records(run, lm):
    """The general preference pairs as records of a ranking, without those that are too long."""
    limit, pairs = min(run.settings.reward.max_tokens, most_positions(lm)), read_jsonl(run.path("data", "general.jsonl"))
    records = [{"prompt": g["prompt"], "ranking": [g["chosen"], g["rejected"]], "kinds": ["chosen", "rejected"], "state": "general"} for g in pairs]
    longest = [len(prompt) + max(map(len, responses)) for prompt, responses, _ in (reward.tokenise(lm, r, 0.5) for r in records)]
    kept = [r for r, length in zip(records, longest) if length <= limit]
    if len(kept) < len(records):
        say(f"  {len(records) - len(kept)} of {len(records)} general pairs have more than {limit} tokens and are left out")
    return kept


def stage_reward(run):
    """Section 4: a reward model of the same language model learns the rankings."""
    s, config = run.settings, run.settings.reward
    subject = {q["id"]: q["subject"] for q in read_jsonl(run.path("data", "train.jsonl"))}
    records = read_jsonl(run.path("annotate", "preferences.jsonl"))
    subjects = sorted({subject[r["id"]] for r in records})
    order = torch.randperm(len(subjects), generator=generator_for(s.seed, "reward held out")).tolist()
    held = {subjects[i] for i in order[:max(1, round(config.held_out * len(subjects)))]}
    parts = {"train": [r for r in records if subject[r["id"]] not in held], "test": [r for r in records if subject[r["id"]] in held]}
    if not parts["train"]:
        raise UserError(f"{run.path('annotate', 'preferences.jsonl')}: of its {len(records)} rankings --reward.held_out {config.held_out} leaves none to learn "
                        "from (see the annotate stage's counts)")
    known, lm = load_known(run), load_model(run)
    model = reward.load(run.base_model, lm.tokenizer, lm.dtype, s.device, s.seed, config.p_known)
    lm = model.lm  # the same tokenizer; the language model itself leaves the memory
    if os.path.exists(run.path("data", "general.jsonl")):
        pairs, n_test = general_records(run, lm), len(parts["test"])
        parts["test"] += pairs[:n_test]
        parts["train"] += pairs[n_test:n_test + round(config.general * len(parts["train"]))]
    examples = {name: [reward.tokenise(lm, r, known[r["id"]]["p_known"] if "id" in r else 0.5) for r in part] for name, part in parts.items()}
    optimizer = optim.adamw([{"params": list(model.lm.model.parameters()), "lr": config.lr}])
    modules, checkpoint = {"reward": model.lm.model}, run.work("reward", "checkpoint")
    progress = load_checkpoint(checkpoint, modules, optimizer) or {"step": 0}
    for figures in followed(run, "reward", reward.learn(model, examples["train"], config, s.seed, optimizer, progress["step"]), "reward model",
                            reward.steps_of(examples["train"], config), progress["step"], config.save_every,
                            lambda: save_checkpoint(checkpoint, modules, optimizer, progress)):
        progress["step"] = figures["step"]
    initial = {g["id"]: g["normal"][0] for g in read_jsonl(run.path("annotate", "generations.jsonl"))}
    factual = [r for r in parts["train"] if r["state"] != "general"]
    reward.set_normalisation(model, [render(lm, r["prompt"]) for r in factual],
                             [response_ids(lm, initial[r["id"]]) for r in factual],
                             [known[r["id"]]["p_known"] for r in factual])
    table = reward.accuracy_by_state(model, parts["test"], examples["test"])
    with run.output("reward") as folder:
        reward.save(model, folder)
        write_json(os.path.join(folder, "accuracy.json"), table)
    for row in table:
        low, high = row["interval"]
        say(f"  {row['state']}, {row['pair']}: {row['accuracy']:.3f} [{low:.3f}, {high:.3f}] of {row['n']} (always answer {row['always_answer']:.2f}, longer {row['longer']:.2f})")


def stage_ppo(run):
    """Section 4: PPO with guidance, or another --algorithm. The policy kept is the best on the validation questions."""
    policy.train(run)


def stage_evaluate(run):
    """Section 5.2: honesty before and after on the test questions and --eval-questions, under two prompts; benchmarks where they are named."""
    evaluate.evaluate(run)


def stage_report(run):
    """Tables and figures from what the stages left."""
    text = report.build(run.folder, {stage: run.logged(stage) for stage in ("base", "reward", "ppo")},
                        run.records, run.settings.evaluate.samples_shown, say)
    say(text)


STAGE_FUNCTIONS = {"base": stage_base, "data": stage_data, "probe": stage_probe, "annotate": stage_annotate,
                   "reward": stage_reward, "ppo": stage_ppo, "evaluate": stage_evaluate, "report": stage_report}


def run_command(argv, place):
    """What the command line asks for; place["folder"] is where an error that names no file came from."""
    command = all_settings.parse_command_line(argv, __doc__, (*runs.STAGES, "ablate"))
    if command.runs:
        return say(compare.build(command.runs))
    settings = all_settings.build(command.preset, command.given)
    run = runs.Run(os.path.join("runs", command.run or command.preset), settings)
    place["folder"] = run.folder
    if command.list:
        for number, stage in enumerate(run.stages, 1):
            state = "done" if all(map(run.is_done, run.stages[:number])) else "would run again" if stage in run.records else "would run"
            say(f"  {stage:10} {state:16} {STAGE_FUNCTIONS[stage].__doc__.split(chr(10))[0]}")
        return
    all_settings.check_device(settings.device)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    if command.stage not in ("all", "ablate", *run.stages):
        raise UserError(f"--stage {command.stage}: only the lab has this stage, not {settings.model}")
    if command.stage in ("all", "evaluate", "ablate") and not run.is_done("evaluate"):
        evaluate.check(settings)
    run.open(command.preset)
    if command.stage == "ablate":
        ablate.ablate(run, command.preset, lambda given: all_settings.build(command.preset, {**command.given, **given}), STAGE_FUNCTIONS)
    else:
        run.do(run.stages if command.stage == "all" else (command.stage,), STAGE_FUNCTIONS)


def main(argv):
    """The command line. Returns the exit status: 0, or 2 after a user's mistake."""
    place = {"folder": compare.FOLDER}
    return exit_status(lambda: run_command(argv, place), lambda: place["folder"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
