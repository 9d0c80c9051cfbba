"""PosGen's crossed tests: what was trained with what and tested with what, compared by seed."""

import json
import statistics
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import stats

from leval_harness.analysis.posgen import HALVES, ceiling, compare_by_seed
from leval_harness.cli.main import app
from leval_harness.old_figures.posgen import pairs_figure, position_figure
from leval_harness.old_results import ResultsError
from leval_harness.old_results.posgen import read_experiment
from leval_harness.old_tables.posgen import (
    crossed_table,
    halves_table,
    posgen_details,
    posgen_table,
    seed_table,
)
from leval_harness.old_tables.published import published_of
from leval_tasks.posgen import encodings
from leval_tasks.posgen.encodings import ENCODINGS, Name, Pair, parse_pair, published_pairs
from resonance_vllm.errors import SettingError

ROPE = Pair("rope", "rope")
CODE = Pair("rope", "yarn_code")
OWN = {0: 0.6, 1: 0.7, 2: 0.9, 3: 0.5}
SCALED = {0: 0.9, 1: 0.75, 2: 0.95, 3: 0.1}


def write(folder: Path, subtask, trained, tested, seed, ood, inside=0.99, **more):
    run = folder / subtask / trained / f"seed-{seed}"
    own = trained == tested
    file = run / ("result.json" if own else f"tested/{tested}.json")
    file.parent.mkdir(parents=True, exist_ok=True)
    record = {"schema_version": 1, "subtask": subtask, "encoding": trained, "seed": seed}
    record |= {} if own else {"tested_with": tested}
    record |= {"files" if own else "weights": {"model.safetensors": "w"} if own else "w"}
    test = {"id_accuracy": inside, "ood_accuracy": ood, **more}
    file.write_text(json.dumps({**record, "test": test, "command": "leval-harness posgen"}))


@pytest.fixture
def folder(tmp_path):
    """Seed 3 of RoPE was not learned."""
    (tmp_path / "settings.json").write_text(json.dumps({"data": {"modulus": 17}}))
    for seed in range(4):
        inside = 0.5 if seed == 3 else 0.99
        write(tmp_path, "recursive", "rope", "rope", seed, OWN[seed], inside)
        write(tmp_path, "recursive", "rope", "yarn_code", seed, SCALED[seed])
    write(tmp_path, "recursive", "resonance", "resonance", 0, 0.4)
    write(tmp_path, "recursive", "resonance", "yarn_code", 0, 0.8, inside=0.7)
    return tmp_path


def values(table):
    labels = [column.label for column in table.columns]
    return [dict(zip(labels, row.cells, strict=True)) for b in table.blocks for row in b.rows]


def test_encodings_are_named_once_and_paired_as_the_readings_say():
    assert set(ENCODINGS) == set(Name.__args__)
    assert len({e.title for e in ENCODINGS.values()}) == len(ENCODINGS)
    assert published_pairs("text")["resonance_yarn"] == Pair("resonance_yarn", "resonance_yarn")
    assert published_pairs("code")["resonance_yarn"] == Pair("resonance", "resonance_yarn_code")
    assert encodings.tests_of("code", "resonance") == ("resonance", "resonance_yarn_code")
    assert encodings.tests_of("text", "yarn") == ("yarn",)
    assert published_of(CODE, "recursive") == 95.93
    assert published_of(Pair("rope", "resonance"), "recursive") is None


def test_crossed_tests_are_rows_and_cells_of_their_own(folder):
    experiment = read_experiment(folder)
    assert experiment.pairs[:2] == (ROPE, CODE)
    table = posgen_table([experiment])
    titles = [row.cells[0].text for row in table.blocks[0].rows]
    assert titles[:2] == ["RoPE", "RoPE → YaRN (code)"]
    assert "Scale: 5 models" in " ".join(table.notes), "a test is no model"
    assert any("(reading: code)" in note for note in table.notes)
    rope, resonance = values(crossed_table(experiment))
    learned = [100 * SCALED[seed] for seed in range(3)]
    assert rope["YaRN (code)"].value == pytest.approx(statistics.mean(learned))
    assert rope["YaRN (code)"].mark == " (3 of 4 learned)"
    assert resonance["RoPE"].text == "–"
    assert "not learned" not in resonance["YaRN (code)"].mark, "learned under its own encoding"
    figure = pairs_figure(experiment)
    (axes,) = figure.axes
    dots = [line for line in axes.get_lines() if line.get_marker() == "o"]
    assert sorted(dots[1].get_xdata()) == pytest.approx(sorted(learned))
    crosses = [line for line in axes.get_lines() if line.get_marker() == "x"]
    assert list(crosses[1].get_xdata()) == pytest.approx([100 * SCALED[3]])
    assert "x: not learned" in figure.texts[0].get_text()


