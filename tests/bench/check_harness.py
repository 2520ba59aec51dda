"""Our option log-likelihoods and accuracies beside lm-evaluation-harness's: the same rows, prompts,
model and float32.

    python tests/bench/check_harness.py --model MODEL --dir FOLDER --rows 100

Needs lm_eval (0.4.13 was tried), which is installed for this check only. The harness runs its own
task files, pointed at the drawn rows; MMLU is one task, whose description names each row's subject.
GSM8K is greedy generation behind the chat template, read by the harness's "flexible-extract". Both
sides are timed as well, the harness at its best batch of a few (--batch), so that this is also the
comparison of speed.
"""

import argparse
import json
import logging
import os
import sys
import tempfile
import time

import numpy as np
import torch

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", ".."))
from data import benchmark_data
from evaluation import benchmarks
from lm import model as language_model
from lm.batching import batches_by_length

MMLU = "The following are multiple choice questions (with answers) about {{subject.replace('_', ' ')}}.\n\n"
TASKS = {  # benchmark: [(the harness's task file, {its measure: ours}, changes to its settings)]
    "mmlu": [("mmlu/default/mmlu_abstract_algebra.yaml", {"acc": "acc"}, {"description": MMLU})],
    "arc": [
        (
            "arc/arc_challenge.yaml",
            {"acc": "acc", "acc_bytes": "acc_norm"},
            {
                "metric_list": [
                    {"metric": m, "aggregation": "mean", "higher_is_better": True}
                    for m in ("acc", "acc_norm", "acc_bytes")
                ]
            },
        )
    ],
    "winogrande": [("winogrande/default.yaml", {"acc": "acc"}, {})],
    "truthfulqa": [
        ("truthfulqa/truthfulqa_mc1.yaml", {"acc": "mc1"}, {}),
        ("truthfulqa/truthfulqa_mc2.yaml", {"acc": "mc2"}, {}),
    ],
    "gsm8k": [("gsm8k/gsm8k.yaml", {"exact_match": "generation"}, {"num_fewshot": 0})],
}


def draw(name, folder, rows, seed, target):
    """Write `rows` rows of a benchmark's files, drawn as benchmark_data.load draws them, to a
    folder like it; returns the file.
    """
    records = [record for _, record in benchmark_data.from_files(name, folder)]
    kept = [int(q["id"].split("-")[1]) for q in benchmark_data.load(name, folder, rows, seed)]
    source = benchmark_data.SOURCES[name]
    path = os.path.join(target, source.folder, f"{source.splits[0]}.jsonl")
    os.makedirs(os.path.dirname(path))
    with open(path, "w", encoding="utf-8") as f:
        f.writelines(json.dumps(records[i], ensure_ascii=False) + "\n" for i in kept)
    return path


def harness_task(file, changes, data, work):
    """The harness's task, with `data` in place of its data set and no examples before the
    question.
    """
    import lm_eval
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks._yaml_loader import load_yaml

    config = load_yaml(os.path.join(os.path.dirname(lm_eval.__file__), "tasks", file))
    for key in (
        "tag",
        "training_split",
        "fewshot_split",
        "validation_split",
        "test_split",
        "dataset_name",
        "fewshot_config",
    ):
        config.pop(key, None)
    return ConfigurableTask(
        config={
            **config,
            "dataset_path": "json",
            "test_split": "test",
            "num_fewshot": 0,
            "dataset_kwargs": {"data_files": {"test": data}, "cache_dir": work},
            **changes,
        }
    )


