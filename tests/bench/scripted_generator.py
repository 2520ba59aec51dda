"""A scripted generator on real passages: good, bad and broken replies, written by hand or by rule;
the kept set must be exactly the good ones.

    python tests/bench/scripted_generator.py xquad_en.jsonl cmrc2018_zh.jsonl

The files have `title` and `passage` a line (XQuAD's English and CMRC 2018's Chinese passages). GOOD
holds questions written by hand from the passages, before the checks were tried on them; every
passage without one gets a bad or broken reply, kinds by turns.
"""

import json
import os
import sys
from collections import Counter

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", ".."))
from data import passages, wiki_qa
from data.text import estimate_tokens

GOOD = [  # (title, question, answer)
    ("Super Bowl 50", "Which Panthers safety had a career high seven interceptions?", "Kurt Coleman"),
    ("Warsaw", "What was the name of Warsaw's first literary cabaret?", "Momus"),
    ("Oxygen", "In which city did Carl Wilhelm Scheele discover oxygen?", "Uppsala"),
    (
        "1973 oil crisis",
        "On which holiday did Syria and Egypt launch a surprise attack on Israel in October 1973?",
        "Yom Kippur",
    ),
    (
        "Apollo program",
        (
            "Who headed the ad-hoc committee that Seamans set up in 1961 to recommend a launch vehicle for the Apollo"
            " program?"
        ),
        "Nicholas E. Golovin",
    ),
    (
        "Newcastle upon Tyne",
        "Which Roman fort and bridge was the first recorded settlement in what is now Newcastle?",
        "Pons Aelius",
    ),
    ("Genghis Khan", "How old was Temüjin when he married Börte?", "around 16"),
    ("Victoria and Albert Museum", "Who was the first director of the Victoria and Albert Museum?", "Henry Cole"),
    (
        "Huguenot",
        "Until the rule of which king did the Huguenots retain the religious provisions of the Edict of Nantes?",
        "Louis XIV",
    ),
    ("Sky (United Kingdom)", "Which video format do BSkyB's standard definition broadcasts use?", "MPEG-2"),
    ("European Union law", "In which year was the Treaty of Rome concluded?", "1957"),
    ("Amazon rainforest", "What is the Dutch name of the Amazon rainforest?", "Amazoneregenwoud"),
    ("泡泡战士", "《泡泡战士》由哪家韩国公司开发与发行？", "Nexon"),
    ("松平康忠", "松平康忠的父亲是谁？", "松平政忠"),
    ("乍都节公园", "乍都节公园位于哪个国家？", "泰国"),
    ("弗拉维娅·佩内塔", "弗拉维娅·佩内塔哪一年转为职业选手？", "2000年"),
    ("海梅·雷耶斯", "海梅·雷耶斯是哪家漫画公司的虚拟人物？", "DC漫画公司"),
    ("纽西兰鸡毛松", "纽西兰鸡毛松的树高可达多少米？", "55米"),
    ("罗保铭", "罗保铭在哪一年加入中国共产党？", "1971年"),
    ("高英", "北魏皇后高英的父亲是谁？", "高偃"),
    ("放线菌酮", "放线菌酮是哪一种链霉菌的产物？", "灰色链霉菌"),
    ("南宁市第二中学", "南宁市第二中学创建于哪一年？", "1906年"),
    ("王法慧", "王法慧是哪位皇帝的皇后？", "晋孝武帝"),
    ("阿普伽新生儿评分", "爱普格新生儿评分是哪一年发明的？", "1952年"),
]


def bad_replies(passage):
    """(kind, reply) of replies that must not be kept, in the passage's language."""
    title, lang = passage["title"], passage["lang"]
    first = passage["passage"].split()[0].strip("(),.\"'") if lang == "en" else passage["passage"][:2]
    pair = lambda question, answer: json.dumps(
        {"question": question, "answer": answer, "type": "x"}, ensure_ascii=False
    )  # noqa: E731
    if lang == "en":
        return [
            ("unable", "Unable to ask."),
            ("empty", ""),
            ("prose", f"The passage is about {title}."),
            ("half", f'{{"question": "What is {title}?", "ans'),
            ("no answer", '{"question": "Who is it?"}'),
            ("code", '{"question": str(1), "answer": open("x").read()}'),
            ("not there", pair(f"Who wrote the novel about {title}?", "Zaphod Beeblebrox")),
            ("the article", pair("What is this article about?", title)),
            ("pronoun", pair("Where did he go in the winter of 1912?", first)),
            ("names nothing", pair("What was the name of the place?", first)),
            ("in the question", pair(f"What is the history of {title} called?", title)),
            ("yes", pair(f"Is {title} well known?", "yes")),
            ("long", pair(f"What is known about {title}?", passage["passage"][:150])),
            ("Chinese", pair(f"{title}是什么时候开始的？", first)),
            ("why", pair(f"Why is {title} so important to everyone?", first)),
            ("list", pair(f"Which two things does {title} have?", f"{first} and {first}")),
        ]
    return [
        ("unable", "无法提问。"),
        ("empty", ""),
        ("prose", f"这段文字介绍了{title}。"),
        ("half", f'{{"question": "{title}是什么", "ans'),
        ("no answer", '{"question": "谁？"}'),
        ("not there", pair(f"{title}的第一任主人是谁？", "张三丰李四")),
        ("the article", pair("这篇文章介绍了什么？", title)),
        ("pronoun", pair("他是哪一年出生的？", first)),
        ("in the question", pair(f"{title}的全名是什么？", title)),
        ("long", pair(f"{title}是什么？", passage["passage"][:60])),
        ("English", pair(f"What is the origin of {title} and its name?", first)),
        ("why", pair(f"为什么{title}很重要？", first)),
        ("names nothing", pair("第一位成员叫什么名字？", first)),
    ]


def main(paths):
    drawn, counts = passages.select(paths, wiki_qa.QAConfig(count=1000), 0, estimate_tokens)
    print(dict(counts))
    replies, expected, kinds, written = (
        [],
        set(),
        Counter(),
        {title: (question, answer) for title, question, answer in GOOD},
    )
    for n, passage in enumerate(sorted(drawn, key=lambda p: p["id"])):
        question, answer = written.get(passage["title"], (None, None))
        if question and answer in passage["passage"]:
            del written[passage["title"]]
            kind, reply = "good", json.dumps({"question": question, "answer": answer, "type": "x"}, ensure_ascii=False)
            expected.add(passage["id"])
        else:
            choices = bad_replies(passage)
            kind, reply = choices[n % len(choices)]
        kinds[kind] += 1
        replies.append({"id": passage["id"], "reply": reply})
    drawn.sort(key=lambda p: p["id"])
    tasks = [wiki_qa.task(p, wiki_qa.QAConfig(), 0) for p in drawn]
    records, verdicts, counts = wiki_qa.keep(drawn, tasks, replies, 0)
    kept = {r["id"] for r in records}
    print("sent:", dict(kinds))
    print("verdicts:", dict(counts))
    for verdict in verdicts:
        if (verdict["id"] in kept) != (verdict["id"] in expected):
            print("WRONG:", verdict)
    print(
        f"{len(expected)} good of {len(GOOD)} written; {len(kept & expected)} kept, {len(kept - expected)} bad ones"
        f" kept; not placed: {sorted(written)}"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
