"""What stock lm-eval is told of us: entry points, and the module for `--plugins`."""

import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from leval_harness.sweep.task_registry import own_tasks

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ENTRIES = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
WITH_PLUGIN = """
import transformers.modeling_rope_utils as rope
assert "resonance_yarn" not in rope.ROPE_INIT_FUNCTIONS
import leval_harness.plugin
assert "resonance_yarn" in rope.ROPE_INIT_FUNCTIONS
from lm_eval.api.registry import get_model
print(get_model("hf-long").__name__)
"""


def test_the_module_for_plugins_registers_types_and_backends():
    done = subprocess.run(
        [sys.executable, "-c", WITH_PLUGIN], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["HFLong"], done.stderr


def test_the_entry_of_tasks_names_a_folder_with_each_task_once():
    (package,) = ENTRIES["lm_eval.tasks"].values()
    spec = importlib.util.find_spec(package)  # as lm-eval#4015 resolves it, without an import
    (folder,) = spec.submodule_search_locations
    files = [yaml.load(p.read_text(), yaml.BaseLoader) for p in Path(folder).rglob("*.yaml")]
    names = [content.get("group", content.get("task")) for content in files]
    assert sorted(names) == sorted(own_tasks())
