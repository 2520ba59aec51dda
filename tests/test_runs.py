"""A run's folder: what makes a stage stale, what is refused, and that half-done work goes on where
it was.
"""

import json
import os
import shutil

import pytest

from data.files import read_json, read_jsonl, write_json
from experiment import progress, runs, settings
from lm.errors import UserError

STAGES = ("base", "data", "probe", "annotate", "reward", "ppo", "evaluate", "report")


def make(folder, preset="lab", **given):
    """Run of a preset with settings on top: section__field=text."""
    return runs.Run(
        str(folder), settings.build(preset, {name.replace("__", "."): text for name, text in given.items()})
    )


def finish(run, *stages):
    """Make the stages' outputs and record them as done."""
    for stage in stages:
        if stage == "report":
            write_json(run.path("report.md"), "text")
        else:
            with run.output(stage) as folder:
                write_json(os.path.join(folder, "output.json"), stage)
        run.finish(stage, 1.26)


# --------------------------------------------------------------------------------------------- keys


@pytest.mark.parametrize(
    "name, text, first",
    [
        ("world__values", "30", "base"),
        ("seed", "1", "base"),
        ("embedder", "some/where", "base"),
        ("probe__k", "3", "probe"),
        ("sampling__temperature", "0.5", "probe"),
        ("dtype", "bfloat16", "probe"),
        ("probe__l2", "1,2", "probe"),
        ("annotate__rule", "median", "annotate"),
        ("annotate__scores", "s_p", "annotate"),
        ("reward__lr", "0.5", "reward"),
        ("ppo__steps", "3", "ppo"),
        ("sft__steps", "3", "ppo"),
        ("algorithm", "dpo", "ppo"),
        ("evaluate__known_share", "0.7", "ppo"),
        ("dpo__lr", "0.5", None),
        ("rejection__rounds", "9", None),
        ("evaluate__resamples", "9", "evaluate"),
        ("eval_questions", ("more.jsonl",), "evaluate"),
        ("device", "cuda", None),
    ],
)
def test_a_setting_changes_the_keys_of_its_stage_and_of_all_that_follow(name, text, first, tmp_path):
    before, after = make(tmp_path), make(tmp_path, **{name: text})
    differ = tuple(stage for stage in STAGES if before.key(stage) != after.key(stage))
    assert differ == (STAGES[STAGES.index(first) :] if first else ())


def test_every_setting_but_device_seeds_and_the_endpoints_limits_makes_some_stage_stale():
    read = {name.split(".")[0] for names in runs.DEPENDS.values() for name in names}
    assert {name.split(".")[0] for name in settings.catalogue()} - read - set(runs.IDENTITY) == {
        "device",
        "seeds",
        "endpoint",
    }


def test_the_labs_settings_mean_nothing_to_a_real_model(tmp_path):
    before, after = make(tmp_path, "smollm2"), make(tmp_path, "smollm2", world__values="30")
    assert [before.key(stage) for stage in before.stages] == [after.key(stage) for stage in after.stages]


def test_the_evaluate_stage_follows_what_stands_in_the_further_files_of_questions(tmp_path):
    path = tmp_path / "more.jsonl"
    path.write_text("one")
    run = make(tmp_path, eval_questions=(str(path),))
    before = [run.key(stage) for stage in STAGES]
    path.write_text("two")
    assert [stage for stage, key in zip(STAGES, before) if run.key(stage) != key] == ["evaluate", "report"]


def test_the_evaluate_stage_follows_what_stands_in_the_files_of_its_benchmarks(tmp_path):
    path = tmp_path / "bench" / "gsm8k_main" / "test.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("one")
    run = make(tmp_path, benchmarks__names="gsm8k", benchmarks__dir=str(tmp_path / "bench"))
    before = [run.key(stage) for stage in STAGES]
    path.write_text("other")
    assert [stage for stage, key in zip(STAGES, before) if run.key(stage) != key] == ["evaluate", "report"]


