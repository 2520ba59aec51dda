"""Questions from anywhere: the project's facts, wiki-QA, JSON lines, CSV, data sets in Hugging Face
form, or several mixed with weights.

    --questions facts-en    --questions mine.csv    --questions facts-zh@1,mine.jsonl@3 --questions
    "hf:mandarjoshi/trivia_qa:rc.nocontext:train?question=question&answers=answer.aliases"

A mistake in a file is named with its line; a row of a foreign data set that is no question is left
out and counted. Left out: other formats.
"""

import csv
import os
import re
from collections import Counter, defaultdict
from itertools import islice

from data import facts, wiki_qa
from data.hub import column_of, open_source, parse_source
from data.passages import sample
from data.questions import question_record, read_questions
from data.text import NearDuplicates, digest, language_of, question_shingles, sketch_of
from lm.errors import UserError
from reading import answers

WIKI_QA = "wiki-qa"
NAMED = ("facts-en", "facts-zh", WIKI_QA)
FIELDS = ("question", "answers", "id", "lang", "category", "subject")
SEPARATOR = "|"  # between the answers in a cell of a CSV file, as in the fact tables
MOST_ANSWERS = 30  # of a row of a data set: some list a hundred spellings
SHOWN = 8  # categories in the summary


def parse_mix(text):
    """[(source, weight)] of "SOURCE[@WEIGHT],SOURCE[@WEIGHT]"; the weight is None where none is
    given. Raises UserError.

    A name that exists as a file is that file, whatever commas it holds.
    """
    if os.path.exists(text):
        return [(text, None)]
    found = []
    for part in text.split(","):
        name, weight = part.strip(), None
        weighted = re.fullmatch(r"(.+)@(\d+(?:\.\d*)?|\.\d+)", name)
        if weighted and not os.path.exists(name):
            name, weight = weighted[1], float(weighted[2])
        if not name or weight == 0:
            raise UserError(
                f"--questions {text}: expected sources with commas between, each NAME or NAME@WEIGHT with a weight"
                " above 0"
            )
        if name.startswith("hf:"):
            parse_source(name, FIELDS)
        found.append((name, weight))
    names = [name for name, _ in found]
    if len(set(names)) < len(names):
        raise UserError(f"--questions {text}: names a source twice; give it a larger weight instead")
    if len({weight is None for _, weight in found}) > 1:
        raise UserError(f"--questions {text}: give every source a weight, as in NAME@2, or none")
    return found


def read_csv(path):
    """Questions of a CSV file in UTF-8, as files.read_questions gives them: a header with question,
    answers, and optionally id, lang, category, subject.

    Several answers stand in a cell with "|" between. Raises UserError, naming the line that the row
    begins at.
    """
    questions, first_seen, number = [], {}, 1
    try:
        with open(path, encoding="utf-8-sig", newline="") as f:
            reader = csv.reader(f, strict=True)
            try:
                header = [cell.strip() for cell in next(reader, [])]
                lacking = [name for name in ("question", "answers") if name not in header]
                if lacking or len(set(header)) < len(header):
                    raise UserError(
                        f"{path}, line 1: expected a header with the columns question and answers, each once and with"
                        f" commas between, found {', '.join(header)[:200] or 'nothing'}"
                    )
                number = reader.line_num + 1
                for cells in reader:
                    where = f"{path}, line {number}"
                    if any(cell.strip() for cell in cells):
                        if len(cells) != len(header):
                            raise UserError(
                                f"{where}: expected {len(header)} cells, found {len(cells)} (is a quote or a comma"
                                " missing?)"
                            )
                        record = {
                            name: cell.strip()
                            for name, cell in zip(header, cells)
                            if cell.strip() or name in ("question", "answers")
                        }
                        record["answers"] = [
                            answer.strip() for answer in record["answers"].split(SEPARATOR) if answer.strip()
                        ]
                        questions.append(question_record(record, where, number, first_seen))
                    number = reader.line_num + 1
            except csv.Error as error:
                raise UserError(
                    f"{path}, line {number}: not CSV ({error}; a quote that is not closed, perhaps)"
                ) from None
            except UnicodeDecodeError:
                raise UserError(f"{path}, line {number} or soon after: not UTF-8 text") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    if not questions:
        raise UserError(f"{path}: holds no questions")
    return questions


def read_file(path):
    """The questions of a .csv file, or of JSON lines. Raises UserError."""
    return read_csv(path) if path.lower().endswith(".csv") else read_questions(path)


