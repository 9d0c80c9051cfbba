"""The hub path against a local server with the hub's layout."""

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PREFIX = "/datasets/L4NLP/LEval/resolve/main/LEval/Exam/"


class Hub(BaseHTTPRequestHandler):
    """Serves what the hub serves for plain files of a data set."""

    files: dict[str, bytes]

    def _answer(self, with_body: bool) -> None:
        name = self.path.removeprefix(PREFIX)
        content = self.files.get(name) if self.path.startswith(PREFIX) else None
        if content is None:
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if with_body:
            self.wfile.write(content)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[tuple[str, dict[str, bytes]]]:
    files: dict[str, bytes] = {}
    handler = type("OwnHub", (Hub,), {"files": files})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", files
    server.shutdown()
    thread.join()


def fetch(endpoint: str, tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k not in ("HF_HUB_OFFLINE", "LEVAL_DATA_DIR")}
    env |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "cache"), **environment}
    code = "from leval_harness.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, "data", "fetch", "--out", str(tmp_path / "out"), "--json"],
        capture_output=True,
        text=True,
        env=env,
        timeout=120,
        check=False,
    )


def test_fetch_keeps_what_is_published_and_names_the_rest(hub, real_data, tmp_path):
    endpoint, files = hub
    folder = real_data / "leval" / "closed"
    files |= {path.name: path.read_bytes() for path in folder.glob("*.jsonl")}
    files["quality.jsonl"] = files["quality.jsonl"][:200_000]
    files["sci_fi.jsonl"] += b"\n"
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "sci_fi.jsonl").write_text("of before")
    done = fetch(endpoint, tmp_path)
    rows = {row["file"]: row for row in json.loads(done.stdout)}
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert rows["tpo.jsonl"]["verified"]
    assert (tmp_path / "out/tpo.jsonl").read_bytes() == (folder / "tpo.jsonl").read_bytes()
    assert "There is no LEval/Exam/codeU.jsonl" in rows["codeU.jsonl"]["problem"]
    assert "quality.jsonl, line" in rows["quality.jsonl"]["problem"]
    assert not (tmp_path / "out/quality.jsonl").exists()
    assert rows["sci_fi.jsonl"]["problem"] == "not the published file"
    assert (tmp_path / "out" / "sci_fi.jsonl").read_text() == "of before"


NOBODY = "http://127.0.0.1:9"


@pytest.mark.parametrize("environment", [{"HF_HUB_OFFLINE": "1"}, {}])
def test_a_hub_out_of_reach_is_one_line_at_once(tmp_path, environment):
    begun = time.monotonic()
    done = fetch(NOBODY, tmp_path, **environment)
    assert time.monotonic() - begun < 15
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: LEval/Exam/coursera.jsonl of the hub's data set")
    assert "data_dir: sample" in line


def test_stock_lm_eval_without_data_is_one_line_at_once(tmp_path):
    environment = {
        k: v for k, v in os.environ.items() if k not in ("HF_HUB_OFFLINE", "LEVAL_DATA_DIR")
    }
    environment |= {"HF_ENDPOINT": NOBODY, "HF_HOME": str(tmp_path)}
    command = [str(Path(sys.executable).with_name("lm_eval")), "run", "--model", "dummy"]
    begun = time.monotonic()
    done = subprocess.run(
        [*command, "--tasks", "leval_closed"],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert time.monotonic() - begun < 60  # mostly imports and the index of all tasks
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "data_dir: sample" in done.stderr.splitlines()[-1]
