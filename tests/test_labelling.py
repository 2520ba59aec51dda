"""The labelling tool from end to end on a tiny model, killed and resumed, and against bad files."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from experiment import labelling
from lm import model as language_model
from lm.sampling import generate
from reading import answers

QUESTIONS = [
    {"question": "what is the capital of france ?", "answers": ["paris"]},
    {"question": "who wrote hamlet ?", "answers": ["shakespeare"]},
    {"question": "what is the capital of peru ?", "answers": ["lima"], "id": "peru"},
]
NORMAL = [
    ["paris", "it is paris", "rome"],
    ["i do not know", "i am not sure, but shakespeare", "lima"],
    ["berlin", "", "\U0001f600 \x00 مرحبا 北京"],
]


@pytest.fixture(scope="module")
def model(llama, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    language_model.save(llama, folder)
    return str(folder)


def written(path, records):
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records), encoding="utf-8")
    return str(path)


def read(path):
    return [json.loads(line) for line in open(path, encoding="utf-8")]


@pytest.fixture
def made(tmp_path, model):
    """Arguments that label generations made elsewhere, in another order than the questions."""
    ids = ["line-1", "line-2", "peru"]
    generations = written(
        tmp_path / "made.jsonl", [{"id": i, "normal": n} for i, n in reversed(list(zip(ids, NORMAL)))]
    )
    return [
        "--questions",
        written(tmp_path / "questions.jsonl", QUESTIONS),
        "--generations",
        generations,
        "--embedder",
        model,
        "--out",
        str(tmp_path / "labels.jsonl"),
    ]


def test_generations_made_elsewhere_are_read_by_id_and_labelled(made, capsys):
    assert labelling.main(made) == 0
    records = read(made[-1])
    assert [r["id"] for r in records] == ["line-1", "line-2", "peru"] and [r["normal"] for r in records] == NORMAL
    assert [r["readings"] for r in records] == [
        ["right", "right", "wrong"],
        ["refusal", "hedged", "wrong"],
        ["wrong", "empty", "wrong"],
    ]
    assert [r["correct"] for r in records] == [[True, True, False], [False, True, False], [False] * 3]
    assert [r["state"] for r in records] == ["known", "mixed", "unknown"]
    shown = capsys.readouterr().out
    assert (
        "1 known, 1 unknown, 1 mixed" in shown
        and "2 right, 1 hedged, 4 wrong, 1 refusal, 1 empty" in shown
        and "AUROC of the factuality for right answers, en: " in shown
    )
    assert (
        labelling.main([*made, "--rule", "median"]) == 0
        and "agreement with the given answers, en: accuracy" in capsys.readouterr().out
    )
    assert not os.path.exists(made[-1] + ".work")


def test_a_model_answers_the_same_alone_and_interrupted_and_resumed(tmp_path, model, monkeypatch):
    many = [
        {"question": f"who wrote {word} ?", "answers": ["paris"], "id": word}
        for word in "france germany italy spain peru hamlet".split()
    ]
    arguments = [
        "--questions",
        written(tmp_path / "q.jsonl", many),
        "--model",
        model,
        "--k",
        "2",
        "--max-new-tokens",
        "4",
        "--out",
    ]
    monkeypatch.setattr(labelling, "AT_ONCE", 2)
    assert labelling.main([*arguments, str(tmp_path / "whole.jsonl")]) == 0
    calls = []

    def interrupted(*args, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    real = generate
    monkeypatch.setattr(labelling, "generate", interrupted)
    assert labelling.main([*arguments, str(tmp_path / "torn.jsonl")]) == 130
    with open(tmp_path / "torn.jsonl.work", "a", encoding="utf-8") as f:
        f.write('{"id": "italy", "torn')
    assert labelling.main([*arguments, str(tmp_path / "torn.jsonl")]) == 0
    assert len(calls) == 4, "the first block is not asked twice"
    assert read(tmp_path / "torn.jsonl") == read(tmp_path / "whole.jsonl")
    assert labelling.main([*arguments, str(tmp_path / "one.jsonl"), "--rule", "median"]) == 0
    assert [r["normal"] for r in read(tmp_path / "one.jsonl")] == [r["normal"] for r in read(tmp_path / "whole.jsonl")]


def test_what_other_settings_left_is_not_mixed_in(tmp_path, model, capsys):
    arguments = [
        "--questions",
        written(tmp_path / "q.jsonl", QUESTIONS),
        "--model",
        model,
        "--k",
        "2",
        "--max-new-tokens",
        "3",
        "--out",
        str(tmp_path / "o.jsonl"),
    ]
    written(tmp_path / "o.jsonl.work", [{"made with": "something else"}, {"id": "line-1", "normal": ["x"]}])
    assert labelling.main(arguments) == 0
    assert "starting again" in capsys.readouterr().out and [r["id"] for r in read(tmp_path / "o.jsonl")] == [
        "line-1",
        "line-2",
        "peru",
    ]


def test_without_answers_the_scores_alone_decide_and_that_is_said(tmp_path, model, capsys):
    unanswered = written(tmp_path / "q.jsonl", [{"question": q["question"]} for q in QUESTIONS])
    out = str(tmp_path / "o.jsonl")
    assert (
        labelling.main(["--questions", unanswered, "--model", model, "--k", "3", "--max-new-tokens", "4", "--out", out])
        == 0
    )
    shown = capsys.readouterr().out
    assert "rule threshold" in shown and "s_o2a and s_s2a are left out" in shown
    assert all("s_o2a" not in r and "s_s2g" in r for r in read(out))
    assert labelling.main(["--questions", unanswered, "--model", model, "--rule", "gold", "--out", out]) == 2
    assert "needs answers" in capsys.readouterr().err


def test_agreement_with_people_is_counted_by_language(made, tmp_path, capsys):
    human = written(
        tmp_path / "human.jsonl",
        [
            {"id": "line-1", "sample": 0, "label": "right"},
            {"id": "line-1", "sample": 2, "label": "right"},
            {"id": "line-2", "sample": 0, "label": "refusal"},
            {"id": "peru", "sample": 0, "label": "wrong"},
        ],
    )
    assert labelling.main([*made, "--human", human]) == 0
    shown = capsys.readouterr().out
    assert (
        "agreement with people, en, correct: accuracy 0.750, precision 1.000, recall 0.500, kappa 0.500, n 4" in shown
    )
    assert "agreement with people, all, refusal: accuracy 1.000" in shown


@pytest.mark.parametrize(
    "change, words",
    [
        ({"human": [{"id": "peru", "sample": 9, "label": "wrong"}]}, ("human.jsonl, line 1", "sample")),
        ({"human": [{"id": "nobody", "sample": 0, "label": "wrong"}]}, ("human.jsonl, line 1", "nobody")),
        ({"human": [{"id": "peru", "sample": 0, "label": "maybe"}]}, ("human.jsonl, line 1", "label")),
        ({"made": [{"id": "line-1", "normal": []}]}, ("made.jsonl, line 1", "normal")),
        (
            {"made": [{"id": "line-1", "normal": ["a"]}, {"id": "line-2", "normal": ["a", "b"]}]},
            ("made.jsonl, line 2", "2 texts"),
        ),
        ({"made": [{"id": "line-1", "normal": ["a"]}]}, ("made.jsonl", "line-2")),
        ({"questions": []}, ("questions.jsonl", "no questions")),
        ({"questions": [QUESTIONS[0], {"question": "who ?"}]}, ("questions.jsonl, line 2", "answers")),
        ({"questions": [{"question": "who ?"}, QUESTIONS[0]]}, ("questions.jsonl, line 2", "answers")),
    ],
)
def test_bad_files_are_refused_in_one_line(made, tmp_path, capsys, change, words):
    for name, records in change.items():
        written(tmp_path / f"{name}.jsonl", records)
    assert labelling.main(made + (["--human", str(tmp_path / "human.jsonl")] if "human" in change else [])) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[-1].startswith("error: ") and all(word in lines[-1] for word in words)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--model", "m", "--generations", "g"],
        ["--generations", "g"],
        ["--model", "m", "--k", "0"],
        ["--model", "m", "--device", "tpu"],
    ],
)
def test_arguments_that_do_not_fit_are_refused(tmp_path, capsys, arguments):
    questions = written(tmp_path / "q.jsonl", QUESTIONS)
    assert labelling.main(["--questions", questions, "--out", str(tmp_path / "o"), *arguments]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_one_question_and_one_answer_are_labelled(tmp_path, model):
    out = str(tmp_path / "o.jsonl")
    assert (
        labelling.main(
            [
                "--questions",
                written(tmp_path / "q.jsonl", QUESTIONS[:1]),
                "--model",
                model,
                "--k",
                "1",
                "--max-new-tokens",
                "2",
                "--out",
                out,
            ]
        )
        == 0
    )
    (record,) = read(out)
    assert record["s_s2g"] == [1.0] and record["state"] == (
        "known" if answers.is_correct(record["readings"][0]) else "unknown"
    )
    assert np.isfinite(record["factuality"]).all()


def changed(arguments, **given):
    """The arguments with other values."""
    return [given.get(before.removeprefix("--"), word) for before, word in zip(["", *arguments], arguments)]


@pytest.mark.parametrize(
    "out, words",
    [
        ("questions.jsonl", "would overwrite --questions"),
        ("made.jsonl", "would overwrite --generations"),
        ("", "expected the name of a file"),
        ("results", "not of a folder"),
        ("results/", "not of a folder"),
        ("nowhere/labels.jsonl", "there is no folder"),
        ("other", "is in the way"),
    ],
)
def test_what_the_user_has_is_never_overwritten(out, words, made, tmp_path, capsys):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "mine.txt").write_text("mine")
    (tmp_path / "other.work").write_text('{"question": "mine"}\n')
    files = lambda: {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    before = files()
    assert labelling.main(changed(made, out=out and f"{tmp_path}/{out}")) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and words in error and files() == before


def test_questions_that_lie_where_half_done_work_would_are_kept(made, tmp_path, capsys):
    (tmp_path / "labels.jsonl.work").write_bytes((tmp_path / "questions.jsonl").read_bytes())
    assert labelling.main(changed(made, questions=str(tmp_path / "labels.jsonl.work"))) == 2
    assert "would overwrite --questions" in capsys.readouterr().err and len(read(tmp_path / "labels.jsonl.work")) == 3


def test_corrected_generations_are_labelled_anew(made, monkeypatch, capsys):
    monkeypatch.setattr(labelling, "AT_ONCE", 1)
    append = labelling.append_jsonl

    def dying(path, lines):
        append(path, lines)
        if "id" in lines[0]:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(labelling, "append_jsonl", dying)
        assert labelling.main(made) == 130
    path = made[made.index("--generations") + 1]
    written(Path(path), [{**record, "normal": ["paris"] * 3} for record in read(path)])
    assert labelling.main(made) == 0
    assert (
        all(record["normal"] == ["paris"] * 3 for record in read(made[-1]))
        and "starting again" in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    "line, words",
    [
        ('{"normal": ["a", "b", "c"]}', '"id" must be'),
        ('{"id": "peru", "normal": ["a", "b", "c"]}', "is already that of line 1"),
        ('{"id": "x", "normal": ["a", "b", "\\ud800"]}', "whole characters"),
    ],
)
def test_bad_lines_of_generations_are_named(line, words, made, capsys):
    path = made[made.index("--generations") + 1]
    with open(path, "a", encoding="utf-8") as f:
        f.write(line + "\n")
    assert labelling.main(made) == 2
    assert f"{path}, line 4: " in (error := capsys.readouterr().err) and words in error


def test_a_threshold_needs_two_generations(tmp_path, model, capsys):
    questions = written(tmp_path / "q.jsonl", [{"question": "who wrote hamlet ?", "id": "a"}])
    generations = written(tmp_path / "g.jsonl", [{"id": "a", "normal": ["paris"]}])
    assert (
        labelling.main(
            [
                "--questions",
                questions,
                "--generations",
                generations,
                "--embedder",
                model,
                "--out",
                str(tmp_path / "o.jsonl"),
            ]
        )
        == 2
    )
    assert "needs two generations" in capsys.readouterr().err


def test_a_wrong_file_of_peoples_labels_is_said_before_anything_is_labelled(made, tmp_path, capsys):
    assert labelling.main([*made, "--human", written(tmp_path / "people.jsonl", [{"id": "peru"}])]) == 2
    assert (
        "people.jsonl, line 1" in capsys.readouterr().err
        and not os.path.exists(tmp_path / "labels.jsonl")
        and not os.path.exists(tmp_path / "labels.jsonl.work")
    )


@pytest.mark.parametrize("arguments", [["--k", "five"], ["--nonsense"], []])
def test_what_argparse_refuses_is_one_line_too(arguments, capsys):
    assert labelling.main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1
