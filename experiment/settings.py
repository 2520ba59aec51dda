"""Every setting in one place: the dataclasses of the modules put together, the presets, and the
command line.

Each field of each dataclass is a setting, `--section.field value`; its comment is its help. Left
out: configuration files (a run's config.json shows what was set).
"""

import dataclasses
import difflib
import functools
import inspect
import re
from dataclasses import dataclass, field, fields, is_dataclass

import torch

from baselines.dpo import DPOConfig, RejectionConfig
from baselines.sft import SFTConfig
from data.benchmark_data import SOURCES
from data.endpoint import EndpointConfig, check_url
from data.hub import parse_source
from data.passages import FIELDS
from data.sources import WIKI_QA, parse_mix
from data.wiki_qa import QAConfig
from data.world import WorldConfig
from data.world import check as check_world
from dreamcatcher import AnnotateConfig
from evaluation.benchmarks import BenchmarkConfig
from evaluation.honesty import EvaluateConfig
from lm.errors import UserError
from lm.sampling import Sampling
from ppo import PPOConfig
from probe import ProbeConfig
from reward import RewardConfig

LAB = "lab"
NUMBERS = ("probe.l2", "world.exposures", "world.shares")  # settings that are several numbers, commas between
COMMENTED_FIELD = re.compile(r"((?:^    # .*\n)*)^    (\w+): [^#\n]*(?:# (.+))?$", re.MULTILINE)


