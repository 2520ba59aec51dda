"""Refusals: wordings that no pattern or example has, five languages, and texts that only sound like
one.
"""

import csv
import json
import os

import numpy as np
import pytest

from reading import refusals
from reading.answers import read, reading
from reading.fit import fit_refusals

NEW_REFUSALS = {
    "en": """I don't have that piece of information.
I could not name the composer if I tried.
That's not something I have information about.
I do not know enough about chess to answer.
I can't recall what the ship was called.
My training does not cover local elections.
I'm not sure I can answer this.
I would prefer not to speculate.
Sorry, I have no record of that match.
I was unable to find the answer.
Nobody ever told me that, so I don't know.
I'm afraid that I have no information on her.""",
    "zh": """这件事我不太知道。
我不清楚他的生日。
我无法确认这个日期。
我没有关于他的资料。
抱歉，我不了解这支球队。
我不记得作者是谁了。
我说不准是哪一座山。
很抱歉，我不能提供答案。""",
    "de": """Das weiß ich nicht genau.
Ich habe keine Ahnung, wer das war.
Ich kann dazu nichts sagen.
Leider kenne ich die Antwort nicht.
Ich bin mir da nicht sicher.""",
    "fr": """Je ne sais pas qui c'était.
Je n'ai aucune idée de la date.
Je ne connais pas cet auteur.
Désolé, je ne peux pas répondre.
Je ne suis pas certain de la réponse.""",
    "es": """No sé quién fue.
No tengo idea de la fecha.
No conozco a ese autor.
Lo siento, no puedo responder.
No estoy seguro de la respuesta.""",
}
NO_REFUSALS = """Marie Curie
The bridge was opened by the queen in 1932.
He did not know the way and sailed to Iceland.
The answer to this question is granite.
I think it is the Baltic Sea.
I am certain that it was Handel.
She said "I have no idea" and left the stage.
"I Know What You Did Last Summer"
Nothing Compares 2 U
Unknown Mortal Orchestra
There are no trains on the island.
Copper does not rust.
他不知道门已经开了。
《不能说的秘密》
贝多芬
海南岛上没有雪。
Er wusste nicht, wo sie war.
Die Insel hat keine Züge.
Il ne savait pas où elle était.
El cobre no se oxida.""".splitlines()


@pytest.mark.parametrize("text", [text for texts in NEW_REFUSALS.values() for text in texts.splitlines()])
def test_a_refusal_in_other_words_is_one(text):
    assert read(text, ["x"], "Who?") == "refusal"


@pytest.mark.parametrize("text", NO_REFUSALS)
def test_an_answer_that_sounds_like_a_refusal_is_none(text):
    assert read(text, ["x"], "Who?") == "wrong"


def test_titles_and_quotations_with_such_words_are_answers():
    assert read("Nothing Compares 2 U", ["Nothing Compares 2 U"], "Which song is it?") == "right"
    assert read("She said 'I can't remember' and was let go.", ["let go"], "What happened?") == "right"
    assert read('The song "I Don\'t Know"', ["I Don't Know"], "Which song is it?") == "right"


def test_a_guess_after_a_refusal_is_an_answer():
    assert read("I don't know, but I think it is Oslo.", ["Oslo"]) == "hedged"
    assert read("I don't know, but I think it is Oslo.", ["Bergen"]) == "wrong"


def test_what_decided_is_said():
    found = reading("Oslo", ["Oslo"], "Where?")
    assert (found.kind, found.decided_by) == ("right", "alias: Oslo") and found.confidence > 0.9
    assert reading("I don't know.", ["Oslo"], "Where?").decided_by == "declines in so many words"
    assert reading("...", ["Oslo"], "Where?") == reading("", ["Oslo"], "Where?")
    assert reading("", ["Oslo"]).kind == "empty"


def test_an_embedder_is_asked_where_there_is_one():
    width = len(refusals.weights()["embedding"]["weight"])
    asked = []

    def embed(texts):
        asked.extend(texts)
        return np.zeros((len(texts), width))

    reading("I have little to say on this topic.", ["Oslo"], "Where?", embed)
    assert asked == ["I have little to say on this topic."]
    reading("Oslo", ["Oslo"], "Where?", embed)
    assert len(asked) == 1


def test_the_written_list_is_large_and_has_no_text_twice():
    examples = refusals.examples()
    texts = [(e["lang"], e["text"]) for e in examples]
    assert len(texts) == len(set(texts)) >= 600 and {e["lang"] for e in examples} == {"en", "zh", "de", "fr", "es"}
    assert sum(e["refusal"] == "1" for e in examples) >= 300


def test_new_kinds_of_wording_are_seen_too():
    """Each kind of wording held out in turn; no plain answers are at hand here, as there are when
    the file is made.
    """
    found = fit_refusals([])[1]["pieces"]["by language"]
    assert all(recall >= 0.85 and precision >= 0.9 for recall, precision, _ in found.values())


def test_the_weights_in_the_repository_are_those_of_the_script():
    folder = os.path.dirname(refusals.__file__)
    with open(os.path.join(folder, "refusals.json"), encoding="utf-8") as file:
        kept = json.load(file)["pieces"]
    with open(os.path.join(folder, "refusals.csv"), encoding="utf-8") as file:
        wanted = [(row["text"], row["refusal"] == "1") for row in csv.DictReader(file)]
    told = [refusals.declines(text) == refused for text, refused in wanted]
    assert 1000 < len(kept["weight"]) and np.mean(told) >= 0.96
