"""The records of backends, which are read without loading any, and lm-eval's registry."""

import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from leval_harness.backends import BACKENDS, find_backend, get_backend
from leval_harness.sweep.task_registry import own_tasks
from resonance_vllm.common.errors import SettingError

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ENTRIES = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
REGISTERED = """
import sys
import leval_harness.backends
leval_harness.backends.register()
leval_harness.backends.register()
from lm_eval.api.registry import model_registry
assert {"hf", "hf-long", "vllm", "vllm-long", "local-completions"} <= set(model_registry)
assert leval_harness.backends.get_backend("vllm-long").library == "vllm"
assert not {"torch", "vllm", "transformers"} & set(sys.modules)
"""
WITH_PLUGIN = """
import transformers.modeling_rope_utils as rope
assert "resonance_yarn" not in rope.ROPE_INIT_FUNCTIONS
import leval_harness.backends.plugin
assert "resonance_yarn" in rope.ROPE_INIT_FUNCTIONS
from lm_eval.api.registry import get_model
assert get_model("hf-long").__name__ == "HFLong"
"""


@pytest.mark.parametrize("script", [REGISTERED, WITH_PLUGIN], ids=["without torch", "by plugin"])
def test_register_keeps_the_backends_of_lm_eval(script):
    # a fresh process: lm-eval fills its registry once, and only while it is empty
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True)
    assert ran.returncode == 0, ran.stderr.decode()


def test_entry_points_are_the_registered_backends():
    registered = {name: record.target for name, record in BACKENDS.items() if record.is_registered}
    assert ENTRIES["lm_eval.models"] == registered


@pytest.mark.parametrize("name", BACKENDS)
def test_record_names_a_class_and_arguments_that_it_takes(name):
    record = BACKENDS[name]
    assert record.name == name
    assert isinstance(record.load_class(), type)
    assert set(record.packages) > {"torch"}
    assert record.length_argument in {"max_length", "max_model_len"}


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("hf", "hf"), ("huggingface", "hf"), ("hf-auto", "hf"), ("vllm", "vllm"),
        ("hf-long", "hf-long"), ("vllm-long", "vllm-long"), ("local-completions", None),
        ("openai-chat-completions", None), ("", None),
    ],
)  # fmt: skip
def test_find_backend_by_names_of_lm_eval(name, found):
    record = find_backend(name)
    assert (record.name if record else None) == found


def test_entry_point_of_tasks_has_each_task_once():
    (package,) = ENTRIES["lm_eval.tasks"].values()
    spec = importlib.util.find_spec(package)  # as lm-eval#4015 resolves it, without an import
    (folder,) = spec.submodule_search_locations
    files = [yaml.load(p.read_text(), yaml.BaseLoader) for p in Path(folder).rglob("*.yaml")]
    assert sorted(content.get("group", content.get("task")) for content in files) == sorted(
        own_tasks()
    )


def test_get_backend_suggests_a_name():
    message = f"^backend: 'hf-lnog' .* {', '.join(BACKENDS)}; did you mean 'hf-"
    with pytest.raises(SettingError, match=message):
        get_backend("hf-lnog")
