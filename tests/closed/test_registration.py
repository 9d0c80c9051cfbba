"""Stock lm-eval finds every task of the installed wheel, with no flag."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import yaml

from leval_tasks.closed.catalog import GROUP, TASKS

EXPECTED = {
    GROUP,
    *TASKS,
    "ppl_govreport",
    "ppl_proofpile",
    "ppl_pg19",
    "ppl_pydocs",
    "posgen",
    "posgen_recursive",
    "posgen_cot",
    "posgen_semi_recursive",
}
ROOT = Path(__file__).parents[2]
# lists the index as `lm_eval ls tasks` does, then builds our group from it
INDEX = """
import json, leval_tasks, lm_eval
from lm_eval.tasks import TaskManager
manager = TaskManager(metadata={"data_dir": "sample"})
names = [n for n in manager.all_tasks if n.startswith(("leval_", "ppl_", "posgen"))]
tasks = manager.load(["leval_closed"])["tasks"]
questions = {name: len(task.test_docs()) for name, task in tasks.items()}
classes = sorted({f"{type(task).__module__}" for task in tasks.values()})
print(json.dumps([sorted(names), leval_tasks.__file__, lm_eval.__file__, questions, classes]))
"""

# names that a pull request to lm-eval (#3927) gives to tasks of its own
OTHERS = ("coursera", "quality", "codeu", "tpo", "topic_retrieval", "gsm100", "sci_fi")


FOLDER = ROOT / "leval_tasks" / "closed" / "tasks"


@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_its_yaml(task):
    lines = (FOLDER / f"{task}.yaml").read_text("utf-8").splitlines()
    assert lines == [
        f"task: {task}",
        "class: !function leval_tasks.closed.task.LEvalClosedTask",
    ]


def test_group_holds_the_tasks_that_count_in_it():
    group = yaml.safe_load((FOLDER / f"{GROUP}.yaml").read_text("utf-8"))
    assert group["group"] == GROUP
    assert group["task"] == [name for name, task in TASKS.items() if task.in_group]
    assert len(group["task"]) == 6


@pytest.mark.slow
def test_wheel_in_a_fresh_environment(tmp_path):
    """The environment has our wheel and its own lm-eval; other packages come from this one.

    Beside ours lie other people's tasks of L-Eval, whose names are not ours.

    lm-eval's files are linked into the fresh environment because its index scans its own package
    folder, and that is where the wheel puts the task files.
    """
    wheels = tmp_path / "wheels"
    built = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "-q",
            "--no-deps",
            "--no-build-isolation",
            "-w",
            str(wheels),
            str(ROOT),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True
    )
    python = tmp_path / "env" / "bin" / "python"
    site = next((tmp_path / "env" / "lib").glob("python3*")) / "site-packages"
    (wheel,) = wheels.glob("*.whl")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--target",
            str(site),
            str(wheel),
        ],
        check=True,
        capture_output=True,
    )
    import lm_eval

    link_tree(Path(lm_eval.__file__).parent, site / "lm_eval")
    (site / "lm_eval" / "tasks" / "leval").mkdir()
    for name in OTHERS:
        other = f"tag: leval\ntask: leval_{name}\ndataset_path: json\noutput_type: generate_until\n"
        (site / "lm_eval" / "tasks" / "leval" / f"{name}.yaml").write_text(other)
    # every other package, but not this checkout: its editable install works through a .pth file,
    # and .pth files of folders on PYTHONPATH are not read
    env = {k: v for k, v in os.environ.items() if not k.startswith("LEVAL_")}
    env["PYTHONPATH"] = os.pathsep.join([str(site), sysconfig.get_paths()["purelib"]])
    done = subprocess.run(
        [str(python), "-c", INDEX],
        capture_output=True,
        text=True,
        env=env,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    names, ours, theirs, questions, classes = json.loads(done.stdout.splitlines()[-1])
    assert Path(ours).is_relative_to(site)
    assert Path(theirs).is_relative_to(site)
    assert set(names) == EXPECTED | {f"leval_{name}" for name in OTHERS}
    assert list(questions) == [name for name, task in TASKS.items() if task.in_group]
    assert all(questions.values())
    assert classes == ["leval_tasks.closed.task"]
    assert "leval_" not in done.stderr  # no name is there twice


def link_tree(source: Path, target: Path) -> None:
    """Link lm-eval's files, without the task files that our editable install has put there."""
    for folder, names, files in os.walk(source):
        names[:] = [name for name in names if name not in ("leval_harness", "__pycache__")]
        place = target / Path(folder).relative_to(source)
        place.mkdir(parents=True, exist_ok=True)
        for name in files:
            (place / name).symlink_to(Path(folder) / name)
