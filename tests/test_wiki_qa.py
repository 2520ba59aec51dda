"""wiki-QA: what a generator is asked, how its replies are read, every check with its reason,
multiple choice, and the stage killed and resumed.
"""

import json
import os
import subprocess
import sys
from collections import Counter

import pytest

from data import checks, facts, replies, wiki_qa
from reading import answers

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FILM = {
    "id": "f",
    "title": "House Arrest (1996 film)",
    "lang": "en",
    "passage": (
        "House Arrest is a 1996 American comedy film directed by Harry Winer, written by Michael Hitchcock, and"
        " starring Jamie Lee Curtis. The film was released on August 14, 1996 and went on to gross just over $7 million"
        " at the box office. It was shot at various locations in California and Ohio."
    ),
}
STARS = {
    "id": "s",
    "title": "M25",
    "lang": "zh",
    "passage": (
        "M25，也称为IC 4725，是一个由恒星组成，在南天人马座的疏散星团。"
        "菲利普·洛伊斯·德·谢索在1745年对这个星团进行了第一次有记录的观测。M25距离地球大约2,000光年。"
    ),
}


def said(question, answer, **more):
    return json.dumps({"question": question, "answer": answer, "type": "film", **more}, ensure_ascii=False)


# ------------------------------------------------------------------------------------- instructions


@pytest.mark.parametrize("passage, unable", [(FILM, "Unable to ask"), (STARS, "无法提问")])
def test_a_task_shows_passage_title_form_and_the_way_out(passage, unable):
    task = wiki_qa.task(passage, wiki_qa.QAConfig(), 0)
    assert task["id"] == passage["id"] and task["choice"] is False
    assert task["messages"][-1] == {"role": "user", "content": task["question"]}
    for text in (passage["passage"], passage["title"], unable, '{"question": "...", "answer": "...", "type": "..."}'):
        assert text in task["question"]


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("share", [0.0, 1.0])
def test_the_worked_examples_pass_their_own_checks(lang, share):
    task = wiki_qa.task({**FILM, "lang": lang}, wiki_qa.QAConfig(choice_share=share), 0)
    assert [m["role"] for m in task["messages"]] == ["user", "assistant"] * 2 + ["user"]
    for (title, text, _, _), message in zip(wiki_qa.EXAMPLES[lang], task["messages"][1::2]):
        record, reason = wiki_qa.judge(
            {"id": "x", "title": title, "passage": text, "lang": lang}, share == 1.0, message["content"], 0
        )
        assert reason is None and ("options" in record) == (share == 1.0)


def test_braces_in_a_passage_are_left_alone():
    task = wiki_qa.task(
        {**FILM, "passage": "A {passage} with {title} and {0}.", "title": "{passage}"}, wiki_qa.QAConfig(), 0
    )
    assert "A {passage} with {title} and {0}." in task["question"]


def test_the_share_of_multiple_choice_is_as_asked_and_depends_on_the_seed():
    config = wiki_qa.QAConfig(choice_share=0.3)
    chosen = [[wiki_qa.task({**FILM, "id": str(n)}, config, seed)["choice"] for n in range(1000)] for seed in (0, 0, 1)]
    assert chosen[0] == chosen[1] != chosen[2] and 250 < sum(chosen[0]) < 350


# ------------------------------------------------------------------------------------------ replies

PAIR = {"question": "Who directed it?", "answer": "Bo", "type": "film"}


@pytest.mark.parametrize(
    "reply",
    [
        '{"question": "Who directed it?", "answer": "Bo", "type": "Film"}',
        '```json\n{"question": "Who directed it?",\n"answer": "Bo", "type": "film"}\n```',
        "Sure! Here it is: {'question': 'Who directed it?', 'answer': 'Bo', 'type': 'film'} Anything else?",
        "{“question”：“Who directed it?”，“answer”：“Bo”，“type”：“film”}",
        '{"question": "Who directed it?", "answer": "Bo", "type": "film",}',
        '[{"question": "Who directed it?", "answer": "Bo", "type": "film"}]',
        '{"Question": "Who directed it?", "ANSWER": "Bo", "Category": "film"}',
        '{"问题": "Who directed it?", "答案": "Bo", "分类": "film"}',
        'Note {this}: {"question": "Who directed it?", "answer": "Bo", "type": "film"}',
        '{"question": "Who\n directed it?", "answer": "Bo", "type": "film"}',
        '{"type": "film"} {"question": "Who directed it?", "answer": "Bo", "type": "film"}',
    ],
)
def test_a_reply_is_read_kindly(reply):
    assert replies.parse(reply) == (PAIR, None)


