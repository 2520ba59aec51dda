"""Where a run's questions come from: the lab's world, the project's tables, files, or a model that
asks about passages (A.1, wiki-QA).

Passages, prompts, replies and checks are in data/; here they meet a run, its models and its folder.
Left out: judging the pairs by a model.
"""

import os

import torch

from data import endpoint, facts, general, passages, sources, text, wiki_qa, world
from data.files import read_jsonl, write_jsonl
from experiment import progress
from experiment.inputs import SPLITS, load_model
from experiment.progress import bar, say
from experiment.settings import LAB, nearest
from lm.chat import decode, render
from lm.errors import UserError
from lm.sampling import Sampling, generate, generator_for


def lab_questions(config, seed):
    """(splits, extra records) of the lab: questions on its people, and its second skill."""
    the_world = world.build_world(config, seed)
    split = world.questions(the_world)
    return split, {
        "general": world.general_preferences(len(split["train"]), seed, the_world),
        "skill": world.skill_questions(200, seed + 1, the_world),
    }


def real_questions(run):
    """(splits, extra records) of the sources that --questions names, split by subject."""
    s, extra, parts = run.settings, {}, []
    wanted = sources.parse_mix(s.questions)
    for name, _ in wanted:
        if name not in sources.NAMED and not name.startswith("hf:") and not os.path.exists(name):
            raise UserError(f"{name}: No such file{nearest(name, (*sources.NAMED, LAB))}")
    for name, weight in wanted:
        read = sources.read_source(name, s.qa, s.seed, lambda: make_wiki_qa(run, extra), bar, say)
        parts.append((read, weight))
    return facts.split_by_subject(sources.keep_repeats_together(sources.mix(parts, s.seed)), s.seed), extra


def general_pairs(path, seed):
    """General preference pairs of a file or hub name, in an order of their own."""
    pairs = general.read(path)
    order = torch.randperm(len(pairs), generator=generator_for(seed, "general")).tolist()
    return [pairs[i] for i in order]


def check_splits(name, split):
    """Raise UserError where a split is too small to be trained, chosen or tested on."""
    for part in SPLITS:
        if len(split[part]) < 5:
            subjects = {q["subject"] for records in split.values() for q in records}
            raise UserError(
                f"{name}: {sum(map(len, split.values()))} questions on {len(subjects)} subjects leave"
                f" {len(split[part])} in the {part} split; at least 5 are needed"
            )


# --------------------------------------------------------------------------------------- wiki-QA


def asker(run):
    """Who asks about passages (A.1): (a function of a block of wiki_qa's tasks to {"id", "reply"}
    records, size of a block, counter of tokens).
    """
    s, config = run.settings, run.settings.qa
    if config.endpoint:
        remote = endpoint.Endpoint(config.endpoint, config.model, s.endpoint, os.environ.get(endpoint.KEY_VARIABLE, ""))
        return (
            lambda block: [
                {"id": t["id"], **remote.ask(t["messages"], config.temperature, config.max_new_tokens)} for t in block
            ],
            1,
            text.estimate_tokens,
        )
    lm = load_model(run, config.model or None)
    sampling = Sampling(config.max_new_tokens, config.temperature, rows=config.rows)

    def ask(block):
        prompts = [render(lm, t["messages"]) for t in block]
        replies = generate(lm, prompts, sampling, 1, [t["id"] for t in block], s.seed)
        return [{"id": t["id"], "reply": decode(lm, r[0])} for t, r in zip(block, replies)]

    return ask, 2 * config.rows, lambda words: len(lm.tokenizer(words, add_special_tokens=False).input_ids)


def make_wiki_qa(run, extra):
    """Questions that a model asks about passages (A.1), those that pass the checks; every reply and
    its verdict go into `extra`.
    """
    s = run.settings
    for source in s.qa.passages:
        passages.check_source(source)
    ask, size, count_tokens = asker(run)
    chosen = run.work("data", "passages.jsonl")
    if not os.path.exists(chosen):
        with bar(None, "passages", "reading passages") as tick:
            found, counts = passages.select(s.qa.passages, s.qa, s.seed, count_tokens, tick)
        say(f"  {len(found)} passages; " + ", ".join(f"{n} {why}" for why, n in counts.items()))
        write_jsonl(chosen, found)
    drawn = read_jsonl(chosen)
    tasks = [wiki_qa.task(passage, s.qa, s.seed) for passage in drawn]
    replies = progress.in_blocks(run, "data", tasks, size, "asking about passages", ask)
    records, extra["wiki_qa"], counts = wiki_qa.keep(drawn, tasks, replies, s.seed)
    say(
        f"  {len(records)} questions kept of {len(tasks)} passages; dropped: "
        + ", ".join(f"{n} {why}" for why, n in counts.most_common() if why != "kept")
    )
    return records
