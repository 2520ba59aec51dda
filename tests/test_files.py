"""Files: what a user's mistake in one is answered with, and that nothing is ever left half
written.
"""

import json
import os
import subprocess
import sys

import pytest
from safetensors import SafetensorError

from data.files import append_jsonl, read_json, read_jsonl, read_lines, whole_folder, write_json, write_jsonl
from data.questions import read_questions
from lm.errors import UserError, exit_status

GOOD = {"question": "Who?", "answers": ["me"]}


def written(tmp_path, *lines, encoding="utf-8"):
    """A file of these lines (texts or records); returns its path as text."""
    path = tmp_path / "questions.jsonl"
    path.write_bytes(
        "".join(
            (line if isinstance(line, str) else json.dumps(line, ensure_ascii=False)) + "\n" for line in lines
        ).encode(encoding)
    )
    return str(path)


def complaint(function, path):
    """The message of the UserError that `function(path)` raises: one line that begins with the
    file.
    """
    with pytest.raises(UserError) as caught:
        result = function(path)
        list(result) if function is read_lines else result
    message = str(caught.value)
    assert message.startswith(path) and "\n" not in message
    return message


# ------------------------------------------------------------------------------ JSON and JSON lines


@pytest.mark.parametrize("function", [read_json, read_lines, read_jsonl, read_questions])
def test_a_missing_file_and_a_folder_are_named(function, tmp_path):
    assert "No such file" in complaint(function, str(tmp_path / "none.jsonl"))
    assert "directory" in complaint(function, str(tmp_path))


def test_json_that_is_not_json_is_named(tmp_path):
    assert "not JSON" in complaint(read_json, written(tmp_path, '{"a": 1'))


@pytest.mark.parametrize("bad", ["{'a': 1}", '{"a": 1', "nonsense", "[" * 100_000])
def test_a_line_that_is_not_json_is_named_by_its_number(bad, tmp_path):
    assert ", line 3: not JSON" in complaint(read_lines, written(tmp_path, GOOD, "", bad, GOOD))


@pytest.mark.parametrize("bad, kind", [("[1]", "list"), ('"text"', "str"), ("3", "int"), ("null", "NoneType")])
def test_a_line_must_hold_an_object(bad, kind, tmp_path):
    message = complaint(read_lines, written(tmp_path, GOOD, bad))
    assert ", line 2: expected a JSON object" in message and kind in message


def test_blank_lines_are_passed_over_but_counted(tmp_path):
    assert list(read_lines(written(tmp_path, "", {"a": 1}, "  ", {"a": 2}))) == [(2, {"a": 1}), (4, {"a": 2})]


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    assert read_jsonl(written(tmp_path, GOOD, encoding="utf-8-sig")) == [GOOD]


@pytest.mark.parametrize("encoding", ["utf-16", "gb18030", "latin-1"])
def test_text_that_is_not_utf8_is_named(encoding, tmp_path):
    question = {"question": "é" if encoding == "latin-1" else "谁？", "answers": ["me"]}
    assert "not UTF-8" in complaint(read_questions, written(tmp_path, question, encoding=encoding))


@pytest.mark.parametrize("before", [0, 2, 500])
def test_a_line_that_is_not_utf8_is_named_by_its_number(before, tmp_path):
    path = written(tmp_path, *[GOOD] * before)
    with open(path, "ab") as f:
        f.write(b'{"question": "caf\xe9", "answers": ["me"]}\n' + json.dumps(GOOD).encode() + b"\n")
    assert f", line {before + 1}: not UTF-8" in complaint(read_lines, path)


# ------------------------------------------------------------------------------------------ writing

RECORDS = [
    {"id": "一", "question": "法国的首都是哪里？", "answers": ["巴黎", "Paris\nor so"]},
    {"id": "2", "x": [1.5, None, True], "nested": {"é": "\u2028"}},
]


def test_jsonl_comes_back_as_it_was_written(tmp_path):
    path = str(tmp_path / "new" / "records.jsonl")
    write_jsonl(path, RECORDS)
    assert read_jsonl(path) == RECORDS
    assert "法国的首都是哪里？" in (tmp_path / "new" / "records.jsonl").read_text(encoding="utf-8"), (
        "Chinese is readable on the disk"
    )
    assert os.listdir(tmp_path / "new") == ["records.jsonl"]