def test_keys_follow_what_stands_in_the_file_of_questions(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"question": "a", "answers": ["b"]}\n')
    run = make(tmp_path, "smollm2", questions=str(path))
    before = run.key("data")
    assert run.key("data") == before
    path.write_text('{"question": "a", "answers": ["c"]}\n')
    assert run.key("data") != before


def test_keys_and_facts_survive_json(tmp_path):
    run = make(tmp_path)
    assert json.loads(json.dumps(run.facts("report"))) == run.facts("report")


# -------------------------------------------------------------------------------------- done or not


def test_a_stage_is_done_when_whole_and_recorded(tmp_path):
    run = make(tmp_path)
    assert not run.is_done("data")
    with run.output("data") as folder:
        write_json(os.path.join(folder, "x.json"), 1)
    assert not run.is_done("data"), "whole but not recorded"
    run.finish("data", 1.26)
    assert run.is_done("data") and make(tmp_path).is_done("data"), "a new process knows it too"
    assert not run.is_done("probe")
    assert make(tmp_path).records["data"]["seconds"] == 1.3
    os.rename(run.path("data"), run.path("elsewhere"))
    assert not make(tmp_path).is_done("data"), "recorded, but its output is gone"


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="the kernel's own figure is read from /proc")
def test_the_record_holds_the_peak_memory_of_the_process(tmp_path):
    run = make(tmp_path)
    finish(run, "data")
    with open("/proc/self/status") as f:
        kilobytes = next(int(line.split()[1]) for line in f if line.startswith("VmHWM"))
    assert 0.9 * kilobytes * 1024 / 1e9 <= make(tmp_path).records["data"]["peak_gb"] < 1000


def test_records_with_another_kind_of_peak_memory_are_refused(tmp_path):
    finish(make(tmp_path), "data")
    records = read_json(str(tmp_path / "stages.json"))
    records["data"]["peak_gb"] = "much"
    write_json(str(tmp_path / "stages.json"), records)
    with pytest.raises(UserError, match="stages.json: not what this program writes"):
        make(tmp_path)


def test_ppo_leaves_the_policy_and_the_report_a_file(tmp_path):
    run = make(tmp_path)
    finish(run, "ppo", "report")
    assert os.path.isdir(tmp_path / "policy") and run.is_done("ppo") and run.is_done("report")
    os.remove(run.path("report.md"))
    assert not run.is_done("report")


def test_changed_settings_are_named_and_make_the_stage_stale(tmp_path):
    finish(make(tmp_path), *STAGES)
    run = make(tmp_path, reward__lr="0.5", probe__k="3", device="cuda")
    assert [stage for stage in STAGES if run.is_done(stage)] == ["base", "data"]
    assert run.changed("probe") == run.changed("annotate") == ["probe.k"]
    assert run.changed("reward") == run.changed("report") == ["probe.k", "reward.lr"]
    assert make(tmp_path).changed("report") == []


def test_finishing_keeps_the_other_records_and_drops_half_done_work(tmp_path):
    run, other = make(tmp_path), make(tmp_path)
    path = run.work("probe", "generations.jsonl")
    finish(other, "data")
    finish(run, "probe")
    assert set(make(tmp_path).records) == {"data", "probe"} and not os.path.exists(os.path.dirname(path))


def test_an_output_is_whole_or_as_before(tmp_path):
    run = make(tmp_path)
    finish(run, "data")
    with pytest.raises(ValueError):
        with run.output("data") as folder:
            write_json(os.path.join(folder, "half.json"), 1)
            raise ValueError
    assert os.listdir(run.path("data")) == ["output.json"]


# ------------------------------------------------------------------------------------------ opening


def test_opening_writes_every_setting_with_versions(tmp_path):
    run = make(tmp_path / "new")
    run.open("lab")
    config = read_json(run.path("config.json"))
    assert config["preset"] == "lab" and set(config["settings"]) == set(settings.catalogue())
    assert config["settings"]["reward.lr"] == run.settings.reward.lr and config["settings"]["probe.l2"] == list(
        run.settings.probe.l2
    )
    assert {"torch", "transformers", "numpy"} <= set(config["versions"]) and all(config["versions"].values())


