"""The answer on top: a line a model and method, from logged losses at growing lengths."""

import json
from pathlib import Path

import fixture_results as make
import numpy as np
import pytest

from leval_harness.analysis import analyse
from leval_harness.analysis.reach import reach_lines, reach_text
from leval_harness.results import load_results
from leval_harness.results.verify import verify
from leval_harness.tables import build_tables
from leval_harness.tables.formats import render
from leval_tasks.statistics.paired import ASSUMED

LENGTHS = (2048, 4096, 8192, 12288)
ROPE = {"none": {}, "yarn": {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}}
STEPS = {"none": (-0.1, -0.02, 1.0), "yarn": (-0.09, -0.02, 0.0)}


def samples(task, steps, documents=6, targets=2):
    """Logged samples of a reach task; documents differ in level and a little in their steps."""
    rng = np.random.default_rng(len(task))
    own = np.random.default_rng([len(task), round(1000 * abs(steps[0]))])  # of the method
    rows = []
    for at in range(documents):
        tokens = 512 * (1 + at % targets)
        level = np.cumsum([2.5 + rng.normal(0, 0.3), *steps + own.normal(0, 0.002, len(steps))])
        values = {
            f"loss@{length}": [float(loss) * tokens, tokens]
            for length, loss in zip(LENGTHS, level, strict=True)
        } | {
            f"key_loss@{length}": [float(loss) * at, at]  # the first text has none
            for length, loss in zip(LENGTHS, level + 1, strict=True)
        }
        rows.append(
            {
                "doc_id": at,
                "doc": {"document_id": f"{task}-{at}", "cluster": f"{task}-{at}", "source": "hub"},
                "target": "",
                "resps": [],
                "filtered_resps": [],
                "filter": "none",
                "metrics": list(values),
                **values,
            }
        )
    return rows


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("reach")
    for method, steps in STEPS.items():
        for task in ("reach_pg19", "reach_proofpile"):
            make.write_cell(
                folder / "test",
                f"{method}{task}",
                {task: samples(task, steps)},
                method=method,
                context_length=12288,
            )
    return analyse(load_results(folder))


def test_one_line_a_method_over_all_texts(analysis):
    plain, yarn = reach_lines(analysis)
    assert (plain.method, yarn.method) == ("none", "yarn")
    assert plain.tasks == ("reach_pg19", "reach_proofpile")
    assert plain.texts == 12
    assert plain.tokens == 2 * (3 * 512 + 3 * 1024)
    assert reach_text(plain.no_loss) == "8K, not 12K"
    assert reach_text(yarn.no_loss) == "at least 12K"
    assert reach_text(plain.gain) == reach_text(yarn.gain) == "8K, not 12K"


def test_points_are_means_over_tokens_with_steps_and_differences_by_text(analysis):
    plain, yarn = reach_lines(analysis)
    rows = {
        method: samples("reach_pg19", steps) + samples("reach_proofpile", steps)
        for method, steps in STEPS.items()
    }
    for at, length in enumerate(LENGTHS):
        one, other = (np.array([row[f"loss@{length}"] for row in rows[method]]) for method in STEPS)
        assert plain.points[at].length == length
        assert plain.points[at].loss == pytest.approx(one[:, 0].sum() / one[:, 1].sum())
        against = yarn.points[at].against
        want = (other[:, 0] - one[:, 0]).sum() / one[:, 1].sum()
        assert against.difference == pytest.approx(want)
        assert plain.points[at].against is None
    assert plain.points[0].step is None
    assert plain.points[3].step.difference == pytest.approx(1.0, abs=0.01)
    assert yarn.points[3].against.high < -0.9


def test_key_tokens_stand_beside_over_the_texts_that_have_some(analysis):
    plain, _ = reach_lines(analysis)
    steps = STEPS["none"]
    rows = samples("reach_pg19", steps) + samples("reach_proofpile", steps)
    pairs = np.array([row["key_loss@8192"] for row in rows])
    assert plain.key_tokens == 2 * sum(range(6))
    assert plain.points[2].key.value == pytest.approx(pairs[:, 0].sum() / pairs[:, 1].sum())
    assert plain.points[2].key.clusters == 10


@pytest.mark.parametrize(("told_by", "same", "compared"), [
    ("own", True, False), ("a1b2c3d4", True, True), ("a1b2c3d4", False, False),
])  # fmt: skip
def test_key_losses_are_compared_where_a_reference_told_the_same_tokens(
    tmp_path, told_by, same, compared
):
    rows = {method: samples("reach_pg19", steps) for method, steps in STEPS.items()}
    if not same:
        rows["yarn"][3]["key_loss@8192"][1] += 1
    for method in STEPS:
        metadata = {"settings": {"key_tokens": told_by}, "data": {"source": "hub"}}
        make.write_lm_eval(
            tmp_path / method, {"reach_pg19": rows[method]}, "2026-01-02T03-04-05.000000",
            configs={"reach_pg19": {"task": "reach_pg19", "metadata": metadata}},
            config={"model_args": {"pretrained": "m", **ROPE[method]}},
        )  # fmt: skip
    plain, yarn = reach_lines(analyse(load_results(tmp_path), baseline="as shipped"))
    assert all(point.key_against is None for point in plain.points)
    found = yarn.points[2].key_against
    assert (found is not None) == compared
    if compared:
        pairs = [np.array([row["key_loss@8192"] for row in rows[m]]).sum(axis=0) for m in STEPS]
        want = (pairs[1][0] - pairs[0][0]) / pairs[0][1]
        assert found.difference == pytest.approx(want)
        assert found.low < want < found.high


