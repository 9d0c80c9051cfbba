"""Paired differences of reach losses for any two methods, against a plain paired t-interval."""

import itertools
import json

import fixture_results as make
import numpy as np
import pytest
from click.testing import CliRunner
from scipy import stats

from leval_harness.analysis import analyse
from leval_harness.analysis.differences import paired_differences
from leval_harness.analysis.reach import reach_gaps, reach_lines
from leval_harness.cli.main import app
from leval_harness.results import ResultsError, load_results
from leval_harness.tables import build_tables
from leval_harness.tables.differences import difference_tables

LENGTHS = (2048, 8192)
TOKENS = 512


def samples(nats, prefix, lengths=LENGTHS, keys=None):
    """Logged samples from mean nats a token `[documents, lengths]`; NaN where a text failed."""
    rows = []
    for at, means in enumerate(nats):
        values = {
            f"loss@{length}": [0.0, 0] if np.isnan(mean) else [mean * TOKENS, TOKENS]
            for length, mean in zip(lengths, means, strict=True)
        }
        if keys:
            values |= {
                f"key_loss@{length}": [mean * keys[at], keys[at]]
                for length, mean in zip(lengths, means, strict=True)
            }
        rows.append(make.logged(at, prefix, values))
    return rows


@pytest.fixture
def drawn():
    """Mean nats of (method, task): `[documents, lengths]`."""
    rng = np.random.default_rng(5)
    base = {task: 2.5 + rng.normal(0, 0.3, (n, 2)) for task, n in
            (("reach_pg19", 5), ("reach_proofpile", 6))}  # fmt: skip
    shifts = {"rope": (0.0, 4.0), "yarn": (0.03, 0.0), "resonance_yarn": (0.02, 0.01)}
    return {
        method: {task: v + shift + rng.normal(0, 0.02, v.shape) for task, v in base.items()}
        for method, shift in shifts.items()
    }


def write(root, drawn):
    for method, tasks in drawn.items():
        for task, nats in tasks.items():
            make.write_cell(root, f"{method}-{task}", {task: samples(nats, task)},
                            method=method, baseline="rope", context_length=8192)  # fmt: skip
    return root


def tables_of(analysis, pairs):
    return difference_tables(*paired_differences(analysis, pairs))


def rows_of(table):
    labels = [column.label for column in table.columns]
    return {
        tuple(cell.text for cell in row.cells[:3]): dict(zip(labels, row.cells, strict=True))
        for block in table.blocks
        for row in block.rows
    }


def test_any_two_methods_are_compared_by_text_and_length(tmp_path, drawn):
    analysis = analyse(load_results(write(tmp_path / "r", drawn)))
    pairs = [("resonance_yarn", "yarn"), ("yarn", "rope")]
    (table,) = tables_of(analysis, pairs)
    rows = rows_of(table)
    texts = ["Reach on PG19", "Reach on Proof-pile", "Reach, all"]
    assert list(rows) == [
        (f"{m} − {b}", text, size) for m, b in pairs for size in ("2K", "8K") for text in texts
    ]
    for (method, baseline), (at, size) in itertools.product(pairs, enumerate(("2K", "8K"))):
        for label, tasks in zip(texts, (["reach_pg19"], ["reach_proofpile"], drawn["rope"]),
                                strict=True):  # fmt: skip
            one, other = (np.concatenate([drawn[m][t][:, at] for t in tasks])
                          for m in (method, baseline))  # fmt: skip
            row, d = rows[f"{method} − {baseline}", label, size], one - other
            ends = stats.ttest_1samp(d, 0).confidence_interval()
            assert row["Documents"].text == str(d.size)
            assert row["Method"].value == pytest.approx(one.mean())
            assert row["Baseline"].value == pytest.approx(other.mean())
            assert row["Difference"].value == pytest.approx(d.mean())
            assert (row["95% low"].value, row["95% high"].value) == pytest.approx(tuple(ends))
            flips = np.array(list(itertools.product((1, -1), repeat=d.size)))
            share = (np.abs(flips @ d) >= abs(d.sum()) - 1e-12).mean()
            assert row["p"].value == pytest.approx(share)


