"""What the commands and the end of a sweep write and print."""

import json
import shutil

import pytest
from click.testing import CliRunner

from leval_harness.cli.results import page as page_command
from leval_harness.cli.results import table as table_command
from leval_harness.cli.results import write_report
from leval_harness.format_names import format_names


def test_report_writes_tables_and_page_and_prints_both(sweep, tmp_path, capsys):
    results = tmp_path / "results"
    shutil.copytree(sweep, results / "test")
    write_report(results)
    write_report(results)  # its own output is not read as results, and is replaced
    printed = capsys.readouterr().out
    assert "| resonance\\_yarn | 8K |" in printed
    assert str(results / "page" / "index.html") in printed
    names = {path.name for path in results.iterdir()}
    assert names >= {"table.md", "table.csv", "table.tex", "table.html"}
    assert names == {"test", "page", *(f"table.{name}" for name in format_names())}


@pytest.mark.parametrize("output", ["md", "csv", "tex", "html"])
def test_table_formats(sweep, output, tmp_path):
    out = tmp_path / "t"
    done = CliRunner().invoke(
        table_command, [str(sweep), "--format", output, "--out", str(out), "--baseline", "yarn"]
    )
    assert done.exit_code == 0, done.output
    assert "resonance" in out.read_text()


def test_json_is_json_alone(sweep):
    done = CliRunner().invoke(table_command, [str(sweep), "--json"])
    rows = json.loads(done.stdout)
    toefl = [r for r in rows if r["task"] == "leval_closed_toefl" and r["metric"] == "exact_match"]
    assert len(toefl) == 8
    assert all(0 <= r["value"] <= 100 for r in toefl)


def test_verify_ends_with_1_where_something_differs(sweep):
    done = CliRunner().invoke(table_command, [str(sweep), "--verify"])
    assert "numbers recomputed from the samples" in done.output
    assert done.exit_code == 1  # the fixture's answers are not scored by the official rule


def test_page_command_prints_the_path(sweep, tmp_path):
    done = CliRunner().invoke(
        page_command, [str(sweep / "04096"), "--out", str(tmp_path / "p"), "--title", "A <b>"]
    )
    assert done.exit_code == 0, done.output
    assert str(tmp_path / "p" / "index.html") in done.output
    assert "A &lt;b&gt;" in (tmp_path / "p" / "index.html").read_text()
