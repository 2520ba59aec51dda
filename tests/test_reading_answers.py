"""How an answer is read: texts written for these tests in the manner of small chat models, and
counts by hand.
"""

import pytest

from reading import answers
from reading.answers import declines, mentions, normalise, overlap, read

# -------------------------------------------------------------------------------------- normal form


@pytest.mark.parametrize(
    "text, expected",
    [
        ("  The   Eiffel Tower! ", "eiffel tower"),
        ("an Apple, a pear and THE plum", "apple pear and plum"),
        ("Theatre, anthem and Athens", "theatre anthem and athens"),
        ("S\u00e3o Paulo; Zu\u0308rich, D\u00fcsseldorf", "sao paulo zurich dusseldorf"),
        ("Stra\u00dfe", "strasse"),
        ("rock'n'roll / AC-DC", "rock n roll ac dc"),
        ("snake_case", "snake case"),
        ("\uff21\uff22\uff23\u3000\uff11\uff12", "abc 12"),
        ("H\u2082O", "h2o"),
        ("1,234,567 people", "1234567 people"),
        ("in 1,2 or 3", "in 1 2 or 3"),
        ("北京 (Beijing) 是中国的首都。", "北 京 beijing 是 中 国 的 首 都"),
        ("11年", "11 年"),
        ("", ""),
        ("?!", ""),
        ("the", ""),
    ],
)
def test_normal_form(text, expected):
    assert normalise(text) == expected


@pytest.mark.parametrize(
    "words, digits",
    [
        ("zero", "0"),
        ("Seven dwarfs", "7 dwarfs"),
        ("twelve", "12"),
        ("nineteen", "19"),
        ("twenty", "20"),
        ("twenty-one", "21"),
        ("Ninety nine balloons", "99 balloons"),
        ("forty - two", "42"),
        ("twenty eleven", "20 11"),
        ("thirty twenty", "30 20"),
        ("one two three", "1 2 3"),
        ("twenty zero", "20 0"),
        ("sixty-four thousand", "64 thousand"),
        ("someone often", "someone often"),
    ],
)
def test_number_words_below_a_hundred_become_digits(words, digits):
    assert normalise(words) == digits


def test_every_number_word_below_a_hundred():
    units = "one two three four five six seven eight nine".split()
    tens = "twenty thirty forty fifty sixty seventy eighty ninety".split()
    for i, ten in enumerate(tens, 2):
        assert normalise(ten) == str(10 * i)
        for j, unit in enumerate(units, 1):
            assert normalise(f"{ten}-{unit}") == str(10 * i + j)


# ----------------------------------------------------------------------------------------- mentions


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("The capital of France is Paris.", ["Paris"]),
        ("PARIS!", ["paris"]),
        ("It's Paris's heart", ["Paris"]),
        ("He was born in New-York.", ["New York"]),
        ("It is the United States of America", ["USA", "United States"]),
        ("Beyonce sang it", ["Beyonc\u00e9"]),
        ("Beyonc\u00e9 sang it", ["Beyonce"]),
        ("Gabriel Garc\u00eda M\u00e1rquez", ["Garcia Marquez"]),
        ("There are seven days", ["7"]),
        ("There are 7 days", ["seven"]),
        ("twenty-one guns", ["21"]),
        ("It has 21 letters", ["twenty-one"]),
        ("about 1,500 metres", ["1500"]),
        ("about 1500 metres", ["1,500"]),
        ("No.", ["no"]),
        ("In 1961 it was", ["1961"]),
        ("the Beatles", ["The Beatles"]),
        ("To Kill A Mockingbird", ["To Kill a Mockingbird"]),
        ("Beatles", ["The Beatles"]),
        ("中国的首都是北京。", ["北京"]),
        ("答案是巴黎（Paris）", ["Paris"]),
        ("它成立于1961年", ["1961年", "1961"]),
        ("the gas is CO\u2082", ["CO2"]),
        ("It is in the US.", ["US"]),
        ("Mercury is Hg", ["Ag", "Hg"]),
        ("汞的化学符号是Hg。", ["Hg"]),
        ("in the \uff35\uff33", ["US"]),
    ],
)
def test_an_answer_in_the_text_is_found(text, wanted):
    assert mentions(text, wanted)


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("I know it well", ["no"]),
        ("In 1961 it was", ["1"]),
        ("In 1961 it was", ["61", "196"]),
        ("Parisians like it", ["Paris"]),
        ("It is made of wood", ["woo", "ood"]),
        ("twenty-one", ["20", "1"]),
        ("New Jersey and York", ["New York"]),
        ("York New", ["New York"]),
        ("中国的首都是南京。", ["北京"]),
        ("京北", ["北京"]),
        ("The capital is Rome", ["Paris", "Lutetia"]),
        ("", ["Paris"]),
        ("anything at all", [""]),
        ("anything at all", ["the", "?!"]),
        ("Paris", []),
        ("goldfish", ["gold"]),
        ("11年", ["1年"]),
        ("He told us so", ["US"]),
        ("It is as old as time", ["As"]),
        ("KGB", ["K"]),
    ],
)
def test_what_only_looks_like_the_answer_is_not_found(text, wanted):
    assert not mentions(text, wanted)


