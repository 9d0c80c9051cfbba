"""The recipes of CONTRIBUTING.md, followed in a copy of the project through its command line."""

import itertools
import json
import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HEAD = re.compile(r"(?:# |<!-- )(?P<path>\S+?)(?:, below: (?P<line>.*?))?(?: -->)?\n")
TABLES = re.compile(r"(?:\|.*\n)+\n(?:\|.*\n)+")
PROGRAMS = {"leval-harness": ["-m", "leval_harness"], "pytest": ["-m", "pytest", "-q"]}
# Features from the middle on are slower by the factor 4: base 10,000, 8 dimensions.
HALVED = [1.0, 0.1, 0.01 / 4, 0.001 / 4]
RESONANT = [2 * math.pi / round(2 * math.pi / frequency) for frequency in HALVED]
LLAMA = """
import json
from resonance_vllm import hf
from transformers import LlamaConfig, LlamaForCausalLM
hf.register()
rope = {"rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
sizes = dict(vocab_size=9, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
for name in ("halved", "resonance_halved"):
    config = LlamaConfig(**sizes, rope_parameters={"rope_type": name, **rope})
    model = LlamaForCausalLM(config)
    (report,) = hf.apply_rope(model)
    assert model(model.dummy_inputs["input_ids"] % 9).logits.isfinite().all()
    print(json.dumps(report.inv_freq))
"""
VLLM = """
import json
from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
from resonance_vllm.vllm import register
register()
import torch
from vllm.model_executor.layers.rotary_embedding import get_rope
rope = {"rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
with set_current_vllm_config(VllmConfig(device_config=DeviceConfig(device="cpu"))):
    for name in ("halved", "resonance_halved"):
        settings = {"rope_type": name, **rope}
        built = get_rope(8, max_position=64, rope_parameters=settings, dtype=torch.float32)
        assert built.cos_sin_cache.shape == (256, 8)
        print(json.dumps(built.cos_sin_cache[1, :4].tolist()))
"""


@dataclass
class Recipe:
    """What stands below a heading of CONTRIBUTING.md."""

    new: dict[str, str] = field(default_factory=dict)
    lines: list[tuple[str, str, str]] = field(default_factory=list)  # path, line above, lines
    data: dict[str, str] = field(default_factory=dict)  # file below DATA -> content
    commands: list[str] = field(default_factory=list)


def recipe_of(title: str) -> Recipe:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    _, section = text.split(f"\n### {title}\n")
    recipe = Recipe()
    for language, block in BLOCK.findall(section.split("\n### ")[0]):
        head = HEAD.match(block)
        if language == "sh":
            recipe.commands += block.replace("\\\n", "").splitlines()
        elif language == "json":
            name, _, content = block.removeprefix("// DATA/").partition("\n")
            recipe.data[name] = content
        elif head["line"]:
            recipe.lines.append((head["path"], head["line"], block[head.end() :]))
        else:
            recipe.new[head["path"]] = block[head.end() :]
    return recipe


