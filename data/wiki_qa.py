"""wiki-QA: question-answer pairs that a generator makes from passages (sections 3 and 5.1, appendix
A.1), and what is kept of them.

A passage becomes a task (an instruction in the passage's language), a reply becomes a pair or a
reason why not. "To add variety" (5.1) a share of the questions is of multiple choice; the same form
is made of any open questions that share a category, such as the project's facts. How passages are
found, who answers, and the checks lie in passages.py, lm/ or endpoint.py, and checks.py. Left
out: several questions a passage.
"""

import json
from collections import Counter, defaultdict
from dataclasses import dataclass

from data.checks import problem
from data.replies import parse
from data.text import NearDuplicates, digest, question_shingles, sketch_of
from reading import answers

LETTERS = "ABCD"
SAME_QUESTION = 0.8  # Jaccard similarity from which on two questions are the same


@dataclass
class QAConfig:
    # wiki-qa: where passages come from, commas between: hf:NAME:CONFIG:SPLIT, a .jsonl file, a
    # folder of .txt files
    passages: tuple = ()
    # passages drawn from each source, and rows from each hf: set of questions (paper: about 7,000
    # pairs a language)
    count: int = 7000
    scan: int = 100000  # passages or rows of a source that are read to draw from
    max_tokens: int = 320  # tokens that a passage is cut to, at a sentence end (paper: not given)
    min_tokens: int = 60  # a shorter passage is a stub, and dropped
    endpoint: str = ""  # URL of an OpenAI-compatible endpoint that asks; empty: a local model does (paper: GPT-3.5)
    model: str = ""  # the model that asks: its name at the endpoint, or a Hugging Face folder; empty: the run's own
    temperature: float = 0.2  # of the model that asks (paper: not given)
    max_new_tokens: int = 160  # a reply longer than this is cut
    rows: int = 16  # prompts that a local model reads side by side
    # share of the questions, made or from the fact tables, in multiple-choice form (paper: some)
    choice_share: float = 0.0


INSTRUCTIONS = {
    "en": (
        """Read this passage from the Wikipedia article "{title}":

{passage}

Ask one quiz question about a fact that the passage states, and answer it. The question has exactly \
one correct answer: a short name, number or date that is written in the passage. It must make sense \
to someone who cannot see the passage: name the person, place or work that it is about, and never \
say "he", "it", "the article" or "this passage". Also give the field of knowledge, such as history \
or physics.
Reply with JSON only, in this form: {"question": "...", "answer": "...", "type": "..."}
If the passage does not allow such a question, reply: Unable to ask"""
    ),
    "zh": (
        """请阅读维基百科条目“{title}”中的一段文字：

{passage}

请就这段文字陈述的一个事实提出一个知识问题，并给出答案。问题只有一个正确答案：一个简短的名称、数字或日期，并且出现在这段文字中。没有看到这段文字的人也要能\
理解并回答问题：写明所问的人物、地点或作品，不要使用“他”“它”“文中”“这段文字”等说法。同时给出知识类别，例如历史或物理。
只回复如下格式的 JSON：{"question": "...", "answer": "...", "type": "..."}
如果无法提出这样的问题，请回复：无法提问"""
    ),
}
# Earlier turns of the conversation, without which a small model does not keep to the form: title,
# passage, reply, options of the multiple-choice form.
EXAMPLES = {
    "en": (
        (
            "Marie Curie",
            (
                "Marie Curie was a physicist and chemist who was born in Warsaw in 1867. In 1898 she and her husband"
                " Pierre discovered polonium, which they named after her native Poland."
            ),
            {
                "question": "Which element did Marie and Pierre Curie name after Poland?",
                "answer": "polonium",
                "type": "chemistry",
            },
            ["radium", "polonium", "francium", "actinium"],
        ),
        (
            "Lake Baikal",
            (
                "Lake Baikal lies in southern Siberia. It is the deepest lake in the world, with a maximum depth of"
                " 1,642 metres, and is fed by more than 300 rivers."
            ),
            {"question": "What is the maximum depth of Lake Baikal?", "answer": "1,642 metres", "type": "geography"},
            ["1,642 metres", "310 metres", "825 metres", "2,400 metres"],
        ),
    ),
    "zh": (
        (
            "居里夫人",
            "玛丽·居里是物理学家和化学家，1867年生于华沙。1898年，她与丈夫皮埃尔发现了钋，并以她的祖国波兰为其命名。",
            {"question": "居里夫妇以波兰命名的元素是什么？", "answer": "钋", "type": "化学"},
            ["镭", "钋", "钫", "锕"],
        ),
        (
            "贝加尔湖",
            "贝加尔湖位于西伯利亚南部，最大深度1642米，是世界上最深的湖泊，有三百多条河流注入。",
            {"question": "贝加尔湖的最大深度是多少？", "answer": "1642米", "type": "地理"},
            ["1642米", "310米", "825米", "2400米"],
        ),
    ),
}
CHOICE_INSTRUCTIONS = {
    "en": (
        """
Make it a multiple-choice question: add four different options, of which exactly one is correct and \
the other three are plausible but wrong. The answer is the text of the correct option.
The form is then: {"question": "...", "options": ["...", "...", "...", "..."], "answer": "...", "type": "..."}"""
    ),
    "zh": (
        """
请把它写成选择题：再给出四个互不相同的选项，其中恰好一个正确，另外三个看似合理但错误。答案是正确选项的文字。
此时的格式为：{"question": "...", "options": ["...", "...", "...", "..."], "answer": "...", "type": "..."}"""
    ),
}


