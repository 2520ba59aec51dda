"""The fact tables: every row well formed and answerable only by knowing it, and subjects that never
cross splits.
"""

import random
from collections import Counter, defaultdict

import pytest

from data import facts
from reading.answers import normalise

SIZES = {"en": (1200, 18), "zh": (420, 12)}
LARGEST_SHARE_OF_ONE_ANSWER = 0.35
FACT_HEADER = "relation,subject,object,aliases\n"
WORDINGS = (
    "lang,relation,wording\n"
    "en,capital,What is the capital of {subject}?\n"
    "en,capital,Name the capital of {subject}.\n"
    "en,capital,Which city is the capital of {subject}?\n"
)

languages = pytest.mark.parametrize("lang", facts.LANGUAGES)


@pytest.fixture
def tables(tmp_path):
    def write(rows, wordings=WORDINGS, header=FACT_HEADER):
        (tmp_path / "facts_en.csv").write_text(header + rows, encoding="utf-8")
        (tmp_path / "wordings.csv").write_text(wordings, encoding="utf-8")
        return tmp_path

    return write


@languages
def test_tables_are_large_and_hold_no_fact_twice(lang):
    table = facts.load_facts(lang)
    least_facts, least_relations = SIZES[lang]
    assert len(table) >= least_facts
    assert len({fact.relation for fact in table}) >= least_relations
    assert len({(fact.relation, normalise(fact.subject)) for fact in table}) == len(table)


@languages
def test_every_answer_survives_normalisation(lang):
    for fact in facts.load_facts(lang):
        assert all(normalise(name) for name in (fact.object, *fact.aliases)), fact


@languages
def test_no_wording_of_a_fact_contains_its_answer(lang):
    wordings = facts.load_wordings(lang)
    for fact in facts.load_facts(lang):
        names = (fact.object, *fact.aliases)
        for wording in wordings[fact.relation]:
            question = wording.replace("{subject}", fact.subject)
            asked = f" {normalise(question)} "
            assert not any(f" {normalise(name)} " in asked for name in names), (question, names)
            if lang == "zh":
                assert not any(name in question for name in names), (question, names)


@languages
def test_no_single_answer_is_right_for_most_of_a_relation(lang):
    answers = defaultdict(Counter)
    for fact in facts.load_facts(lang):
        answers[fact.relation].update({normalise(name) for name in (fact.object, *fact.aliases)})
    sizes = Counter(fact.relation for fact in facts.load_facts(lang))
    for relation, counts in answers.items():
        answer, count = counts.most_common(1)[0]
        assert count <= LARGEST_SHARE_OF_ONE_ANSWER * sizes[relation], (relation, answer, count, sizes[relation])


@languages
def test_wordings_cover_exactly_the_relations_and_read_as_sentences(lang):
    wordings = facts.load_wordings(lang)
    assert set(wordings) == {fact.relation for fact in facts.load_facts(lang)}
    for known in wordings.values():
        assert len(known) >= facts.MIN_WORDINGS
        for wording in known:
            assert wording.endswith(("?", ".") if lang == "en" else ("？", "。")), wording
            assert lang == "zh" or wording[0].isupper(), wording


@languages
def test_each_fact_becomes_one_question_with_its_own_id(lang):
    table, records = facts.load_facts(lang), facts.questions(lang, 0)
    assert [(r["category"], r["subject"], r["answers"]) for r in records] == [
        (fact.relation, fact.subject, [fact.object, *fact.aliases]) for fact in table
    ]
    assert len({record["id"] for record in records}) == len(records)
    assert all(record["id"].isascii() and record["id"].startswith(f"{lang}-") for record in records)
    assert all(record["subject"] in record["question"] and "{" not in record["question"] for record in records)


def test_ids_are_readable_and_stable():
    ids = {record["id"]: record for record in facts.questions("en", 0)}
    assert ids["en-capital-france"]["answers"] == ["Paris"]
    zh = {record["subject"]: record["id"] for record in facts.questions("zh", 0) if record["category"] == "capital"}
    assert zh["法国"] == "zh-capital-81678972"


@languages
def test_the_seed_alone_chooses_the_wording(lang):
    first, again, other = (facts.questions(lang, seed) for seed in (0, 0, 1))
    assert first == again
    assert [r["id"] for r in first] == [r["id"] for r in other]
    changed = sum(a["question"] != b["question"] for a, b in zip(first, other))
    assert 0.5 * len(first) < changed < 0.85 * len(first)


