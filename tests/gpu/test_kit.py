"""The GPU kit on a CPU, at tiny size; and what `prepare` would collect."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_parts_are_at_most_so_large(prepare, tmp_path):
    sizes = [30, 25, 20, 20, 10, 5]
    for at, size in enumerate(sizes):
        (tmp_path / f"p{at}.whl").write_bytes(b"x" * size)
    parts = prepare.in_parts(tmp_path, 40)
    assert sorted(p.stat().st_size for part in parts for p in part) == sorted(sizes)
    assert all(sum(p.stat().st_size for p in part) <= 40 for part in parts)
    with pytest.raises(SystemExit, match="more than a part may have"):
        prepare.in_parts(tmp_path, 29)


def test_what_is_there_and_its_needs_are_not_collected(prepare):
    wanted = {"lm-eval", "accelerate", "peft", "scipy", "pytest", "hypothesis"}
    never = {"leval-harness", "torch", "transformers", "ray"}
    found = set(prepare.collected({"matplotlib"}, "3.12"))
    assert wanted | {"numpy"} <= found
    # Only matplotlib needs kiwisolver.
    assert not (never | {"matplotlib", "kiwisolver"}) & found
    found = set(prepare.collected((), "3.12"))
    assert wanted | {"matplotlib", "kiwisolver"} <= found
    # In other versions they would come before those that torch and transformers have over there.
    assert not (never | {"huggingface-hub", "tokenizers", "numpy"}) & found


def test_settings_of_the_tests_are_known_where_the_kit_checks(prepare):
    """pytest is strict there too: without its plug-in `timeout` would be an unknown setting."""
    own = {"pytest", "pytest-timeout"}
    assert own <= set(prepare.FOR_CHECKS)
    assert prepare.collected({"pytest", "hypothesis"}, "3.12")["pytest-timeout"]


@pytest.mark.slow(long=True)
def test_every_measuring_part_runs_at_tiny_size_on_a_cpu(tmp_path):
    parts = ("speed", "tasks", "hybrid", "posgen", "finetune")
    command = [sys.executable, ROOT / "benchmarks" / "gpu" / "run.py", *parts, "--size", "tiny"]
    done = subprocess.run(
        [*command, "--device", "cpu"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    made = json.loads((tmp_path / "gpu-results" / "gpu.json").read_text())
    rows = {(row["part"], row["what"]): row for row in made["rows"]}
    assert {part for part, _ in rows} == set(parts)
    assert not any("note" in row for row in rows.values())
    for length in (96, 192):
        assert rows["speed", f"llama {length}"]["same_answers"] == 3
        assert rows["hybrid", f"lfm2 {length}"]["same_answers"] == 3
    assert rows["tasks", "effective_context_govreport"]["tokens"] > 0
    table = (tmp_path / "gpu-results" / "gpu.md").read_text().splitlines()
    assert len([line for line in table if line.startswith("| ")]) == len(rows) + 2


@pytest.mark.engine("vllm")
@pytest.mark.slow(long=True)
def test_part_of_vllm_runs_at_tiny_size_on_a_cpu(tmp_path):
    command = [sys.executable, ROOT / "benchmarks" / "gpu" / "run.py", "vllm", "--size", "tiny"]
    done = subprocess.run(
        [*command, "--device", "cpu"], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "VLLM_CPU_OMP_THREADS_BIND": "nobind"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    made = json.loads((tmp_path / "gpu-results" / "gpu.json").read_text())
    rows = {row["what"]: row for row in made["rows"]}
    assert rows["model runner"]["largest_difference"] <= 1e-4
    for method in ("unmodified", "yarn", "resonance_yarn"):
        row = rows[f"graphs after a swap: {method}"]
        assert row["decode_and_prefill"] <= 1e-3
        assert row["vllm_and_transformers"] <= 1e-3
        assert (row["method_and_unmodified"] > 0.01) == (method != "unmodified")
        assert rows["tensor parallel 2"][method] <= 1e-3
    assert rows["L-Eval throughput at 192"]["same_answers"] == 6
    assert rows["effective context at 192"]["tokens"] > 0
    (header,) = [line for line in done.stdout.splitlines() if line.startswith("| part | what")]
    assert header in (tmp_path / "gpu-results" / "gpu.md").read_text()
