"""The table of backends, which is read without loading any."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from leval_harness.backends import LIBRARIES, OWN_BACKENDS, library_of
from resonance_vllm.errors import SettingError

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
REGISTERED = """
import sys
import leval_harness.backends
leval_harness.backends.register()
leval_harness.backends.register()
from lm_eval.api.registry import get_model, model_registry
assert {"hf", "hf-long", "vllm", "vllm-long", "local-completions"} <= set(model_registry)
assert leval_harness.backends.library_of("vllm-long") == "vllm"
assert not {"torch", "vllm", "transformers"} & set(sys.modules)
assert get_model("hf-long").__name__ == "HFLong"
"""


def test_registration_needs_no_torch_and_takes_none_of_lm_evals_away():
    # a fresh process: lm-eval fills its registry once, and only while it is empty
    ran = subprocess.run([sys.executable, "-c", REGISTERED], cwd=ROOT, capture_output=True)
    assert ran.returncode == 0, ran.stderr.decode()


def test_every_entry_point_is_a_backend_of_the_table():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["lm_eval.models"] == OWN_BACKENDS


def test_a_backend_that_takes_no_rope_settings_is_refused_by_name():
    said = f"^backend: 'hf-lnog' is not allowed; allowed: {', '.join(LIBRARIES)}; did you mean 'hf-"
    with pytest.raises(SettingError, match=said):
        library_of("hf-lnog")
