"""The command: exit codes, dry runs, shards and locks, without running a model."""

import errno
import fcntl
import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from click.testing import CliRunner, Result

from leval_harness.cli.main import main
from leval_harness.cli.sweep import sweep as command
from leval_harness.sweep import SweepLockedError, runner
from leval_harness.sweep.cells import PlannedCell, plan
from leval_harness.sweep.config_files import load_config
from leval_harness.sweep.estimate import (
    chosen,
    documents,
    estimate,
    perplexity_tokens,
    wall_seconds,
)
from leval_tasks.metadata import ClosedSettings, PerplexitySettings
from resonance_vllm.errors import UserError
from resonance_vllm.files import write_json


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEVAL_CACHE_DIR", str(tmp_path / "cache"))
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(
        json.dumps({"model_type": "llama", "rope_theta": 1e4, "max_position_embeddings": 8192})
    )
    path = tmp_path / "mine.yaml"
    path.write_text(
        f"models: {{small: {{path: {model}, backend: hf, tokens_per_second: 100}}}}\n"
        "methods: {rope: {rope_type: default}, yarn: {rope_type: yarn, factor: 2}}\n"
        "tasks: [leval_closed_quality, leval_closed_gsm]\n"
        "metadata: {data_dir: sample, num_docs: 1}\n"
        "gen_kwargs: {max_gen_toks: 10}\n"
        "context_lengths: [1000]\n"
    )
    return path


def sweep(*arguments: str) -> Result:
    return CliRunner().invoke(command, [*arguments], standalone_mode=False)


def test_dry_run_shows_cells_tokens_and_time(config: Path, tmp_path: Path) -> None:
    shown = sweep(str(config), "--dry-run", "--out", str(tmp_path))
    assert shown.exit_code == 0, shown.exception
    assert shown.output.count("to do  small | ") == 4
    assert "4 cells, 4 to do" in shown.output
    assert "at a time" not in shown.output
    together = sweep(str(config), "--dry-run", "--out", str(tmp_path), "--set", "jobs=3").output
    assert re.search(r"^4 cells, 4 to do: .*, 3 cells at a time$", together, re.MULTILINE)
    assert "Estimated from" in shown.output
    told = json.loads(sweep(str(config), "--dry-run", "--json", "--out", str(tmp_path)).output)
    quality = told["cells"][0]
    # one document longer than 4000 characters, four questions at least, no backend that shares
    questions = documents("quality.jsonl", "sample")[0][1]  # type: ignore[index]
    assert quality["prompt_tokens"] == questions * (1000 + 150)
    assert quality["new_tokens"] == questions * 10
    assert quality["seconds"] == round((quality["prompt_tokens"] + 20 * questions * 10) / 100)
    assert told["total"]["wall_seconds"] == told["total"]["seconds"]  # one cell at a time
    assert told["total"]["prompt_tokens"] == sum(row["prompt_tokens"] for row in told["cells"])
    assert not (tmp_path / "mine").exists(), "a dry run writes nothing"


@pytest.mark.parametrize(("jobs", "ends"), [(1, 100), (2, 70), (3, 50), (9, 40)])
def test_cells_start_in_their_order_as_soon_as_another_ends(jobs: int, ends: int) -> None:
    assert wall_seconds([30, 20, 10, 40], jobs) == ends


@pytest.mark.parametrize("backend", ["hf-long", "vllm-long"])
def test_a_backend_that_reads_once_is_reckoned_so(config: Path, backend: str) -> None:
    (plain, *_) = plan(load_config(str(config)))
    (once, *_) = plan(load_config(str(config), [f"models.small.backend={backend}"]))
    many, few = estimate(plain.record).prompt_tokens, estimate(once.record).prompt_tokens
    assert many is not None
    assert few is not None
    assert few < many / 2


def test_documents_by_number_and_by_questions() -> None:
    sizes = ((10, 1),) * 5
    assert len(chosen(sizes, ClosedSettings())) == 5
    assert len(chosen(sizes, ClosedSettings(num_docs=2))) == 2
    assert len(chosen(sizes, ClosedSettings(num_docs=2, min_questions=4))) == 4
    assert len(chosen(sizes, ClosedSettings(num_docs=2, min_questions=99))) == 5


def test_perplexity_is_reckoned_by_its_windows() -> None:
    sizes = ((4000, 1), (40_000, 1), (400, 1))
    cut = PerplexitySettings(mode="truncate", num_docs=2)
    assert perplexity_tokens(sizes, cut, 2000) == 1000 + 2000
    sliding = PerplexitySettings(mode="sliding", num_docs=2, stride=1000)
    assert perplexity_tokens(sizes, sliding, 2000) == 2000 + (8 + 1) * 2000
    assert perplexity_tokens(None, cut, 2000) == 2 * 2000


