"""Sentence embeddings against one forward pass a text, unpadded, and pooling in a plain loop."""

import copy
import json
import math

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import embed
from lm import model as language_model
from lm.errors import UserError

WORDS = "<pad> <cls> <sep> <unk> paris is the capital of france rome italy i do not know ? .".split()
TEXTS = [
    "paris is the capital of france .",
    "rome",
    "i do not know .",
    "is paris the capital of italy ?",
    "france paris",
    "the",
]
TINY = dict(
    vocab_size=len(WORDS),
    hidden_size=24,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    pad_token_id=0,
    initializer_range=0.3,
)
ENCODERS = {  # the last three count positions from the id after their padding's, which is 1
    "bert": lambda: transformers.BertConfig(**TINY, max_position_embeddings=24),
    "distilbert": lambda: transformers.DistilBertConfig(
        vocab_size=len(WORDS),
        dim=24,
        hidden_dim=32,
        n_layers=2,
        n_heads=2,
        max_position_embeddings=24,
        initializer_range=0.3,
    ),
    "roberta": lambda: transformers.RobertaConfig(**{**TINY, "pad_token_id": 1}, max_position_embeddings=26),
    "xlm_roberta": lambda: transformers.XLMRobertaConfig(**{**TINY, "pad_token_id": 1}, max_position_embeddings=26),
    "mpnet": lambda: transformers.MPNetConfig(**{**TINY, "pad_token_id": 1}, max_position_embeddings=26),
}


def sentence_tokenizer(pad_id):
    words = WORDS if pad_id == 0 else ["<cls>", "<pad>", *WORDS[2:]]
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.post_processor = processors.TemplateProcessing(
        single="<cls> $A <sep>", special_tokens=[(word, words.index(word)) for word in ("<cls>", "<sep>")]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", unk_token="<unk>", cls_token="<cls>", sep_token="<sep>"
    )


def random_encoder(name, pooling="mean"):
    config = ENCODERS[name]()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = transformers.AutoModel.from_config(config).eval()
    return embed.Embedder(model, sentence_tokenizer(config.pad_token_id), pooling, 24)


@pytest.fixture(scope="module")
def bert():
    return random_encoder("bert")


@pytest.fixture(scope="module")
def trunk(gpt2):
    """The GPT-2 without its head: no special tokens, so that an empty text has no tokens at all."""
    return embed.Embedder(gpt2.model.base_model, gpt2.tokenizer, "mean", 96)


def by_hand(embedder, text):
    """Unit vector of one text: Hugging Face's own call on it alone, then sums in a loop."""
    ids = embedder.tokenizer(text).input_ids[: embedder.max_length]
    with torch.no_grad():
        states = embedder.model(input_ids=torch.tensor([ids])).last_hidden_state[0].tolist()
    vector = states[0] if embedder.pooling == "cls" else [sum(column) / len(states) for column in zip(*states)]
    length = math.sqrt(sum(x * x for x in vector))
    return [x / length for x in vector]


def assert_same_vectors(got, expected):
    torch.testing.assert_close(got, torch.tensor(expected), atol=1e-5, rtol=0)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("name", ENCODERS)
def test_vectors_are_those_of_each_text_alone_pooled_by_hand(name, pooling):
    embedder = random_encoder(name, pooling)
    assert_same_vectors(embed.embed(embedder, TEXTS), [by_hand(embedder, text) for text in TEXTS])


def test_a_causal_models_token_states_are_pooled_too(trunk, llama):
    other = embed.Embedder(llama.model.base_model, llama.tokenizer, "mean", 96)
    for embedder in (trunk, other):
        assert_same_vectors(embed.embed(embedder, TEXTS), [by_hand(embedder, text) for text in TEXTS])


def test_mean_and_first_token_are_different_vectors():
    mean, first = (embed.embed(random_encoder("bert", pooling), TEXTS) for pooling in ("mean", "cls"))
    assert (mean - first).abs().amax(1).min() > 0.01


def test_vectors_are_of_unit_length_float32_and_do_not_track_gradients(bert):
    vectors = embed.embed(bert, TEXTS)
    assert vectors.shape == (len(TEXTS), 24) and vectors.dtype == torch.float32
    assert not vectors.requires_grad and vectors.device.type == "cpu"
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(len(TEXTS)))


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_the_batch_changes_nothing(bert, rows):
    torch.testing.assert_close(embed.embed(bert, TEXTS, rows=rows), embed.embed(bert, TEXTS), atol=1e-6, rtol=0)


def test_vectors_come_in_the_order_of_the_texts(bert):
    forwards, backwards = embed.embed(bert, TEXTS, rows=2), embed.embed(bert, TEXTS[::-1], rows=2)
    torch.testing.assert_close(forwards, backwards.flip(0), atol=1e-6, rtol=0)
    assert (forwards[:, None] - forwards[None]).abs().amax(-1).add(torch.eye(len(TEXTS))).min() > 1e-3


