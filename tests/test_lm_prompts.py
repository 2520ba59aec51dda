"""Prompts and texts: chat templates rendered as they say, responses as token ids, and back."""

import copy
from dataclasses import replace

import pytest

from lm.chat import PLAIN_TEMPLATE, chat_prompt, decode, has_ended, messages, render, response_ids
from lm.errors import UserError


def test_a_prompt_is_the_templates_text_encoded_once_with_one_bos(llama):
    words = "<s> <user> what is the capital of peru ? </s> <bot>"
    expected = llama.tokenizer.convert_tokens_to_ids(words.split())
    assert chat_prompt(llama, "what is the capital of peru ?") == expected
    assert expected.count(llama.tokenizer.bos_token_id) == 1


def test_an_instruction_stands_before_the_question(llama, gpt2):
    assert messages("who ?") == [{"role": "user", "content": "who ?"}]
    assert messages("who ?", "say no .") == [{"role": "user", "content": "say no .\n\nwho ?"}]
    ids = chat_prompt(llama, "who wrote hamlet ?", "say that you are not sure .")
    assert (
        llama.tokenizer.convert_ids_to_tokens(ids)
        == "<s> <user> say that you are not sure . who wrote hamlet ? </s> <bot>".split()
    )
    ids = chat_prompt(gpt2, "Who?", "Say no.")
    assert gpt2.tokenizer.decode(ids) == "user: Say no.\n\nWho?<|endoftext|>assistant:"


def test_a_conversation_is_rendered_turn_by_turn(llama):
    conversation = [
        {"role": "user", "content": "who ?"},
        {"role": "assistant", "content": "shakespeare"},
        {"role": "user", "content": "sure ?"},
    ]
    tokens = llama.tokenizer.convert_ids_to_tokens(render(llama, conversation))
    assert tokens == "<s> <user> who ? </s> <bot> shakespeare </s> <user> sure ? </s> <bot>".split()


@pytest.mark.parametrize("template", ["{{ raise_exception('only one turn') }}", "", "{{ messages[7].content.x }}"])
def test_a_chat_template_that_fails_or_is_empty_is_a_users_mistake(gpt2, template):
    tokenizer = copy.deepcopy(gpt2.tokenizer)
    tokenizer.chat_template = template
    with pytest.raises(UserError) as error:
        chat_prompt(replace(gpt2, tokenizer=tokenizer), "Who?")
    assert "template" in str(error.value) and "\n" not in str(error.value)


def test_a_response_as_ids_ends_with_the_end_token_and_has_no_bos(llama):
    ids = response_ids(llama, "i do not know")
    assert llama.tokenizer.convert_ids_to_tokens(ids) == "i do not know </s>".split()
    assert decode(llama, ids) == "i do not know"
    assert has_ended(llama, ids) and not has_ended(llama, ids[:-1])


def test_behind_the_plain_template_a_response_begins_with_a_space(gpt2, tmp_path):
    tokenizer = copy.deepcopy(gpt2.tokenizer)
    tokenizer.chat_template = PLAIN_TEMPLATE
    plain = replace(gpt2, tokenizer=tokenizer)
    text = "the capital"
    prompt, response = chat_prompt(plain, "Which?"), response_ids(plain, text)
    assert (
        tokenizer.decode(prompt + response[:-1]) == tokenizer.decode(prompt) + " the capital"
        and response[-1] == plain.end_id
    )
    assert decode(plain, response) == text
    turns = tokenizer.apply_chat_template([*messages("Which?"), {"role": "assistant", "content": text}], tokenize=False)
    assert turns.startswith(tokenizer.decode(prompt) + " the capital"), "as the template itself writes it"


def test_decoding_drops_special_tokens_and_outer_space(gpt2):
    ids = gpt2.tokenizer(" Ü 你好\n", add_special_tokens=False).input_ids
    assert decode(gpt2, ids + [gpt2.end_id]) == "Ü 你好"
    assert decode(gpt2, [gpt2.end_id]) == ""
