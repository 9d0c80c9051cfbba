"""Tasks under the names of earlier versions, and beside other people's of such names."""

from pathlib import Path

import pytest
from lm_eval._cli.harness import HarnessCLI

from leval_harness.cli.run_tasks import renamed_samples, renamed_tasks, validating
from leval_harness.sweep import task_names
from leval_harness.sweep.config import parse_config
from leval_harness.sweep.errors import ConfigError
from leval_tasks.closed.catalog import OLD_NAMES, TASKS

THEIRS = ("coursera", "quality", "codeu", "tpo", "topic_retrieval", "gsm100", "sci_fi")
"""What lm-eval#3927 would call its tasks, behind `leval_`."""


@pytest.fixture
def lm_eval_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder like `lm_eval/tasks`, with ours of earlier days and today in it."""
    ours = tmp_path / "tasks" / task_names.INSTALLED / "closed"
    ours.mkdir(parents=True)
    for name in (*TASKS, *OLD_NAMES):
        (ours / f"{name}.yaml").write_text(f"task: {name}\n")
    monkeypatch.setattr(task_names, "tasks_of_lm_eval", lambda: tmp_path / "tasks")
    task_names._named.cache_clear()
    return tmp_path / "tasks"


def theirs(folder: Path, *names: str) -> Path:
    folder.mkdir()
    for name in names:
        (folder / f"{name}.yaml").write_text(f"task: {name}\ndataset_path: x\n")
    (folder / "broken.yaml").write_text("task: [leval_quality\n")
    return folder


def config(*tasks: str, gsm: str = "leval_closed_gsm"):
    return parse_config(
        {
            "name": "x",
            "models": {"m": {"path": "smollm2"}},
            "methods": {"rope": None},
            "tasks": list(tasks),
            "task_gen_kwargs": {gsm: {"max_gen_toks": 9}},
        }
    )


def test_every_task_has_one_old_name():
    assert sorted(OLD_NAMES.values()) == sorted(TASKS)
    assert set(OLD_NAMES).isdisjoint(TASKS)


def test_a_sweep_takes_old_names_with_a_notice(lm_eval_tasks, caplog):
    new = config("leval_closed_gsm", "leval_closed_quality").tasks
    assert not caplog.messages
    assert config("leval_gsm", "leval_quality", gsm="leval_gsm").tasks == new
    assert "tasks: leval_gsm is called leval_closed_gsm today" in caplog.messages


def test_an_old_name_that_somebody_else_has_is_refused(lm_eval_tasks):
    theirs(lm_eval_tasks / "leval", *(f"leval_{name}" for name in THEIRS))
    with pytest.raises(ConfigError, match=r"'leval_quality' is a task of .*leval_quality\.yaml"):
        config("leval_quality")
    assert config("leval_closed_quality").tasks[0].tasks == ("leval_closed_quality",)
    assert config("leval_toefl").tasks[0].tasks == ("leval_closed_toefl",)  # nobody else's


def test_lm_evals_command_takes_old_names_and_runs_theirs(lm_eval_tasks, caplog):
    plain = ["leval_closed", "mmlu"]
    assert renamed_tasks(plain, None) == renamed_tasks("leval_closed,mmlu", None) == plain
    old = renamed_tasks(["leval_toefl,mmlu", "leval_quality"], None)
    assert old == ["leval_closed_toefl", "mmlu", "leval_closed_quality"]
    caplog.clear()
    task_names._named.cache_clear()
    theirs(lm_eval_tasks / "leval", "leval_quality")
    assert renamed_tasks("leval_quality", None) == ["leval_quality"]
    (said,) = caplog.messages
    assert "leval/leval_quality.yaml; ours is leval_closed_quality" in said


def test_questions_by_number_go_by_the_names_of_today(lm_eval_tasks, caplog):
    tasks = renamed_tasks(["leval_gsm", "leval_closed_toefl"], None)
    asked = renamed_samples({"leval_gsm": [5, 2, 5], "leval_closed_toefl": [0]}, tasks, None)
    assert asked == {"leval_closed_gsm": [2, 5], "leval_closed_toefl": [0]}
    assert "--samples: leval_gsm is called leval_closed_gsm today" in caplog.messages
    assert renamed_samples({"leval_codeu": [1]}, ["leval_closed"], None) == {
        "leval_closed_codeu": [1]
    }
    with pytest.raises(ConfigError, match="samples: 'leval_closed_gms' is not allowed"):
        renamed_samples({"leval_closed_gms": [0]}, tasks, None)
    assert renamed_samples({"mmlu_x": [0]}, ["mmlu"], None) == {"mmlu_x": [0]}  # of its group


@pytest.mark.parametrize("tasks", ["leval_gsm", "leval_closed_gsm,leval_toefl"])
def test_lm_evals_validate_takes_old_names(monkeypatch, capsys, tasks):
    monkeypatch.setattr("sys.argv", ["lm-eval", "validate", "--tasks", tasks])
    with validating():
        cli = HarnessCLI()
        cli.execute(cli.parse_args())
    assert "All tasks found and valid" in capsys.readouterr().out


@pytest.mark.parametrize("folder", ["a_before_ours", "z_behind_ours", "included"])
def test_lm_evals_command_says_who_else_has_a_name_of_ours(lm_eval_tasks, tmp_path, caplog, folder):
    included = folder == "included"
    place = theirs((tmp_path if included else lm_eval_tasks) / folder, "leval_closed_gsm")
    assert renamed_tasks("leval_closed", str(place) if included else None) == ["leval_closed"]
    said = [message for message in caplog.messages if "leval_closed_gsm" in message]
    assert len(said) == (folder != "z_behind_ours")


def test_a_cell_beside_other_peoples_tasks_asks_ours(tmp_path, monkeypatch):
    """Ours come from our own folders, whatever lm-eval's index has under their names."""
    import lm_eval.tasks

    from leval_harness.cell_record import CellRecord
    from leval_harness.sweep.evaluation import load_tasks
    from leval_tasks.closed.task import LEvalClosedTask

    folder = theirs(tmp_path / "theirs", "leval_closed_gsm")
    (folder / "other.yaml").write_text(
        "task: other\nclass: !function leval_tasks.perplexity.task.PerplexityTask\n"
        "metadata: {corpus: pydocs, mode: sliding, version: 1}\n"
    )
    stock = lm_eval.tasks.TaskManager

    def of_folder(include_path=None, include_defaults=True, **options):
        paths = [str(folder)] if include_defaults else include_path
        return stock(include_path=paths, include_defaults=False, **options)

    monkeypatch.setattr(lm_eval.tasks, "TaskManager", of_folder)
    cell = CellRecord.model_validate(
        {
            "schema_version": 1, "cell_id": "x", "model": {"name": "m"}, "method": {"name": "r"},
            "tasks": ["leval_closed_gsm", "other"],
            "metadata": {"data_dir": "sample", "context_length": 2048, "max_length": 2048},
        }
    )  # fmt: skip
    _, tasks = load_tasks(cell)
    assert [type(task) is LEvalClosedTask for task in tasks] == [True, False]
