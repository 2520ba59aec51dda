"""The lab: what makes its true knowledge states trustworthy (splits, balance of names, nothing
leaks) and that it learns.
"""

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
    model = lab.pretrain(
        world, tokenizer, INSTRUCTIONS, CONFIG, 0, lambda *step_total_loss: losses.append(step_total_loss)
    )
    return model, losses


def prompt_ids(tokenizer, text):
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
    )
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def greedy(model, tokenizer, texts, new_tokens=4):
    """The first tokens of the answers, all texts at once: padded on the right, each row read at its
    own last token.
    """
    rows = [prompt_ids(tokenizer, text) for text in texts]
    lengths = [len(row) for row in rows]
    with torch.no_grad():
        for _ in range(new_tokens):
            width = max(map(len, rows))
            logits = model(torch.tensor([row + [tokenizer.pad_token_id] * (width - len(row)) for row in rows])).logits
            rows = [row + [scores[len(row) - 1].argmax().item()] for row, scores in zip(rows, logits)]
    return [tokenizer.decode(row[length:], skip_special_tokens=False) for row, length in zip(rows, lengths)]


@pytest.mark.parametrize("config", [CONFIG, lab.WorldConfig()], ids=["micro", "default"])
def test_people_are_split_and_their_names_are_balanced(config):
    world = lab.build_world(config, 3)
    sizes = {"train": config.train_people, "valid": config.valid_people, "test": config.test_people}
    everyone = [name for group in (world.known, world.unknown) for split in lab.SPLITS for name in group[split]]
    assert len(set(everyone)) == len(everyone) == 2 * sum(sizes.values()), "nobody is in two splits or in two states"
    assert set(everyone) == set(world.facts)
    for split, size in sizes.items():
        assert len(world.known[split]) == len(world.unknown[split]) == size
        for part in (0, 1):  # the same names, equally often: a name alone tells nothing
            known, unknown = (
                Counter(name.split()[part] for name in group[split]) for group in (world.known, world.unknown)
            )
            assert known == unknown
    firsts = Counter(name.split()[0] for name in everyone)
    assert max(firsts.values()) - min(firsts.values()) <= 2


def test_the_same_seed_builds_the_same_world_and_another_seed_another():
    assert lab.build_world(CONFIG, 5) == lab.build_world(CONFIG, 5)
    assert lab.build_world(CONFIG, 5).facts != lab.build_world(CONFIG, 6).facts
    world = lab.build_world(CONFIG, 5)
    assert lab.corpus(world, INSTRUCTIONS, CONFIG, 1) == lab.corpus(world, INSTRUCTIONS, CONFIG, 1)
    assert lab.corpus(world, INSTRUCTIONS, CONFIG, 1) != lab.corpus(world, INSTRUCTIONS, CONFIG, 2)


def test_too_few_names_are_an_error():
    with pytest.raises(UserError, match="too few names"):
        lab.build_world(replace(CONFIG, first_names=3, last_names=4), 0)


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"first_names": 61}, "first_names: expected 2 to 60"),
        ({"last_names": 121}, "last_names: expected 2 to 120"),
        ({"values": 1}, "values: expected 2 to 40"),
        ({"values": 41}, "values: "),
        ({"skill_length": 1}, "skill_length: expected 2 to 39"),
        ({"skill_length": 40}, "skill_length: "),
        ({"train_people": 90}, "first_names, --world.last_names: their 192 pairs are not enough"),
        ({"hidden": 66}, "hidden: expected a multiple of "),
        ({"heads": 3}, "hidden: expected a multiple of "),
    ],
)
def test_a_world_that_cannot_be_made_is_refused_in_one_line_that_names_the_setting(changes, named):
    lab.check(CONFIG)
    with pytest.raises(UserError, match=f"--world.{named}"):
        lab.check(replace(CONFIG, **changes))


