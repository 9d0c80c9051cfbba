"""Effective context length of a real small sweep: its lines against the losses on disk."""

import hashlib
import itertools
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from leval_harness.analysis import analyse
from leval_harness.analysis.effective_context import Against, _differences, effective_lines
from leval_harness.analysis.effective_sentences import (
    against_sentence,
    length_text,
    like_text,
    sentence,
    verdicts,
    yardstick,
)
from leval_harness.analysis.entries import LEVEL
from leval_harness.analysis.labels import length_label
from leval_harness.analysis.verdict import verdicts as verdict_lines
from leval_harness.cell_record import CellRecord, cell_id
from leval_harness.old_figures.style import method_looks
from leval_harness.old_figures.write import planned_figures
from leval_harness.old_results import load_results, token_losses
from leval_harness.old_results.token_losses import ReadText
from leval_harness.page import write_page
from leval_harness.sweep.cell_files import relabel
from leval_harness.old_tables import build_tables, render
from leval_tasks.effective_context.reads import block_rows
from leval_tasks.statistics.effective_context import (
    FEWEST_TEXTS,
    Blocks,
    Length,
    better_or_worse,
    block_sums,
)

SWEEP = Path(__file__).parent / "effective"
WINDOWS, ROPE, YARN = "161d7265de3e1099", "0c06ebb25cd3db15", "82d4b1879adb947b"
START = 64


@pytest.fixture(scope="module")
def analysis():
    return analyse(load_results(SWEEP))


def losses(cell: str, read: str) -> dict[str, np.ndarray]:
    files = (SWEEP / cell).glob(f"losses_*_{read}.npy")
    return {each.stem.split("_")[-2]: np.load(each) for each in files}


def test_a_line_is_what_the_losses_on_disk_say(analysis):
    lines, gaps = effective_lines(analysis)
    assert gaps == ()
    assert [(line.method, line.texts, line.shared) for line in lines] == [
        ("rope", 4, True), ("yarn", 4, True),
    ]  # fmt: skip
    short = losses(WINDOWS, "short")
    for line, cell in zip(lines, (ROPE, YARN), strict=True):
        full = losses(cell, "full")
        assert full.keys() == short.keys()
        gains = {name: np.clip(short[name] - full[name], -1, 1) for name in full}
        assert line.tokens == sum(each.size for each in gains.values())
        raw = sum((short[name] - full[name]).sum(dtype=float) for name in full)
        assert line.raw == pytest.approx(raw / line.tokens, abs=1e-5)
        assert (line.window, line.these.bins[0].start) == (START, START)
        # blocks belong to the bin of their middles; the bins of all texts hold every token
        sums = sum(each.sum(dtype=float) for each in gains.values())
        tokens = [_tokens(gains, each.start, each.end) for each in line.these.bins]
        assert sum(tokens) == line.tokens
        means = [each.gain for each in line.these.bins]
        assert np.dot(means, tokens) == pytest.approx(sums, abs=0.02)


def _tokens(gains, start, end):
    """Tokens of the 512-token blocks whose middles lie in a bin."""
    total = 0
    for each in gains.values():
        edges = [*range(0, each.size, 512), each.size]
        if len(edges) > 2 and edges[-1] - edges[-2] < 256:
            edges.pop(-2)
        for a, b in itertools.pairwise(edges):
            total += (b - a) * (start < START + (a + b) / 2 <= end)
    return total


def test_methods_are_compared_on_the_same_tokens(analysis):
    (rope, yarn), _ = effective_lines(analysis)
    assert rope.against is None
    one, other = losses(ROPE, "full"), losses(YARN, "full")
    saved = sum((one[name] - other[name]).sum(dtype=float) for name in one)
    tokens = [_tokens(one, each.start, each.end) for each in yarn.against.bins]
    found = np.dot([each.gain for each in yarn.against.bins], tokens)
    assert found == pytest.approx(saved, abs=0.02)


def test_a_verdict_on_the_baseline_needs_all_positions_together(analysis):
    (rope, yarn), _ = effective_lines(analysis)
    assert rope.against is None
    one, other = losses(ROPE, "full"), losses(YARN, "full")
    bins = yarn.against.bins
    assert not any(yarn.against.verdicts)  # a random model
    said = against_sentence("yarn", yarn.against)
    where = f"no difference is shown at {bins[0].start:,}–{bins[-1].end:,} ("
    assert said.startswith(f"yarn against rope, by position (nats/token): {where}")
    edges = [bins[0].start, *(each.end for each in bins)]

    def text(read, end=4096):
        sums, tokens = block_sums(read.astype(float))
        starts = START + np.cumsum(tokens) - tokens
        rows = np.full((tokens.size, 6), np.nan)
        rows[:, 0], rows[:, 1], rows[:, 2] = starts, tokens, sums
        return ReadText("t", "d", rows, {})

    # what is better by far in the second bin alone
    late = {name: each - 0.5 * (np.arange(each.size) > edges[1]) for name, each in one.items()}
    sides = [{name: text(each) for name, each in side.items()} for side in (late, other)]
    found = Against("yarn", *better_or_worse(Blocks.joined(_differences(*sides)), edges, LEVEL))
    assert found.verdicts == ("", "better")
    said = against_sentence("yarn", found)
    gained = f"({found.bins[1].gain:+.3f}, interval "
    where = f"{edges[1]:,}–{edges[2]:,}"
    begin = f"yarn against yarn, by position (nats/token): better at {where} {gained}"
    assert said.startswith(begin)
    everywhere = replace(found, verdicts=("better", "better"))
    said = against_sentence("yarn", everywhere)
    assert f"better at {edges[0]:,}–{edges[2]:,} (" in said
    assert " in 2 bins, interval " in said
    worse = Blocks.joined(_differences(*sides[::-1]))
    assert better_or_worse(worse, edges, LEVEL)[1] == ("", "worse")


