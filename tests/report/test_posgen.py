"""PosGen from results on disk: means, marks, published rows, crossed tests, pairs, figures."""

import csv
import io
import json
import statistics

import pytest
from click.testing import CliRunner

from leval_harness.cli.console import exit_code_for
from leval_harness.cli.main import app
from leval_harness.report.posgen import (
    TESTS,
    load_posgen,
    loss_figure,
    published_of,
    seed_means,
    table_1,
)
from leval_harness.report.table import BEST, SECOND
from leval_harness.results.load import ResultsError
from leval_tasks.posgen.encodings import Pair

SETTINGS = {"architecture": {"kind": "llama", "layers": 2, "hidden": 128},
            "data": {"modulus": 7}, "epochs": 11}  # fmt: skip


def write(folder, subtask, trained, seed, past, tested=None, inside=0.99, losses=(2.0, 1.0)):
    run = folder / subtask / trained / f"seed-{seed}"
    file = run / (f"tested/{tested}.json" if tested else "result.json")
    file.parent.mkdir(parents=True, exist_ok=True)
    test = {"id_accuracy": inside, "ood_accuracy": past}
    record = {"subtask": subtask, "encoding": trained, "seed": seed, "test": test,
              "tested_with": tested, "command": "leval-harness posgen train"}  # fmt: skip
    file.write_text(json.dumps(record))
    lines = [f"{float(e)},{loss}" for e, loss in enumerate(losses, 1)]
    (run / "metrics.csv").write_text("\n".join(["epoch,validation_loss", *lines]) + "\n")
    return run


@pytest.fixture
def folder(tmp_path):
    quick = tmp_path / "quick"
    for seed, past in enumerate((0.5, 0.7)):
        write(quick, "cot", "rope", seed, past, losses=(2.0 - seed, 1.0))
        write(quick, "cot", "resonance", seed, past - 0.1)
    write(quick, "cot", "yarn", 0, 0.9, inside=0.94)
    (quick / "settings.json").write_text(json.dumps(SETTINGS))
    return quick


OWN, SCALED = (0.6, 0.7, 0.9, 0.5), (0.9, 0.75, 0.95, 0.1)


@pytest.fixture
def crossed(tmp_path):
    """Seed 3 of RoPE was not learned."""
    folder = tmp_path / "crossed"
    for seed in range(4):
        write(folder, "recursive", "rope", seed, OWN[seed], inside=0.5 if seed == 3 else 0.99)
        write(folder, "recursive", "rope", seed, SCALED[seed], "yarn_code")
    write(folder, "recursive", "resonance", 0, 0.4)
    write(folder, "recursive", "resonance", 0, 0.8, "yarn_code", inside=0.7)
    return folder


def run(*args):
    return CliRunner().invoke(app, ["posgen", "table", *map(str, args)], standalone_mode=False)


def test_a_test_is_a_row(folder):
    tests = load_posgen(folder).tests
    assert list(tests) == list(TESTS)
    assert len(tests) == 5
    assert tests["learned"].tolist() == [True] * 4 + [False]


def test_means_over_seeds_best_and_second_among_what_was_learned(folder):
    found = seed_means(load_posgen(folder)).set_index("trained")
    assert found["past"].to_dict() == pytest.approx({"rope": 60, "resonance": 50, "yarn": 90})
    assert found.loc["rope", "deviation"] == pytest.approx(statistics.stdev([50, 70]))
    assert found["rank"].fillna(0).to_dict() == {"rope": 1, "resonance": 2, "yarn": 0}
    table = table_1(load_posgen(folder))
    cells, css = (each.droplevel("Model") for each in (table.cells, table.css))
    assert cells["CoT"].tolist()[:3] == [
        "60.00 ± 14.14",
        "50.00 ± 14.14",
        "90.00 (not learned)",
    ]
    assert css["CoT"].tolist()[:3] == [BEST, SECOND, ""]
    assert cells["Recursive"].tolist()[:3] == ["–"] * 3
    assert cells.loc["Resonance YaRN (s=4)", ["Recursive", "CoT"]].tolist() == [
        "98.30 ± 0.00", "99.58 ± 0.00",
    ]  # fmt: skip
    assert table.cells.index[0][0] == (
        "quick: llama, 2 layers, width 128, modulus 7, 10,000 sequences, 11 epochs"
    )


def test_every_format(folder, tmp_path):
    assert "| YaRN | 1 | – | – | 90.00 (not learned) | 94.00 |" in run(folder).stdout
    assert r"\begin{table}" in run(folder, "--format", "tex").stdout
    assert "<table" in run(folder, "--format", "html").stdout
    rows = list(csv.DictReader(io.StringIO(run(folder, "--format", "csv").stdout)))
    yarn = next(row for row in rows if row["Encoding"] == "yarn")
    assert (float(yarn["Learned"]), float(yarn["OOD"]), yarn["Deviation"]) == (0, 90, "")
    assert json.loads(run(folder, "--json").stdout)[0]["Published"] == 69.56
    assert run(folder, "--out", tmp_path / "table.md").stdout == ""
    assert "not learned" in (tmp_path / "table.md").read_text()
    write(tmp_path / "paper", "cot", "rope", 0, 0.8)
    both = run(folder, tmp_path / "paper").stdout
    assert "quick: llama" in both
    assert "paper: settings unknown" in both
    wrong = run(folder, tmp_path / "paper", "--figure", "x.svg")
    assert exit_code_for(wrong.exception) == 2


def test_crossed_tests_are_rows_and_cells_of_their_own(crossed):
    read = load_posgen(crossed)
    table = table_1(read)
    assert [at[1] for at in table.cells.index[:2]] == ["RoPE", "RoPE → YaRN (code)"]
    cells = table.cells.droplevel("Model")["Recursive"]
    mean = statistics.mean(100 * SCALED[seed] for seed in range(3))
    assert cells["RoPE → YaRN (code)"].startswith(f"{mean:.2f} ±")
    assert cells["RoPE → YaRN (code)"].endswith("(3 of 4 learned)")
    assert cells["Resonance RoPE → YaRN (code)"] == "80.00", "learned by its own encoding"
    assert published_of(Pair("rope", "yarn_code"), "recursive") == 95.93
    assert published_of(Pair("rope", "resonance"), "recursive") is None


def test_figure_3_draws_the_mean_over_seeds(folder, tmp_path):
    (axes,) = loss_figure(load_posgen(folder)).axes
    lines = {line.get_label(): line.get_ydata().tolist() for line in axes.get_lines()}
    assert set(lines) == {"RoPE", "Resonance RoPE", "YaRN"}
    assert lines["RoPE"] == [1.5, 1.0]
    assert run(folder, "--figure", tmp_path / "f.svg").exception is None
    assert (tmp_path / "f.svg").stat().st_size > 1000
    (folder / "cot/rope/seed-0/metrics.csv").write_text("step,epoch\n1,1\n")
    with pytest.raises(ResultsError, match=r"metrics\.csv: no validation curve"):
        loss_figure(load_posgen(folder))


@pytest.mark.parametrize("content", ['{"test":', '{"test": {}}', '{"test": {"id_accuracy": "x"}}'])
def test_damaged_results_are_named(tmp_path, content):
    file = write(tmp_path, "cot", "rope", 0, 0.5) / "result.json"
    file.write_text(content)
    with pytest.raises(ResultsError, match=r"result\.json: not a result of a PosGen run"):
        load_posgen(tmp_path)
    file.unlink()
    with pytest.raises(ResultsError, match="no finished PosGen run; start one with"):
        load_posgen(tmp_path)