def uniform(*parts):
    """A number in [0, 1) that depends on the parts alone."""
    return digest(*parts) / 2**64


def instruction(title, passage, lang, choice):
    """What the generator is asked about one passage."""
    text = INSTRUCTIONS[lang] + (CHOICE_INSTRUCTIONS[lang] if choice else "")
    head, tail = text.split("{passage}")
    return head.replace("{title}", title) + passage + tail


def task(passage, config, seed):
    """{"id", "question", "messages", "choice"} of a passage (see passages.select): what the
    generator is asked, after worked examples.
    """
    lang, choice = passage["lang"], uniform(seed, "choice", passage["id"]) < config.choice_share
    messages = []
    for title, text, reply, options in EXAMPLES[lang]:
        reply = (
            {"question": reply["question"], "options": options, "answer": reply["answer"], "type": reply["type"]}
            if choice
            else reply
        )
        messages += [
            {"role": "user", "content": instruction(title, text, lang, choice)},
            {"role": "assistant", "content": json.dumps(reply, ensure_ascii=False)},
        ]
    asked = instruction(passage["title"], passage["passage"], lang, choice)
    return {
        "id": passage["id"],
        "question": asked,
        "messages": [*messages, {"role": "user", "content": asked}],
        "choice": choice,
    }


# ---------------------------------------------------------------------------------- multiple choice


def options_problem(options, answer):
    """The reason why options do not make an item with exactly one right answer, or None."""
    if len(options) != len(LETTERS):
        return f"not {len(LETTERS)} options"
    if any(
        option in ("all of the above", "none of the above", "以上都是", "以上都不是")
        for option in map(str.casefold, options)
    ):
        return "an option about the other options"
    normal = [answers.normalise(option) for option in options]
    if len(set(normal)) < len(normal) or not all(normal):
        return "options not distinct"
    if normal.count(answers.normalise(answer)) != 1:
        return "answer not among the options"
    others = [option for option in options if answers.normalise(option) != answers.normalise(answer)]
    if any(answers.mentions(option, [answer]) or answers.mentions(answer, [option]) for option in others):
        return "more than one option right"
    return None


