"""Names of tasks: ours mean ours beside other people's."""


def test_a_cell_beside_other_peoples_tasks_asks_ours(tmp_path, monkeypatch):
    """Ours come from our own folders, whatever lm-eval's index has under their names."""
    import lm_eval.tasks

    from leval_harness.cell_record import CellRecord
    from leval_harness.sweep.evaluation import load_tasks
    from leval_tasks.closed.task import LEvalClosedTask

    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "leval_closed_gsm.yaml").write_text("task: leval_closed_gsm\ndataset_path: x\n")
    (folder / "other.yaml").write_text(
        "task: other\nclass: !function leval_tasks.perplexity.task.PerplexityTask\n"
        "metadata: {corpus: pydocs, mode: sliding, version: 1}\n"
    )
    stock = lm_eval.tasks.TaskManager

    def of_folder(include_path, include_defaults, **options):
        assert include_defaults
        paths = [str(folder), *include_path]
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
