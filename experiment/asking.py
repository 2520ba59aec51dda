"""Questions that a model asks about passages (A.1, wiki-QA), as a part of the data stage: who asks, what is kept, where it goes on.

The passages, prompts, replies and checks are in data/; here they meet a run, its models and its folder. Left out: judging
the pairs by a model.
"""
import os

from data import endpoint, passages, text, wiki_qa
from data.files import read_jsonl, write_jsonl
from experiment import runs
from experiment.inputs import load_model
from experiment.runs import bar, say
from lm.chat import decode, render
from lm.sampling import Sampling, generate


def asker(run):
    """Who asks about passages (A.1): (a function of a block of wiki_qa's tasks to {"id", "reply"} records, size of a block, counter of tokens)."""
    s, config = run.settings, run.settings.qa
    if config.endpoint:
        remote = endpoint.Endpoint(config.endpoint, config.model, s.endpoint, os.environ.get(endpoint.KEY_VARIABLE, ""))
        return lambda block: [{"id": t["id"], **remote.ask(t["messages"], config.temperature, config.max_new_tokens)} for t in block], 1, text.estimate_tokens
    lm = load_model(run, config.model or None)
    sampling = Sampling(config.max_new_tokens, config.temperature, rows=config.rows)

    def ask(block):
        prompts = [render(lm, t["messages"]) for t in block]
        replies = generate(lm, prompts, sampling, 1, [t["id"] for t in block], s.seed)
        return [{"id": t["id"], "reply": decode(lm, r[0])} for t, r in zip(block, replies)]

    return ask, 2 * config.rows, lambda words: len(lm.tokenizer(words, add_special_tokens=False).input_ids)


def make_wiki_qa(run, extra):
    """Questions that a model asks about passages (A.1), those that pass the checks; every reply and its verdict go into `extra`."""
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
    replies = runs.in_blocks(run, "data", tasks, size, "asking about passages", ask)
    records, extra["wiki_qa"], counts = wiki_qa.keep(drawn, tasks, replies, s.seed)
    say(f"  {len(records)} questions kept of {len(tasks)} passages; dropped: " + ", ".join(f"{n} {why}" for why, n in counts.most_common() if why != "kept"))
    return records
