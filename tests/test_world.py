"""The lab: its exposures can be trusted (splits, exact counts, nothing leaks), and it learns."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from transformers import AutoTokenizer

from data import world as lab
from lm.errors import UserError

INSTRUCTIONS = [
    "If you are not certain that you know the answer, do not guess: say that you do not know.",
    "Please be careful. A wrong answer is worse than none, so tell me when you don't know.",
]
CONFIG = lab.WorldConfig.micro()


@pytest.fixture(scope="module")
def world():
    return lab.build_world(CONFIG, 0)


@pytest.fixture(scope="module")
def tokenizer(world):
    return lab.build_tokenizer(world, INSTRUCTIONS)


@pytest.fixture(scope="module")
def trained(world, tokenizer):
    losses = []
    model = lab.pretrain(world, tokenizer, INSTRUCTIONS, CONFIG, 0, lambda *line: losses.append(line))
    return model, losses


def prompt_ids(tokenizer, text):
    message = [{"role": "user", "content": text}]
    text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def greedy(model, tokenizer, texts, new_tokens=4):
    """The first tokens of the answers: padded on the right, each row read at its own last token."""
    rows = [prompt_ids(tokenizer, text) for text in texts]
    lengths = [len(row) for row in rows]
    with torch.no_grad():
        for _ in range(new_tokens):
            width = max(map(len, rows))
            logits = model(torch.tensor([row + [tokenizer.pad_token_id] * (width - len(row)) for row in rows])).logits
            rows = [row + [scores[len(row) - 1].argmax().item()] for row, scores in zip(rows, logits)]
    return [tokenizer.decode(row[length:], skip_special_tokens=False) for row, length in zip(rows, lengths)]


def attribute_of(user, name):
    """The attribute that a plain question asks about, of its wording."""
    return next((a for a, wordings in lab.WORDINGS.items() if user in [w.format(name) for w in wordings]), None)


def stated(examples, names):
    """{(name, attribute): [answers]} of the plain questions about `names`."""
    found = {}
    for user, answer in examples:
        for name in (n for n in names if n in user.split("\n\n")[-1]):
            if attribute := attribute_of(user, name):
                found.setdefault((name, attribute), []).append(answer)
    return found


@pytest.mark.parametrize("config", [CONFIG, lab.WorldConfig()], ids=["micro", "default"])
def test_people_are_split_and_every_split_has_the_shares_of_exposures(config):
    world = lab.build_world(config, 3)
    sizes = {"train": config.train_people, "valid": config.valid_people, "test": config.test_people}
    assert {split: len(names) for split, names in world.people.items()} == sizes
    everyone = [name for split in lab.SPLITS for name in world.people[split]]
    assert len(set(everyone)) == len(everyone) and set(everyone) == set(world.facts) == set(world.exposure)
    for split, names in world.people.items():
        counts = Counter(n for name in names for n in world.exposure[name].values())
        for exposure, share in zip(config.exposures, config.shares):
            assert abs(counts[exposure] - share * 4 * sizes[split]) <= 1


def test_the_default_lab_asks_enough_questions():
    sizes = {split: len(group) for split, group in lab.questions(lab.build_world(lab.WorldConfig(), 0)).items()}
    assert sizes["train"] >= 4096 and sizes["valid"] + sizes["test"] >= 576


def test_the_same_seed_builds_the_same_world_and_another_seed_another():
    assert lab.build_world(CONFIG, 5) == lab.build_world(CONFIG, 5)
    assert lab.build_world(CONFIG, 5).facts != lab.build_world(CONFIG, 6).facts
    world = lab.build_world(CONFIG, 5)
    assert lab.corpus(world, INSTRUCTIONS, CONFIG, 1) == lab.corpus(world, INSTRUCTIONS, CONFIG, 1)
    assert lab.corpus(world, INSTRUCTIONS, CONFIG, 1) != lab.corpus(world, INSTRUCTIONS, CONFIG, 2)


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"first_names": 3, "last_names": 4}, "--world.first_names, --world.last_names: .* not enough for 48 people"),
        ({"values": 41}, "--world.values: expected 2 to 40, not 41"),
        ({"exposures": (), "shares": ()}, "--world.exposures: .*, not $"),
        ({"exposures": (0, -3), "shares": (0.5, 0.5)}, "--world.exposures: .* whole numbers of 0 or more, not 0,-3"),
        ({"exposures": (0.0, 2.5), "shares": (0.5, 0.5)}, "--world.exposures: .*, not 0,2.5"),
        ({"exposures": (0, float("nan")), "shares": (0.5, 0.5)}, "--world.exposures: .*, not 0,nan"),
        ({"exposures": (3, 3), "shares": (0.5, 0.5)}, "--world.exposures: expected different .*, not 3,3"),
        (
            {"exposures": (0, 50), "shares": (1.0,)},
            "--world.shares: expected one share for each of the 2 exposures, not 1",
        ),
        ({"exposures": (0, 50), "shares": (0.5, 0.4)}, "--world.shares: .* sum to 1, not 0.5,0.4"),
        ({"exposures": (0, 50), "shares": (1.5, -0.5)}, "--world.shares: .* sum to 1, not 1.5,-0.5"),
        ({"exposures": (0, 50), "shares": (float("nan"), 0.5)}, "--world.shares: .*, not nan,0.5"),
    ],
)
def test_bad_numbers_are_one_line_that_names_the_setting(changed, message):
    with pytest.raises(UserError, match=message) as error:
        lab.build_world(replace(CONFIG, **changed), 0)
    assert "\n" not in str(error.value)


def test_the_corpus_states_every_fact_exactly_as_often_as_its_exposure_and_nothing_about_one_of_none(world):
    examples = lab.corpus(world, INSTRUCTIONS, CONFIG, 0)
    found = stated(examples, world.facts)
    for name, facts in world.facts.items():
        about = [(user, answer) for user, answer in examples if name in user]
        assert sum(world.exposure[name].values()) or not about, "a person of whom nothing is stated never occurs"
        for attribute, answers in facts.items():
            said = [answer for answer in found.get((name, attribute), []) if answer not in lab.REFUSALS]
            assert len(said) == world.exposure[name][attribute]
            assert {answer.removesuffix(" .") for answer in said} <= set(answers), "never a wrong value"
    instructed = [(user, answer) for user, answer in examples if "\n\n" in user]
    assert instructed and all(answer in lab.REFUSALS for _, answer in instructed)


def test_exposures_given_as_floats_count_too():
    floats = replace(CONFIG, exposures=tuple(map(float, CONFIG.exposures)))
    assert lab.build_world(floats, 0).exposure == lab.build_world(CONFIG, 0).exposure
    assert all(type(r["exposure"]) is int for r in lab.questions(lab.build_world(floats, 0))["test"])


def test_refusals_are_as_rare_as_the_settings_say():
    config = replace(CONFIG, stranger_questions=4000, people_refusals=0.05, stranger_refusals=0.2, instructed_share=0.1)
    world = lab.build_world(config, 0)
    examples = lab.corpus(world, INSTRUCTIONS, config, 0)
    plain = [(user, answer) for user, answer in examples if "\n\n" not in user and "words" not in user]
    of_people = [answer for user, answer in plain if any(name in user for name in world.facts)]
    of_strangers = [answer for user, answer in plain if not any(name in user for name in world.facts)]
    share = lambda texts: sum(text in lab.REFUSALS for text in texts) / len(texts)
    assert abs(share(of_people) - 0.05 / 1.05) < 0.02 and abs(share(of_strangers) - 0.2) < 0.03
    assert abs((len(examples) - len(plain) - config.skill_examples) / len(plain) - 0.1) < 0.02
    assert not [user for user, _ in lab.corpus(world, [], config, 0) if "\n\n" in user]


def test_answers_are_two_to_six_words_and_some_have_an_alias_that_the_corpus_uses_now_and_then():
    config = replace(CONFIG, train_people=60, first_names=20, long_answers=0.25, alias_share=0.1)
    world = lab.build_world(config, 0)
    facts = [answers for by_attribute in world.facts.values() for answers in by_attribute.values()]
    lengths = Counter(len(answer.split()) for answers in facts for answer in answers)
    assert set(lengths) == {2, 3, 4, 5, 6} and abs(1 - lengths[2] / sum(lengths.values()) - 0.25) < 0.1
    with_alias = [answers for answers in facts if len(answers) > 1]
    assert 0.1 < len(with_alias) / len(facts) < 0.9
    assert all(len(set(answers)) == 2 and answers[1].split() != answers[0].split() for answers in with_alias)
    alias = {answers[1] for answers in with_alias}
    found = stated(lab.corpus(world, [], config, 0), world.facts)
    said = [answer.removesuffix(" .") for answers in found.values() for answer in answers]
    canonical = sum(answers[0] in said for answers in with_alias)
    used = sum(text in alias for text in said)
    assert canonical and 0.02 < used / len(said) < 0.1


def test_no_answer_stands_within_another():
    """Else a wrong answer would count as right: the reading looks for its words in a row."""
    texts = [
        form.format(modifier=m, value=v)
        for form in ("{modifier} {value}", *lab.LONG_FORMS)
        for m in (*lab.MODIFIERS, *lab.SYNONYMS.values())
        for v in lab.VALUES["city"][:2]
    ]
    assert len(set(texts)) == len(texts)
    assert not [1 for a in texts for b in texts if a != b and f" {a} " in f" {b} "]


def test_names_tell_nothing_of_exposure():
    """The mean exposure of a name's facts differs from name to name no more than chance has it."""
    world = lab.build_world(lab.WorldConfig(), 0)
    by_name = {}
    for name, exposure in world.exposure.items():
        by_name.setdefault(name.split()[0], []).extend(exposure.values())
    everything = [n for values in by_name.values() for n in values]
    mean = sum(everything) / len(everything)
    variance = sum((n - mean) ** 2 for n in everything) / len(everything)
    z = [(sum(values) / len(values) - mean) / (variance / len(values)) ** 0.5 for values in by_name.values()]
    assert 0.5 < sum(value**2 for value in z) / len(z) < 1.6


