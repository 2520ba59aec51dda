"""Ablations: variants do only what they do not share, an interrupted one goes on, and the table is
what the files say.
"""

import csv
import json
import os

import numpy as np
import pytest

from data.files import write_json
from experiment import ablate, settings
from experiment.runs import STAGES, Run
from lm.errors import UserError

FAILS = "median labels"  # the variant whose stages say that they cannot be done


class Stages:
    """Stands in for the stages: writes the least that the ablation reads, and keeps what ran
    where.
    """

    def __init__(self):
        self.ran, self.left = [], None

    def functions(self):
        return {stage: self.make(stage) for stage in STAGES}

    def make(self, stage):
        def function(run):
            """A stage."""
            self.ran.append((stage, run.folder))
            if self.left is not None:
                self.left -= 1
                if self.left < 0:
                    raise KeyboardInterrupt
            if run.settings.annotate.rule == "median":
                raise UserError("no question is known")
            if stage == "ppo":
                for step, balanced in ((0, 0.5), (5, 0.91), (10, 0.88)):
                    run.log("ppo", event="validation", step=step, tokens=100 * step, balanced=balanced)
            with run.output(stage) as folder:
                value = 0.9 + 0.01 * run.settings.seed - (0.4 if run.settings.ppo.guidance_share else 0)
                write_json(
                    os.path.join(folder, "honesty.json"),
                    {
                        "sets": {
                            "test": {
                                "rows": [
                                    {"policy": "before", "prompt": "plain", **dict.fromkeys(ablate.MEASURES, 0.0)},
                                    {"policy": "after", "prompt": "plain", **dict.fromkeys(ablate.MEASURES, value)},
                                    {"policy": "after", "prompt": "may_abstain", **dict.fromkeys(ablate.MEASURES, 1.0)},
                                ]
                            }
                        }
                    },
                )

        return function


def start(folder, stages, **given):
    """The ablation of the lab over two seeds."""
    build = lambda more: settings.build("lab", {"seeds": "2", **given, **more})
    run = Run(str(folder), build({}))
    run.open("lab")
    ablate.ablate(run, "lab", build, stages.functions())
    return json.loads((folder / "ablation.json").read_text())


@pytest.fixture
def stages():
    return Stages()


def test_each_variant_runs_only_the_stages_that_it_does_not_share(tmp_path, stages):
    results = start(tmp_path, stages, **{"ppo.kl_coef": "0.1"})
    done = {}
    for stage, folder in stages.ran:
        done.setdefault(os.path.relpath(folder, tmp_path / "ablate"), []).append(stage)
    early, late = ["base", "data", "probe", "annotate", "reward"], ["ppo", "evaluate"]
    assert done["0/full"] == early + late == done["1/full"]
    assert done["0/with-guidance"] == done["0/DPO"] == done["1/separate-critic"] == late
    assert done["0/reward-reads-the-text-alone"] == ["reward", *late]
    assert done["0/without-s_p"] == ["annotate", "reward", *late]
    assert "0/kl_coef-0.1" not in done, "the penalty of the full method: nothing differs"
    assert set(results) == set(ablate.variants(settings.build("lab", {}))) and set(results["full"]) == {"0", "1"}


def test_an_interrupted_ablation_goes_on_where_it_was(tmp_path, stages):
    stages.left = 12
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path, stages)
    stages.left = None
    before = list(stages.ran)
    start(tmp_path, stages)
    again = stages.ran[len(before) :]
    assert again[0] == before[-1] and not set(again) & set(before[:-1])
    count = len(stages.ran)
    start(tmp_path, stages)
    assert all(os.path.basename(folder).startswith("median-labels") for _, folder in stages.ran[count:]), (
        "only what failed is tried again"
    )


def test_the_table_holds_means_intervals_tokens_steps_and_failures(tmp_path, stages):
    start(tmp_path, stages)
    with open(tmp_path / "ablation.csv", newline="") as f:
        rows = {row["variant"]: row for row in csv.DictReader(f)}
    full, half = rows["full"], 12.706 * np.std([0.9, 0.91], ddof=1) / 2**0.5
    assert float(full["truthful"]) == pytest.approx(0.905) and float(full["truthful high"]) == pytest.approx(
        0.905 + half
    )
    assert (full["seeds"], full["tokens"], full["steps to goal"]) == ("2", "1000", "5 5")
    assert rows[FAILS]["seeds"] == "0" and rows[FAILS]["failed"] == "no question is known"
    text = (tmp_path / "ablation.md").read_text()
    assert all(name in text for name in rows) and "no question is known" in text
    assert (tmp_path / "ablation.png").stat().st_size > 10_000


def test_an_interval_of_shares_stays_within_0_and_1():
    seed = lambda share: {**dict.fromkeys(ablate.MEASURES, share), "tokens": 0, "steps to goal": None}
    (row,) = ablate.summary({"full": {"0": seed(1.0), "1": seed(0.8)}})
    assert (row["truthful"], row["truthful low"], row["truthful high"]) == (pytest.approx(0.9), 0.0, 1.0)


def test_variants_are_settings_that_differ_from_the_full_method():
    for preset in ("lab", "smollm2"):
        base = settings.build(preset, {})
        for name, given in ablate.variants(base).items():
            changed = settings.flatten(settings.build(preset, given)) != settings.flatten(base)
            assert changed or name == "full" or given == {"ppo.kl_coef": str(base.ppo.kl_coef)}, name


def test_the_gain_of_a_variant_is_paired_with_the_full_method_seed_by_seed():
    seed = lambda j: {**dict.fromkeys(ablate.MEASURES, 0.5), "J": j, "tokens": 0, "steps to goal": None}
    failed = {"failed": "too few"}
    results = {"full": {0: seed(0.6), 1: seed(0.7), 2: failed}, "DPO": {0: seed(0.5), 1: seed(0.65), 2: seed(0.9)}}
    full, other = ablate.summary(results)
    gains = [0.5 - 0.6, 0.65 - 0.7]
    half = 12.706 * np.std(gains, ddof=1) / 2**0.5
    assert full["J gain"] == 0 and other["J gain"] == pytest.approx(np.mean(gains))
    assert (other["J gain low"], other["J gain high"]) == pytest.approx(
        (np.mean(gains) - half, np.mean(gains) + half), abs=1e-4
    )
