"""All stages on a micro lab: artefacts, skipping and redoing, killed and resumed bit for bit, and
every user's mistake in one line.
"""

import dataclasses
import json
import os
import shutil
import subprocess
import sys

import pytest
import tiny
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

import rlkf
from data.world import WorldConfig
from evaluation import honesty
from experiment import answering, inputs, preferences, runs, settings
from reading import answers

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MICRO = {
    "sampling.rows": 64,
    "probe.k": 4,
    "probe.repeats": 3,
    "reward.batch": 8,
    "reward.save_every": 2,
    "sft.steps": 12,
    "sft.frozen": 0.0,
    "ppo.frozen": 0.0,
    "ppo.steps": 8,
    "ppo.batch": 16,
    "ppo.validate_every": 3,
    "ppo.save_every": 3,
    "evaluate.resamples": 20,
    "seed": 3,
    **{
        f"world.{f.name}": getattr(WorldConfig.micro(), f.name)
        for f in dataclasses.fields(WorldConfig)
        if getattr(WorldConfig.micro(), f.name) != f.default
    },
}
as_text = lambda value: ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
ARGUMENTS = [word for name, value in MICRO.items() for word in (f"--{name}", as_text(value))]
# Runs the command line and kills its own process at the n-th line that the stage logs, or block of
# answers that it writes.
DYING = """
import os, signal, sys
import rlkf
from experiment import progress, runs
stage, left = sys.argv[1], int(sys.argv[2])
def counted(function, is_it):
    def call(*args, **options):
        global left
        result = function(*args, **options)
        if is_it(args):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return result
    return call
runs.Run.log = counted(runs.Run.log, lambda args: args[1] == stage)
progress.append_jsonl = counted(progress.append_jsonl, lambda args: f"{stage}.work" in args[0])
rlkf.main(sys.argv[3:])
"""


def read(path):
    with open(path, "rb") as f:
        return f.read()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder in which a whole micro run was made under runs/lab."""
    folder = tmp_path_factory.mktemp("lab")
    before = os.getcwd()
    os.chdir(folder)
    try:
        assert rlkf.main(["--stage", "all", *ARGUMENTS]) == 0
    finally:
        os.chdir(before)
    return folder


def records(path):
    return [json.loads(line) for line in read(path).decode().splitlines()]


def test_every_stage_leaves_its_artefacts_in_the_agreed_form(finished):
    run = finished / "runs" / "lab"
    for name in (
        "config.json",
        "report.md",
        "metrics.jsonl",
        "base/model.safetensors",
        "probe/probes.safetensors",
        "probe/accuracy.csv",
        "reward/model.safetensors",
        "policy/model.safetensors",
        "evaluate/honesty.json",
        "figures/ppo.png",
    ):
        assert (run / name).stat().st_size > 0, name
    question = records(run / "data" / "test.jsonl")[0]
    assert {"id", "question", "answers", "lang", "category"} <= question.keys()
    label = records(run / "annotate" / "labels.jsonl")[0]
    assert {"id", "s_s2g", "s_p", "s_o2a", "s_s2a", "factuality", "correct", "state"} <= label.keys()
    assert len(label["s_s2g"]) == len(label["correct"]) == MICRO["probe.k"]
    for record in records(run / "annotate" / "preferences.jsonl"):
        assert (
            record["kinds"]
            == {
                "known": ["factual", "uncertain"],
                "unknown": ["uncertain", "hallucination"],
                "mixed": ["factual", "uncertain", "hallucination"],
            }[record["state"]]
        )
        assert len(record["ranking"]) == len(record["kinds"])
    found = json.loads(read(run / "evaluate" / "honesty.json"))
    assert (
        set(found) == {"prompts", "skill", "sets"}
        and set(found["prompts"]) == {"plain", "may_abstain"}
        and set(found["sets"]) == {"test"}
    )
    result = found["sets"]["test"]
    assert (
        sum(result["hits"])
        == result["n"]
        == result["n_known"] + result["n_unknown"] + result["n_mixed"]
        == len(records(run / "data" / "test.jsonl"))
    )
    assert [(row["policy"], row["prompt"]) for row in result["rows"]] == [
        ("before", "plain"),
        ("after", "plain"),
        ("before", "may_abstain"),
        ("after", "may_abstain"),
        ("always refuse", None),
        ("random refusal", None),
        ("probe gate", None),
    ]
    for row in result["rows"]:
        assert (
            row["accuracy"] + row["hallucination"] + row["abstention"] == pytest.approx(1)
            and honesty.METRICS.keys() < row.keys()
        )
        assert sum(row["states"].values()) == pytest.approx(result["n"])
    before, after = ([row["states"][str(n)] for n in (1, 2, 3, 4)] for row in result["rows"][:2])
    assert [sum(row) for row in result["transitions"]] == before and [
        sum(column) for column in zip(*result["transitions"])
    ] == after
    assert result["rows"][0]["nths"] == 0 or result["rows"][0]["nths"] is None
    assert result["rows"][-1]["abstention"] == pytest.approx(max(row["abstention"] for row in result["rows"][:2]))
    assert [(c["score"], c["policy"]) for c in result["confidence"]] == [
        (score, policy)
        for score in ("probe", "reward margin", "mean log-probability", "question embedding (control)")
        for policy in ("before", "after")
    ]
    answers = records(run / "evaluate" / "answers.jsonl")
    assert len(answers) == result["n"] and set(answers[0]) == {
        "set",
        "id",
        "question",
        "answers",
        "state",
        "before",
        "after",
        "before_may_abstain",
        "after_may_abstain",
    }
    tokenizer = AutoTokenizer.from_pretrained(run / "base")
    asked = f"{found['prompts']['may_abstain']['en']}\n\n{answers[0]['question']}"
    assert tokenizer.unk_token_id not in tokenizer(asked).input_ids


def test_subjects_never_cross_splits(finished):
    splits = [
        {r["subject"] for r in records(finished / "runs" / "lab" / "data" / f"{name}.jsonl")}
        for name in ("train", "valid", "test")
    ]
    assert not splits[0] & splits[1] and not splits[0] & splits[2] and not splits[1] & splits[2]


def test_no_pickles_on_disk(finished):
    names = [name for _, _, files in os.walk(finished) for name in files]
    assert not [n for n in names if n.endswith((".bin", ".pt", ".pth", ".pkl", ".npy", ".npz"))]


def test_policy_and_reward_model_load_without_this_project(finished):
    program = """
