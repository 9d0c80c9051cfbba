"""The table of backends, which is read without loading any."""

import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from lm_eval.api.model import LM

import leval_harness.backends
from leval_harness.backends import OWN_BACKENDS
from resonance_vllm.errors import SettingError

ROOT = Path(__file__).parents[2]
REGISTERED = """
import sys
import leval_harness.backends
leval_harness.backends.register()
leval_harness.backends.register()
from lm_eval.api.registry import get_model, model_registry
assert {"hf", "hf-long", "vllm", "vllm-long", "local-completions"} <= set(model_registry)
assert leval_harness.backends.libraries()["vllm-long"] == "vllm"
assert not {"torch", "vllm", "transformers"} & set(sys.modules)
assert get_model("hf-long").__name__ == "HFLong"
leval_harness.backends.register()
"""


def run(code: str, cwd: Path = ROOT) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_registration_needs_no_torch_and_takes_none_of_lm_evals_away():
    # a fresh process: lm-eval fills its registry once, and only while it is empty
    run(REGISTERED)


def test_every_entry_point_is_a_backend_of_the_table():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = project["entry-points"]["lm_eval.models"]
    assert {"hf-long", "vllm-long"} <= declared.keys()
    assert declared == {name: OWN_BACKENDS[name].target for name in declared}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.vllm if backend.library == "vllm" else ())
        for name, backend in OWN_BACKENDS.items()
    ],
)
def test_every_backend_of_the_table_is_a_class_that_its_library_runs(name):
    backend = OWN_BACKENDS[name]
    module, _, class_name = backend.target.partition(":")
    assert backend.library in ("transformers", "vllm")
    assert issubclass(getattr(importlib.import_module(module), class_name), LM)


def test_a_backend_that_takes_no_rope_settings_is_refused_by_name():
    assert leval_harness.backends.library_of("vllm-long") == "vllm"
    known = leval_harness.backends.libraries()
    assert {"hf", "hf-long", "vllm", "vllm-long"} <= known.keys()
    expected = (
        rf"^backend: 'hf-lnog' is not allowed; allowed: {', '.join(known)}; "
        r"did you mean 'hf-long'\?$"
    )
    with pytest.raises(SettingError, match=expected):
        leval_harness.backends.library_of("hf-lnog")
