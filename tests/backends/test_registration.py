"""Registering our backend takes none of lm-eval's away."""

import subprocess
import sys

CODE = """
import sys
import leval_backends
leval_backends.register()
leval_backends.register()
from lm_eval.api.registry import model_registry
assert {"hf", "hf-long", "vllm", "local-completions"} <= set(model_registry)
assert "torch" not in sys.modules
"""


def test_own_backends_stay_known():
    # a fresh process: lm-eval fills its registry once, and only while it is empty
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