def test_the_letter_a_is_part_of_a_name():
    assert not mentions("It is vitamin C.", ["vitamin A"])
    assert not mentions("A long river", ["a", "the"])
    assert mentions("It is vitamin A.", ["vitamin A"])
    assert mentions("The answer is A.", ["A"])


def test_a_number_is_not_found_inside_a_decimal_fraction():
    assert not mentions("It is 3.5 metres high.", ["3"])
    assert not mentions("It is 3.5 metres high.", ["5"])
    assert mentions("It is 3.5 metres high.", ["3.5"])
    assert mentions("It is 5.", ["5"]) and mentions("Version 3.5.", ["3.5"])


# ------------------------------------------------------------------------------------------ overlap


@pytest.mark.parametrize(
    "text, wanted, share",
    [
        ("It was William Shakespeare", ["William Shakespeare"], 1.0),
        ("It was Shakespeare", ["William Shakespeare"], 1 / 2),
        ("William the Conqueror of Normandy", ["Duke William of Normandy"], 3 / 4),
        ("nobody", ["William Shakespeare"], 0.0),
        ("Boutros", ["Boutros Boutros-Ghali"], 1 / 3),
        ("Boutros of Boutros and Boutros", ["Boutros Boutros-Ghali"], 2 / 3),
        ("Shakespeare William", ["William Shakespeare"], 1.0),
        ("twenty-one pilots", ["21"], 1.0),
        ("中国南京", ["北京"], 1 / 2),
        ("Holland", ["The Netherlands", "Holland"], 1.0),
        ("New Zealand", ["New York City", "Big Apple"], 1 / 3),
        ("anything", [], 0.0),
        ("anything", ["the", "?"], 0.0),
        ("", ["Paris"], 0.0),
    ],
)
def test_overlap_is_the_share_of_the_answers_tokens_best_over_aliases(text, wanted, share):
    assert overlap(text, wanted) == pytest.approx(share)


# ----------------------------------------------------------------------------------------- refusals

