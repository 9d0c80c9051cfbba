"""What the sweep machinery itself costs, without a model: planning, stock-taking, dry run, marker.

    python benchmarks/bench_sweep.py [--cells 2000]

Prints JSON. Ratios are within one run, against the same work at a tenth of the size: 10 is linear.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from leval_harness.cell_record import DoneRecord
from leval_harness.sweep import runner
from leval_harness.sweep.cell_files import publish
from leval_harness.sweep.cells import PlannedCell, plan
from leval_harness.sweep.config_files import load_config
from resonance_vllm.files import write_json

SAMPLES = 1000


def config_for(root: Path, cells: int) -> Path:
    model = root / "model"
    model.mkdir(exist_ok=True)
    settings = {"model_type": "llama", "rope_theta": 1e4, "max_position_embeddings": 8192}
    (model / "config.json").write_text(json.dumps(settings))
    lengths = [1024 + i for i in range(cells // 2)]
    path = root / f"bench{cells}.yaml"
    path.write_text(
        f"models: {{m: {{path: {model}, backend: hf}}}}\n"
        "methods: {rope: {rope_type: default}, resonance: {rope_type: resonance}}\n"
        f"tasks: [leval_closed_gsm]\nmetadata: {{data_dir: sample}}\ncontext_lengths: {lengths}\n"
    )
    return path


def finish(folder: Path, cell: PlannedCell) -> None:
    """A finished cell with as many samples as a large task has."""
    partial = folder / cell.id / "partial-1"
    partial.mkdir(parents=True)
    write_json(folder / cell.id / "cell.json", cell.record.written())
    row = json.dumps({"doc_id": 0, "resps": [["x" * 200]], "exact_match": 1.0})
    (partial / "samples_leval_closed_gsm_1.jsonl").write_text(f"{row}\n" * SAMPLES)
    (partial / "results_1.json").write_text("{}")
    publish(folder / cell.id, partial, DoneRecord(schema_version=1, cell_id=cell.id, seconds=1.0))


def seconds(work: Any) -> tuple[float, Any]:
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def measure(root: Path, cells: int) -> dict[str, float]:
    path = config_for(root, cells)
    planning, planned = seconds(lambda: plan(load_config(str(path))))
    folder = root / f"results{cells}"
    publishing, _ = seconds(lambda: [finish(folder, cell) for cell in planned])
    stock, state = seconds(lambda: runner.take_stock(folder, planned, retry_failed=True))
    assert len(state.finished) == cells
    return {"plan": planning, "publish": publishing, "resume": stock}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cells", type=int, default=2000)
    cells = parser.parse_args().cells
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["LEVAL_CACHE_DIR"] = f"{scratch}/cache"
        measure(Path(scratch), 10)  # imports
        small, large = (measure(Path(scratch), each) for each in (cells // 10, cells))
    report = {
        "cells": cells,
        "samples_per_cell": SAMPLES,
        "milliseconds_per_cell": {k: round(1000 * v / cells, 3) for k, v in large.items()},
        "ratio_to_a_tenth": {k: round(v / small[k], 2) for k, v in large.items()},
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
