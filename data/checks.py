"""The checks that a question made from a passage has to pass, each with the reason that is counted
where it does not.

A.1 asks of a pair that its answer stands in the passage, is the only one, and that the question can
be answered without the passage. A generator does not always obey. These rules, English and Chinese,
are deterministic and prefer to drop: a good pair lost costs one more passage, a bad one kept is a
wrong label. They read the surface of the texts; whether a sentence truly says what a pair claims is
approximated by the words that they share. Left out: a judge model.
"""

import re

from data.text import HAN, HAN_CHARACTER, STOP_ZH, content_words, language_of, sentences, shingles
from reading import answers

MOST_CHARACTERS = {"en": 200, "zh": 80}  # of a question
MOST_WORDS = {"en": 6, "zh": 16}  # of an answer; Chinese counts characters
SUPPORT = {"en": 0.6, "zh": 0.4}  # share of the question's words that the sentence with the answer (or the title) has
GENERIC_EN = frozenset(
    "year date day month time person number amount city country place type kind sort use uses used call s".split()
)  # of which it need not have any
TOO_MUCH_OVERLAP = {
    "en": 0.5,
    "zh": 1.0,
}  # share of an answer's words (characters) in the question from which on it gives the answer away
EMPTY_ANSWERS = frozenset(
    "yes no true false none unknown it he she they this that these those both all unable answer question category type "
    "是 否 对 错 有 没有 不是 未知 无 回答 答案 分类".split()
)

TEXT_EN = (
    r"(article|passage|text|texts|snippet|fragment|paragraph|excerpt|document|context|author|writer|speaker|nar"
    r"rator|sentence|section|"
    r"information|reading|above|below|topic|subject)"
)
CONTEXT_EN = re.compile(
    rf"\b(this|the|these|that|given|provided|following)\s(\w+\s)?{TEXT_EN}\b(?!\s+of\b)|\baccording to (the|this|it)\b|"
    r"\b(mentioned|described|discussed|listed|quoted|stated)\b"
    r"|\bof the following\b|\bwikipedia\b|\bas of"
    r" (now|today)\b|\b(this|these|here|currently|today|such|aforementioned|latter|former)\s(?=\w)",
    re.IGNORECASE,
)
PRONOUN_EN = re.compile(
    r"\b(he|she|it|they|him|her|his|hers|them|their|theirs|its|we|us|our|you|your|i|me|my|this|these|those)\b",
    re.IGNORECASE,
)
BARE_NOUN_EN = re.compile(
    r"\b(the|both|all|each|most|some|other|another|first|second|last|next|main|new|two|three)\s"
    r"(other\s|main\s|first\s|second\s|last\s|new\s|two\s|three\s|most\s)?"
    r"(game|games|match|season|film|movie|book|novel|city|town|village|country|state|region|area|company|team|t"
    r"eams|band|group|"
    r"album|song|war|battle|conflict|attack|siege|university|school|college|student|students|river|lake|sea|mou"
    r"ntain|island|church|law|bill|act|treaty|agreement|show|series|episode|"
    r"program|programme|project|study|report|survey|building|house|castle|museum|party|election|character|leagu"
    r"e|century|year|period|era|time|event|people|"
    r"man|woman|king|queen|president|player|players|coach|term|word|name|number|result|problem|theory|theorem|e"
    r"xample|process|system|government|army|organization|network|"
    r"station|company's|city's|country's|population|economy|plague|disease|ship|aircraft|train|plan|site|line|r"
    r"oad|bridge|park|cell|cells|reaction|element|"
    r"article's|work|works|paper|case|court|decision|empire|dynasty)\b"
    r"(?!\s+(of|that|who|whose|which|where|when|called|named|known|between|for|to|from|with|won|led|by|against|"
    r"\d|[A-Z\"“'‘])"
    r"|\s+in\s+(the\s+)?(\d|[A-Z]))"
)
ANCHOR_EN = re.compile(
    r"(?<=\s)[\"“‘'(]?(?!I\b|January\b|February\b|March\b|April\b|May\b|June\b|July\b|August\b|September\b|Octo"
    r"ber\b|November\b|December\b|"
    r"What\b|Who\b|Which\b|Where\b|When\b|How\b|Why\b|The\b)[A-Z][\w’'.-]+|[\"“][^\"”]+[\"”]"
)
OPENING_EN = re.compile(
    r"\b(who|whom|whose|what|which|where|when|how"
    r" (many|much|old|long|far|tall|high|large|big|often|deep|fast|wide|heavy))\b",
    re.IGNORECASE,
)
NAMES_ITSELF_EN = re.compile(
    r"\bname of (?:the |an? )?(?:[a-z-]+ )*(?:[A-Z][\w’'.-]* ?)+\?$"
)  # "What is the name of the Labor Party?"
DATE_EN = re.compile(
    r"\d|\b(january|february|march|april|may|june|july|august|september|october|november|december|monday|tuesda"
    r"y|wednesday|thursday|"
    r"friday|saturday|sunday|century|spring|summer|autumn|winter|bc|bce|ad)\b",
    re.IGNORECASE,
)
NUMBER_EN = re.compile(
    r"\d|\b(hundred|thousand|million|billion|trillion|half|dozen|third|quarter|once|twice|double|none)\b", re.IGNORECASE
)
NUMERIC_EN = re.compile(
    r"\b(year|date|number|percent|percentage|population|score|age|amount|rate|time|century|decade|length|height"
    r"|area|cost|price|size|"
    r"day|distance|temperature|speed|total|share|many|much|value|weight|depth|ratio|average|period)\b",
    re.IGNORECASE,
)

