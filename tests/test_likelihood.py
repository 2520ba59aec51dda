"""Option log-likelihoods against a plain forward of each whole sequence, one at a time, on every
family; what is read how often.
"""

import pytest
import torch
import transformers
from conftest import GROUPED, VOCABULARY, random_model, word_tokenizer
from tiny import one_thread  # noqa: F401

from evaluation import likelihood
from lm import model as language_model
from lm.errors import UserError

P = [7, 8, 9, 10, 11]  # what most questions begin with
QUESTIONS = [
    [(P + [12, 13, 14, 15], [20]), (P + [12, 13, 14, 15], [21]), (P + [12, 13, 14, 15], [22])],  # letters
    [(P + [30], [20, 21, 22]), (P + [30], [23]), (P + [30], [20, 21, 24, 25, 26, 27, 28])],  # of all lengths
    [(P + [12, 13], [20, 21]), (P + [12, 13], [20, 21])],  # twice the same
    [(P + [30, 31, 32], [40, 41]), (P + [30, 33], [40, 41])],  # suffix behind two contexts
    [(P + [30, 31], [40]), (P + [30], [40])],  # one context begins the other
]
NOTHING_SHARED = [[([30, 31, 32], [40, 41]), ([33, 31, 32], [40, 41])], [([5], [6]), ([5], [9, 10])]]


def plainly(model, context, continuation):
    """The continuation's log-likelihood by one forward over the whole sequence."""
    with torch.no_grad():
        log_p = model(torch.tensor([context + continuation])).logits[0].float().log_softmax(-1)
    return sum(log_p[len(context) + j - 1, token].item() for j, token in enumerate(continuation))


@pytest.mark.parametrize("questions", [QUESTIONS, QUESTIONS[:1], NOTHING_SHARED, QUESTIONS + NOTHING_SHARED])
def test_log_likelihoods_equal_plain_forwards_on_every_family(architecture, questions):
    name, model = architecture
    found = likelihood.log_likelihoods(language_model.wrap(model, word_tokenizer()), questions)
    assert [len(row) for row in found] == [len(pairs) for pairs in questions]
    for pairs, row in zip(questions, found):
        assert row == pytest.approx([plainly(model, *pair) for pair in pairs], abs=2e-4)


def test_they_do_not_depend_on_the_batch(llama, monkeypatch):
    together = likelihood.log_likelihoods(llama, QUESTIONS)
    monkeypatch.setattr(likelihood, "SLOTS", 1)
    assert likelihood.groups([3, 1, 2], [9, 9, 9], 1000) == [[1], [2], [0]]
    for one, other in zip(together, likelihood.log_likelihoods(llama, QUESTIONS)):
        assert one == pytest.approx(other, abs=1e-4)


def test_a_group_is_full_by_its_cache_or_by_padding_once_there_is_enough(monkeypatch):
    monkeypatch.setattr(likelihood, "SLOTS", 100)
    assert likelihood.groups([10, 50, 11, 12, 10], [1] * 5, 1000) == [[0, 4, 2, 3, 1]]
    assert likelihood.groups([10, 50, 11, 12, 10], [1] * 5, 20) == [[0, 4, 2], [3, 1]]
    assert likelihood.groups([10, 10, 10, 10], [40] * 4, 1000) == [[0, 1], [2, 3]]
    assert likelihood.groups([], [], 1) == []


def test_each_token_of_a_beginning_is_read_once(llama):
    """Tokens that pass through the embedding: the common beginning, each question's own, and the
    options without their last.
    """
    seen = []
    hook = llama.model.get_input_embeddings().register_forward_hook(
        lambda module, args, out: seen.append(args[0].numel())
    )
    try:
        likelihood.log_likelihoods(llama, QUESTIONS[:1] * 2)
        assert seen == [8, 2]  # all but the last token once; letters need no second pass
        seen.clear()
        likelihood.log_likelihoods(llama, [QUESTIONS[1]])
        assert seen == [6, 2 * 6]  # two options of more than one token, padded to the longer
    finally:
        hook.remove()


def test_shared_keeps_order_and_marks_what_is_scored():
    assert likelihood.shared([([1, 2, 3], [9]), ([1, 4], [9, 8])]) == [([1], [([2, 3, 9], 1), ([4, 9, 8], 2)])]
    assert likelihood.shared([([1, 2], [9]), ([1, 2], [8])]) == [([1, 2], [([9], 1), ([8], 1)])]
    assert likelihood.shared([([1], [9]), ([2], [9])]) == [([1], [([9], 1)]), ([2], [([9], 1)])]


def test_a_pair_is_encoded_together_and_cut_where_the_context_ends(llama, gpt2):
    bos, what, is_ = (VOCABULARY.index(word) for word in ("<s>", "what", "is"))
    assert likelihood.encode_pair(llama, "what", " is") == ([bos, what], [is_])
    ids = lambda text: gpt2.tokenizer(text, add_special_tokens=False).input_ids
    assert likelihood.encode_pair(gpt2, "A:", " b") == (ids("A:"), ids(" b"))
    assert likelihood.encode_pair(gpt2, "A: \n", "b") == (
        ids("A:"),
        ids(" \nb"),
    )  # spaces of the context go to the continuation
    with pytest.raises(UserError, match="no token"):
        likelihood.encode_pair(llama, "what", " ")


def test_what_does_not_fit_is_cut_on_the_left():
    config = transformers.LlamaConfig(**{**GROUPED, "max_position_embeddings": 8, "vocab_size": len(VOCABULARY)})
    lm = language_model.wrap(random_model(config, 1), word_tokenizer())
    context = list(range(6, 20))
    (row,) = likelihood.log_likelihoods(lm, [[(context, [20, 21, 22]), (context, [23])]])
    assert row == pytest.approx(
        [plainly(lm.model, context[-6:], [20, 21, 22]), plainly(lm.model, context[-6:], [23])], abs=1e-4
    )
    assert likelihood.cut_left(lm, context, 8) == context[-1:]
    with pytest.raises(UserError, match="9 tokens"):
        likelihood.cut_left(lm, context, 9)


def test_figures_that_are_not_finite_are_not_passed_on(llama, monkeypatch):
    monkeypatch.setattr(
        likelihood, "score", lambda lm, read, prefix: [[float("nan")] * len(rests) for _, rests in read]
    )
    with pytest.raises(FloatingPointError):
        likelihood.log_likelihoods(llama, QUESTIONS)


def test_no_questions():
    assert likelihood.log_likelihoods(None, []) == []