@pytest.mark.parametrize(
    "given, names",
    [
        ({"seed": "1"}, ["seed"]),
        ({"embedder": "some/where"}, ["embedder"]),
        ({"model": "some/model", "questions": "facts-en"}, ["model", "questions"]),
    ],
)
def test_a_run_of_another_identity_is_refused_and_left_alone(given, names, tmp_path):
    run = make(tmp_path)
    run.open("lab")
    run.finish("base", 1.0)
    before = (tmp_path / "config.json").read_bytes()
    with pytest.raises(UserError) as caught:
        make(tmp_path, **given).open("lab")
    message = str(caught.value)
    assert "\n" not in message and str(tmp_path) in message and "--run" in message
    assert [name for name in runs.IDENTITY if f"{name} " in message.split(": ", 1)[1]] == names
    assert all(repr(read_json(tmp_path / "config.json")["settings"][name]) in message for name in names)
    assert (tmp_path / "config.json").read_bytes() == before


def test_a_run_may_be_opened_again_with_other_settings(tmp_path):
    make(tmp_path).open("lab")
    make(tmp_path, ppo__lr="0.5").open("lab")
    assert read_json(tmp_path / "config.json")["settings"]["ppo.lr"] == 0.5


# ----------------------------------------------------------------------------------- half-done work


def test_work_is_kept_for_the_same_settings_and_dropped_for_others(tmp_path):
    path = make(tmp_path).work("reward", "state.json")
    write_json(path, 1)
    assert make(tmp_path).work("reward", "state.json") == path and os.path.exists(path)
    make(tmp_path, ppo__lr="0.5").work("reward")
    assert os.path.exists(path), "a later stage's setting says nothing about this one"
    make(tmp_path, probe__k="3").work("reward")
    assert not os.path.exists(path)
    make(tmp_path).work("reward")
    assert not os.path.exists(path)


def test_work_of_unknown_settings_is_dropped(tmp_path):
    os.makedirs(tmp_path / "reward.work")
    (tmp_path / "reward.work" / "state.json").write_text("1")
    assert not os.path.exists(make(tmp_path).work("reward", "state.json"))


def lines(*ids):
    return "".join(json.dumps({"id": i, "text": "不知道"}, ensure_ascii=False) + "\n" for i in ids)


@pytest.mark.parametrize(
    "content, kept",
    [
        ("", []),
        (lines("a", "b", "c"), ["a", "b", "c"]),
        (lines("a", "b"), ["a", "b"]),
        (lines("a", "b", "c", "d"), ["a", "b", "c"]),
        (lines("a"), []),
        (lines("b", "a", "c"), []),
        (lines("c"), []),
        (lines("a", "b", "d", "e", "f"), ["a", "b"]),
        (lines("a", "b", "c", "d", "e", "f"), ["a", "b", "c", "d", "e", "f"]),
        (lines("a", "b", "c", "d", "e") + lines("f")[:-1], ["a", "b", "c"]),
        (lines("a", "b") + '{"id": "c", "te', ["a", "b"]),
        ('{"id": "a"', []),
    ],
)
def test_only_whole_blocks_of_half_done_records_count_and_the_file_is_cut_to_them(content, kept, tmp_path):
    path = tmp_path / "generations.jsonl"
    path.write_text(content, encoding="utf-8")
    records = progress.resumed_records(str(path), [["a", "b"], ["c"], ["d", "e", "f"]])
    assert [record["id"] for record in records] == kept
    assert path.read_text(encoding="utf-8") == lines(*kept)


def test_a_line_torn_inside_a_chinese_character_is_cut(tmp_path):
    path = tmp_path / "generations.jsonl"
    path.write_bytes(
        lines("a", "b").encode() + lines("c").encode()[:-4]
    )  # ends after two of the three bytes of the last character
    records = progress.resumed_records(str(path), [["a", "b"], ["c"]])
    assert [record["id"] for record in records] == ["a", "b"] and path.read_text(encoding="utf-8") == lines("a", "b")


