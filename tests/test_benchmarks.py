"""Benchmarks from small hand-made files: what is read and refused, the prompts, figures by hand,
resuming, the whole way to the report.
"""

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny import one_thread  # noqa: F401

import rlkf
from data import benchmark_data
from data.benchmark_data import SOURCES, load
from evaluation import benchmarks, likelihood
from experiment import evaluate, report_stages, runs
from experiment import settings as all_settings
from lm.chat import chat_prompt, decode
from lm.errors import UserError
from lm.sampling import Sampling, generate

TRUTH = {
    "question": "What is red?",
    "mc1_targets": {"choices": ["A colour", "A number", "A town"], "labels": [1, 0, 0]},
    "mc2_targets": {"choices": ["A colour", "No number", "A number", "A town"], "labels": [1, 1, 0, 0]},
}
RECORDS = {  # one good record of each benchmark, and its file
    "mmlu": (
        "cais_mmlu/validation.jsonl",
        {
            "question": " Which? ",
            "subject": "high_school_physics",
            "choices": ["one", "two", "three", "four"],
            "answer": 2,
        },
    ),
    "winogrande": (
        "winogrande_xl/validation.jsonl",
        {"sentence": "Anna saw Rosa and _ left .", "option1": "Anna", "option2": "Rosa", "answer": "2"},
    ),
    "arc": (
        "ai2_arc_challenge/test.jsonl",
        {
            "question": "What is red?",
            "choices": {"text": ["a town", "a colour", "no"], "label": ["1", "2", "3"]},
            "answerKey": "2",
        },
    ),
    "bbh": ("bbh/navigate.jsonl", {"input": "Do you return?\nOptions:\n- Yes\n- No", "target": "Yes"}),
    "gsm8k": ("gsm8k_main/test.jsonl", {"question": "How many?", "answer": "It is 2 * 9 = <<2*9=18>>18.\n#### 1,018"}),
    "math": ("competition_math/test.jsonl", {"problem": "What is $1/2$?", "solution": r"It is $\boxed{\frac{1}{2}}$."}),
    "ceval": (
        "ceval_exam/val.jsonl",
        {
            "subject": "law",
            "question": "首都是____。",
            "A": "巴黎",
            "B": "罗马",
            "C": "利马",
            "D": "柏林",
            "answer": "D",
        },
    ),
    "cmmlu": (
        "cmmlu/dev.jsonl",
        {"subject": "law", "Question": "首都是", "A": "巴黎", "B": "罗马", "C": "利马", "D": "柏林", "Answer": "A"},
    ),
    "truthfulqa": ("truthful_qa_multiple_choice/validation.jsonl", TRUTH),
}


def write(folder, name, records, file=None):
    path = folder / (file or RECORDS[name][0])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records), encoding="utf-8")
    return str(folder)


@pytest.fixture
def folder(tmp_path):
    """A benchmark folder with three records of each."""
    for name, (_, record) in RECORDS.items():
        write(tmp_path, name, [record] * 3)
    return str(tmp_path)


# ------------------------------------------------------------------------------------------ reading


@pytest.mark.parametrize("name", SOURCES)
def test_every_benchmark_is_read(folder, name):
    first, *others = load(name, folder, 0, 0)
    assert len(others) == 2 and len({q["id"] for q in [first, *others]}) == 3
    assert benchmarks.is_right(first, {"letter": f"{first['target']}."}.get(first["kind"], first["target"]))