def test_quotes_inside_single_quotes_and_numbers_are_kept():
    assert replies.parse("{'question': 'What is Bob's 'big' hat?', 'answer': 1996}")[0] == {
        "question": "What is Bob's 'big' hat?",
        "answer": "1996",
        "type": "all",
    }
    assert replies.parse(r"""{'question': 'It\'s \u4f60?', 'answer': "a\"b"}""")[0] == {
        "question": "It's 你?",
        "answer": 'a"b',
        "type": "all",
    }


@pytest.mark.parametrize(
    "reply",
    [
        "Unable to ask",
        "unable to ask.",
        '"Unable to Ask"',
        "I am unable to ask a question about this.",
        "无法提问",
        "抱歉，无法提问。",
        "```\n无法提问\n```",
    ],
)
def test_unable_to_ask_is_understood(reply):
    assert replies.parse(reply) == (None, "unable to ask")


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "Who directed it? Bo",
        '{"question": "Who directed it?", "answer": "B',
        "{" * 5000,
        "[" * 5000,
        '{"question": __import__("os"), "answer": 1}',
        "<html></html>",
        '{"question": question, "answer": answer}',
        "{'question': 'Who" * 50,
        '{"a":' * 3000,
        "\\" * 100,
    ],
)
def test_what_is_no_object_is_not_read_and_not_run(reply):
    assert replies.parse(reply) == (None, "no object in the reply")


@pytest.mark.parametrize(
    "reply",
    [
        '{"question": "Who?"}',
        '{"question": "", "answer": "Bo"}',
        '{"question": ["Who?"], "answer": "Bo"}',
        '{"question": "Who?", "answer": null}',
        '{"question": "Who?", "answer": true}',
        '{"question": "Who\\ud800?", "answer": "Bo"}',
        '{"question": "Who\\u0007?", "answer": "Bo"}',
    ],
)
def test_fields_that_are_no_texts_are_missing(reply):
    assert replies.parse(reply) == (None, "question or answer missing")


def test_a_category_that_one_could_not_print_is_none():
    for category in (["film"], "x" * 31, "\\u001b[31m", 7.5e300, None):
        found = replies.parse(said("Who?", "Bo", type=category).replace("\\\\", "\\"))[0]
        assert found["type"] == "all" or category == 7.5e300


OPTIONS = ["Harry Winer", "Bo Ek", "Cy Day", "Di Fox"]


@pytest.mark.parametrize(
    "options, answer",
    [
        (OPTIONS, "Harry Winer"),
        (["A. Harry Winer", "B. Bo Ek", "C. Cy Day", "D. Di Fox"], "A"),
        (["A) Harry Winer", "B) Bo Ek", "C) Cy Day", "D) Di Fox"], "A)"),
        ({"A": "Harry Winer", "B": "Bo Ek", "C": "Cy Day", "D": "Di Fox"}, "(a)"),
        (OPTIONS, "A. Harry Winer"),
        (OPTIONS, "a"),
    ],
)
def test_options_are_read_in_every_usual_form(options, answer):
    pair, reason = replies.parse(said("Who?", answer, options=options), True)
    assert reason is None and pair["options"] == OPTIONS and pair["answer"] == "Harry Winer"


def test_options_that_are_none_are_told():
    for options in (None, "A, B", [], [1.5, None], {"first": "x"}):
        assert replies.parse(said("Who?", "Bo", options=options), True) == (None, "no options in the reply")


# ------------------------------------------------------------------------------------------- checks


@pytest.mark.parametrize(
    "passage, question, answer",
    [
        (FILM, "Who directed the film House Arrest?", "Harry Winer"),
        (FILM, "When was House Arrest released?", "August 14, 1996"),
        (FILM, "How much did House Arrest gross at the box office?", "just over $7 million"),
        (STARS, "M25是位于哪个星座的疏散星团？", "南天人马座"),
        (STARS, "M25距离地球大约多少光年？", "2,000光年"),
        (STARS, "M25在哪一年有了第一次有记录的观测？", "1745年"),
    ],
)
def test_a_good_pair_passes(passage, question, answer):
    assert (
        checks.problem({"question": question, "answer": answer}, passage["passage"], passage["title"], passage["lang"])
        is None
    )


