"""The probe in use against its formula by hand: P(known), its file, the command, and every user's
mistake in one line.
"""

import io
import os
import sys

import pytest
import tiny
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file
from test_metrics import sigmoid
from tiny import one_thread  # noqa: F401

import probe
from experiment import probing
from lm.chat import chat_prompt
from lm.errors import UserError
from probe import Probe

# --------------------------------------------------------------------------------- the probe in use


@pytest.fixture(scope="module")
def chosen(planted):
    """(activations, found, best, probe) with a band of layers and a temperature that is not one."""
    activations, labels, truth, parts, config = planted
    activations = {**activations, "mlp": activations["mlp"].clone()}
    activations["mlp"][:, 1:, 2] += torch.tensor(truth)[:, None] * 2.0  # three layers that all tell something
    activations["mlp"][:, 2, 5] = 3.0  # a constant feature in one of them
    found = probe.logits_everywhere(activations, labels.clip(0), parts == 0, config.l2, config.standardise)
    best = probe.choose(found, labels, parts, 3)
    return activations, found, best, probe.probe_in_use(best, found, activations, 1.6)


def test_the_probe_in_use_gives_the_mean_over_repeats_of_the_chosen_probes_calibrated_probabilities(chosen):
    activations, _, best, in_use = chosen
    assert (best["kind"], best["layers"]) == ("mlp", [1, 2, 3])
    expected = (best["logits"] / 1.6).sigmoid().mean(0)
    torch.testing.assert_close(in_use.p_known(activations), expected, rtol=0, atol=1e-5)
    some = {kind: states[50:53] for kind, states in activations.items()}
    torch.testing.assert_close(in_use.p_known(some), expected[50:53], rtol=0, atol=1e-5)
    assert expected.std() > 0.2


def test_p_known_is_the_formula_by_hand_from_the_weights_found(chosen):
    activations, found, best, in_use = chosen
    weight, bias, _ = found["mlp"]
    p = in_use.p_known(activations)
    for n in (0, 7, 205):
        repeats = []
        for r in range(3):
            layers = [
                sum((weight[i, r, best["strength"], d] * activations["mlp"][n, i, d]).item() for d in range(8))
                + bias[i, r, best["strength"]].item()
                for i in best["layers"]
            ]
            repeats.append(sigmoid(sum(layers) / 3 / 1.6))
        assert p[n].item() == pytest.approx(sum(repeats) / 3, abs=1e-5)


def test_the_probe_in_use_standardises_by_the_questions_it_was_given(chosen):
    activations, _, best, in_use = chosen
    for row, layer in enumerate(best["layers"]):
        for d in range(8):
            values = activations["mlp"][:, layer, d].tolist()
            mean = sum(values) / 210
            assert in_use.mean[row, d].item() == pytest.approx(mean, abs=1e-5)
            deviation = (sum((v - mean) ** 2 for v in values) / 209) ** 0.5
            assert in_use.scale[row, d].item() == pytest.approx(max(deviation, 1e-6), rel=1e-4)
    assert in_use.weight.shape == (3, 3, 8) and in_use.bias.shape == (3, 3)


def some_probe(kind="mlp", layers=(0, 1), width=32, repeats=3):
    """A probe of random numbers."""
    g = torch.Generator().manual_seed(0)
    shape = len(layers), width
    return Probe(
        kind,
        list(layers),
        torch.randn(shape, generator=g),
        0.5 + torch.rand(shape, generator=g),
        torch.randn(repeats, *shape, generator=g),
        torch.randn(repeats, len(layers), generator=g),
        2.5,
    )


@pytest.mark.parametrize("kind, layers", [("mlp", (0, 2)), ("hidden", (1,)), ("attention", (0, 1, 2))])
def test_a_probe_reads_its_own_kind_and_layers_by_hand(kind, layers):
    in_use, g = some_probe(kind, layers, width=4), torch.Generator().manual_seed(1)
    activations = {name: torch.randn(5, 3, 4, generator=g) for name in ("attention", "mlp", "hidden")}
    p = in_use.p_known(activations)
    for n in range(5):
        repeats = []
        for r in range(3):
            z = 0
            for row, layer in enumerate(layers):
                x = (activations[kind][n, layer] - in_use.mean[row]) / in_use.scale[row]
                z += (
                    sum((x[d] * in_use.weight[r, row, d]).item() for d in range(4)) + in_use.bias[r, row].item()
                ) / len(layers)
            repeats.append(sigmoid(z / 2.5))
        assert p[n].item() == pytest.approx(sum(repeats) / 3, abs=1e-5)


# -------------------------------------------------------------------------------------------- files