def test_it_says_what_the_second_table_says_of_the_baseline(tmp_path, drawn):
    """Also where a text was not read at one of the lengths: it counts at none."""
    drawn["yarn"]["reach_pg19"][2, 1] = np.nan
    analysis = analyse(load_results(write(tmp_path / "r", drawn)))
    rows = rows_of(tables_of(analysis, [("yarn", "rope")])[0])
    (line,) = (line for line in reach_lines(analysis) if line.method == "yarn")
    kept = np.arange(5) != 2
    for at, point in enumerate(line.points):
        row = rows["yarn − rope", "Reach, all", f"{LENGTHS[at] // 1024}K"]
        assert row["Documents"].text == "10"
        assert row["Difference"].value == point.against.difference
        own = drawn["yarn"]["reach_pg19"] - drawn["rope"]["reach_pg19"]
        found = rows["yarn − rope", "Reach on PG19", f"{LENGTHS[at] // 1024}K"]
        assert found["Difference"].value == pytest.approx(own[kept, at].mean())


def test_key_tokens_are_compared_where_a_reference_told_them(tmp_path, drawn):
    keys = [40, 0, 10, 5, 20]
    for method in ("rope", "yarn"):
        rows = samples(drawn[method]["reach_pg19"], "t", keys=keys)
        for told_by in ("own", "a1b2c3d4"):
            metadata = {"settings": {"key_tokens": told_by}, "data": {"source": "hub"}}
            rope = {"rope_parameters": {"rope_type": method, "factor": 2.0}}
            make.write_lm_eval(
                tmp_path / told_by / method, {"reach_pg19": rows}, "2026-01-02T03-04-05.000000",
                configs={"reach_pg19": {"task": "reach_pg19", "metadata": metadata}},
                config={"model_args": {"pretrained": "m", **(rope if method == "yarn" else {})}},
            )  # fmt: skip
    pair = [("yarn x2", "as shipped")]
    assert len(tables_of(analyse(load_results(tmp_path / "own")), pair)) == 1
    _, table = tables_of(analyse(load_results(tmp_path / "a1b2c3d4")), pair)
    row = rows_of(table)["yarn x2 − as shipped", "Key tokens on PG19", "8K"]
    d = (drawn["yarn"]["reach_pg19"] - drawn["rope"]["reach_pg19"])[:, 1]
    assert row["Difference"].value == pytest.approx(np.average(d, weights=keys))
    assert row["Documents"].text == "4"


def test_what_is_not_compared_is_said(tmp_path, drawn):
    root = write(tmp_path / "r", {"rope": drawn["rope"], "yarn": drawn["yarn"]})
    nats = drawn["rope"]["reach_pg19"]
    longer = samples(np.hstack([nats, nats[:, :1]]), "reach_pg19", (*LENGTHS, 16384))
    for method, task, rows in (
        ("far", "reach_pg19", longer),
        ("other", "leval_closed_gsm", make.closed_samples("leval_closed_gsm", 0.3, 1)),
    ):
        named = {"method": method, "baseline": "rope", "context_length": 8192}
        make.write_cell(root, method, {task: rows}, **named)
    analysis = analyse(load_results(root))
    (table,) = tables_of(analysis, [("far", "rope"), ("other", "rope")])
    assert len(rows_of(table)) == 2
    (partly,) = [note for note in table.notes if note.startswith("far − rope")]
    assert partly.endswith("Reach on PG19 at 16K, Reach on Proof-pile at 2K, "
                           "Reach on Proof-pile at 8K")  # fmt: skip
    assert any("other has none" in note for note in table.notes)
    for done in root.glob("*/done.json"):
        without_samples(done.parent)
    with pytest.raises(ResultsError, match="yarn has Reach on PG19, Reach on Proof-pile without l"):
        tables_of(analyse(load_results(root)), [("yarn", "rope")])


def test_texts_of_two_tasks_may_bear_one_name(tmp_path, drawn):
    for method, tasks in drawn.items():
        for task, nats in tasks.items():
            make.write_cell(tmp_path / "r", f"{method}-{task}", {task: samples(nats, "text")},
                            method=method, baseline="rope", context_length=8192)  # fmt: skip
    analysis = analyse(load_results(tmp_path / "r"))
    row = rows_of(tables_of(analysis, [("yarn", "rope")])[0])["yarn − rope", "Reach, all", "8K"]
    d = np.concatenate(list(drawn["yarn"].values())) - np.concatenate(list(drawn["rope"].values()))
    assert row["Documents"].text == "11"
    assert row["Difference"].value == pytest.approx(d[:, 1].mean())
    (line,) = (line for line in reach_lines(analysis) if line.method == "yarn")
    assert line.points[1].against.difference == pytest.approx(d[:, 1].mean())


