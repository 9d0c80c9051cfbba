"""Command lines for every command of `leval-harness`, out of what its options say they take.

A new command or option is generated without a line here; only what a command reads from disk is
said, in `FILES`.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from fuzz_inputs import JUNK, encoded, files
from hypothesis import strategies as st

from leval_border.settings import field_names
from leval_sweep.config import ModelConfig
from leval_tasks.metadata import FAMILIES

TESTS = Path(__file__).parents[1]
CONFIGS = TESTS.parent / "harness_configs"
GOLDEN = TESTS / "golden"

LAST = {
    "sweep": ("--dry-run",),
    "finetune": ("--steps=1", "--sequence-length=32", "--held-out=1"),
    "posgen train": ("--epochs=1", "--train-sequences=8", "--stack=1", "--jobs=1"),
}
"""Options that keep a command from running for hours; of two the last one counts."""
NEVER = {"--help", "--version", "--ray-address", "--plot", "--figure", "--position-figure"}

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
TEXTS = {"rope": ROPES, "against": ROPES, "rope_text": ROPES}
NUMBERS = (
    *("-1", "0", "1", "2", "7", "64", "4096", "1.5", "1e308", "nan", "inf", "x", "", "１８"),
    *("9" * 400, "0x10", "1_0"),
)
# No argument of a process can hold a zero byte.
WORDS = tuple(text for text in JUNK if type(text) is str and "\x00" not in text)
# lm-eval's own arguments, which click does not know.
LM_EVAL = (
    *("run", "--model", "hf", "--model_args", "pretrained=model", "--tasks", "leval_closed_gsm"),
    *("--metadata", '{"data_dir": "data", "context_length": 64}', "--limit", "1"),
    *("--gen_kwargs", "max_gen_toks=2", "--rope", "yarn:factor=2"),
)
INSTEAD = (
    *("ls", "validate", "hf-long", "nope", "leval_nope", "pretrained=nope", "pretrained=model,x=1"),
    *('{"pretrained": "model"}', "--rope-precision", "half", "--context-length", *ROPES),
    *('{"num_dosc": 1}', "--output_path", *NUMBERS, *WORDS),
)


@dataclass(frozen=True)
class Input:
    """A command line, and the file that has another content while it runs."""

    line: tuple[str, ...]
    changed: Path | None
    content: bytes

    def __repr__(self) -> str:
        shown = [part if len(part) < 200 else part[:200] + "..." for part in self.line]
        return f"{shown} with {self.changed}: {self.content[:1500]!r}"


@dataclass(frozen=True)
class World:
    """Files that commands can read: a copy for every input, one of them changed."""

    root: Path

    def fill(self) -> None:
        """Lay out one of each kind of thing that a command reads."""
        shutil.copytree(GOLDEN / "results", self.root / "results")
        shutil.copytree(GOLDEN / "predictions", self.root / "predictions")
        shutil.copytree(GOLDEN / "sample", self.root / "data")
        (self.root / "configs").mkdir()
        for folder in ("sweeps", "train"):
            for source in sorted((CONFIGS / folder).glob("*.yaml")):
                (self.root / "configs" / source.name).write_bytes(source.read_bytes())

    def kinds(self) -> dict[str, list[Path]]:
        """Changeable files by what reads them."""
        below = lambda name, *ends: [  # noqa: E731
            each for end in ends for each in sorted((self.root / name).rglob(f"*{end}"))
        ]
        return {
            "results": below("results", ".json", ".jsonl", ".csv"),
            "predictions": below("predictions", ".jsonl"),
            "model": [self.root / "model/config.json"],
            "data": below("data", ".jsonl"),
            "config": [p for p in below("configs", ".yaml") if p.name in SWEEPS],
        }


SWEEPS = ("quickstart.yaml", "all_methods.yaml", "ruler.yaml", "perplexity_curve.yaml")
# argument or option of a command -> kind of thing on disk that it names
FILES = {
    "results": "results", "folders": "results", "predictions": "predictions", "model": "model",
    "checkpoint": "model", "config": "config", "data_dir": "data", "sources": "data",
}  # fmt: skip


def _named(kind: str, changed: Path | None, root: Path) -> str:
    """How a command is told of a thing: the changed file, or the folder that it stands in."""
    if kind == "results":
        parts = changed.relative_to(root).parts[:2] if changed else ("results", "sweep")
        return "/".join(parts)
    if kind in ("predictions", "config"):
        default = {"predictions": "predictions/gsm.jsonl", "config": "quickstart"}[kind]
        return str(changed.relative_to(root)) if changed else default
    return kind


@st.composite
def command_lines(
    draw: st.DrawFn, path: Sequence[str], command: click.Command, world: World
) -> Input:
    """One input for a command."""
    kinds = world.kinds()
    read = [FILES[p.name] for p in command.params if p.name in FILES and kinds.get(FILES[p.name])]
    changed, content, hit = None, b"", ""
    if read and draw(st.integers(0, 3)):
        hit = draw(st.sampled_from(read))
        changed = draw(st.sampled_from(kinds[hit]))
        content = draw(files(changed))
    line = list(path)
    for parameter in command.params:
        named = parameter.name in FILES
        wanted = parameter.required or (named and FILES[parameter.name] == hit)
        skipped = draw(st.integers(0, 30)) == 0 or not (wanted or draw(st.integers(0, 5)) == 0)
        if skipped or parameter.opts[0] in NEVER:
            continue
        if isinstance(parameter, click.Option) and (parameter.is_flag or parameter.count):
            line.append(draw(st.sampled_from([*parameter.opts, *parameter.secondary_opts])))
            continue
        if named and draw(st.integers(0, 12)):
            kind = FILES[parameter.name]
            value = _named(kind, changed if kind == hit else None, world.root)
        else:
            value = draw(_values(parameter))
        if not isinstance(parameter, click.Option):
            line.append(value)
        elif parameter.opts[0].startswith("--"):
            line.append(f"{parameter.opts[0]}={value}")
        else:
            line += [parameter.opts[0], value]
    if path[0] == "lm-eval":
        for part in LM_EVAL:
            kept = (part,) * 8 + ("", draw(st.sampled_from(INSTEAD)))
            line += filter(None, [draw(st.sampled_from(kept))])
    return Input((*line, *LAST.get(" ".join(path), ())), changed, content)


def _values(parameter: click.Parameter) -> st.SearchStrategy[str]:
    """What may stand for an option, now and then something else."""
    kind: Any = parameter.type
    words = st.sampled_from(WORDS)
    if parameter.name in TEXTS:
        return st.sampled_from((*TEXTS[parameter.name], *WORDS))
    if parameter.name == "task":
        return st.sampled_from(("gsm", "leval_closed_gsm", "coursera", "sfiction", "codeu", *WORDS))
    if parameter.name == "overrides":
        return st.tuples(st.sampled_from(OVERRIDDEN), st.sampled_from(JUNK)).map(
            lambda pair: f"{pair[0]}={encoded(pair[1])}"
        )
    if parameter.name == "pairs":
        return st.sampled_from(("yarn:rope", "rope:rope", "x", ":", "a:b:c", *WORDS))
    if isinstance(kind, click.Choice):
        return st.sampled_from((*kind.choices, *kind.choices, *WORDS))
    if isinstance(kind, click.types.IntParamType | click.types.FloatParamType | click.IntRange):
        return st.sampled_from((*NUMBERS, *WORDS))
    if isinstance(kind, click.Path) and parameter.name == "out":
        return st.sampled_from(("new", "new/deeper", "results", "model/config.json", *WORDS))
    return st.one_of(words, st.sampled_from(NUMBERS))


OVERRIDDEN = (
    *(f"metadata.{name}" for family in FAMILIES for name in field_names(family)),
    *(f"models.SmolLM2-135M.{name}" for name in field_names(ModelConfig)),
    *(
        "metadata.num_docs",
        "metadata.stride",
        "metadata.nope",
        "methods.yarn.factor",
        "methods.yarn",
    ),
    *("methods", "tasks", "tasks.0.metadata", "tasks.0.tasks", "context_lengths", "seed", "jobs"),
    *("models.SmolLM2-135M.path", "models", "models.SmolLM2-135M.args.token", "timeout", "name"),
    *("limit", "baseline", "include", "tasks.9.x", "..", "", "tasks.0.task_gen_kwargs.leval_gms"),
)
