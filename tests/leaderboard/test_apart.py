"""What must not be ranked together: other precisions of the softmax, other versions of a text."""

import json

import fixture_results as make
import pytest

from leval_harness.analysis import analyse
from leval_harness.old_results import load_results
from leval_harness.old_tables import build_tables


def perplexity(root, cell_id, method, task, **metadata):
    """A finished perplexity cell whose results hold `metadata` of the task."""
    rows = make.perplexity_samples((2048,), -0.02 * len(cell_id), 5)
    cell = make.write_cell(root, cell_id, {task: rows}, method=method, context_length=2048)
    path = next(cell.glob("results_*.json"))
    content = json.loads(path.read_text())
    content["configs"][task]["metadata"].update(metadata)
    path.write_text(json.dumps(content))
    done = json.loads((cell / "done.json").read_text())
    (cell / "done.json").write_text(json.dumps({**done, "files": {}}))


def token_tables(root):
    tables = build_tables(analyse(load_results(root)))
    return [table for table in tables if "token perplexity" in table.title]


def methods(table):
    return [[row.cells[0].text for row in block.rows] for block in table.blocks]


def test_another_softmax_than_float32_is_marked_and_ranked_apart(tmp_path):
    perplexity(tmp_path, "a", "none", "ppl_pg19", softmax="float32")
    perplexity(tmp_path, "bb", "yarn", "ppl_pg19", softmax="float32")
    perplexity(tmp_path, "ccc", "linear", "ppl_pg19", softmax="bfloat16")
    (table,) = token_tables(tmp_path)
    assert methods(table) == [["none", "yarn"], ["linear"]]
    precise, other = table.blocks
    assert other.title.endswith("softmax: bfloat16")
    assert "softmax" not in precise.title
    assert any(note.startswith("softmax:") for note in table.notes)
    assert {row.cells[1].emphasis for row in precise.rows} == {"best", "second"}


@pytest.mark.parametrize("softmax", ["float32", "float64", ""])
def test_a_precise_softmax_needs_no_mark(tmp_path, softmax):
    perplexity(tmp_path, "a", "none", "ppl_pg19", softmax=softmax)
    (table,) = token_tables(tmp_path)
    assert table.blocks[0].title == "SmolLM2-135M"
    assert not any("softmax" in note for note in table.notes)


def pydocs(version, digest="aa"):
    files = {"pydoc_data/topics.py": digest}
    source = {"source": "pydoc_data.topics", "python_version": version, "files": files}
    return {"softmax": "float32", "data": {**source, "path": "", "sample": False}}


@pytest.mark.parametrize("digest", ["aa", "bb"])
def test_results_of_two_python_versions_never_share_a_table(tmp_path, digest):
    """Not even if the language reference has not changed between them."""
    perplexity(tmp_path, "a", "none", "ppl_pydocs", **pydocs("3.11.7"))
    perplexity(tmp_path, "bb", "yarn", "ppl_pydocs", **pydocs("3.11.7"))
    perplexity(tmp_path, "ccc", "linear", "ppl_pydocs", **pydocs("3.12.1", digest))
    first, second = token_tables(tmp_path)
    assert methods(first) == [["none", "yarn"]]
    assert methods(second) == [["linear"]]
    assert "(Python 3.11.7)" in first.title
    assert "(Python 3.12.1)" in second.title
    frame = analyse(load_results(tmp_path)).frame()
    assert frame.groupby("block")["python"].nunique().max() == 1, "nor a block, nor a comparison"


def test_one_python_version_needs_no_mark(tmp_path):
    perplexity(tmp_path, "a", "none", "ppl_pydocs", **pydocs("3.11.7"))
    (table,) = token_tables(tmp_path)
    assert "Python 3.11.7" not in table.title


def test_what_was_prefilled_and_shared_are_columns(tmp_path):
    tasks = {"leval_closed_gsm": make.closed_samples("leval_closed_gsm", 0.3, 1)}
    cell = make.write_cell(tmp_path, "a", tasks)
    done = json.loads((cell / "done.json").read_text())
    done["telemetry"] |= {"tokens_shared": 900000, "tokens_unique": 99000}
    (cell / "done.json").write_text(json.dumps(done))
    names = ["tokens_prefilled", "tokens_shared", "tokens_generated", "tokens_unique"]
    table = build_tables(analyse(load_results(tmp_path)), names)[0]
    heads = [column.label for column in table.columns][-4:]
    assert heads == ["Prefilled", "Shared", "Generated", "Unique"]
    told = [cell.text for cell in table.blocks[0].rows[0].cells][-4:]
    assert told == ["100,000", "900,000", "2,000", "99,000"]


@pytest.mark.parametrize(("longest", "together"), [(4096, True), (2048, True), (1024, False)])
def test_a_limit_beyond_the_texts_sets_no_run_apart(tmp_path, longest, together):
    """The task fixes its lengths; two factors have two limits and read the same texts."""
    rows = make.perplexity_samples((2048,), -0.02, 5)
    for cell_id, method, length in (("a", "yarn2", 8192), ("bb", "yarn4", longest)):
        cell = make.write_cell(
            tmp_path, cell_id, {"ppl_pg19": rows}, method=method, context_length=length
        )
        path = next(cell.glob("results_*.json"))
        content = json.loads(path.read_text())
        content["configs"]["ppl_pg19"]["metadata"]["prompt"] = {"context_length": 2048}
        path.write_text(json.dumps(content))
        done = json.loads((cell / "done.json").read_text())
        (cell / "done.json").write_text(json.dumps({**done, "files": {}}))
    (table,) = token_tables(tmp_path)
    assert methods(table) == ([["yarn2", "yarn4"]] if together else [["yarn2"], ["yarn4"]])