@pytest.mark.parametrize(
    "passage, question, answer, reason",
    [
        (FILM, "Who directed the film House Arrest?", "Steven Spielberg", "answer not in the passage"),
        (FILM, "Who directed the film House Arrest?", "Harry", None),
        (FILM, "Who directed the film in this article?", "Harry Winer", "points at the passage"),
        (FILM, "According to the text, who directed House Arrest?", "Harry Winer", "points at the passage"),
        (FILM, "Who is mentioned as the director of House Arrest?", "Harry Winer", "points at the passage"),
        (FILM, "What was it directed by?", "Harry Winer", "starts from a pronoun"),
        (FILM, "Who are they and who is Jamie Lee Curtis?", "Harry Winer", "not one question"),
        (FILM, "Where did he shoot most of House Arrest?", "Ohio", "starts from a pronoun"),
        (FILM, "Who directed the film?", "Harry Winer", "names nothing"),
        (FILM, "Which comedy film did Harry Winer direct?", "comedy film", "answer in the question"),
        (FILM, "Who directed the film House Arrest with Harry Winer?", "Harry Winer", "answer in the question"),
        (FILM, "Is House Arrest a comedy film?", "yes", "not one question"),
        (
            FILM,
            "What is House Arrest about?",
            "House Arrest is a 1996 American comedy film directed by Harry Winer",
            "not one short answer",
        ),
        (FILM, "Where was House Arrest shot?", "California and Ohio", "not one short answer"),
        (FILM, "Who directed House Arrest", "Harry Winer", "not one question"),
        (FILM, "When was House Arrest released?", "Harry Winer", "does not fit"),
        (FILM, "Who directed House Arrest?", "1996", "does not fit"),
        (FILM, "How many actors starred in House Arrest?", "Jamie Lee Curtis", "does not fit"),
        (FILM, "In which state was House Arrest shot?", "California", "not the only answer"),
        (FILM, "Who composed music for Gladiator and House Arrest?", "Harry Winer", "not supported"),
        (FILM, "谁执导了《House Arrest》这部电影？", "Harry Winer", "wrong language"),
        (FILM, "Wer hat bei House Arrest Regie geführt und gespielt?", "Harry Winer", "wrong language"),
        (STARS, "M25是哪一年被发现的？", "1899年", "answer not in the passage"),
        (STARS, "这篇文章介绍的M25位于哪个星座？", "南天人马座", "points at the passage"),
        (STARS, "该星团位于哪个星座？", "南天人马座", "points at the passage"),
        (STARS, "它位于哪个星座？", "南天人马座", "starts from a pronoun"),
        (STARS, "疏散星团位于哪个星座？", "南天人马座", "names nothing"),
        (STARS, "M25也称为IC 4725，它的编号是什么？", "IC 4725", "answer in the question"),
        (STARS, "Which constellation is M25 in?", "南天人马座", "wrong language"),
        (STARS, "M25为什么特别？", "恒星", "not one question"),
        (STARS, "M25有多少颗恒星？", "南天人马座", "does not fit"),
    ],
)
def test_a_bad_pair_is_dropped_for_its_reason(passage, question, answer, reason):
    found = checks.problem(
        {"question": question, "answer": answer}, passage["passage"], passage["title"], passage["lang"]
    )
    assert (found is None) if reason is None else found is not None and reason in found, found


# ---------------------------------------------------------------------------------- multiple choice


def test_an_item_is_kept_with_the_letter_of_its_answer():
    record, reason = wiki_qa.judge(
        FILM, True, said("Who directed the film House Arrest?", "Harry Winer", options=OPTIONS), 0
    )
    assert reason is None and sorted(record["options"]) == sorted(OPTIONS)
    stem, *lines = record["question"].split("\n")
    assert stem == "Who directed the film House Arrest?" and [line[:3] for line in lines] == [
        "A. ",
        "B. ",
        "C. ",
        "D. ",
    ]
    text, letter = record["answers"]
    right = next(line for line in lines if line.endswith("Harry Winer"))
    assert text == "Harry Winer" and letter == right[:2]
    assert (
        answers.read(f"The answer is {letter[0]}", record["answers"]) == "right"
        and answers.read(right, record["answers"]) == "right"
    )
    wrong = next(line for line in lines if not line.endswith("Harry Winer"))
    assert (
        answers.read(wrong, record["answers"]) == "wrong"
        and answers.read("a wrong guess, a b c", ["Harry Winer", "A."]) == "wrong"
    )