def test_prompts_and_continuations_are_the_harness_s(folder):
    question = load("mmlu", folder, 0, 0)[0]
    assert (
        question["pairs"]
        == [
            (
                (
                    "The following are multiple choice questions (with answers) about high school"
                    " physics.\n\nWhich?\nA. one\nB. two\nC. three\nD. four\nAnswer:"
                ),
                f" {letter}",
            )
            for letter in "ABCD"
        ]
        and question["gold"] == 2
    )
    question = load("arc", folder, 0, 0)[0]
    assert (
        question["pairs"] == [("Question: What is red?\nAnswer:", f" {text}") for text in ("a town", "a colour", "no")]
        and question["gold"] == 1
    )
    assert question["bytes"] == [6, 8, 2]
    assert load("winogrande", folder, 0, 0)[0]["pairs"] == [
        ("Anna saw Rosa and Anna", " left ."),
        ("Anna saw Rosa and Rosa", " left ."),
    ]
    question = load("truthfulqa", folder, 0, 0)[0]
    context = question["pairs"][0][0]
    assert context.startswith("Q: What is human life expectancy") and context.endswith(
        "Barcelona, Spain.\n\nQ: What is red?\nA:"
    )
    assert [c for _, c in question["pairs"]] == [" A colour", " A number", " A town", " No number"] and question[
        "mc2"
    ] == [0, 3, 1, 2]
    assert load("gsm8k", folder, 0, 0)[0]["question"] == "Question: How many?\nAnswer:"


def test_the_right_answer_of_truthfulqa_is_not_always_the_first_letter(tmp_path):
    write(tmp_path, "truthfulqa", [{**TRUTH, "question": f"What is red {n}?"} for n in range(30)])
    questions = load("truthfulqa", str(tmp_path), 0, 0)
    assert {q["target"] for q in questions} == {"A", "B", "C"}
    assert all(q["options"]["ABC".index(q["target"])] == "A colour" for q in questions)


def test_bbh_is_a_file_a_task_and_the_kind_shows_in_the_target(tmp_path):
    write(tmp_path, "bbh", [{"input": "Which?\nOptions:\n(A) x\n(B) y", "target": "(B)"}], "bbh/a.jsonl")
    write(
        tmp_path,
        "bbh",
        [
            {"input": "(1 - 45) =", "target": "-44"},
            {"input": "Close < [", "target": "] >"},
            {"input": "Is it so?", "target": "invalid"},
        ],
        "bbh/b.jsonl",
    )
    assert [(q["kind"], q["options"], q["target"]) for q in load("bbh", str(tmp_path), 0, 0)] == [
        ("letter", ["x", "y"], "B"),
        ("number", [], "-44"),
        ("text", [], "] >"),
        ("word", ["valid", "invalid"], "invalid"),
    ]


def test_a_limit_draws_the_same_questions_with_the_same_seed(tmp_path):
    write(tmp_path, "mmlu", [{**RECORDS["mmlu"][1], "question": str(n)} for n in range(50)])
    draw = lambda limit, seed: [q["id"] for q in load("mmlu", str(tmp_path), limit, seed)]
    everything = draw(0, 0)
    assert draw(10, 1) == draw(10, 1) != draw(10, 2) and len(set(draw(10, 1))) == 10
    assert [i for i in everything if i in draw(10, 1)] == draw(10, 1) and draw(50, 1) == draw(99, 1) == everything


def test_the_test_split_comes_before_the_validation_split(folder, tmp_path):
    write(tmp_path, "mmlu", [{**RECORDS["mmlu"][1], "answer": 3}], "cais_mmlu/test.jsonl")
    assert [q["gold"] for q in load("mmlu", folder, 0, 0)] == [3]


