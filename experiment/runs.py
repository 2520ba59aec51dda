"""A run's folder: which stages are whole, what they depended on, what is half done, and its log.

A stage is written under a temporary name and renamed when whole; `stages.json` then records the
settings that it and the stages before it depended on. A stage whose record still fits is skipped;
one whose settings changed is done again, and so is all that follows. Half-done work lies in
STAGE.work until the stage is whole. Left out: several writers at a time.
"""

import functools
import hashlib
import json
import os
import platform
import shutil
import sys
import time
from importlib import metadata

import torch

from data.benchmark_data import SOURCES
from data.files import append_jsonl, read_json, read_lines, whole_folder, without_nan, write_json
from data.sources import parse_mix
from experiment.progress import say
from experiment.settings import LAB, flatten
from lm.errors import UserError

try:
    import resource
except ImportError:  # Windows has none: peak memory is not recorded there
    resource = None

IDENTITY = ("model", "embedder", "questions", "seed")  # another value of these is another run
# the sections of settings, or single ones, that a stage reads itself, besides those of all stages
# before it
DEPENDS = {
    "base": ("world",),
    "data": ("general", "qa"),
    "probe": ("probe", "sampling", "dtype"),
    "annotate": ("annotate",),
    "reward": ("reward",),
    "ppo": ("algorithm", "sft", "ppo", "dpo", "rejection", "evaluate.known_share", "evaluate.unknown_share"),
    "evaluate": ("eval_questions", "evaluate", "benchmarks"),
    "report": (),
}
RIVALS = ("dpo", "rejection")  # sections that mean nothing unless they are the algorithm
FOLDER = {"ppo": "policy"}
STAGES = tuple(DEPENDS)