@pytest.mark.parametrize(
    "arguments",
    [
        ["nowhere"],
        ["{config}", "--set", "seeed=1"],
        ["{config}", "--set", "tasks=leval_closed_gms"],
        ["{config}", "--set", "models.small.path=/nowhere"],
        ["{config}", "--set", "context_lengths=[100000]", "--set", "methods.rope=null"],
        ["{config}", "--set", "metadata.data_dir=/nowhere"],
        ["{config}", "--set", "metadata.num_dosc=1"],
        ["{config}", "--set", "metadata.num_docs=few"],
        ["{config}", "--set", "metadata.truncation=mid"],
        ["{config}", "--set", "metadata.data_dir=~nouser/data"],
        ["{config}", "--set", "models.small.path=~nouser/model"],
        ["{config}", "--set", "models.small.args.peft=~nouser/adapter"],
        ["{config}", "--set", "methods.yarn.factor=1" + 400 * "0"],
        ["{config}", "--set", "seed=1" + 5000 * "0"],
        ["~nouser/mine.yaml"],
        ["{config}", "--json"],
        ["{config}", "--shard", "3/2"],
        *(["{config}", "--shard", wrong] for wrong in ("x", "", "0/0", "1", "1/2/3", "-1/2")),
        *(["{config}", "--shard", wrong] for wrong in ("١/٢", " 1/2", "1_0/20", "+1/2", "²/2")),
        ["{config}", "--out", ""],
        ["{config}", "--executor", "slurm"],
        [],
    ],
)
def test_wrong_usage_is_exit_code_2(
    config: Path, tmp_path: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    filled = [each.format(config=config) for each in arguments]
    out = ["--out", str(tmp_path)] if filled and "--out" not in filled else []
    monkeypatch.setattr(sys, "argv", ["leval-harness", "sweep", *filled, *out])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert ended.value.code == 2
    assert "Error: " in printed.err
    assert "Traceback" not in printed.err
    assert not printed.out


def test_shards_are_all_cells_once(config: Path) -> None:
    cells = plan(load_config(str(config)))
    for total in range(1, 7):
        parts = [runner.shard_of(cells, (i, total)) for i in range(1, total + 1)]
        assert sorted(c.id for part in parts for c in part) == sorted(c.id for c in cells)


def test_one_sweep_a_folder_and_one_process_a_shard(tmp_path: Path) -> None:
    with runner.sweep_lock(tmp_path):
        for shard in (None, (1, 2)):
            with (
                pytest.raises(SweepLockedError, match="another sweep works on"),
                runner.sweep_lock(tmp_path, shard),
            ):
                pass
    with runner.sweep_lock(tmp_path, (1, 2)), runner.sweep_lock(tmp_path, (2, 2)):
        for shard in (None, (1, 2)):
            with pytest.raises(SweepLockedError), runner.sweep_lock(tmp_path, shard):
                pass
    with runner.sweep_lock(tmp_path):
        pass


def failed(folder: Path, cell: PlannedCell) -> None:
    (folder / cell.id).mkdir(parents=True)
    note = {"kind": "oom", "reason": "no memory", "log_tail": ["a", "b"], "attempts": 1}
    write_json(folder / cell.id / "failed.json", note)


def test_failed_cells_are_tried_again_unless_told_otherwise(config: Path, tmp_path: Path) -> None:
    one, two, *_ = plan(load_config(str(config)))
    failed(tmp_path, one)
    again = runner.take_stock(tmp_path, [one, two], retry_failed=True)
    assert (again.pending, again.skipped) == ([one, two], [])
    listed = runner.take_stock(tmp_path, [one, two], retry_failed=False)
    assert (listed.pending, listed.skipped) == ([two], [one])
    assert runner.old_failure(tmp_path, one).reason == "no memory"


def test_a_malformed_failure_note_is_no_accident(config: Path, tmp_path: Path) -> None:
    (one, *_) = plan(load_config(str(config)))
    failed(tmp_path, one)
    (tmp_path / one.id / "failed.json").write_text('{"log_tail": 7, "kind": [')
    assert runner.old_failure(tmp_path, one).reason == "no reason was written"


def test_foreign_folders_are_left_where_they_are(config: Path, tmp_path: Path) -> None:
    cells = plan(load_config(str(config)))
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "cell.json").write_text('{"cell_id": "something else"}')
    (tmp_path / "page").mkdir()
    old = tmp_path / "0123456789abcdef"
    old.mkdir()
    write_json(old / "cell.json", {"cell_id": old.name})
    assert [each.title for each in runner.set_aside(tmp_path, cells)] == [old.name]
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} >= {"notes", "page"}
    assert (tmp_path / ".superseded" / old.name / "cell.json").exists()


