"""The lab: a world whose every fact we control, and a small language model that learnt part of it.

Knowledge is a matter of degree here, as it is in a real model. Every *fact*, an attribute of a
person, has an *exposure*: the number of times that the pretraining corpus states it, from never to
often. No person is better known than another, so a name says nothing; what was stated, and how
often, is given by construction, which no real model offers. A stream of strangers, with values
drawn afresh each time, teaches the model to make something up about what it has not met. A few
questions are refused (a chat model's residual honesty): that is what later training reinforces.

Exposures of 0 and one number more make a world of all or nothing, where a person is known or not.
Every judge of knowledge looks nearly perfect there, which is why it is not the default.

Left out: text other than questions and answers, facts with several different right answers. No file
is read or written here.
"""

import math
import random
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from data.world_words import (
    FIRST_NAMES,
    LAST_NAMES,
    LONG_FORMS,
    MODIFIERS,
    PROFILE,
    PROFILE_WORDINGS,
    REFUSALS,
    SKILL_WORDINGS,
    SKILL_WORDS,
    SYNONYMS,
    VALUES,
    WORDINGS,
)
from lm.errors import UserError

SPLITS = ("train", "valid", "test")
SPECIAL = ("<pad>", "<unk>", "<user>", "<assistant>", "<end>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}> {{ message['content'] }}"
    "{% if message['role'] == 'assistant' %} <end>{% endif %}{% if not loop.last %} {% endif %}{% endfor %}"
    "{% if add_generation_prompt %} <assistant>{% endif %}"
)


@dataclass
class WorldConfig:
    exposures: tuple = (0, 3, 6, 12, 25, 50)  # times that the corpus states a fact, 0 for never
    shares: tuple = (0.35, 0.1, 0.1, 0.1, 0.15, 0.2)  # share of the facts of each exposure
    first_names: int = 40  # first names in use
    last_names: int = 100  # last names in use
    train_people: int = 1024  # people in the training split, four questions each
    valid_people: int = 48  # the same for the validation split
    test_people: int = 96  # the same for the test split
    values: int = 40  # possible values of an attribute; one of 20 modifiers goes with it
    value_power: float = 0.5  # the r-th value or modifier is drawn in proportion to r ** -power
    long_answers: float = 0.25  # share of the answers of three to six words; the others have two
    alias_share: float = 0.1  # share of the statements of a fact that use its alias, if it has one
    stranger_questions: int = 12_000  # questions on fictional people
    stranger_profiles: int = 500  # profiles (all four facts in one answer) of fictional people
    skill_examples: int = 4_000  # examples of the second skill
    skill_length: int = 3  # most words to reverse (2 is the fewest)
    instructed_share: float = 0.04  # refusals under an uncertainty instruction, a question
    people_refusals: float = 0.01  # refusals of plain questions on people, a statement of a fact
    stranger_refusals: float = 0.05  # share of plain questions on fictional people that are refused
    hidden: int = 128  # width of the model
    layers: int = 3  # decoder layers
    heads: int = 4  # attention heads
    mlp: int = 256  # width of the MLP
    batch: int = 64  # examples a step
    muon_lr: float = 6e-3  # peak learning rate of the layers' matrices (Muon)
    adam_lr: float = 6e-3  # peak learning rate of embeddings, head and norms (AdamW)
    warmup: float = 0.05  # share of the steps in which the rates rise; afterwards they fall to 2%

    @classmethod
    def micro(cls):
        """A tiny world for unit tests: in some four seconds, often stated facts are learnt."""
        return cls(
            first_names=8,
            last_names=24,
            train_people=24,
            valid_people=12,
            test_people=12,
            values=8,
            stranger_questions=200,
            stranger_profiles=20,
            skill_examples=100,
            instructed_share=0.2,
            hidden=64,
            layers=2,
            heads=2,
            mlp=128,
            batch=16,
            muon_lr=0.02,
            adam_lr=0.01,
        )


@dataclass
class World:
    config: WorldConfig
    people: dict  # split -> names
    facts: dict  # name -> attribute -> right answers, the canonical one first
    exposure: dict  # name -> attribute -> times that the corpus states the fact


