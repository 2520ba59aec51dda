"""Settings: every field is one, presets hold what the paper says, and a mistake on the command line
gets one plain line.
"""

import dataclasses
import re

import pytest
import torch

import data.endpoint
import data.wiki_qa
import data.world
import dreamcatcher
import ppo
import probe
import reward
from baselines import dpo, sft
from evaluation import benchmarks, honesty
from experiment import command_line, settings
from lm import optim
from lm.errors import UserError
from lm.sampling import Sampling

SECTIONS = {
    "world": data.world.WorldConfig,
    "qa": data.wiki_qa.QAConfig,
    "endpoint": data.endpoint.EndpointConfig,
    "sampling": Sampling,
    "probe": probe.ProbeConfig,
    "annotate": dreamcatcher.AnnotateConfig,
    "reward": reward.RewardConfig,
    "sft": sft.SFTConfig,
    "ppo": ppo.PPOConfig,
    "dpo": dpo.DPOConfig,
    "rejection": dpo.RejectionConfig,
    "evaluate": honesty.EvaluateConfig,
    "benchmarks": benchmarks.BenchmarkConfig,
}
STAGES = ("base", "data", "probe", "annotate", "reward", "ppo", "evaluate", "report")


def complaint(function, *arguments):
    """The one line of the UserError that is raised."""
    with pytest.raises(UserError) as caught:
        function(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def parse(*argv):
    return command_line.parse_command_line(argv, "what it is", STAGES)


# ------------------------------------------------------------------------------------ the catalogue


def test_every_field_of_every_module_is_a_setting_with_help():
    wanted = {
        f"{section}.{field.name}": (field.type, field.default)
        for section, cls in SECTIONS.items()
        for field in dataclasses.fields(cls)
    }
    wanted.update(
        {
            field.name: (field.type, field.default)
            for field in dataclasses.fields(settings.Settings)
            if field.name not in SECTIONS
        }
    )
    found = settings.catalogue()
    assert {name: (kind, default) for name, (kind, default, _) in found.items()} == wanted
    assert [name for name, (_, _, text) in found.items() if not text.strip()] == []
    assert all(kind in (int, float, str, bool, tuple) for kind, _, _ in found.values())


def test_help_is_the_comment_behind_the_field():
    found = settings.catalogue()
    assert found["reward.lr"][2] == "peak learning rate (paper: 5e-6)"
    assert found["ppo.kl_coef"][2].startswith("KL to the reference")
    assert found["seed"][2].startswith("one number")


def test_help_text_has_a_line_for_each_setting():
    lines = command_line.help_text().splitlines()
    assert [re.match(r"  --(\S+) ", line)[1] for line in lines] == list(settings.catalogue())


# ----------------------------------------------------------------------------------------- building


def test_values_of_every_type_are_read():
    built = settings.build(
        "lab",
        {
            "ppo.steps": "3",
            "reward.lr": "2.5e-4",
            "model": "some/folder",
            "questions": "mine.jsonl",
            "annotate.borrow": "False",
            "annotate.scores": "s_p, s_o2a",
            "probe.l2": "1,2.5,1e3",
            "seed": "7",
            "dtype": "bfloat16",
            "annotate.rule": "median",
        },
    )
    assert (built.ppo.steps, built.reward.lr, built.model, built.questions, built.annotate.borrow) == (
        3,
        2.5e-4,
        "some/folder",
        "mine.jsonl",
        False,
    )
    assert (built.annotate.scores, built.probe.l2, built.seed, built.dtype) == (
        ("s_p", "s_o2a"),
        (1.0, 2.5, 1000.0),
        7,
        "bfloat16",
    )
    assert built.annotate.rule == "median" and type(built.ppo.steps) is int
    assert settings.build("lab", {"annotate.borrow": "true"}).annotate.borrow is True


def test_the_command_line_outweighs_the_preset_and_the_preset_the_default():
    assert (
        settings.build("lab", {}).ppo.steps == settings.PRESETS["lab"]["ppo.steps"] == 60
        and ppo.PPOConfig().steps == 200
    )
    assert settings.build("lab", {"ppo.steps": "3"}).ppo.steps == 3
    assert settings.build("lab", {}).ppo.steps == 60, "one call leaves nothing behind for the next"


def test_presets_set_what_exists_to_values_of_its_type():
    found = settings.catalogue()
    for preset, values in settings.PRESETS.items():
        built = settings.flatten(settings.build(preset, {}))
        assert set(built) == set(found)
        for name, value in values.items():
            assert type(value) is found[name][0], f"{preset}: {name}"
            assert built[name] == value
            assert name not in settings.CHOICES or value in settings.CHOICES[name]


@pytest.mark.parametrize(
    "preset, reward_batch, ppo_batch, model", [("paper-7b", 64, 64, "7b"), ("paper-13b", 16, 32, "13b")]
)
def test_the_paper_presets_hold_appendix_a4(preset, reward_batch, ppo_batch, model):
    built = settings.build(preset, {})
    assert (built.reward.lr, built.reward.warmup, built.reward.epochs, built.reward.batch) == (
        5e-6,
        0.01,
        1,
        reward_batch,
    )
    assert (built.ppo.lr, built.ppo.batch, built.ppo.kl_coef) == (1e-6, ppo_batch, 0.0)
    assert built.reward.general == 1.0, "as much general data as factual"
    assert built.sft.steps == 0 and built.ppo.guidance_share > 0, "guidance, and no warm-up"
    assert (
        built.probe.k == 5
        and built.annotate.rule == "median"
        and (built.probe.rule, built.probe.upper, built.probe.lower) == ("percentile", 65, 35)
    )
    assert built.annotate.scores == ("s_s2g", "s_p", "s_o2a", "s_s2a") and built.probe.repeats == 10
    assert model in built.model and "bge-large" in built.embedder
    defaults = optim.adamw([{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": 1.0}]).defaults
    assert (defaults["betas"], defaults["eps"]) == ((0.9, 0.99), 1e-5)


def test_flatten_names_everything_once():
    flat = settings.flatten(settings.build("lab", {"reward.lr": "0.5"}))
    assert set(flat) == set(settings.catalogue()) and flat["reward.lr"] == 0.5 and flat["model"] == "lab"


# ----------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    "preset, given, words",
    [
        ("smolm2", {}, ("'smolm2'", "did you mean smollm2?", "paper-7b")),
        ("lab", {"ppo.step": "3"}, ("--ppo.step", "did you mean ppo.steps?")),
        ("lab", {"annotate.rule": "medain"}, ("--annotate.rule", "did you mean median?", "percentile")),
        ("lab", {"dtype": "float16"}, ("--dtype", "float32, bfloat16", "'float16'")),
        ("lab", {"xyzzy": "1"}, ("--xyzzy", "no such setting")),
    ],
)
def test_a_wrong_name_is_answered_with_the_nearest_right_one(preset, given, words):
    message = complaint(settings.build, preset, given)
    assert all(word in message for word in words), message


def test_nothing_is_suggested_where_nothing_is_near():
    assert "did you mean" not in complaint(settings.build, "lab", {"xyzzy": "1"})


@pytest.mark.parametrize(
    "name, text",
    [
        ("ppo.steps", "0"),
        ("ppo.steps", "-5"),
        ("ppo.steps", "many"),
        ("ppo.steps", "1.5"),
        ("ppo.steps", ""),
        ("reward.batch", "0"),
        ("reward.lr", "0"),
        ("reward.lr", "-1e-5"),
        ("reward.lr", "nan"),
        ("reward.lr", "inf"),
        ("reward.lr", "fast"),
        ("sampling.top_p", "0"),
        ("sampling.top_p", "1.5"),
        ("ppo.guidance_share", "1.1"),
        ("probe.valid", "-0.1"),
        ("ppo.kl_coef", "nan"),
        ("annotate.borrow", "maybe"),
        ("annotate.scores", "s_x"),
        ("annotate.scores", "s_p,s_x"),
        ("annotate.scores", ""),
        ("annotate.rule", "mean"),
        ("probe.rule", "median"),
        ("sampling.temperature", "0"),
        ("probe.k", "0"),
    ],
)
def test_a_value_that_makes_no_sense_is_named(name, text):
    message = complaint(settings.build, "lab", {name: text})
    assert message.startswith(f"--{name}: expected ")


@pytest.mark.parametrize(
    "name, text",
    [
        ("probe.l2", "strong"),
        ("probe.l2", ""),
        ("probe.l2", "1,-1"),
        ("seed", "-1"),
        ("sampling.top_k", "-1"),
        ("probe.upper", "101"),
        ("probe.lower", "-1"),
        ("world.values", "0"),
        ("world.train_people", "1"),
        ("world.heads", "0"),
        ("world.warmup", "2"),
        ("world.adam_lr", "0"),
        ("world.value_power", "-1"),
        ("world.first_names", "61"),
        ("world.hidden", "66"),
        ("ppo.kl_coef", "-0.1"),
        ("sft.steps", "-1"),
        ("evaluate.samples_shown", "-1"),
    ],
)
def test_a_value_that_a_later_stage_would_fail_on_is_named_at_once(name, text):
    assert complaint(settings.build, "lab", {name: text}).startswith(f"--{name}: expected ")


@pytest.mark.parametrize("given", [{"model": "some/folder"}, {"questions": "facts-en"}])
def test_the_lab_has_its_own_model_and_its_own_questions(given):
    assert "--model" in complaint(settings.build, "lab", given)


# --------------------------------------------------------------------------------- the command line


def test_a_command_line_in_both_forms():
    command = parse(
        "--reward.lr",
        "1e-4",
        "--stage",
        "ppo",
        "--seed=3",
        "--preset=smollm2",
        "--run",
        "my run-1.b",
        "--list",
        "--model=/a=b",
        "--ppo.kl_coef",
        "-0.5",
    )
    assert (command.stage, command.preset, command.run, command.list) == ("ppo", "smollm2", "my run-1.b", True)
    assert command.given == {"reward.lr": "1e-4", "seed": "3", "model": "/a=b", "ppo.kl_coef": "-0.5"}


def test_an_empty_command_line_runs_all_of_the_lab():
    command = parse()
    assert (command.stage, command.preset, command.run, command.runs, command.list, command.given) == (
        "all",
        "lab",
        None,
        None,
        False,
        {},
    )


def test_several_runs_are_named_behind_one_word():
    assert parse("--runs", "a", "runs/b", "--stage", "report").runs == ["a", "runs/b"]


@pytest.mark.parametrize(
    "argv, words",
    [
        (["--stage", "rewrad"], ("'rewrad'", "did you mean reward?", "annotate")),
        (["--stage"], ("--stage", "argument")),
        (["--reward.lr"], ("--reward.lr", "expected a value")),
        (["--ppo.step", "3"], ("--ppo.step", "did you mean ppo.steps?")),
        (["--stge", "ppo"], ("--stge", "did you mean stage?")),
        (["ppo"], ("'ppo'", "--name value")),
        (["--seed", "3", "extra"], ("'extra'",)),
        (["-seed", "3"], ("'-seed'",)),
        (["--run", "../elsewhere"], ("--run", "'../elsewhere'")),
        (["--run", ""], ("--run",)),
        (["--run", "a/b"], ("--run",)),
        (["--runs", "a"], ("--runs", "--stage report")),
        (["--stage", "report", "--runs"], ("--runs",)),
        (["--stage", "report", "--runs", "a", "--seed", "3"], ("--runs", "--seed")),
        (["--stage", "report", "--runs", "a", "--list"], ("--runs", "--list")),
        (["--run", ".."], ("--run",)),
    ],
)
def test_a_mistake_on_the_command_line_is_named(argv, words):
    message = complaint(parse, *argv)
    assert all(word in message for word in words), message


def test_names_are_not_abbreviated():
    assert "--sta" in complaint(parse, "--sta", "ppo")


def test_help_names_every_setting_and_stage(capsys):
    with pytest.raises(SystemExit) as end:
        parse("--help")
    shown = capsys.readouterr().out
    assert end.value.code == 0 and "what it is" in shown
    assert all(f"--{name} " in shown for name in settings.catalogue()) and all(stage in shown for stage in STAGES)


@pytest.mark.parametrize(
    "device, devices, fine",
    [
        ("cpu", 0, True),
        ("cuda", 1, True),
        ("cuda:1", 2, True),
        ("cuda", 0, False),
        ("cuda:1", 1, False),
        ("gpu", 1, False),
        ("mps", 1, False),
        ("", 1, False),
    ],
)
def test_a_device_must_be_one_of_this_machine(device, devices, fine, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: devices > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    if fine:
        command_line.check_device(device)
    else:
        assert "--device" in complaint(command_line.check_device, device)


@pytest.mark.parametrize("option", ["--eval-questions", "--eval_questions"])
def test_further_files_of_questions_stand_apart_by_spaces(option):
    command = parse("--stage", "evaluate", option, "a, b.jsonl", "c.csv", "--ppo.steps", "2")
    assert command.given == {"eval_questions": ("a, b.jsonl", "c.csv"), "ppo.steps": "2"}
    assert settings.build("lab", command.given).eval_questions == ("a, b.jsonl", "c.csv")
    assert "--eval-questions" in complaint(parse, option) and settings.build("lab", {}).eval_questions == ()