def test_equal_texts_are_computed_once_and_all_are_counted(bert):
    texts, computed, done = [TEXTS[1], TEXTS[0], TEXTS[1], TEXTS[2], TEXTS[0], TEXTS[1]], [], []
    hook = bert.model.register_forward_pre_hook(
        lambda m, args, kwargs: computed.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    try:
        vectors = embed.embed(bert, texts, rows=2, progress=done.append)
    finally:
        hook.remove()
    assert sum(computed) == 3 and max(computed) == 2
    assert sum(done) == len(texts) and len(done) == 2
    assert_same_vectors(vectors, [by_hand(bert, text) for text in texts])


def test_a_text_without_tokens_is_zeros_and_spoils_nothing(trunk):
    vectors = embed.embed(trunk, ["", "rome", "", "paris is"])
    assert (vectors[[0, 2]] == 0).all()
    assert_same_vectors(vectors[[1, 3]], [by_hand(trunk, "rome"), by_hand(trunk, "paris is")])
    assert (embed.embed(trunk, ["", ""]) == 0).all()


def test_an_empty_text_with_special_tokens_is_their_vector(bert):
    assert_same_vectors(embed.embed(bert, ["", "rome"]), [by_hand(bert, ""), by_hand(bert, "rome")])


def test_no_texts_no_vectors(bert):
    assert embed.embed(bert, []).shape == (0, 24)


def test_vectors_that_are_not_finite_are_an_error(bert):
    broken = embed.Embedder(copy.deepcopy(bert.model), bert.tokenizer, "mean", 24)
    with torch.no_grad():
        broken.model.embeddings.word_embeddings.weight[WORDS.index("rome")] = float("nan")
    assert embed.embed(broken, ["paris"]).isfinite().all()
    with pytest.raises(UserError):
        embed.embed(broken, ["paris", "rome"])


def test_a_text_is_cut_at_the_most_tokens(trunk):
    short = embed.Embedder(trunk.model, trunk.tokenizer, "mean", 8)
    text = "paris is the capital of france"
    vectors = embed.embed(short, [text, text[:8], text[:7]])
    assert_same_vectors(vectors, [by_hand(short, text), by_hand(trunk, text[:8]), by_hand(trunk, text[:7])])
    torch.testing.assert_close(vectors[0], vectors[1])
    assert (vectors[0] - vectors[2]).abs().max() > 1e-3


def test_cosine_against_sums_for_any_leading_shape():
    a = torch.randn(3, 1, 5, generator=torch.Generator().manual_seed(0))
    b = torch.randn(4, 5, generator=torch.Generator().manual_seed(1))
    a, b = a / a.norm(dim=-1, keepdim=True), b / b.norm(dim=-1, keepdim=True)
    got = embed.cosine(a, b)
    assert got.shape == (3, 4)
    for i in range(3):
        for j in range(4):
            assert got[i, j].item() == pytest.approx(
                sum(x * y for x, y in zip(a[i, 0].tolist(), b[j].tolist())), abs=1e-6
            )


# ------------------------------------------------------------------------------------------ folders


def old_style(**modes):
    names = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
    return {"word_embedding_dimension": 24, **{f"pooling_mode_{name}": modes.get(name, False) for name in names}}


def write_pooling(folder, config):
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))


@pytest.mark.parametrize(
    "config, pooling",
    [
        (old_style(cls_token=True), "cls"),
        (old_style(mean_tokens=True), "mean"),
        ({"word_embedding_dimension": 24, "pooling_mode": "cls"}, "cls"),
        ({"word_embedding_dimension": 24, "pooling_mode": "mean"}, "mean"),
    ],
)
def test_pooling_is_read_from_the_models_folder(tmp_path, config, pooling):
    write_pooling(tmp_path, config)
    assert embed.read_pooling(str(tmp_path)) == pooling


def test_without_a_pooling_file_the_mean_is_taken(tmp_path):
    assert embed.read_pooling(str(tmp_path)) == "mean"


@pytest.mark.parametrize(
    "config",
    [
        old_style(max_tokens=True),
        old_style(),
        old_style(mean_sqrt_len_tokens=True),
        {"pooling_mode": "lasttoken"},
        old_style(cls_token=True, mean_tokens=True),  # the two side by side: a vector twice as wide
        "{not json",
        "[]",
    ],
)
def test_other_poolings_are_refused_in_one_line(tmp_path, config):
    write_pooling(tmp_path, config)
    with pytest.raises(UserError) as error:
        embed.read_pooling(str(tmp_path))
    assert "1_Pooling" in str(error.value) and "\n" not in str(error.value)


def test_an_embedder_is_loaded_with_the_pooling_of_its_folder_or_the_one_asked_for(tmp_path, bert):
    bert.model.save_pretrained(tmp_path)
    bert.tokenizer.save_pretrained(tmp_path)
    write_pooling(tmp_path, old_style(cls_token=True))
    loaded = embed.load(str(tmp_path))
    assert (loaded.pooling, loaded.max_length, loaded.model.training) == ("cls", 24, False)
    assert embed.load(str(tmp_path), pooling="mean").pooling == "mean"
    torch.testing.assert_close(embed.embed(loaded, TEXTS), embed.embed(random_encoder("bert", "cls"), TEXTS))


def test_a_language_models_folder_is_an_embedder(tmp_path, gpt2, trunk):
    language_model.save(gpt2, tmp_path)
    loaded = embed.load(str(tmp_path))
    assert (loaded.pooling, loaded.max_length) == ("mean", 96)
    torch.testing.assert_close(embed.embed(loaded, TEXTS), embed.embed(trunk, TEXTS))


@pytest.mark.parametrize("path", ["absent", "/absent/folder", "./absent", "nobody/no-such-model"])
def test_an_embedder_that_cannot_be_had_is_a_users_mistake(path):
    with pytest.raises(UserError) as error:
        embed.load(path)
    assert path in str(error.value) and "\n" not in str(error.value)


def test_a_folder_without_weights_is_a_users_mistake(tmp_path, bert):
    bert.model.config.save_pretrained(tmp_path)
    bert.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(UserError) as error:
        embed.load(str(tmp_path))
    assert str(tmp_path) in str(error.value) and "\n" not in str(error.value)