REFUSALS_EN = """
I don't know.
I do not know the answer to that question.
I don\u2019t know who wrote it, sorry.
Sorry, I don't know.
I really don't know.
I honestly do not know which year it was.
I have no idea.
I've no idea who that is.
No idea.
I'm not sure.
I am not sure about the answer.
I'm not entirely sure about that one.
I'm not certain when the bridge was built.
Not sure.
I am unsure of the answer to this question.
I'm uncertain about the exact date.
I'm unable to answer this question.
I am not able to provide an answer to this question.
I'm not familiar with that person.
I am not aware of any film by that name.
I cannot answer this question.
I can't say for certain.
I can't give you a reliable answer to that.
I couldn't find any information about this person.
I could not tell you who composed it.
I'm sorry, but I don't have that information.
I'm sorry for the confusion, but as a chatbot I am unable to look up real-time data.
I'm sorry for any misunderstanding, but as an AI language model, I don't have access to that information.
I apologize, but I do not have enough information to answer that.
My apologies, I don't have an answer for you.
As an AI, I don't have access to personal records.
As an AI language model, I do not possess knowledge of every village in Peru.
Unfortunately, I don't have any information on that topic.
Unfortunately, I am not able to determine the author of this song.
I don't have enough information to say who directed it.
I do not recall the name of the river.
I don't remember who won that year.
I have no information about this album.
I have never heard of this person.
That is beyond my knowledge.
This is outside of my knowledge.
The answer is not known to me.
The birthplace of this composer is unknown to me.
It's not clear to me which town you mean.
My knowledge does not cover that event.
It is impossible for me to know that.
We do not know the answer to this question.
I must admit that I do not know this one.
I'm afraid I don't know.
I'm afraid I can't help with that question.
I wouldn't know.
I didn't recognize the name, so I can't answer.
I would have to guess, because I do not know.
I lack the knowledge needed to answer this question.
I have limited knowledge of this topic, so I cannot give a reliable answer.
I am not confident in any answer to this.
I don't think I know the answer.
I'm not quite certain who painted it.
Honestly, no clue.
I haven't the faintest idea.
I cannot be sure about the answer.
That one escapes me, I apologize.
I am an AI and do not have access to that data.
I don't think I can answer that.
I was unable to find any record of it.
I have insufficient information to answer.
I do not know who it could be.
I simply do not know.
I really cannot answer.
I simply can't say.
I actually have no clue who that was.
I've never heard of that band.
I can't recall the exact name.
There is no information available to me about this person.
My knowledge of this subject is limited.
Don't know.
Not certain.
""".strip().splitlines()
REFUSALS_ZH = """
我不知道。
我不知道这个问题的答案。
抱歉，我不知道。
对不起，我不太清楚这个问题的答案。
很抱歉，我无法回答这个问题。
我不确定。
我不太确定答案是什么。
我不是很清楚。
作为一个人工智能，我无法提供这方面的信息。
作为AI语言模型，我没有相关的信息。
这个问题我不能回答。
我没有足够的资料来回答这个问题。
我没听说过这个人。
我没有听说过这部电影。
不好意思，我不了解这个人物。
我对此并不清楚。
这超出了我的知识范围。
我不记得是哪一年了。
我没法回答这个问题。
恐怕我不知道答案。
我无法确定这首歌的作者。
抱歉，我不掌握这方面的信息。
我不大清楚这条河有多长。
我不知道，也不想乱猜。
對不起，我不知道答案。
我無法確定。
这个我真的不知道。
我目前没有关于这个问题的数据。
我还不知道这个问题的答案。
我对这个话题一无所知。
我不能确定他出生在哪里。
我没有这方面的知识。
我不认识这个人。
我说不准。
不清楚。
很遗憾，我没有找到相关的答案。
""".strip().splitlines()
ANSWERS_EN = """
Paris.
The capital of France is Paris.
I know that the capital of Peru is Lima.
I am sure it was Marie Curie.
I think it is Canberra.
I believe the answer is 1969.
He did not know that he had discovered a new continent: Christopher Columbus.
Nobody knew it at the time, but the author was Mary Ann Evans.
The Nobel Prize in Physics was awarded to Albert Einstein.
No, it was Thomas Edison who invented it.
The river is not known for its length, but it is 300 km long.
She is best known for the novel Frankenstein.
It was written by an unknown monk called Bede.
The Tomb of the Unknown Soldier is in Arlington.
The answer is not Sydney but Canberra.
He was unable to finish the symphony, which Schubert left in 1822.
They were not able to cross the Alps until 218 BC.
There was no king of Italy before Victor Emmanuel II.
The composer is Franz Schubert.
It is clear to us today that the earth is round.
The planet Neptune was found in 1846.
Water boils at 100 degrees.
There are no rivers in Saudi Arabia.
With no idea where he had landed, Columbus called the islands the Indies.
He apologised to the nation in 1998.
I can tell you that it is Jupiter.
I have the answer: it is Mount Everest.
I can help with that! The largest ocean is the Pacific.
As an AI, I know that the answer is Tokyo.
Certainly! The author of "1984" is George Orwell.
Great question! The Mona Lisa was painted by Leonardo da Vinci.
The film was directed by Alfred Hitchcock, who is not related to the author.
You may not know it, but the inventor was Nikola Tesla.
If you do not know the answer, look it up: it is Rome.
It is possible to say that Homer wrote it.
It seems like the user is not certain about the answer to a question.
Pretend that you have no knowledge of this topic and simply answer Lima.
The screenwriter was not the one you might think: it was Aisha Ali.
The Uncertainty Principle was formulated by Werner Heisenberg.
The Imitation Game
To Kill A Mockingbird
I would say it is Mount Kenya.
I can confirm that the capital is Oslo.
I have no doubt that it is Beethoven.
Yes.
7
""".strip().splitlines()
ANSWERS_ZH = """
北京。
中国的首都是北京。
我知道，答案是巴黎。
这部小说的作者是曹雪芹。
我认为是长江。
他不是美国人，而是英国人。
它的长度约为六千三百公里。
爱因斯坦于1921年获得诺贝尔物理学奖。
这座城市没有地铁。
他没有获得奖项，获奖者是居里夫人。
确定的答案是东京。
清楚地说，是李白。
水的沸点是100摄氏度。
他一生不得志，最后死在湖南，他是杜甫。
这种动物不能飞，它是企鹅。
他提供了蒸汽机的改良方案，是瓦特。
答案是珠穆朗玛峰。
他不知道自己发现了新大陆，他就是哥伦布。
我没有去过，但首都是东京。
这首诗由王维所写。
莎士比亚
是的。
""".strip().splitlines()