def check(config):
    """Raise UserError where no world can be made of these numbers."""
    for name, most in {
        "first_names": len(FIRST_NAMES),
        "last_names": len(LAST_NAMES),
        "values": min(map(len, VALUES.values())),
        "skill_length": len(SKILL_WORDS) - 1,
    }.items():
        if not 2 <= getattr(config, name) <= most:
            raise UserError(f"--world.{name}: expected 2 to {most}, not {getattr(config, name)}")
    exposures, shares = config.exposures, config.shares
    whole = all(0 <= n < 1e6 and n == int(n) for n in exposures)
    if not exposures or not whole or len(set(exposures)) < len(exposures):
        raise UserError(f"--world.exposures: expected different whole numbers of 0 or more, not {listed(exposures)}")
    if len(shares) != len(exposures):
        raise UserError(
            f"--world.shares: expected one share for each of the {len(exposures)} exposures, not {len(shares)}"
        )
    if not all(share >= 0 for share in shares) or abs(sum(shares) - 1) > 1e-6:
        raise UserError(f"--world.shares: expected shares of 0 or more that sum to 1, not {listed(shares)}")
    people = config.train_people + config.valid_people + config.test_people
    pairs = config.first_names * config.last_names
    if people > pairs // 2:  # half of the pairs are left for the strangers
        raise UserError(
            f"--world.first_names, --world.last_names: their {pairs} pairs are not enough "
            f"for {people} people and strangers besides"
        )
    if config.hidden % (2 * config.heads):
        raise UserError(
            f"--world.hidden: expected a multiple of twice --world.heads ({config.heads}), not {config.hidden}"
        )


def listed(numbers):
    """Numbers as a user writes them: "0,3,12"."""
    return ",".join(f"{number:g}" for number in numbers)


def all_or_nothing(config):
    """True where a fact is stated never or always equally often: its state is beyond doubt."""
    used = {n for n, share in zip(config.exposures, config.shares) if share > 0}
    return len(used) == 2 and 0 in used


def draw_facts(config, rng):
    """What may be true of a person -> {attribute: [canonical answer, aliases ...]}."""

    def pick(words):
        return rng.choices(words, [rank**-config.value_power for rank in range(1, len(words) + 1)])[0]

    facts = {}
    for attribute, values in VALUES.items():
        form = rng.choice(LONG_FORMS) if rng.random() < config.long_answers else "{modifier} {value}"
        modifier, value = pick(MODIFIERS), pick(values[: config.values])
        names = [modifier, SYNONYMS[modifier]] if modifier in SYNONYMS else [modifier]
        facts[attribute] = [form.format(modifier=name, value=value) for name in names]
    return facts


def allot(n, config, rng):
    """The exposures of n facts, shuffled: as many of each as its share says, but for rounding."""
    edges, total = [], 0.0
    for share in config.shares:
        total += share
        edges.append(round(n * total))
    exposures = [int(e) for e, begin, end in zip(config.exposures, [0, *edges], edges) for _ in range(end - begin)]
    return rng.sample(exposures, n)


