"""A million synthetic passages through selection: rows a second, and memory at 10 thousand, 100
thousand and a million.

    python tests/bench/bench_passages.py [--rows 1000000] [--count 5000]

The rows are made on the fly, 80 to 140 words each, one in ten a stub and one in five almost another
row. Rates include the making of the rows. Processor time is printed beside the wall clock, which
other programs slow down. Memory is the process's own.
"""

import argparse
import os
import random
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", ".."))
from data import passages
from data.text import estimate_tokens
from data.wiki_qa import QAConfig


def resident():
    """MiB of memory that the process holds now."""
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def rows(total, marks, started):
    """Synthetic rows; prints memory and rates at each of `marks`."""
    words = [
        f"{a}{b}"
        for a in "ba ce di fo gu ha je ki lo mu".split()
        for b in "nter sil ver mon dale rick tan wood ley burg".split()
    ]
    rng, before = random.Random(0), None
    for n in range(1, total + 1):
        if n % 5 == 0 and before:
            text = before.replace("1900", str(n % 100))
        else:
            sentences = [
                f"The {' '.join(rng.choices(words, k=12))} of {n} was in the {rng.choice(words)}."
                for _ in range(2 if n % 10 == 1 else rng.randint(5, 8))
            ]
            text = before = " ".join([*sentences, "It dates from 1900."])
        if n in marks:
            wall, cpu = time.perf_counter() - started[0], time.process_time() - started[1]
            print(
                f"{n:>9} rows   {n / wall:8.0f} rows/s   {n / cpu:8.0f} rows/s of processor time  "
                f" {resident():7.1f} MiB",
                flush=True,
            )
        yield {"title": f"Article {n}", "passage": text}


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--count", type=int, default=5000)
    command = parser.parse_args(argv)
    marks = {10_000, 100_000, 300_000, command.rows}
    started = time.process_time()
    for _ in rows(30_000, (), None):
        pass
    print(f"making the rows alone: {30_000 / (time.process_time() - started):.0f} rows/s of processor time")
    started, read = (time.perf_counter(), time.process_time()), passages.read_source
    passages.read_source = lambda source, seed: rows(command.rows, marks, started)
    kept, counts = passages.select(["synthetic"], QAConfig(count=command.count, scan=command.rows), 0, estimate_tokens)
    passages.read_source = read
    print(f"{len(kept)} kept; {dict(counts)}")


if __name__ == "__main__":
    main(sys.argv[1:])
