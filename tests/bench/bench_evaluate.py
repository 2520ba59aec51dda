"""Option log-likelihoods beside lm-evaluation-harness: questions a second on the same rows, model
and dtype, both sides in turn.

    python tests/bench/bench_evaluate.py --model MODEL --dir FOLDER --rows 100

Needs lm_eval, as check_harness.py, which also compares the figures. In bfloat16 the harness has
bfloat16 weights, ours are float32 with matrix products in bfloat16, as everywhere in this project.
Of --batch the harness's fastest counts.
"""

import argparse
import copy
import logging
import os
import sys
import tempfile

import torch

sys.path.insert(0, os.path.dirname(__file__))
from check_harness import draw, language_model, run_harness, run_ours


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--dir", required=True, help="folder of benchmark files")
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--names", default="mmlu,truthfulqa")
    parser.add_argument("--batch", default="1,16", help="batch sizes of the harness, with commas between")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    command = parser.parse_args(argv)
    from lm_eval.models.huggingface import HFLM

    logging.disable(logging.WARNING)
    torch.set_num_threads(command.threads)
    dtype = getattr(torch, command.dtype)
    lm = language_model.load(command.model, dtype=dtype)
    theirs = copy.deepcopy(lm.model).to(dtype)
    with tempfile.TemporaryDirectory() as work:
        for name in command.names.split(","):
            folder = os.path.join(work, name)
            data = draw(name, command.dir, command.rows, 0, folder)
            seconds = {"ours": [], "the harness": []}
            for _ in range(command.repeats):
                seconds["ours"].append(run_ours(lm, name, folder, 64)[2])
                for batch in map(int, command.batch.split(",")):
                    model = HFLM(pretrained=theirs, tokenizer=lm.tokenizer, batch_size=batch, device="cpu")
                    seconds["the harness"].append(run_harness(model, name, data, work)[2])
            best = {side: min(times) for side, times in seconds.items()}
            print(
                f"{name}, {command.dtype}, {command.threads} threads: "
                + ", ".join(f"{side} {command.rows / t:.2f} items/s" for side, t in best.items())
                + f": {best['the harness'] / best['ours']:.2f} times",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:])