def test_without_half_done_records_there_are_none(tmp_path):
    assert progress.resumed_records(str(tmp_path / "none.jsonl"), [["a"]]) == [] and os.listdir(tmp_path) == []


QUESTIONS = [{"id": i, "question": "x" * length} for i, length in (("a", 9), ("b", 1), ("c", 5), ("d", 7), ("e", 2))]


def test_blocks_hold_questions_of_like_length_and_come_back_in_order(tmp_path):
    seen = []

    def answer(block):
        seen.append([q["id"] for q in block])
        return [{"id": q["id"], "n": len(q["question"])} for q in block]

    records = progress.in_blocks(make(tmp_path), "probe", QUESTIONS, 2, "answering", answer)
    assert seen == [["b", "e"], ["c", "d"], ["a"]]
    assert records == [{"id": q["id"], "n": len(q["question"])} for q in QUESTIONS]


def test_blocks_that_are_done_are_not_asked_again(tmp_path):
    def until(last):
        def answer(block):
            if len(asked) == last:
                raise KeyboardInterrupt
            asked.append([q["id"] for q in block])
            return [{"id": q["id"], "call": len(asked)} for q in block]

        return answer

    asked = []
    with pytest.raises(KeyboardInterrupt):
        progress.in_blocks(make(tmp_path), "probe", QUESTIONS, 2, "answering", until(2))
    records = progress.in_blocks(make(tmp_path), "probe", QUESTIONS, 2, "answering", until(99))
    assert asked == [["b", "e"], ["c", "d"], ["a"]]
    assert [r["call"] for r in records] == [3, 1, 2, 2, 1]
    progress.in_blocks(make(tmp_path, probe__k="3"), "probe", QUESTIONS, 2, "answering", until(99))
    assert len(asked) == 6, "of other settings nothing counts"


# ------------------------------------------------------------------------------------- doing stages


def test_stages_run_in_order_and_only_where_something_changed(tmp_path, capsys):
    ran = []

    def stage_function(stage):
        def function(run):
            """Does
            something.
            """
            ran.append(stage)
            if stage == "report":
                write_json(run.path("report.md"), "text")
            else:
                with run.output(stage) as folder:
                    write_json(os.path.join(folder, "x.json"), 1)

        return function

    functions = {stage: stage_function(stage) for stage in STAGES}
    with pytest.raises(UserError, match="base has to run first"):
        make(tmp_path).do(("data",), functions)
    make(tmp_path).do(STAGES, functions)
    assert tuple(ran) == STAGES
    ran.clear()
    make(tmp_path).do(STAGES, functions)
    assert ran == ["report"], "the report alone is written again"
    ran.clear()
    capsys.readouterr()
    make(tmp_path, reward__lr="0.5").do(STAGES, functions)
    assert ran == ["reward", "ppo", "evaluate", "report"]
    shown = capsys.readouterr().out.splitlines()
    assert "probe: done" in shown and "reward: Does something. (again: reward.lr changed)" in shown
    ran.clear()
    shutil.rmtree(tmp_path / "annotate")
    make(tmp_path, reward__lr="0.5").do(STAGES, functions)
    assert ran == ["annotate", "reward", "ppo", "evaluate", "report"], (
        "a deleted stage may come out otherwise: what follows it counts no more"
    )


def test_a_real_model_needs_no_base(tmp_path):
    run = make(tmp_path, "smollm2")
    assert tuple(run.stages) == STAGES[1:] and run.base_model == run.settings.model
    assert tuple(make(tmp_path).stages) == STAGES and make(tmp_path).base_model == str(tmp_path / "base")


# ------------------------------------------------------------------------------------------ the log


