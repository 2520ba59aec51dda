"""One PPO update beside TRL's PPOTrainer: samples a second and peak memory, the same model,
prompts, lengths and type.

    python tests/bench/bench_ppo.py --model MODEL --trl-python PYTHON [--epochs 4] [--dtype TYPE]

PYTHON is an interpreter of an environment of its own with this project's requirements and
trl==1.12.0, the last release with a PPOTrainer. Both sides answer 32 questions with 24 new tokens
each, hold a reference model and a reward model, and pass over the batch in micro-batches of 8; TRL
holds a critic of its own besides, which it cannot do without. The second of two updates is timed,
each side in a process of its own, one after the other.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time

import torch

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", ".."))
import ppo
import reward
from data import facts
from lm import model as language_model
from lm.chat import chat_prompt
from lm.sampling import Sampling

PROMPTS, NEW_TOKENS, ROWS = 32, 24, 8


def questions(lm, count):
    """Prompt ids of the project's own questions."""
    return [chat_prompt(lm, q["question"]) for q in facts.questions("en", 0)[:count]]


def ours(model, dtype, epochs):
    """Seconds of the second of two updates."""
    policy, reference = (language_model.load(model, dtype=dtype) for _ in range(2))
    scorer = reward.load(model, policy.tokenizer, dtype, seed=0)
    tasks = [
        {
            "id": f"q{i}",
            "prompt": p,
            "preferred": [policy.end_id],
            "state": "known",
            "answers": ["x"],
            "question": "",
            "p_known": 0.5,
        }
        for i, p in enumerate(questions(policy, 2 * PROMPTS))
    ]
    score = lambda tasks, responses: reward.normalised(
        scorer, [t["prompt"] for t in tasks], responses, [0.5] * len(tasks), PROMPTS
    )
    config = ppo.PPOConfig(steps=2, batch=PROMPTS, epochs=epochs, micro_rows=ROWS, kl_coef=0.05, guidance_share=0.0)
    head = ppo.new_value_head(policy)
    loop = ppo.optimise(
        policy,
        head,
        ppo.new_optimizer(policy, head, config),
        score,
        reference,
        tasks,
        config,
        Sampling(max_new_tokens=NEW_TOKENS, rows=PROMPTS),
        0,
        {"step": 0, "kl_coef": 0.05},
    )
    next(loop)
    started = time.perf_counter()
    next(loop)
    return time.perf_counter() - started


def theirs(model, dtype, epochs):
    """The same by TRL."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer, TrainerCallback
    from trl.experimental.ppo import PPOConfig, PPOTrainer

    ends = []

    class Clock(TrainerCallback):
        def on_step_end(self, *args, **options):
            ends.append(time.perf_counter())

    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    data = Dataset.from_dict({"input_ids": questions(language_model.load(model), 2 * PROMPTS)})
    policy, reference = (AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32) for _ in range(2))
    scorer, critic = (
        AutoModelForSequenceClassification.from_pretrained(model, num_labels=1, dtype=torch.float32) for _ in range(2)
    )
    for classifier in (scorer, critic):
        classifier.config.pad_token_id = tokenizer.pad_token_id
    with tempfile.TemporaryDirectory() as folder:
        trainer = PPOTrainer(
            PPOConfig(
                output_dir=folder,
                per_device_train_batch_size=ROWS,
                gradient_accumulation_steps=PROMPTS // ROWS,
                num_mini_batches=1,
                total_episodes=2 * PROMPTS,
                local_rollout_forward_batch_size=ROWS,
                num_sample_generations=0,
                response_length=NEW_TOKENS,
                stop_token="eos",
                temperature=1.0,
                num_ppo_epochs=epochs,
                kl_coef=0.05,
                bf16=dtype == torch.bfloat16,
                use_cpu=True,
                report_to="none",
                save_strategy="no",
                gradient_checkpointing=False,
                logging_steps=1000,
            ),
            tokenizer,
            policy,
            reference,
            scorer,
            data,
            critic,
            eval_dataset=data,
            callbacks=[Clock()],
        )
        trainer.train()
    return ends[1] - ends[0]


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--trl-python", required=True)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--side", choices=("ours", "trl"), help=argparse.SUPPRESS)
    command = parser.parse_args(argv)
    if command.side:
        side = {"ours": ours, "trl": theirs}[command.side]
        seconds = side(command.model, getattr(torch, command.dtype), command.epochs)
        print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)
        return
    found = {}
    for side, python in (("trl", command.trl_python), ("ours", sys.executable)):
        done = subprocess.run([python, __file__, *argv, "--side", side], stdout=subprocess.PIPE, check=True, text=True)
        found[side] = seconds, peak = [float(word) for word in done.stdout.split()[-2:]]
        print(
            f"{side:5} {seconds:6.1f} s an update, {PROMPTS / seconds:5.2f} samples/s, peak {peak:.2f} GB", flush=True
        )
    print(
        f"ours / trl: {found['trl'][0] / found['ours'][0]:.2f} times the samples/s at"
        f" {found['ours'][1] / found['trl'][1]:.2f} times the peak memory"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
