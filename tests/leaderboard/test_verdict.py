"""The verdict: every number of a sentence stands in a table, on a terminal and in Python."""

import io
import re
from dataclasses import replace
from pathlib import Path

import fixture_results as make
import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

import leval_harness as lh
from leval_harness.analysis import analyse
from leval_harness.analysis import verdict as verdict_module
from leval_harness.analysis.effective_context import effective_lines
from leval_harness.analysis.labels import method_title
from leval_harness.analysis.verdict import verdicts
from leval_harness.cli.results import table as command
from leval_harness.page import data as page_data
from leval_harness.old_tables import build_tables
from leval_harness.old_tables.terminal import draw

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "golden" / "results"
FOLDERS = [HERE / "effective", *(GOLDEN / name for name in ("sweep", "perplexity", "posgen"))]
every_folder = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)


def numbers(text: str) -> list[float]:
    """Decimal numbers of a text."""
    return [float(each) for each in re.findall(r"[+-]?\d+\.\d+", text)]


@every_folder
def test_every_number_in_a_sentence_is_in_a_table(folder: Path) -> None:
    compared = lh.load(folder)
    frame = compared.to_pandas()
    known = [frame[name].dropna() for name in ("difference", "diff_low", "diff_high")]
    perplexities = 100 * np.expm1(frame["difference"].dropna())
    bins = [
        value
        for line in effective_lines(compared.analysis)[0]
        for each in (*line.these.bins, *(line.against.bins if line.against else ()))
        for value in (each.gain, each.low, each.high)
        if value is not None
    ]
    margins = [line.margin for line in effective_lines(compared.analysis)[0]]
    shares = [100 * each for each in known]
    table = np.abs(np.concatenate([*known, *shares, perplexities, bins, margins]))
    found = verdicts(compared.analysis)
    assert all(verdict.sentences for verdict in found)
    for verdict in found:
        for number in numbers(" ".join([*verdict.sentences, *verdict.notes])):
            assert np.abs(table - abs(number)).min() < 0.051, (number, verdict)


def test_methods_of_the_effective_context_are_compared_and_what_is_open_is_named() -> None:
    compared = lh.load(HERE / "effective")
    (verdict,) = verdicts(compared.analysis)
    lines, _ = effective_lines(compared.analysis)
    titles = compared.analysis.titles
    names = [titles[line.method] for line in lines]
    assert [text.split(":")[0] for text in verdict.sentences[: len(lines)]] == names
    assert any(text.startswith(f"{names[1]} against {names[0]}") for text in verdict.sentences)
    assert compared.verdict() == str(verdict)
    assert not any("Not decided" in text for text in verdict.sentences)
    (wide,) = verdicts(analyse(compared.results, margin=0.02))
    texts = "--set tasks.effective_context_govreport.metadata.num_docs=8"
    command = f"`{compared.results.runs[0].command} {texts}`"
    wanted = f"Not decided for YaRN ×16: {command} reads twice the texts, in about 1 minute"
    assert wide.sentences[-1] == wanted


def test_what_no_method_decides_takes_one_sentence(tmp_path: Path) -> None:
    for method, skill in (("rope", 0.02), ("yarn", 0.98), ("linear", 0.98)):
        rows = make.closed_samples("leval_closed_gsm", skill, 1, limit=2)
        make.write_cell(tmp_path, method, {"leval_closed_gsm": rows}, method=method)
    (verdict,) = verdicts(lh.load(tmp_path, baseline="rope").analysis)
    assert verdict.sentences == (
        "Inconclusive (n = 2): Linear scaling on GSM at 8K (+100.0 points), "
        "YaRN on GSM at 8K (+100.0 points)",
    )


def test_inconclusive_tasks_name_the_command_that_reads_enough(tmp_path: Path) -> None:
    command = "leval-harness sweep mine.yaml"
    for method, skill in (("rope", 0.02), ("yarn", 0.98)):
        rows = make.closed_samples("leval_closed_gsm", skill, 1, limit=2)
        record = {"metadata": {"num_docs": 2}, "command": command}
        make.write_cell(tmp_path, method, {"leval_closed_gsm": rows}, method=method, **record)
    (verdict,) = verdicts(lh.load(tmp_path, baseline="rope").analysis)
    more = f"`{command} --set tasks.leval_closed_gsm.metadata.num_docs=6` reads enough texts"
    start = f"Inconclusive (n = 2): YaRN on GSM at 8K (+100.0 points); {more}"
    assert verdict.sentences[0].startswith(start)
    analysis, entries = lh.load(tmp_path, baseline="rope").analysis, []
    for minute, entry in enumerate(analysis.entries):  # one after another, ten minutes each
        created = f"2026-01-01T{minute:02}:00:00"
        entries.append(replace(entry, run=replace(entry.run, created=created, seconds=600)))
    runs = len({entry.run.run_id for entry in entries})
    assert runs == 2
    (verdict,) = verdicts(replace(analysis, entries=entries))
    assert verdict.sentences[0].endswith("in about 60 minutes")  # three times the texts, both runs


