"""PosGen's table and figure from results on disk: means, marks, published rows, every format."""

import csv
import io
import json
import shutil
import statistics

import pytest
from click.testing import CliRunner

from leval_harness.cli.console import exit_code_for
from leval_harness.cli.main import app
from leval_harness.old_figures.posgen import loss_figure, position_figure
from leval_harness.old_figures.style import write_figure
from leval_harness.old_results import ResultsError
from leval_harness.old_results.posgen import loss_curve, read_experiment
from leval_harness.old_tables.notes import spent
from leval_harness.old_tables.posgen import posgen_table
from leval_harness.old_tables.published import published_accuracy
from leval_tasks.posgen.encodings import Pair
from resonance_vllm.errors import SettingError
from resonance_vllm.files import file_sha256

SETTINGS = {
    "architecture": {"kind": "llama", "layers": 2, "hidden": 128},
    "data": {"modulus": 7},
    "epochs": 11,
}


def write_run(folder, subtask, encoding, seed, ood, inside=0.99, losses=(2.0, 1.0), **more):
    run = folder / subtask / encoding / f"seed-{seed}"
    run.mkdir(parents=True)
    record = {
        "schema_version": 1,
        "subtask": subtask,
        "encoding": encoding,
        "seed": seed,
        "test": {"id_accuracy": inside, "ood_accuracy": ood},
        "seconds": 90.0,
        "command": "leval-harness posgen train --preset quick",
        "host": {"cores": 2},
        "versions": {"torch": "2.13.0"},
        **more,
    }
    (run / "result.json").write_text(json.dumps(record))
    lines = [f"{79 * e},{float(e)},1.0,{loss},0.5,0.2" for e, loss in enumerate(losses, 1)]
    head = "step,epoch,train_loss,validation_loss,id_accuracy,ood_accuracy"
    (run / "metrics.csv").write_text("\n".join([head, *lines]) + "\n")
    return run


@pytest.fixture
def folder(tmp_path):
    quick = tmp_path / "quick"
    for seed, ood in enumerate((0.5, 0.7)):
        write_run(quick, "cot", "rope", seed, ood, losses=(2.0 - seed, 1.0))
        write_run(quick, "cot", "resonance", seed, ood - 0.1)
    write_run(quick, "cot", "yarn", 0, 0.9, inside=0.94)
    (quick / "settings.json").write_text(json.dumps(SETTINGS))
    return quick


def rows_of(table):
    labels = [column.label for column in table.columns]
    return {
        row.cells[0].text: dict(zip(labels, row.cells, strict=True))
        for block in reversed(table.blocks)
        for row in block.rows
    }


def test_means_over_seeds_best_and_second_among_what_was_learned(folder):
    table = posgen_table([read_experiment(folder)])
    rows = rows_of(table)
    best, second = rows["RoPE"]["CoT"], rows["Resonance RoPE"]["CoT"]
    assert (best.value, second.value) == (pytest.approx(60), pytest.approx(50))
    assert best.stderr_text == f"{statistics.stdev([50, 70]):.2f}"
    assert (best.emphasis, second.emphasis) == ("best", "second")
    assert rows["RoPE"]["Seeds"].text == "2"
    assert rows["RoPE"]["Recursive"].text == "–"
    assert (
        table.blocks[0].title
        == "quick: llama, 2 layers, width 128, modulus 7, 10,000 sequences, 11 epochs"
    )


def test_what_was_not_learned_is_marked_and_not_compared(folder):
    cell = rows_of(posgen_table([read_experiment(folder)]))["YaRN"]["CoT"]
    assert (cell.text, cell.mark, cell.emphasis) == ("90.00", " (not learned)", "")
    write_run(folder, "recursive", "rope", 0, 0.9)
    write_run(folder, "recursive", "yarn", 0, 0.8, inside=0.2)
    rows = rows_of(posgen_table([read_experiment(folder)]))
    assert rows["RoPE"]["Recursive"].emphasis == "", "there is nobody to compare it with"
    write_run(folder, "cot", "yarn", 1, 0.9, inside=0.94)
    cell = rows_of(posgen_table([read_experiment(folder)]))["YaRN"]["CoT"]
    assert (cell.stderr_text, cell.mark) == ("0.00 (not learned)", ""), "± comes before the words"


