"""Ablations: one thing changed at a time, over several seeds, in one table and one picture.

Each variant is a run of its own under runs/NAME/ablate/SEED/VARIANT that begins with what it shares
with the full run of its seed: stages whose settings are the same are linked, not done again. So an
interrupted ablation goes on where it was, and a variant that differs in PPO alone costs PPO alone.
Left out: two changes at a time, a search for each variant's best learning rate.
"""

import math
import os
import re
import shutil

from data.files import read_json, whole_folder, write_json
from evaluation.honesty import METRICS, find_row
from evaluation.metrics import mean_interval
from experiment import figures, figures_runs
from experiment.progress import say
from experiment.runs import Run
from experiment.tables import number, share, table, write_csv, write_text
from lm.errors import UserError

MEASURES = ("J", "truthful", "known_accuracy", "refusal_recall", "over_refusal")
GOAL = 0.8  # of `balanced` on the validation questions: how many steps until it is reached


def variants(settings):
    """{variant: {"section.field": text}} beside the settings of the full method."""
    config = settings.ppo
    guided = {"without guidance": {"ppo.guidance_share": "0"}, "with guidance": {"ppo.guidance_share": "0.5"}}
    guidance = "without guidance" if config.guidance_share else "with guidance"
    found = {
        "full": {},
        guidance: guided[guidance],
        "DPO": {"algorithm": "dpo"},
        "rejection sampling": {"algorithm": "rejection"},
        "SFT": {"algorithm": "sft", "sft.steps": str(max(settings.sft.steps, settings.ppo.steps))},
    }
    for coef in ("0", "0.001", "0.01", "0.1"):
        found[f"kl_coef {coef}"] = {"ppo.kl_coef": coef}
    found["separate critic"] = {"ppo.critic": "reward", "ppo.value_lr": str(settings.ppo.lr)}
    found["reward reads the text alone" if settings.reward.reads != "text" else "P(known) in the reward model"] = {
        "reward.reads": "text" if settings.reward.reads != "text" else "p_known"
    }
    if config.samples > 1:
        alone = {"ppo.samples": "1", "ppo.baseline": "value", "ppo.batch": str(config.batch * config.samples)}
        found["one sample a prompt, with a critic"] = alone
    if config.frozen:
        found["all layers trained"] = {"ppo.frozen": "0"}
    if settings.annotate.refusal == "random":
        found["one typical wording of refusals"] = {"annotate.refusal": "typical"}
    found["without s_p"] = {"annotate.scores": "s_s2g,s_o2a,s_s2a", "annotate.s_p_weight": "0"}
    found["median labels"] = {"annotate.rule": "median"}
    found["median labels, without s_p"] = {"annotate.rule": "median", "annotate.scores": "s_s2g,s_o2a,s_s2a"}
    found["without uncertain generations"] = {"annotate.uncertain_k": "0"}
    found["shuffled states (control)"] = {"annotate.shuffle_states": "true"}
    return found


def share_stages(run, source):
    """Link into `run` the whole stages of `source` (an earlier Run) whose settings are the same, up
    to the first that differs.
    """
    for stage in run.stages[:-1]:
        if run.is_done(stage):
            continue
        if not source.is_done(stage) or source.key(stage) != run.key(stage):
            return
        with whole_folder(run.stage_path(stage)) as part:
            shutil.copytree(source.stage_path(stage), part, copy_function=os.link, dirs_exist_ok=True)
        run.adopt(stage, source)


def result(run):
    """What the table holds of one finished run: test measures, validation by generated tokens,
    steps to GOAL.
    """
    looks = sorted(
        (line for line in run.logged("ppo") if line.get("event") == "validation"), key=lambda line: line["step"]
    )
    after = find_row(read_json(run.path("evaluate", "honesty.json"))["sets"]["test"], "after")
    return {
        **{name: math.nan if after[name] is None else after[name] for name in MEASURES},
        "tokens": looks[-1]["tokens"],
        "steps to goal": next((line["step"] for line in looks if line["balanced"] >= GOAL), None),
        "curve": [[line["tokens"], line["balanced"]] for line in looks],
    }