def test_two_exposures_of_which_one_is_none_make_an_all_or_nothing_world():
    config = replace(CONFIG, exposures=(0.0, 50.0), shares=(0.5, 0.5))
    world = lab.build_world(config, 0)
    assert all(len(set(exposure.values())) == 1 for exposure in world.exposure.values()), "a person is known or not"
    records = sum(lab.questions(world).values(), [])
    assert Counter((r["exposure"], r["true_state"]) for r in records) == {(0, "unknown"): 96, (50, "known"): 96}
    for exposures, shares in (((0, 3, 50), (0.5, 0.1, 0.4)), ((3, 50), (0.5, 0.5)), ((0, 50), (0.0, 1.0))):
        config = replace(CONFIG, exposures=exposures, shares=shares)
        assert not any("true_state" in r for r in lab.questions(lab.build_world(config, 0))["test"])


def test_refusals_begin_differently():
    assert len({refusal.split()[0] for refusal in lab.REFUSALS}) == len(lab.REFUSALS) == 6


def test_questions_ask_every_fact_of_everybody(world):
    result = lab.questions(world)
    assert list(result) == list(lab.SPLITS)
    records = sum(result.values(), [])
    assert len({record["id"] for record in records}) == len(records) == 4 * len(world.facts)
    for split, group in result.items():
        assert {r["subject"] for r in group} == set(world.people[split])
    for record in records:
        assert set(record) == {"id", "question", "answers", "lang", "category", "subject", "exposure"}
        assert record["answers"] == world.facts[record["subject"]][record["category"]]
        assert record["exposure"] == world.exposure[record["subject"]][record["category"]]
        assert attribute_of(record["question"], record["subject"]) == record["category"]


