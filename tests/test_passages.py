"""Passages: read from files and data sets as streams, drawn by seed in bounded memory, cut at
sentence ends, stubs and near duplicates dropped.
"""

import json
import random

import pytest

from data import hub, passages, text
from data.wiki_qa import QAConfig
from lm.errors import UserError

WORDS = (
    "river castle king treaty bridge museum harbour army valley school engine church market garden tower island lake"
    " storm poem song ship mine forest road train wall stone clock lamp horse"
).split()


def article(n, sentences=6):
    """English text of its own, whatever n."""
    rng = random.Random(n)
    return " ".join(
        f"The {rng.choice(WORDS)} of the {rng.choice(WORDS)} was built by the {rng.choice(WORDS)} {rng.choice(WORDS)}"
        f" in {rng.randint(1000, 1999)}."
        for _ in range(sentences)
    )


def rows(n):
    return [{"title": f"Title {i}", "passage": article(i)} for i in range(n)]


def write(path, records):
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records), encoding="utf-8")
    return str(path)


def select(*sources, seed=0, **config):
    return passages.select(sources, QAConfig(**{"min_tokens": 10, "count": 100, **config}), seed, text.estimate_tokens)


def complaint(function, *arguments, **options):
    with pytest.raises(UserError) as caught:
        function(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -------------------------------------------------------------------------------------------- texts


@pytest.mark.parametrize(
    "words, lang",
    [
        ("Who directed the film?", "en"),
        ("The city is known for its harbour.", "en"),
        ("这座城市以港口闻名。", "zh"),
        ("Nexon公司在1994年成立于首尔。", "zh"),
        ("Die Stadt ist für ihren Hafen bekannt und liegt am Meer", "other"),
        ("この都市は港で知られている。", "other"),
        ("Город известен своим портом.", "other"),
        ("", "other"),
        ("12345 67", "other"),
    ],
)
def test_the_language_of_a_text(words, lang):
    assert text.language_of(words) == lang


def test_sentences_end_where_they_end_and_not_at_abbreviations():
    found = text.sentences('Mr. J. Smith saw the U.S. in 3.5 days. "It is big!" he said. He left? 他走了。“好！”然后')
    assert [s.strip() for s in found] == [
        "Mr. J. Smith saw the U.S. in 3.5 days.",
        '"It is big!"',
        "he said.",
        "He left?",
        "他走了。",
        "“好！”",
    ]


def test_a_passage_is_cut_at_the_last_sentence_end_that_fits():
    words = lambda s: len(s.split())  # noqa: E731
    assert passages.cut("One two. Three four five. Six.", 5, words) == "One two. Three four five."
    assert passages.cut("One two. Three four five. Six.", 4, words) == "One two."
    assert passages.cut("One two three four five.", 4, words) == ""
    assert passages.cut("一二三。四五。六", 7, len) == "一二三。四五。"


def test_cleaning_takes_marks_and_headings_out():
    assert (
        passages.clean("M25（）is a cluster[6][citation needed].\n\nHistory\n\nIt was\tseen in 1745.\n* list\x00")
        == "M25is a cluster. It was seen in 1745."
    )
    assert passages.clean("a line without an end") == "a line without an end"


def test_near_duplicates_are_found_and_forgotten():
    near = text.NearDuplicates(0.6)
    sketch = lambda s: text.sketch_of(text.shingles(s, "en", 3))  # noqa: E731
    near.add("a", sketch(article(1)))
    assert near.find(sketch(article(1).replace("The", "That", 1))) == "a" and near.find(sketch(article(2))) is None
    near.remove("a")
    assert near.find(sketch(article(1))) is None and not near.buckets and not near.sketches


def test_similarity_of_sketches_is_that_of_the_sets():
    near = text.NearDuplicates(0.5)
    near.add("x", text.sketch_of({"a", "b", "c"}))
    assert near.find(text.sketch_of({"a", "b", "c", "d", "e", "f"})) == "x"  # 3 of 6
    assert near.find(text.sketch_of({"a", "b", "d", "e", "f"})) is None  # 2 of 6


# ------------------------------------------------------------------------------------------ drawing


def test_a_sample_is_the_smallest_numbers_and_each_but_once():
    numbers = [5, 3, 9, 3, 1, 7, 1, 2]
    gone = []
    assert passages.sample(numbers, 3, lambda n: n, lambda n: n, dropped=gone.append) == [1, 2, 3]
    assert sorted(gone) == [5, 9]
    assert passages.sample(numbers, 3, lambda n: n, lambda n: n if n % 2 else None) == [1, 3, 5]


def test_rows_beyond_the_sample_are_not_looked_into():
    looked = []
    passages.sample(range(1000), 10, lambda n: n, lambda n: looked.append(n) or n)
    assert looked == list(range(10))


def test_a_draw_depends_on_the_seed_and_not_on_the_order(tmp_path):
    forward, backward = write(tmp_path / "a.jsonl", rows(60)), write(tmp_path / "b.jsonl", rows(60)[::-1])
    first, again, turned, other = (
        select(path, seed=seed, count=20)[0] for path, seed in ((forward, 0), (forward, 0), (backward, 0), (forward, 1))
    )
    assert first == again == turned and len(first) == 20
    assert {p["id"] for p in other} != {p["id"] for p in first} and len({p["id"] for p in first}) == 20


def test_every_row_is_equally_likely_to_be_drawn(tmp_path):
    path = write(tmp_path / "a.jsonl", rows(20))
    times = {}
    for seed in range(200):
        for p in select(path, seed=seed, count=5)[0]:
            times[p["title"]] = times.get(p["title"], 0) + 1
    assert len(times) == 20 and min(times.values()) > 25 and max(times.values()) < 80  # 50 expected


def test_stubs_duplicates_and_other_languages_are_dropped_and_counted(tmp_path):
    good = rows(3)
    spoilt = [
        {"title": "s", "passage": "A stub."},
        {"title": "d", "passage": good[0]["passage"].replace("The", "That", 1)},
        good[1],
        {
            "title": "g",
            "passage": (
                "Die Stadt liegt am Meer und hat einen alten Hafen, eine Kirche und viele Brücken über den Fluss."
            ),
        },
    ]
    found, counts = select(write(tmp_path / "a.jsonl", good + spoilt))
    assert sorted(p["title"] for p in found) in ([f"Title {i}" for i in range(3)], sorted(["Title 1", "Title 2", "d"]))
    assert counts["read"] == 7 and counts["stub"] == 1 and counts["near duplicate"] == 1
    assert counts["neither English nor Chinese, or not the language given"] == 1


def test_both_languages_come_through_with_clean_titles(tmp_path):
    chinese = {
        "title": "泡泡_战士",
        "passage": (
            "基于两款游戏所开发的游戏，由韩国公司开发与发行。中国大陆由另一家公司运营，这是六年后再次授予其运营权。"
        ),
    }
    found, _ = select(write(tmp_path / "a.jsonl", [*rows(1), chinese]))
    assert {(p["lang"], p["title"]) for p in found} == {("en", "Title 0"), ("zh", "泡泡 战士")}


def test_the_sample_stays_small_however_many_rows_stream_by():
    held = []

    def stream():
        for n in range(20_000):
            yield {"title": str(n), "passage": f"{n}"}

    found = passages.sample(
        stream(),
        50,
        lambda row: text.digest(row["title"]),
        lambda row: held.append(1) or row,
        dropped=lambda item: held.pop(),
    )
    assert len(found) == len(held) == 50


def test_a_source_is_read_no_further_than_asked(tmp_path):
    path = write(tmp_path / "a.jsonl", rows(30))
    (tmp_path / "a.jsonl").write_text(open(path).read() + "not JSON\n")
    assert select(path, scan=30)[1]["read"] == 30
    assert "line 31: not JSON" in complaint(select, path, scan=31)


# ------------------------------------------------------------------------------------------ sources


def test_a_folder_of_texts_gives_whole_paragraphs(tmp_path):
    (tmp_path / "Long.txt").write_text("\n\n".join(article(i, 12) for i in range(6)), encoding="utf-8")
    (tmp_path / "Short.txt").write_bytes(b"\xef\xbb\xbf" + article(9).encode())
    (tmp_path / "notes.md").write_text("not read")
    found = list(passages.read_source(str(tmp_path), 0))
    assert {r["title"] for r in found} == {"Long", "Short"} and len(found) == 3
    assert (
        "".join(r["passage"] for r in found if r["title"] == "Long").split()
        == "\n\n".join(article(i, 12) for i in range(6)).split()
    )
    assert not found[-1]["passage"].startswith("\ufeff")


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """A cache of data sets that the test leaves with."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def test_a_data_set_is_streamed_and_its_columns_mapped(tmp_path, own_cache):
    folder = tmp_path / "set"
    folder.mkdir()
    write(
        folder / "train.jsonl",
        [{"title": r["title"], "text": r["passage"], "meta": {"body": r["passage"]}} for r in rows(5)],
    )
    plain, _ = select(f"hf:{folder}:default:train")
    nested, _ = select(f"hf:{folder}?passage=meta.body&title=title")
    assert plain == nested and len(plain) == 5


@pytest.mark.parametrize(
    "change, words",
    [
        ("?passage=content", ["'content'", "title, text"]),
        (":nope", ["nope", "default"]),
        (":default:tst", ["tst", "train"]),
        ("?body=text", ["'body'", "title, passage, lang"]),
        ("?passage", ["field=column"]),
        ("?passage=", ["passage="]),
        ("?title=headline&passage=text", ["'headline'"]),
    ],
)
def test_a_wrong_data_set_is_one_clear_line(change, words, tmp_path, own_cache):
    folder = tmp_path / "set"
    folder.mkdir()
    write(folder / "train.jsonl", [{"title": "t", "text": article(1)}])
    message = complaint(select, f"hf:{folder}{change}")
    assert all(word in message for word in words), message


def test_a_data_set_that_is_not_there_is_one_clear_line(own_cache):
    assert "hf:nobody/nothing: cannot be read" in complaint(select, "hf:nobody/nothing:x:train")
    assert "no such folder" in complaint(select, "hf:./nowhere")


@pytest.mark.parametrize(
    "record, words",
    [
        ({"title": "a"}, '"passage"'),
        ({"passage": "b"}, '"title"'),
        ({"title": 3, "passage": "b"}, '"title"'),
        ({"title": "a", "passage": " "}, '"passage"'),
        ({"title": "a", "passage": "b", "lang": "de"}, '"lang"'),
    ],
)
def test_a_wrong_line_is_named(record, words, tmp_path):
    message = complaint(select, write(tmp_path / "a.jsonl", [*rows(2), record]))
    assert "line 3" in message and words in message


def test_sources_that_give_nothing_are_named(tmp_path):
    assert "no such file or folder" in complaint(select, str(tmp_path / "missing"))
    assert "no .txt files" in complaint(select, str(tmp_path))
    assert "1 stub" in complaint(select, write(tmp_path / "a.jsonl", [{"title": "a", "passage": "Short."}]))
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe")
    assert "bad.txt: not UTF-8" in complaint(select, str(tmp_path))


def test_columns_inside_columns():
    row = {"a": {"b": [{"c": 1}, {"c": 2}, 3]}, "d": None}
    assert (
        hub.column_of(row, "a.b.c") == [1, 2, None]
        and hub.column_of(row, "d.e") is None
        and hub.column_of(row, "x") is None
    )