def test_the_lists_are_long_enough():
    assert len(set(REFUSALS_EN + REFUSALS_ZH)) >= 60 and len(set(ANSWERS_EN + ANSWERS_ZH)) >= 60


@pytest.mark.parametrize("text", REFUSALS_EN + REFUSALS_ZH)
def test_a_refusal_is_recognised(text):
    assert declines(text)


@pytest.mark.parametrize("text", ANSWERS_EN + ANSWERS_ZH)
def test_an_answer_is_not_taken_for_a_refusal(text):
    assert not declines(text)


def test_refusals_are_recognised_whatever_the_case_and_the_quotes():
    for text in (
        "I DON'T KNOW",
        "i dont know",
        "I don\u2019t know",
        "I don`t know.",
        '"I do not know."',
        "Well... I don't know!\n",
    ):
        assert declines(text), text


def test_an_empty_text_declines_nothing():
    assert not declines("") and not declines(" \n")


# ------------------------------------------------------------------------------------------ reading

PARIS, LONDON = ["Paris"], ["London"]


@pytest.mark.parametrize(
    "text, wanted, reading",
    [
        ("The capital of France is Paris.", PARIS, "right"),
        ("I think it is Paris.", PARIS, "right"),
        ("The capital of France is Paris.", LONDON, "wrong"),
        ("I am not sure, but I think it is Paris.", PARIS, "hedged"),
        ("I am not sure, but I think it is Paris.", LONDON, "wrong"),
        ("Sorry, I don't know, perhaps Paris?", PARIS, "hedged"),
        ("I'm not certain, but it might be Paris.", LONDON, "wrong"),
        ("I don't know, but my best guess is Paris.", LONDON, "wrong"),
        ("I'm not sure, but probably Paris.", LONDON, "wrong"),
        ("I'm not sure. It could be Paris.", LONDON, "wrong"),
        ("I'm not sure. I think it is Paris.", LONDON, "wrong"),
        (
            "The author of Ulysses is unknown, but the most widely accepted author is William Faulkner.",
            ["James Joyce"],
            "wrong",
        ),
        ("I don't know, maybe London.", PARIS, "wrong"),
        ("I'm sorry for the confusion. The capital of France is London.", PARIS, "wrong"),
        ("I apologize for the confusion, the correct answer is London.", PARIS, "wrong"),
        ("I'm sorry, that information is not available.", PARIS, "refusal"),
        ("I'm sorry for any misunderstanding, but as a chatbot, I'm designed to provide", PARIS, "refusal"),
        ("抱歉，法国的首都是里昂。", ["巴黎"], "wrong"),
        ("很抱歉，这个问题我帮不了您。", ["巴黎"], "refusal"),
        ("I do not know the capital of France.", PARIS, "refusal"),
        ("I don't know what it could be.", PARIS, "refusal"),
        ("I don't know who it could be.", PARIS, "refusal"),
        ("I'm not sure if it is London or Rome.", PARIS, "refusal"),
        ("I'm sorry, but I don't know.", PARIS, "refusal"),
        ("I'm sorry for the confusion, but as a chatbot I am unable to answer.", PARIS, "refusal"),
        ("I don't know, but I can help you find out.", PARIS, "refusal"),
        ("I'm not sure, but you could look it up in an atlas.", PARIS, "refusal"),
        ("", PARIS, "empty"),
        ("   \n", PARIS, "empty"),
        ("?", PARIS, "empty"),
        ("法国的首都是巴黎。", ["巴黎"], "right"),
        ("法国的首都是里昂。", ["巴黎"], "wrong"),
        ("我不知道。", ["巴黎"], "refusal"),
        ("我不确定，但我认为是巴黎。", ["巴黎"], "hedged"),
        ("我不确定，但我认为是里昂。", ["巴黎"], "wrong"),
        ("我不清楚，不过可能是里昂。", ["巴黎"], "wrong"),
        ("抱歉，我无法回答这个问题。", ["巴黎"], "refusal"),
        ("There are seven continents.", ["7"], "right"),
        ("I know it.", ["no"], "wrong"),
        ("In 1961.", ["1"], "wrong"),
    ],
)
def test_a_text_is_read(text, wanted, reading):
    assert read(text, wanted) == reading