def test_pairs_are_compared_by_seed_where_both_were_learned(folder):
    (row,) = values(seed_table(*compare_by_seed(read_experiment(folder), [(CODE, ROPE)])))
    gaps = [100 * (SCALED[seed] - OWN[seed]) for seed in range(3)]
    expected = stats.ttest_1samp(gaps, 0).confidence_interval(0.95)
    assert row["Seeds"].value == 3
    assert row["Difference"].value == pytest.approx(statistics.mean(gaps))
    assert row["95% low"].value == pytest.approx(expected.low)
    assert row["95% high"].value == pytest.approx(expected.high)
    assert row["p"].value == 0.25, "2 of 8 sign patterns are as far from 0"
    assert (row["Wins"].text, row["Losses"].text) == ("3", "0")
    notes = seed_table(*compare_by_seed(read_experiment(folder), [(CODE, ROPE)])).notes
    assert any(note.startswith("1 pair of a seed left out") for note in notes)
    with pytest.raises(ResultsError, match="no two seeds in common"):
        compare_by_seed(read_experiment(folder), [(CODE, Pair("resonance", "yarn_code"))])
    with pytest.raises(SettingError, match="no test of yarn:yarn; there are: rope:rope"):
        compare_by_seed(read_experiment(folder), [(CODE, Pair("yarn", "yarn"))])


def test_a_test_of_other_weights_is_left_out(folder):
    file = folder / "recursive/rope/seed-0/tested/yarn_code.json"
    file.write_text(file.read_text().replace('"weights": "w"', '"weights": "old"'))
    assert len(read_experiment(folder).runs_of("recursive", CODE)) == 3


def test_semi_recursive_halves_stand_apart(tmp_path):
    """Numbers 4, 5 share a far token, then 6, 7: first right never, second within the length."""
    shares = [0.0, 1.0] * 2 + [0.0, 0.5] * 3
    data = {"train_length": 8, "length": 14, "modulus": 5}
    (tmp_path / "settings.json").write_text(json.dumps({"data": data}))
    write(tmp_path, "semi_recursive", "rope", "rope", 0, 0.25, 0.5, by_position=shares)
    experiment = read_experiment(tmp_path)
    table = halves_table(experiment)
    (row,) = values(table)
    numbers = [row[f"{where}, {half}"].value for where in ("ID", "OOD") for half in HALF]
    assert numbers == [0, 100, 0, 50]
    assert ceiling(17) == pytest.approx(52.94, abs=0.01)
    assert "60.0%" in table.notes[1]
    record = posgen_details([experiment]).records()[0]
    assert [record[name] for name in HALVES] == numbers
    assert record["Ceiling"] == pytest.approx(60)
    assert halves_table(experiment.only([Pair("rope", "rope")])) is not None
    assert row["Seeds"].mark.strip() == "(not learned)"


def test_halves_are_of_the_seeds_that_learned(tmp_path):
    """A mean of a model at the plateau and one that knows the far token is of neither."""
    data = {"train_length": 8, "length": 14, "modulus": 5}
    (tmp_path / "settings.json").write_text(json.dumps({"data": data}))
    plateau, whole = [0.0, 1.0] * 2 + [0.0, 0.5] * 3, [1.0] * 4 + [0.2] * 6
    write(tmp_path, "semi_recursive", "rope", "rope", 0, 0.25, 0.5, by_position=plateau)
    write(tmp_path, "semi_recursive", "rope", "rope", 1, 0.2, 1.0, by_position=whole)
    (row,) = values(halves_table(read_experiment(tmp_path)))
    numbers = [row[f"{where}, {half}"].value for where in ("ID", "OOD") for half in HALF]
    assert numbers == pytest.approx([100, 100, 20, 20])
    assert (row["Seeds"].value, row["Seeds"].mark.strip()) == (2, "(1 of 2 learned)")


HALF = ("first", "second")


def test_pairs_on_the_command_line(folder, tmp_path):
    def table(*args):
        command = ["posgen", "table", str(folder), *args]
        return CliRunner().invoke(app, command, standalone_mode=False)

    text = table("--crossed", "--pair", "rope:yarn_code", "rope", "--only", "rope:yarn_code").stdout
    assert "trained with × tested with" in text
    assert "| RoPE → YaRN (code) | RoPE | 3 |" in text, "compared in full, whatever is shown"
    assert "Resonance RoPE → YaRN" not in text
    (row,) = json.loads(table("--json", "--pair", "rope:yarn_code", "rope").stdout)
    assert (row["Seeds"], row["Wins"]) == (3, 3)
    csv = table("--format", "csv", "--crossed").stdout
    assert len(csv.splitlines()) == 1 + 4, "a line a pair, whatever else is asked for"
    assert table("--pairs-figure", str(tmp_path / "f.svg")).exception is None
    assert parse_pair("rope") == ROPE
    wrong = table("--only", "yarn").exception
    assert isinstance(wrong, SettingError)
    assert "there are: rope:rope, rope:yarn_code" in str(wrong)
    for text in ("rope:yarn:yarn", "yarm"):
        with pytest.raises(SettingError):
            parse_pair(text)