def as_choice(record, wrong, seed):
    """An open question with three wrong options as a multiple-choice one; the seed and the id
    decide the order of the options.

    The right option's letter is one more accepted answer, in the form "B.": answers.mentions tells
    it from the article "a".
    """
    ordered = sorted([record["answers"][0], *wrong], key=lambda option: digest(seed, "options", record["id"], option))
    lines = [f"{letter}. {option}" for letter, option in zip(LETTERS, ordered)]
    return {
        **record,
        "question": "\n".join([record["question"], *lines]),
        "options": ordered,
        "answers": [*record["answers"], f"{LETTERS[ordered.index(record['answers'][0])]}."],
    }


def some_as_choice(records, share, seed):
    """Records of which a share, by seed, is put in multiple-choice form, with wrong options from
    questions of the same category.

    A question stays open where its category and language do not offer three other answers that
    differ from all its own.
    """
    pools = defaultdict(dict)
    for record in records:
        pools[record["lang"], record["category"]].setdefault(answers.normalise(record["answers"][0]), record["answers"])
    result = []
    for record in records:
        wrong = []
        if uniform(seed, "choice", record["id"]) < share:
            own = {answers.normalise(answer) for answer in record["answers"]}
            pool = pools[record["lang"], record["category"]]
            for normal in sorted(pool, key=lambda name: digest(seed, "wrong", record["id"], name)):
                if (
                    len(wrong) < len(LETTERS) - 1
                    and not own & {answers.normalise(name) for name in pool[normal]}
                    and not contains_another(pool[normal][0], [*record["answers"], *wrong])
                ):
                    wrong.append(pool[normal][0])
        result.append(as_choice(record, wrong, seed) if len(wrong) == len(LETTERS) - 1 else record)
    return result


def contains_another(option, others):
    """True where an option holds, or is held in, one of the others."""
    return any(answers.mentions(option, [other]) or answers.mentions(other, [option]) for other in others)


# ------------------------------------------------------------------------------------- what is kept


def judge(passage, choice, reply, seed):
    """(record, None) of a reply that passes every check on its own, or (None, the reason)."""
    pair, reason = parse(reply, choice)
    if reason is None:
        reason = problem(pair, passage["passage"], passage["title"], passage["lang"])
    if reason is None and choice:
        reason = options_problem(pair["options"], pair["answer"])
    if reason is not None:
        return None, reason
    record = {
        "id": passage["id"],
        "question": pair["question"],
        "answers": [pair["answer"]],
        "lang": passage["lang"],
        "category": pair["type"],
        "subject": passage["title"],
    }
    if choice:
        wrong = [option for option in pair["options"] if answers.normalise(option) != answers.normalise(pair["answer"])]
        record = as_choice(record, wrong, seed)
    return record, None


def keep(passages, tasks, replies, seed):
    """(records, verdicts, counts): the questions kept, each passage's {"id", "title", "reply",
    "verdict"}, Counter of the verdicts.

    `replies` are {"id", "reply"}, or {"id", "error"} where the generator gave none, in the order of
    passages and tasks. A question that almost equals an earlier one is dropped.
    """
    records, verdicts, seen = [], [], {lang: NearDuplicates(SAME_QUESTION) for lang in INSTRUCTIONS}
    for passage, asked, reply in zip(passages, tasks, replies):
        record, reason = (
            (None, reply["error"]) if "error" in reply else judge(passage, asked["choice"], reply["reply"], seed)
        )
        if record:
            sketch = sketch_of(question_shingles(record["question"].split("\n")[0], record["lang"]))
            if seen[record["lang"]].find(sketch):
                reason = "nearly the same question"
            else:
                seen[record["lang"]].add(record["id"], sketch)
                records.append(record)
        verdicts.append(
            {"id": passage["id"], "title": passage["title"], "reply": reply.get("reply"), "verdict": reason or "kept"}
        )
    return records, verdicts, Counter(verdict["verdict"] for verdict in verdicts)