def test_json_comes_back_as_it_was_written(tmp_path):
    write_json(str(tmp_path / "value.json"), RECORDS)
    assert read_json(str(tmp_path / "value.json")) == RECORDS


def test_appending_keeps_what_is_there(tmp_path):
    path = str(tmp_path / "log.jsonl")
    for record in RECORDS:
        append_jsonl(path, [record])
    assert read_jsonl(path) == RECORDS


@pytest.mark.parametrize("write", [write_json, lambda path, value: write_jsonl(path, [{"fine": 1}, value])])
def test_a_failed_write_leaves_the_old_file(write, tmp_path):
    path = str(tmp_path / "value.json")
    write_json(path, {"old": 1})
    with pytest.raises(TypeError):
        write(path, {"new": 2, "bad": object()})
    assert read_json(path) == {"old": 1}


def test_a_whole_folder_replaces_another_only_when_the_block_ends_well(tmp_path):
    path = str(tmp_path / "stage")
    for text in ("first", "second"):
        with whole_folder(path) as part:
            open(os.path.join(part, f"{text}.txt"), "w").close()
            assert not os.path.exists(os.path.join(path, f"{text}.txt")), "nothing is seen before the end"
        assert os.listdir(path) == [f"{text}.txt"], "nothing of the old folder stays"
    with pytest.raises(KeyboardInterrupt):
        with whole_folder(path) as part:
            open(os.path.join(part, "third.txt"), "w").close()
            raise KeyboardInterrupt
    assert os.listdir(path) == ["second.txt"]
    with whole_folder(path):  # what the interrupted block left is in nobody's way
        pass
    assert os.listdir(path) == [] and os.listdir(tmp_path) == ["stage"]


def test_a_whole_file_overwrites_what_an_interrupted_write_left(tmp_path):
    (tmp_path / "value.json.part").write_text("torn")
    write_json(str(tmp_path / "value.json"), 1)
    assert read_json(str(tmp_path / "value.json")) == 1 and os.listdir(tmp_path) == ["value.json"]


@pytest.mark.parametrize("taken", ["value.json", "value.json.part"])
def test_a_folder_in_the_way_of_a_file_stays(taken, tmp_path):
    (tmp_path / taken).mkdir()
    (tmp_path / taken / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="is in the way"):
        write_json(str(tmp_path / "value.json"), 1)
    assert (tmp_path / taken / "mine.txt").read_text() == "mine"


def test_a_pipe_is_refused_as_files_are_read_more_than_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="a pipe; expected a file"):
        read_jsonl(str(tmp_path / "pipe"))


