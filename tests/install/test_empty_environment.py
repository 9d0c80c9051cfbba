"""The built wheel in an empty environment and an empty folder, and what it asks for.

The environment holds our wheel and the distributions that its metadata asks for, theirs included,
and nothing else. They are linked from this one, where installing them again would take minutes.
"""

import ast
import importlib.metadata as metadata
import json
import os
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from leval_tasks.closed.catalog import TASKS
from leval_tasks.metrics import FAMILY_OF

ROOT = Path(__file__).parents[2]

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ASKED = [*PROJECT["dependencies"], *chain(*PROJECT["optional-dependencies"].values())]
BROUGHT = {
    "huggingface_hub": "datasets", "pydantic_core": "pydantic", "safetensors": "transformers",
    "sqlitedict": "lm_eval", "tokenizers": "transformers",
}  # fmt: skip
"""Packages that we import -> the one that we ask for and that asks for them."""

# names that a pull request to lm-eval (#3927) gives to tasks of its own
OTHERS = ("coursera", "quality", "codeu", "tpo", "topic_retrieval", "gsm100", "sci_fi")

# lists the index as `lm_eval ls tasks` does, then builds our group from it
INDEX = """
import json, leval_tasks, lm_eval
from lm_eval.tasks import TaskManager
manager = TaskManager(metadata={"data_dir": "sample"})
ours = ("leval_", "ppl_", "posgen", "effective_context_")
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


def required(wheel: Path) -> dict[str, metadata.Distribution]:
    """Every distribution that the wheel's metadata asks for without an extra, directly or not."""
    with zipfile.ZipFile(wheel) as opened:
        (name,) = (n for n in opened.namelist() if n.endswith(".dist-info/METADATA"))
        own = metadata.PathDistribution(zipfile.Path(opened, name.rpartition("/")[0] + "/"))
        ahead = [(Requirement(each), "") for each in own.requires or ()]
    found: dict[str, metadata.Distribution] = {}
    seen: set[tuple[str, str]] = set()
    while ahead:
        need, wanted = ahead.pop()
        if need.marker and not any(need.marker.evaluate({"extra": e}) for e in ("", wanted)):
            continue
        name = canonicalize_name(need.name)
        if name not in found:
            found[name] = metadata.distribution(name)
            assert need.specifier.contains(found[name].version, prereleases=True), need
        for extra in {("", name), *((each, name) for each in need.extras)} - seen:
            seen.add(extra)
            ahead += [(Requirement(each), extra[0]) for each in found[name].requires or ()]
    return found


def top_level(distribution: metadata.Distribution) -> Iterator[tuple[str, Path]]:
    """What a distribution puts into site-packages: name and place."""
    for file in distribution.files or ():
        name = file.parts[0]
        if name not in ("..", "__pycache__"):
            yield name, Path(str(distribution.locate_file(name)))


def link_tree(source: Path, target: Path) -> None:
    """Link lm-eval's files, without the task files that our editable install has put there."""
    for folder, names, files in os.walk(source):
        names[:] = [name for name in names if name not in ("leval_harness", "__pycache__")]
        place = target / Path(folder).relative_to(source)
        place.mkdir(parents=True, exist_ok=True)
        for name in files:
            (place / name).symlink_to(Path(folder) / name)


class Environment:
    """A virtual environment, and an empty folder in which its commands run."""

    def __init__(self, root: Path, wheel: Path) -> None:
        self.root, self.folder = root, root / "empty"
        self.folder.mkdir()
        venv = [sys.executable, "-m", "venv", "--without-pip", str(root / "env")]
        subprocess.run(venv, check=True)
        self.site = next((root / "env" / "lib").glob("python3*")) / "site-packages"
        for distribution in required(wheel).values():
            for name, place in top_level(distribution):
                if name == "lm_eval":
                    continue
                if place.exists() and not (self.site / name).exists():
                    (self.site / name).symlink_to(place)
        lm_eval = Path(str(metadata.distribution("lm_eval").locate_file("lm_eval")))
        link_tree(lm_eval, self.site / "lm_eval")
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

    def fine(self, *command: object, **more: str) -> str:
        done = self.run(*command, **more)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout


def imported(folder: str) -> Iterator[str]:
    """Top names of what the modules of a package import."""
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                yield from (each.name.partition(".")[0] for each in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield str(node.module).partition(".")[0]


def test_what_is_imported_is_asked_for():
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


@pytest.mark.long
def test_base(wheel, tmp_path):
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
    score = json.loads(
        environment.fine("leval-harness", "score", "--task", "toefl", answers, "--json")
    )
    assert (score["n"], score["exact_match"]) == (1, 100.0)
    missing = environment.run("leval-harness", "check", "model", "--rope", "yarn:factor=2")
    assert "install the extra hf" in missing.stderr
    assert "Traceback" not in missing.stderr