def test_a_saved_probe_comes_back_from_its_folder_or_file(chosen, tmp_path):
    activations, _, _, in_use = chosen
    probe.save(in_use, str(tmp_path), "some/model")
    for path in (tmp_path, tmp_path / "probes.safetensors"):
        again = probe.load(str(path))
        assert (again.kind, again.layers) == (in_use.kind, in_use.layers) and again.temperature == pytest.approx(1.6)
        assert all(
            torch.equal(getattr(again, name), getattr(in_use, name)) for name in ("mean", "scale", "weight", "bias")
        )
        torch.testing.assert_close(again.p_known(activations), in_use.p_known(activations), rtol=0, atol=1e-6)


def test_the_file_says_what_was_read_counting_layers_from_one(tmp_path):
    probe.save(some_probe("attention", (2, 3, 4)), str(tmp_path), "some/model")
    with safe_open(str(tmp_path / "probes.safetensors"), "pt") as f:
        assert f.metadata() == {"kind": "attention", "layers": "3,4,5", "model": "some/model"}


GOOD = {"mean": (2, 8), "scale": (2, 8), "weight": (3, 2, 8), "bias": (3, 2), "temperature": ()}
ABOUT = {"kind": "mlp", "layers": "1,2", "model": "m"}


def written(path, shapes, about=ABOUT):
    save_file({name: torch.ones(shape) for name, shape in shapes.items()}, str(path), about)
    return str(path)


def test_the_file_that_the_broken_ones_differ_from_is_read(tmp_path):
    assert probe.load(written(tmp_path / "p.safetensors", GOOD)).layers == [0, 1]


@pytest.mark.parametrize(
    "changed",
    [
        {"mean": (2, 7)},
        {"mean": (8,)},
        {"mean": ()},
        {"scale": (1, 8)},
        {"scale": (2, 1)},
        {"weight": (3, 8)},
        {"weight": (3, 1, 8)},
        {"weight": ()},
        {"bias": (2, 2)},
        {"bias": (3, 2, 1)},
        {"temperature": (2,)},
    ],
    ids=str,
)
def test_tensors_of_wrong_shapes_are_a_users_mistake(changed, tmp_path):
    path = written(tmp_path / "p.safetensors", {**GOOD, **changed})
    with pytest.raises(UserError) as error:
        probe.load(path)
    assert str(error.value).startswith(f"{path}: not a file of probes") and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "shapes, about",
    [
        ({"weight": (3, 8), "bias": (3,)}, {"kind": "mlp", "layer": "2", "l2": "3.0"}),
        ({"embed.weight": (5, 8)}, ABOUT),
        (GOOD, None),
        (GOOD, {"kind": "mlp"}),
        (GOOD, {"layers": "1,2"}),
        (GOOD, {**ABOUT, "layers": "1"}),
        (GOOD, {**ABOUT, "layers": "one,two"}),
        (GOOD, {**ABOUT, "layers": ""}),
        ({name: shape for name, shape in GOOD.items() if name != "temperature"}, ABOUT),
    ],
)
def test_other_safetensors_files_are_a_users_mistake(shapes, about, tmp_path):
    path = written(tmp_path / "p.safetensors", shapes, about)
    with pytest.raises(UserError) as error:
        probe.load(path)
    assert str(error.value).startswith(f"{path}: not a file of probes")


def test_what_is_missing_or_is_no_safetensors_file_is_a_users_mistake(tmp_path):
    (tmp_path / "text").write_text("kind: mlp\n" * 9)
    (tmp_path / "empty").write_text("")
    (tmp_path / "folder").mkdir()
    for name, named, reason in (
        ("none", "none", "No such file"),
        ("folder", os.path.join("folder", "probes.safetensors"), "No such file"),
        ("text", "text", "not a file of probes"),
        ("empty", "empty", "not a file of probes"),
    ):
        with pytest.raises(UserError) as error:
            probe.load(str(tmp_path / name))
        assert str(error.value).startswith(f"{tmp_path / named}: {reason}"), name


# -------------------------------------------------------------------------------------- the command

QUESTIONS = ["what is the capital of paris", "who", "where is rome . one two three four five"]


def by_hand(lm, in_use, question):
    """P(known) of one question alone, from its activations."""
    states = probe.capture(lm, [chat_prompt(lm, question)])[in_use.kind][0]
    x = (states[in_use.layers] - in_use.mean) / in_use.scale
    logits = [((x * w).sum(1) + b).mean().item() for w, b in zip(in_use.weight, in_use.bias)]
    return sum(sigmoid(z / in_use.temperature) for z in logits) / len(logits)


