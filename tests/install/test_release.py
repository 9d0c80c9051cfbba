"""What a release consists of: one version, typed packages, metadata that an index takes."""

import importlib.metadata
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
VERSION = PROJECT["project"]["version"]
PACKAGES = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]


def test_version_is_in_one_place():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == VERSION
    assert re.search(
        rf"^## \[({re.escape(VERSION)}|Unreleased)\]", (ROOT / "CHANGELOG.md").read_text(), re.M
    )
    in_code = [p for p in ROOT.glob("leval_*/**/*.py") if f'"{VERSION}"' in p.read_text()]
    assert in_code == []
    assert importlib.metadata.version("leval-harness") == VERSION


def test_workflow_files_are_yaml():
    assert all(yaml.safe_load(path.read_text()) for path in (ROOT / ".github").rglob("*.yml"))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "-o", folder, ROOT],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, source


def test_wheel_and_sdist_are_complete_and_pass_checks(built):
    wheel, source = built
    done = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", wheel, source],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    tracked = subprocess.run(
        ["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    in_wheel = set(zipfile.ZipFile(wheel).namelist())
    assert [name for name in tracked if name not in in_wheel] == []
    with tarfile.open(source) as opened:
        in_source = {name.partition("/")[2] for name in opened.getnames()}
    assert {"pyproject.toml", "LICENSE", "CHANGELOG.md", "CITATION.cff"} <= in_source
    assert [name for name in tracked if name not in in_source] == []
