"""Work that takes long: a bar while it goes on, steps and blocks that are kept to go on from."""

import contextlib
import json
import os
import sys

from tqdm import tqdm

from data.files import append_jsonl
from lm.batching import batches_by_length

MOST_SKIPPED = 3  # updates in a row that were not finite, before a training loop stops


def say(text):
    """Print a line so that progress bars stay whole."""
    tqdm.write(text, file=sys.stdout)


@contextlib.contextmanager
def bar(total, unit, what, done=0):
    """A progress bar on standard error with rate and time left; yields a function that takes how
    many more are done.
    """
    with tqdm(
        total=total,
        initial=done,
        unit=f" {unit}",
        desc=f"  {what}",
        leave=False,
        file=sys.stderr,
        mininterval=0.5,
        miniters=1,
    ) as progress:
        yield progress.update


def followed(run, stage, loop, what, steps, done=0, save_every=None, save=lambda: None, **labels):
    """Go through the figures of a training loop's steps: log each, show a bar, yield it, and
    `save()` every `save_every` steps.

    `save` runs after the caller has seen the step. Raises FloatingPointError after MOST_SKIPPED
    skipped updates in steps that follow one another; these left weights and moments as they were,
    and that state is saved first.
    """
    skipped = 0
    with bar(steps, "steps", what, done) as tick:
        for figures in loop:
            run.log(stage, steps=steps, **labels, **figures)
            tick(1)
            yield figures
            skipped = skipped + figures["skipped"] if figures["skipped"] else 0
            if skipped >= MOST_SKIPPED:
                save()
                raise FloatingPointError(
                    f"{what}, step {figures['step']}: {skipped} updates in a row were skipped, as their gradients were"
                    " not finite; the last good state is saved (a lower learning rate may help)"
                )
            if save_every and figures["step"] % save_every == 0 and figures["step"] < steps:
                save()


def resumed_records(path, expected):
    """Records already in a half-done JSON-lines file, in blocks: `expected` is the list of id lists
    that were to be written.

    Only whole leading blocks count; the file is cut to them.
    """
    if not os.path.exists(path):
        return []
    lines = []
    with open(path, "rb") as f:
        for line in f:
            if not line.endswith(b"\n"):
                break
            try:
                lines.append(json.loads(line))
            except ValueError:
                break
    kept, start = [], 0
    for ids in expected:
        block = lines[start : start + len(ids)]
        if [record.get("id") if isinstance(record, dict) else None for record in block] != ids:
            break
        kept += block
        start += len(ids)
    with open(f"{path}.part", "w", encoding="utf-8") as f:
        for record in kept:
            f.write(json.dumps(record, ensure_ascii=False) + "\n")
    os.replace(f"{path}.part", path)
    return kept


def in_blocks(run, stage, questions, size, what, make, file="generations.jsonl"):
    """`make(block of questions)` -> records, over all questions in blocks of like length; an
    interrupted call goes on.

    Returns the records in the order of the questions. `file`, in the stage's folder of half-done
    work, keeps what is done.
    """
    blocks = [
        [questions[i] for i in block] for block in batches_by_length([len(q["question"]) for q in questions], size)
    ]
    path = run.work(stage, file)
    records = resumed_records(path, [[q["id"] for q in block] for block in blocks])
    done = len(records)
    with bar(len(questions), "questions", what, done) as tick:
        for block in blocks:
            if done > 0:
                done -= len(block)
                continue
            fresh = make(block)
            append_jsonl(path, fresh)
            records += fresh
            tick(len(block))
    by_id = {record["id"]: record for record in records}
    return [by_id[q["id"]] for q in questions]