def without_samples(cell):
    for path in cell.glob("samples_*"):
        path.unlink()
    marker = json.loads((cell / "done.json").read_text(encoding="utf-8"))
    kept = {name: h for name, h in marker["files"].items() if not name.startswith("samples")}
    (cell / "done.json").write_text(json.dumps({**marker, "files": kept}), encoding="utf-8")


def test_what_the_answer_does_not_hold_is_named_below_it(tmp_path, drawn):
    """Nothing that was asked is missing in silence."""
    root = write(tmp_path / "r", drawn)
    without_samples(root / "yarn-reach_proofpile")
    without_samples(root / "resonance_yarn-reach_pg19")
    without_samples(root / "resonance_yarn-reach_proofpile")
    nats = drawn["rope"]["reach_pg19"]
    for method, rows in {
        "other_texts": samples(nats, "elsewhere"),
        "other_lengths": samples(nats, "reach_pg19", (2048, 4096)),
    }.items():
        tasks = {"reach_pg19": rows}
        if method == "other_lengths":
            tasks["reach_proofpile"] = samples(drawn["rope"]["reach_proofpile"], "reach_proofpile")
        named = {"method": method, "baseline": "rope", "context_length": 8192}
        make.write_cell(root, method, tasks, **named)
    analysis = analyse(load_results(root))
    logged = "whose samples were not logged"
    expected = [
        "yarn and rope are compared on the texts of both (5 and 11 were read)",
        f"Not counted: yarn: Reach on Proof-pile, {logged}",
        f"Not counted: resonance_yarn: Reach on PG19, {logged}; Reach on Proof-pile, {logged}",
        "Not compared: other_texts and rope: no text of both at one length with the same number "
        "of tokens",
        "Not counted: other_lengths: 4K, 8K, at which not every task was asked",
    ]
    assert sorted(reach_gaps(analysis, reach_lines(analysis))) == sorted(expected)
    answer = build_tables(analysis)[0]
    assert set(expected) <= set(answer.notes)


def test_without_any_samples_the_answer_says_why_there_is_none(tmp_path, drawn):
    root = write(tmp_path / "r", {"rope": {"reach_pg19": drawn["rope"]["reach_pg19"]}})
    without_samples(root / "rope-reach_pg19")
    answer = build_tables(analyse(load_results(root)))[0]
    assert answer.blocks == ()
    assert answer.notes[-1] == "Not counted: rope: Reach on PG19, whose samples were not logged"


def test_a_text_with_other_tokens_is_an_error(tmp_path, drawn):
    root = write(tmp_path / "r", {"rope": {"reach_pg19": drawn["rope"]["reach_pg19"]}})
    rows = samples(drawn["yarn"]["reach_pg19"], "reach_pg19")
    for length in LENGTHS:
        rows[0][f"loss@{length}"][1] += 1
    make.write_cell(root, "yarn", {"reach_pg19": rows}, method="yarn", context_length=8192)
    with pytest.raises(ResultsError, match="reach_pg19 at 2K: a text has another number of tokens"):
        tables_of(analyse(load_results(root)), [("yarn", "rope")])


def test_perplexity_and_reach_stand_side_by_side_in_every_format(tmp_path, drawn):
    root = write(tmp_path / "r", drawn)
    for method, gain in (("rope", 0.0), ("yarn", -0.02)):
        rows = make.perplexity_samples((1024, 8192), gain, 7)
        make.write_cell(root, f"{method}-ppl", {"ppl_pg19": rows}, method=method)

    def run(*more):
        outcome = CliRunner().invoke(app, ["table", str(root), "--pair", "yarn:rope", *more])
        assert outcome.exit_code == 0, outcome.output
        return outcome.stdout

    found = json.loads(run("--json"))
    assert {row["Text"] for row in found} == {
        "PG19", "Reach on PG19", "Reach on Proof-pile", "Reach, all"
    }  # fmt: skip
    assert len(run("--format", "csv").splitlines()) == 1 + len(found) == 9
    assert run().count("paired differences, nats a token") == 2
    for form in ("tex", "html"):
        assert "Reach, all" in run("--format", form)