TEXT_ZH = "(文章|短文|片段|段落|文本|原文|材料|节选|文段|百科)"
CONTEXT_ZH = re.compile(
    rf"(文中|上文|前文|下文|本文|该文|此文|上述|以上|以下|下列|提到|提及|作者(?!是)|{TEXT_ZH}|根据(这|该|本|此|上|下|给))"
    r"|(?<![应活])该(?!死)|本(片|剧|书|作|届|赛季|校|人|市|县|区|站|线|专辑|曲|公司|游戏|物种|种)|此(?!外|后|前)|(这|那)(?!么)|哪些|目前|现在|如今"
)
PRONOUN_ZH = re.compile("(他|她|它|牠|他们|她们|它们|其(?!他|中|实|它|余|他们)|我|你|您|自己)")
EXPLAIN_ZH = re.compile("为什么|为何|怎么样|怎样|如何|什么意思|有什么|哪几|什么样")
ASKS_ZH = re.compile("谁|哪|什么|何|几|多少|多大|多高|多长|多远|多久|多深")


def context(question, title, lang):
    """Why a question does not stand alone, or None: it points at the text, starts from a pronoun,
    or names nothing.
    """
    if lang == "zh":
        if CONTEXT_ZH.search(question):
            return "points at the passage"
        pronoun = PRONOUN_ZH.search(question)
        if pronoun and len(re.findall(rf"[{HAN}A-Za-z0-9]", question[: pronoun.start()])) < 3:
            return "starts from a pronoun"
        marked = re.search(r"《[^》]+》|[“「\"][^”」\"]+[”」\"]|[A-Za-z]{2,}|·", question)
        return None if marked or bare(title) in question or pairs(question) & pairs(bare(title)) else "names nothing"
    if CONTEXT_EN.search(question):
        return "points at the passage"
    anchor, pronoun = ANCHOR_EN.search(question), PRONOUN_EN.search(question)
    if pronoun and (not anchor or pronoun.start() < anchor.start()):
        return "starts from a pronoun"
    if not anchor and not set(content_words(question)) & set(content_words(bare(title))):
        return "names nothing"
    return "names nothing" if BARE_NOUN_EN.search(question) else None


def bare(title):
    """A title without what stands in brackets behind it."""
    return re.sub(r"\s*[(（].*?[)）]\s*$", "", title.replace("_", " ")) or title


def short_answer(answer, lang):
    """True where `answer` is one short thing: no list, no sentence, not a word that says
    nothing.
    """
    words = re.findall(rf"[{HAN}]|[^\s{HAN}]+", answer)
    if lang == "en" and re.match(
        r"(because|to|by|in order|since|when|while|if|that|through|due|as|is|was|were|are|has|had)\b",
        answer,
        re.IGNORECASE,
    ):
        return False
    listed = re.search(r"[;；、\n]|,.*,|，| (or|and|&) |[和与及或]|\w\?|[。？！]", answer)
    return (
        bool(words)
        and len(words) <= MOST_WORDS[lang]
        and not listed
        and not answer.endswith("?")
        and not (answer.endswith(".") and len(words) > 4)
        and answers.normalise(answer) not in EMPTY_ANSWERS
        and bool(answers.normalise(answer))
    )


def well_asked(question, lang):
    """True where a text is one question that asks for a fact, with its mark at the end."""
    if (
        not 6 <= len(question) <= MOST_CHARACTERS[lang]
        or question[-1] not in "?？"
        or len(re.findall("[?？]", question)) > 1
    ):
        return False
    if lang == "zh":
        return bool(ASKS_ZH.search(question)) and not EXPLAIN_ZH.search(question)
    asked = OPENING_EN.search(question)
    return (
        bool(asked)
        and len(question.split()) >= 4
        and not NAMES_ITSELF_EN.search(question)
        and not re.search(r"\b(why|and (what|who|when|where|how))\b", question, re.IGNORECASE)
        and not re.match(
            r"(is|are|was|were|do|does|did|has|have|had|can|could|will|would|how (did|does|do|was|is|are|can))\b",
            question,
            re.IGNORECASE,
        )
    )