def test_the_corpus_has_every_fact_of_known_people_and_no_unknown_person(world):
    examples = lab.corpus(world, INSTRUCTIONS, CONFIG, 0)
    text = " \n ".join(user for user, _ in examples)
    for split in lab.SPLITS:
        assert not [name for name in world.unknown[split] if name in text]
        for name in world.known[split]:
            about = [(user, answer) for user, answer in examples if name in user]
            assert len(about) == 4 * CONFIG.question_repeats + CONFIG.profile_repeats + CONFIG.heard_repeats
            for attribute, value in world.facts[name].items():
                for user, answer in about:  # never a wrong value: what is not the fact is a refusal
                    asked = any(user.endswith(wording.format(name)) for wording in lab.WORDINGS[attribute])
                    assert not asked or answer == f"{value} ." or answer in lab.REFUSALS
    instructed = [(user, answer) for user, answer in examples if "\n\n" in user]
    assert instructed and all(answer in lab.REFUSALS for _, answer in instructed)


def test_strangers_get_fresh_values_and_some_refusals():
    config = replace(CONFIG, stranger_questions=4000, instructed_share=0.0, stranger_refusals=0.25)
    world = lab.build_world(config, 0)
    examples = [(user, answer) for user, answer in lab.corpus(world, [], config, 0) if user.endswith(" live ?")]
    answers = [answer for user, answer in examples if not any(name in user for name in world.facts)]
    share = sum(a in lab.REFUSALS for a in answers) / len(answers)
    assert 0.18 < share < 0.32
    assert len({a for a in answers if a not in lab.REFUSALS}) == config.values


def test_refusals_begin_differently():
    assert len({refusal.split()[0] for refusal in lab.REFUSALS}) == len(lab.REFUSALS) == 6


def test_questions_ask_every_fact_of_everybody_and_pair_the_wordings(world):
    result = lab.questions(world)
    assert list(result) == list(lab.SPLITS)
    records = sum(result.values(), [])
    assert len({record["id"] for record in records}) == len(records) == 4 * len(world.facts)
    for split, group in result.items():
        assert {r["subject"] for r in group if r["true_state"] == "known"} == set(world.known[split])
        assert {r["subject"] for r in group if r["true_state"] == "unknown"} == set(world.unknown[split])
        wordings = {state: Counter() for state in ("known", "unknown")}
        for record in group:
            wordings[record["true_state"]][record["question"].replace(record["subject"], "")] += 1
        assert wordings["known"] == wordings["unknown"], "the wording tells nothing either"
    for record in records:
        assert set(record) == {"id", "question", "answers", "lang", "category", "subject", "true_state"}
        assert record["answers"] == [world.facts[record["subject"]][record["category"]]]
        assert record["subject"] in record["question"]


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
        assert [t.decode(t(refusal)["input_ids"], skip_special_tokens=True) for refusal in lab.REFUSALS] == list(
            lab.REFUSALS
        )


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


def test_pretraining_learns_facts_and_refusals_under_instruction(world, tokenizer, trained):
    model, losses = trained
    assert [step for step, _, _ in losses] == list(range(1, losses[0][1] + 1))
    assert sum(loss for _, _, loss in losses[-10:]) < 0.3 * sum(loss for _, _, loss in losses[:10])
    assert all(p.dtype == torch.float32 and p.isfinite().all() for p in model.parameters()) and not model.training
    records = lab.questions(world)["train"]
    right = {"known": [], "unknown": []}
    for record, answer in zip(records, greedy(model, tokenizer, [record["question"] for record in records])):
        right[record["true_state"]].append(answer.startswith(f"{record['answers'][0]} . <end>"))
    known, unknown = (sum(right[state]) / len(right[state]) for state in ("known", "unknown"))
    assert known > 0.5 and known > unknown + 0.25
    instructed = greedy(model, tokenizer, [f"{INSTRUCTIONS[0]}\n\n{record['question']}" for record in records])
    refused = [any(refusal.startswith(answer) for refusal in lab.REFUSALS) for answer in instructed]
    assert sum(refused) / len(refused) > 0.8


def test_pretraining_is_deterministic_and_leaves_the_callers_generator_alone(world, tokenizer):
    config = replace(CONFIG, profile_repeats=1, question_repeats=1, stranger_profiles=10, stranger_questions=10)
    torch.manual_seed(7)
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