def test_of_a_repeated_step_the_last_line_counts(tmp_path):
    run = make(tmp_path)
    for step, loss in ((1, 0.9), (2, 0.8), (3, 0.7), (2, 0.5), (3, 0.4)):
        run.log("reward", step=step, loss=loss)
    assert [(line["step"], line["loss"]) for line in run.logged("reward")] == [(1, 0.9), (2, 0.5), (3, 0.4)]
    assert len(read_jsonl(run.path("metrics.jsonl"))) == 5, "append only"


def test_the_log_is_read_by_stage_event_and_present_settings(tmp_path):
    run = make(tmp_path)
    assert run.logged("ppo") == []
    run.log("ppo", event="step", step=1, reward=0.25)
    run.log("ppo", event="validation", step=1, balanced=0.5)
    run.log("reward", step=1, loss=0.1)
    make(tmp_path, ppo__lr="0.5").log("ppo", event="step", step=1, reward=9.0)
    assert [(line["event"], line["step"], line.get("reward")) for line in run.logged("ppo")] == [
        ("step", 1, 0.25),
        ("validation", 1, None),
    ]
    assert [line["loss"] for line in run.logged("reward")] == [0.1]


def test_a_torn_last_line_of_the_log_is_cut_off(tmp_path):
    run = make(tmp_path)
    for step in (1, 2):
        run.log("reward", step=step, loss=0.5)
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    assert [line["step"] for line in run.logged("reward")] == [1] and len(read_jsonl(str(path))) == 1


def test_what_others_put_into_a_stages_folder_is_passed_over(tmp_path):
    run = make(tmp_path)
    finish(run, "base")
    os.makedirs(tmp_path / "base" / ".ipynb_checkpoints")
    os.symlink("nowhere", tmp_path / "base" / "dangling")
    run.check_files("base")


# ----------------------------------------------------------------------------------- training loops


def steps(*skipped):
    """Figures of a loop with so many skipped updates a step."""
    return ({"step": n, "skipped": s} for n, s in enumerate(skipped, 1))


def test_a_followed_loop_is_logged_and_saved_after_the_caller_has_seen_the_step(tmp_path):
    run, events = make(tmp_path), []
    run.open("lab")
    for figures in progress.followed(
        run, "ppo", steps(0, 0, 0, 0, 0), "it", 5, save_every=2, save=lambda: events.append("save"), event="step"
    ):
        events.append(figures["step"])
    assert events == [1, 2, "save", 3, 4, "save", 5]
    assert [(line["step"], line["event"], line["steps"]) for line in run.logged("ppo")] == [
        (n, "step", 5) for n in range(1, 6)
    ]


@pytest.mark.parametrize(
    "skipped, stops_after",
    [((1, 1, 1, 0), 3), ((2, 2, 0, 0), 2), ((3, 0), 1), ((1, 1, 0, 1, 1, 0), None), ((0, 2, 0, 2, 0), None)],
)
def test_three_skipped_updates_in_a_row_stop_a_loop_with_the_state_saved(skipped, stops_after, tmp_path):
    run, seen, saved = make(tmp_path), [], []
    run.open("lab")

    def go():
        for figures in progress.followed(
            run, "reward", steps(*skipped), "it", len(skipped), save=lambda: saved.append(True)
        ):
            seen.append(figures["step"])

    if stops_after is None:
        go()
        assert len(seen) == len(skipped) and not saved
    else:
        with pytest.raises(FloatingPointError, match=f"step {stops_after}: .* in a row were skipped"):
            go()
        assert len(seen) == stops_after and saved == [True]


def test_a_rivals_settings_count_only_where_it_is_the_algorithm(tmp_path):
    one, other = (
        make(tmp_path, algorithm="dpo", dpo__lr=lr, rejection__rounds=n) for lr, n in (("0.5", "2"), ("0.6", "9"))
    )
    assert one.key("reward") == other.key("reward") and one.key("ppo") != other.key("ppo")
    assert make(tmp_path, algorithm="dpo", rejection__rounds="9").key("ppo") == make(tmp_path, algorithm="dpo").key(
        "ppo"
    )
