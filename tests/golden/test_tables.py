"""Every table of the frozen results, in every format."""

import json
from functools import cache

import pytest
from golden_access import RESULTS, fine, inside, run

FORMATS = ("md", "csv", "tex", "html")
# name -> folders and flags
TABLES = {
    "sweep": ("sweep",),
    "against-yarn": ("sweep", "--baseline", "yarn"),
    "published": ("sweep", "--published"),
    "not-published": ("sweep", "--no-published"),
    "costs": ("sweep", "--columns", "seconds,tokens_per_second,peak_memory,tokens_prefilled"),
    "perplexity": ("perplexity",),
    "pairs": ("perplexity", "--pair", "resonance:rope", "--pair", "resonance_yarn:yarn"),
    "posgen": ("posgen",),
    "lm_eval": ("lm_eval",),
    "all": ("sweep", "perplexity", "posgen", "lm_eval"),
}
AS_JSON = ("sweep", "pairs")


@cache
def table(name, *flags):
    with inside(RESULTS):
        ran = run("table", *TABLES[name], *flags)
    assert ran.code == 0, ran.err
    return ran


@pytest.mark.parametrize("output", FORMATS)
@pytest.mark.parametrize("name", TABLES)
def test_table(golden, name, output):
    golden(f"tables/{name}.{output}", table(name, "--format", output).out)


@pytest.mark.parametrize("name", AS_JSON)
def test_every_number_as_json(golden, name):
    rows = json.loads(table(name, "--json").out)
    golden(f"tables/{name}.json", {f"{at}": row for at, row in enumerate(rows)})


def test_notes(golden):
    golden("tables/notes.txt", "".join(table(name, "--format", "md").err for name in TABLES))


def test_a_file_holds_what_is_printed(tmp_path):
    table("posgen", "--out", tmp_path / "table.md")
    assert (tmp_path / "table.md").read_text(encoding="utf-8") == table("posgen").out


def test_recomputed_from_the_samples(golden):
    with inside(RESULTS):
        ran = run("table", "sweep", "--verify")
        assert ran.code == 1
        assert run("table", "sweep/yarn4096", "posgen", "--verify").code == 0
    golden("tables/verify.txt", ran.out)


@pytest.mark.parametrize("output", FORMATS)
def test_posgen_runs(golden, output):
    with inside(RESULTS):
        golden(f"tables/posgen_train.{output}", fine("posgen", "table", "posgen_train",
                                                     "--format", output))  # fmt: skip


def test_posgen_runs_as_json(golden):
    with inside(RESULTS):
        rows = json.loads(fine("posgen", "table", "posgen_train", "--json"))
    golden("tables/posgen_train.json", {f"{at}": row for at, row in enumerate(rows)})