def read_hub(text, config, seed, progress):
    """(questions, counts of rows left out) of a data set: at most `config.count`, drawn by seed
    from the first `config.scan` rows.

    `progress` is a bar like experiment's. Raises UserError where a column is missing, or no row
    makes a question.
    """
    source = parse_source(text, FIELDS)
    columns = {"question": "question", "answers": "answers", **source.columns}
    left_out, first_seen = Counter(), {}

    def prepared(row):
        record = {field: column_of(row, column) for field, column in columns.items()}
        values = record["answers"] if isinstance(record["answers"], list) else [record["answers"]]
        values = [str(v) if isinstance(v, (int, float)) and not isinstance(v, bool) else v for v in values]
        values = [v.strip() for v in values if isinstance(v, str) and v.strip()]
        record["answers"] = list(dict.fromkeys(values))[:MOST_ANSWERS]
        record = {field: value for field, value in record.items() if value is not None}
        if isinstance(record.get("question"), str):
            record.setdefault("lang", language_of(record["question"]))
        record.setdefault("id", f"hf-{digest(record.get('question'), *record['answers']):016x}")
        if str(record["id"]) in first_seen:
            left_out["an id that another row has"] += 1
            return None
        try:
            return question_record(record, "row", 0, first_seen)
        except UserError as error:
            left_out[str(error).removeprefix("row: ")] += 1
            return None

    rows = open_source(source._replace(columns=columns), seed)
    with progress(None, "rows", f"reading {text}") as tick:
        found = sample(
            islice(rows, config.scan),
            config.count,
            lambda row: digest(seed, *(column_of(row, c) for c in columns.values())),
            prepared,
            tick,
        )
    if not found:
        why = "; ".join(f"{n} times {reason}" for reason, n in left_out.most_common(2))
        raise UserError(f"{text}: holds no questions" + (f" ({why})" if why else ""))
    return found, left_out


def read_source(name, config, seed, make_wiki_qa, progress, say):
    """The questions of one source. `make_wiki_qa()` makes those of "wiki-qa"; `progress` and `say`
    are progress.bar and progress.say. Raises UserError.
    """
    if name == WIKI_QA:
        return make_wiki_qa()
    if name in NAMED:
        return wiki_qa.some_as_choice(facts.questions(name[-2:], seed), config.choice_share, seed)
    if name.startswith("hf:"):
        questions, left_out = read_hub(name, config, seed, progress)
        say(
            f"  {name}: {len(questions)} questions"
            + "".join(f"; {n} rows left out: {why}" for why, n in left_out.most_common(3))
        )
        return questions
    return read_file(name)


def mix(parts, seed):
    """One list of questions from [(questions, weight)]: in the proportions of the weights, as many
    as there are without repetition.

    Without weights (None) everything is taken. Which questions of a source are taken the seed
    decides. Of several sources an id gets the source's number before it, so that two files'
    "line-1" are told apart.
    """
    if len(parts) == 1:
        return parts[0][0]
    most = min((len(questions) / weight for questions, weight in parts if weight), default=0)
    mixed = []
    for n, (questions, weight) in enumerate(parts, 1):
        chosen = (
            sorted(questions, key=lambda q: digest(seed, "mix", q["id"]))[: int(most * weight + 1e-9)]
            if weight
            else questions
        )
        mixed += [
            {**q, "id": f"{n}-{q['id']}", "subject": f"{n}-{q['subject']}" if q["subject"] == q["id"] else q["subject"]}
            for q in chosen
        ]
    return mixed


def keep_repeats_together(questions):
    """The questions, of which those that are asked twice, however spelt, have one subject, so that
    no split parts them.
    """
    leader, first = {}, {}

    def led(subject):
        while subject in leader:
            subject = leader[subject]
        return subject

    name = lambda q: q["subject"].strip().casefold()
    for q in questions:
        other = led(name(first.setdefault(answers.normalise(q["question"]), q)))
        if led(name(q)) != other:
            leader[led(name(q))] = other
    return [{**q, "subject": led(name(q))} if name(q) in leader else q for q in questions]


# -------------------------------------------------------------------------------------- the summary


def summary(split):
    """{"questions", "lang", "category", "answer words", "duplicates", "near duplicates"} of {split:
    records}.

    Answer words are [least, median, most] of the canonical answers (Chinese characters count as
    words).
    """
    records = [record for part in split.values() for record in part]
    everything = [answers.normalise(record["question"]) for record in records]
    near, almost = defaultdict(lambda: NearDuplicates(wiki_qa.SAME_QUESTION)), 0
    for n, record in enumerate(records):
        sketch = sketch_of(question_shingles(record["question"], record["lang"]))
        almost += near[record["lang"]].find(sketch) is not None
        near[record["lang"]].add(n, sketch)
    lengths = sorted(len(answers.normalise(record["answers"][0]).split()) for record in records)
    duplicates = len(everything) - len(set(everything))
    return {
        "questions": len(records),
        "lang": dict(Counter(record["lang"] for record in records).most_common()),
        "category": dict(Counter(record["category"] for record in records).most_common()),
        "answer words": [lengths[0], lengths[len(lengths) // 2], lengths[-1]] if lengths else [],
        "duplicates": duplicates,
        "near duplicates": max(0, almost - duplicates),
    }


def summary_lines(found):
    """The summary as lines to print; names of categories are foreign text, shortened and made
    printable.
    """
    names = [
        f"{n} {''.join(c if c.isprintable() else '?' for c in name)[:30]}"
        for name, n in list(found["category"].items())[:SHOWN]
    ]
    rest = len(found["category"]) - len(names)
    low, middle, high = found["answer words"]
    return [
        f"  {found['questions']} questions: "
        + ", ".join(f"{n} {lang}" for lang, n in found["lang"].items())
        + f"; categories: {', '.join(names)}"
        + (f" and {rest} more" if rest else ""),
        (
            f"  answers of {low} to {high} words, median {middle}; {found['duplicates']} questions stand there twice,"
            f" {found['near duplicates']} almost"
        ),
    ]