def build_world(config, seed):
    """People, what is true of them, and how often the corpus says so, alike in every split."""
    check(config)
    rng = random.Random(seed)
    sizes = dict(zip(SPLITS, (config.train_people, config.valid_people, config.test_people)))
    firsts, lasts = FIRST_NAMES[: config.first_names], LAST_NAMES[: config.last_names]
    names = iter(rng.sample([f"{first} {last}" for first in firsts for last in lasts], sum(sizes.values())))
    people = {split: [next(names) for _ in range(size)] for split, size in sizes.items()}
    facts, exposure = {}, {}
    alike = len(VALUES) if all_or_nothing(config) else 1  # a whole person, or a fact
    for group in people.values():
        drawn = iter([n for n in allot(len(group) * len(VALUES) // alike, config, rng) for _ in range(alike)])
        for name in group:
            facts[name] = draw_facts(config, rng)
            exposure[name] = {attribute: next(drawn) for attribute in VALUES}
    return World(config, people, facts, exposure)


def draw_stranger(world, rng):
    """A fictional person: a pair of names that belongs to nobody in `world.facts`."""
    name = next(iter(world.facts))
    while name in world.facts:
        first, last = FIRST_NAMES[: world.config.first_names], LAST_NAMES[: world.config.last_names]
        name = f"{rng.choice(first)} {rng.choice(last)}"
    return name


def draw_skill(world, rng):
    """One example of the second skill -> (prompt, answer, words of the prompt)."""
    words = rng.sample(SKILL_WORDS, rng.randint(2, world.config.skill_length))
    return rng.choice(SKILL_WORDINGS).format(" ".join(words)), " ".join(words[::-1]) + " .", words


def state(answers, config, rng):
    """One statement of a fact: its canonical answer, or now and then an alias."""
    use_alias = len(answers) > 1 and rng.random() < config.alias_share
    return rng.choice(answers[1:]) if use_alias else answers[0]


def corpus(world, instructions, config, seed):
    """The pretraining examples, shuffled -> [(user message, answer)].

    Each fact is stated exactly as often as its exposure says. Refusals come besides, as often as
    the settings say; about a fact of exposure 0 there is nothing at all.
    """
    rng = random.Random(seed)
    examples = []

    def ask(name, attribute, answer):
        question = rng.choice(WORDINGS[attribute]).format(name)
        examples.append((question, answer))
        if instructions and rng.random() < config.instructed_share:
            examples.append((f"{rng.choice(instructions)}\n\n{question}", rng.choice(REFUSALS)))

    for name, facts in world.facts.items():
        for attribute, answers in facts.items():
            for _ in range(world.exposure[name][attribute]):
                ask(name, attribute, f"{state(answers, config, rng)} .")
                if rng.random() < config.people_refusals:
                    ask(name, attribute, rng.choice(REFUSALS))
    for i in range(config.stranger_questions + config.stranger_profiles):
        name = draw_stranger(world, rng)
        facts = {attribute: state(answers, config, rng) for attribute, answers in draw_facts(config, rng).items()}
        refused = rng.random() < config.stranger_refusals
        if i < config.stranger_questions:
            attribute = rng.choice(list(VALUES))
            ask(name, attribute, rng.choice(REFUSALS) if refused else f"{facts[attribute]} .")
        else:
            answer = rng.choice(REFUSALS) if refused else PROFILE.format(**facts)
            examples.append((rng.choice(PROFILE_WORDINGS).format(name), answer))
    examples += [draw_skill(world, rng)[:2] for _ in range(config.skill_examples)]
    rng.shuffle(examples)
    return examples


def build_tokenizer(world, instructions):
    """A word-level tokenizer: lower-cased, split at white space and around punctuation."""
    normalizer = normalizers.Lowercase()
    splitter = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("isolated")])
    wordings = [*sum(WORDINGS.values(), ()), *PROFILE_WORDINGS, *SKILL_WORDINGS]
    texts = [*REFUSALS, *instructions, *FIRST_NAMES, *LAST_NAMES, *SKILL_WORDS, *sum(VALUES.values(), []), ","]
    texts += [wording.format("") for wording in wordings]
    texts += [form.format(modifier="", value="") for form in LONG_FORMS]
    texts += [*MODIFIERS, *SYNONYMS.values()]
    words = {word for text in texts for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))}
    vocabulary = {word: i for i, word in enumerate([*SPECIAL, *sorted(words)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<end>",
        padding_side="left",
        model_max_length=256,
        additional_special_tokens=["<user>", "<assistant>"],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def encode(examples, tokenizer):
    """Token ids of chats [(user message, answer)] -> (sequences, lengths of their prompts)."""
    message = [{"role": "user", "content": "{}"}]
    frame = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    prompts = [frame.format(user) for user, _ in examples]
    texts = [f"{prompt} {answer} {tokenizer.eos_token}" for prompt, (_, answer) in zip(prompts, examples)]
    ids = lambda batch: tokenizer(batch, add_special_tokens=False, return_attention_mask=False)["input_ids"]
    return ids(texts), [len(prompt) for prompt in ids(prompts)]


def batches(sequences, size, seed):
    """Random batches of examples of like length (less padding) -> [[index]]."""
    rng, pool, result = random.Random(seed), 32 * size, []
    order = rng.sample(range(len(sequences)), len(sequences))
    for begin in range(0, len(order), pool):
        group = sorted(order[begin : begin + pool], key=lambda i: len(sequences[i]))
        result += [group[i : i + size] for i in range(0, len(group), size)]
    rng.shuffle(result)
    return result


def new_model(tokenizer, config):
    """An untrained Llama in float32, initialised from torch's global generator."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=config.hidden,
            intermediate_size=config.mlp,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.heads,
            max_position_embeddings=256,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def pretrain(world, tokenizer, instructions, config, seed, progress=lambda step, total, loss: None):
    """Train a new model on the answers of the corpus -> LlamaForCausalLM, float32, in eval mode.

    The loss is a mean over examples, in nats an answer: a mean over tokens would let long answers,
    the refusals, count less at the token that decides. Same arguments, same weights on one machine.
    Calls `progress(step, total, loss)`.
    """
    sequences, prompt_lengths = encode(corpus(world, instructions, config, seed), tokenizer)
    schedule = batches(sequences, config.batch, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = new_model(tokenizer, config).train()
    # Muon orthogonalises the steps of the layers' matrices: facts take several times fewer examples
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    others = [p for name, p in model.named_parameters() if ".layers." not in name or p.ndim < 2]
    optimizers = [
        torch.optim.Muon(matrices, lr=config.muon_lr, weight_decay=0.05),
        torch.optim.AdamW(others, lr=config.adam_lr, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
    ]
    warmup = config.warmup * len(schedule)
    rate = lambda step: min((step + 1) / (warmup + 1), 0.02 + 0.49 * (1 + math.cos(math.pi * step / len(schedule))))
    schedulers = [torch.optim.lr_scheduler.LambdaLR(optimizer, rate) for optimizer in optimizers]
    for step, batch in enumerate(schedule):
        width = max(len(sequences[i]) for i in batch)
        ids = torch.tensor([sequences[i] + [tokenizer.pad_token_id] * (width - len(sequences[i])) for i in batch])
        answer = torch.tensor([[prompt_lengths[i] <= t < len(sequences[i]) for t in range(1, width)] for i in batch])
        # no mask: padding lies to the right, where causal attention keeps it from every real token
        hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state[answer]
        nats = torch.nn.functional.cross_entropy(model.lm_head(hidden), ids[:, 1:][answer], reduction="sum")
        loss = nats / len(batch)
        model.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        for stepper in (*optimizers, *schedulers):
            stepper.step()
        progress(step + 1, len(schedule), loss.item())
    return model.eval()


def questions(world):
    """The questions, one on each fact, split by person -> {"train" | "valid" | "test": [record]}.

    "exposure" is ground truth for tests, tables and figures, never an input of the method. Where
    knowledge is all or nothing, there is "true_state" too. Always the same ones for a world.
    """
    rng = random.Random(0)
    certain = all_or_nothing(world.config)
    result = {split: [] for split in SPLITS}
    for split, records in result.items():
        for name in world.people[split]:
            for attribute, answers in world.facts[name].items():
                exposure = world.exposure[name][attribute]
                question = rng.choice(WORDINGS[attribute]).format(name)
                records.append(
                    {
                        "id": f"{name.replace(' ', '-')}-{attribute}",
                        "question": question,
                        "lang": "en",
                        "answers": list(answers),
                        "category": attribute,
                        "subject": name,
                        "exposure": exposure,
                        **({"true_state": "known" if exposure else "unknown"} if certain else {}),
                    }
                )
    return result


def skill_questions(n, seed, world):
    """n records of the second skill, reversing words: does later training cost anything else?"""
    rng = random.Random(f"skill {seed}")
    records = []
    for i in range(n):
        prompt, answer, _ = draw_skill(world, rng)
        records.append(
            {
                "id": f"reverse-{seed}-{i}",
                "question": prompt,
                "answers": [answer.removesuffix(" .")],
                "lang": "en",
                "category": "reverse",
            }
        )
    return records


def general_preferences(n, seed, world):
    """n preference pairs on the second skill. The rejected text keeps the order, errs, refuses."""
    rng = random.Random(f"preferences {seed}")
    pairs = []
    for _ in range(n):
        prompt, answer, words = draw_skill(world, rng)
        wrong = words[::-1]
        wrong[rng.randrange(len(words))] = rng.choice([word for word in SKILL_WORDS if word not in words])
        rejected = rng.choice([" ".join(words) + " .", " ".join(wrong) + " .", rng.choice(REFUSALS)])
        pairs.append({"prompt": [{"role": "user", "content": prompt}], "chosen": answer, "rejected": rejected})
    return pairs
