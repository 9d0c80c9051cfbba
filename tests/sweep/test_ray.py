"""Cells as Ray tasks on a real local cluster of several nodes, one of which is killed mid-cell."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from ray import exceptions as ray_exceptions

from leval_harness.sweep import SweepError
from leval_harness.sweep.cell_files import why_not_done
from leval_harness.sweep.cells import plan
from leval_harness.sweep.config_files import load_config
from leval_harness.sweep.executors import (
    RAY_LAST_CLUSTER,
    LocalExecutor,
    RayExecutor,
    default_address,
    ray_options,
    what_ray_lost,
)
from leval_harness.sweep.progress import Progress

pytestmark = [pytest.mark.ray, pytest.mark.hf, pytest.mark.slow]


@pytest.fixture(autouse=True)
def _handler_that_ray_replaces() -> Iterator[None]:
    """Put back the handler of SIGTERM that `ray.init` leaves behind."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head that computes nothing, and two workers for one cell each."""
    import ray
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    small = {"object_store_memory": 80_000_000}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **small})
    for _ in range(2):
        made.add_node(num_cpus=1, resources={"cell": 1}, **small)
    made.connect()
    try:
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def samples(folder: Path, cell_id: str) -> list[Any]:
    path = next((folder / cell_id).glob("samples_*.jsonl"))
    return [json.loads(line) for line in path.read_text().splitlines()]


def running_cells(folder: Path) -> dict[int, int]:
    """Process id of every running cell -> the Ray worker that started its supervisor."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError, IndexError, psutil.NoSuchProcess):
            words = path.read_bytes().decode(errors="replace").split("\0")
            if "leval_harness.sweep.cell_main" in words and any(str(folder) in w for w in words):
                supervisor = psutil.Process(int(words[words.index("--parent") + 1]))
                found[int(path.parent.name)] = supervisor.ppid()
    return found


def test_a_killed_worker_costs_an_attempt_and_no_result(
    tiny: Path, tmp_path: Path, cluster: Any
) -> None:
    overrides = ["models.tiny.resources={num_cpus: 1, cell: 1}"]
    cells = plan(load_config(str(tiny / "sweep.yaml"), overrides))
    quiet, folder = tmp_path / "quiet", tmp_path / "ray"

    def show(where: Path) -> Progress:
        return Progress(cells, 0, where, lambda line: None)

    assert all(each.ok for each in LocalExecutor().run(cells, quiet, "quiet", show(quiet)))
    killed: list[int] = []

    def kill_one_worker() -> None:
        until = time.monotonic() + 90
        while time.monotonic() < until:
            for worker in running_cells(folder).values():
                time.sleep(1.0)
                os.kill(worker, signal.SIGKILL)
                killed.append(worker)
                return
            time.sleep(0.05)

    killer = threading.Thread(target=kill_one_worker)
    killer.start()
    outcomes = list(RayExecutor().run(cells, folder, "ray", show(folder)))
    killer.join()
    assert killed, "no worker was killed: the test has shown nothing"
    assert sorted(each.cell_id for each in outcomes) == sorted(cell.id for cell in cells)
    assert all(each.ok for each in outcomes), outcomes
    for cell in cells:
        assert why_not_done(folder / cell.id, cell.id) is None
        assert samples(folder, cell.id) == samples(quiet, cell.id)
    assert not running_cells(folder)


def test_a_cluster_that_was_killed_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray leaves a file that names it; a cluster that still listens there is joined."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert default_address() is None
    named = tmp_path / RAY_LAST_CLUSTER
    named.parent.mkdir()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        named.write_text(f"127.0.0.1:{listening.getsockname()[1]}\n")
        assert default_address() == "local"
        listening.listen()
        assert default_address() is None
    assert default_address() == "local"
    named.write_text("nothing")
    assert default_address() == "local"
    monkeypatch.setenv("RAY_ADDRESS", "somewhere:1")
    assert default_address() is None


def test_what_no_node_can_hold_is_refused_at_once(tiny: Path, tmp_path: Path, cluster: Any) -> None:
    cells = plan(load_config(str(tiny / "sweep.yaml"), ["models.tiny.resources={num_gpus: 8}"]))
    show = Progress(cells, 0, tmp_path, lambda line: None)
    with pytest.raises(SweepError, match=r"no node of the Ray cluster has .*GPU 8"):
        list(RayExecutor().run(cells, tmp_path, "ray", show))


def test_resources_become_rays_options(tiny: Path) -> None:
    overrides = ["models.tiny.resources={num_gpus: 2, memory: 1000, fast_disk: 1}"]
    (cell, *_) = plan(load_config(str(tiny / "sweep.yaml"), overrides))
    assert ray_options(cell) == {
        "num_cpus": 1,
        "num_gpus": 2.0,
        "memory": 1000.0,
        "resources": {"fast_disk": 1.0},
    }


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ray_exceptions.LocalRayletDiedError(), "the raylet) died: The task's local raylet died"),
        (ray_exceptions.NodeDiedError("gone"), "the raylet) died: gone"),
        (ray_exceptions.WorkerCrashedError(), "Ray lost its worker 4 times: The worker died"),
        (ray_exceptions.RayError("else"), "Ray gave it up: else"),
    ],
)
def testwhat_ray_lost_is_called_what_it_is(error: Exception, said: str) -> None:
    import ray

    assert said in what_ray_lost(ray, error)


@pytest.mark.long
def test_a_cluster_without_a_living_node_ends_the_sweep(tiny: Path, tmp_path: Path) -> None:
    """Ray itself would wait for ever.

    In a process of its own: where other clusters ran before, Ray may end the one whose node died.
    """
    if "LOSES_ITS_NODE" in os.environ:
        sweep_that_loses_its_node(tiny, tmp_path)
    else:
        name = "test_a_cluster_without_a_living_node_ends_the_sweep"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "long", f"{__file__}::{name}"]
        env = os.environ | {"LOSES_ITS_NODE": "1"}
        run = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stdout[-3000:]


def sweep_that_loses_its_node(tiny: Path, tmp_path: Path) -> None:
    import ray
    from ray.cluster_utils import Cluster

    cells = plan(load_config(str(tiny / "sweep.yaml")))
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    made.connect()
    threading.Timer(3, made.head_node.kill_raylet).start()
    show = Progress(cells, 0, tmp_path, lambda line: None)
    try:
        outcomes = list(RayExecutor().run(cells, tmp_path, "ray", show))
        said = [outcome.reason for outcome in outcomes]
        assert len(said) == len(cells)
    except SweepError as error:
        said = [str(error)]
    finally:
        ray.shutdown()
        made.shutdown()
    assert all("raylet" in each for each in said), said
