"""Paired differences of perplexity, by text and pooled, against a plain paired t-interval."""

import csv
import io
import itertools
import json

import fixture_results as make
import numpy as np
import pytest
from click.testing import CliRunner
from scipy import stats

from leval_harness.analysis import analyse
from leval_harness.analysis.differences import paired_differences, parse_pairs
from leval_harness.cli.main import app
from leval_harness.old_results import ResultsError, load_results
from leval_harness.old_tables.effective_context import difference_table
from resonance_vllm.errors import SettingError

TOKENS = {8192: 8191, 12288: 12287}
BAND = "nll@8192-12288"


def samples(nats, tokens=TOKENS, prefix="d"):
    """Logged samples from mean nats a token, one column a length, of each document."""
    rows = []
    for at, means in enumerate(nats):
        sums = {length: mean * tokens[length] for length, mean in zip(tokens, means, strict=True)}
        values = {f"token_perplexity@{length}": [sums[length], tokens[length]] for length in tokens}
        first, last = sums.values()
        values["nll@0-8192"] = [first, tokens[8192]]
        values[BAND] = [last - first, tokens[12288] - tokens[8192]]
        rows.append(make.logged(at, prefix, values))
    return rows


@pytest.fixture
def drawn():
    """Mean nats of (method, text): `[documents, lengths]`; GovReport has one document."""
    rng = np.random.default_rng(3)
    texts = {"ppl_govreport": 1, "ppl_pg19": 5, "ppl_proofpile": 6}
    base = {text: 2.5 + rng.normal(0, 0.3, (n, 2)) for text, n in texts.items()}
    return {
        method: {t: v + rng.normal(gain, 0.02, v.shape) for t, v in base.items()}
        for method, gain in (("rope", 0.0), ("resonance", -0.03))
    }


@pytest.fixture
def results(tmp_path, drawn):
    for method, texts in drawn.items():
        for text, nats in texts.items():
            make.write_cell(
                tmp_path / "r", f"{method}-{text}", {text: samples(nats, prefix=text)},
                method=method, context_length=12288, host={"cores": 2, "name": "secret"},
            )  # fmt: skip
    return tmp_path / "r"


def compared(analysis, pairs):
    return difference_table(*paired_differences(analysis, pairs))


def rows_of(table):
    labels = [column.label for column in table.columns]
    return {
        (row.cells[1].text, row.cells[2].text): dict(zip(labels, row.cells, strict=True))
        for block in table.blocks
        for row in block.rows
    }


def test_differences_are_paired_t_intervals_over_documents(results, drawn):
    table = compared(analyse(load_results(results)), parse_pairs(["resonance:rope"]))
    rows = rows_of(table)
    texts = ["GovReport", "PG19", "Proof-pile", "all"]
    assert list(rows) == [(t, x) for x in ("8K", "12K", "8K to 12K") for t in texts]
    both = [np.concatenate(list(drawn[m].values())) for m in ("resonance", "rope")]
    d = (both[0] - both[1])[:, 1]
    row = rows["all", "12K"]
    expected = stats.ttest_1samp(d, 0).confidence_interval()
    assert row["Documents"].text == "12"
    assert row["Difference"].value == pytest.approx(d.mean())
    assert (row["95% low"].value, row["95% high"].value) == pytest.approx(tuple(expected))
    flips = np.array(list(itertools.product((1, -1), repeat=12)))
    share = (np.abs(flips @ d) >= abs(d.sum()) - 1e-12).mean()
    assert row["p"].value == pytest.approx(share)
    assert row["Baseline"].value == pytest.approx(both[1][:, 1].mean())
    own = drawn["resonance"]["ppl_pg19"] - drawn["rope"]["ppl_pg19"]
    between = (own[:, 1] * 12287 - own[:, 0] * 8191) / 4096
    assert rows["PG19", "8K to 12K"]["Difference"].value == pytest.approx(between.mean())


