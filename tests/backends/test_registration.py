"""What backends there are, told from their entry points and classes without loading any."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import leval_harness.backends
from leval_border.errors import SettingError

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
ANOTHER = '''
from lm_eval.models.dummy import DummyLM

raise_if_imported = 1 / 0


class Another(DummyLM):
    """Stands for a new backend."""

    library: str = "transformers"
    reads_once = True
'''
NEW = """
import json, leval_harness.backends as backends
print(json.dumps([backends.__file__, backends.libraries(), backends.reading_once()]))
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


def test_every_entry_point_is_a_backend_that_says_what_runs_it():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = leval_harness.backends.own_backends()
    targets = {name: backend.target for name, backend in named.items()}
    assert targets == project["entry-points"]["lm_eval.models"]
    assert all(backend.library in ("transformers", "vllm") for backend in named.values())


def test_what_is_read_from_the_source_is_what_the_class_holds():
    from leval_harness.backends.hf_long import HFLong

    declared = leval_harness.backends.own_backends()["hf-long"]
    assert (HFLong.library, HFLong.reads_once) == (declared.library, declared.reads_once)


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


@pytest.mark.parametrize("installed", [True, False])
def test_a_new_backend_is_one_file_and_one_line(tmp_path, installed):
    for package in ("leval_harness.backends", "leval_border"):
        shutil.copytree(ROOT / package, tmp_path / package)
    (tmp_path / "leval_harness.backends" / "another.py").write_text(ANOTHER)
    line = 'another = "leval_harness.backends.another:Another"\n'
    project = (ROOT / "pyproject.toml").read_text()
    group = '[project.entry-points."lm_eval.models"]\n'
    assert group in project
    if installed:  # no checkout: what the wheel says of itself
        folder = tmp_path / "leval_harness-9.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("Name: leval-harness\nVersion: 9\n")
        (folder / "entry_points.txt").write_text("[lm_eval.models]\n" + line.replace('"', ""))
    else:
        (tmp_path / "pyproject.toml").write_text(project.replace(group, group + line))
    out = run(f"import sys; sys.path.insert(0, {str(tmp_path)!r}){NEW}", tmp_path)
    assert str(tmp_path) in out
    assert '"another": "transformers"' in out
    assert '["another", ' in out, "among those that read once"
    assert ('"hf-long": "transformers"' in out) is not installed