@pytest.mark.parametrize(
    "options, answer, reason",
    [
        (OPTIONS[:3], "Harry Winer", "not 4 options"),
        ([*OPTIONS[:3], "bo ek."], "Harry Winer", "not distinct"),
        ([*OPTIONS[:3], "?"], "Harry Winer", "not distinct"),
        (OPTIONS[1:] + ["Ed"], "Harry Winer", "not among"),
        ([*OPTIONS[:3], "Harry Winer and Bo"], "Harry Winer", "more than one"),
        ([*OPTIONS[:3], "Winer"], "Harry Winer", "more than one"),
        ([*OPTIONS[:3], "None of the above"], "Harry Winer", "other options"),
    ],
)
def test_options_without_exactly_one_right_are_dropped(options, answer, reason):
    found = wiki_qa.judge(FILM, True, said("Who directed the film House Arrest?", answer, options=options), 0)[1]
    assert reason in found


def test_the_right_option_is_everywhere_equally_often():
    for seed in (0, 1):
        places = Counter()
        for n in range(4000):
            record = wiki_qa.as_choice({"id": str(n), "question": "Who?", "answers": ["a"]}, ["b", "c", "d"], seed)
            places[record["options"].index("a")] += 1
        assert (
            sum((count - 1000) ** 2 / 1000 for count in places.values()) < 16.3
        )  # chi-squared, 3 degrees of freedom, p = 0.001


def test_the_facts_make_multiple_choice_items_too():
    for lang in ("en", "zh"):
        plain = facts.questions(lang, 0)
        made = wiki_qa.some_as_choice(plain, 0.5, 0)
        assert [r["id"] for r in made] == [r["id"] for r in plain]
        items = [(before, after) for before, after in zip(plain, made) if "options" in after]
        assert 0.35 * len(plain) < len(items) < 0.65 * len(plain)
        of_category = {}
        for record in plain:
            of_category.setdefault(record["category"], set()).add(record["answers"][0])
        for before, after in items:
            own = {answers.normalise(name) for name in before["answers"]}
            assert (
                len({answers.normalise(o) for o in after["options"]}) == 4
                and set(after["options"]) <= of_category[after["category"]]
            )
            assert sum(answers.normalise(o) in own for o in after["options"]) == 1
            assert after["answers"][:-1] == before["answers"] and after["question"].startswith(
                before["question"] + "\n"
            )
        places = Counter(after["options"].index(after["answers"][0]) for _, after in items)
        assert sum((places[i] - len(items) / 4) ** 2 / (len(items) / 4) for i in range(4)) < 16.3
    assert wiki_qa.some_as_choice(plain, 0.0, 0) == plain


def test_a_category_of_too_few_answers_stays_open():
    records = [
        {"id": str(n), "question": "?", "answers": [a], "lang": "en", "category": "c"}
        for n, a in enumerate(["x", "y", "x", "z"])
    ]
    assert wiki_qa.some_as_choice(records, 1.0, 0) == records


# ------------------------------------------------------------------------------------- what is kept


def test_every_verdict_is_counted_and_nothing_is_lost():
    passages = [{**FILM, "id": str(n)} for n in range(6)]
    said_here = [
        {"reply": said("Who directed the film House Arrest?", "Harry Winer")},
        {"reply": said("Who directed House Arrest, a film?", "Harry Winer")},
        {"reply": "Unable to ask"},
        {"error": "refused by the endpoint: status 400"},
        {"reply": said("Who directed House Arrest?", "Bo")},
        {"reply": said("When was House Arrest released?", "August 14, 1996")},
    ]
    tasks = [{"id": p["id"], "choice": False} for p in passages]
    records, verdicts, counts = wiki_qa.keep(
        passages, tasks, [{"id": p["id"], **r} for p, r in zip(passages, said_here)], 0
    )
    assert [r["id"] for r in records] == ["0", "5"]
    assert records[0] == {
        "id": "0",
        "question": "Who directed the film House Arrest?",
        "answers": ["Harry Winer"],
        "lang": "en",
        "category": "film",
        "subject": FILM["title"],
    }
    assert counts == {
        "kept": 2,
        "nearly the same question": 1,
        "unable to ask": 1,
        "refused by the endpoint: status 400": 1,
        "answer not in the passage": 1,
    }
    assert [v["id"] for v in verdicts] == [p["id"] for p in passages] and sum(counts.values()) == 6