def test_a_subject_or_category_of_zero_is_one(tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_text(
        '{"question": "a", "answers": ["b"], "subject": 0, "category": 0}\n{"question": "c", "answers": ["d"],'
        ' "subject": "", "category": null}\n'
    )
    assert [(q["subject"], q["category"]) for q in read_questions(str(path))] == [("0", "0"), ("line-2", "all")]


# ---------------------------------------------------------------------------------------- questions


def test_questions_get_the_fields_that_they_lack(tmp_path):
    full = {
        "id": 7,
        "question": "谁？",
        "answers": ["我"],
        "lang": "zh",
        "category": "people",
        "subject": "s",
        "extra": [1],
        "true_state": "known",
    }
    first, second = read_questions(written(tmp_path, "", GOOD, full))
    assert first == {**GOOD, "id": "line-2", "lang": "en", "category": "all", "subject": "line-2"}
    assert second == {**full, "id": "7"}


@pytest.mark.parametrize(
    "change, words",
    [
        ({"question": None}, '"question"'),
        ({"question": "  "}, '"question"'),
        ({"question": 3}, '"question"'),
        ({"answers": []}, '"answers"'),
        ({"answers": [""]}, '"answers"'),
        ({"answers": ["me", " "]}, '"answers"'),
        ({"answers": "me"}, '"answers"'),
        ({"answers": [3]}, '"answers"'),
        ({"lang": "de"}, '"lang" must be "en" or "zh", not \'de\''),
        ({"lang": None}, '"lang"'),
        ({"true_state": "mixed"}, '"true_state"'),
    ],
)
def test_a_wrong_field_is_named_with_its_line(change, words, tmp_path):
    message = complaint(read_questions, written(tmp_path, GOOD, {**GOOD, **change}))
    assert ", line 2: " in message and words in message


@pytest.mark.parametrize("field", ["question", "answers"])
def test_a_missing_field_is_named_with_its_line(field, tmp_path):
    lacking = {key: value for key, value in GOOD.items() if key != field}
    assert f', line 3: no field "{field}"' in complaint(read_questions, written(tmp_path, GOOD, GOOD, lacking))


@pytest.mark.parametrize("first, second", [("x", "x"), (5, "5"), ("line-4", None)])
def test_a_repeated_id_names_both_lines(first, second, tmp_path):
    last = {**GOOD, "id": second} if second is not None else GOOD
    message = complaint(read_questions, written(tmp_path, GOOD, {**GOOD, "id": first}, GOOD, last))
    assert ", line 4: " in message and "line 2" in message.split(": ", 1)[1] and str(first) in message


def test_a_file_without_questions_is_named(tmp_path):
    assert "no questions" in complaint(read_questions, written(tmp_path, "", " "))


def test_appending_cuts_a_torn_last_line_first(tmp_path):
    path = tmp_path / "log.jsonl"
    for torn, kept in ((b'{"n": 1}\n{"n": "\xe4\xb8', [1, 2]), (b'{"n', [2]), (b"", [2]), (b'{"n": 1}\n', [1, 2])):
        path.write_bytes(torn)
        append_jsonl(str(path), [{"n": 2}])
        assert [record["n"] for record in read_jsonl(str(path))] == kept


def test_half_a_surrogate_pair_is_named_by_its_line(tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text('{"question": "Who?", "answers": ["I"]}\n{"question": "\\ud800?", "answers": ["I"]}\n')
    assert "line 2" in complaint(read_questions, str(path))


# ----------------------------------------------------------------------------------------- commands


def failing(error):
    def work():
        raise error

    return work


@pytest.mark.parametrize(
    "error, status, line",
    [
        (UserError("two\nlines"), 2, "error: two lines"),
        (FloatingPointError("not finite"), 2, "error: not finite"),
        (FileNotFoundError(2, "No such file", "here.txt"), 2, "error: here.txt: No such file"),
        (OSError(5, "Input/output error"), 2, "error: there: Input/output error"),
        (
            OSError(28, "No space left on device", "f"),
            2,
            "error: f: No space left on device; make room, and the same command goes on",
        ),
        (SafetensorError("header too small"), 2, "error: there: header too small"),
        (
            MemoryError(),
            2,
            "error: out of memory (MemoryError); settings called rows or micro_rows say how much is held at a time",
        ),
        (
            RuntimeError("CUDA out of memory. Tried"),
            2,
            (
                "error: out of memory (CUDA out of memory. Tried); settings called rows or micro_rows say how much is"
                " held at a time"
            ),
        ),
        (KeyboardInterrupt(), 130, "interrupted; the same command goes on from here"),
    ],
)
def test_what_stops_a_command_is_one_line_and_a_status(error, status, line, capsys):
    assert exit_status(failing(error), lambda: "there") == status
    assert capsys.readouterr().err == f"{line}\n"


def test_a_defect_of_the_program_is_not_hidden():
    for error in (KeyError("x"), RuntimeError("shapes")):
        with pytest.raises(type(error)):
            exit_status(failing(error))


def test_a_reader_that_leaves_and_a_terminal_without_all_characters_are_no_errors():
    program = (
        "import sys; from lm.errors import exit_status; sys.exit(exit_status(lambda: [print('%s', flush=True) for _ in"
        " range(100_000)]))"
    )
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    with subprocess.Popen(
        [sys.executable, "-c", program % "x"], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b"" and process.wait() == 141
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from lm.errors import exit_status; sys.exit(exit_status(lambda: print('caf\u00e9 \u5317')))",
        ],
        cwd=root,
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"caf? ?\n", b"")
