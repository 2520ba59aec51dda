"""The parts of the report on what came before the policy, and on the benchmarks."""

from evaluation import benchmarks as benchmark_module
from evaluation.honesty import STATES
from experiment import paper
from experiment.tables import definitions, escape, number, share, table


def labels_section(summary, rankings):
    """Parts on DreamCatcher's labels, Table 1, and on the rankings made of them, Table 7."""
    gold = (
        " Under the rule gold a label *is* the match with the given answers, so that they agree by construction."
        if summary["rule"] == "gold"
        else ""
    )
    true = summary.get("agreement with the true states")
    return [
        "## Labels (Tables 1 and 7)",
        f"Training questions labelled by the rule {summary['rule']}: "
        + ", ".join(f"{n} {state}" for state, n in summary["states"].items())
        + f"; {len(rankings)} rankings"
        + "".join(f"; {n} questions dropped: {escape(why)}" for why, n in summary["dropped"].items())
        + f". The factuality score tells right from wrong generations at AUROC {number(summary['score AUROC'])}."
        + (f" The states are the true ones of {share(true)} of the questions." if true is not None else ""),
        paper.table_7({state: sum(record["state"] == state for record in rankings) for state in STATES}),
        (
            f"Are the labels of single answers right?{gold} Against people: "
            "`python dreamcatcher.py --questions FILE --generations FILE --embedder FOLDER --human FILE --out FILE`."
        ),
        paper.table_1(summary["agreement with gold"]),
    ]


def reward_section(rows):
    """Parts on the reward model: Table 2 beside the paper's, then each pair with its baselines."""
    return [
        "## Reward model (Table 2)",
        "Accuracy on the pairs of subjects held out from its training:",
        paper.table_2(rows),
        "The same by pair, with binomial intervals (Wilson) and baselines:",
        table(
            ["state", "pair", "n", "accuracy", "always answer", "longer"],
            [
                [
                    r["state"],
                    r["pair"],
                    r["n"],
                    share(r["accuracy"], r["interval"]),
                    share(r["always_answer"]),
                    share(r["longer"]),
                ]
                for r in rows
            ],
        ),
    ]


def benchmark_section(measured, settings):
    """Parts on the benchmarks: Tables 3 and 4 beside the paper's, then every measure; measured: {}
    where the run has none.
    """
    missing = (
        "{} left out: this run measured no {}; the same command with `--benchmarks.names {}` measures all that is named"
        " and writes this report again."
    )
    if not measured:
        return [
            "## Tables 3 and 4",
            missing.format("They are", "benchmarks", ",".join([*paper.TABLE_3_COLUMNS, "truthfulqa"])),
        ]
    rows = [
        [name, measure, before["n"], *(share(r["value"], r["interval"]) for r in (before, result["after"][measure]))]
        for name, result in measured.items()
        for measure, before in result["before"].items()
    ]
    drawn = (
        f"{settings['benchmarks.limit']} questions of each, drawn with seed {settings['seed']}"
        if settings["benchmarks.limit"]
        else "all questions"
    )
    return [
        "## Benchmarks (Tables 3 and 4)",
        (
            f"Zero-shot, {drawn}; generation is greedy, with the chat template; log-likelihoods are taken without it."
            " In Table 3 all figures are of generation."
        ),
        (
            paper.table_3(measured)
            if measured.keys() & paper.TABLE_3_COLUMNS.keys()
            else missing.format("Table 3 is", "such benchmark", ",".join([*measured, "mmlu"]))
        ),
        (
            paper.table_4(measured["truthfulqa"])
            if "truthfulqa" in measured
            else missing.format("Table 4 is", "TruthfulQA", ",".join([*measured, "truthfulqa"]))
        ),
        paper.alignment_tax(measured),
        "Every measure:",
        table(["benchmark", "measure", "n", "before", "after"], rows),
        *definitions(benchmark_module.MEASURES),
    ]


def probe_section(rows, ablations, settings):
    """Parts on the probes: the best single layer of each kind by validation, the probe in use, the
    controls, the ablations.
    """
    kinds = dict.fromkeys(r["kind"] for r in rows)
    best = [
        min((r for r in rows if r["kind"] == kind), key=lambda r: float(r["valid_loss"] or "inf")) for kind in kinds
    ]
    columns = {
        "accuracy": "accuracy",
        "min": "accuracy_min",
        "max": "accuracy_max",
        "balanced accuracy": "balanced_accuracy",
        "AUROC": "auroc",
        "validation loss": "valid_loss",
    }
    calibration = "".join(
        f" Calibration error {number(r['ece'])} after dividing the logits of the probe in use by"
        f" {number(r['temperature'])}, {number(r['ece_uncalibrated'])} before."
        for r in rows
        if r.get("ece")
    )
    return [
        "## Probing (section 3.2)",
        (
            "Linear probes of the model's states at the question's last token; layer, kind and L2 are chosen by the"
            f" log loss on validation subjects, each figure is the mean over {settings['probe.repeats']} random splits"
            f" of the training subjects.{calibration}"
        ),
        table(
            ["representation", "layer", *columns],
            [[escape(r["kind"]), r["layer"] or "-", *(number(r.get(key)) for key in columns.values())] for r in best],
        ),
        *(
            ["One thing changed at a time, chosen and tested in the same way:", ablation_table(ablations)]
            if ablations
            else []
        ),
    ]


def ablation_table(rows):
    """One line a variant of the probe."""
    return table(
        ["probe", "kind", "validation loss", "accuracy", "balanced accuracy", "AUROC"],
        [
            [
                r["variant"],
                r["kind"],
                *(number(r[key]) for key in ("valid_loss", "accuracy", "balanced_accuracy", "auroc")),
            ]
            for r in rows
        ],
    )
