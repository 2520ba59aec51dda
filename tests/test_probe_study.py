"""Controls and ablations of the probe on activations where one layer is known to tell the label,
and by repeating them.
"""

import numpy as np
import pytest
import torch
from test_metrics import auroc_by_pairs
from tiny import one_thread  # noqa: F401

import probe
from experiment import probe_study

KINDS = ("attention", "mlp", "hidden")
FIGURES = {"kind", "layers", "valid_loss", "accuracy", "accuracy_min", "accuracy_max", "balanced_accuracy", "auroc"}


@pytest.fixture(scope="module")
def study(planted):
    """(activations, found, best, labels, parts, config) of the planted layer's probe."""
    activations, labels, _, parts, config = planted
    found = probe.logits_everywhere(activations, labels.clip(0), parts == 0, config.l2, config.standardise)
    return activations, found, probe.choose(found, labels, parts, config.band), labels, parts, config


# ----------------------------------------------------------------------------------------- controls


def test_bag_of_words_counts_tokens_that_more_than_one_question_has():
    bag = probe_study.bag_of_words([[7, 3, 3], [3, 9], [7, 5, 5], [8]])
    assert bag.tolist() == [[2, 1], [1, 0], [0, 1], [0, 0]]  # columns: tokens 3 and 7; 5 is twice in one question only
    assert probe_study.bag_of_words([[1], [2]]).tolist() == [[0], [0]]


def test_majority_is_the_larger_class_of_the_labelled_questions():
    row = {"kind": "majority", "accuracy": 3 / 4, "balanced_accuracy": 0.5, "auroc": 0.5}
    assert probe_study.majority(np.array([1, 1, -1, 0, 1, -1, -1])) == row
    assert probe_study.majority(np.array([0, 0, -1, 0, 1, -1, -1])) == row
    assert auroc_by_pairs([1.0] * 4, [1, 1, 0, 1]) == 0.5, "which is what a constant answer has"


def test_controls_find_nothing_where_there_is_nothing(study):
    activations, _, best, labels, parts, config = study
    assert best["accuracy"] > 0.9
    g, before = torch.Generator().manual_seed(1), labels.copy()
    telling = torch.tensor(labels).float()[:, None] + 0.01 * torch.randn(200, 2, generator=g)
    texts = {"noise": torch.randn(200, 6, generator=g), "telling": telling}
    rows = probe_study.controls(activations, best, labels, parts, config, 0, texts)
    assert [row["kind"] for row in rows] == ["shuffled labels", "noise", "telling", "majority"]
    shuffled, noise, told, majority = rows
    for row in (shuffled, noise):
        assert 0.3 < row["accuracy"] < 0.7 and 0.3 < row["auroc"] < 0.7 and row["valid_loss"] > 0.6
    assert told["accuracy"] == 1.0 and told["valid_loss"] < best["valid_loss"]
    assert majority == {**probe_study.majority(labels), "accuracy": 0.5}
    assert np.array_equal(labels, before), "the caller's labels are left alone"


def test_shuffled_labels_are_the_same_labels_on_the_same_questions_in_another_order(study, monkeypatch):
    activations, _, best, labels, parts, config = study
    seen, fit = [], probe_study.fit_logistic
    monkeypatch.setattr(probe_study, "fit_logistic", lambda *given: seen.append(given[:2]) or fit(*given))
    scored, score = [], probe.score_probes
    monkeypatch.setattr(probe, "score_probes", lambda *given: scored.append(given[1]) or score(*given))
    for seed in (0, 0, 1):
        probe_study.controls(activations, best, labels, parts, config, seed, {})
    first, again, other = scored
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert np.array_equal(first == -1, labels == -1) and (first == 1).sum() == (labels == 1).sum()
    assert 0.35 < (first == labels)[labels >= 0].mean() < 0.65
    for features, targets in seen:
        assert torch.equal(features, activations[best["kind"]][:200, best["layers"]].transpose(0, 1))
    assert np.array_equal(seen[0][1], first.clip(0)), "learnt from and judged by the same"


def test_a_controls_figures_are_those_of_its_own_probe_by_hand(study):
    activations, _, best, labels, parts, config = study
    features = torch.randn(200, 4, generator=torch.Generator().manual_seed(2)) + torch.tensor(labels)[:, None]
    row = probe_study.controls(activations, best, labels, parts, config, 0, {"text": features})[1]
    weight, bias = probe.fit_logistic(features[None], labels.clip(0), parts == 0, config.l2, config.standardise)
    logits = torch.einsum("nd,rd->rn", features, weight[0, :, row["strength"]]) + bias[0, :, row["strength"]][:, None]
    right = [((z > 0).numpy() == (labels == 1))[part == 2].mean() for z, part in zip(logits, parts)]
    areas = [
        auroc_by_pairs(z[torch.tensor(part == 2)].tolist(), labels[part == 2] == 1) for z, part in zip(logits, parts)
    ]
    assert row["accuracy"] == pytest.approx(np.mean(right)) and row["auroc"] == pytest.approx(np.mean(areas), abs=1e-3)
    assert 0.6 < row["accuracy"] < 1


# ---------------------------------------------------------------------------------------- ablations


@pytest.fixture(scope="module")
def ablated(study, planted):
    """(rows, what was refitted, steps of progress, hits, everyone) of the planted data, with hits
    that say more than labels.
    """
    activations, found, _, labels, parts, config = study
    everyone = np.where(parts == -1, 2, parts)
    everyone[0, 180:] = 0
    hits = np.where(planted[2][:200] == 1, 0.8, 0.1)
    refits, ticks, fit = [], [], probe.logits_everywhere
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe, "logits_everywhere", lambda *given: refits.append(given) or fit(*given))
        rows = probe_study.ablations(activations, found, hits, labels, everyone, config, 0, ticks.append)
    return rows, refits, ticks, hits, everyone