@pytest.mark.parametrize("kind, layers, width", [("mlp", (0, 1), 32), ("hidden", (1,), 32), ("attention", (0,), 32)])
def test_p_known_of_questions_is_that_of_their_chat_prompts(kind, layers, width):
    lm, in_use = tiny.lm(), some_probe(kind, layers, width)
    p = probe.p_known(lm, in_use, QUESTIONS, rows=2)
    assert p.tolist() == pytest.approx([by_hand(lm, in_use, question) for question in QUESTIONS], abs=1e-5)
    assert p.std() > 0.01


@pytest.mark.parametrize(
    "kind, layers, width", [("mlp", (0, 1), 48), ("mlp", (0, 1), 1), ("hidden", (1, 2), 32), ("experts", (0,), 32)]
)
def test_a_probe_of_another_architecture_is_a_users_mistake(kind, layers, width):
    with pytest.raises(UserError) as error:
        probe.p_known(tiny.lm(), some_probe(kind, layers, width), QUESTIONS)
    message = str(error.value)
    assert f"{kind} of layers {layers[0] + 1} to {layers[-1] + 1}, width {width}" in message
    assert ("2 layers of width 32" in message) == (kind != "experts") and "\n" not in message


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """Arguments that name a tiny model's folder and a probe's, and the two in memory."""
    folder, in_use = tmp_path_factory.mktemp("command"), some_probe("hidden", (0, 1))
    probe.save(in_use, str(folder), "tiny")
    arguments = ["--model", tiny.folder(folder / "model"), "--probes", str(folder)]
    return arguments, tiny.lm(), in_use


@pytest.fixture
def run(command, monkeypatch, capsys):
    """Call the command with questions as arguments or text on standard input; returns (status,
    lines out, lines of error).
    """
    verbosity = transformers.logging.get_verbosity()

    def call(*questions, stdin="", options=command[0]):
        source = (
            io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8") if isinstance(stdin, bytes) else io.StringIO(stdin)
        )
        monkeypatch.setattr(sys, "stdin", source)
        capsys.readouterr()
        status = probing.main([*options, *questions])
        out, err = capsys.readouterr()
        return status, out.split("\n")[:-1], err.split("\n")[:-1]

    yield call
    transformers.logging.set_verbosity(verbosity)
    transformers.logging.enable_progress_bar()


def test_the_command_prints_each_questions_probability(run, command):
    _, lm, in_use = command
    status, lines, errors = run(*QUESTIONS)
    assert (status, errors) == (0, [])
    assert lines == [f"{by_hand(lm, in_use, question):.3f}\t{question}" for question in QUESTIONS]
    assert len({line.split("\t")[0] for line in lines}) == 3


def test_without_arguments_it_reads_a_question_a_line(run):
    assert run(stdin="".join(f"{question}\n" for question in QUESTIONS)) == run(*QUESTIONS)
    assert run(stdin=QUESTIONS[0]) == run(f"  {QUESTIONS[0]} ") == run(QUESTIONS[0], stdin=QUESTIONS[1])
    assert run(stdin="who is caf\u00e9\r\n".encode())[1][0].endswith("\twho is caf\u00e9")


@pytest.mark.parametrize(
    "questions, stdin, reason",
    [
        (["who", ""], "", "question 2: empty"),
        ([" \t"], "", "question 1: empty"),
        ([], "who\n\nwhere\n", "question 2: empty"),
        ([], "", "no questions"),
        ([], b"who \xff\n", "a question is not UTF-8"),
        (["who \udcff"], "", "a question is not UTF-8"),
    ],
)
def test_empty_and_undecodable_questions_are_one_line_of_error_and_status_2(run, questions, stdin, reason):
    status, lines, errors = run(*questions, stdin=stdin)
    assert (status, lines, len(errors)) == (2, [], 1)
    assert errors[0].startswith(f"error: {reason}")


def test_a_missing_probe_or_model_and_one_that_does_not_fit_are_too(run, command, tmp_path):
    model, folder = command[0][1], command[0][3]
    probe.save(some_probe("hidden", (0, 1), 16), str(tmp_path), "another")
    for options, reason in (
        (["--model", model, "--probes", "/no/such"], "/no/such: No such file"),
        (["--model", "/no/such", "--probes", folder], "/no/such"),
        (["--model", model, "--probes", str(tmp_path)], "the probe reads hidden of layers 1 to 2, width 16; "),
    ):
        status, lines, errors = run("who", options=options)
        assert (status, lines, len(errors)) == (2, [], 1)
        assert errors[0].startswith(f"error: {reason}")


def test_control_characters_of_a_question_do_not_reach_the_terminal(run):
    _, lines, _ = run("who \x1b[31mis\x07\nthe\tcapital \u202eof\u2028rome \u9f8d", "where\x00")
    assert [line.split("\t", 1)[1] for line in lines] == [
        "who \ufffd[31mis\ufffd\ufffdthe\ufffdcapital \ufffdof\ufffdrome \u9f8d",
        "where\ufffd",
    ]
