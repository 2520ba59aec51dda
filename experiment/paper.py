"""The figures that the paper prints in its Tables 1, 2, 3, 4 and 7, each table with this run's own
row below them.

Shares lie between 0 and 1. Another model on other questions is no like for like: the rows say what
range to expect. Left out: Tables 5 and 6, which are examples of instructions (data/wiki_qa.py has
ours).
"""

from evaluation.honesty import STATES
from evaluation.metrics import mean_interval
from experiment.tables import number, share, table

TABLE_1 = {
    "All": (0.81, 0.77, 0.86),
    "Chinese": (0.77, 0.79, 0.76),
    "English": (0.86, 0.76, 0.98),
}  # accuracy, precision, recall
TABLE_2 = {  # known, unknown, mixed
    "Qwen-chat-14B": (0.827, 0.871, 0.778),
    "Qwen-chat-7B": (0.657, 0.816, 0.611),
    "Llama2-chat-13B": (0.854, 0.854, 0.600),
    "Llama2-chat-7B": (0.789, 0.892, 0.576),
    "Ziya-reader-13B": (0.935, 0.824, 0.645),
}
TABLE_3_COLUMNS = {
    "mmlu": "MMLU",
    "winogrande": "WinoGrande",
    "arc": "ARC",
    "bbh": "BBH",
    "gsm8k": "GSM8K",
    "math": "MATH",
    "ceval": "C-Eval",
    "cmmlu": "CMMLU",
}
TABLE_3 = {  # before and after, in the order of TABLE_3_COLUMNS, the paper's own average last
    "Qwen-chat-14B": (
        (0.642, 0.538, 0.765, 0.345, 0.473, 0.189, 0.650, 0.641, 0.530),
        (0.645, 0.591, 0.872, 0.373, 0.499, 0.203, 0.646, 0.664, 0.562),
    ),
    "Qwen-chat-7B": (
        (0.542, 0.496, 0.631, 0.288, 0.500, 0.126, 0.578, 0.581, 0.468),
        (0.553, 0.522, 0.754, 0.281, 0.509, 0.125, 0.575, 0.560, 0.485),
    ),
    "Llama2-chat-13B": (
        (0.523, 0.519, 0.724, 0.217, 0.352, 0.032, 0.346, 0.345, 0.382),
        (0.528, 0.543, 0.721, 0.234, 0.356, 0.031, 0.343, 0.346, 0.388),
    ),
    "Llama2-chat-7B": (
        (0.459, 0.515, 0.592, 0.233, 0.259, 0.016, 0.321, 0.316, 0.339),
        (0.462, 0.524, 0.611, 0.244, 0.237, 0.020, 0.340, 0.321, 0.345),
    ),
    "Ziya-reader-13B": (
        (0.495, 0.508, 0.647, 0.447, 0.293, 0.043, 0.447, 0.461, 0.417),
        (0.503, 0.519, 0.679, 0.426, 0.332, 0.038, 0.426, 0.451, 0.422),
    ),
}
TABLE_4 = {  # TruthfulQA before and after
    "Qwen-chat-14B": (0.437, 0.491),
    "Qwen-chat-7B": (0.491, 0.503),
    "Llama2-chat-13B": (0.215, 0.209),
    "Llama2-chat-7B": (0.275, 0.283),
    "Ziya-reader-13B": (0.348, 0.379),
}
TABLE_7 = {  # questions in all; shares known, unknown, mixed
    "Qwen-chat-14B": (12799, 0.49, 0.43, 0.08),
    "Qwen-chat-7B": (7201, 0.52, 0.40, 0.08),
    "Llama2-chat-13B": (6600, 0.48, 0.44, 0.08),
    "Llama2-chat-7B": (6680, 0.45, 0.45, 0.10),
    "Ziya-reader-13B": (12558, 0.49, 0.41, 0.10),
}
LANGUAGES = {"zh": "Chinese", "en": "English"}
OURS = "**this run**"


