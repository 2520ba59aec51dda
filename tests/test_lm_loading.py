"""Model folders: what was saved is what is loaded, which tokens end a response, and every broken
folder in one line.
"""

import copy
import json
import os
from dataclasses import replace

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from lm import model as language_model
from lm.chat import chat_prompt, render
from lm.errors import UserError


@pytest.fixture
def folder(llama, tmp_path):
    language_model.save(llama, tmp_path / "model")
    return tmp_path / "model"


def change_json(path, change):
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


@pytest.mark.parametrize("tied", [False, True])
def test_what_was_saved_is_what_is_loaded(gpt2, tmp_path, tied):
    model = copy.deepcopy(gpt2.model)
    if tied:
        model.config.tie_word_embeddings = True
        model.tie_weights()
        assert model.lm_head.weight is model.transformer.wte.weight
    model.generation_config.eos_token_id = [256, 65]
    lm = language_model.wrap(model, gpt2.tokenizer)
    language_model.save(lm, tmp_path)
    assert any(name.endswith(".safetensors") for name in os.listdir(tmp_path))
    said = []
    back = language_model.load(str(tmp_path), dtype=torch.bfloat16, say=said.append)
    assert said == []
    assert back.dtype == torch.bfloat16 and not back.model.training
    assert back.end_ids == lm.end_ids == frozenset([256, 65]) and back.end_id == 256
    state = lm.model.state_dict()
    assert all(
        torch.equal(value, state[name]) and value.dtype == torch.float32
        for name, value in back.model.state_dict().items()
    )
    assert chat_prompt(back, "Who?", "Say no.") == chat_prompt(lm, "Who?", "Say no.")


@pytest.mark.parametrize("configured, expected", [(None, {2}), (5, {2, 5}), ([5, 7], {2, 5, 7}), (2, {2})])
def test_end_tokens_are_the_tokenizers_and_the_generation_configs(llama, configured, expected):
    model = copy.deepcopy(llama.model)
    model.generation_config.eos_token_id = configured
    assert language_model.wrap(model, llama.tokenizer).end_ids == frozenset(expected)


def test_half_precision_weights_are_loaded_as_float32(llama, tmp_path):
    language_model.save(replace(llama, model=copy.deepcopy(llama.model).to(torch.bfloat16)), tmp_path)
    assert {value.dtype for value in load_file(tmp_path / "model.safetensors").values()} == {torch.bfloat16}
    assert {p.dtype for p in language_model.load(str(tmp_path)).model.parameters()} == {torch.float32}


def test_a_tokenizer_without_chat_template_gets_the_plain_one_and_it_is_said(gpt2, tmp_path):
    tokenizer = copy.deepcopy(gpt2.tokenizer)
    tokenizer.chat_template = None
    language_model.save(replace(gpt2, tokenizer=tokenizer), tmp_path)
    said = []
    lm = language_model.load(str(tmp_path), say=said.append)
    assert len(said) == 1 and "\n" not in said[0] and str(tmp_path) in said[0]
    assert lm.tokenizer.decode(chat_prompt(lm, "Who wrote Hamlet?")) == "Question: Who wrote Hamlet?\nAnswer:"
    shot = [{"role": "user", "content": "A?"}, {"role": "assistant", "content": "B"}, {"role": "user", "content": "C?"}]
    assert lm.tokenizer.decode(render(lm, shot)) == "Question: A?\nAnswer: B<|endoftext|>\nQuestion: C?\nAnswer:"


def test_a_sequence_classifier_is_not_a_causal_model(llama, tmp_path):
    config = copy.deepcopy(llama.model.config)
    transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path)
    llama.tokenizer.save_pretrained(tmp_path)
    expect_user_error(tmp_path, "LlamaForSequenceClassification", "causal")


def expect_user_error(path, *words):
    with pytest.raises(UserError) as error:
        language_model.load(str(path))
    message = str(error.value)
    assert "\n" not in message and all(word in message for word in (str(path), *words)), message


def test_a_missing_folder_is_a_users_mistake(tmp_path):
    for path in (tmp_path / "absent", "./absent", "~/absent", "absent", "a/b/c"):
        expect_user_error(path, "no such model folder")  # and never taken for a name on the hub


def test_a_hub_name_that_cannot_be_had_is_a_users_mistake():
    expect_user_error("nobody/no-such-model")


def test_a_file_is_not_a_model_folder(tmp_path):
    (tmp_path / "weights").write_text("")
    expect_user_error(tmp_path / "weights", "no such model folder")


def test_a_folder_without_config_is_a_users_mistake(folder):
    (folder / "config.json").unlink()
    expect_user_error(folder, "config.json")