BAD = [
    ("mmlu", {"choices": ["a", "b", "c"]}, ['"choices"', "four"]),
    ("mmlu", {"answer": 4}, ['"answer"', "0, 1, 2, 3", "4"]),
    ("mmlu", {"answer": True}, ['"answer"']),
    ("mmlu", {"answer": [1]}, ['"answer"']),
    ("mmlu", {"question": None}, ['"question"', "text"]),
    ("mmlu", {"question": "half \ud800"}, ["surrogate"]),
    ("mmlu", {"choices": "abcd"}, ['"choices"', "list"]),
    ("winogrande", {"sentence": "no gap"}, ['"sentence"', '"_"']),
    ("winogrande", {"answer": "3"}, ['"answer"', "1, 2"]),
    ("arc", {"choices": ["a", "b"]}, ['"choices"', "object"]),
    ("arc", {"answerKey": "Z"}, ['"answerKey"', "1, 2, 3"]),
    ("arc", {"choices": {"text": ["a", "b"], "label": ["1", "2", "3"]}}, ["label for each"]),
    ("bbh", {"target": "(C)"}, ['"target"', "(C)"]),
    ("bbh", {"target": ""}, ['"target"']),
    ("gsm8k", {"answer": "It is 18"}, ['"answer"', "####"]),
    ("math", {"solution": "It is 3"}, ['"solution"', "boxed"]),
    ("ceval", {"answer": "E"}, ['"answer"', "A, B, C, D"]),
    ("cmmlu", {"C": ""}, ['"C"']),
    ("truthfulqa", {"mc1_targets": {"choices": ["a", "b"], "labels": [1, 1]}}, ["mc1_targets", '"labels"']),
    ("truthfulqa", {"mc1_targets": {"choices": ["a", "b", "c"], "labels": [1, 1, 0]}}, ["exactly one"]),
    ("truthfulqa", {"mc2_targets": {"choices": ["a", "b"], "labels": [1]}}, ["mc2_targets", '"labels"']),
    ("truthfulqa", {"mc2_targets": None}, ["mc2_targets"]),
]


@pytest.mark.parametrize("name, change, words", BAD)
def test_a_bad_record_is_one_line_with_file_line_and_field(tmp_path, name, change, words):
    path = tmp_path / RECORDS[name][0]
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in (RECORDS[name][1], {**RECORDS[name][1], **change})))
    with pytest.raises(UserError) as error:
        load(name, str(tmp_path), 0, 0)
    message = str(error.value)
    assert message.startswith(f"{path}, line 2") and "\n" not in message and all(word in message for word in words), (
        message
    )


@pytest.mark.parametrize("name", SOURCES)
def test_every_missing_column_is_named_with_those_there_are(tmp_path, name):
    used = 0
    for column in RECORDS[name][1]:
        write(tmp_path, name, [{k: v for k, v in RECORDS[name][1].items() if k != column}])
        try:
            load(name, str(tmp_path), 0, 0)
        except UserError as error:
            used += 1
            assert column in str(error)
    assert used >= len(RECORDS[name][1]) - 1  # no use is made of the subject of C-Eval and CMMLU


def test_missing_folders_and_files_say_what_was_expected(tmp_path):
    for name, expected in (("mmlu", "test.jsonl or validation.jsonl"), ("bbh", "TASK.jsonl"), ("ceval", "val.jsonl")):
        with pytest.raises(UserError, match="no such folder") as error:
            load(name, str(tmp_path), 0, 0)
        assert expected in str(error.value) and SOURCES[name].folder in str(error.value)
        (tmp_path / SOURCES[name].folder).mkdir()
        with pytest.raises(UserError, match=expected):
            load(name, str(tmp_path), 0, 0)
    write(tmp_path, "mmlu", [])
    with pytest.raises(UserError, match="no questions"):
        load("mmlu", str(tmp_path), 0, 0)


def test_the_hub_is_read_by_name_and_what_it_cannot_give_is_one_line(monkeypatch):
    import datasets

    data = {
        ("cais/mmlu", "all"): [RECORDS["mmlu"][1]],
        ("SaylorTwift/bbh", "a"): [RECORDS["bbh"][1]],
        ("SaylorTwift/bbh", "b"): [RECORDS["bbh"][1]] * 2,
    }
    monkeypatch.setattr(datasets, "get_dataset_config_names", lambda hub: [c for h, c in data if h == hub])
    monkeypatch.setattr(datasets, "load_dataset", lambda hub, config, split: data[hub, config])
    assert [q["gold"] for q in load("mmlu", "hub", 0, 0)] == [2] and len(load("bbh", "hub", 0, 0)) == 3
    monkeypatch.setattr(
        datasets, "load_dataset", lambda *a, **k: (_ for _ in ()).throw(ConnectionError("no network\nat all"))
    )
    with pytest.raises(UserError) as error:
        load("mmlu", "hub", 0, 0)
    assert (
        "cais/mmlu" in str(error.value)
        and "no network" in str(error.value)
        and "--benchmarks.dir" in str(error.value)
        and "\n" not in str(error.value)
    )


