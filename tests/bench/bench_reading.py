"""Readings a second of the strict reader: of the lab's answers, and of judged ones where a file is
given.

    python tests/bench/bench_reading.py [--judged JUDGED.jsonl]

CPU time of one thread, the best of five rounds. Cold: all caches are emptied before each round;
warm: they hold what the round before left. JUDGED.jsonl has question, answers and text a line.
"""

import argparse
import os
import random
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", ".."))
from data import world
from data.files import read_jsonl
from data.world_words import REFUSALS
from reading import answers, assertion, dates, equality, names, refusals, words

ROUNDS, SAMPLES = 5, 20


def lab_texts(seed=0):
    """(text, answers, question): for each question of the lab SAMPLES texts of two or more words,
    two in five of them refusals.
    """
    draw = random.Random(seed)
    made = world.questions(world.build_world(world.WorldConfig(), seed))
    questions = [q for split in made.values() for q in split]
    values = sorted({answer for q in questions for answer in q["answers"]})
    said = lambda: draw.choice(REFUSALS) if draw.random() < 0.4 else f"{draw.choice(values)} ."
    return [(said(), q["answers"], q["question"]) for q in questions for _ in range(SAMPLES)]


def forget():
    """Empty all caches of the reader but the classifier's weights."""
    for module in (answers, assertion, dates, equality, names, refusals, words):
        for name, thing in vars(module).items():
            if hasattr(thing, "cache_clear") and name != "weights":
                thing.cache_clear()


def rate(texts, cold):
    """Readings a second."""
    best = float("inf")
    for _ in range(ROUNDS + 1):
        if cold:
            forget()
        start = time.process_time()
        for given in texts:
            answers.read(*given)
        best = min(best, time.process_time() - start)
    return len(texts) / best


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--judged", help="JSONL: question, answers, text")
    given = parser.parse_args()
    sets = {"lab": lab_texts()}
    if given.judged:
        sets["judged"] = [(r["text"], r["answers"], r["question"]) for r in read_jsonl(given.judged)]
    for name, texts in sets.items():
        print(f"{name}: {len(texts)} texts, cold {rate(texts, True):,.0f} warm {rate(texts, False):,.0f} a second")


if __name__ == "__main__":
    main()