class Copy:
    """A copy of the project's tracked files in which a recipe is followed."""

    def __init__(self, folder: Path, title: str) -> None:
        self.root = folder / "project"
        self.recipe = recipe_of(title)
        self.places = {name: folder / name.lower() for name in ("MODEL", "DATA", "OUT")}
        listing = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
        tracked = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True)
        for name in filter(None, tracked.stdout.split("\0")):
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_bytes((ROOT / name).read_bytes())

    def follow(self, *by_hand: str) -> None:
        """Make the changes of the recipe; `by_hand` names files that its text alone speaks of."""
        for path, content in self.recipe.new.items():
            assert not (self.root / path).exists()
            (self.root / path).write_text(content, encoding="utf-8")
        for path, above, content in self.recipe.lines:
            before = (self.root / path).read_text(encoding="utf-8")
            assert before.count(f"\n{above}\n") == 1, f"{path} has no line {above}"
            blank = "\n" if f"\n{above}\n\n" in before else ""
            after = before.replace(f"\n{above}\n{blank}", f"\n{above}\n{blank}{content}")
            (self.root / path).write_text(after, encoding="utf-8")
        touched = {*self.recipe.new, *(path for path, _, _ in self.recipe.lines), *by_hand}
        tables = ("pyproject.toml", "leval_harness/backends/registry.py")
        declared = [lines for path, _, lines in self.recipe.lines if path in tables]
        assert sum(lines.count("\n") for lines in declared) <= 1
        beside = {path for path in touched if path.endswith(".yaml") or path in tables}
        assert len(touched - beside) <= 3, touched
        assert len(beside) <= 1
        python = [path for path in self.recipe.new if path.endswith(".py")]
        self.run("-m", "ruff", "check", *python)
        self.run("-m", "ruff", "format", "--check", *python)

    def run(self, *arguments: str) -> str:
        """Standard output of a Python process that imports the copy."""
        environment = {**os.environ, "PYTHONPATH": str(self.root), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.root, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{arguments}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def harness(self, *arguments: object) -> str:
        """Standard output of our command, run from the copy."""
        return self.run("-m", "leval_harness", *map(str, arguments))

    def commands(self) -> list[str]:
        """What each command of the recipe prints; a test run must have run tests."""
        printed = []
        for command in self.recipe.commands:
            for name, place in self.places.items():
                command = re.sub(rf"\b{name}\b", str(place), command)
            program, *arguments = shlex.split(command)
            printed.append(self.run(*PROGRAMS[program], *arguments))
            assert program != "pytest" or re.search(r"\d+ passed", printed[-1])
        return printed


def write_lines(path: Path, *rows: dict[str, object]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[str], Copy]:
    """The project with nothing changed, and the recipe of a title."""
    return lambda title: Copy(tmp_path, title)


@pytest.fixture
def model(tmp_path: Path, save_llama: Callable[..., Path]) -> Path:
    """MODEL: random weights, a real tokenizer."""
    folder = save_llama(tmp_path / "model", vocab_size=1500, max_position_embeddings=2048)
    for file in (ROOT / "tests" / "golden" / "tokenizer").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.mark.long
def test_rope_method(copy, model):
    project = copy("A RoPE method")
    project.follow("docs/reference/rope.md")
    tables = project.run("-m", "leval_harness", "rope", "--list")
    docs = project.root / "docs" / "reference" / "rope.md"
    text = TABLES.sub(lambda _: tables, docs.read_text(encoding="utf-8"), count=1)
    docs.write_text(text, encoding="utf-8")
    _, plain, resonant, check = project.commands()
    assert "| `halved` | the slower half divided by `factor` |" in tables
    slowest = 10000 ** (-126 / 128)
    assert json.loads(plain)["inv_freq"][-1] == pytest.approx(slowest / 4, rel=1e-12)
    lengths = json.loads(resonant)["wavelengths"]
    assert lengths[-1] == round(2 * math.pi / slowest * 8)
    assert check.count("limit                    4096 tokens") == 2
    assert "1 … 0.0005, 4 features" in check  # 0.001 without the method
    built = [json.loads(line) for line in project.run("-c", LLAMA).splitlines()]
    assert built == [pytest.approx(HALVED), pytest.approx(RESONANT)]


@pytest.mark.vllm
@pytest.mark.long
def test_vllm_builds_the_new_rope_method(copy):
    project = copy("A RoPE method")
    project.follow("docs/reference/rope.md")
    built = [json.loads(line) for line in project.run("-c", VLLM).splitlines() if line[:1] == "["]
    expected = [[math.cos(f) for f in frequencies] for frequencies in (HALVED, RESONANT)]
    assert built == [pytest.approx(row, abs=1e-6) for row in expected]


@pytest.mark.slow
def test_closed_task(copy, model, tmp_path):
    project = copy("A closed-ended task")
    project.follow()
    lines = project.recipe.new.values(), (text for _, _, text in project.recipe.lines)
    assert sum(text.count("\n") for text in itertools.chain(*lines)) <= 10
    text = "The bridge was opened in 1894 and closed in 1931."
    questions = ["In which year was the bridge opened?", "In which year was it closed?"]
    record = {"input": text, "instructions": questions, "outputs": ["1894", "1931"]}
    write_lines(tmp_path / "data" / "years.jsonl", record | {"evaluation": "exam"})
    answers = tmp_path / "answers.jsonl"
    write_lines(answers, {"gt": "1894", "a_pred": "In 1894."}, {"gt": "1931", "a_pred": "1930"})
    score = json.loads(project.harness("score", "--task", "years", answers, "--json"))
    assert (score["task"], score["n"], score["exact_match"]) == ("years", 2, 50.0)
    arguments = ["--model", "hf", "--model_args", f"pretrained={model}", "--device", "cpu"]
    metadata = json.dumps({"data_dir": str(tmp_path / "data")})
    arguments += ["--metadata", metadata, "--gen_kwargs", "max_gen_toks=4", "--log_samples"]
    arguments += ["--include_path", project.root / "leval_tasks" / "closed" / "tasks"]
    arguments += ["--tasks", "leval_closed_years", "--output_path", tmp_path / "out"]
    assert "|Years" in project.harness("lm-eval", "run", *arguments)
    assert "Years" in project.harness("table", tmp_path / "out")


@pytest.mark.long
def test_backend(copy, model, tmp_path):
    project = copy("A backend")
    project.follow()
    sweep = project.places["SWEEP"] = tmp_path / "sweep.yaml"
    sweep.write_text(
        json.dumps(
            {
                "models": {"tiny": {"path": str(model), "backend": "hf-float64"}},
                "methods": {"yarn": {"rope_type": "yarn", "factor": 2.0}},
                "context_lengths": [4096],
                "tasks": [{"tasks": "leval_closed_toefl", "metadata": {"data_dir": "sample"}}],
            }
        )
    )
    _, lm_eval, plan = project.commands()
    assert lm_eval.startswith("hf-float64 (")
    assert "|TOEFL" in lm_eval
    assert len(json.loads(plan)["cells"]) == 1