import sys, json, torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
policy = AutoModelForCausalLM.from_pretrained("policy")
reward = AutoModelForSequenceClassification.from_pretrained("reward")
tokenizer = AutoTokenizer.from_pretrained("reward")
asked = [{"role": "user", "content": "where does anna live ?"}]
text = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
ids = tokenizer(text + "paris .", add_special_tokens=False).input_ids + [tokenizer.eos_token_id]
assert "lm" not in sys.modules and policy(torch.tensor([ids])).logits.isfinite().all()
print(json.dumps([ids, reward(torch.tensor([ids])).logits[0].tolist()]))
"""
    out = subprocess.run(
        [sys.executable, "-c", program], cwd=finished / "runs" / "lab", capture_output=True, text=True, check=True
    ).stdout
    ids, (text_alone,) = json.loads(out.splitlines()[-1])
    folder = str(finished / "runs" / "lab" / "reward")
    model = rlkf.reward.load(folder, AutoTokenizer.from_pretrained(folder), torch.float32)
    assert len(model.output.weight) == 7 and model.output.weight.abs().max() > 0, "the folder says how to add the rest"
    model.output = None
    assert float(rlkf.reward.scores(model, [ids[:4]], [ids[4:]], [0.8])[0].detach()) == pytest.approx(
        text_alone, abs=1e-4
    )


def test_a_second_call_skips_what_is_done_and_a_changed_setting_redoes_what_depends_on_it(
    finished, monkeypatch, capsys
):
    monkeypatch.chdir(finished)
    before = os.stat("runs/lab/reward/model.safetensors").st_mtime_ns
    assert rlkf.main(["--stage", "ppo", *ARGUMENTS]) == 0
    assert "ppo: done" in capsys.readouterr().out
    assert rlkf.main(["--list", *ARGUMENTS, "--ppo.lr", "0.5"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "done" in lines["reward"] and "would run again" in lines["ppo"] and "would run again" in lines["evaluate"]
    assert os.stat("runs/lab/reward/model.safetensors").st_mtime_ns == before


def test_benchmarks_are_measured_before_and_after_when_they_are_named(finished, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(finished / "runs", "runs")
    assert (
        not os.path.exists("runs/lab/evaluate/benchmarks.json")
        and "Benchmarks" not in read("runs/lab/report.md").decode()
    )
    for name, record in (
        (
            "winogrande_xl/validation",
            {"sentence": "anna saw rosa and _ left .", "option1": "anna", "option2": "rosa", "answer": "2"},
        ),
        ("gsm8k_main/test", {"question": "how many ?", "answer": "#### 3"}),
    ):
        os.makedirs(os.path.dirname(f"files/{name}"))
        with open(f"files/{name}.jsonl", "w") as f:
            f.write(4 * (json.dumps(record) + "\n"))
    assert (
        rlkf.main(
            [
                "--stage",
                "all",
                *ARGUMENTS,
                "--benchmarks.names",
                "winogrande,gsm8k",
                "--benchmarks.dir",
                "files",
                "--benchmarks.limit",
                "3",
            ]
        )
        == 0
    )
    with open("runs/lab/evaluate/benchmarks.json") as f:
        found = json.load(f)
    assert {name: sorted(result["after"]) for name, result in found.items()} == {
        "winogrande": ["acc", "generation", "refused"],
        "gsm8k": ["generation", "refused"],
    }
    assert all(figures["n"] == 3 for result in found.values() for when in result.values() for figures in when.values())
    text = read("runs/lab/report.md").decode()
    assert "## Benchmarks (Tables 3 and 4)" in text and "3 questions of each, drawn with seed 3" in text


def test_a_further_file_is_measured_as_the_runs_own_questions_are(finished, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(finished / "runs", "runs", copy_function=os.link)
    data = finished / "runs" / "lab" / "data"
    own, trained = records(data / "test.jsonl"), records(data / "train.jsonl")[:3]
    (tmp_path / "more.jsonl").write_text("".join(json.dumps(q) + "\n" for q in own + trained))
    assert rlkf.main(["--stage", "all", *ARGUMENTS, "--eval-questions", "more.jsonl"]) == 0
    said = capsys.readouterr().out
    assert (
        "more: 3 of 51 questions are left out" in said
        and "ppo: done" in said
        and "again: eval_questions, more.jsonl sha256 changed" in said
    )
    sets = json.loads(read("runs/lab/evaluate/honesty.json"))["sets"]
    assert (
        list(sets) == ["test", "more"]
        and sets["test"] == json.loads(read(finished / "runs" / "lab" / "evaluate" / "honesty.json"))["sets"]["test"]
    )
    for key in ("n", "n_known", "hits", "rows", "transitions"):
        assert sets["more"][key] == sets["test"][key], key
    for mine, theirs in zip(sets["more"]["confidence"], sets["test"]["confidence"]):
        for name in ("auroc", "aurc", "brier", "ece"):
            assert mine[name] == (theirs[name] and pytest.approx(theirs[name], abs=1e-3)), (mine["score"], name)
    found = records("runs/lab/evaluate/answers.jsonl")
    assert [r["set"] for r in found] == ["test"] * 48 + ["more"] * 48 and [
        {**r, "set": "more"} for r in found[:48]
    ] == found[48:]


def test_killed_in_every_stage_and_started_again_gives_the_same_policy_bit_for_bit(finished, tmp_path):
    options = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": ROOT}, "capture_output": True, "text": True}
    for stage, lines in (
        ("base", 2),
        ("probe", 2),
        ("annotate", 2),
        ("reward", 3),
        ("ppo", 1),
        ("ppo", 5),
        ("ppo", 5),
        ("evaluate", 2),
        ("evaluate", 1),
    ):
        died = subprocess.run([sys.executable, "-c", DYING, stage, str(lines), "--stage", "all", *ARGUMENTS], **options)
        assert died.returncode == -9, (stage, died.stdout, died.stderr)
    ended = subprocess.run([sys.executable, os.path.join(ROOT, "rlkf.py"), "--stage", "all", *ARGUMENTS], **options)
    assert ended.returncode == 0, ended.stderr
    for name in ("base", "reward", "policy"):
        assert read(tmp_path / "runs" / "lab" / name / "model.safetensors") == read(
            finished / "runs" / "lab" / name / "model.safetensors"
        ), name
    for name in ("honesty.json", "answers.jsonl"):
        assert read(tmp_path / "runs" / "lab" / "evaluate" / name) == read(
            finished / "runs" / "lab" / "evaluate" / name
        ), name
    assert not [name for name in os.listdir(tmp_path / "runs" / "lab") if name.endswith((".work", ".part"))]


def test_the_step_that_is_kept_is_the_best_on_the_validation_questions_and_no_others(finished):
    run = runs.Run(
        str(finished / "runs" / "lab"), settings.build("lab", {name: as_text(value) for name, value in MICRO.items()})
    )
    looks = {line["step"]: line["balanced"] for line in run.logged("ppo") if line["event"] == "validation"}
    chosen = json.loads(read(run.path("policy", "chosen.json")))
    assert (
        set(looks) == {0, 3, 6, 8}
        and chosen["step"] == min(looks, key=lambda step: (-looks[step], step))
        and chosen["balanced"] == looks[chosen["step"]]
    )
    policy, found = inputs.load_model(run, run.path("policy")), {}
    known = inputs.load_known(run)
    for split, questions in inputs.load_questions(run).items():
        states = inputs.states_of(questions, [known[q["id"]] for q in questions], run.settings)
        texts = answering.greedy_texts(policy, questions, run.settings.sampling)
        readings = {
            state: [
                answers.read(text, q["answers"], q["question"])
                for q, text, of_question in zip(questions, texts, states)
                if of_question == state
            ]
            for state in ("known", "unknown")
        }
        right, refused = (
            readings["known"].count("right") + readings["known"].count("hedged"),
            readings["unknown"].count("refusal"),
        )
        found[split] = (right / len(readings["known"]) + refused / len(readings["unknown"])) / 2
    assert found["valid"] == pytest.approx(chosen["balanced"]) and found["test"] != pytest.approx(chosen["balanced"])


@pytest.mark.parametrize("state, lacking", [("known", "unknown"), ("unknown", "known")])
def test_validation_questions_that_could_choose_no_step_are_a_users_mistake_before_training(
    state, lacking, finished, tmp_path, monkeypatch, capsys
):
    shutil.copytree(finished / "runs", tmp_path / "runs", copy_function=os.link)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rlkf.policy, "states_of", lambda questions, known, settings: [state] * len(questions))
    assert rlkf.main(["--stage", "ppo", *ARGUMENTS, "--ppo.lam", "0.9"]) == 2
    error = capsys.readouterr().err
    assert (
        f"validation questions is {lacking}" in error
        and "Traceback" not in error
        and not os.path.exists("runs/lab/ppo.work")
    )


@pytest.mark.parametrize(
    "algorithm, given",
    [
        ("dpo", ["--dpo.steps", "7", "--dpo.batch", "16"]),
        ("sft", ["--sft.steps", "7", "--sft.batch", "16"]),
        ("rejection", ["--rejection.rounds", "2", "--rejection.samples", "4", "--rejection.batch", "4"]),
    ],
)
def test_other_algorithms_interrupted_and_started_again_give_the_same_policy(
    algorithm, given, finished, tmp_path, monkeypatch, capsys
):
    arguments, policies = ["--stage", "ppo", *ARGUMENTS, "--algorithm", algorithm, *given], []
    for name, dies in (("whole", ()), ("broken", (5, 4))):
        shutil.copytree(finished / "runs", tmp_path / name / "runs", copy_function=os.link)
        monkeypatch.chdir(tmp_path / name)
        for lines in dies:
            log, left = runs.Run.log, [lines]

            def dying(run, stage, **figures):
                log(run, stage, **figures)
                left[0] -= figures.get("event") == "step"
                if not left[0]:
                    raise KeyboardInterrupt

            with monkeypatch.context() as patched:
                patched.setattr(runs.Run, "log", dying)
                assert rlkf.main(arguments) == 130
        assert rlkf.main(arguments) == 0
        chosen = json.loads(read("runs/lab/policy/chosen.json"))
        policies.append((chosen, read("runs/lab/policy/model.safetensors")))
    assert policies[0] == policies[1] and policies[0][0]["algorithm"] == algorithm
    assert f"{algorithm}: kept step" in capsys.readouterr().out


def test_a_loss_that_is_not_finite_three_times_stops_with_the_last_good_state_saved(
    finished, tmp_path, monkeypatch, capsys
):
    shutil.copytree(finished / "runs", tmp_path / "runs", copy_function=os.link)
    monkeypatch.chdir(tmp_path)
    arguments, normalised, left = ["--stage", "ppo", *ARGUMENTS, "--ppo.lam", "0.9"], rlkf.reward.normalised, [4]

    def spoilt(*parts):
        left[0] -= 1
        return normalised(*parts) * (1 if left[0] > 0 else float("nan"))

    with monkeypatch.context() as patched:
        patched.setattr(rlkf.reward, "normalised", spoilt)
        assert rlkf.main(arguments) == 2
    assert "updates in a row were skipped" in capsys.readouterr().err
    facts = json.loads(read("runs/lab/ppo.work/checkpoint/training.json"))
    assert facts["step"] == 5, "three good steps and two whose two updates each were skipped"
    assert all(t.isfinite().all() for t in load_file("runs/lab/ppo.work/checkpoint/training.safetensors").values())
    assert rlkf.main(arguments) == 0, "and the same command goes on"


def test_general_pairs_of_a_file_are_kept_in_the_data_stage_and_long_ones_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pairs = [{"prompt": "who is paris", "chosen": "red " * n + "rome", "rejected": "blue"} for n in range(1, 9)]
    (tmp_path / "pairs.jsonl").write_text("".join(f"{json.dumps(p)}\n" for p in pairs))
    built = settings.build("smollm2", {"general": "pairs.jsonl", "reward.max_tokens": "10"})
    run = runs.Run(str(tmp_path / "run"), built)
    rlkf.stage_data(run)
    kept = records(tmp_path / "run" / "data" / "general.jsonl")
    assert sorted(p["chosen"] for p in kept) == sorted(p["chosen"] for p in pairs) and kept[0]["prompt"] == [
        {"role": "user", "content": "who is paris"}
    ]
    found = preferences.general_records(
        run.path("data", "general.jsonl"), tiny.lm(), 10
    )  # 5 tokens of prompt, then n + 1 words and the end
    assert (
        sorted(len(r["ranking"][0].split()) for r in found) == [2, 3, 4]
        and "5 of 8 general pairs have more than 10 tokens" in capsys.readouterr().out
    )
    before = run.key("data")
    (tmp_path / "pairs.jsonl").write_text(f"{json.dumps(pairs[0])}\n")
    assert run.key("data") != before


LINE = '{"question": "Who?", "answers": ["I"]}\n'


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--stage", "prob"], ["prob", "did you mean probe?"]),
        (["--preset", "labs"], ["labs", "did you mean lab?"]),
        (["--ppo.lrr", "1"], ["--ppo.lrr", "did you mean ppo.lr?"]),
        (["--ppo.lr", "fast"], ["--ppo.lr", "a number", "fast"]),
        (["--ppo.lr"], ["--ppo.lr", "a value"]),
        (["--ppo.steps", "0"], ["--ppo.steps", "at least 1"]),
        (["--algorithm", "dop"], ["--algorithm", "dpo, rejection", "did you mean dpo?"]),
        (["--algorithm", "sft", "--sft.steps", "0"], ["--algorithm sft", "--sft.steps above 0"]),
        (["--ppo.kl_target", "1", "--ppo.kl_coef", "0"], ["--ppo.kl_target", "--ppo.kl_coef above 0"]),
        (["--seeds", "11"], ["--seeds", "1 to 10"]),
        (["--general", "pairs.jsonl"], ["--general", "the lab has its own"]),
        (["--preset", "smollm2", "--general", "missing.jsonl"], ["missing.jsonl", "No such file"]),
        (["--preset", "smollm2", "--general", "pairs.jsonl"], ["pairs.jsonl, line 1", '"rejected"']),
        (["--device", "gpu"], ["--device", "gpu"]),
        (["--dtype", "float16"], ["--dtype", "float32, bfloat16"]),
        (["--run", "../x"], ["--run", "../x"]),
        (["--model", "lab", "--questions", "q.jsonl"], ["--questions"]),
        (["--eval-questions"], ["--eval-questions", "at least one"]),
        (["--eval-questions", "missing.jsonl"], ["missing.jsonl", "No such file"]),
        (
            ["--preset", "smollm2", "--stage", "evaluate", "--eval-questions", "broken.jsonl"],
            ["broken.jsonl, line 2", "not JSON"],
        ),
        (["--stage", "ablate", "--eval-questions", "field.jsonl"], ["field.jsonl, line 2", '"answers"']),
        (["--preset", "smollm2", "--model", "./nowhere"], ["./nowhere", "no such model folder"]),
        (["--preset", "smollm2", "--model", "bert"], ["bert", "BertModel", "causal language model"]),
        (["--preset", "smollm2", "--questions", "missing.jsonl"], ["missing.jsonl", "No such file"]),
        (["--preset", "smollm2", "--questions", "empty.jsonl"], ["empty.jsonl", "no questions"]),
        (["--preset", "smollm2", "--questions", "broken.jsonl"], ["broken.jsonl, line 2", "not JSON"]),
        (["--preset", "smollm2", "--questions", "field.jsonl"], ["field.jsonl, line 2", '"answers"']),
        (["--preset", "smollm2", "--questions", "none.jsonl"], ["none.jsonl, line 1", '"answers"']),
        (["--preset", "smollm2", "--questions", "twice.jsonl"], ["twice.jsonl, line 2", "line 1"]),
    ],
)
def test_a_users_mistake_is_one_clear_line_and_status_2(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "empty": "",
        "broken": LINE + "{",
        "field": LINE + '{"question": "Who?"}\n',
        "pairs": '{"prompt": "Who?", "chosen": "I."}',
        "none": '{"question": "Who?", "answers": []}\n',
        "twice": '{"id": 7, "question": "Who?", "answers": ["I"]}\n' * 2,
    }.items():
        (tmp_path / f"{name}.jsonl").write_text(text)
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "config.json").write_text('{"architectures": ["BertModel"], "model_type": "bert"}')
    assert rlkf.main(arguments) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert len(error) == 1 and error[0].startswith("error: "), error
    for word in words:
        assert word in error[0]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_a_device_is_a_users_mistake(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert rlkf.main(["--device", "cuda"]) == 2
    assert "no CUDA device" in capsys.readouterr().err


def test_a_run_of_another_seed_is_refused_and_says_how_to_go_on(finished, monkeypatch, capsys):
    monkeypatch.chdir(finished)
    assert rlkf.main(["--stage", "all", *ARGUMENTS, "--seed", "4"]) == 2
    error = capsys.readouterr().err
    assert "seed 3, now 4" in error and "--run" in error


def test_a_folder_that_cannot_be_written_is_a_users_mistake(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").write_text("a file, where the folder should be")
    assert rlkf.main([]) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert len(error) == 1 and "runs" in error[0]


def test_help_names_every_preset_stage_and_setting(capsys):
    with pytest.raises(SystemExit) as ended:
        rlkf.main(["--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    for word in ("smollm2", "annotate", "--ppo.kl_coef", "--annotate.rule", "paper: 0"):
        assert word in text


@pytest.mark.parametrize("where", ["questions", "further"])
def test_a_question_that_does_not_fit_is_said_before_anything_is_sampled(
    where, finished, tmp_path, monkeypatch, capsys
):
    """Plain it would fit; with the instruction of a later stage before it, it does not."""
    lines = [
        json.dumps({"question": f"where does anna number {n} live ?", "answers": ["paris"], "id": f"q{n}"})
        for n in range(60)
    ]
    long = json.dumps({"question": "where " * 228 + "?", "answers": ["paris"], "id": "long"})
    (tmp_path / "mine.jsonl").write_text("\n".join([*lines, *([long] if where == "questions" else [])]))
    (tmp_path / "further.jsonl").write_text(long)
    monkeypatch.chdir(tmp_path)
    asked = [] if where == "questions" else ["--eval-questions", "further.jsonl"]
    assert (
        rlkf.main(
            [
                "--stage",
                "all",
                "--preset",
                "smollm2",
                "--model",
                str(finished / "runs" / "lab" / "base"),
                "--embedder",
                "base",
                "--questions",
                "mine.jsonl",
                "--dtype",
                "float32",
                *asked,
            ]
        )
        == 2
    )
    error = capsys.readouterr().err
    assert (
        f"question long of {'mine.jsonl' if where == 'questions' else 'further'}: its prompt of"
        in error.splitlines()[-1]
    )
    assert not os.path.exists("runs/smollm2/probe.work/generations.jsonl")


def test_shares_that_leave_the_probe_nothing_to_learn_from_are_a_users_mistake(finished, tmp_path, monkeypatch, capsys):
    shutil.copytree(finished / "runs", tmp_path / "runs", copy_function=os.link)
    monkeypatch.chdir(tmp_path)
    assert rlkf.main(["--stage", "probe", *ARGUMENTS, "--probe.valid", "0.0001"]) == 2
    assert "error: --probe.valid 0.0001, --probe.test 0.2: of 24 subjects" in capsys.readouterr().err