def ablate(main_run, preset, build, functions):
    """Do all variants over all seeds that are not done yet; write ablation.{json,csv,md,png} in the
    run's folder as they come in.

    build({"section.field": text}) gives settings; functions: {stage: function of a Run}. A variant
    that cannot be done (UserError, not finite) stands in the table with its reason.
    """
    settings, results, plan = main_run.settings, {}, variants(main_run.settings)
    for seed in range(settings.seed, settings.seed + settings.seeds):
        source = main_run
        for name, given in plan.items():
            run = Run(
                main_run.path("ablate", str(seed), re.sub(r"[^\w.]+", "-", name).strip("-")),
                build({**given, "seed": str(seed)}),
            )
            run.open(preset)
            share_stages(run, source)
            say(f"ablation, seed {seed}: {name}")
            try:
                run.do(run.stages[:-1], functions)
                results.setdefault(name, {})[seed] = result(run)
            except (UserError, FloatingPointError) as error:
                results.setdefault(name, {})[seed] = {"failed": " ".join(str(error).split())}
            source = run if name == "full" else source
            write(main_run.folder, results)
        draw(main_run.folder, results)
    say(markdown(results))


# ---------------------------------------------------------------------------------------- the table


def summary(results):
    """One row a variant: mean and 95% interval (t, kept within 0 and 1) over the seeds of each
    measure. results: {variant: {seed: result()}}.
    """
    rows = []
    for name, by_seed in results.items():
        done = [r for r in by_seed.values() if "failed" not in r]
        row = {
            "variant": name,
            "seeds": len(done),
            "failed": "; ".join(sorted({r["failed"] for r in by_seed.values() if "failed" in r})),
        }
        for key in MEASURES if done else ():
            row[key], low, high = mean_interval([r[key] for r in done])
            row[f"{key} low"], row[f"{key} high"] = max(0.0, low), min(1.0, high)
        gains = [r["J"] - results["full"][seed]["J"] for seed, r in by_seed.items() if paired(results, seed, r)]
        if gains:
            row["J gain"], row["J gain low"], row["J gain high"] = mean_interval(gains)
        if done:
            row["tokens"] = round(sum(r["tokens"] for r in done) / len(done))
            row["steps to goal"] = " ".join(
                "-" if r["steps to goal"] is None else str(r["steps to goal"]) for r in done
            )
        rows.append(row)
    return rows


def paired(results, seed, found):
    """True where this seed was done by the variant and by the full method."""
    return "failed" not in found and "failed" not in results["full"].get(seed, {"failed": ""})


def markdown(results):
    """The table of the report."""
    names = [METRICS[key][0] for key in MEASURES]

    def cell(row, key):
        return (
            share(row[key], (row[f"{key} low"], row[f"{key} high"]) if row["seeds"] > 1 else None)
            if key in row
            else "-"
        )

    return table(
        [
            "variant",
            "seeds",
            *names,
            "J less that of full, paired",
            "tokens generated",
            f"steps to {GOAL:.0%} on validation",
        ],
        [
            [
                row["variant"],
                row["seeds"],
                *(cell(row, key) for key in MEASURES),
                number(row["J gain"], 3, (row["J gain low"], row["J gain high"])) if "J gain" in row else "-",
                row.get("tokens", "-"),
                row.get("steps to goal", row["failed"]),
            ]
            for row in summary(results)
        ],
    )


def write(folder, results):
    """ablation.json (everything), .csv (means and intervals) and .md (the table)."""
    write_json(os.path.join(folder, "ablation.json"), results)
    write_csv(os.path.join(folder, "ablation.csv"), summary(results))
    write_text(os.path.join(folder, "ablation.md"), f"{markdown(results)}\n")


def draw(folder, results):
    """ablation.png, once a seed: it takes longer than the tables."""
    if figures.available():
        curves = {name: [r["curve"] for r in by_seed.values() if "curve" in r] for name, by_seed in results.items()}
        figures.save(figures_runs.draw_ablation(summary(results), curves), os.path.join(folder, "ablation.png"))