class Run:
    """One folder runs/NAME and the settings that it is made with."""

    def __init__(self, folder, settings):
        self.folder, self.settings = folder, settings
        self.records = self.read_records()
        self.stages = STAGES if settings.model == LAB else STAGES[1:]  # a real model needs no base

    def read_records(self):
        """stages.json: {stage: {"key", "seconds", "peak_gb", "facts", "files"}} of the stages that
        are whole.
        """
        path = self.path("stages.json")
        records = read_json(path) if os.path.exists(path) else {}
        if not isinstance(records, dict) or not all(
            isinstance(r, dict)
            and isinstance(r.get("key"), str)
            and isinstance(r.get("seconds"), (int, float))
            and isinstance(r.get("peak_gb"), (int, float, type(None)))
            and isinstance(r.get("facts"), dict)
            and isinstance(r.get("files"), dict)
            for r in records.values()
        ):
            raise UserError(f"{path}: not what this program writes; delete {self.folder} to start again")
        return records

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    @property
    def base_model(self):
        """Folder or hub name of the language model before RLKF."""
        return self.path("base") if self.settings.model == LAB else self.settings.model

    def stage_path(self, stage):
        return self.path(FOLDER.get(stage, stage))

    def open(self, preset):
        """Make the folder and its config.json. Raises UserError where it holds a run of another
        model, data or seed.
        """
        flat = {key: list(v) if isinstance(v, tuple) else v for key, v in flatten(self.settings).items()}
        path = self.path("config.json")
        if os.path.exists(path) and self.records:
            before = read_json(path)
            before = before.get("settings") if isinstance(before, dict) else None
            if not isinstance(before, dict):
                raise UserError(f"{path}: not what this program writes; delete {self.folder} to start again")
            differ = [
                f"{name} {before.get(name)!r}, now {flat[name]!r}"
                for name in IDENTITY
                if before.get(name) != flat[name]
            ]
            if differ:
                raise UserError(
                    f"{self.folder} is a run of other settings: {'; '.join(differ)}. "
                    "Choose another --run NAME, or delete that folder to start again"
                )
        versions = {
            name: metadata.version(name) for name in ("torch", "transformers", "tokenizers", "safetensors", "numpy")
        }
        os.makedirs(self.folder, exist_ok=True)
        write_json(
            path, {"preset": preset, "settings": flat, "python": platform.python_version(), "versions": versions}
        )

    def facts(self, stage):
        """What a stage depends on: {"name": value} of its own settings and those of the stages
        before it.
        """
        flat = flatten(self.settings)
        facts = {name: flat[name] for name in IDENTITY}
        for earlier in self.stages[: self.stages.index(stage) + 1]:
            for name, value in flat.items():
                section = name.split(".")[0]
                if not {name, section}.isdisjoint(DEPENDS[earlier]) and (
                    section not in RIVALS or section == self.settings.algorithm
                ):
                    facts[name] = list(value) if isinstance(value, tuple) else value
        measured = [
            os.path.join(self.settings.benchmarks.dir, SOURCES[name].folder)
            for name in facts.get("benchmarks.names", ())
        ]
        for name in (
            *(source for source, _ in parse_mix(self.settings.questions)),
            *self.settings.qa.passages,
            self.settings.general,
            *facts.get("eval_questions", ()),
            *measured,
        ):
            paths = (
                [os.path.join(name, file) for file in sorted(os.listdir(name)) if file.endswith((".txt", ".jsonl"))]
                if os.path.isdir(name)
                else [name]
            )
            for path in filter(os.path.isfile, paths):
                status = os.stat(path)
                facts[f"{path} sha256"] = sha256_of(path, status.st_size, status.st_mtime_ns)
        return facts

    def key(self, stage):
        return hashlib.sha256(json.dumps(self.facts(stage), sort_keys=True).encode()).hexdigest()[:16]

    def is_done(self, stage):
        record = self.records.get(stage)
        output = self.path("report.md") if stage == "report" else self.stage_path(stage)
        return record is not None and record["key"] == self.key(stage) and os.path.exists(output)

    def check_files(self, stage):
        """Raise UserError where a whole stage's files are no longer as it wrote them: later stages
        read them on trust.
        """
        folder, now = self.stage_path(stage), fingerprints(self.stage_path(stage))
        for name, before in self.records[stage]["files"].items():
            if now.get(name) != before:
                raise UserError(
                    f"{os.path.join(folder, name)}: {'changed since' if name in now else 'missing, though'} the {stage}"
                    f" stage wrote it; delete {folder} to do that stage again"
                )

    def changed(self, stage):
        """Names of the settings that differ from those that the stage was last done with."""
        before, now = self.records.get(stage, {}).get("facts", {}), self.facts(stage)
        return sorted(name for name in {*before, *now} if before.get(name) != now.get(name))

    def finish(self, stage, seconds):
        """Record a stage as whole. Where it was whole before (its folder was deleted), what later
        stages made of it counts no more.
        """
        records, key = self.read_records(), self.key(stage)
        if records.get(stage, {}).get("key") == key:
            records = {
                earlier: records[earlier] for earlier in self.stages[: self.stages.index(stage)] if earlier in records
            }
        self.records = {
            **records,
            stage: {
                "key": key,
                "seconds": round(seconds, 1),
                "peak_gb": peak_gb(self.settings.device),
                "facts": self.facts(stage),
                "files": fingerprints(self.stage_path(stage)),
            },
        }
        write_json(self.path("stages.json"), self.records)
        shutil.rmtree(self.path(f"{stage}.work"), ignore_errors=True)

    def adopt(self, stage, source):
        """Record a stage as whole whose folder came from `source`, a Run with the same settings so
        far.
        """
        self.records = {**self.records, stage: source.records[stage]}
        write_json(self.path("stages.json"), self.records)
        for line in source.logged(stage):
            append_jsonl(self.path("metrics.jsonl"), [line])

    def output(self, stage):
        """Context that yields a temporary folder, renamed to the stage's own when the block ends
        well.
        """
        return whole_folder(self.stage_path(stage))

    def work(self, stage, *parts):
        """A path in the stage's folder of half-done work; what other settings left there is removed
        first.
        """
        folder, mark = self.path(f"{stage}.work"), self.path(f"{stage}.work", "key.json")
        if os.path.isdir(folder) and (not os.path.exists(mark) or read_json(mark) != self.key(stage)):
            shutil.rmtree(folder)
        if not os.path.isdir(folder):
            os.makedirs(folder)
            write_json(mark, self.key(stage))
        return os.path.join(folder, *parts)

    def log(self, stage, **figures):
        """Append one line to metrics.jsonl; what is not a number is null there."""
        append_jsonl(
            self.path("metrics.jsonl"),
            [without_nan({"stage": stage, "key": self.key(stage), "time": round(time.time(), 1), **figures})],
        )

    def do(self, wanted, functions):
        """Run the wanted stages that are not done yet, in order; `functions` is {stage: function of
        this run}.
        """
        for stage in wanted:
            missing = [earlier for earlier in self.stages[: self.stages.index(stage)] if not self.is_done(earlier)]
            if missing:
                raise UserError(f"--stage {stage}: {missing[0]} has to run first, with these settings (or --stage all)")
            for earlier in self.stages[: self.stages.index(stage)]:
                self.check_files(earlier)
            if self.is_done(stage) and stage != "report":
                say(f"{stage}: done")
                continue
            changed = self.changed(stage) if stage in self.records else []
            say(
                f"{stage}: {' '.join(functions[stage].__doc__.split())}"
                + (f" (again: {', '.join(changed)} changed)" if changed else "")
            )
            started = time.time()
            torch.manual_seed(self.settings.seed)
            functions[stage](self)
            self.finish(stage, time.time() - started)
            self.log(stage, event="done", seconds=round(time.time() - started, 1))

    def logged(self, stage):
        """The lines of metrics.jsonl of this stage under its present settings; of a repeated step
        the last counts.
        """
        path, by_step = self.path("metrics.jsonl"), {}
        append_jsonl(path, [])  # cuts off a last line that an interruption tore
        for _, line in read_lines(path):
            if line.get("stage") == stage and line.get("key") == self.key(stage):
                by_step[line.get("event"), line.get("step")] = line
        return list(by_step.values())


@functools.cache
def sha256_of(path, size, changed):
    """Digest of a file of questions or passages, read again only where its size or time of change
    is another.
    """
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def fingerprints(folder):
    """{file name: [bytes, sha256]} of a stage's files; of a file over 64 MB the size alone."""
    found = {}
    for path in (
        sorted(filter(os.path.isfile, (os.path.join(folder, name) for name in os.listdir(folder))))
        if os.path.isdir(folder)
        else ()
    ):
        size = os.path.getsize(path)
        digest = None
        if size <= 64_000_000:
            with open(path, "rb") as f:
                digest = hashlib.file_digest(f, "sha256").hexdigest()
        found[os.path.basename(path)] = [size, digest]
    return found


def peak_gb(device):
    """Most memory in GB (10^9 bytes) that this process has held so far: of `device` if that is a
    GPU, else of the machine; None where unknown.
    """
    if torch.device(device).type == "cuda":
        return round(torch.cuda.max_memory_reserved(device) / 1e9, 2)
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes
    return None if resource is None else round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9, 2)