@pytest.mark.parametrize("content", ["{", "", "\u00e9{", "[]", "null", '"LlamaForCausalLM"', '{"architectures": [1]}'])
def test_a_broken_config_is_a_users_mistake(folder, content):
    (folder / "config.json").write_text(content, encoding="latin-1")
    expect_user_error(folder)


def test_a_config_without_architecture_is_a_users_mistake(folder):
    change_json(folder / "config.json", lambda config: config.pop("architectures"))
    expect_user_error(folder, "architecture")


def test_weights_in_other_formats_are_not_read(folder, llama):
    (folder / "model.safetensors").unlink()
    torch.save(llama.model.state_dict(), folder / "pytorch_model.bin")
    expect_user_error(folder, "safetensors")


def test_broken_weights_are_a_users_mistake(folder):
    (folder / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0 not a header")
    expect_user_error(folder)


def test_weights_that_lack_a_tensor_are_a_users_mistake(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    expect_user_error(folder, "model.layers.1.mlp.up_proj.weight")


def test_a_tokenizer_larger_than_the_model_is_a_users_mistake(llama, tmp_path):
    tokenizer = copy.deepcopy(llama.tokenizer)
    tokenizer.add_tokens(["paella"])
    language_model.save(replace(llama, tokenizer=tokenizer), tmp_path)
    expect_user_error(tmp_path, "56")


def test_a_tokenizer_without_end_token_is_a_users_mistake(folder):
    change_json(folder / "tokenizer_config.json", lambda config: config.pop("eos_token"))
    expect_user_error(folder, "eos_token")


@pytest.mark.parametrize("configured", ["</s>", [[1]], {}, ["a"]])
def test_an_end_token_that_is_no_token_id_is_a_users_mistake(folder, configured):
    change_json(folder / "generation_config.json", lambda config: config.update(eos_token_id=configured))
    with pytest.raises(UserError, match="eos_token_id|cannot be loaded"):
        language_model.load(str(folder))


def test_weights_that_are_not_finite_are_a_users_mistake(folder):
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"].fill_(float("nan"))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    expect_user_error(folder, "not finite")


@pytest.mark.parametrize(
    "template",
    [
        "{{ 1 / 0 }}",
        "{{ messages + 1 }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ messages[0].content.nothing.at }}",
    ],
)
def test_a_chat_template_that_fails_is_a_users_mistake(llama, tmp_path, template):
    tokenizer = copy.deepcopy(llama.tokenizer)
    tokenizer.chat_template = template
    language_model.save(replace(llama, tokenizer=tokenizer), tmp_path)
    with pytest.raises(UserError, match="the model's chat template fails") as error:
        language_model.load(str(tmp_path))
    assert "\n" not in str(error.value)


def test_a_chat_template_without_the_question_is_a_users_mistake(llama, tmp_path):
    tokenizer = copy.deepcopy(llama.tokenizer)
    tokenizer.chat_template = "<user> who ? <assistant>"
    language_model.save(replace(llama, tokenizer=tokenizer), tmp_path)
    expect_user_error(tmp_path, "leaves out what the user says")


TINY = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2}
# recurrent; an encoder that sees what follows; positions that do not count from the first token of
# a padded row
OTHERS = {
    "mamba": lambda: transformers.MambaForCausalLM(transformers.MambaConfig(**TINY, state_size=4)),
    "bert": (
        lambda: transformers.BertLMHeadModel(
            transformers.BertConfig(**TINY, num_attention_heads=2, intermediate_size=32)
        )
    ),
    "bart": (
        lambda: transformers.BartForCausalLM(
            transformers.BartConfig(
                vocab_size=64,
                d_model=16,
                decoder_layers=2,
                decoder_attention_heads=2,
                decoder_ffn_dim=32,
                is_decoder=True,
            )
        )
    ),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_a_model_that_reads_padded_rows_in_another_way_is_refused(kind, llama):
    torch.manual_seed(0)
    model = OTHERS[kind]().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(std=0.5)
    with pytest.raises(UserError, match=f"some/folder: {type(model).__name__} does not read padded rows"):
        language_model.check_reading(language_model.wrap(model, llama.tokenizer), "some/folder")


def test_the_models_of_the_other_tests_are_not_refused(llama, gpt2):
    for lm in (llama, gpt2):
        language_model.check_reading(lm, "some/folder")


def test_a_lack_of_memory_is_not_taken_for_an_unsuitable_model(llama, monkeypatch):
    def full(*args, **options):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(language_model, "behind_prefix", full)
    with pytest.raises(torch.OutOfMemoryError):
        language_model.check_reading(llama, "some/folder")
