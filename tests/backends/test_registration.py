"""Registering our backends takes none of lm-eval's away; it and the package name the same."""

import subprocess
import sys
import tomllib
from pathlib import Path

import leval_backends

CODE = """
import sys
import leval_backends
leval_backends.register()
leval_backends.register()
from lm_eval.api.registry import model_registry
assert {"hf", "hf-long", "vllm", "vllm-long", "local-completions"} <= set(model_registry)
assert not {"torch", "vllm"} & set(sys.modules)
"""


def test_own_backends_stay_known():
    # a fresh process: lm-eval fills its registry once, and only while it is empty
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_package_declares_the_backends_that_are_registered():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["lm_eval.models"] == leval_backends.BACKENDS
