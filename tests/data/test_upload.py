"""`upload` against a local server that answers as the Hub does."""

import base64
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from huggingface_hub import constants

from leval_harness.cli.results import upload as command
from resonance_vllm.errors import SettingError, UserError

REPOSITORY = "group/results"
TOKEN = "hf_" + "a" * 34


class Hub(BaseHTTPRequestHandler):
    """Creates a repository, asks for every file as it is, and keeps what a commit holds."""

    kept: dict[str, Any]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.kept["tokens"].add(self.headers["Authorization"])
        if self.kept.get("refuse"):
            self._answer(403, {"error": "You do not have the rights"})
        elif self.path == "/api/repos/create":
            self.kept["created"] = json.loads(body)
            self._answer(200, {"url": f"{self.kept['address']}/datasets/{REPOSITORY}"})
        elif self.path.endswith("/preupload/main"):
            wanted = [
                {"path": each["path"], "uploadMode": "regular", "shouldIgnore": False}
                for each in json.loads(body)["files"]
            ]
            self._answer(200, {"files": wanted})
        else:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    content = base64.b64decode(line["value"]["content"])
                    self.kept["files"][line["value"]["path"]] = content
            oid = "0" * 40
            url = f"{self.kept['address']}/datasets/{REPOSITORY}/commit/{oid}"
            self._answer(200, {"commitUrl": url, "commitOid": oid})

    def _answer(self, code: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    kept: dict[str, Any] = {"files": {}, "tokens": set()}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Hub,), {"kept": kept}))
    kept["address"] = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", kept["address"])
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    yield kept
    server.shutdown()
    thread.join()


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "quickstart"
    for name in ("cell/cell.json", "cell/done.json", "partial-1/cell.json", ".superseded/a.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps({"of": name}))
    (folder / "cell" / "losses.npy").write_bytes(b"\x93NUMPY")
    return folder


def run(*arguments: object) -> Any:
    return CliRunner().invoke(command, [str(each) for each in arguments])


def test_finished_files_go_into_one_private_repository(hub, results):
    done = run(results, "--repo", REPOSITORY)
    assert done.exit_code == 0, done.output
    names = ("cell/cell.json", "cell/done.json", "cell/losses.npy")
    expected = {f"quickstart/{name}": (results / name).read_bytes() for name in names}
    assert hub["files"] == expected
    assert hub["created"]["type"] == "dataset"
    assert hub["created"]["visibility"] == "private"
    assert hub["tokens"] == {f"Bearer {TOKEN}"}
    assert "3 files" in done.output
    assert f"{REPOSITORY}/commit/" in done.output


def test_a_public_repository_is_asked_for_by_name(hub, results):
    assert run(results, "--repo", REPOSITORY, "--public").exit_code == 0
    assert hub["created"]["visibility"] == "public"


def test_a_dry_run_uploads_nothing(hub, results):
    done = run(results, "--repo", REPOSITORY, "--dry-run")
    assert done.stdout.split() == ["cell/cell.json", "cell/done.json", "cell/losses.npy"]
    assert not hub["files"]


def test_a_text_with_a_credential_stops_the_upload(hub, results):
    (results / "cell" / "log.txt").write_text(f"token {TOKEN}")
    done = run(results, "--repo", REPOSITORY)
    assert done.exit_code != 0
    assert "in the form of a credential" in str(done.exception)
    assert TOKEN not in str(done.exception)
    assert not hub["files"]


def test_what_the_hub_refuses_is_one_error(hub, results):
    hub["refuse"] = True
    done = run(results, "--repo", REPOSITORY)
    assert "--repo: group/results was not written" in str(done.exception)
    assert "rights" in str(done.exception)


def test_a_hub_that_cannot_be_reached_is_one_error(hub, results, monkeypatch):
    monkeypatch.setitem(sys.modules, "httpx", None)  # the hub's client has another HTTP library
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    done = run(results, "--repo", REPOSITORY)
    assert isinstance(done.exception, UserError)
    assert str(done.exception).startswith(f"--repo: {REPOSITORY} was not written: ")


@pytest.mark.parametrize("how", [(), ("--dry-run",)])
@pytest.mark.parametrize("repository", ["a b", "a/b/c"])
def test_a_name_that_is_none_is_refused(hub, results, repository, how):
    done = run(results, "--repo", repository, *how)
    assert isinstance(done.exception, SettingError)
    assert str(done.exception).startswith("--repo: ")
    assert not hub["files"]