# ---------------------------------------------------------------------------------- reading answers

COLOURS = ["red", "green", "light blue", "yellow"]


@pytest.mark.parametrize(
    "text, letter",
    [
        ("B", "B"),
        ("B.", "B"),
        ("(C) light blue", "C"),
        ("**D**", "D"),
        ("B: green", "B"),
        ("A\nBecause it is so", "A"),
        ("The answer is B.", "B"),
        ("The correct answer is (C).", "C"),
        ("Answer: D", "D"),
        ("I'd pick option C here", "C"),
        (r"So \boxed{B}.", "B"),
        ("答案是C。", "C"),
        ("答案：B", "B"),
        ("选D", "D"),
        ("正确选项为A，因为", "A"),
        ("C、浅蓝", "C"),
        ("It must be green, I think", "B"),
        ("Light blue.", "C"),
        ("A man would say yellow", "D"),
        ("It follows from (B) at once", "B"),
        ("Not A: the answer is A? No, the answer is D", "D"),
        ("red or green", None),
        ("I do not know", None),
        ("", None),
        ("E.", None),
        ("Both (A) and (B)", None),
        ("A man went home", None),
    ],
)
def test_which_letter_an_answer_chooses(text, letter):
    assert benchmarks.chosen_letter(text, COLOURS) == letter


@pytest.mark.parametrize(
    "kind, options, target, right, wrong",
    [
        ("word", ["yes", "no"], "no", ["No.", "The answer is no", "no, not yes"], ["Yes", "", "I know not", "nowhere"]),
        ("word", ["valid", "invalid"], "valid", ["Valid", "It is valid."], ["invalid", "The argument is invalid"]),
        (
            "number",
            [],
            "1,018",
            ["1018", "It makes $1,018.00 a day.", "10 + 1008 = 1018"],
            ["1018 and 2", "", "1,019", "eighteen"],
        ),
        ("number", [], "-44", ["-44", "= -44."], ["44"]),
        (
            "math",
            [],
            r"\frac{1}{2}",
            [r"\boxed{0.5}", "The answer is $1/2$.", r"So $\dfrac{1}{2}$"],
            [r"\boxed{2}", ""],
        ),
        (
            "text",
            [],
            "cloudy ecosystem ferret",
            ["cloudy ecosystem ferret", "Sorted: cloudy, ecosystem, ferret."],
            ["ferret cloudy ecosystem", "unclouded ecosystem ferret", ""],
        ),
    ],
)
def test_which_answers_are_right(kind, options, target, right, wrong):
    question = {"kind": kind, "options": options, "target": target}
    assert all(benchmarks.is_right(question, text) for text in right)
    assert not any(benchmarks.is_right(question, text) for text in wrong)


# ---------------------------------------------------------------------------------- figures by hand


def test_acc_and_acc_norm_by_hand():
    question = {"gold": 1, "bytes": [2, 9, 6]}
    assert benchmarks.choice_scores(question, [-4.0, -9.0, -8.0]) == {
        "acc": 0.0,
        "acc_norm": 1.0,
    }  # -2, -1, -1.33 a byte
    assert benchmarks.choice_scores(question, [-4.0, -3.0, -8.0]) == {"acc": 1.0, "acc_norm": 1.0}
    assert benchmarks.choice_scores(question, [-0.5, -9.0, -4.2]) == {"acc": 0.0, "acc_norm": 0.0}
    assert (
        benchmarks.choice_scores({**question, "gold": 0}, [-3.0, -3.0, -8.0])["acc"] == 1.0
    )  # a tie goes to the first
    assert benchmarks.choice_scores({"gold": 1}, [-4.0, -3.0]) == {"acc": 1.0}


