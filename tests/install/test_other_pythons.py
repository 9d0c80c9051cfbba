"""Every version of Python that is installed here and that the metadata allows reads our files."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES = sorted(file.parent for file in ROOT.glob("*/__init__.py"))


def pythons() -> list[str]:
    """The one that runs the tests, and others on PATH or of pyenv, whose shims may not start."""
    allowed = SpecifierSet(PROJECT["requires-python"])
    names = [f"python3.{minor}" for minor in range(30) if f"3.{minor}.99" in allowed]
    of_pyenv = [
        p for name in names for p in (Path.home() / ".pyenv/versions").glob(f"*/bin/{name}")
    ]
    found = [*of_pyenv, *filter(None, map(shutil.which, names))]
    starts = [p for p in found if not subprocess.run([p, "-V"], check=False).returncode]
    return [sys.executable, *map(str, starts)]


@pytest.mark.long
def test_every_file_compiles_and_the_bootstrap_starts(tmp_path):
    assert len(PACKAGES) >= 4
    for python in pythons():
        command = [python, "-X", f"pycache_prefix={tmp_path}", "-W", "error", "-m", "compileall"]
        done = subprocess.run(
            [*command, "-q", *PACKAGES, ROOT / "packaging"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout + done.stderr) == (0, ""), python
        command = [python, "-W", "error", ROOT / "packaging" / "bootstrap.py", "--help"]
        said = subprocess.run(command, capture_output=True, text=True, check=True)
        assert "quickstart" in said.stdout, python
