"""What an answer says: right, hedged, refusal or wrong. The one reading of model text that the
whole project uses.

Section 3.1 compares a generation with the correct answer; section 3.3 needs to know besides whether
a generation shows uncertainty. Both are decided here, in English and Chinese, from the text alone.
Left out: a judge model, and paraphrases of an answer that share no words with any alias.
"""

import re
import unicodedata

ARTICLES = {"a", "an", "the"}
UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
TENS = {word: 10 * n for n, word in enumerate("twenty thirty forty fifty sixty seventy eighty ninety".split(), 2)}
TENS_AS_DIGITS = {str(n) for n in TENS.values()}
NUMBERS = {**{word: n for n, word in enumerate(UNITS)}, **TENS}
TOKEN = re.compile(
    r"\d+(?:\.\d+)+|[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]|[^\W_\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]+"
)

KINDS_OF_WORK = {"film", "films", "movie", "movies", "music", "game", "games"}

REFUSAL_EN = re.compile(
    r"""
    \b(i|we)\s(\w+\s){0,2}(do\snot|don\s?t|did\snot|didn\s?t|would\snot|wouldn\s?t)\s(\w+\s|think\si\s)?(know|have|possess|recall|remember|recogni[sz]e)\b
  | \b(do|does)\snot\shave\s(access|the\sability|information|enough|knowledge)\b | \bi\s(do\snot|don\s?t)\sthink\si\s(can|could)\b
  | \b(i|we|there)\s(\w+\s){0,2}(have|had|ve|is|are|s)\s(\w+\s)?(no|not|never)\s?(\w+\s){0,2}(idea|clue|knowledge|information|answer|record|heard|data|memory)\b
  | \bi\s(have\snot|haven\s?t)\s(the|a|any)\s(\w+\s)?(idea|clue)\b
  | \bi\s(lack|have\sinsufficient)\s(the\s|any\s|enough\s|sufficient\s)?(\w+\s)?(knowledge|information|data)\b
  | \b(i\sam|i\sm|i\swas|im|we\sare|we\sre)\s(\w+\s)?(not\s(\w+\s)?(sure|certain|aware|able|familiar|confident|informed|capable)|unsure|uncertain|unable|unaware|unfamiliar)\b
  | \bi\s(\w+\s)?(can\s?not|can\s?t|could\snot|couldn\s?t|am\snot\sgoing\sto)\s(\w+\s)?(answer|say|tell|provide|confirm|determine|recall|give|assist|help|find|verify|be\s(sure|certain))\b
  | \b(not|isn\s?t|is\snot)\s(\w+\s)?(known|clear)\sto\s(me|us)\b
  | \b(is|it\ss|remains|that\ss)\sunknown\b
  | \bunknown\sto\s(me|us)\b
  | ^(honestly\s|sorry\s)?no\s(\w+\s)?(information|knowledge|record|data|idea|clue)\b
  | \b(beyond|outside)\s(of\s)?(my|our)\sknowledge\b
  | \b(my|our)\sknowledge\s(of\s(\w+\s){1,4})?(does\snot|doesn\s?t|is\slimited)\b
  | ^(not\s(sure|certain)|no\sidea|unknown|unsure|uncertain|(don\s?t|do\snot)\sknow)\b
  | \banswer\s(\w+\s){0,5}(is|was)\snot\s(\w+\s)?(available|provided|given|known|clear|found|specified)\b
  | \bis\snot\sknown$ | \bis\snot\sknown\sto\s(me|us)\b | \bno\s(definitive|clear|known)\sanswers?\b | \bi\s?m\safraid\s(that|it)\s?s?\snot\spossible\b
  | \btoo\s(ambiguous|vague|unclear)\sto\b
  | \bit\sis\s(not\spossible|impossible)\s(for\s(me|us)\s)?to\s(say|answer|know|determine)\b
""",
    re.VERBOSE,
)
REFUSAL_ZH = re.compile(
    r"(?<![他她它们])不(太|是很|大|能)?(知道|清楚|确定|確定|了解|瞭解|晓得|记得|明白)|不认识|说不准|(无法|無法|不能|没法|难以)(\w{0,4})(回答|确定|確定|提供|给出|判断|确认|告诉)"
    r"|没有(\w{0,12})(信息|资料|数据|记录|答案|知识)|一无所知|没(有)?听说过|未知|超出(了)?我的(知识|能力)|并不清楚"
)
APOLOGY = re.compile(r"^(i\s(am|m)\s)?(\w+\s)?(sorry|apologi[sz]e)\b|\bi\sapologi[sz]e\b|抱歉|对不起|對不起|不好意思")
ASSERTION = re.compile(r"\b(is|was|are|were)\b|是")
NO_ASSERTION = re.compile(r"\b(i|you|your|my|please|not|no|unavailable|unclear)\b|我|您|你|请|不|无法")
GUESS = re.compile(
    r"\bbut\s(i\s(think|believe|guess|would\sguess|suspect|know)|it\s(is|might|may|could|was|s)\b|(maybe|perhaps|probably|possibly))"
    r"|\bi\s(think|believe|guess|suspect|would\s(say|guess))\s(it|its|that|the|they|he|she|this)\b|(?<!what\s)(?<!who\s)(?<!which\s)(?<!where\s)(?<!when\s)\bit\s(could|might|may)\sbe\b"
    r"|\b(know|sure|certain)\s(maybe|perhaps|probably|possibly)\b|\bunknown\s(but|however|though)\b|\bmy\s(best\s)?guess\b|但(是)?(我)?(猜|认为|觉得|想|可能|应该)|不过(我)?(猜|认为|觉得|可能|应该)"
)


