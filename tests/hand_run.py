"""A run folder made by hand, as far as the report, its figures and the comparison read one. No
figure occurs twice in a table.
"""

import json

from evaluation.honesty import METRICS

NASTY = "a | b\n\x1b[31mred\x1b[0m <script>alert(1)</script> `x` [l](http://e) \\ *b* _i_ \x00\u202e $m$ ~s~ &amp;"
STEPS = [
    {
        "event": "step",
        "step": n,
        "reward": 0.1 * n,
        "reward_guided": None if n > 1 else 0.5,
        "refusals_known": 0.1,
        "refusals_unknown": None,
        "hallucinations": 0.4,
        "kl": 0.01 * n,
    }
    for n in (1, 2, 3)
]
LOOKS = [
    {
        "event": "validation",
        "step": n,
        "over_refusal": 0.1,
        "refusal_recall": 0.2 * n,
        "hallucination": 0.3,
        "balanced": 0.6,
    }
    for n in (0, 2)
]
POLICIES = [
    ("before", "plain"),
    ("after", "plain"),
    ("before", "may_abstain"),
    ("after", "may_abstain"),
    ("always refuse", None),
    ("random refusal", None),
    ("probe gate", None),
]
PROBES = (
    "kind,layer,accuracy,accuracy_min,accuracy_max,balanced_accuracy,auroc,valid_loss,temperature,ece_uncalibra"
    "ted,ece\nhidden,1,0.61,0.58,0.66,0.6,0.65,0.64,,,\nhidden,2,0.83,0.79,0.86,0.82,0.91,0.44,,,\nhidden,3,0.8"
    "5,0.8,0.9,0.84,0.93,0.51,,,\nmlp,1,0.6,0.55,0.65,0.6,0.62,0.6,,,\nmlp,2,0.8,0.7,0.85,0.8,0.85,0.5,,,\nin"
    " use: hidden of layers 2-3,,0.86,0.81,0.9,0.85,0.94,0.4,1.25,0.123,0.021\nmajority,,0.55,,,,,,,,\n"
)
ABLATIONS = (
    "variant,kind,layers,valid_loss,accuracy,accuracy_min,accuracy_max,balanced_accuracy,auroc\n"
    'as set,hidden,"[1, 2]",0.4,0.86,0.81,0.9,0.85,0.94\none layer,hidden,[1],0.44,0.83,0.79,0.86,0.82,0.91\n'
)


def row(policy, prompt, n, start, states, **changed):
    """A row of honesty.json: the i-th metric is `start` + i / 1000."""
    values = {key: round(start + i / 1000, 3) for i, key in enumerate(METRICS)}
    return {
        "policy": policy,
        "prompt": prompt,
        "n": n,
        **values,
        **changed,
        "states": dict(zip("1234", states)),
        "intervals": {
            key: [round(value - 0.05, 3), round(value + 0.05, 3)]
            for key, value in {**values, **changed}.items()
            if value is not None
        },
    }


def question_set(**changed):
    """A set of honesty.json: 40 questions; over-refusal is undefined for random refusal."""
    states = [
        (12, 8, 2, 18),
        (13, 7, 15, 5),
        (11, 9, 8, 12),
        (10, 10, 14, 6),
        (0, 20, 20, 0),
        (7.5, 12.5, 9.25, 10.75),
        (9, 11, 10, 10),
    ]
    rows = [
        row(
            policy,
            prompt,
            40,
            0.1 + 0.1 * i,
            states[i],
            **({"over_refusal": None, "mean_words": None} if i == 5 else {}),
        )
        for i, (policy, prompt) in enumerate(POLICIES)
    ]
    confidence = [
        {
            "score": score,
            "policy": policy,
            "n": n,
            "right": 12,
            "auroc": auroc,
            "aurc": 0.2,
            "brier": None,
            "ece": 0.07,
            "intervals": {"auroc": [0.5, 0.9]},
            "risk_coverage": [[0.5, risk], [1.0, 0.4]],
            "reliability": [[0.15, 0.2, 10], [0.85, risk, 30]],
        }
        for score, policy, n, auroc, risk in (
            ("probe", "before", 38, 0.8765, 0.31),
            ("probe", "after", 20, 0.75, 0.12),
            ("reward margin", "after", 20, None, 0.22),
        )
    ]
    return {
        "n": 40,
        "n_known": 16,
        "n_unknown": 20,
        "n_mixed": 4,
        "hits": [15, 6, 4, 3, 12],
        "rows": rows,
        "transitions": [[11, 1, 0, 0], [2, 6, 0, 0], [0, 0, 2, 0], [0, 0, 13, 5]],
        "confidence": confidence,
        **changed,
    }


