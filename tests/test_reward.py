"""The reward model: its loss, where the score is read, that Hugging Face alone reads the same,
training, Table 2.
"""

import itertools
import json
import math

import numpy as np
import pytest
import tiny
import torch
from tiny import one_thread  # noqa: F401
from transformers import AutoModelForSequenceClassification

import reward
from experiment.checkpoint import load_checkpoint, save_checkpoint
from lm import optim

QUESTIONS = [
    "who is paris",
    "what is the capital of rome",
    "where is oslo",
    "what is red",
    "who is nine",
    "where is the capital",
]
REFUSAL, FACT, FICTION = "i do not know .", "the capital is rome", "blue"
RECORDS = [  # mixed sizes: known and unknown questions rank two, mixed ones three
    {"prompt": [{"role": "user", "content": question}], "ranking": ranking, "kinds": kinds, "state": state}
    for question, (state, kinds, ranking) in zip(
        QUESTIONS,
        itertools.cycle(
            [
                ("known", ["factual", "uncertain"], [FACT, REFUSAL]),
                ("mixed", ["factual", "uncertain", "hallucination"], [FACT, REFUSAL, FICTION]),
                ("unknown", ["uncertain", "hallucination"], [REFUSAL, FICTION]),
            ]
        ),
    )
]


@pytest.fixture(scope="module", params=tiny.FAMILIES)
def base(request, tmp_path_factory):
    """Folder of a language model that a reward model starts from."""
    return tiny.folder(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture
def model(base):
    return reward.load(base, tiny.tokenizer(), torch.float32, seed=7)


@pytest.fixture
def examples(model):
    return [reward.tokenise(model.lm, record, 0.5) for record in RECORDS]


@pytest.fixture
def pairs(examples):
    """(prompts, responses, P(known)) of all rankings, one below the other; of many lengths."""
    flat = [(prompt, response, known) for prompt, responses, known in examples for response in responses]
    return [p for p, _, _ in flat], [r for _, r, _ in flat], [k for _, _, k in flat]


def huggingface_scores(folder, rows, pad=None):
    """Scores of whole token id rows by Hugging Face's own forward: each alone, or padded right with
    `pad` in one batch.
    """
    classifier = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        if pad is None:
            return torch.cat([classifier(input_ids=torch.tensor([row])).logits[:, 0] for row in rows])
        width = max(map(len, rows))
        ids = torch.tensor([row + [pad] * (width - len(row)) for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
        return classifier(input_ids=ids, attention_mask=mask).logits[:, 0]


def loss_by_loops(scores, sizes, beta):
    """Mean over rankings of the mean over pairs of -log sigmoid(ri - rj) + beta / 2 (ri^2 + rj^2),
    one pair at a time.
    """
    rankings, start = [], 0
    for size in sizes:
        terms = []
        for i in range(start, start + size):
            for j in range(i + 1, start + size):
                terms.append(
                    torch.log1p(torch.exp(scores[j] - scores[i])) + beta / 2 * (scores[i] ** 2 + scores[j] ** 2)
                )
        rankings.append(sum(terms) / len(terms))
        start += size
    return sum(rankings) / len(rankings)


# ----------------------------------------------------------------------------------------- the loss


@pytest.mark.parametrize("sizes", [(2,), (3,), (2, 3, 2, 3, 3), (4, 2)])
def test_ranking_loss_equals_a_double_loop(sizes):
    scores = torch.randn(sum(sizes), dtype=torch.float64, generator=torch.Generator().manual_seed(sum(sizes))) * 2
    for beta in (0.0, 0.3):
        torch.testing.assert_close(
            reward.ranking_loss(scores, sizes, beta), loss_by_loops(scores, sizes, beta), rtol=1e-12, atol=1e-12
        )


def test_regulariser_is_the_mean_square_of_each_ranking():
    scores, sizes, beta = torch.tensor([3.0, -1.0, 0.5, 2.0, 4.0], dtype=torch.float64), (2, 3), 0.7
    regulariser = reward.ranking_loss(scores, sizes, beta) - reward.ranking_loss(scores, sizes, 0.0)
    by_pairs = ((9 + 1) / 2 + ((0.25 + 4) / 2 + (0.25 + 16) / 2 + (4 + 16) / 2) / 3) / 2
    by_squares = ((9 + 1) / 2 + (0.25 + 4 + 16) / 3) / 2
    assert by_pairs == pytest.approx(by_squares, rel=1e-12)
    assert float(regulariser) == pytest.approx(beta * by_pairs, rel=1e-12)


def test_ranking_loss_stays_finite_for_scores_far_apart():
    assert float(reward.ranking_loss(torch.tensor([-500.0, 500.0]), (2,), 0.0)) == pytest.approx(1000.0)


# ---------------------------------------------------------------------------------------- the score


def test_score_is_read_at_the_last_token_of_the_response(model, pairs):
    got = reward.scores(model, *pairs).detach()
    for prompt, response, _, score in zip(*pairs, got):
        with torch.no_grad():
            states = model.lm.model.base_model(input_ids=torch.tensor([prompt + response])).last_hidden_state[0]
            by_position = states @ model.lm.model.score.weight[0]
        torch.testing.assert_close(score, by_position[-1], rtol=1e-5, atol=1e-5)
        assert abs(float(score - by_position[-2])) > 1e-3, (
            "the position before must read otherwise for this test to mean anything"
        )


@pytest.mark.parametrize("beginning", [[], [5, 6, 7]])
def test_prompts_and_their_beginning_are_read_once_with_the_scores_and_gradients_of_whole_rows(model, pairs, beginning):
    prompts, responses, known = pairs
    prompts = [beginning + p for p in prompts]
    trunk, shapes = model.lm.model.base_model, []
    hook = trunk.register_forward_pre_hook(
        lambda m, args, kwargs: shapes.append(len(kwargs["inputs_embeds"])), with_kwargs=True
    )
    scores = reward.scores(model, prompts, responses, known)
    hook.remove()
    assert shapes == [1, len(QUESTIONS), len(prompts)], "the templates of all questions begin alike"
    alone = torch.stack(
        [model.lm.model(input_ids=torch.tensor([p + r])).logits[0, 0] for p, r in zip(prompts, responses)]
    )
    torch.testing.assert_close(scores, alone, rtol=1e-5, atol=1e-5)
    weights, parameters = torch.linspace(-1, 2, len(scores)), list(model.lm.model.parameters())
    mine, wanted = (torch.autograd.grad((weights * x).sum(), parameters, allow_unused=True) for x in (scores, alone))
    for gradient, other in zip(mine, wanted):
        assert (gradient is None) == (other is None)
        if gradient is not None:
            torch.testing.assert_close(gradient, other, rtol=1e-4, atol=1e-5)


def test_huggingface_alone_gives_the_same_scores(model, pairs, tmp_path):
    reward.save(model, tmp_path)
    rows = [p + r for p, r, _ in zip(*pairs)]
    mine = reward.scores(model, *pairs).detach()
    torch.testing.assert_close(huggingface_scores(tmp_path, rows), mine, rtol=1e-5, atol=1e-5)
    pad = json.loads((tmp_path / "config.json").read_text())["pad_token_id"]
    torch.testing.assert_close(huggingface_scores(tmp_path, rows, pad), mine, rtol=1e-5, atol=1e-5)


def test_folder_pads_with_the_token_that_its_classifier_takes_for_padding(model, pairs, tmp_path):
    reward.save(model, tmp_path)
    tokenizer, rows = tiny.reloaded_tokenizer(tmp_path), [p + r for p, r, _ in zip(*pairs)]
    scores = huggingface_scores(tmp_path, rows, tokenizer.pad_token_id)
    torch.testing.assert_close(scores, reward.scores(model, *pairs).detach(), rtol=1e-5, atol=1e-5)
    assert tokenizer.pad_token_id == json.loads((tmp_path / "config.json").read_text())["pad_token_id"]
    assert model.lm.tokenizer.pad_token_id == model.lm.end_id, (
        "the tokenizer in memory, which may be the policy's, stays as it is"
    )


def test_a_tokenizer_with_no_special_token_but_the_end_makes_a_usable_folder(base, pairs, tmp_path):
    model = reward.load(base, tiny.tokenizer(only_end=True), torch.float32, seed=7)
    reward.save(model, tmp_path)
    pad = json.loads((tmp_path / "config.json").read_text())["pad_token_id"]
    assert pad is not None and pad != model.lm.end_id
    scores = huggingface_scores(tmp_path, [p + r for p, r, _ in zip(*pairs)], pad)
    torch.testing.assert_close(scores, reward.scores(model, *pairs).detach(), rtol=1e-5, atol=1e-5)


def test_score_does_not_depend_on_the_batch(model, pairs):
    alone = torch.stack([reward.scores(model, [p], [r], [k])[0] for p, r, k in zip(*pairs)]).detach()
    torch.testing.assert_close(reward.scores(model, *pairs).detach(), alone, rtol=1e-5, atol=1e-5)
    for rows in (1, 2, 64):
        torch.testing.assert_close(reward.score_all(model, *pairs, rows=rows), alone, rtol=1e-5, atol=1e-5)
    assert len({round(float(score), 3) for score in alone}) > len(alone) // 2, (
        "the scores must differ for this test to mean anything"
    )


def test_score_all_reports_progress_once_for_each_pair(model, pairs):
    seen = []
    reward.score_all(model, *pairs, rows=3, progress=seen.append)
    assert sum(seen) == len(pairs[0]) and max(seen) <= 3


def test_responses_close_with_the_end_token_and_stand_best_first(model):
    prompt, responses, known = reward.tokenise(model.lm, RECORDS[1], 0.25)
    assert known == 0.25
    assert prompt == tiny.ids("<user> what is the capital of rome <assistant>")
    assert responses == [tiny.ids(f"{text} <end>") for text in (FACT, REFUSAL, FICTION)]


# ------------------------------------------------------------------------------------------ folders


def test_fresh_head_depends_on_the_seed_alone_and_has_the_stated_spread(base):
    first, again, other = (
        reward.load(base, tiny.tokenizer(), torch.float32, seed=seed).lm.model.score.weight.data for seed in (1, 1, 2)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)
    many = torch.cat(
        [
            reward.load(base, tiny.tokenizer(), torch.float32, seed=seed).lm.model.score.weight.data
            for seed in range(3, 9)
        ]
    )
    assert float(many.std()) == pytest.approx(1 / math.sqrt(32 + 1), rel=0.2)


def test_loading_without_a_seed_keeps_the_trained_head(model, pairs, tmp_path):
    reward.save(model, tmp_path)
    again = reward.load(tmp_path, tiny.tokenizer(), torch.float32)
    assert torch.equal(reward.scores(again, *pairs), reward.scores(model, *pairs))
    assert again.lm.model.config.pad_token_id != again.lm.end_id


def test_normalised_scores_have_mean_0_and_deviation_1_on_the_given_samples(model, pairs):
    reward.set_normalisation(model, *pairs)
    normal = reward.normalised(model, *pairs).numpy()
    assert normal.mean() == pytest.approx(0, abs=1e-5)
    assert normal.std(ddof=1) == pytest.approx(1, abs=1e-4)
    raw = reward.scores(model, *pairs).detach().numpy()
    assert np.corrcoef(normal, raw)[0, 1] == pytest.approx(1, abs=1e-5), "a better score stays better"


def test_normalisation_is_kept_in_config_json_and_read_back(model, pairs, tmp_path):
    reward.set_normalisation(model, *pairs)
    reward.save(model, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["reward_mean"], config["reward_std"]) == (model.mean, model.std) and model.mean != 0
    again = reward.load(tmp_path, tiny.tokenizer(), torch.float32)
    assert torch.equal(reward.normalised(again, *pairs), reward.normalised(model, *pairs))


def test_normalisation_of_equal_scores_is_finite(model, pairs):
    prompt, response = pairs[0][0], pairs[1][0]
    reward.set_normalisation(model, [prompt] * 4, [response] * 4, [0.5] * 4)
    assert torch.isfinite(reward.normalised(model, *pairs)).all()


# ----------------------------------------------------------------------------------------- learning


def first_step(model, examples, **settings):
    """(figures, gradients) of the first step of learning, whose weights stay where they are."""
    recorder = tiny.GradientsOnly([model.lm.model])
    figures = next(reward.learn(model, examples, reward.RewardConfig(max_grad_norm=1e9, **settings), 0, recorder))
    return figures, recorder.steps[0]


@pytest.mark.parametrize("micro_rows", [1, 4, 64])
def test_micro_batches_add_up_to_the_gradient_of_the_whole_batch(model, examples, micro_rows):
    figures, gradients = first_step(model, examples, batch=64, beta=0.1, micro_rows=micro_rows)
    rows, sizes = (
        [p + r for p, responses, _ in examples for r in responses],
        [len(responses) for _, responses, _ in examples],
    )
    scores = torch.stack([model.lm.model(input_ids=torch.tensor([row])).logits[0, 0] for row in rows])
    loss = loss_by_loops(scores, sizes, 0.1)
    expected = torch.autograd.grad(loss, list(model.lm.model.parameters()), allow_unused=True)
    assert figures["loss"] == pytest.approx(loss.item(), rel=1e-5)
    for gradient, wanted in zip(gradients, expected):
        torch.testing.assert_close(
            gradient, torch.zeros_like(gradient) if wanted is None else wanted, rtol=1e-4, atol=1e-6
        )


def test_accuracy_of_a_step_is_the_share_of_pairs_in_the_right_order(model, examples):
    figures, _ = first_step(model, examples, batch=64, micro_rows=5)
    right = []
    for prompt, responses, _ in examples:
        scores = [model.lm.model(input_ids=torch.tensor([prompt + r])).logits.item() for r in responses]
        right += [scores[i] > scores[j] for i in range(len(scores)) for j in range(i + 1, len(scores))]
    assert figures["accuracy"] == pytest.approx(np.mean(right)) and 0 < np.mean(right) < 1


def test_each_epoch_shows_every_ranking_once_in_another_order(model, examples, monkeypatch):
    shown, score = [], reward.scores

    def spy(model, prompts, responses, p_known):
        shown.append(list(dict.fromkeys(map(tuple, prompts))))
        return score(model, prompts, responses, p_known)

    monkeypatch.setattr(reward, "scores", spy)
    config = reward.RewardConfig(batch=4, epochs=3, micro_rows=64)
    figures = list(reward.learn(model, examples, config, 0, tiny.GradientsOnly([model.lm.model])))
    everything = {tuple(prompt) for prompt, _, _ in examples}
    assert [f["step"] for f in figures] == [1, 2, 3, 4, 5, 6] and [len(part) for part in shown] == [4, 2] * 3
    epochs = [frozenset(shown[i]) for i in (0, 2, 4)]
    for i in (0, 2, 4):
        assert {*shown[i], *shown[i + 1]} == everything
    assert len(set(epochs)) > 1, "another order in each epoch"


def test_learning_rate_rises_and_falls_linearly(model, examples):
    config = reward.RewardConfig(lr=0.5, warmup=0.25, batch=2, epochs=4)  # 12 steps, of which 3 rise
    rates = [f["lr"] for f in reward.learn(model, examples, config, 0, tiny.GradientsOnly([model.lm.model]))]
    assert rates == pytest.approx(
        [0.5 * x for x in (1 / 3, 2 / 3, 1, 1, 8 / 9, 7 / 9, 6 / 9, 5 / 9, 4 / 9, 3 / 9, 2 / 9, 1 / 9)]
    )


def test_a_reward_model_learns_to_prefer_what_ranks_better(model, examples):
    config = reward.RewardConfig(lr=3e-3, batch=6, epochs=30)
    optimizer = optim.adamw([{"params": list(model.lm.model.parameters()), "lr": config.lr}])
    figures = list(reward.learn(model, examples, config, 0, optimizer))
    assert figures[-1]["accuracy"] == 1 and figures[-1]["loss"] < 0.5 * figures[0]["loss"]
    for row in reward.accuracy_by_state(model, RECORDS, examples):
        assert row["accuracy"] == 1, row


def test_learning_resumes_to_the_same_weights_as_an_unbroken_run(base, tmp_path):
    config = reward.RewardConfig(lr=1e-2, batch=2, epochs=2, warmup=0.2)

    def start():
        model = reward.load(base, tiny.tokenizer(), torch.float32, seed=3)
        return (
            model,
            [reward.tokenise(model.lm, r, 0.5) for r in RECORDS],
            optim.adamw([{"params": list(model.lm.model.parameters()), "lr": config.lr}]),
        )

    model, examples, optimizer = start()
    unbroken = list(reward.learn(model, examples, config, 5, optimizer))
    broken, examples, optimizer = start()
    figures = []
    for step in reward.learn(broken, examples, config, 5, optimizer):
        figures.append(step)
        if step["step"] == 4:
            save_checkpoint(str(tmp_path / "checkpoint"), {"reward": broken.lm.model}, optimizer, {"step": 4})
            break
    resumed, examples, optimizer = start()
    facts = load_checkpoint(str(tmp_path / "checkpoint"), {"reward": resumed.lm.model}, optimizer)
    figures += list(reward.learn(resumed, examples, config, 5, optimizer, facts["step"]))
    assert figures == unbroken and [f["step"] for f in figures] == list(range(1, 7))
    assert tiny.weights(resumed.lm.model) == tiny.weights(model.lm.model)
    assert tiny.weights(resumed.lm.model) != tiny.weights(broken.lm.model)


@pytest.mark.parametrize("rows", [1, 3, 4, 100])
def test_forward_passes_hold_every_ranking_once_and_no_more_rows_than_asked(rows):
    examples = [([0] * length, [[0]] * size, 0.5) for length, size in ((5, 2), (1, 3), (9, 2), (2, 2), (5, 3), (3, 6))]
    groups = reward.pack(examples, rows)
    assert sorted(i for group in groups for i in group) == list(range(len(examples)))
    for group in groups:
        assert len(group) == 1 or sum(len(examples[i][1]) for i in group) <= rows
    lengths = [len(examples[i][0]) for group in groups for i in group]
    assert lengths == sorted(lengths)


# ------------------------------------------------------------------------------------------ Table 2


def test_accuracy_by_state_counts_pairs_and_baselines(monkeypatch):
    kinds = {
        "known": ["factual", "uncertain"],
        "unknown": ["uncertain", "hallucination"],
        "mixed": ["factual", "uncertain", "hallucination"],
        "general": ["chosen", "rejected"],
    }
    cases = [  # state, scores, lengths of the responses
        ("known", [2.0, 1.0], [3, 5]),
        ("known", [0.0, 1.0], [6, 5]),
        ("known", [3.0, 1.0], [5, 5]),
        ("known", [1.0, 1.0], [9, 2]),
        ("unknown", [5.0, 1.0], [5, 2]),
        ("unknown", [-1.0, -2.0], [5, 7]),
        ("mixed", [3.0, 1.0, 2.0], [1, 2, 3]),
        ("general", [0.0, 4.0], [4, 2]),
    ]
    scores = torch.tensor([s for _, row, _ in cases for s in row])
    monkeypatch.setattr(reward, "score_all", lambda model, prompts, responses, p_known: scores)
    table = reward.accuracy_by_state(
        None,
        [{"state": state, "kinds": kinds[state]} for state, _, _ in cases],
        [([1], [[2] * n for n in lengths], 0.5) for _, _, lengths in cases],
    )
    found = {(r["state"], r["pair"]): (r["n"], r["accuracy"], r["always_answer"], r["longer"]) for r in table}
    assert found == {
        ("known", "factual > uncertain"): (4, 2 / 4, 1.0, (0 + 1 + 0.5 + 1) / 4),
        ("unknown", "uncertain > hallucination"): (2, 1.0, 0.0, 1 / 2),
        ("mixed", "factual > uncertain"): (1, 1.0, 1.0, 0.0),
        ("mixed", "factual > hallucination"): (1, 1.0, 0.5, 0.0),
        ("mixed", "uncertain > hallucination"): (1, 0.0, 0.0, 0.0),
        ("general", "chosen > rejected"): (1, 0.0, 0.5, 1.0),
    }


# ----------------------------------------------------------------------------- P(known) in the head


def test_a_head_that_reads_p_known_adds_its_second_output_by_how_known_the_question_is(base, examples, tmp_path):
    model = reward.load(base, tiny.tokenizer(), torch.float32, seed=7, reads="p_known")
    known = [0.0, 0.3, 0.5, 1.0, 0.9, 0.1]
    flat = reward.laid_out([(prompt, responses, k) for (prompt, responses, _), k in zip(examples, known)])
    got = reward.scores(model, *flat).detach()
    reward.save(model, tmp_path)
    classifier = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    assert classifier.config.num_labels == 2
    for prompt, response, k, score in zip(*flat, got):
        with torch.no_grad():
            a, b = classifier(input_ids=torch.tensor([prompt + response])).logits[0].tolist()
        assert float(score) == pytest.approx(a + (2 * k - 1) * b, abs=1e-4)
    again = reward.load(tmp_path, tiny.tokenizer(), torch.float32)
    assert torch.equal(reward.scores(again, *flat), reward.scores(model, *flat))


def test_with_p_known_the_same_responses_can_rank_one_way_for_a_known_question_and_the_other_for_an_unknown_one(base):
    model = reward.load(base, tiny.tokenizer(), torch.float32, seed=7, reads="p_known")
    prompt, fact, refusal = (
        tiny.ids("<user> who is paris <assistant>"),
        tiny.ids("rome <end>"),
        tiny.ids("i do not know <end>"),
    )
    examples = [(prompt, [fact, refusal], 0.95), (prompt, [refusal, fact], 0.05)]
    config = reward.RewardConfig(lr=3e-3, batch=2, epochs=40)
    optimizer = optim.adamw([{"params": list(model.lm.model.parameters()), "lr": config.lr}])
    assert list(reward.learn(model, examples, config, 0, optimizer))[-1]["accuracy"] == 1


def test_pairs_in_order_equal_a_double_loop():
    scores, sizes = torch.tensor([3.0, 1.0, 2.0, 2.0, 5.0, 1.0, 1.0]), [3, 2, 2]
    right, of, start = 0, 0, 0
    for size in sizes:
        for i in range(start, start + size):
            for j in range(i + 1, start + size):
                right, of = right + int(scores[i] > scores[j]), of + 1
        start += size
    assert reward.pairs_in_order(scores, sizes) == (right, of) == (2, 5)