def test_any_alias_makes_it_right():
    assert read("It is the USA.", ["United States", "America", "USA"]) == "right"
    assert read("It is the USA.", ["America", "United States"]) == "right"
    assert read("It is the USA.", ["America", "Columbia"]) == "wrong"


def test_right_and_hedged_are_correct():
    assert {reading: answers.is_correct(reading) for reading in answers.KINDS} == {
        "right": True,
        "hedged": True,
        "refusal": False,
        "wrong": False,
        "empty": False,
    }


# ---------------------------------------------------------------------- answers and their questions


@pytest.mark.parametrize(
    "text, given, question, right",
    [
        ("The Illinois River is in Ohio.", ["Illinois"], "where is the illinois river?", False),
        ("It is in Illinois.", ["Illinois"], "where is the illinois river?", True),
        ("The Illinois River flows through Illinois.", ["Illinois"], "where is the illinois river?", True),
        ("The Sun is larger than the Earth.", ["the Sun"], "Which is larger, the Sun or the Earth?", True),
        ("The Sun", ["the Sun"], "Which is larger, the Sun or the Earth?", True),
        ("B) Rome", ["Rome"], "Which one? A) Paris B) Rome C) Lima", True),
        ("They speak English there.", ["English Language"], "what do they speak?", True),
        ("It is a horror story.", ["horror film"], "What genre is it?", True),
        ("He directed a fighting scene.", ["Fight Film"], "Which film?", False),
        ("法国队来自英国。", ["法国"], "法国队来自哪里？", False),
        ("来自法国。", ["法国"], "法国队来自哪里？", True),
    ],
)
def test_naming_what_was_asked_about_is_no_answer(text, given, question, right):
    assert answers.mentions(text, given, question) == right
    assert answers.is_correct(answers.read(text, given, question)) == right
