"""Workers as tasks of a real local Ray cluster, from a driver in another folder."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.hf, pytest.mark.slow]
DRIVER = """
import sys
import ray
from leval_harness.cli.main import main

ray.init(num_cpus=2, num_gpus=2, include_dashboard=False, object_store_memory=80_000_000)
main()
"""


def test_workers_take_gpus_of_the_cluster(tiny: Path, tmp_path: Path) -> None:
    """Two pretended GPUs; the driver's folder is not that of the config."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    config = tmp_path / "sweep.yaml"
    config.write_text(
        (tiny / "sweep.yaml").read_text().replace(", device: cpu", "") + "name: over_ray\n"
    )
    words = ["sweep", str(config), "--executor", "ray", "--out", "results"]
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_ADDRESS": "local"}
    ended = subprocess.run(
        [sys.executable, "-c", DRIVER, *words],
        cwd=elsewhere,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    cells = [
        json.loads(path.read_text())
        for path in elsewhere.glob("results/over_ray/cells/*/cell.json")
    ]
    assert len(cells) == 2
    assert {cell["cuda_visible_devices"] for cell in cells} <= {"0", "1"}
    assert "[2/2]" in ended.stdout
    assert (elsewhere / "results" / "over_ray" / "table.md").is_file()


def test_a_model_of_more_gpus_than_a_node_has_is_refused(tiny: Path, tmp_path: Path) -> None:
    words = ["sweep", str(tiny / "sweep.yaml"), "--executor", "ray", "--out", str(tmp_path)]
    words += ["--set", "models.tiny.gpus=4"]
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_ADDRESS": "local"}
    ended = subprocess.run(
        [sys.executable, "-c", DRIVER, *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 2
    assert "tiny takes 4 GPUs and 2 are on one node of the Ray cluster" in ended.stderr