def run_harness(model, name, data, work):
    """({our measure: array}, log-likelihoods of each task's rows, seconds)."""
    from lm_eval import simple_evaluate

    found, likelihoods, seconds = {}, [], 0.0
    for file, measures, changes in TASKS[name]:
        task = harness_task(file, changes, data, work)
        chat = task.OUTPUT_TYPE == "generate_until"
        started = time.perf_counter()
        result = simple_evaluate(model, tasks=[task], log_samples=True, bootstrap_iters=0, apply_chat_template=chat)
        seconds += time.perf_counter() - started
        samples = next(iter(result["samples"].values()))
        samples = sorted(
            (s for s in samples if s.get("filter") in ("none", "flexible-extract")), key=lambda s: s["doc_id"]
        )
        found.update({ours: np.array([s[theirs] for s in samples], float) for theirs, ours in measures.items()})
        likelihoods.append([] if chat else [[float(r[0][0]) for r in s["resps"]] for s in samples])
    return found, likelihoods, seconds


def run_ours(lm, name, folder, rows):
    """The same of this project; log-likelihoods by (context, continuation)."""
    kept = {}

    def in_blocks(way, questions, make):
        if way == "generation" and name != "gsm8k":
            return [{"text": ""} for _ in questions]
        order = [
            i for block in batches_by_length([len(q["question"]) for q in questions], benchmarks.BLOCK) for i in block
        ]
        for start in range(0, len(order), benchmarks.BLOCK):
            kept.update({r["id"]: r for r in make([questions[i] for i in order[start : start + benchmarks.BLOCK]])})
        return [kept[q["id"]] for q in questions]

    started = time.perf_counter()
    questions = benchmark_data.load(name, folder, 0, 0)
    found = benchmarks.evaluate(lm, name, questions, rows, in_blocks)
    seconds = time.perf_counter() - started
    del found["refused"]
    if name != "gsm8k":
        del found["generation"]
    lists = ("mc1", "mc2") if name == "truthfulqa" else (None,)
    values = [
        (
            []
            if name == "gsm8k"
            else [
                [kept[q["id"]]["log_likelihoods"][i] for i in (q[key] if key else range(len(q["pairs"])))]
                for q in questions
            ]
        )
        for key in lists
    ]
    return {measure: np.array(v) for measure, v in found.items()}, values, seconds


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--dir", required=True, help="folder of benchmark files")
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--names", default=",".join(TASKS))
    parser.add_argument(
        "--batch", default="16", help="batch sizes of the harness, with commas between; its fastest counts"
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    command = parser.parse_args(argv)
    from lm_eval.models.huggingface import HFLM

    logging.disable(logging.WARNING)
    torch.set_num_threads(command.threads)
    lm = language_model.load(command.model)
    with tempfile.TemporaryDirectory() as work:
        for name in command.names.split(","):
            folder = os.path.join(work, name)
            data = draw(name, command.dir, command.rows, command.seed, folder)
            ours, mine, seconds = run_ours(lm, name, folder, 64)
            theirs = None
            for batch in map(int, command.batch.split(",")):
                model = HFLM(pretrained=lm.model, tokenizer=lm.tokenizer, batch_size=batch, device="cpu")
                figures, likelihoods, took = run_harness(model, name, data, work)
                theirs = min(filter(None, (theirs, (took, batch, figures, likelihoods))), key=lambda found: found[0])
            took, batch, figures, likelihoods = theirs
            rows = len(next(iter(ours.values())))
            print(
                f"{name}: {rows} rows; ours {rows / seconds:.2f} items/s, the harness {rows / took:.2f} (batch"
                f" {batch}): {took / seconds:.2f} times",
                flush=True,
            )
            for measure, values in ours.items():
                differ = np.flatnonzero(abs(values - figures[measure]) > 1e-3)
                print(
                    f"  {measure}: ours {values.mean():.4f}, the harness {figures[measure].mean():.4f}; {len(differ)}"
                    f" rows differ {differ[:10].tolist()}",
                    flush=True,
                )
            for a, b in zip(mine, likelihoods):
                gaps = [abs(x - y) for one, other in zip(a, b) for x, y in zip(one, other, strict=True)]
                if gaps:
                    print(f"  {len(gaps)} log-likelihoods, largest difference {max(gaps):.2e}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
