"""Files of the hub: what is kept, and what is said where it cannot be reached."""

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import huggingface_hub
import pytest
from click.testing import CliRunner
from huggingface_hub.errors import RemoteEntryNotFoundError

from leval_harness.cli import data as cli
from leval_tasks.common import data


def test_fetch_keeps_what_is_published_and_names_the_rest(real_data, tmp_path, monkeypatch):
    hub, out = tmp_path / "hub", tmp_path / "out"
    for folder in (hub, out):
        folder.mkdir()
    published = {path.name: path.read_bytes() for path in (real_data / "leval/closed").iterdir()}
    published["quality.jsonl"] = published["quality.jsonl"][:200_000]
    published["sci_fi.jsonl"] += b"\n"
    for name, content in published.items():
        (hub / name).write_bytes(content)
    (out / "sci_fi.jsonl").write_text("of before")

    def download(repository: str, name: str, **options: object) -> str:
        path = hub / Path(name).name
        if not path.is_file():
            answer = httpx.Response(404, request=httpx.Request("GET", "http://hub"))
            raise RemoteEntryNotFoundError("404", response=answer)
        return str(path)

    monkeypatch.setattr(data, "why_hub_is_unreachable", lambda: "")
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    done = CliRunner().invoke(cli.data, ["fetch", "--out", str(out), "--json"])
    rows = {row["file"]: row for row in json.loads(done.stdout)}
    assert done.exit_code == 1
    assert rows["tpo.jsonl"]["state"] == "as published"
    assert (out / "tpo.jsonl").read_bytes() == published["tpo.jsonl"]
    assert "There is no LEval/Exam/codeU.jsonl" in rows["codeU.jsonl"]["state"]
    assert "quality.jsonl, line" in rows["quality.jsonl"]["state"]
    assert not (out / "quality.jsonl").exists()
    assert rows["sci_fi.jsonl"]["state"] == "FAILED: not the published file"
    assert (out / "sci_fi.jsonl").read_text() == "of before"


NOBODY = "http://127.0.0.1:9"
READ = """
from leval_tasks.closed.catalog import task_named
from leval_tasks.common.data import load, resolve_source
load(resolve_source(None), task_named("coursera"))
"""
STOCK = ["-m", "lm_eval", "run", "--model", "dummy", "--tasks", "leval_closed"]


@pytest.mark.parametrize(
    ("program", "offline"),
    [
        (["-c", READ], {}),
        pytest.param(STOCK, {}, marks=pytest.mark.slow(long=True)),
        pytest.param(STOCK, {"HF_HUB_OFFLINE": "1"}, marks=pytest.mark.slow(long=True)),
    ],
)
def test_a_hub_out_of_reach_is_one_line_at_once(tmp_path, program, offline):
    ours = ("HF_HUB_OFFLINE", "LEVAL_DATA_DIR")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    environment |= {"HF_ENDPOINT": NOBODY, "HF_HOME": str(tmp_path), **offline}
    done = subprocess.run(
        [sys.executable, *program],
        capture_output=True, text=True, env=environment, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 1
    assert "Retry" not in done.stderr  # the client's five attempts take half a minute
    line = done.stderr.splitlines()[-1]
    assert ": LEval/Exam/coursera.jsonl of the hub's data set" in line
    assert "The word sample in its place" in line