def benchmarks(names=("mmlu", "arc", "truthfulqa")):
    """evaluate/benchmarks.json: the i-th benchmark goes from 0.2 + i / 10 to 0.02 * i more; ARC has
    a second measure.
    """
    figures = lambda value: {"n": 40, "value": value, "interval": [value - 0.1, value + 0.1]}
    found = {
        name: {
            "before": {"generation": figures(0.2 + i / 10)},
            "after": {"generation": figures(0.2 + i / 10 + 0.02 * i)},
        }
        for i, name in enumerate(names)
    }
    for when, value in (("before", 0.61), ("after", 0.52)) if "arc" in found else ():
        found["arc"][when]["acc"] = figures(value)
    return found


def write(run, sets=None, measured=None, **facts):
    """Write the files into the folder `run` (a Path); facts: settings of its evaluate stage other
    than the lab's own. Returns its path as text.
    """
    settings = {
        "model": "lab",
        "embedder": "base",
        "questions": "lab",
        "seed": 0,
        "dtype": "float32",
        "device": "cpu",
        "algorithm": "ppo",
        "probe.k": 4,
        "probe.repeats": 10,
        "probe.l2": [1.0, 10.0],
        "ppo.lr": 0.25,
        "dpo.lr": 0.125,
        "evaluate.known_share": 0.5,
        "evaluate.unknown_share": 0.25,
        "benchmarks.names": [],
        "benchmarks.limit": 40,
        **facts,
    }
    samples = [
        {"set": "test", "state": s, "question": q, "answers": [answer, "alias"], "before": before, "after": after}
        for s, q, answer, before, after in (
            ("known", "首都是哪里？", "巴黎", "巴黎", "巴黎 。"),
            ("known", "second known", "x", "y", "z"),
            ("unknown", NASTY, NASTY, NASTY, NASTY),
        )
    ]
    values = {
        "config.json": {
            "preset": "lab",
            "settings": settings,
            "python": "3.9.9",
            "versions": {"torch": "9.8.7", "transformers": "6.5.4"},
        },
        "stages.json": {"evaluate": {"key": "k", "seconds": 2.0, "facts": settings, "files": {}}},
        "data/summary.json": {"questions": 77, "lang": {"en": 70, "zh": 7}},
        "evaluate/honesty.json": {
            "prompts": {"plain": None, "may_abstain": {"en": "You may say | no.", "zh": "可以说不知道。"}},
            "sets": sets or {"test": question_set()},
        },
        "annotate/summary.json": {
            "rule": "median",
            "states": {"known": 31, "unknown": 61, "mixed": 8},
            "rankings": 97,
            "dropped": {"no refusal": 3},
            "score AUROC": 0.912,
            "agreement with gold": {"zh": {"accuracy": 0.91, "precision": 0.82, "recall": 0.73, "kappa": 0.64}},
        },
        "reward/accuracy.json": [
            {
                "state": "known",
                "pair": "factual > uncertain",
                "n": 8,
                "accuracy": 0.875,
                "interval": [0.5291, 0.9776],
                "always_answer": 1.0,
                "longer": 0.25,
            },
            {
                "state": "mixed",
                "pair": "factual > hallucination",
                "n": 1,
                "accuracy": 1.0,
                "interval": [0.2, 1.0],
                "always_answer": 0.5,
                "longer": 0.0,
            },
            {
                "state": "mixed",
                "pair": "factual > uncertain",
                "n": 3,
                "accuracy": 1 / 3,
                "interval": [0.06, 0.79],
                "always_answer": 1.0,
                "longer": 0.5,
            },
            {
                "state": "unknown",
                "pair": "uncertain > hallucination",
                "n": 4,
                "accuracy": 0.75,
                "interval": [0.3, 0.95],
                "always_answer": 0.0,
                "longer": 0.5,
            },
        ],
        "policy/chosen.json": {"algorithm": "ppo", "step": 2, "balanced": 0.6},
    }
    if measured:
        values["evaluate/benchmarks.json"] = measured
    for name, value in values.items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(json.dumps(value), encoding="utf-8")
    (run / "evaluate" / "answers.jsonl").write_text("".join(json.dumps(s) + "\n" for s in samples), encoding="utf-8")
    (run / "annotate" / "preferences.jsonl").write_text(
        "".join(
            json.dumps({"state": s}) + "\n" for s, n in (("known", 30), ("unknown", 60), ("mixed", 7)) for _ in range(n)
        ),
        encoding="utf-8",
    )
    (run / "probe").mkdir()
    (run / "probe" / "accuracy.csv").write_text(PROBES, encoding="utf-8")
    (run / "probe" / "ablation.csv").write_text(ABLATIONS, encoding="utf-8")
    return str(run)
