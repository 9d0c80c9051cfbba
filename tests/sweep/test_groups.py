"""Which runs share a model instance, which GPUs a worker sees, and who starts next."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from leval_harness.sweep.config import parse_config
from leval_harness.sweep.executor import Capacity
from leval_harness.sweep.gpus import memory_of_gpu, visible_gpus
from leval_harness.sweep.groups import Group, grouped
from leval_harness.sweep.plan import plan
from leval_harness.sweep.run import Sweep
from leval_harness.sweep.run_record import RunRecord

Planned = Callable[..., list[RunRecord]]
EIGHT = [str(n) for n in range(8)]


@pytest.fixture
def planned(checkpoint: Path) -> Planned:
    """Runs of a small checkpoint with settings of its model."""

    def make(model: dict[str, Any], **changes: Any) -> list[RunRecord]:
        content = {
            "models": {"small": {"path": str(checkpoint), **model}},
            "methods": {"rope": {"rope_type": "default"}},
            "tasks": "leval_closed_gsm",
            "metadata": {"data_dir": "sample"},
            "context_lengths": [4096],
        }
        return plan(parse_config({"name": "x", **content, **changes}))

    return make


@pytest.mark.parametrize(
    ("model", "gpus"),
    [
        ({"backend": "hf"}, 1),
        ({"backend": "hf", "gpus": 2, "args": {"parallelize": True}}, 2),
        ({"backend": "hf", "device": "cpu"}, 0),
        ({"backend": "hf", "gpus": 0}, 0),
        ({"backend": "vllm", "args": {"tensor_parallel_size": 4}}, 4),
        ({"backend": "vllm", "args": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}}, 4),
        ({"backend": "vllm-long", "args": {"tensor_parallel_size": 8}}, 8),
    ],
)
def test_a_group_takes_as_many_gpus_as_its_model_needs(
    planned: Planned, model: dict[str, Any], gpus: int
) -> None:
    (group,) = grouped(planned(model), EIGHT)
    assert group.gpus == gpus
    (on_cpu,) = grouped(planned(model), [])
    assert on_cpu.gpus == (0 if gpus == 1 else gpus), "one GPU or the CPU; several are meant so"


METHODS = {
    "shipped": None,
    "rope": {"rope_type": "default"},
    "yarn": {"rope_type": "yarn", "factor": 4},
    "resonance_yarn": {"rope_type": "resonance_yarn", "factor": 4},
    "dynamic": {"rope_type": "dynamic", "factor": 4},
}


@pytest.mark.parametrize("backend", ["hf", "vllm"])
def test_group_shares_model_if_rotation_can_be_swapped(planned: Planned, backend: str) -> None:
    """What depends on the length is loaded with its own settings."""
    runs = planned(
        {"backend": backend},
        methods=METHODS,
        context_lengths=[4096, 8192],
        tasks=["leval_closed_gsm", "leval_closed_codeu"],
    )
    shared, *others = sorted(grouped(runs, []), key=lambda group: -len(group.runs))
    methods = [name for name in METHODS if name != "dynamic"]
    assert len(shared.runs) == len(methods) * 2 * 2
    assert {run.method.name for run in shared.runs} == set(methods)
    assert {len(group.runs) for group in others} == {2}, "two tasks"
    assert {group.runs[0].method.name for group in others} == {"dynamic"}


def test_models_that_differ_in_what_is_loaded_share_nothing(planned: Planned) -> None:
    changes: list[dict[str, Any]] = [
        {}, {"dtype": "float32"}, {"batch_size": 2}, {"args": {"attn_implementation": "eager"}},
    ]  # fmt: skip
    keys = {planned({"backend": "hf", **each})[0].group for each in changes}
    keys.add(planned({"backend": "hf"}, rope_precision="model")[0].group)
    assert len(keys) == len(changes) + 1


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Writes programs into a folder that is the whole `PATH`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for variable in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(variable, raising=False)

    def write(name: str, text: str) -> None:
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/bin{os.pathsep}/usr/bin")
        (folder / name).write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
        (folder / name).chmod(stat.S_IRWXU)

    return write


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("0,1,2,3", ["0", "1", "2", "3"]),
        ("3, 1", ["3", "1"]),
        ("GPU-8932f937,GPU-41d2a7ba", ["GPU-8932f937", "GPU-41d2a7ba"]),
        ("MIG-8932f937, MIG-41d2a7ba", ["MIG-8932f937", "MIG-41d2a7ba"]),
        (
            "MIG-GPU-8932f937/7/0,MIG-GPU-8932f937/8/0",
            ["MIG-GPU-8932f937/7/0", "MIG-GPU-8932f937/8/0"],
        ),
        ("GPU-8932f937,1,GPU-41d2a7ba", ["GPU-8932f937"]),
        ("0,GPU-8932f937,2", ["0"]),
        ("0,1,-1,3", ["0", "1"]),
        ("0,1,,3", ["0", "1"]),
        ("2,no,3", ["2"]),
        ("01,2x", ["1", "2"]),
        ("0,1,0", []),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
    ],
)
def test_visible_gpus_are_those_of_the_variable(
    monkeypatch: pytest.MonkeyPatch,
    commands: Callable[[str, str], None],
    given: str,
    expected: list[str],
) -> None:
    commands("nvidia-smi", "0\n1\n2\n3\n4\n5\n6\n7")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    assert visible_gpus() == expected
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", given)  # what it leaves is numbered from 0
    assert visible_gpus() == [str(number) for number in range(len(expected))]


def test_else_they_are_those_of_the_system(commands: Callable[[str, str], None]) -> None:
    commands("nvidia-smi", "0\n1")
    assert visible_gpus() == ["0", "1"]
    commands("nvidia-smi", "")
    commands("rocm-smi", "device,Device ID\ncard0,0x740c\ncard1,0x740c")
    assert visible_gpus() == ["0", "1"]


def test_memory_of_the_smallest_gpu(commands: Callable[[str, str], None]) -> None:
    memory_of_gpu.cache_clear()
    commands("nvidia-smi", "81559\n40960")
    assert memory_of_gpu() == 40960 * 2**20
    memory_of_gpu.cache_clear()
    commands("nvidia-smi", "No devices were found")
    assert memory_of_gpu() is None
    memory_of_gpu.cache_clear()


def test_a_worker_sees_its_own_gpus_and_its_share_of_the_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(32)))
    executor: Any = SimpleNamespace(capacity=Capacity(EIGHT, 1, 8))
    sweep: Any = Sweep(None, [], executor, None, None)  # type: ignore[arg-type]
    both = {"CUDA_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "2,3"}
    of_two = Group("key", (), 2)
    assert sweep._environment(of_two, ["2", "3"]) == {**both, "OMP_NUM_THREADS": "8"}
