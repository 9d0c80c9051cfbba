"""The table of backends, which is read without loading any, and what stock lm-eval is told."""

import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from leval_harness.backends import LIBRARIES, OWN_BACKENDS, library_of
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
assert leval_harness.backends.library_of("vllm-long") == "vllm"
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
def test_registration_takes_none_of_lm_evals_away_and_the_plugin_adds_the_types(script):
    # a fresh process: lm-eval fills its registry once, and only while it is empty
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True)
    assert ran.returncode == 0, ran.stderr.decode()


def test_every_entry_point_is_a_backend_of_the_table():
    assert ENTRIES["lm_eval.models"] == OWN_BACKENDS


def test_the_entry_of_tasks_names_a_folder_with_each_task_once():
    (package,) = ENTRIES["lm_eval.tasks"].values()
    spec = importlib.util.find_spec(package)  # as lm-eval#4015 resolves it, without an import
    (folder,) = spec.submodule_search_locations
    files = [yaml.load(p.read_text(), yaml.BaseLoader) for p in Path(folder).rglob("*.yaml")]
    assert sorted(each.get("group", each.get("task")) for each in files) == sorted(own_tasks())


def test_a_backend_that_takes_no_rope_settings_is_refused_by_name():
    said = f"^backend: 'hf-lnog' is not allowed; allowed: {', '.join(LIBRARIES)}; did you mean 'hf-"
    with pytest.raises(SettingError, match=said):
        library_of("hf-lnog")
