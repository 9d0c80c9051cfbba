"""The built wheel in an environment without extras and in an empty folder, and what it asks for."""

import ast
import importlib.metadata as metadata
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from leval_tasks.closed.catalog import TASKS
from leval_tasks.common.metrics import FAMILY_OF

ROOT = Path(__file__).parents[2]

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ASKED = [*PROJECT["dependencies"], *chain(*PROJECT["optional-dependencies"].values())]
BROUGHT = {
    "aiohttp": "lm_eval",
    "huggingface_hub": "datasets",
    "pydantic_core": "pydantic",
    "requests": "lm_eval",
    "safetensors": "transformers",
    "sqlitedict": "lm_eval",
    "tokenizers": "transformers",
}
"""Packages that we import -> the one that we ask for and that asks for them."""

# names that a pull request to lm-eval (#3927) gives to tasks of its own
OTHERS = ("coursera", "quality", "codeu", "tpo", "topic_retrieval", "gsm100", "sci_fi")

# lists the index as `lm_eval ls tasks` does, then builds our group from it
INDEX = """
import json, leval_tasks, lm_eval
from lm_eval.tasks import TaskManager
manager = TaskManager(metadata={"data_dir": "sample"})
ours = ("leval_", "ppl_", "posgen", "effective_context_", "retrieval_", "mrcr_")
names = [n for n in manager.all_tasks if n.startswith(ours)]
tasks = manager.load(["leval_closed"])["tasks"]
questions = {name: len(task.test_docs()) for name, task in tasks.items()}
classes = sorted({type(task).__module__ for task in tasks.values()})
print(json.dumps([sorted(names), leval_tasks.__file__, lm_eval.__file__, questions, classes]))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = ["pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, ROOT]
    done = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))


def link_tree(source: Path, target: Path) -> None:
    """Link lm-eval's files, without the task files that our editable install has put there."""
    for folder, names, files in os.walk(source):
        names[:] = [name for name in names if name not in ("leval_harness", "__pycache__")]
        place = target / Path(folder).relative_to(source)
        place.mkdir(parents=True, exist_ok=True)
        for name in files:
            (place / name).symlink_to(Path(folder) / name)


class Environment:
    """A virtual environment, and an empty folder in which its commands run.

    What it holds besides our wheel is linked from this one, without the packages of extras.
    """

    def __init__(self, root: Path, wheel: Path) -> None:
        self.root, self.folder = root, root / "empty"
        self.folder.mkdir()
        venv = [sys.executable, "-m", "venv", "--without-pip", str(root / "env")]
        subprocess.run(venv, check=True)
        self.site = next((root / "env" / "lib").glob("python3*")) / "site-packages"
        here = Path(str(metadata.distribution("lm_eval").locate_file("")))
        excluded = ("torch", "transformers", "vllm", "leval_harness", "_editable", "__")
        for path in here.iterdir():
            if path.name != "lm_eval" and not path.name.startswith(excluded):
                (self.site / path.name).symlink_to(path)
        link_tree(here / "lm_eval", self.site / "lm_eval")
        install = [sys.executable, "-m", "pip", "--python", root / "env", "install", "-q"]
        subprocess.run([*install, "--no-deps", wheel], check=True, capture_output=True)

    def run(self, *command: object, **more: str) -> subprocess.CompletedProcess[str]:
        ours = ("LEVAL_", "PYTHON")
        env = {k: v for k, v in os.environ.items() if not k.startswith(ours)} | more
        program = self.root / "env" / "bin" / str(command[0])
        return subprocess.run(
            [program, *map(str, command[1:])],
            cwd=self.folder, env=env, capture_output=True, text=True, check=False,
        )  # fmt: skip


def imported(folder: str) -> Iterator[str]:
    """Top names of what the modules of a package import."""
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                yield from (each.name.partition(".")[0] for each in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield str(node.module).partition(".")[0]


def test_requirements_name_what_is_imported():
    asked = {canonicalize_name(Requirement(each).name) for each in ASKED}
    packages = ("leval_harness", "leval_tasks", "resonance_vllm")
    names = {name for package in packages for name in imported(package)} - {*packages}
    distributions = metadata.packages_distributions()
    for name in names - sys.stdlib_module_names:
        from_ = BROUGHT.get(name, name)
        if name in BROUGHT:
            needs = metadata.requires(from_) or ()
            found = {canonicalize_name(Requirement(each).name) for each in needs}
            assert canonicalize_name(name) in found, name
        found = {canonicalize_name(each) for each in distributions.get(from_, [from_])}
        assert asked & found, name


@pytest.mark.slow(long=True)
def test_base_install_has_tasks_and_scoring(wheel, tmp_path):
    """Stock lm-eval finds our tasks, beside others of like names; scoring needs no torch."""
    environment = Environment(tmp_path, wheel)
    assert environment.run("python", "-c", "import torch").returncode == 1
    beside = environment.site / "lm_eval" / "tasks" / "leval"
    beside.mkdir()
    for name in OTHERS:
        task = f"tag: leval\ntask: leval_{name}\ndataset_path: json\noutput_type: generate_until\n"
        (beside / f"{name}.yaml").write_text(task)
    done = environment.run("python", "-c", INDEX)
    assert done.returncode == 0, done.stderr
    names, ours, theirs, questions, classes = json.loads(done.stdout.splitlines()[-1])
    assert Path(ours).is_relative_to(environment.site)
    assert Path(theirs).is_relative_to(environment.site)
    assert set(names) == {*FAMILY_OF, "leval", *(f"leval_{name}" for name in OTHERS)} - {"leval"}
    assert list(questions) == [name for name, task in TASKS.items() if task.in_group]
    assert all(questions.values())
    assert classes == ["leval_tasks.closed.task"]
    assert "leval_" not in done.stderr  # no name is there twice
    answers = environment.folder / "toefl.pred.jsonl"
    answers.write_text('{"evaluation": "exam", "gt": "A", "m_pred": "A"}\n')
    scored = environment.run("leval-harness", "score", "--task", "toefl", answers, "--json")
    score = json.loads(scored.stdout)
    assert (score["n"], score["exact_match"]) == (1, 100.0)
    missing = environment.run("leval-harness", "check", "model", "--rope", "yarn:factor=2")
    assert "install the extra hf" in missing.stderr
    assert "Traceback" not in missing.stderr