def table_1(agreement):
    """Consistency of labels: the paper's with people, this run's with the given answers
    (dreamcatcher.agreement by language).
    """
    rows = [["paper, against people", name, *map(share, figures), "-"] for name, figures in TABLE_1.items()]
    rows += [
        [
            f"{OURS}, against the given answers",
            LANGUAGES.get(lang, lang),
            *(share(found[key]) for key in ("accuracy", "precision", "recall")),
            number(found["kappa"]),
        ]
        for lang, found in agreement.items()
    ]
    return table(["labels", "language", "accuracy", "precision", "recall", "kappa"], rows)


def reward_accuracy(rows):
    """{"known", "unknown", "mixed", "balanced"} of reward/accuracy.json: a state's pairs together,
    None where it has none.

    balanced is the mean of known and unknown: a rule such as "always prefer the answer" is right on
    all of the one and none of the other.
    """
    found = {}
    for state in STATES:
        pairs = [row for row in rows if row["state"] == state]
        n = sum(row["n"] for row in pairs)
        found[state] = sum(row["n"] * row["accuracy"] for row in pairs) / n if n else None
    both = found["known"] is not None and found["unknown"] is not None
    return {**found, "balanced": (found["known"] + found["unknown"]) / 2 if both else None}


def table_2(rows):
    """Accuracy of the reward model by state; `rows` of reward/accuracy.json."""
    ours = reward_accuracy(rows)
    return table(
        ["reward model of", *STATES, "balanced accuracy"],
        [
            *(
                [model, *map(share, figures), share((figures[0] + figures[1]) / 2)]
                for model, figures in TABLE_2.items()
            ),
            [OURS, *(share(ours[key]) for key in (*STATES, "balanced"))],
        ],
    )


def first_measures(result):
    """(before, after) of a benchmark's first measure, which is the greedy generation that the paper
    reports.
    """
    measure = next(iter(result["before"]))
    return result["before"][measure]["value"], result["after"][measure]["value"]


def table_3(benchmarks):
    """The eight benchmarks before and after, by greedy generation; benchmarks:
    evaluate/benchmarks.json. The average is of all eight or none.
    """
    ours = {name: first_measures(benchmarks[name]) for name in TABLE_3_COLUMNS if name in benchmarks}
    rows = [
        [model if when == 0 else "", ("before", "after")[when], *map(share, figures)]
        for model, both in TABLE_3.items()
        for when, figures in enumerate(both)
    ]
    for when, name in enumerate(("before", "after")):
        figures = [ours[key][when] if key in ours else None for key in TABLE_3_COLUMNS]
        average = None if None in figures else sum(figures) / len(figures)
        rows.append([OURS if when == 0 else "", name, *map(share, figures), share(average)])
    return table(["model", "", *TABLE_3_COLUMNS.values(), "average"], rows)


def table_4(result):
    """TruthfulQA before and after; result: its part of evaluate/benchmarks.json, a row a
    measure.
    """
    return table(
        ["model", "measure", "before", "after"],
        [
            *([model, "generation", *map(share, both)] for model, both in TABLE_4.items()),
            *(
                [OURS, measure, share(before["value"]), share(result["after"][measure]["value"])]
                for measure, before in result["before"].items()
            ),
        ],
    )


def alignment_tax(benchmarks):
    """One line: the mean change over this run's benchmarks, with its 95% interval (Student's t over
    them), beside the paper's.
    """
    changes = [after - before for before, after in map(first_measures, benchmarks.values())]
    mean, low, high = mean_interval(changes)
    interval = f" [{100 * low:+.1f}, {100 * high:+.1f}]" if len(changes) > 1 else ""
    papers = sorted(after[-1] - before[-1] for before, after in TABLE_3.values())
    return (
        f"Alignment tax: over {len(changes)} benchmark{'s' * (len(changes) > 1)} RLKF changed the share of right"
        f" answers (first measure of each) by {100 * mean:+.1f}{interval} points in the mean; in the paper by"
        f" {100 * papers[0]:+.1f} to {100 * papers[-1]:+.1f} over eight."
    )


def table_7(states):
    """The questions that the reward model learns rankings of, by knowledge state; states: {state:
    n}.
    """
    total = sum(states.values())
    return table(
        ["model", "questions", *STATES],
        [
            *([model, n, *(f"{figure:.0%}" for figure in figures)] for model, (n, *figures) in TABLE_7.items()),
            [OURS, total, *(f"{states[state] / max(1, total):.0%} ({states[state]})" for state in STATES)],
        ],
    )
