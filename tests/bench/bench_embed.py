"""embed.py beside sentence-transformers: equal vectors, and texts a second on 3,000 short answers.

    python tests/bench/bench_embed.py --embedder all-MiniLM-L6-v2 --run runs/smollm2

sentence-transformers is installed for this only: pip install sentence-transformers.
"""

import argparse
import os
import sys
import time

import torch

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", ".."))
import embed
from data.files import read_jsonl


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--embedder", required=True)
    parser.add_argument("--run", required=True)
    parser.add_argument("--texts", type=int, default=3000)
    command = parser.parse_args(argv)
    from sentence_transformers import SentenceTransformer

    texts = list(
        dict.fromkeys(
            t for g in read_jsonl(os.path.join(command.run, "probe", "generations.jsonl")) for t in g["normal"]
        )
    )[: command.texts]
    theirs, ours = SentenceTransformer(command.embedder, device="cpu"), embed.load(command.embedder)
    sides = {
        "sentence-transformers": lambda some: torch.tensor(
            theirs.encode(some, normalize_embeddings=True, batch_size=64)
        ),
        "ours": lambda some: embed.embed(ours, some),
    }
    vectors, rate = {}, {}
    for name in (*sides, *sides):  # the second round counts
        started = time.perf_counter()
        vectors[name] = sides[name](texts)
        rate[name] = len(texts) / (time.perf_counter() - started)
    apart = 1 - (vectors["ours"] * vectors["sentence-transformers"]).sum(1)
    print(
        f"{len(texts)} distinct texts, {torch.get_num_threads()} threads: ours {rate['ours']:.0f}/s,"
        f" sentence-transformers {rate['sentence-transformers']:.0f}/s,"
        f" {rate['ours'] / rate['sentence-transformers']:.2f} times; cosine at most {apart.max():.1e} below 1"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