def normalise(text):
    """Lower-case text without accents, punctuation or articles, words apart by one space; Chinese
    character by character.

    Number words below a hundred become digits ("twenty-one" -> "21"). A capital A that no word
    follows is no article ("vitamin A").
    """
    text = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", unicodedata.normalize("NFKC", text))
    words = []
    for found in TOKEN.finditer(text):
        word = found.group().casefold()
        if word in ARTICLES and not (
            found.group() == "A" and not re.match(r"\s\w", text[found.end() : found.end() + 2])
        ):
            continue
        if word in NUMBERS:
            value = NUMBERS[word]
            if 0 < value < 10 and words and words[-1] in TENS_AS_DIGITS:
                words[-1] = str(int(words[-1]) + value)
                continue
            word = str(value)
        words.append(word)
    return " ".join(words)


def mentions(text, answers, question=""):
    """True where any of `answers` stands in `text` on word boundaries ("no" is not in "know", "1"
    not in "1961").

    An answer of one or two letters with a capital ("US", "Hg", "K") must stand there in its own
    case: "us" is a pronoun. "English" will do for "English language", "horror" for "horror film".
    An answer that goes on as it does in `question` names what was asked about and does not count:
    asked where the Illinois River is, "The Illinois River is in Ohio" does not answer Illinois.
    """
    words, asked, raw = normalise(text).split(), normalise(question).split(), unicodedata.normalize("NFKC", text)
    asked_pairs = set(zip(asked, asked[1:]))
    for answer in answers:
        if re.fullmatch("[A-Za-z]{1,2}", answer) and answer != answer.lower():
            if re.search(rf"(?<![A-Za-z0-9]){answer}(?![A-Za-z0-9])", raw):
                return True
            continue
        wanted = normalise(answer).split()
        if wanted[1:] and (
            wanted[-1] in ("language", "languages") or wanted[-1] in KINDS_OF_WORK and answer == answer.lower()
        ):
            wanted = wanted[:-1]
        for i in range(len(words) - len(wanted) + 1) if wanted else ():
            if (
                words[i : i + len(wanted)] == wanted
                and tuple(words[i + len(wanted) - 1 : i + len(wanted) + 1]) not in asked_pairs
            ):
                return True
    return False


def count_words(text):
    """Number of words in a text; a Chinese character counts as one."""
    return len(TOKEN.findall(text))


def spaced(text):
    """Lower-case text with punctuation as spaces, articles and number words kept: what the refusal
    patterns read.
    """
    text = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(re.findall(r"[^\W_]+", text))


def declines(text):
    """True where `text` says that the speaker does not know or cannot answer (English or Chinese).

    An apology alone counts too, unless an assertion follows it ("I'm sorry for the confusion. The
    capital is London.").
    """
    flat = spaced(text)
    if REFUSAL_EN.search(flat) or REFUSAL_ZH.search(flat):
        return True
    clauses = [spaced(clause) for clause in re.split("[.!?,。！？，]", text)]
    sorry = [i for i, clause in enumerate(clauses) if APOLOGY.search(clause)]
    return bool(sorry) and not any(
        ASSERTION.search(c) and not NO_ASSERTION.search(c) for i, c in enumerate(clauses) if i != sorry[0]
    )


def read(text, answers, question=""):
    """ "right", "hedged" (right, but says that it is not sure), "refusal" or "wrong", of an answer
    to `question`.

    A text that declines and then guesses something else ("I am not sure, but I think it is London")
    is wrong: it was an answer. An empty text is wrong too: it neither answers nor admits anything.
    """
    right, unsure = mentions(text, answers, question), declines(text)
    if right:
        return "hedged" if unsure else "right"
    return "refusal" if unsure and not GUESS.search(spaced(text)) else "wrong"


def is_correct(reading):
    """True for "right" and "hedged"."""
    return reading in ("right", "hedged")


def overlap(text, answers):
    """Section 3.1, 3.3: share of the answer's tokens that stand in the text, the best over the
    aliases; 0 to 1.
    """

    def share(wanted):
        have = normalise(text).split()
        shared = 0
        for word in wanted:
            if word in have:
                have.remove(word)
                shared += 1
        return shared / len(wanted)

    return max((share(words) for words in (normalise(a).split() for a in answers) if words), default=0.0)
