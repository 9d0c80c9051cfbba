"""Command lines for every command of `leval-harness`, out of what its options say they take.

A new command or option is generated without a line here; only what a command reads from disk is
said, in `fuzz_world`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from fuzz_inputs import JUNK, documents, encoded, files
from fuzz_world import FILES, PLACES, TRAIN, TRAININGS, TUNE, World
from hypothesis import strategies as st

from leval_harness.sweep.config import ModelConfig
from leval_tasks.metadata import FAMILIES, FRAMES, SUBTASKS
from leval_tasks.posgen.encodings import ENCODINGS
from resonance_vllm.settings import field_names

LAST = {"sweep": ("--dry-run",), "finetune": TUNE, "posgen train": (*TRAIN, "--minutes=0.1")}
"""Options that keep a command from running for hours; of two the last one counts."""
NEVER = {"--help", "--version", "--ray-address", "--plot", "--figure", "--position-figure",
         "--pairs-figure"}  # fmt: skip

ROPES = (
    *("default", "yarn:factor=2", "resonance_yarn:factor=4,beta_fast=16", "linear:factor=2"),
    *("dynamic:factor=2", "ntk:factor=4", "resonance", "yarn:factor=1e308", "yarn:factor=NaN"),
    *('{"rope_type": "yarn", "factor": 2}', "yarn:factor=-1", "yarn:", ":", "nope", "yarn:x=1"),
    *('{"rope_type": ["yarn"]}', "{" * 50, "yarn:factor=[[1]]", "longrope:short_factor=[1]"),
    '{"rope_type": "yarn", "factor": ' + "[" * 3000 + "]" * 3000 + "}",
    "yarn:factor=" + "9" * 400,
    "yarn:factor=2,original_max_position_embeddings=1e9",
    "resonance_yarn:factor=2,original_max_position_embeddings=0",
)
NUMBERS = (
    *("-1", "0", "1", "2", "7", "64", "4096", "1.5", "1e308", "nan", "inf", "x", "", "１８"),
    *("9" * 400, "0x10", "1_0"),
)


def _sayable(text: object) -> bool:
    """Whether an argument of a process can hold it: no zero byte, no half of a character."""
    return type(text) is str and "\x00" not in text and "\ud83d" not in text


WORDS = tuple(text for text in JUNK if _sayable(text))
TASKS = ("leval_closed_gsm", "leval_closed_quality", "leval_gsm", "ppl_pg19",
         "effective_context_pg19", "posgen_recursive")  # fmt: skip
PAIRS = ("yarn:rope", "rope:rope", "rope:yarn", "none:yarn", "x", ":", "rope:", "a:b:c")
TEXTS: dict[str, tuple[str, ...]] = {
    "rope": ROPES, "against": ROPES, "rope_text": ROPES,
    "task": ("gsm", "coursera", "sfiction", "codeu", *TASKS), "pairs": PAIRS, "only": PAIRS,
    "compared": PAIRS, "encodings": (*ENCODINGS, *PAIRS), "subtask": SUBTASKS, "subtasks": SUBTASKS,
    "frame": FRAMES, "truncation": ("middle", "right", "left", "skip"),
    "baseline": ("rope", "yarn", "none", "RoPE"),
    "reference": ("tiny", "SmolLM2-135M", "nope"),
    "columns": ("seconds", "seconds,peak_memory", "nope", ",", "seconds,,seconds"),
    "device": ("cpu", "cuda", "cuda:99", "meta", "auto"), "preset": ("quick", "paper", "cpu"),
    "relationship": ("first_party", "third_party", "nope"), "schedule": ("linear", "cosine"),
    "models": ("SmolLM2-135M=org/model", "=", "x=y", "a=b/c/d"), "reading": ("text", "code"),
    "benchmarks": ("leval_closed_gsm=org/set:gsm", "=:", "x=org/set", "ppl_pg19=a/b:c:d"),
    "shard": ("1/2", "2/2", "0/1", "3/2", "a/b", "1/2/3", "1/1e3", "１/２"),
    "source_url": ("https://example.org/x", "ftp://", "javascript:x", "https://u:p@example.org"),
    "wavelengths": ("integer", "coprime", "prime_period", "rational"),
    "kind": ("decoder", "t5", "llama"),
    "out": ("new", "new/deeper", "results", "model/config.json", "model", "trained", "tuned"),
}  # fmt: skip
# lm-eval's own arguments, which click does not know.
METADATA = {
    "leval": {"data_dir": "data", "own_data": True, "context_length": 1024, "num_docs": 1},
    "texts": {"data_dir": "texts", "context_length": [32, 64], "num_docs": 1, "stride": 8},
}
LM_EVAL = ("run", "--model", "hf-long", "--model_args", "pretrained=model", "--limit", "1",
           "--gen_kwargs", "max_gen_toks=2", "--rope", "yarn:factor=2")  # fmt: skip
INSTEAD = (
    *("ls", "validate", "hf", "nope", "leval_nope", "pretrained=nope", "pretrained=model,x=1"),
    *('{"pretrained": "model"}', "--rope-precision", "half", "--context-length", *ROPES, *TASKS),
    *('{"num_dosc": 1}', "--output_path", *NUMBERS, *WORDS),
)


@dataclass(frozen=True)
class Input:
    """A command line, and the file that has another content while it runs."""

    line: tuple[str, ...]
    changed: Path | None
    content: bytes | str

    def __repr__(self) -> str:
        shown = [part if len(part) < 200 else part[:200] + "..." for part in self.line]
        return f"{shown} with {self.changed}: {self.content[:1500]!r}"


def seldom(n: int) -> st.SearchStrategy[bool]:
    """True once in `n`; ends of a range, which come more often, are the usual case."""
    return st.integers(0, n - 1).map(lambda at: at == n // 2)


@st.composite
def command_lines(
    draw: st.DrawFn, path: Sequence[str], command: click.Command, world: World
) -> Input:
    """One input for a command."""
    name, kinds = " ".join(path), world.kinds
    reads = {p.name: FILES[p.name] for p in command.params if p.name in FILES}
    if name == "upload":
        reads["folder"] = "results"
    begun = [kind for kind, line in TRAININGS.items() if line[: len(path)] == path]
    hits = [*reads.values(), *begun]
    if name == "lm-eval":
        hits = ["model", "data", "texts"]
    changed, content, hit = None, b"", ""
    if hits and draw(st.integers(0, 3)):
        hit = draw(st.sampled_from(hits))
        changed = draw(st.sampled_from(kinds[hit]))
        # Libraries read a checkpoint, and open what we would not.
        read_by_us = hit not in ("model", "trained", "tuned")
        places = [place for place in PLACES if read_by_us or place != "endless"]
        content = draw(st.sampled_from(places) if draw(seldom(10)) else files(changed))
    rare = draw(st.sampled_from((5, 60)))
    line = list(path)
    if hit in begun:
        line, reads = list(TRAININGS[hit]), {}
    for parameter in command.params:
        kind = reads.get(str(parameter.name), "")
        # The sample is nobody's published file.
        wanted = (kind and kind == hit) or parameter.required or parameter.name == "own_data"
        wanted = wanted and hit not in begun
        if (not wanted and not draw(seldom(rare))) or draw(seldom(6 * rare)):
            continue
        if parameter.opts[0] in NEVER:
            continue
        values = _values(parameter)
        if kind and not draw(seldom(2 * rare)):
            values = st.sampled_from(world.names(kind, changed if kind == hit else None))
        line += draw(_said(parameter, values))
    if name == "lm-eval":
        line += draw(_lm_eval(hit, rare))
    return Input((*line, *_last(name, line)), changed, content)


def _last(name: str, line: Sequence[str]) -> Sequence[str]:
    """What ends a command line, so that the command does its work and ends soon."""
    if name == "posgen evaluate" and not any(p.startswith(("--enc", "--limit")) for p in line):
        # A folder of runs is tested under an encoding, a checkpoint on some of 1000 sequences.
        return ("--encoding=yarn",) if "trained" in line else ("--limit=2",)
    return LAST.get(name, ())


@st.composite
def _said(draw: st.DrawFn, parameter: click.Parameter, values: st.SearchStrategy[str]) -> list[str]:
    """A parameter with its value or values, as they stand on a command line."""
    if not isinstance(parameter, click.Option):
        return [draw(values)]
    if parameter.is_flag or parameter.count:
        return [draw(st.sampled_from([*parameter.opts, *parameter.secondary_opts]))]
    said: list[str] = []
    for _ in range(draw(st.integers(1, 2)) if parameter.multiple else 1):
        given = [draw(values) for _ in range(parameter.nargs)]
        long = parameter.opts[0].startswith("--") and len(given) == 1
        said += [f"{parameter.opts[0]}={given[0]}"] if long else [parameter.opts[0], *given]
    return said


@st.composite
def _lm_eval(draw: st.DrawFn, hit: str, rare: int) -> list[str]:
    """What follows `lm-eval`: a run, of which parts are others or missing."""
    tasks = {"data": TASKS[:3], "texts": TASKS[3:5]}.get(hit, TASKS)
    task = draw(st.sampled_from(tasks))
    metadata: Any = METADATA["leval" if task.startswith("leval") else "texts"]
    if draw(seldom(rare // 2)):
        metadata = draw(documents(metadata))
    line: list[str] = []
    for part in (*LM_EVAL, "--tasks", task, "--metadata", encoded(metadata)):
        kept = (part,) * rare + ("", draw(st.sampled_from(INSTEAD)))
        line += filter(None, [draw(st.sampled_from(kept))])
    return line


def _values(parameter: click.Parameter) -> st.SearchStrategy[str]:
    """What may stand for an option, now and then something else."""
    kind: Any = parameter.type
    words = st.sampled_from(WORDS)
    if parameter.name == "overrides":
        return st.tuples(st.sampled_from(OVERRIDDEN), st.sampled_from(JUNK)).map(
            lambda pair: f"{pair[0]}={encoded(pair[1])}"
        )
    meant = TEXTS.get(str(parameter.name), ())
    if isinstance(kind, click.Choice):
        meant = tuple(kind.choices)
    if isinstance(kind, click.types.IntParamType | click.types.FloatParamType | click.IntRange):
        meant = NUMBERS
    return st.one_of(st.sampled_from(meant or NUMBERS), st.sampled_from(meant or WORDS), words)


OVERRIDDEN = (
    *(f"metadata.{name}" for family in FAMILIES for name in field_names(family)),
    *(f"models.SmolLM2-135M.{name}" for name in field_names(ModelConfig)),
    *(
        "metadata.num_docs",
        "metadata.stride",
        "metadata.nope",
        "gen_kwargs.max_gen_toks",
        "gen_kwargs.until",
        "gen_kwargs.temperature",
        "tasks.1.limit",
        "tasks.1.num_fewshot",
        "models.SmolLM2-135M.args.trust_remote_code",
        "models.SmolLM2-135M.resources.num_cpus",
        "methods.yarn.factor",
        "methods.yarn",
    ),
    *("methods", "tasks", "tasks.0.metadata", "tasks.0.tasks", "context_lengths", "seed", "jobs"),
    *("models.SmolLM2-135M.path", "models", "models.SmolLM2-135M.args.token", "timeout", "name"),
    *("limit", "baseline", "include", "tasks.9.x", "..", "", "tasks.0.task_gen_kwargs.leval_gms"),
)
