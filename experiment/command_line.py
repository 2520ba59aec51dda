"""The command line of rlkf.py: which stage, which preset, and settings as --name value."""

import argparse
import re

import torch

from experiment.settings import PRESETS, catalogue, nearest
from lm.errors import UserError, raise_user_error


def help_text():
    """One line a setting: name, default, what it is."""
    lines = []
    for name, (_, default, text) in catalogue().items():
        default = ",".join(map(str, default)) if isinstance(default, tuple) else default
        lines.append(f"  --{name} {default}".ljust(38) + f"  {text}")
    return "\n".join(lines)


def parse_command_line(argv, description, stages):
    """argparse.Namespace with stage, preset, run, runs, list, and `given`: {"section.field": text}.
    Raises UserError.
    """
    parser = argparse.ArgumentParser(
        prog="rlkf.py",
        description=description,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"settings (--name value), with the defaults that a preset starts from:\n{help_text()}",
    )
    parser.error = raise_user_error
    parser.add_argument(
        "--stage", metavar="STAGE", default="all", help=f"all (the default), or one of {', '.join(stages)}"
    )
    parser.add_argument("--preset", metavar="PRESET", default="lab", help=f"one of {', '.join(PRESETS)}")
    parser.add_argument("--run", metavar="NAME", help="the run's folder is runs/NAME (default: the preset's name)")
    parser.add_argument(
        "--eval-questions",
        "--eval_questions",
        metavar="FILE",
        nargs="+",
        help="evaluate on the questions of these files too",
    )
    parser.add_argument(
        "--runs",
        metavar="NAME",
        nargs="+",
        help="with --stage report: the runs, by name or folder, that are compared in one table",
    )
    parser.add_argument("--list", action="store_true", help="show the stages, what is done and what would run")
    for word in argv:
        if not word.isprintable():
            raise UserError(f"unexpected argument {word!r}: it holds characters that cannot be printed")
    command, rest = parser.parse_known_args(argv)
    if command.stage not in ("all", *stages):
        raise UserError(
            f"--stage: no stage called {command.stage!r}{nearest(command.stage, stages)}; there are all,"
            f" {', '.join(stages)}"
        )
    if command.run is not None and not re.fullmatch(r"[\w][\w.\- ]*", command.run):
        raise UserError(f"--run: expected a plain name, not {command.run!r}")
    if command.runs and command.stage != "report":
        raise UserError(f"--runs: expected --stage report with it, not --stage {command.stage}")
    command.given = {"eval_questions": tuple(command.eval_questions)} if command.eval_questions else {}
    while rest:
        word = rest.pop(0)
        name, equals, value = word[2:].partition("=")
        if not word.startswith("--"):
            raise UserError(f"unexpected argument {word!r}; settings are given as --name value")
        if not equals:
            if name not in catalogue():
                raise UserError(
                    f"--{name}: no such"
                    f" setting{nearest(name, [*catalogue(), 'stage', 'preset', 'run', 'runs', 'list'])}; --help lists"
                    " them"
                )
            if not rest:
                raise UserError(f"--{name}: expected a value behind it")
            value = rest.pop(0)
        command.given[name] = value
    if command.runs and (command.given or command.run or command.list):
        raise UserError(
            "--runs: compares runs as they are;"
            f" {', '.join(f'--{name}' for name in command.given) or '--run or --list'} means nothing beside it"
        )
    return command


def check_device(device):
    """Raise UserError unless `device` is one that this machine has."""
    try:
        kind = torch.device(device)
    except RuntimeError:
        raise UserError(f"--device: expected cpu, cuda or cuda:N, not {device!r}") from None
    if kind.type not in ("cpu", "cuda"):
        raise UserError(f"--device: expected cpu, cuda or cuda:N, not {device!r}")
    if kind.type == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch finds no CUDA device here (use --device cpu)")
    if kind.type == "cuda" and (kind.index or 0) >= torch.cuda.device_count():
        raise UserError(f"--device {device}: there are only {torch.cuda.device_count()} CUDA devices here")
