"""Workers as tasks of a real local Ray cluster, from a driver in another folder."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.engine("ray"), pytest.mark.slow(long=True)]
DRIVER = """
import sys
import ray
from leval_harness.cli.main import main

ray.init(num_cpus=2, num_gpus=2, include_dashboard=False, object_store_memory=80_000_000)
main()
"""


def over_ray(folder: Path, config: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a sweep from a driver in a folder, with two pretended GPUs."""
    words = ["sweep", str(config), "--executor", "ray", "--out", "results", *options]
    return subprocess.run(
        [sys.executable, "-c", DRIVER, *words],
        cwd=folder,
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_ADDRESS": "local"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_workers_take_gpus_of_the_cluster(tiny: Path, tmp_path: Path) -> None:
    config = tmp_path / "sweep.yaml"
    config.write_text((tiny / "sweep.yaml").read_text().replace(", device: cpu", ""))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    ended = over_ray(elsewhere, config)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    runs = [json.loads(path.read_text()) for path in elsewhere.glob("results/*/runs/*/run.json")]
    assert len(runs) == 2
    assert {run["cuda_visible_devices"] for run in runs} <= {"0", "1"}
    assert "[2/2]" in ended.stdout
    assert (elsewhere / "results" / "sweep" / "table.md").is_file()


def test_a_model_of_more_gpus_than_a_node_has_is_refused(tiny: Path, tmp_path: Path) -> None:
    ended = over_ray(tmp_path, tiny / "sweep.yaml", "--set", "models.tiny.gpus=4")
    assert ended.returncode == 2
    assert "tiny takes 4 GPUs and 2 are visible on one machine" in ended.stderr


CLUSTER = """
import json, os, signal, sys, threading, time
from pathlib import Path
from ray.cluster_utils import Cluster
from leval_harness.cli.main import main
from leval_harness.sweep import ray_executor

memory = 80_000_000
head = {"num_cpus": 1, "num_gpus": 0, "object_store_memory": memory, "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args=head)
nodes = [
    cluster.add_node(num_cpus=1, num_gpus=1, object_store_memory=memory)
    for _ in range(int(os.environ["NODES"]))
]
os.environ["RAY_ADDRESS"] = cluster.address
ray_executor.UNPLACEABLE_SECONDS = 3.0

def wait_for_workers(killed=None):
    workers = set()
    while len(workers - {killed}) < len(nodes):
        time.sleep(0.2)
        claims = Path("results").glob("*/.work/claims/*")
        workers = {json.loads(claim.read_text() or '{"pid": null}')["pid"] for claim in claims}
    return workers - {None}

def disturb():
    workers = wait_for_workers()
    if len(nodes) > 1:
        killed = workers.pop()
        os.kill(killed, signal.SIGKILL)
        wait_for_workers(killed)
    cluster.remove_node(nodes[0], allow_graceful=False)
    if len(nodes) > 1:
        Path("go on").touch()

threading.Thread(target=disturb, daemon=True).start()
main()
"""
HELD = """
import time
from pathlib import Path

def hold(docs):
    while not Path("{folder}/go on").exists():
        time.sleep(0.1)
    return docs
"""


def on_a_cluster_that_is_disturbed(
    tiny: Path, folder: Path, nodes: int
) -> subprocess.CompletedProcess[str]:
    """A sweep of two runs, of which one node dies; of two nodes a worker was killed before."""
    (folder / "held.py").write_text(HELD.format(folder=folder))
    task = (tiny / "tiny_gen.yaml").read_text()
    (folder / "held.yaml").write_text(f"{task}\nprocess_docs: !function held.hold\n")
    config = folder / "sweep.yaml"
    config.write_text((tiny / "sweep.yaml").read_text().replace(", device: cpu", ""))
    words = ["sweep", str(config), "--executor", "ray", "--out", "results"]
    return subprocess.run(
        [sys.executable, "-c", CLUSTER, *words, f"--set=tasks={folder}/held.yaml"],
        cwd=folder,
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "NODES": str(nodes)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def test_sweep_ends_when_the_only_node_with_gpus_dies(tiny: Path, tmp_path: Path) -> None:
    ended = on_a_cluster_that_is_disturbed(tiny, tmp_path, nodes=1)
    assert ended.returncode == 1, ended.stdout[-3000:] + ended.stderr[-3000:]
    assert "Ray: a worker needs 1 core and 1 GPUs on one node, and of the living" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not list(tmp_path.glob("results/*/failed/*")), "the run is open again"


def test_killed_worker_and_dead_node_lose_nothing(tiny: Path, tmp_path: Path) -> None:
    ended = on_a_cluster_that_is_disturbed(tiny, tmp_path, nodes=2)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    assert "is tried once more: its process was ended by SIGKILL" in ended.stdout
    assert len(list(tmp_path.glob("results/*/runs/*/run.json"))) == 2
    assert not list(tmp_path.glob("results/*/failed/*"))
    assert "Traceback" not in ended.stderr