def test_published_rows_stand_beside_and_are_marked(folder):
    table = posgen_table([read_experiment(folder)])
    published = table.blocks[-1]
    assert [row.kind for row in published.rows] == ["published"] * 4
    row = rows_of(table)["Resonance YaRN (s=4)"]
    assert (row["Recursive"].text, row["CoT"].text) == ("98.30", "99.58")
    assert row["Encoding"].mark == " †"
    assert row["CoT"].emphasis == ""
    assert any("not run here" in note for note in table.notes)
    assert published_accuracy("yarn", "semi_recursive") == 33.70


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 seconds"), (1, "1 second"), (89, "1 minute"), (720, "12 minutes")],
)
def test_the_time_spent_has_a_unit_that_fits(seconds, text):
    """Real tests of small models took `0 minutes`, or `1 minutes`."""
    assert spent(seconds) == text


def test_notes_say_scale_making_and_distance(folder):
    notes = posgen_table([read_experiment(folder)]).notes
    assert "Made by: leval-harness posgen train --preset quick" in notes
    assert "Versions: torch 2.13.0" in notes
    assert "Seeds: 0, 1" in notes
    scale = "Scale: 5 models, llama, 2 layers, width 128, modulus 7, 10,000 sequences, 11 epochs, "
    assert scale + "2 CPU cores, 8 minutes, all runs added up" in notes
    assert not any("from the published" in note for note in notes), "modulus 7 is another task"


def test_the_distance_to_what_is_published(folder):
    settings = folder / "settings.json"
    settings.write_text(settings.read_text().replace('"modulus": 7', '"modulus": 17'))
    notes = posgen_table([read_experiment(folder)]).notes
    gaps = [abs(60 - 69.56), abs(50 - 75.25), abs(90 - 98.71)]
    expected = f"quick: {statistics.mean(gaps):.1f} points from the published numbers"
    assert any(note.startswith(expected) for note in notes)


def test_numbers_labelled_by_the_rule_have_no_epochs(folder):
    settings = json.loads((folder / "settings.json").read_text())
    (folder / "settings.json").write_text(json.dumps(settings | {"labels": "rule"}))
    title = posgen_table([read_experiment(folder)]).blocks[0].title
    assert title.endswith("modulus 7, fresh numbers labelled by the rule")


def test_seeds_are_said_in_the_order_of_numbers(folder):
    write_run(folder, "cot", "rope", 10, 0.5)
    assert "Seeds: 0, 1, 10" in posgen_table([read_experiment(folder)]).notes
    write_run(folder, "cot", "rope", 9, 0.5)
    assert "Seeds: 0, 1, 9, 10" in posgen_table([read_experiment(folder)]).notes


def test_several_folders_are_blocks_of_one_table(folder, tmp_path):
    write_run(tmp_path / "paper", "cot", "rope", 0, 0.8)
    result = run(folder, tmp_path / "paper")
    assert "quick: llama" in result.stdout
    assert "paper: settings unknown" in result.stdout
    assert exit_code_for(run(folder, tmp_path / "paper", "--figure", "x.svg").exception) == 2


def run(*args):
    return CliRunner().invoke(app, ["posgen", "table", *map(str, args)], standalone_mode=False)


def test_every_format(folder, tmp_path):
    assert "| YaRN | 1 | – | – | 90.00 (not learned) | 94.00 |" in run(folder).stdout
    assert r"\textit{RoPE \textdagger{}}" in run(folder, "--format", "tex").stdout
    assert "<table>" in run(folder, "--format", "html").stdout
    rows = list(csv.DictReader(io.StringIO(run(folder, "--format", "csv").stdout)))
    yarn = next(row for row in rows if row["Encoding"] == "yarn")
    assert (float(yarn["Learned"]), float(yarn["OOD"]), yarn["Deviation"]) == (0, 90, "")
    assert json.loads(run(folder, "--json").stdout)[0]["Published"] == 69.56
    out = tmp_path / "table.md"
    assert run(folder, "--out", out).stdout == ""
    assert "not learned" in out.read_text()


