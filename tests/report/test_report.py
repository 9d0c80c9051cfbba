"""What the commands and the end of a sweep write and print."""

import json
import shutil

import pytest
from click.testing import CliRunner

from leval_harness.cli import results as results_commands
from leval_harness.cli.results import page, table, write_report
from leval_harness.results.layout import WRITTEN

pytestmark = pytest.mark.slow


def run(command, *arguments):
    return CliRunner().invoke(command, list(map(str, arguments)))


def test_report_writes_tables_and_page_and_shows_verdict(sweep, tmp_path, capsys):
    results = tmp_path / "results"
    _, *others = sorted(run.name for run in (sweep / "runs").iterdir())
    shutil.copytree(sweep, results / "test", ignore=shutil.ignore_patterns(*others))
    write_report(results)  # of one run, which is quick
    capsys.readouterr()
    shutil.copytree(sweep, results / "test", dirs_exist_ok=True)
    write_report(results)  # what it wrote before is not read as results, and is replaced
    printed = capsys.readouterr().out
    assert "yarn compared with rope: 58.3 points worse on GSM at 512" in printed
    assert printed.count("### ") == 3
    assert "Tables: " in printed
    assert str(results / "page" / "index.html") in printed
    names = {path.name for path in results.iterdir()}
    assert names == {"test", "page", *(f"table.{form}" for form in WRITTEN)}
    assert (results / "table.md").read_text().count("### ") == 3


@pytest.mark.slow(long=True)
def test_report_names_tables_that_are_long(real_runs, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(results_commands, "MOST_ROWS", 1)
    shutil.copytree(real_runs, tmp_path / "results")
    write_report(tmp_path / "results")
    printed = capsys.readouterr().out
    assert "### Effective context length, SmolLM2-135M" not in printed
    assert "Not shown: Effective context length, SmolLM2-135M (2 rows), in table.md" in printed


def test_table_begins_with_the_verdict(real_runs):
    lines = run(table, real_runs).stdout.splitlines()
    assert (
        lines[0] == "SmolLM2-135M, native context length 8,192 tokens; 3 documents of 1,024 tokens"
    )
    assert lines[2].startswith("method    effective context length")
    assert lines[3].startswith("rope      ≥ 1,024 (longest measured)")
    assert lines[4].startswith("yarn      undecided")
    assert lines[6] == "Recommended: rope up to 1,024 tokens."
    assert all(line.endswith((".", "`")) for line in lines[6 : lines.index("", 6)])


def test_table_written_to_a_file_is_markdown(real_runs, tmp_path):
    run(table, real_runs, "--out", tmp_path / "t.md")
    lines = (tmp_path / "t.md").read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("**SmolLM2-135M, native context length")
    assert lines[4].startswith("| rope | ≥ 1,024 (longest measured) |")


def test_table_options_reach_the_frame(real_runs):
    options = ("--margin", "0.2", "--method-name", "yarn=served on :8000")
    wide = run(table, real_runs, *options).stdout
    assert "served on :8000    ≥ 1,024 (longest measured)" in wide
    turned = run(table, real_runs, "--baseline", "yarn").stdout
    assert "against yarn, 256–1,024" in turned
    assert "−0.028 [−0.042, −0.015]" in turned
    assert "against rope, 256–1,024" in wide
    assert "+0.028 [0.015, 0.042]" in wide


@pytest.mark.slow(long=True)
def test_models_are_ranked_on_the_same_questions(sweep, real_runs):
    hint = "--across models"
    assert hint in run(table, sweep, real_runs).stderr
    done = run(table, sweep, real_runs, "--across", "models", "--json")
    assert hint not in done.stderr
    rows = json.loads(done.stdout)
    assert {row["label"] for row in rows if row["name"]} >= {"SmolLM2-135M, rope"}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (["--baseline", "yran"], "did you mean 'yarn'"),
        (["--method-name", "yarn"], "is not of the form METHOD=NAME"),
        (["--method-name", "foo=bar"], "no method, run or folder 'foo'"),
        (["--format", "pdf"], "'pdf' is not one of"),
        (["--margin", "0"], "--margin"),
        (["--verify"], "No such option"),
    ],
)
def test_table_names_what_is_wrong(real_runs, wrong, says):
    done = run(table, real_runs, *wrong)
    assert done.exit_code != 0
    assert says in done.output + str(done.exception)


@pytest.mark.slow(long=True)
def test_page_command_prints_the_path(real_runs, tmp_path):
    done = run(page, real_runs, "--out", tmp_path / "p", "--baseline", "yarn")
    assert done.exit_code == 0, done.output
    assert str(tmp_path / "p" / "index.html") in done.output
    assert "Against yarn, 256–1,024" in (tmp_path / "p" / "index.html").read_text()
