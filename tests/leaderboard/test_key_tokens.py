"""LongPPL's key tokens: of one reference read for all methods, against plain numpy."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from leval_harness.analysis import analyse
from leval_harness.analysis.effective_context import effective_lines
from leval_harness.analysis.key_tokens import key_lines
from leval_harness.cli.main import app
from leval_harness.old_results import load_results
from resonance_vllm.errors import SettingError

RUNS = Path(__file__).parent / "real_runs" / "results"
MODEL = "SmolLM2-135M"


def cells() -> dict[str, Path]:
    """Method -> folder, of the cells that read texts in full or in short windows."""
    paths = {path.parent for path in RUNS.glob("*/losses_*.npy")}
    return {json.loads((path / "cell.json").read_text())["method"]["name"]: path for path in paths}


def nats(folder: Path, read: str) -> dict[str, np.ndarray]:
    """Text -> nats of each token."""
    found = {p.name.removesuffix(f"_{read}.npy"): p for p in folder.glob(f"*_{read}.npy")}
    return {name: np.load(path).astype(float) for name, path in found.items()}


@pytest.fixture(scope="module")
def reads():
    """Nats of the full reads under both methods, and of the short windows."""
    found = cells()
    assert set(found) == {"rope", "yarn", "short windows"}
    reads = {"rope": "full", "yarn": "full", "short windows": "short"}
    return {method: nats(found[method], read) for method, read in reads.items()}


@pytest.fixture(scope="module")
def analysis():
    return analyse(load_results(RUNS))


def test_losses_on_key_tokens_are_those_of_the_reference_reads_tokens(analysis, reads):
    short, full = reads["short windows"], reads["rope"]
    losses = []
    for name, long in full.items():
        key = [s - f > 2 and f < 2 for s, f in zip(short[name], long, strict=True)]
        losses += reads["yarn"][name][key].tolist()
    assert len(losses) > 10
    (line,) = key_lines(analysis, MODEL)  # the read that told the tokens has no line
    assert (line.method, line.tokens, line.texts) == ("yarn", len(losses), 3)
    assert line.loss == pytest.approx(np.mean(losses))


def test_the_table_is_there_where_a_reference_is_named(analysis):
    plain = CliRunner().invoke(app, ["table", str(RUNS), "--format", "md"])
    named = CliRunner().invoke(app, ["table", str(RUNS), "--format", "md", "--reference", MODEL])
    assert plain.exit_code == named.exit_code == 0
    assert "LongPPL" not in plain.stdout
    (line,) = key_lines(analysis, MODEL)
    row = f"| yarn | {line.loss:.3f} | {np.exp(line.loss):.3f} | {line.tokens} | 3 |"
    assert row in named.stdout


def test_a_model_without_results_is_refused_by_name(analysis):
    with pytest.raises(SettingError, match=f"reference: 'other' .*{MODEL}"):
        key_lines(analysis, "other")


def test_of_several_methods_one_must_be_the_baseline(tmp_path):
    for method, folder in cells().items():
        target = shutil.copytree(folder, tmp_path / method)
        done = json.loads((target / "done.json").read_text())
        record = json.loads((target / "cell.json").read_text()) | {"baseline": None}
        (target / "cell.json").write_text(json.dumps(record))
        del done["files"]["cell.json"]
        (target / "done.json").write_text(json.dumps(done))
    results = load_results(tmp_path)
    with pytest.raises(SettingError, match=f"reference: {MODEL} was read with several methods"):
        key_lines(analyse(results), MODEL)
    (line,) = key_lines(analyse(results, "yarn"), MODEL)
    assert line.method == "rope"


def test_texts_of_other_tokens_have_no_key_tokens(tmp_path):
    """The same text in another tokenizer's tokens is not compared."""
    shutil.copytree(RUNS, tmp_path / "runs")
    (samples,) = (tmp_path / "runs" / cells()["yarn"].name).glob("samples_*.jsonl")
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    rows[0]["doc"]["tokens_sha256"] = "0" * 16
    done = samples.parent / "done.json"
    marker = json.loads(done.read_text())
    marker["files"] = {n: h for n, h in marker["files"].items() if n != samples.name}
    done.write_text(json.dumps(marker))
    samples.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (line,) = key_lines(analyse(load_results(tmp_path / "runs")), MODEL)
    assert line.texts == 2


def test_the_share_of_tokens_that_full_context_makes_better(analysis, reads):
    lines, _ = effective_lines(analysis)
    assert len(lines) == 2
    for line in lines:
        better = [
            loss < other
            for name, full in reads[line.method].items()
            for loss, other in zip(full, reads["short windows"][name], strict=True)
        ]
        assert line.better == pytest.approx(np.mean(better))