def fits(question, answer, lang):
    """False where the answer is not of the kind that the question word asks for: a number, a time,
    a name.
    """
    digits = bool(re.search(r"\d", answers.normalise(answer)))
    if lang == "zh":
        if re.search("多少|几|多大|多高|多长|多远|多久|多深|哪一?年|何时|什么时候|哪天|哪一天", question):
            return digits or bool(re.search("[零一二两三四五六七八九十百千万亿半]|世纪|年|月|日", answer))
        if re.search("谁|哪位", question):
            return not digits
        return not re.fullmatch(r"[\d.,%]+", answer)
    asked = OPENING_EN.search(question).group().casefold()
    if (
        re.search(r"\b(what|which) (\w+ )?(year|decade|century|date|day|month)\b", question, re.IGNORECASE)
        or asked == "when"
    ):
        return bool(DATE_EN.search(answer)) and not re.search(r"[$£€%]", answer)
    if asked.startswith("how "):
        return digits or bool(NUMBER_EN.search(answer))
    if re.search(r"\b(what|which) (percent|percentage|number)\b", question, re.IGNORECASE):
        return digits or bool(NUMBER_EN.search(answer))
    name = bool(re.search(r"\b[A-Z\u00c0-\u00de]", answer))
    if asked in ("who", "whom", "whose", "where"):
        return name and not re.fullmatch(r"[\d\W]+", answer)
    return bool(NUMERIC_EN.search(question)) or not (
        re.fullmatch(r"[\d\W]+(\w{1,2})?", answer) or DATE_EN.fullmatch(answer)
    )


def stem(word):
    """What two forms of an English word share: its first five letters."""
    return word if word[:1].isdigit() else word[:5]


def supported(question, answer, passage, title, lang):
    """True where a sentence of the passage holds the answer and most of what the question says
    besides the title, and no name is made up.
    """
    with_answer = [s for s in sentences(passage) or [passage] if answers.mentions(s, [answer])]
    if lang == "zh":
        asked, about = pairs(ASKS_ZH.sub("", question)), pairs(bare(title))
        return any(len(asked & (pairs(s) | about)) >= SUPPORT["zh"] * len(asked) for s in with_answer)
    everything = set(answers.normalise(f"{bare(title)} {passage}").split())
    names = [
        word
        for found in ANCHOR_EN.finditer(question)
        for word in answers.normalise(found.group().removesuffix("'s").removesuffix("’s")).split()
    ]
    numbers = re.findall(r"\b\d+\b", answers.normalise(question))
    if not everything >= {*names, *numbers}:
        return False
    given = {stem(word) for word in answers.normalise(f"{bare(title)} {answer}").split()}
    asked = {stem(word) for word in content_words(question) if word not in GENERIC_EN} - given
    return bool(asked) and any(
        len(asked & {stem(word) for word in content_words(s)}) >= SUPPORT["en"] * len(asked) for s in with_answer
    )


def one_of_several(answer, passage):
    """True where the passage always names the answer beside another of its kind ("Syria and
    Egypt"): it is not the only one.
    """
    name, kind = rf"(?<![\w-]){re.escape(answer)}(?![\w-])", r"\d" if answer[0].isdigit() else "[A-Z]"
    places = len(re.findall(name, passage, re.IGNORECASE))
    other = rf"(?:the )?{kind}[\w.–-]*(?: [A-Z][\w–-]*)*"
    beside = re.findall(
        rf"{name}(?:,? (?:and|or|as well as) {other}|, {other},? (?:and|or|{kind})|[、和与及或])|(?:{kind}[\w.–-]*,?"
        r" (?:and|or) (?:the )?|"
        rf"[、和与及或]){name}",
        passage,
    )
    return bool(beside) and len(beside) >= places


def pairs(text):
    """The set of neighbouring characters of a Chinese text, function words left out."""
    return shingles("".join(c for c in text if c not in STOP_ZH), "zh", 1)


def problem(pair, passage, title, lang):
    """The first reason to drop a pair {"question", "answer"} that was made from `passage`, or None
    where it passes.
    """
    question, answer = pair["question"], pair["answer"]
    if language_of(question) != lang or lang == "en" and HAN_CHARACTER.search(answer):
        return "wrong language"
    if not well_asked(question, lang):
        return "not one question for a fact"
    if not short_answer(answer, lang):
        return "not one short answer"
    if not answers.mentions(passage, [answer]):
        return "answer not in the passage"
    reason = context(question, title, lang)
    if reason:
        return f"question does not stand alone: {reason}"
    if answers.mentions(question, [answer]) or answers.overlap(question, [answer]) >= TOO_MUCH_OVERLAP[lang]:
        return "answer in the question"
    if one_of_several(answer, passage):
        return "not the only answer"
    if not fits(question, answer, lang):
        return "answer does not fit the question word"
    if not supported(question, answer, passage, title, lang):
        return "not supported by the sentence with the answer"
    return None