def test_one_document_has_a_difference_and_no_interval(results, drawn):
    table = compared(analyse(load_results(results)), [("resonance", "rope")])
    row = rows_of(table)["GovReport", "8K"]
    d = drawn["resonance"]["ppl_govreport"] - drawn["rope"]["ppl_govreport"]
    assert row["Difference"].value == pytest.approx(d[0, 0])
    assert [row[name].text for name in ("95% low", "95% high", "p")] == ["–"] * 3


def test_the_table_says_how_it_was_made_and_how_small_it_is(results):
    notes = compared(analyse(load_results(results)), [("resonance", "rope")]).notes
    assert "Made by: leval-harness sweep test.yaml" in notes
    assert "Versions: leval-harness 0.1.0, torch 2.13.0" in notes
    assert "Seeds: 0" in notes
    assert notes[-1] == (
        "Scale: SmolLM2-135M, float32, 12 documents, 2 CPU cores, 6 minutes for all 6 runs"
    )
    assert not any("secret" in note for note in notes)


def test_only_documents_of_both_count_and_failed_ones_do_not(tmp_path, drawn):
    rows = samples(drawn["rope"]["ppl_pg19"])
    make.write_cell(tmp_path / "r", "a", {"ppl_pg19": rows}, method="rope")
    other = samples(drawn["resonance"]["ppl_pg19"])[1:]
    for name in other[0]["metrics"]:
        other[0][name] = [0.0, 0]
    make.write_cell(tmp_path / "r", "b", {"ppl_pg19": other}, method="resonance")
    table = compared(analyse(load_results(tmp_path / "r")), [("resonance", "rope")])
    assert rows_of(table)["PG19", "8K"]["Documents"].text == "3"


def test_errors_name_what_is_wrong(results, tmp_path, drawn):
    analysis = analyse(load_results(results))
    with pytest.raises(SettingError, match="pair: 'yarn' is not allowed; allowed: resonance, rope"):
        compared(analysis, [("yarn", "rope")])
    for text in ("yarn", "a:b:c", ":rope", "rope:rope"):
        with pytest.raises(SettingError, match="must name two methods as METHOD:BASELINE"):
            parse_pairs([text])
    nats = drawn["rope"]["ppl_pg19"]
    make.write_cell(tmp_path / "x", "a", {"ppl_pg19": samples(nats)}, method="rope")
    shorter = samples(nats, tokens={8192: 8190, 12288: 12286})
    make.write_cell(tmp_path / "x", "b", {"ppl_pg19": shorter}, method="yarn")
    with pytest.raises(ResultsError, match="another number of tokens"):
        compared(analyse(load_results(tmp_path / "x")), [("yarn", "rope")])
    closed = {"leval_closed_gsm": make.closed_samples("leval_closed_gsm", 0.3, 1)}
    for method in ("rope", "yarn"):
        make.write_cell(tmp_path / "y", method, closed, method=method)
    with pytest.raises(ResultsError, match=r"no perplexity of .* rope has none"):
        compared(analyse(load_results(tmp_path / "y")), [("yarn", "rope")])


def test_the_command_prints_it_in_every_format(results):
    def run(*more):
        pair = ("--pair", "resonance:rope")
        outcome = CliRunner().invoke(app, ["table", str(results), *pair, *more])
        assert outcome.exit_code == 0, outcome.output
        return outcome.stdout

    assert "| resonance − rope | all | 12K | 12 |" in run()
    assert r"\toprule" in run("--format", "tex")
    assert "<td" in run("--format", "html")
    (row,) = [
        row
        for row in csv.DictReader(io.StringIO(run("--format", "csv")))
        if (row["Text"], row["Tokens"]) == ("all", "12K")
    ]
    (same,) = [
        row for row in json.loads(run("--json")) if (row["Text"], row["Tokens"]) == ("all", "12K")
    ]
    assert float(row["95% low"]) == same["95% low"] < same["Difference"]