def test_figure_draws_the_mean_over_seeds(folder, tmp_path):
    experiment = read_experiment(folder)
    runs = experiment.runs_of("cot", Pair("rope", "rope"))
    assert loss_curve(runs) == {1.0: [2.0, 1.0], 2.0: [1.0, 1.0]}
    figure = loss_figure(experiment)
    write_run(folder, "recursive", "rope", 0, 0.5)
    (legend,) = loss_figure(read_experiment(folder)).legends
    assert [text.get_text() for text in legend.get_texts()] == ["RoPE", "Resonance RoPE", "YaRN"]
    (axes,) = figure.axes
    lines = {line.get_label(): line.get_ydata().tolist() for line in axes.get_lines()}
    assert set(lines) == {"RoPE", "Resonance RoPE", "YaRN"}
    assert lines["RoPE"] == [1.5, 1.0]
    for name in ("f.svg", "f.png"):
        write_figure(lambda: loss_figure(experiment), tmp_path / "new" / name)
        assert (tmp_path / "new" / name).stat().st_size > 1000
    with pytest.raises(SettingError, match=r"figure: '\.jpg' is not allowed; allowed: \.svg"):
        write_figure(lambda: loss_figure(experiment), tmp_path / "f.jpg")
    (runs[0].folder / "metrics.csv").write_text("step,epoch\n1,1\n")
    with pytest.raises(ResultsError, match="no validation curve"):
        loss_curve(runs)
    for rows in ("", "1,1,nan\n"):
        (runs[0].folder / "metrics.csv").write_text(f"step,epoch,validation_loss\n{rows}")
        with pytest.raises(ResultsError, match="empty, or a loss in it is not finite"):
            loss_curve(runs)


SHORT = {"near": 2, "train_length": 5, "length": 6}


def accuracies(values):
    """Accuracies of numbers 3 and 4, within the trained length, and of number 5."""
    return {
        "id_accuracy": (values[0] + values[1]) / 2,
        "ood_accuracy": values[2],
        "by_position": values,
    }


@pytest.mark.parametrize("where", ["result.json", "tested/yarn.json"])
@pytest.mark.parametrize("name", ["id_accuracy", "ood_accuracy"])
def test_an_accuracy_that_was_edited_is_in_no_table(tmp_path, where, name):
    folder = write_run(tmp_path, "cot", "rope", 0, 0.2, test=accuracies([1.0, 0.98, 0.8]))
    (tmp_path / "settings.json").write_text(json.dumps({"data": SHORT, "epochs": 1}))
    record = json.loads((folder / "result.json").read_text())
    (folder / "tested").mkdir()
    (folder / "tested/yarn.json").write_text(json.dumps({**record, "tested_with": "yarn"}))
    assert len(read_experiment(tmp_path).runs) == 2
    written = json.loads((folder / where).read_text())
    written["test"][name] += 0.01
    (folder / where).write_text(json.dumps(written))
    with pytest.raises(ResultsError, match=rf"{where}: test\.{name}: .* by position; edited"):
        read_experiment(tmp_path)
    written["test"] = accuracies([1.0, 0.98, 0.8, 0.8])
    (folder / where).write_text(json.dumps(written))
    with pytest.raises(ResultsError, match=rf"{where}: test\.by_position: 4 numbers"):
        read_experiment(tmp_path)


def test_a_curve_that_was_edited_is_not_drawn(tmp_path):
    folder = write_run(tmp_path, "cot", "rope", 0, 0.2)
    file, result = folder / "metrics.csv", folder / "result.json"
    record = json.loads(result.read_text())
    result.write_text(json.dumps({**record, "files": {"metrics.csv": file_sha256(file)}}))
    assert len(loss_curve(read_experiment(tmp_path).runs)) == 2
    file.write_text(file.read_text().replace(",2.0,", ",1.5,"))
    with pytest.raises(ResultsError, match=r"metrics\.csv: missing, or altered after the run"):
        loss_curve(read_experiment(tmp_path).runs)


