"""The recipes of CONTRIBUTING.md, followed in a copy of the project; their commands are run."""

import json
import math
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HEAD = re.compile(r"# (?P<path>\S+?)(?:, below: (?P<line>.*?))?\n")
PROGRAMS = {"leval-harness": ["-m", "leval_harness"], "pytest": ["-m", "pytest", "-q"]}
LLAMA = """
import json
from resonance_vllm import hf
from transformers import LlamaConfig, LlamaForCausalLM
hf.register()
rope = {"rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
sizes = dict(vocab_size=9, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
for name in ("halved", "resonance_halved"):
    config = LlamaConfig(**sizes, rope_parameters={"rope_type": name, **rope})
    (report,) = hf.apply_rope(LlamaForCausalLM(config))
    print(json.dumps(report.inv_freq))
"""
# Features from the middle on are slower by the factor 4: base 10,000, 8 dimensions.
HALVED = [1.0, 0.1, 0.01 / 4, 0.001 / 4]
RESONANT = [2 * math.pi / round(2 * math.pi / frequency) for frequency in HALVED]


class Copy:
    """A copy of the project's tracked files in which a recipe was followed."""

    def __init__(self, folder: Path, title: str) -> None:
        self.root, self.folder = folder / "project", folder
        listing = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
        tracked = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True)
        for name in filter(None, tracked.stdout.split("\0")):
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_bytes((ROOT / name).read_bytes())
        text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
        section = text.split(f"\n### {title}\n")[1].split("\n### ")[0]
        blocks = BLOCK.findall(section)
        self.commands = [
            line for kind, text in blocks if kind == "sh" for line in text.splitlines()
        ]
        for kind, text in blocks:
            if kind != "sh":
                self.follow(text)

    def follow(self, block: str) -> None:
        """Make the change of a block."""
        head = HEAD.match(block)
        assert head
        path, code = self.root / head["path"], block[head.end() :]
        if head["line"] is None:
            assert not path.exists()
            path.write_text(code, encoding="utf-8")
        else:
            before, above = path.read_text(encoding="utf-8"), f"\n{head['line']}\n"
            assert before.count(above) == 1, f"{path} has no line {head['line']}"
            path.write_text(before.replace(above, above + code), encoding="utf-8")
        if path.suffix == ".py":
            self.run("-m", "ruff", "check", str(path))
            self.run("-m", "ruff", "format", "--check", str(path))

    def run(self, *arguments: str) -> str:
        """Standard output of a Python process that imports the copy."""
        environment = {**os.environ, "PYTHONPATH": str(self.root), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.root, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{arguments}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def printed(self) -> list[str]:
        """What each command of the recipe prints; a test run must have run tests."""
        found = []
        for command in self.commands:
            for name in ("MODEL", "DATA"):
                command = re.sub(rf"\b{name}\b", str(self.folder / name.lower()), command)
            program, *arguments = shlex.split(command)
            found.append(self.run(*PROGRAMS[program], *arguments))
            assert program != "pytest" or re.search(r"\d+ passed", found[-1])
        return found


@pytest.fixture
def model(tmp_path, save_llama):
    """MODEL: random weights, a real tokenizer."""
    folder = save_llama(tmp_path / "model", vocab_size=1500, max_position_embeddings=2048)
    for file in (ROOT / "tests" / "golden" / "tokenizer").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())


def test_rope_method_computes_frequencies():
    section = (ROOT / "CONTRIBUTING.md").read_text("utf-8").split("\n### A RoPE method\n")[1]
    names = {"__name__": "methods_halved"}
    exec(BLOCK.search(section)[2], names)  # the class alone: nothing is registered
    method = names["Halved"](rope_theta=1e4, factor=4.0, original_max_position_embeddings=64)
    assert method.compute_inv_freq(8).tolist() == pytest.approx(HALVED)


@pytest.mark.slow(long=True)
def test_rope_method(tmp_path, model):
    project = Copy(tmp_path, "A RoPE method")
    _, plain, resonant, check = project.printed()
    slowest = 10000 ** (-126 / 128)
    assert json.loads(plain)["inv_freq"][-1] == pytest.approx(slowest / 4, rel=1e-12)
    assert json.loads(resonant)["wavelengths"][-1] == round(2 * math.pi / slowest * 8)
    assert "1 … 0.0005, 4 features" in check  # 0.001 without the method
    built = [json.loads(line) for line in project.run("-c", LLAMA).splitlines()]
    assert built == [pytest.approx(HALVED), pytest.approx(RESONANT)]


@pytest.mark.slow
def test_closed_task(tmp_path, model):
    text, (opened, closed) = "Opened in 1894 and closed in 1931.", ("1894", "1931")
    record = {"input": text, "instructions": ["When was it opened?", "When was it closed?"],
              "outputs": [opened, closed], "evaluation": "exam"}  # fmt: skip
    answers = [{"gt": opened, "a_pred": "In 1894."}, {"gt": closed, "a_pred": "1930"}]
    (tmp_path / "data").mkdir()
    for name, rows in {"years.jsonl": [record], "answers.jsonl": answers}.items():
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / "data" / name).write_text(lines, encoding="utf-8")
    score, prompt = Copy(tmp_path, "A closed-ended task").printed()
    found = json.loads(score)
    assert (found["task"], found["n"], found["exact_match"]) == ("years", 2, 50.0)
    assert "Answer with a year." in prompt
    assert "When was it opened?" in prompt


@pytest.mark.slow(long=True)
def test_backend(tmp_path, model):
    evaluated, compared = Copy(tmp_path, "A backend").printed()
    assert "exact_match" in evaluated
    assert "hf-log" in evaluated
    assert compared.startswith("Identical")