def test_the_bundled_sample_decides_nothing_and_says_nothing(tmp_path: Path) -> None:
    for method, skill in (("rope", 0.02), ("yarn", 0.98)):
        rows = make.closed_samples("leval_closed_gsm", skill, 1, limit=2)
        tasks = {"leval_closed_gsm": rows}
        make.write_cell(tmp_path, method, tasks, method=method, sample=True)
    analysis = lh.load(tmp_path, baseline="rope").analysis
    assert [entry.mark for entry in analysis.entries if entry.score.primary] == ["", "?"]
    assert verdicts(analysis) == []


def test_an_interval_around_zero_keeps_its_signs() -> None:
    entry = next(e for e in lh.load(GOLDEN / "sweep").analysis.entries if e.mark == "*")
    for low, high, ends in ((-0.1, 0.9, "-10.0 to 90.0"), (0.2, 0.8, "20.0 to 80.0")):
        for way in (1, -1):  # better, worse
            sides = sorted((way * low, way * high))
            both = dict(zip(("low", "high"), sides, strict=True), difference=way * 0.5)
            turned = replace(entry, difference=replace(entry.difference, **both))
            assert verdict_module._difference(turned).endswith(f"interval {ends}")


def test_words_are_not_broken_on_a_terminal_of_usual_width() -> None:
    console = Console(file=io.StringIO(), width=120)
    draw(build_tables(lh.load(HERE / "effective").analysis)[:1], console)
    drawn = console.file.getvalue()
    assert all(word in drawn for word in ("degradation", "inconclusive", "position"))


def test_a_page_folds_the_comparisons_of_a_long_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    analysis = lh.load(HERE / "effective").analysis
    (verdict,) = verdicts(analysis)
    assert verdict.by_position
    assert set(verdict.by_position) < set(verdict.sentences)
    (short,) = page_data.verdict([verdict])
    assert short["folded"] == []
    monkeypatch.setattr(page_data, "MOST_SENTENCES", 1)
    (long,) = page_data.verdict([verdict])
    assert long["folded"] == list(verdict.by_position)
    assert sorted(long["sentences"] + long["folded"]) == sorted(verdict.sentences)


def test_computing_side_by_side_counts_once() -> None:
    run = lh.load(HERE / "effective").results.runs[0]
    spans = [(0, 100), (50, 100), (50, 20), (300, 10)]
    runs = [
        replace(run, run_id=f"{at}", created=f"2026-01-01T00:{s // 60:02}:{s % 60:02}", seconds=n)
        for at, (s, n) in enumerate(spans)
    ]
    assert verdict_module._busy(runs) == 160


def test_table_ends_with_the_verdict_unless_a_format_is_given() -> None:
    folder = str(HERE / "effective")
    verdict = lh.load(folder).verdict()
    assert CliRunner().invoke(command, [folder]).stdout.endswith(f"\n{verdict}\n")
    assert verdict not in CliRunner().invoke(command, [folder, "--format", "md"]).stdout


@every_folder
def test_a_terminal_gets_the_same_cells_as_a_file(folder: Path) -> None:
    tables = build_tables(lh.load(folder).analysis)
    console = Console(file=io.StringIO(), width=400, force_terminal=True, color_system="standard")
    draw(tables, console)
    drawn = console.file.getvalue()
    text = re.sub(r"\x1b\[[0-9;]*m", "", drawn)
    for table in tables:
        assert table.title in text
        for block in table.blocks:
            for row in block.rows:
                wanted = [cell.text for cell in row.cells if cell.text]
                assert any(all(part in line for part in wanted) for line in text.splitlines())
    ranked = [c for t in tables for b in t.blocks for r in b.rows for c in r.cells if c.rank == 1]
    bold = r"\x1b\[(?:[0-9;]*;)?1(?:;[0-9;]*)?m *"
    assert all(re.search(bold + re.escape(cell.text), drawn) for cell in ranked)
    assert "\\_" not in drawn


@pytest.mark.parametrize(
    ("settings", "title"),
    [
        ('{"rope_type": "dynamic", "factor": 1.0}', "Dynamic NTK"),
        ('{"rope_type": "resonance_yarn", "factor": 2.0}', "Resonance YaRN ×2"),
        ('{"rope_type": "default"}', "RoPE (no scaling)"),
    ],
)
def test_titles_give_a_factor_that_scales(settings, title):
    assert method_title(settings) == title