def test_a_dry_run_names_what_differs_before_anything_is_put_aside(
    config: Path, tmp_path: Path
) -> None:
    cells = plan(load_config(str(config)))
    for cell in cells:
        (tmp_path / "mine" / cell.id).mkdir(parents=True)
        write_json(tmp_path / "mine" / cell.id / "cell.json", cell.record.written())

    def dry_run(*more: str) -> str:
        return sweep(str(config), "--dry-run", "--out", str(tmp_path), *more).output

    def superseded(change: str) -> list[dict[str, Any]]:
        return list(json.loads(dry_run("--json", "--set", change))["superseded"])

    assert superseded("seed=0") == []
    changes = {"seed=7": "seed", "models.small.dtype=bfloat16": "model.dtype", "limit=2": "limit"}
    for change, place in changes.items():
        found = superseded(change)
        assert {each["cell_id"] for each in found} == {cell.id for cell in cells}
        assert {each["title"] for each in found} == {cell.record.title for cell in cells}
        assert [list(each["differs"]) for each in found] == [[place]] * len(cells), change
    for each in superseded("methods.yarn.factor=4"):
        assert each["differs"] == {"rope_parameters.factor": ["2.0", "4.0"]}
    (tmp_path / "model" / "generation_config.json").write_text("{}")
    place = "model.files.generation_config.json"
    assert [list(each["differs"]) for each in superseded("seed=0")] == [[place]] * len(cells)
    text = dry_run("--set", "limit=2")
    assert f"{len(cells)} cells of an earlier config would be moved to" in text
    assert text.count(f"limit: nothing -> 2; {place}: nothing -> ") == len(cells)
    assert all((tmp_path / "mine" / cell.id).is_dir() for cell in cells)
    stock = runner.take_stock(tmp_path / "mine", plan(load_config(str(config))))
    assert stock.notes[0].endswith(f".superseded; they differ in {place}")


def old_cells(folder: Path, number: int) -> list[str]:
    """Cells of an earlier config."""
    names = [f"{i:016x}" for i in range(number)]
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "cell.json").write_text(json.dumps({"cell_id": name}))
    return names


def test_shards_that_start_together_on_thousands_of_old_cells(config: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    names = old_cells(folder, 2000)
    cells = plan(load_config(str(config)))
    began = Barrier(4)

    def shard(number: int) -> int:
        with runner.sweep_lock(folder, (number, 4)):
            began.wait()
            stock = runner.take_stock(folder, cells, shard=(number, 4))
            began.wait()
            return len(stock.pending)

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(shard, range(1, 5))) == len(cells)
    assert all((folder / name).is_dir() for name in names), "others worked there"
    with runner.sweep_lock(folder, (1, 4)):
        runner.take_stock(folder, cells, shard=(1, 4))
    assert not any((folder / name).exists() for name in names), "the last one tidies up"


def test_a_shard_with_an_edited_config_leaves_the_cells_of_others(
    config: Path, tmp_path: Path
) -> None:
    ours = plan(load_config(str(config)))
    theirs = plan(load_config(str(config), ["seed=7"]))
    with runner.sweep_lock(tmp_path, (1, 2)):
        runner.take_stock(tmp_path, ours, shard=(1, 2))
        failed(tmp_path, ours[0])
        write_json(tmp_path / ours[0].id / "cell.json", {"cell_id": ours[0].id})
        with runner.sweep_lock(tmp_path, (2, 2)):
            runner.take_stock(tmp_path, theirs, shard=(2, 2))
        assert (tmp_path / ours[0].id).is_dir()
    with runner.sweep_lock(tmp_path):
        runner.take_stock(tmp_path, theirs)
    assert (tmp_path / ".superseded" / ours[0].id).is_dir()


def test_a_file_system_without_locks_is_named(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        pytest.raises(UserError, match=r"file system without file locks \(No locks available\)"),
        runner.sweep_lock(tmp_path / "x"),
    ):
        pass


def test_a_dry_run_takes_the_speed_of_cells_of_an_earlier_config(
    config: Path, tmp_path: Path
) -> None:
    cells = plan(load_config(str(config)))
    for cell in cells:
        folder = tmp_path / "mine" / cell.id
        folder.mkdir(parents=True)
        write_json(folder / "cell.json", cell.record.written())
        done = {"schema_version": 1, "cell_id": cell.id, "seconds": 1000.0, "telemetry": {}}
        write_json(folder / "done.json", done)
    shown = sweep(str(config), "--dry-run", "--json", "--out", str(tmp_path), "--set", "seed=7")
    rows = json.loads(shown.output)["cells"]
    assert not any(row["done"] for row in rows)
    assert sum(row["seconds"] for row in rows) == pytest.approx(1000 * len(cells), rel=0.01)