def test_resonance_is_compared_with_the_same_method_without_it(tmp_path):
    folder = shutil.copytree(SWEEP, tmp_path / "copy")
    cell = shutil.copytree(folder / YARN, folder / "resonance")
    record = CellRecord.model_validate_json((cell / "cell.json").read_text())
    done = json.loads((cell / "done.json").read_text())
    (cell / "done.json").write_text(json.dumps({**done, "cell_id": "resonance"}))
    rope = {**record.method.rope_parameters, "rope_type": "resonance_yarn"}
    identity = {**record.identity, "rope_parameters": rope}
    method = record.method.model_copy(update={"name": "resonance_yarn", "rope_parameters": rope})
    changed = {"cell_id": "resonance", "method": method, "identity": identity}
    relabel(cell, record.model_copy(update=changed))
    analysis = analyse(load_results(folder))
    rope, yarn, resonance = effective_lines(analysis)[0]
    assert [rope.resonance, yarn.resonance] == [None, None]
    assert (resonance.against.baseline, resonance.resonance.baseline) == ("rope", "yarn")
    assert [each.gain for each in resonance.resonance.bins] == [0.0, 0.0]
    assert any(" against YaRN ×16, by" in each for each in verdict_lines(analysis)[0].sentences)
    alone = analyse(load_results(folder), "yarn")
    assert effective_lines(alone)[0][-1].resonance is None


def test_losses_are_read_once_for_tables_verdict_figures_and_page(analysis, tmp_path, monkeypatch):
    read = []
    real = token_losses.parsed_lines
    monkeypatch.setattr(
        token_losses, "parsed_lines", lambda path: read.append(path.parent.name) or real(path)
    )
    build_tables(fresh := analyse(analysis.results))
    list(planned_figures(fresh))
    write_page(fresh, tmp_path / "page")
    assert sorted(read) == sorted((WINDOWS, ROPE, YARN))


def test_a_second_window_is_used_past_the_trained_length(analysis):
    for line in effective_lines(analysis)[0]:
        assert line.trained == 256
        assert "past 256 also windows of that length" in yardstick(line)


@pytest.fixture
def copied(tmp_path):
    return shutil.copytree(SWEEP, tmp_path / "sweep")


def test_losses_that_were_altered_are_left_out_by_name(copied):
    name = "losses_effective_context_govreport_govreport-1_full.npy"
    content = np.load(copied / YARN / name)
    np.save(copied / YARN / name, content + 1)
    lines, gaps = effective_lines(analyse(load_results(copied)))
    assert [line.method for line in lines] == ["rope"]
    assert any(name in gap for gap in gaps)


def test_texts_without_short_windows_are_named(copied):
    shutil.rmtree(copied / WINDOWS)
    lines, gaps = effective_lines(analyse(load_results(copied)))
    assert lines == ()
    assert sum("no short windows" in gap for gap in gaps) == 8


def test_a_single_run_is_compared_with_its_own_windows(tmp_path, analysis):
    """lm-eval's files alone, which hold blocks: the same bins as from the losses of tokens."""
    windows, full = losses(WINDOWS, "short"), losses(ROPE, "full")
    for path in (SWEEP / ROPE).glob("results_*.json"):
        shutil.copy(path, tmp_path)
    for path in (SWEEP / ROPE).glob("samples_*.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for row in rows:
            name = row["doc"]["document_id"]
            blocks = block_rows({"full": full[name], "short": windows[name]}, START)
            row["filtered_resps"] = [[[str(each) for each in block] for block in blocks]]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / path.name).write_text(lines)
    (own,), gaps = effective_lines(analyse(load_results(tmp_path)))
    assert gaps == ()
    assert not own.shared
    assert "under the same method" in yardstick(own)
    rope = effective_lines(analysis)[0][0]
    assert [each.gain for each in own.these.bins] == pytest.approx(
        [each.gain for each in rope.these.bins], abs=1e-6
    )
    assert own.these.benefits == rope.these.benefits