REFITTED = [
    "soft targets",
    "soft targets, also of questions left out",
    "standardised",
    "12.5% of the training questions",
    "25.0% of the training questions",
    "50.0% of the training questions",
]


def test_one_thing_is_changed_at_a_time(ablated):
    rows, refits, ticks, _, _ = ablated
    assert [row["variant"] for row in rows] == [
        "as set",
        "one layer",
        "3 adjacent layers",
        "9 adjacent layers",
        "attention alone",
        "mlp alone",
        "hidden alone",
        *REFITTED,
    ]
    assert all(set(row) == {"variant"} | FIGURES for row in rows)
    assert len(refits) == 6 and ticks == [1] * 6, "once for each that needs new probes"


@pytest.mark.parametrize(
    "band, names",
    [
        (1, ["as set", "3 adjacent layers", "5 adjacent layers", "9 adjacent layers"]),
        (2, ["as set", "one layer", "3 adjacent layers", "5 adjacent layers", "9 adjacent layers"]),
    ],
)
def test_the_band_that_is_set_is_not_listed_twice(study, ablated, monkeypatch, band, names):
    activations, found, _, labels, parts, config = study
    monkeypatch.setattr(probe, "logits_everywhere", lambda *given: found)
    rows = probe_study.ablations(
        activations, {"mlp": found["mlp"]}, ablated[3], labels, ablated[4], probe.ProbeConfig(band=band), 0
    )
    assert [row["variant"] for row in rows] == [*names, "mlp alone", *REFITTED]
    assert len(rows[0]["layers"]) <= band


def test_variants_of_band_and_kind_choose_anew_among_the_probes_there_are(study, ablated):
    _, found, best, labels, parts, config = study
    rows = {row["variant"]: row for row in ablated[0]}
    cases = {
        "as set": (found, 5),
        "one layer": (found, 1),
        "3 adjacent layers": (found, 3),
        "9 adjacent layers": (found, 9),
        **{f"{kind} alone": ({kind: found[kind]}, 5) for kind in KINDS},
    }
    for name, (probes, band) in cases.items():
        expected = probe.choose(probes, labels, parts, band)
        assert {key: rows[name][key] for key in FIGURES} == {key: expected[key] for key in FIGURES}, name
    assert {key: rows["as set"][key] for key in FIGURES} == {key: best[key] for key in FIGURES}
    assert (rows["one layer"]["kind"], rows["one layer"]["layers"]) == ("mlp", [1]) and rows["one layer"][
        "accuracy"
    ] > 0.93
    assert rows["attention alone"]["accuracy"] < 0.75 and rows["attention alone"]["kind"] == "attention"
    assert len(rows["9 adjacent layers"]["layers"]) == 4, "all there are"


def test_refitted_variants_learn_from_what_their_names_say(study, ablated):
    activations, _, _, labels, parts, config = study
    rows, refits, _, hits, everyone = ablated
    given = dict(zip(REFITTED, refits))
    for name, (states, targets, train, l2, standardise) in given.items():
        assert all(torch.equal(states[kind], activations[kind][:200]) for kind in KINDS) and l2 == config.l2
        assert np.array_equal(targets, hits if name.startswith("soft") else labels.clip(0)), name
        assert standardise == (name == "standardised")
        if name == "soft targets, also of questions left out":
            assert np.array_equal(train, everyone == 0) and train[0, 180:].all()
        elif "%" in name:
            share = float(name.split("%")[0]) / 100
            assert not (train & (parts != 0)).any(), "a part of the training split"
            kept = (train | (parts != 0)).all(0)
            assert np.array_equal(train, (parts == 0) & kept), "the same questions in all repeats"
            assert abs(train.sum() / (parts == 0).sum() - share) < 0.1
        else:
            assert np.array_equal(train, parts == 0)
        expected = probe.choose(
            probe.logits_everywhere(states, targets, train, l2, standardise), labels, parts, config.band
        )
        row = next(row for row in rows if row["variant"] == name)
        assert {key: row[key] for key in FIGURES} == {key: expected[key] for key in FIGURES}, name


def test_ablations_are_judged_on_labelled_questions_alone(study, ablated):
    """Whatever becomes of the activations of questions without label, in parts where they are not
    trained on.
    """
    activations, found, _, labels, parts, config = study
    *_, hits, _ = ablated
    everyone = np.where(labels >= 0, parts, 2)
    changed = {kind: states.clone() for kind, states in activations.items()}
    for states in changed.values():
        states[180:] = -states[180:]
    rows, again = (probe_study.ablations(x, found, hits, labels, everyone, config, 0) for x in (activations, changed))
    for row, other in zip(rows, again):
        assert (row["kind"], row["layers"], row["accuracy"]) == (other["kind"], other["layers"], other["accuracy"])
        assert row["valid_loss"] == pytest.approx(other["valid_loss"], abs=2e-3)


@pytest.mark.parametrize("share", [0.125, 0.5, 0.9])
def test_thinned_keeps_about_the_share_and_the_same_questions_for_all_repeats(share):
    everyone = np.zeros((4, 20_000), int)
    kept = probe_study.thinned(everyone, share, 0)
    assert kept.shape == everyone.shape and kept.dtype == bool
    assert (kept == kept[0]).all() and abs(kept[0].mean() - share) < 0.015
    assert np.array_equal(kept, probe_study.thinned(everyone, share, 0))
    assert not np.array_equal(kept, probe_study.thinned(everyone, share, 1))
    halves = kept[0].reshape(2, -1).mean(1)
    assert abs(halves[0] - halves[1]) < 0.03, "not the first ones"