def test_the_answer_is_the_first_table_and_the_losses_follow(analysis):
    tables = build_tables(analysis)
    assert [table.title.split(":")[0] for table in tables] == [
        "How far does it really read?",
        "Against the baseline, nats a token on the same tokens (95% interval)",
        "Reach on PG19", "Reach on PG19", "Reach on Proof-pile", "Reach on Proof-pile",
    ]  # fmt: skip
    text = render(tables, "md")
    assert "| yarn | at least 12K |  | 8K, not 12K |" in text
    assert "gain@" not in text
    against = reach_lines(analysis)[1].points[3].against
    ends = f"{against.difference:+.3f} ({against.low:+.3f} to {against.high:+.3f})"
    assert f"{ends}\\* |" in text


def test_what_the_config_claims_comes_from_the_results(tmp_path: Path):
    rows = samples("reach_pg19", STEPS["yarn"])
    metadata = {"shipped_length": 8192, "claimed_length": 16384, "data": {"source": "hub"}}
    make.write_lm_eval(
        tmp_path,
        {"reach_pg19": rows},
        "2026-01-02T03-04-05.000000",
        configs={"reach_pg19": {"task": "reach_pg19", "metadata": metadata}},
    )
    (line,) = reach_lines(analyse(load_results(tmp_path)))
    assert (line.shipped, line.claimed) == (8192, 16384)


def test_a_text_that_one_length_lacks_counts_at_none(tmp_path: Path):
    rows = samples("reach_pg19", STEPS["yarn"])
    rows[2] |= {f"loss@{length}": [0.0, 0] for length in LENGTHS}  # failed
    make.write_lm_eval(tmp_path, {"reach_pg19": rows}, "2026-01-02T03-04-05.000000")
    (line,) = reach_lines(analyse(load_results(tmp_path)))
    assert line.texts == 5
    losses = [np.array([r[f"loss@{n}"] for r in rows if r["doc_id"] != 2]) for n in LENGTHS]
    assert line.points[1].loss == pytest.approx(losses[1][:, 0].sum() / losses[1][:, 1].sum())


def test_two_texts_say_that_they_cannot_tell(tmp_path: Path):
    rows = samples("reach_pg19", STEPS["none"], documents=2)
    make.write_lm_eval(tmp_path, {"reach_pg19": rows}, "2026-01-02T03-04-05.000000")
    analysis = analyse(load_results(tmp_path))
    (line,) = reach_lines(analysis)
    assert reach_text(line.no_loss) == "cannot tell"
    assert "cannot tell" in render(build_tables(analysis), "md")


@pytest.mark.parametrize(("documents", "said"), [(2, 0), (3, 1), (8, 0)])
def test_an_interval_that_tells_beside_a_test_that_cannot_is_explained(tmp_path, documents, said):
    """Two texts have no interval, eight are enough for the test."""
    for method, steps in STEPS.items():
        rows = {"reach_pg19": samples("reach_pg19", steps, documents)}
        make.write_cell(tmp_path, method, rows, method=method, context_length=12288)
    notes = {table.title: table.notes for table in build_tables(analyse(load_results(tmp_path)))}
    for title in ("Against the baseline", "Reach on PG19"):
        found, *_ = (notes[each] for each in notes if each.startswith(title))
        assert sum(ASSUMED in note for note in found) == said


def test_key_losses_are_recomputed_where_texts_have_no_key_token(tmp_path: Path):
    rows = samples("reach_pg19", STEPS["none"])
    for row in rows:
        row["key_loss@12288"] = [0.0, 0]
        row["key_spans"] = [[0, 3]] * row["doc_id"]
        row["metrics"].append("key_spans")
    make.write_lm_eval(tmp_path, {"reach_pg19": rows}, "2026-01-02T03-04-05.000000")
    (path,) = tmp_path.glob("results_*.json")
    results = json.loads(path.read_text(encoding="utf-8"))
    results["results"]["reach_pg19"] |= {"key_loss@12288,none": "N/A", "key_spans,none": 15}
    path.write_text(json.dumps(results), encoding="utf-8")
    outcome = verify(load_results(tmp_path))
    assert not outcome.differences
    assert not outcome.not_recomputed
    results["results"]["reach_pg19"] |= {"key_loss@8192,none": 1.0, "key_spans,none": 14}
    path.write_text(json.dumps(results), encoding="utf-8")
    assert len(verify(load_results(tmp_path)).differences) == 2
