"""A checkpoint with a damaged file ends `leval-harness lm-eval` in a message, not a traceback."""

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from leval_harness.cli.main import app

pytestmark = pytest.mark.hf


@pytest.mark.parametrize("backend", [pytest.param("hf", marks=pytest.mark.long), "hf-long"])
@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("model.safetensors", b"\xff" * 64),
        ("model.safetensors", b""),
        ("tokenizer.json", b"[]"),
        ("tokenizer.json", b'{"model": 3}'),
    ],
)
def test_a_damaged_file_is_a_message(
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    backend: str,
    file: str,
    content: bytes,
) -> None:
    model = shutil.copytree(tiny / "model", tmp_path / "model")
    (model / file).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    asked = ["run", "--model", backend, "--model_args", f"pretrained={model},device=cpu"]
    asked += ["--tasks", "tiny_gen", "--include_path", str(tiny)]
    ran = CliRunner().invoke(app, ["lm-eval", *asked])
    assert ran.exit_code == 1, ran.output
    assert "Traceback" not in ran.stderr
    *_, last = ran.stderr.strip().splitlines()
    assert last.startswith("Error: ")
    assert len(last) > 20