@languages
@pytest.mark.parametrize("seed", [0, 1])
def test_split_keeps_subjects_whole_and_categories_in_proportion(lang, seed):
    records = facts.questions(lang, seed)
    parts = facts.split_by_subject(records, seed)
    assert sorted(r["id"] for part in parts.values() for r in part) == sorted(r["id"] for r in records)
    subjects = [{record["subject"].casefold() for record in part} for part in parts.values()]
    assert sum(map(len, subjects)) == len(set.union(*subjects))
    totals = Counter(record["category"] for record in records)
    for split, share in facts.SHARES.items():
        assert len(parts[split]) == pytest.approx(share * len(records), rel=0.06)
        counts = Counter(record["category"] for record in parts[split])
        for category, total in totals.items():
            assert abs(counts[category] - share * total) <= 1.5 + 0.05 * total, (split, category)


def test_split_depends_on_the_seed_and_not_on_the_order():
    records = facts.questions("en", 0)
    shuffled = random.Random(0).sample(records, len(records))

    def ids(parts):
        return {split: {record["id"] for record in part} for split, part in parts.items()}

    parts = facts.split_by_subject(records, 0)
    assert parts == facts.split_by_subject(records, 0)
    assert ids(parts) == ids(facts.split_by_subject(shuffled, 0))
    assert ids(parts) != ids(facts.split_by_subject(records, 1))


def test_split_groups_without_regard_to_case_and_takes_records_without_subject():
    records = [
        {"id": f"{subject}-{n}", "subject": name}
        for n in range(20)
        for subject, name in ((n, f"Name {n}"), (n + 100, f"NAME {n}"))
    ]
    parts = facts.split_by_subject(records + [{"id": str(n)} for n in range(60)], 3)
    assert {split: len(part) for split, part in parts.items()} == {"train": 60, "valid": 15, "test": 25}
    for part in parts.values():
        assert all(count == 2 for count in Counter(r["subject"].lower() for r in part if "subject" in r).values())


def test_split_refuses_bad_shares_and_nameless_records():
    for shares in ({"train": 0.5, "test": 0.4}, {"train": 1.5, "test": -0.5}):
        with pytest.raises(ValueError, match="sum to 1"):
            facts.split_by_subject([{"id": "x"}], 0, shares)
    with pytest.raises(KeyError):
        facts.split_by_subject([{"category": "capital"}], 0)
    assert facts.split_by_subject([{"id": "x"}], 0, {"train": 0.0, "test": 1.0}) == {"train": [], "test": [{"id": "x"}]}


@pytest.mark.parametrize(
    "rows, line, reason",
    [
        ("capital,France,Paris\n", 2, "4 cells"),
        ("capital,France,Paris,\ncapital,Spain,,\n", 3, "empty"),
        ("capital,France,Paris,City of Light||\n", 2, "empty"),
        ("capital,France, Paris,\n", 2, "unstripped"),
        ("capital,France,Paris,Paris\n", 2, "given twice"),
        ("capital,France,Paris,\ncapital,FRANCE,Paris,\n", 3, "already stands at"),
        ('capital,France,"Paris,\n', 3, "unexpected end"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tables, rows, line, reason):
    with pytest.raises(ValueError, match=rf"facts_en\.csv:{line}: .*{reason}"):
        facts.load_facts("en", tables(rows))


def test_other_bad_tables_are_refused(tables):
    with pytest.raises(ValueError, match="header"):
        facts.load_facts("en", tables("capital,France,Paris,\n", header="a,b,c,d\n"))
    with pytest.raises(ValueError, match="unknown language 'fr'"):
        facts.load_facts("fr")
    with pytest.raises(ValueError, match="no en wording of river"):
        facts.questions("en", 0, tables("river,France,Seine,\n"))
    with pytest.raises(ValueError, match="id en-capital-a-b stands for both"):
        facts.questions("en", 0, tables("capital,a b,x,\ncapital,a-b,y,\n"))


@pytest.mark.parametrize(
    "extra, line, reason",
    [
        ("en,capital,Tell me the capital.\n", 5, "exactly once"),
        ("en,capital,Is {subject} {subject}?\n", 5, "exactly once"),
        ("en,capital,Is {subject} {object}?\n", 5, "exactly once"),
        ("fr,capital,Capitale de {subject} ?\n", 5, "known language"),
        ("en,capital,Name the capital of {subject}.\n", 5, "repeated"),
        ("en,river,Which river is in {subject}?\n", 5, "needs 3 wordings, has 1"),
    ],
)
def test_a_bad_wording_is_named_by_file_and_line(tables, extra, line, reason):
    with pytest.raises(ValueError, match=rf"wordings\.csv:{line}: .*{reason}"):
        facts.load_wordings("en", tables("", WORDINGS + extra))