def test_the_margin_of_a_sweep_is_that_of_its_tables_and_can_be_replaced(tmp_path):
    assert {line.margin for line in effective_lines(analyse(load_results(SWEEP)))[0]} == {0.01}
    folder = shutil.copytree(SWEEP, tmp_path / "copy")
    for cell in folder.glob("*/cell.json"):
        record = CellRecord.model_validate_json(cell.read_text())
        relabel(cell.parent, record.model_copy(update={"margin": 0.03}))
    wide = analyse(load_results(folder))
    assert {line.margin for line in effective_lines(wide)[0]} == {0.03}
    narrow = analyse(wide.results, margin=0.02)
    assert {line.margin for line in effective_lines(narrow)[0]} == {0.02}
    assert all("below 0.02 nats" in each for each in verdict_lines(narrow)[0].notes)
    assert any("below 0.03 nats" in each for each in verdicts(effective_lines(wide)[0]))


@pytest.mark.parametrize(
    ("shown", "refused", "cell", "said"),
    [
        (12288, None, "12K", "no degradation up to 12K, the longest position measured"),
        (8192, 9728, "between 8K and 9,728", "no degradation up to 8K, degradation by 9,728"),
        (2048, 4096, "below 4K", "degradation by 4K"),
        (8192, None, "at least 8K", "no degradation up to 8K, not decided beyond"),
        (2048, None, "inconclusive", "whether longer context degrades is not decided"),
    ],
)
def test_the_verdict_has_one_form_in_cells_and_one_in_sentences(
    analysis, shown, refused, cell, said
):
    length = Length(shown=shown, refused=refused, measured=12288, start=2048)
    assert length_text(length) == cell
    line = effective_lines(analysis)[0][0]
    these = replace(line.these, no_degradation=length, benefits=length)
    text = sentence(replace(line, these=these, agree=(3, 4), break_at=9850))
    assert text.startswith(f"rope: {said}")
    assert ("it breaks near 9,850" in text) == (refused is not None)
    assert ("benefits from context up to" in text) == (shown > 2048)
    assert text.endswith("(3 of 4 texts agree)")
    few = like_text(replace(line, texts=FEWEST_TEXTS - 1), None)
    assert few == f"inconclusive (n = {FEWEST_TEXTS - 1})"
    undecided = like_text(line, length) == "inconclusive (n = 4)"
    assert undecided == (refused is None and shown < 12288)


def test_tables_figure_and_page_say_the_same(analysis, tmp_path):
    lines, _ = effective_lines(analysis)
    text = render(build_tables(analysis), "md")
    page = (write_page(analysis, tmp_path / "page")).read_text(encoding="utf-8")
    for line in lines:
        assert sentence(line) in text
        assert sentence(line).removeprefix(line.method) in page
    rows = [re.findall("<td[^>]*>([^<]*)</td>", row) for row in page.split("<tr>")]
    for line in lines:
        gains = [f"{each.gain:+.3f}" for each in line.these.bins]
        kept, benefits = line.these.no_degradation, line.these.benefits
        claimed = length_label(line.claimed)
        assert [length_text(kept), length_text(benefits), claimed, *gains] in rows
    assert "short windows |" not in text
    (figure,) = [each for each in planned_figures(analysis) if each.kind == "effective"]
    drawn = figure.draw(method_looks(analysis.titles))
    curves = [curve.get_ydata() for curve in drawn.axes[0].get_lines()][:2]
    for curve, line in zip(curves, lines, strict=True):
        assert list(curve) == [each.gain for each in line.these.bins]


def test_each_checkpoint_of_a_block_has_its_own_windows(tmp_path):
    """A checkpoint that was fine-tuned to YaRN, under the name of the one that it comes from."""
    folder = shutil.copytree(SWEEP, tmp_path / "copy")
    shutil.copytree(folder / WINDOWS, folder / "tuned")
    for cell in (folder / "tuned", folder / YARN):
        record = CellRecord.model_validate_json((cell / "cell.json").read_text())
        model = {**record.identity["model"], "files": {"model.safetensors": "another"}}
        identity = {**record.identity, "model": model}
        changes = {"identity": identity, "cell_id": cell_id(identity)}
        moved = record.model.model_copy(update={"path": "/tuned"})
        done = json.loads((cell / "done.json").read_text())
        for file in cell.glob("losses_*_short.npy"):
            np.save(file, np.load(file) + np.float32(0.5))
            done["files"][file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
        (cell / "done.json").write_text(json.dumps({**done, "cell_id": changes["cell_id"]}))
        relabel(cell, record.model_copy(update={"model": moved, **changes}))
        cell.rename(folder / changes["cell_id"])
    rope, yarn = effective_lines(analyse(load_results(folder)))[0]
    alone = effective_lines(analyse(load_results(SWEEP)))[0]
    assert rope.block == yarn.block
    assert rope.these == alone[0].these
    pairs = zip(yarn.these.bins, alone[1].these.bins, strict=True)
    assert all(0.3 < own.gain - shared.gain < 0.5 for own, shared in pairs)