def test_position_figure_draws_each_number_after_the_seed(tmp_path):
    for seed, values in enumerate(([1.0, 0.5, 0.1], [0.5, 0.5, 0.3])):
        write_run(tmp_path, "cot", "rope", seed, 0.2, test=accuracies(values))
    (tmp_path / "settings.json").write_text(json.dumps({"data": SHORT}))
    (axes,) = position_figure(read_experiment(tmp_path)).axes
    curve, trained = axes.get_lines()
    assert curve.get_xdata().tolist() == [3, 4, 5]
    assert curve.get_ydata().tolist() == pytest.approx([75, 50, 20])
    assert list(trained.get_xdata()) == [5, 5]
    assert axes.get_title(loc="left") == "CoT (not learned)"
    write_run(tmp_path, "recursive", "yarn", 0, 0.2, test=accuracies([1.0, 0.98, 0.8]))
    (axes,) = position_figure(read_experiment(tmp_path)).axes
    assert axes.get_title(loc="left") == "Recursive", "beside it, what was not learned is left out"
    assert run(tmp_path, "--position-figure", tmp_path / "p.svg").exception is None
    assert (tmp_path / "p.svg").stat().st_size > 1000
    write_run(tmp_path, "recursive", "yarn", 1, 0.2)
    with pytest.raises(ResultsError, match="without accuracies by position"):
        position_figure(read_experiment(tmp_path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 3}, "schema_version 3"),
        ({"encoding": "alibi"}, "encoding: 'alibi' is not allowed; allowed: rope, resonance"),
        (
            {"test": {"id_accuracy": 0.9, "ood_accuracy": 40}},
            "test.ood_accuracy: 40 is not allowed; allowed: a number of at most 1",
        ),
        ({"test": {}}, "test.id_accuracy: missing"),
        (
            {"test": {"id_accuracy": 0.9, "ood_accuracy": 0.4, "by_position": [0.5, "x"]}},
            "test.by_position.1: 'x' is not allowed; allowed: a number",
        ),
    ],
)
def test_damaged_results_are_named(tmp_path, change, message):
    write_run(tmp_path, "cot", "rope", 0, 0.5)
    file = tmp_path / "cot/rope/seed-0/result.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(ResultsError, match=message):
        read_experiment(tmp_path)


@pytest.mark.parametrize("change", [{"seed": 1}, {"encoding": "yarn"}, {"subtask": "recursive"}])
def test_a_result_that_was_copied_to_another_place_is_no_seed(tmp_path, change):
    write_run(tmp_path, "cot", "rope", 0, 0.5)
    of = {"subtask": "cot", "encoding": "rope", "seed": 0} | change
    other = tmp_path / of["subtask"] / of["encoding"] / f"seed-{of['seed']}"
    shutil.copytree(tmp_path / "cot/rope/seed-0", other)
    with pytest.raises(ResultsError, match=r"is the result of cot/rope/seed-0/result\.json"):
        read_experiment(tmp_path)


def test_a_test_that_was_copied_to_another_place_is_none(tmp_path):
    write_run(tmp_path, "cot", "rope", 0, 0.5)
    tested = tmp_path / "cot/rope/seed-0/tested"
    tested.mkdir()
    record = json.loads((tested.parent / "result.json").read_text())
    for name in ("yarn", "linear"):
        (tested / f"{name}.json").write_text(json.dumps(record | {"tested_with": "yarn"}))
    with pytest.raises(ResultsError, match=r"linear\.json: is the result of .*/tested/yarn\.json"):
        read_experiment(tmp_path)


def test_an_empty_folder_is_an_error(tmp_path):
    result = run(tmp_path)
    assert isinstance(result.exception, ResultsError)
    assert "no finished PosGen run" in str(result.exception)


@pytest.mark.parametrize(
    ("changed", "place"),
    [
        ({"data": "\ufeff"}, "settings.json: data"),
        ({"data": None}, "settings.json: data"),
        ({"data": {"modulus": "7"}}, "settings.json: data"),
        ({"data": {"far": [1]}}, "settings.json: data"),
        ({"architecture": [1]}, "settings.json: architecture"),
    ],
)
def test_settings_that_are_none_are_named(folder, changed, place):
    settings = json.loads((folder / "settings.json").read_text())
    (folder / "settings.json").write_text(json.dumps(settings | changed))
    with pytest.raises(ResultsError, match=place):
        read_experiment(folder)