def test_tables_of_the_task_name_its_ceiling(tmp_path):
    """A plain result of lm-eval, of another sub-task and then of this one."""
    golden = Path(__file__).parents[1] / "golden/results/posgen"
    file = next(golden.rglob("results_*.json"))
    notes = []
    for name in ("posgen_cot", "posgen_semi_recursive"):
        target = tmp_path / name / file.name
        target.parent.mkdir()
        target.write_text(file.read_text().replace("posgen_cot", name))
        result = CliRunner().invoke(app, ["table", str(target.parent)], standalone_mode=False)
        notes.append("52.9% with modulus 17" in result.stdout)
    assert notes == [False, True]


def curve(folder, subtask, trained, tested, seed, rng):
    """A run with accuracies of numbers 4 to 7, within the trained length, and 8 to 13."""
    (folder / "settings.json").write_text('{"data": {"train_length": 8, "length": 14}}')
    shares = [*rng.uniform(0.97, 1, 4), *rng.uniform(0.5, 0.9, 6)]
    means = (statistics.mean(shares[4:]), statistics.mean(shares[:4]))
    write(folder, subtask, trained, tested, seed, *means, by_position=shares)
    return shares


def test_many_encodings_are_drawn_in_rows_by_what_was_trained_with(tmp_path):
    """Each pair is one curve, none on more than four others, the same test in the same colour."""
    pairs = [
        *(("rope", tested) for tested in ("rope", "yarn_code", "resonance_yarn_code")),
        *(("resonance", tested) for tested in ("resonance", "yarn_code")),
        ("yarn", "yarn"),
        ("resonance_yarn", "resonance_yarn"),
    ]
    rng = np.random.default_rng(1)
    drawn = {}
    for at, (trained, tested) in enumerate(pairs):
        for seed in range(8):
            drawn[at, seed] = curve(tmp_path, "recursive", trained, tested, seed, rng)
    figure = position_figure(read_experiment(tmp_path))
    curves = [
        [line for line in axes.get_lines() if not line.get_label().startswith("_")]
        for axes in figure.axes
    ]
    assert [len(each) for each in curves] == [3, 2, 2]
    assert [len(axes.get_legend().get_texts()) for axes in figure.axes] == [3, 2, 2]
    code = [line for line in chain(*curves) if line.get_label().endswith("→ YaRN (code)")]
    assert len({line.get_color() for line in code}) == 1 < len(code)
    assert all(len({line.get_color() for line in each}) == len(each) for each in curves)
    values = np.array([drawn[0, seed] for seed in range(8)])
    (plain,) = (line for line in curves[0] if line.get_label() == "RoPE")
    assert plain.get_ydata() == pytest.approx(100 * values.mean(axis=0))
    band = figure.axes[0].collections[curves[0].index(plain)].get_paths()[0].vertices
    low, high = np.percentile(100 * values, [25, 75], axis=0)
    assert (band[:, 1].min(), band[:, 1].max()) == pytest.approx((low.min(), high.max()))


def test_a_panel_of_what_was_not_run_is_left_out(tmp_path):
    rng = np.random.default_rng(2)
    for trained in ("rope", "resonance"):
        for tested in (trained, "yarn_code", "resonance_yarn_code"):
            curve(tmp_path, "recursive", trained, tested, 0, rng)
    curve(tmp_path, "cot", "rope", "rope", 0, rng)
    axes = position_figure(read_experiment(tmp_path)).axes
    assert [each.get_visible() for each in axes] == [True, True, True, False]
    assert [bool(each.get_xlabel()) for each in axes] == [False, True, True, False]


def test_few_seeds_are_listed_and_many_counted(tmp_path):
    rng = np.random.default_rng(3)
    notes = []
    for seeds in ((0, 2), range(6)):
        for seed in seeds:
            curve(tmp_path, "recursive", "rope", "rope", seed, rng)
        notes.append(position_figure(read_experiment(tmp_path)).get_supxlabel())
    assert "mean over seeds 0, 2, bands: all seeds" in notes[0]
    assert "mean over 6 seeds, bands: half of the seeds" in notes[1]