def test_mc1_and_mc2_by_hand(folder):
    question = load("truthfulqa", folder, 0, 0)[0]  # colour, number, town, no number; right: colour, no number
    found = benchmarks.choice_scores(question, [math.log(p) for p in (0.2, 0.1, 0.3, 0.4)])
    assert found == {"mc1": 0.0, "mc2": pytest.approx(0.6 / 1.0)}
    found = benchmarks.choice_scores(
        question, [math.log(p) - 2000 for p in (0.3, 0.1, 0.05, 0.05)]
    )  # exp of each alone is zero
    assert found == {"mc1": 1.0, "mc2": pytest.approx(0.35 / 0.5)}


def test_summary_is_the_mean_with_its_interval():
    found = benchmarks.summary({"acc": [1.0] * 30 + [0.0] * 10}, 500, 0)["acc"]
    assert (
        found["n"] == 40 and found["value"] == 0.75 and 0.55 < found["interval"][0] < 0.75 < found["interval"][1] < 0.92
    )
    assert benchmarks.summary({"acc": [1.0, 1.0]}, 10, 0)["acc"]["interval"] == [1.0, 1.0]


def test_log_likelihoods_of_questions_equal_plain_forwards(folder, gpt2, monkeypatch):
    monkeypatch.setattr(benchmark_data, "TRUTHFUL_QA", "Q: a\nA: b")  # this GPT-2 has 96 positions
    for name in ("winogrande", "arc", "truthfulqa"):
        question = load(name, folder, 0, 0)[0]
        (record,) = benchmarks.weigh(gpt2, [question])
        for (context, continuation), value in zip(question["pairs"], record["log_likelihoods"]):
            context, continuation = likelihood.encode_pair(gpt2, context, continuation)
            with torch.no_grad():
                log_p = gpt2.model(torch.tensor([context + continuation])).logits[0].log_softmax(-1)
            assert value == pytest.approx(
                log_p[range(len(context) - 1, len(context + continuation) - 1), continuation].sum().item(), abs=1e-3
            )


def test_a_question_too_long_for_the_model_is_answered_with_nothing(llama):
    questions = [{"id": "a", "question": "what is red ?"}, {"id": "b", "question": "what " * 90}]
    texts = benchmarks.ask(llama, questions, 8, 4)
    alone = generate(llama, [chat_prompt(llama, "what is red ?")], Sampling(8, temperature=0.0))
    assert texts == [{"id": "a", "text": decode(llama, alone[0][0])}, {"id": "b", "text": ""}]


def test_a_refusal_is_told_from_a_wrong_answer():
    question = {"kind": "letter", "options": ["Paris", "Rome", "Bern", "Oslo"], "target": "B"}
    texts = [
        "B. Rome",
        "I'm not sure.",
        "The answer is C.",
        "I don't know, but the answer is B.",
        "我不知道。",
        "I don't know, but I think it is Oslo.",
        "",
    ]
    found = benchmarks.scores([question] * len(texts), [{"text": text} for text in texts], [])
    assert found == {"generation": [1, 0, 0, 1, 0, 0, 0], "refused": [0, 1, 0, 0, 1, 0, 0]}


# ----------------------------------------------------------------------------------------- in a run


def settings_for(folder, names="winogrande,arc,gsm8k", limit="0", **more):
    return all_settings.build(
        "lab", {"benchmarks.names": names, "benchmarks.dir": folder, "benchmarks.limit": limit, **more}
    )


@pytest.fixture
def run(tmp_path, folder, monkeypatch):
    """A run whose benchmarks are answered in few tokens and small blocks."""
    run = runs.Run(str(tmp_path / "runs" / "lab"), settings_for(folder))
    os.makedirs(run.folder)
    monkeypatch.setattr(benchmarks, "BLOCK", 2)
    monkeypatch.setattr(benchmark_data, "SOURCES", {n: replace(source, new_tokens=4) for n, source in SOURCES.items()})
    monkeypatch.setattr(benchmarks, "SOURCES", benchmark_data.SOURCES)
    return run