@dataclass
class Settings:
    model: str = LAB  # the language model: a Hugging Face folder or name; "lab" pretrains the built-in one
    # sentence embedder for s_s2g and s_s2a; "base": the language model's own states (paper:
    # bge-large)
    embedder: str = "base"
    # facts-en, facts-zh, wiki-qa (see --qa.passages), a .jsonl or .csv file,
    # hf:NAME:CONFIG:SPLIT?field=column, several as NAME@WEIGHT,...; or lab
    questions: str = LAB
    # general preference pairs (prompt, chosen, rejected) for the reward model: a file or
    # hf:NAME[:SPLIT]; the lab has its own
    general: str = ""
    # files of further questions to evaluate on, apart by spaces: --eval-questions A.jsonl B.csv
    eval_questions: tuple = ()
    seed: int = 0  # one number that all random draws depend on
    seeds: int = 3  # seeds of --stage ablate, from `seed` on
    device: str = "cpu"  # cpu, cuda or cuda:N
    dtype: str = "float32"  # of matrix products: float32 or bfloat16; weights stay float32
    algorithm: str = "ppo"  # what trains the policy: ppo, dpo, rejection or sft (paper: ppo)
    world: WorldConfig = field(default_factory=WorldConfig)
    qa: QAConfig = field(default_factory=QAConfig)
    endpoint: EndpointConfig = field(default_factory=EndpointConfig)
    sampling: Sampling = field(default_factory=Sampling)
    probe: ProbeConfig = field(default_factory=ProbeConfig)
    annotate: AnnotateConfig = field(default_factory=AnnotateConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    sft: SFTConfig = field(default_factory=SFTConfig)
    ppo: PPOConfig = field(default_factory=PPOConfig)
    dpo: DPOConfig = field(default_factory=DPOConfig)
    rejection: RejectionConfig = field(default_factory=RejectionConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    benchmarks: BenchmarkConfig = field(default_factory=BenchmarkConfig)

    @property
    def torch_dtype(self):
        return getattr(torch, self.dtype)


PRESETS = {
    # The built-in lab: a model of about a million parameters, minutes on two cores.
    "lab": {
        "sampling.max_new_tokens": 12,
        "sampling.rows": 1024,
        "probe.k": 10,
        "probe.band": 1,
        "probe.rows": 256,
        "annotate.refusal": "random",
        "reward.reads": "output",
        "reward.frozen": 1.0,
        "reward.head_lr": 1e-2,
        "reward.epochs": 2,
        "reward.batch": 32,
        "reward.micro_rows": 128,
        "reward.warmup": 0.05,
        "sft.steps": 65,
        "sft.lr": 1e-3,
        "sft.frozen": 0.75,
        "sft.batch": 64,
        "sft.micro_rows": 128,
        "dpo.lr": 3e-4,
        "dpo.steps": 60,
        "dpo.batch": 128,
        "dpo.micro_rows": 256,
        "rejection.lr": 3e-4,
        "rejection.batch": 64,
        "rejection.micro_rows": 128,
        "ppo.lr": 5e-4,
        "ppo.frozen": 0.75,
        "ppo.steps": 60,
        "ppo.batch": 32,
        "ppo.samples": 8,
        "ppo.baseline": "group",
        "ppo.kl": "loss",
        "ppo.kl_coef": 0.02,
        "ppo.guidance_share": 0.0,
        "ppo.micro_rows": 256,
        "ppo.validate_every": 5,
    },
    # SmolLM2-135M-Instruct (--model, --embedder all-MiniLM-L6-v2) on two cores.
    "smollm2": {
        "model": "HuggingFaceTB/SmolLM2-135M-Instruct",
        "embedder": "sentence-transformers/all-MiniLM-L6-v2",
        "questions": "facts-en",
        "dtype": "bfloat16",
        "sampling.max_new_tokens": 24,
        "sampling.temperature": 0.6,
        "annotate.uncertain_temperature": 0.6,
        "annotate.hallucination": "highest",
        "annotate.s_p_weight": 0.5,
        "annotate.known_share": 0.5,
        "annotate.unknown_share": 0.35,
        "reward.lr": 6e-5,
        "reward.epochs": 2,
        "reward.batch": 16,
        "reward.warmup": 0.05,
        "reward.micro_rows": 24,
        "dpo.lr": 1e-5,
        "dpo.steps": 40,
        "dpo.batch": 32,
        "dpo.micro_rows": 24,
        "rejection.lr": 1e-5,
        "rejection.samples": 4,
        "rejection.batch": 16,
        "sft.steps": 140,
        "sft.lr": 1.5e-4,
        "sft.frozen": 0.5,
        "sft.first_weight": 10.0,
        "ppo.lr": 5e-6,
        "ppo.value_lr": 1e-3,
        "ppo.steps": 40,
        "ppo.batch": 32,
        "ppo.epochs": 1,
        "ppo.micro_rows": 16,
        "ppo.kl_coef": 0.3,
        "ppo.guidance_tokens": 4,
        "ppo.validate_every": 10,
        "ppo.save_every": 20,
    },
    # Qwen2.5-0.5B-Instruct on one GPU.
    "qwen2.5-0.5b": {
        "model": "Qwen/Qwen2.5-0.5B-Instruct",
        "embedder": "sentence-transformers/all-MiniLM-L6-v2",
        "questions": "facts-en",
        "device": "cuda",
        "dtype": "bfloat16",
        "sampling.max_new_tokens": 32,
        "sampling.rows": 512,
        "reward.lr": 1e-5,
        "sft.steps": 20,
        "ppo.lr": 3e-6,
        "ppo.value_lr": 1e-3,
        "ppo.kl_coef": 0.01,
        "ppo.batch": 64,
    },
    # What A.4 gives: lr 5e-6 / 1e-6, AdamW (0.9, 0.99) eps 1e-5 (optim.py), 1 epoch, 1% warm-up,
    # batch 64 (7B), KL 0; and probes and
    # labels as in section 3. The rest is not given.
    "paper-7b": {
        "model": "meta-llama/Llama-2-7b-chat-hf",
        "embedder": "BAAI/bge-large-en-v1.5",
        "questions": "facts-en",
        "device": "cuda",
        "dtype": "bfloat16",
        "probe.rule": "percentile",
        "probe.band": 1,
        "annotate.rule": "median",
        "reward.lr": 5e-6,
        "reward.warmup": 0.01,
        "reward.epochs": 1,
        "reward.batch": 64,
        "ppo.lr": 1e-6,
        "ppo.batch": 64,
        "ppo.kl_coef": 0.0,
    },
}
# The lab with the paper's PPO and reward model (section 4): one sample a prompt, a critic, guidance
# and a reward model that reads the text alone, after a warm-up that the paper does not mention.
PRESETS["paper-ppo"] = {
    **PRESETS["lab"],
    "annotate.refusal": "typical",
    "reward.reads": "text",
    "reward.frozen": 0.0,
    "reward.head_lr": 0.0,
    "reward.lr": 3e-4,
    "reward.epochs": 3,
    "sft.steps": 60,
    "sft.lr": 3e-4,
    "sft.frozen": 0.0,
    "ppo.lr": 1e-4,
    "ppo.value_lr": 3e-3,
    "ppo.frozen": 0.0,
    "ppo.steps": 60,
    "ppo.batch": 128,
    "ppo.samples": 1,
    "ppo.baseline": "value",
    "ppo.kl": "reward",
    "ppo.kl_coef": 0.1,
    "ppo.guidance_share": 0.5,
    "ppo.guidance_tokens": 2,
    "ppo.micro_rows": 128,
}
PRESETS["paper-13b"] = {
    **PRESETS["paper-7b"],
    "model": "meta-llama/Llama-2-13b-chat-hf",
    "reward.batch": 16,
    "ppo.batch": 32,
}
CHOICES = {
    "reward.reads": ("text", "p_known", "output"),
    "ppo.baseline": ("value", "group", "both"),
    "ppo.kl": ("reward", "loss"),
    "dtype": ("float32", "bfloat16"),
    "algorithm": ("ppo", "dpo", "rejection", "sft"),
    "ppo.critic": ("head", "reward"),
    "ppo.guidance_anneal": ("share", "length", "both"),
    "probe.rule": ("gold", "percentile"),
    "annotate.rule": ("gold", "median", "percentile", "threshold"),
    "annotate.normalise": ("min-max", "z-score", "rank"),
    "annotate.hallucination": ("lowest", "highest"),
    "annotate.refusal": ("typical", "random"),
}

RANGES = {  # what is expected: (whether a value is that, the settings of which it is)
    "at least 1, at most 1e9": (
        lambda value: 1 <= value <= 1e9,
        """
        sampling.max_new_tokens sampling.rows probe.k probe.repeats probe.band probe.rows
        reward.epochs reward.batch reward.micro_rows reward.max_tokens reward.save_every sft.batch sft.micro_rows
        ppo.steps ppo.batch ppo.samples ppo.epochs ppo.guidance_tokens ppo.micro_rows ppo.validate_every ppo.save_every
        dpo.steps dpo.batch dpo.micro_rows
        rejection.samples rejection.rounds rejection.epochs rejection.batch rejection.micro_rows
        evaluate.resamples qa.count qa.scan qa.max_tokens qa.min_tokens qa.max_new_tokens qa.rows endpoint.budget
        world.stranger_profiles world.stranger_questions world.skill_examples
        world.hidden world.layers world.heads world.mlp world.batch""",
    ),
    "at least 2, at most 1e9": (
        lambda value: 2 <= value <= 1e9,
        "world.train_people world.valid_people world.test_people",
    ),
    "at least 0, at most 1e9": (
        lambda value: 0 <= value <= 1e9,
        """
        sampling.top_k annotate.uncertain_k reward.head_lr reward.beta reward.general sft.steps
        ppo.value_coef ppo.value_clip ppo.missing_end ppo.kl_coef ppo.kl_target ppo.stop_kl rejection.missing_end
        world.value_power evaluate.samples_shown benchmarks.limit qa.temperature endpoint.retries""",
    ),
    "more than 0, 1e-9 to 1e9": (
        lambda value: 1e-9 <= value <= 1e9,
        """
        sampling.temperature sampling.top_p annotate.uncertain_temperature
        reward.lr sft.lr sft.first_weight ppo.lr ppo.value_lr ppo.clip dpo.lr dpo.beta rejection.lr
        reward.max_grad_norm sft.max_grad_norm ppo.max_grad_norm dpo.max_grad_norm rejection.max_grad_norm
        world.muon_lr world.adam_lr endpoint.rate endpoint.timeout""",
    ),
    "a share between 0 and 1": (
        lambda value: 0 <= value <= 1,
        """
        sampling.top_p annotate.s_p_weight sft.frozen reward.frozen ppo.frozen
        ppo.guidance_share ppo.guidance_until ppo.gamma
        ppo.lam qa.choice_share
        reward.warmup sft.warmup ppo.warmup dpo.warmup rejection.warmup
        world.instructed_share world.people_refusals world.stranger_refusals world.warmup
        world.long_answers world.alias_share""",
    ),
    "a share between 0 and 1, both left out": (lambda value: 0 < value < 1, "probe.valid probe.test reward.held_out"),
    "a percentile between 0 and 100": (
        lambda value: 0 <= value <= 100,
        "probe.upper probe.lower annotate.upper annotate.lower",
    ),
}


@functools.cache
def catalogue(cls=Settings, prefix=""):
    """{"section.field": (type, default, help)} of every setting; the help is the comment behind the
    field, or the lines of comment above it.
    """
    found, comments = {}, {}
    for above, name, behind in COMMENTED_FIELD.findall(inspect.getsource(cls)):
        comments[name] = behind or " ".join(above.replace("#", "").split())
    for item in fields(cls):
        if is_dataclass(item.type):
            found.update(catalogue(item.type, f"{item.name}."))
        else:
            found[prefix + item.name] = (item.type, item.default, comments.get(item.name, ""))
    return found


def nearest(word, words):
    """ " (did you mean ...?)" with the closest of `words`, or nothing."""
    close = difflib.get_close_matches(word, words, 1, 0.5)
    return f" (did you mean {close[0]}?)" if close else ""


def parse_value(name, kind, text):
    """`text` as a value of type `kind`. Raises UserError that names the setting."""
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        if kind is tuple:
            parts = [part.strip() for part in text.split(",") if part.strip()]
            return tuple(map(float, parts)) if name in NUMBERS else tuple(parts)
        value = kind(text)
    except (KeyError, ValueError):
        wanted = {
            bool: "true or false",
            int: "a whole number",
            float: "a number",
            tuple: "numbers with commas between",
        }[kind]
        raise UserError(f"--{name}: expected {wanted}, not {text!r}") from None
    if kind is float and not abs(value) < float("inf"):
        raise UserError(f"--{name}: expected a finite number, not {text!r}")
    if kind is str and not value.strip():
        raise UserError(f"--{name}: expected a value that is not empty")
    return value


def build(preset, given):
    """Settings of a preset with {"section.field": text, or a tuple of file names} from the command
    line on top. Raises UserError.
    """
    if preset not in PRESETS:
        raise UserError(
            f"--preset: no preset called {preset!r}{nearest(preset, PRESETS)}; there are {', '.join(PRESETS)}"
        )
    known = catalogue()
    settings = Settings()
    values = dict(PRESETS[preset])
    for name, text in given.items():
        if name not in known:
            raise UserError(f"--{name}: no such setting{nearest(name, known)}; --help lists them")
        values[name] = text if isinstance(text, tuple) else parse_value(name, known[name][0], text)
        if name in CHOICES and values[name] not in CHOICES[name]:
            raise UserError(
                f"--{name}: expected one of {', '.join(CHOICES[name])}, not {text!r}{nearest(text, CHOICES[name])}"
            )
    for name, value in values.items():
        *section, last = name.split(".")
        setattr(getattr(settings, section[0]) if section else settings, last, value)
    check(settings)
    return settings


def check(settings):
    """Raise UserError where a number lies outside what makes sense."""
    flat = flatten(settings)
    for expected, (allowed, names) in RANGES.items():
        for name in names.split():
            if not allowed(flat[name]):
                raise UserError(f"--{name}: expected {expected}, not {flat[name]}")
    if settings.probe.valid + settings.probe.test >= 0.9:
        raise UserError("--probe.valid and --probe.test: together they leave too few questions to train on")
    for section in ("probe", "annotate", "evaluate"):
        low, high = flat[f"{section}.unknown_share"], flat[f"{section}.known_share"]
        if not 0 <= low < high <= 1:
            raise UserError(
                f"--{section}.known_share: expected more than --{section}.unknown_share ({low}) and at most 1, not"
                f" {high}"
            )
    for section in ("probe", "annotate"):
        if flat[f"{section}.lower"] > flat[f"{section}.upper"]:
            raise UserError(
                f"--{section}.lower: expected at most --{section}.upper ({flat[f'{section}.upper']}), not"
                f" {flat[f'{section}.lower']}"
            )
    if not 0 <= settings.seed < 2**63:
        raise UserError(f"--seed: expected 0 or more, and less than 2^63, not {settings.seed}")
    if not settings.probe.l2 or not all(1e-3 <= strength <= 1e9 for strength in settings.probe.l2):
        raise UserError("--probe.l2: expected numbers from 0.001 to 1e9 with commas between, such as 1,10,100")
    unknown = set(settings.annotate.scores) - {"s_s2g", "s_p", "s_o2a", "s_s2a"}
    if unknown or not settings.annotate.scores or len(set(settings.annotate.scores)) < len(settings.annotate.scores):
        raise UserError(
            "--annotate.scores: expected some of s_s2g,s_p,s_o2a,s_s2a, not"
            f" {','.join(map(str, settings.annotate.scores))!r}"
        )
    if settings.ppo.baseline != "value" and settings.ppo.samples < 2:
        raise UserError(
            f"--ppo.baseline {settings.ppo.baseline}: expected --ppo.samples of at least 2 beside it, to compare"
        )
    if settings.ppo.kl_target and not settings.ppo.kl_coef:
        raise UserError("--ppo.kl_target: expected --ppo.kl_coef above 0 beside it, where it starts from")
    if not 1 <= settings.seeds <= 10:
        raise UserError(f"--seeds: expected 1 to 10, not {settings.seeds}")
    if settings.general and settings.model == LAB:
        raise UserError("--general: the lab has its own general preference pairs; this is for a real model")
    if settings.algorithm == "sft" and not settings.sft.steps:
        raise UserError("--algorithm sft: expected --sft.steps above 0 beside it")
    if settings.model == LAB:
        check_world(settings.world)
    check_questions(settings)
    for name in settings.benchmarks.names:
        if name not in SOURCES:
            raise UserError(
                f"--benchmarks.names: expected some of {','.join(SOURCES)}, not {name!r}{nearest(name, SOURCES)}"
            )
    if (settings.model == LAB) != (settings.questions == LAB):
        raise UserError(
            "--model lab and --questions lab go together: give both a real model and real questions, or neither"
        )


def check_questions(settings):
    """Raise UserError where the sources of questions, or what wiki-QA needs, do not fit
    together.
    """
    sources, config = [name for name, _ in parse_mix(settings.questions)], settings.qa
    if config.min_tokens > config.max_tokens:
        raise UserError(
            f"--qa.min_tokens: expected at most --qa.max_tokens ({config.max_tokens}), not {config.min_tokens}"
        )
    if LAB in sources and len(sources) > 1:
        raise UserError(
            f"--questions {settings.questions}: the lab's questions are about its own world and mix with no others"
        )
    if WIKI_QA in sources and not config.passages:
        raise UserError(
            "--questions wiki-qa: expected --qa.passages with it: hf:NAME:CONFIG:SPLIT, a .jsonl file or a folder of"
            " .txt files"
        )
    if config.passages and WIKI_QA not in sources:
        raise UserError(f"--qa.passages: they are read for --questions wiki-qa, not for {settings.questions}")
    for passages in config.passages:
        if passages.startswith("hf:"):
            parse_source(passages, FIELDS)
    if config.endpoint:
        check_url(config.endpoint)
        if not config.model:
            raise UserError("--qa.endpoint: expected --qa.model NAME with it, the model's name there")


def flatten(settings):
    """{"section.field": value} of everything set."""
    flat = {}
    for item in fields(settings):
        value = getattr(settings, item.name)
        if is_dataclass(value):
            flat.update({f"{item.name}.{key}": v for key, v in dataclasses.asdict(value).items()})
        else:
            flat[item.name] = value
    return flat
