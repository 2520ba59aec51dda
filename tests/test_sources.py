"""Own questions: JSON lines, CSV with its oddities, mapped data sets, mixes by weight, the summary,
and mistakes in one line.
"""

import json
from collections import Counter
from contextlib import contextmanager

import pytest

import rlkf
from data import facts, sources
from data.wiki_qa import QAConfig
from experiment import settings
from lm.errors import UserError


@contextmanager
def no_bar(*arguments):
    yield lambda n: None


def read(name, seed=0, say=print, **config):
    return sources.read_source(
        str(name), QAConfig(**config), seed, lambda: pytest.fail("wiki-qa was not asked for"), no_bar, say
    )


def complaint(function, *arguments, **options):
    with pytest.raises(UserError) as caught:
        function(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def written(path, data):
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


# ---------------------------------------------------------------------------------------------- CSV


def test_a_csv_with_all_its_oddities_is_read(tmp_path):
    path = written(
        tmp_path / "q.csv",
        '\ufeffquestion,answers,lang,id,extra\r\n"Who said ""no"",\r\nthen?",I | me,en,7,x\r\n\r\n谁？, 我'
        " ,zh,,\r\n,,,,\r\n",
    )
    assert read(path) == [
        {
            "question": 'Who said "no",\r\nthen?',
            "answers": ["I", "me"],
            "lang": "en",
            "id": "7",
            "extra": "x",
            "category": "all",
            "subject": "7",
        },
        {"question": "谁？", "answers": ["我"], "lang": "zh", "id": "line-5", "category": "all", "subject": "line-5"},
    ]


@pytest.mark.parametrize(
    "text, words",
    [
        ("", ["line 1", "question and answers", "nothing"]),
        ("question;answers\na;b\n", ["line 1", "question;answers"]),
        ("question,answer\na,b\n", ["line 1", "question, answer"]),
        ("question,answers,question\n", ["line 1", "once"]),
        ("question,answers\n", ["no questions"]),
        ("question,answers\na,b\nc\n", ["line 3", "2 cells, found 1"]),
        ("question,answers\na,b,c\n", ["line 2", "found 3"]),
        ('question,answers\n"a\nb",c\nd,\n', ["line 4", '"answers"']),
        ("question,answers\n,b\n", ["line 2", '"question"']),
        ('question,answers\na,b\n"c,d\ne,f\n', ["line 3", "quote"]),
        ('question,answers\n"a"x,b\n', ["line 2", "not CSV"]),
        (b"question,answers\na,\xff\n", ["not UTF-8"]),
        ("question,answers\na, | \n", ["line 2", '"answers"']),
        ("question,answers,lang\na,b,de\n", ["line 2", '"lang"', "'de'"]),
        ("question,answers,id\na,b,x\nc,d,x\n", ["line 3", "line 2"]),
    ],
)
def test_a_mistake_in_a_csv_is_named_with_the_line_that_its_row_begins_at(text, words, tmp_path):
    message = complaint(read, written(tmp_path / "q.csv", text))
    assert "q.csv" in message and all(word in message for word in words), message


def test_json_lines_are_read_as_ever(tmp_path):
    path = written(tmp_path / "q.jsonl", '{"question": "Who?", "answers": ["I"]}\n')
    assert read(path)[0]["id"] == "line-1"
    assert "line 2" in complaint(read, written(path, '{"question": "Who?", "answers": ["I"]}\n{}'))


# ---------------------------------------------------------------------------------------- data sets


@pytest.fixture
def trivia(tmp_path, monkeypatch):
    """hf:FOLDER of rows in the shape of TriviaQA, with a cache that the test leaves with."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "trivia"
    folder.mkdir()
    rows = [
        {
            "question": f"Who wrote the book number {n}?",
            "question_id": f"t{n}",
            "answer": {"value": f"Writer {n}", "aliases": [f"Writer {n}", f"W. {n}", f"Writer {n}"]},
        }
        for n in range(30)
    ]
    rows += [
        {"question": "Who has no answer?", "question_id": "none", "answer": {"value": "", "aliases": []}},
        {"question": "", "question_id": "blank", "answer": {"value": "x", "aliases": ["x"]}},
        {"question": "Wer hat das geschrieben?", "question_id": "de", "answer": {"value": "x", "aliases": ["x"]}},
    ]
    written(folder / "train.jsonl", "".join(json.dumps(r) + "\n" for r in rows))
    return f"hf:{folder}:default:train"


def test_a_data_set_is_mapped_and_what_is_no_question_counted(trivia):
    lines = []
    found = read(f"{trivia}?question=question&answers=answer.aliases&id=question_id", say=lines.append)
    assert len(found) == 30 and all(
        q["answers"] == [f"Writer {q['id'][1:]}", f"W. {q['id'][1:]}"] and q["lang"] == "en" for q in found
    )
    assert "30 questions" in lines[0] and lines[0].count("1 rows left out") == 3


def test_of_a_data_set_as_many_are_drawn_as_asked_by_seed(trivia):
    first, again, other = (read(f"{trivia}?answers=answer.value", seed=seed, count=10) for seed in (0, 0, 1))
    assert first == again and len(first) == len(other) == 10 and {q["id"] for q in first} != {q["id"] for q in other}
    assert {q["id"] for q in read(f"{trivia}?answers=answer.value&id=question_id", scan=4)} == {"t0", "t1", "t2", "t3"}


@pytest.mark.parametrize(
    "change, words",
    [
        ("?answers=reply.aliases", ["'reply.aliases'", "question, question_id, answer"]),
        ("", ["'answers'", "question, question_id, answer"]),
        ("?answers=answer.nothing", ["holds no questions", "32 times", '"answers"']),
        ("?reply=answer", ["'reply'", "subject"]),
    ],
)
def test_a_wrong_column_is_one_clear_line(change, words, trivia):
    message = complaint(read, trivia + change)
    assert all(word in message for word in words), message


# -------------------------------------------------------------------------------------------- mixes


def test_a_mix_is_read_with_its_weights(tmp_path, monkeypatch):
    assert sources.parse_mix("facts-en") == [("facts-en", None)]
    assert sources.parse_mix("facts-en@2, q.csv@.5,hf:a/b:c:d?answers=x.y@1") == [
        ("facts-en", 2.0),
        ("q.csv", 0.5),
        ("hf:a/b:c:d?answers=x.y", 1.0),
    ]
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "a,b@2", "")
    assert sources.parse_mix("a,b@2") == [("a,b@2", None)]


@pytest.mark.parametrize("text", ["a@0", "a,", ",", "a@1,b", "a,a", "a@1,a@2", "hf:", "hf:a/b?x=y", "hf:a/b:c:d:e"])
def test_a_mix_of_wrong_form_is_refused(text):
    complaint(sources.parse_mix, text)


def questions(n, name):
    return [
        {
            "id": f"line-{i}",
            "question": f"{name} {i}?",
            "answers": ["x"],
            "lang": "en",
            "category": name,
            "subject": f"line-{i}" if i % 2 else "shared",
        }
        for i in range(n)
    ]


def test_weights_are_proportions_and_nothing_is_repeated():
    mixed = sources.mix([(questions(100, "a"), 1.0), (questions(30, "b"), 3.0)], 0)
    assert Counter(q["category"] for q in mixed) == {"a": 10, "b": 30}
    assert len({q["id"] for q in mixed}) == 40 and {
        q["subject"] for q in mixed if not q["subject"].startswith(("1-", "2-"))
    } == {"shared"}
    assert (
        mixed
        == sources.mix([(questions(100, "a"), 1.0), (questions(30, "b"), 3.0)], 0)
        != sources.mix([(questions(100, "a"), 1.0), (questions(30, "b"), 3.0)], 1)
    )
    assert len(sources.mix([(questions(10, "a"), None), (questions(3, "b"), None)], 0)) == 13
    assert sources.mix([(questions(3, "a"), 5.0)], 0) == questions(3, "a")


def test_the_facts_are_one_more_source():
    assert read("facts-zh") == facts.questions("zh", 0)
    assert any("options" in q for q in read("facts-zh", choice_share=1.0))


# -------------------------------------------------------------------------------------- the summary


def test_the_summary_counts_what_there_is():
    def q(question, answer="x", lang="en", category="c"):
        return {"question": question, "answers": [answer], "lang": lang, "category": category}

    found = sources.summary(
        {
            "train": [q("Who wrote Hamlet?"), q("Who painted the Mona Lisa in Florence?", "a b c")],
            "valid": [q("谁写了红楼梦？", "曹雪芹", "zh", "d")],
            "test": [q("who wrote Hamlet"), q("Who painted the Mona Lisa at Florence?"), q("Who built Rome?")],
        }
    )
    assert found == {
        "questions": 6,
        "lang": {"en": 5, "zh": 1},
        "category": {"c": 5, "d": 1},
        "answer words": [1, 1, 3],
        "duplicates": 1,
        "near duplicates": 1,
    }


def test_questions_asked_twice_share_a_subject_and_so_do_all_of_their_subjects():
    def q(question, subject):
        return {"question": question, "subject": subject}

    asked = [
        q("Who wrote Hamlet?", "Hamlet"),
        q("who wrote hamlet", "line-2"),
        q("Who wrote Emma?", "Emma"),
        q("When was Emma written?", "EMMA "),
        q("Who is Hamlet?", "hamlet"),
        q("Who is Hamlet ?", "Emma"),
        q("Who built Rome?", "Rome"),
        q("Who built Rome?", "Rome"),
    ]
    found = sources.keep_repeats_together(asked)
    assert [r["question"] for r in found] == [r["question"] for r in asked]
    assert len({r["subject"].strip().casefold() for r in found[:6]}) == 1, (
        "Hamlet and Emma are joined by the question that both have"
    )
    assert found[6:] == asked[6:] and sources.keep_repeats_together(asked[2:4]) == asked[2:4]
    parts = facts.split_by_subject(
        sources.keep_repeats_together([{"id": f"{n}", **q(f"Question {n // 2}?", f"s{n}")} for n in range(200)]), 0
    )
    texts = [{r["question"] for r in part} for part in parts.values()]
    assert sum(map(len, texts)) == len(set.union(*texts)) == 100


def test_foreign_names_are_printed_in_one_printable_line():
    found = sources.summary(
        {
            "train": [{"question": "?", "answers": ["x"], "lang": "en", "category": "\x1b[31m" + "y" * 99}],
            "valid": [],
            "test": [],
        }
    )
    assert all(line.isprintable() and len(line) < 200 for line in sources.summary_lines(found))


# ---------------------------------------------------------------------------------------- the stage


def test_the_stage_mixes_splits_by_subject_and_sums_up(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = "".join(f'"Who, of all, built ""tower"" number {n}?",Builder {n},subject {n // 3}\n' for n in range(120))
    written(tmp_path / "mine.csv", "\ufeffquestion,answers,subject\n" + rows)
    assert rlkf.main(["--stage", "data", "--preset", "smollm2", "--questions", "facts-en@1,mine.csv@1"]) == 0
    split = {
        name: [json.loads(line) for line in open(f"runs/smollm2/data/{name}.jsonl")]
        for name in ("train", "valid", "test")
    }
    assert Counter(q["id"][0] for part in split.values() for q in part) == {"1": 120, "2": 120}
    subjects = [{q["subject"] for q in part} for part in split.values()]
    assert not subjects[0] & subjects[1] and not subjects[0] & subjects[2] and not subjects[1] & subjects[2]
    shown = capsys.readouterr().out
    assert "240 questions: 240 en" in shown
    assert json.loads(open("runs/smollm2/data/summary.json").read())["questions"] == 240


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--questions", "wiki-qa"], ["--qa.passages"]),
        (["--questions", "facts-en", "--qa.passages", "p.jsonl"], ["--qa.passages", "wiki-qa"]),
        (
            [
                "--questions",
                "wiki-qa",
                "--qa.passages",
                "missing.jsonl",
                "--qa.endpoint",
                "http://127.0.0.1:9/v1",
                "--qa.model",
                "m",
            ],
            ["missing.jsonl", "no such file"],
        ),
        (
            ["--questions", "wiki-qa", "--qa.passages", "p.jsonl", "--qa.endpoint", "http://127.0.0.1:9/v1"],
            ["--qa.model"],
        ),
        (
            ["--questions", "wiki-qa", "--qa.passages", "p.jsonl", "--qa.endpoint", "127.0.0.1:9", "--qa.model", "m"],
            ["--qa.endpoint", "https://"],
        ),
        (
            [
                "--questions",
                "wiki-qa",
                "--qa.passages",
                "p.jsonl",
                "--qa.endpoint",
                "http://u:secret@host/v1",
                "--qa.model",
                "m",
            ],
            ["--qa.endpoint", "QA_API_KEY"],
        ),
        (["--questions", "facts-en,lab"], ["lab"]),
        (["--questions", "wiki-q"], ["wiki-q", "did you mean wiki-qa?"]),
        (["--questions", "facts-en,no.csv"], ["no.csv", "No such file"]),
        (["--questions", "facts-en", "--qa.choice_share", "2"], ["--qa.choice_share", "between 0 and 1"]),
        (["--questions", "facts-en", "--endpoint.rate", "0"], ["--endpoint.rate"]),
        (["--questions", "facts-en", "--qa.min_tokens", "500"], ["--qa.min_tokens", "--qa.max_tokens"]),
    ],
)
def test_a_users_mistake_is_one_line_and_status_2(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert rlkf.main(["--stage", "data", "--preset", "smollm2", *arguments]) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert len(error) == 1 and error[0].startswith("error: ") and all(word in error[0] for word in words), error
    assert "secret" not in error[0]


def test_limits_of_the_endpoint_do_not_make_what_was_asked_stale(tmp_path):
    from experiment import runs

    keys = [
        runs.Run(str(tmp_path), settings.build("smollm2", given)).key("data")
        for given in ({}, {"endpoint.budget": "5"}, {"qa.count": "5"})
    ]
    assert keys[0] == keys[1] != keys[2]


def test_a_changed_folder_of_passages_makes_the_stage_stale(tmp_path):
    from experiment import runs

    (tmp_path / "texts").mkdir()
    written(tmp_path / "texts" / "a.txt", "one")
    run = runs.Run(
        str(tmp_path / "run"),
        settings.build("smollm2", {"questions": "wiki-qa", "qa.passages": str(tmp_path / "texts")}),
    )
    before = run.key("data")
    written(tmp_path / "texts" / "a.txt", "another")
    assert run.key("data") != before