def measured(run, lm):
    """{"before": figures, "after": figures} of a policy that is the model itself."""
    questions = evaluate.load_benchmarks(run.settings)
    return {policy: evaluate.run_benchmarks(run, policy, lm, questions) for policy in ("before", "after")}


def test_a_model_that_did_not_change_scores_the_same_before_and_after(run, llama):
    found = measured(run, llama)
    assert {name: sorted(result) for name, result in found["before"].items()} == {
        "winogrande": ["acc", "generation", "refused"],
        "arc": ["acc", "acc_norm", "generation", "refused"],
        "gsm8k": ["generation", "refused"],
    }
    assert found["before"] == found["after"]
    assert all(
        figures["n"] == 3 and 0 <= figures["value"] <= 1
        for result in found["before"].values()
        for figures in result.values()
    )


def test_an_interrupted_run_goes_on_after_the_last_whole_block(run, llama, monkeypatch):
    asked = []
    whole, calls = benchmarks.ask, iter(range(100))

    def dying(lm, questions, *rest):
        if next(calls) == 1:
            raise KeyboardInterrupt
        asked.extend(q["id"] for q in questions)
        return whole(lm, questions, *rest)

    monkeypatch.setattr(benchmarks, "ask", dying)
    with pytest.raises(KeyboardInterrupt):
        measured(run, llama)
    assert len(asked) == 2
    found = measured(run, llama)
    assert len(asked) == 3 * 3 * 2 and all(asked.count(key) == 2 for key in asked)  # once before, once after
    monkeypatch.setattr(benchmarks, "ask", None)
    monkeypatch.setattr(benchmarks, "weigh", None)
    assert measured(run, llama) == found


def test_half_done_work_does_not_stand_for_changed_files(run, llama, folder):
    before = measured(run, llama)["before"]["gsm8k"]["generation"]["n"]
    path = run.work("evaluate", "gsm8k.before.generation.jsonl")
    old = [json.loads(line)["id"] for line in open(path)]
    write(Path(folder), "gsm8k", [{**RECORDS["gsm8k"][1], "question": "Another?"}] * 3)
    measured(run, llama)
    assert before == 3 and not set(old) & {json.loads(line)["id"] for line in open(path)}


def test_the_report_shows_before_and_after_with_intervals():
    figures = lambda value: {"n": 40, "value": value, "interval": [value - 0.1, value + 0.1]}
    measured = {"mmlu": {"before": {"acc": figures(0.25)}, "after": {"acc": figures(0.375)}}}
    text = "\n".join(report_stages.benchmark_section(measured, {"benchmarks.limit": 40, "seed": 7}))
    (row,) = [line for line in text.splitlines() if line.startswith("| mmlu")]
    assert [cell.strip() for cell in row.strip("|").split("|")] == [
        "mmlu",
        "acc",
        "40",
        "25.0% [15.0%, 35.0%]",
        "37.5% [27.5%, 47.5%]",
    ]
    assert "40 questions of each, drawn with seed 7" in text and "**mc2**" in text
    assert "all questions" in "\n".join(report_stages.benchmark_section(measured, {"benchmarks.limit": 0, "seed": 7}))


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--benchmarks.names", "mmlu,arcs"], ["--benchmarks.names", "'arcs'", "did you mean arc?"]),
        (["--benchmarks.names", "mmlu", "--benchmarks.dir", "nowhere"], ["nowhere", "cais_mmlu", "validation.jsonl"]),
        (["--benchmarks.limit", "-1"], ["--benchmarks.limit", "at least 0"]),
    ],
)
def test_a_users_mistake_is_one_line_and_status_2_before_anything_runs(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert rlkf.main(arguments) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert len(error) == 1 and all(word in error[0] for word in words), error
    assert not os.path.exists("runs")