# The data stage with a scripted endpoint: it says who built what the passage's title names, and
# dies after the n-th reply where asked to.
STAGE = """
import json, os, re, signal, sys
import rlkf
from data import endpoint
left, log = int(sys.argv[1]), sys.argv[2]
def ask(self, messages, temperature, max_tokens):
    global left
    left -= 1
    if left == -1:
        os.kill(os.getpid(), signal.SIGKILL)
    title = re.search(r'article "(.+?)"', messages[-1]["content"])[1]
    builder = re.search(r"was built by (\\w+ \\w+)", messages[-1]["content"])[1]
    with open(log, "a") as f:
        f.write(title + "\\n")
    asked = json.dumps({"question": f"Who built {title}?", "answer": builder})
    return {"reply": "Unable to ask" if title.endswith("1") else asked}
endpoint.Endpoint.ask = ask
sys.exit(rlkf.main(sys.argv[3:]))
"""
NAMES = (
    "Anna Ben Clara David Elena Felix Greta Hugo Irene Jonas Karla Leo Marta Nils Olga Paul Quinn Rosa Simon Tessa"
    " Ulrich Vera Walter Xenia Yusuf Zelda".split()
)


def test_killed_and_resumed_nothing_is_asked_twice_and_the_questions_are_the_same(tmp_path):
    titles = [f"Castle {NAMES[n % 26]}{n}" for n in range(60)]
    with open(tmp_path / "p.jsonl", "w") as f:
        for n, title in enumerate(titles):
            f.write(
                json.dumps(
                    {
                        "title": title,
                        "passage": (
                            f"{title} is a house in the {NAMES[-n % 26]} valley of the {NAMES[n // 3]} river. {title}"
                            f" was built by {NAMES[n // 5]} {NAMES[n // 7 + 13]} in {1500 + n}. It has {n + 20} rooms"
                            f" and {n * 7} doors."
                        ),
                    }
                )
                + "\n"
            )
    arguments = [
        "--stage",
        "data",
        "--preset",
        "smollm2",
        "--questions",
        "wiki-qa",
        "--qa.passages",
        "p.jsonl",
        "--qa.endpoint",
        "http://host/v1",
        "--qa.model",
        "m",
        "--qa.min_tokens",
        "20",
    ]
    options = {
        "env": {**os.environ, "PYTHONPATH": ROOT, "QA_API_KEY": "sk-secret", "OMP_NUM_THREADS": "1"},
        "capture_output": True,
        "text": True,
    }

    def call(folder, left, log):
        folder.mkdir(exist_ok=True)
        (folder / "p.jsonl").write_bytes((tmp_path / "p.jsonl").read_bytes())
        return subprocess.run(
            [sys.executable, "-c", STAGE, str(left), str(tmp_path / log), *arguments], cwd=folder, **options
        )

    assert call(tmp_path / "whole", 1000, "whole.log").returncode == 0
    assert call(tmp_path / "torn", 9, "torn.log").returncode == -9
    ended = call(tmp_path / "torn", 1000, "torn.log")
    assert ended.returncode == 0, ended.stderr
    asked = (tmp_path / "torn.log").read_text().split("\n")[:-1]
    assert sorted(asked) == sorted(titles)
    files = {}
    for folder in ("whole", "torn"):
        data = tmp_path / folder / "runs" / "smollm2" / "data"
        files[folder] = {name: (data / name).read_bytes() for name in os.listdir(data)}
        assert not (tmp_path / folder / "runs" / "smollm2" / "data.work").exists()
        assert all(b"sk-secret" not in path.read_bytes() for path in (tmp_path / folder).rglob("*") if path.is_file())
    assert files["whole"] == files["torn"] and set(files["torn"]) == {
        "train.jsonl",
        "valid.jsonl",
        "test.jsonl",
        "wiki_qa.jsonl",
        "summary.json",
    }
    verdicts = [json.loads(line) for line in files["torn"]["wiki_qa.jsonl"].splitlines()]
    kept = [
        json.loads(line) for name in ("train", "valid", "test") for line in files["torn"][f"{name}.jsonl"].splitlines()
    ]
    assert Counter(v["verdict"] for v in verdicts) == {"kept": 54, "unable to ask": 6} and len(kept) == 54
    assert (
        "54 questions kept of 60 passages; dropped: 6 unable to ask" in ended.stdout
        and "sk-secret" not in ended.stdout + ended.stderr
    )