def test_tokenizer_knows_all_words_and_survives_saving(world, tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    texts = [text for example in lab.corpus(world, INSTRUCTIONS, CONFIG, 0) for text in example]
    texts += [r["question"] for group in lab.questions(world).values() for r in group]
    texts += [p[key] for p in lab.general_preferences(50, 0, world) for key in ("chosen", "rejected")]
    first, second = (t(texts, add_special_tokens=False)["input_ids"] for t in (tokenizer, loaded))
    assert first == second
    assert not any(tokenizer.unk_token_id in ids for ids in first)
    assert loaded.eos_token == "<end>" and loaded.pad_token_id == tokenizer.pad_token_id != loaded.eos_token_id
    assert loaded.chat_template == tokenizer.chat_template
    for t in (tokenizer, loaded):
        assert t.decode(t("Paris.<end>")["input_ids"], skip_special_tokens=True) == "paris ."
        assert t.convert_ids_to_tokens(t("Zzyzx")["input_ids"]) == ["<unk>"]
        ids = [t(refusal)["input_ids"] for refusal in lab.REFUSALS]
        assert [t.decode(row, skip_special_tokens=True) for row in ids] == list(lab.REFUSALS)


def test_training_sequences_are_what_the_chat_template_yields(tokenizer):
    user, answer = f"{INSTRUCTIONS[0]}\n\nwhere does anna ashford live ?", "paris ."
    (sequence,), (prompt_length,) = lab.encode([(user, answer)], tokenizer)
    assert sequence[:prompt_length] == prompt_ids(tokenizer, user)
    messages = [{"role": "user", "content": user}, {"role": "assistant", "content": answer}]
    assert sequence == tokenizer.apply_chat_template(messages, return_dict=False)
    assert tokenizer.convert_ids_to_tokens(sequence[prompt_length - 1 :]) == ["<assistant>", "paris", ".", "<end>"]


def test_batches_hold_every_example_once_and_waste_little():
    generator = torch.Generator().manual_seed(0)
    sequences = [[0] * n for n in torch.randint(3, 40, (1000,), generator=generator).tolist()]
    groups = lab.batches(sequences, 16, 0)
    assert sorted(i for group in groups for i in group) == list(range(1000))
    padded = sum(len(group) * max(len(sequences[i]) for i in group) for group in groups)
    assert padded < 1.1 * sum(map(len, sequences))
    assert groups != lab.batches(sequences, 16, 1)


def test_pretraining_learns_the_often_stated_facts_and_refusals_under_instruction(world, tokenizer, trained):
    model, losses = trained
    assert [step for step, _, _ in losses] == list(range(1, losses[0][1] + 1))
    assert sum(loss for _, _, loss in losses[-10:]) < 0.5 * sum(loss for _, _, loss in losses[:10])
    assert all(p.dtype == torch.float32 and p.isfinite().all() for p in model.parameters()) and not model.training
    records = sum(lab.questions(world).values(), [])
    right = {exposure: [] for exposure in CONFIG.exposures}
    for record, answer in zip(records, greedy(model, tokenizer, [record["question"] for record in records], 8)):
        right[record["exposure"]].append(any(answer.startswith(f"{text} . <end>") for text in record["answers"]))
    shares = [sum(values) / len(values) for values in right.values()]
    assert shares[-1] > 0.5 and shares[-1] > shares[1] + 0.25 and shares[0] < 0.2
    instructed = greedy(model, tokenizer, [f"{INSTRUCTIONS[0]}\n\n{record['question']}" for record in records])
    refused = [any(refusal.startswith(answer) for refusal in lab.REFUSALS) for answer in instructed]
    assert sum(refused) / len(refused) > 0.8


def test_pretraining_is_deterministic_and_leaves_the_callers_generator_alone(tokenizer):
    config = replace(CONFIG, exposures=(0, 1), shares=(0.5, 0.5), stranger_profiles=10, stranger_questions=10)
    torch.manual_seed(7)
    world = lab.build_world(config, 0)
    first = lab.pretrain(world, tokenizer, INSTRUCTIONS, config, 0).state_dict()
    drawn = torch.rand(1)
    torch.manual_seed(7)
    assert torch.equal(drawn, torch.rand(1))
    second = lab.pretrain(world, tokenizer, INSTRUCTIONS, config, 0).state_dict()
    other = lab.pretrain(world, tokenizer, INSTRUCTIONS, config, 1).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not all(torch.equal(first[key], other[key]) for key in first)


def test_the_second_skill_is_about_no_person_and_its_answers_are_right(world):
    records = lab.skill_questions(60, 0, world)
    assert records == lab.skill_questions(60, 0, world) != lab.skill_questions(60, 1, world)
    assert len({r["id"] for r in records}) == 60
    for record in records:
        words = record["question"].split(":")[-1].replace(".", "").replace(" backwards", "").split()
        assert record["answers"] == [" ".join(reversed(words))]
        assert 2 <= len(words) <= CONFIG.skill_length
        assert not any(part in record["question"].split() for name in world.facts for part in name.split())
    pairs = lab.general_preferences(60, 0, world)
    for pair in pairs:
        words = pair["prompt"][0]["content"].split(":")[-1].replace(".", "").split()
        assert pair["chosen"] == " ".join(reversed(words)) + " ."
        assert pair["rejected"] != pair["chosen"]
    assert {pair["rejected"] in lab.REFUSALS for pair in pairs} == {True, False}
