"""Every config that is shipped: valid, expandable, and within what its models can do."""

import re

import pytest
from llama31 import LLAMA31

from leval_harness.backends import BACKENDS
from leval_harness.sweep import task_registry as own_tasks
from leval_harness.sweep.config import load_config
from resonance_vllm.checkpoint.limits import length_limit
from resonance_vllm.checkpoint.positions import PositionConfig
from resonance_vllm.common.yaml_files import packaged_configs

SWEEPS = packaged_configs("sweeps")
SHIPPED = SWEEPS["quickstart"].parent

CONFIGS: dict[str, tuple[float, int, dict[str, object] | None]] = {
    "smollm2": (1e5, 8192, None),
    "gemma3-270m": (1e6, 32768, None),
    "Llama-2|llama2": (1e4, 4096, None),
    "Llama-3.1": (5e5, 131072, LLAMA31),
    "Qwen2.5": (1e6, 32768, None),
    "Mistral-7B": (1e6, 32768, None),
    "runs/posgen": (1e4, 260, None),
}
"""Part of a model's path -> what its config.json says: base, longest position, shipped scaling."""


def model_config(path: str) -> dict[str, object]:
    theta, length, scaling = next(CONFIGS[name] for name in CONFIGS if re.search(name, path))
    config = {"rope_theta": theta, "max_position_embeddings": length, "model_type": "llama"}
    return {**config, "rope_scaling": scaling} if scaling else config


@pytest.mark.parametrize("name", SWEEPS)
def test_shipped_sweep_is_valid_and_within_limits(name: str) -> None:
    requests = list(load_config(name).requests())
    assert requests
    rows = set()
    for request in requests:
        model = PositionConfig.from_dict(model_config(request.model.path))
        rope = None if request.rope is None else model.complete(request.rope)
        if request.context_length and request.model.backend in BACKENDS:
            limit = length_limit(model, rope, request.context_length)
            assert request.context_length <= limit, (request.method, limit)
        row = (request.model.label, request.method, request.context_length, request.task.tasks)
        assert row not in rows, "two rows of the table would have the same name"
        rows.add(row)


def test_no_config_is_left_over() -> None:
    included = "".join(path.read_text() for path in SHIPPED.parent.rglob("*.yaml"))
    for folder in ("models", "methods"):
        for path in (SHIPPED.parent / folder).glob("*.yaml"):
            assert f"{folder}/{path.name}" in included, f"nothing includes {path.name}"


def test_every_task_of_every_shipped_sweep_exists() -> None:
    names = dict.fromkeys(
        task for name in SWEEPS for entry in load_config(name).tasks for task in entry.tasks
    )
    assert len(names) > 10
    own_tasks.check_names(names)
