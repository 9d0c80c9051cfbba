"""A credential given in any place reaches the process that needs it, and no file."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from forked_programs import Forks

from leval_harness.sweep import cells
from leval_harness.sweep.config_files import load_config

MARK = "s3cr3t-mark"
ISSUED = "hf_MarkedTokenOfAService0123"
"""A token by its form; it stands under no name of a credential."""

CONFIG = """
include: {root}/sweep.yaml
models:
  tiny: {{args: {{token: {mark}-1}}, methods: [rope]}}
  refused: {{path: {root}/model, backend: hf, dtype: float32, device: cpu,
    args: {{api_key: {mark}-2, no_such_argument: "Bearer {mark}-3"}}, methods: [asis]}}
  served: &served
    path: served
    backend: local-completions
    methods: [asis]
    args: &args
      base_url: "http://me:{mark}-4@127.0.0.1:{port}/v1/completions?api_key={mark}-5"
      tokenizer: {root}/model
      header: {{Authorization: "Bearer {mark}-6", X-Mine: {mark}-7}}
      num_concurrent: 1
  unauthorized:
    <<: *served
    args: {{<<: *args, max_retries: 1, base_url: "http://127.0.0.1:{port}/refused?X-Amz-Signature={mark}-14"}}
methods: {{asis: null}}
metadata: {{auth_token: {mark}-8, nested: {{password: {mark}-9}}}}
gen_kwargs: {{max_gen_toks: 4}}
tasks:
  - tasks: {task}
    task_gen_kwargs: {{tiny_gen: {{max_gen_toks: 3}}}}
"""

LOUD = f'''
import logging, sys

def documents(dataset):
    print("printed {ISSUED}-1")
    logging.getLogger("lm-eval").warning("logged %s", "{ISSUED}")
    for step in range(3):
        print("\\r", step, "{ISSUED}", end="", file=sys.stderr, flush=True)
    return dataset
'''


class Server(BaseHTTPRequestHandler):
    """Answers every completion, and remembers what it was sent."""

    heard: list[str]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.heard.append(f"{self.path}\n{self.headers}\n{body.decode()}")
        refused = self.path.startswith("/refused")
        text = f"the token {ISSUED} is not known" if refused else f" 4, says {ISSUED}"
        answer = json.dumps({"choices": [{"index": 0, "text": text}]}).encode()
        self.send_response(401 if refused else 200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    Server.heard = []
    made = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    Thread(target=made.serve_forever, daemon=True).start()
    try:
        yield made
    finally:
        made.shutdown()


@pytest.fixture
def config(tiny: Path, tmp_path: Path, server: ThreadingHTTPServer) -> Path:
    task = tmp_path / "task" / "loud.yaml"
    task.parent.mkdir()
    text = (tiny / "tiny_gen.yaml").read_text()
    task.write_text(text + "process_docs: !function loud.documents\n")
    (task.parent / "loud.py").write_text(LOUD)
    path = tmp_path / "secret.yaml"
    path.write_text(CONFIG.format(root=tiny, mark=MARK, port=server.server_port, task=task))
    return path


def test_secrets_are_no_part_of_a_cell_and_not_lost(config: Path) -> None:
    planned = cells.plan(load_config(str(config)))
    assert MARK not in json.dumps([cell.record.written() for cell in planned])
    text = config.read_text()
    config.write_text(text.replace(MARK, "another-mark"))
    again = cells.plan(load_config(str(config)))
    assert [cell.id for cell in again] == [cell.id for cell in planned]
    config.write_text(text.replace("max_gen_toks: 4", "max_gen_toks: 5, max_tokens: 5"))
    other = cells.plan(load_config(str(config)))
    assert not {cell.id for cell in other} & {cell.id for cell in planned}
    whole = [cell.with_credentials for cell in planned]
    found = json.dumps([each.written() for each in whole if each is not None])
    assert all(f"{MARK}-{number}" in found for number in range(1, 10))


def leaked(text: str) -> bool:
    """Whether a text holds one of the credentials of this test."""
    return any(credential in text for credential in (MARK, ISSUED, "passwd=q7"))


@pytest.mark.hf
def test_no_file_of_a_sweep_holds_a_secret(config: Path, forks: Forks, tmp_path: Path) -> None:
    out = tmp_path / "out"
    short = "--set=models.refused.args.passwd=q7"
    options = [
        short,
        f"--set=gen_kwargs.api_key={MARK}-10",
        f"--set=models.tiny.args.token={MARK}-11",
    ]
    command = ("sweep", config, "--out", out, *options, short)
    ended = forks.command(*command, HF_TOKEN=f"{MARK}-12", HTTP_PROXY_PASSWORD=f"{MARK}-13")
    assert not leaked(ended.stdout + ended.stderr)
    done = {json.loads(path.with_name("cell.json").read_text())["model"]["name"]
            for path in out.glob("secret/*/done.json")}  # fmt: skip
    assert "served" in done, ended.stdout + ended.stderr
    assert not {"refused", "unauthorized"} & done
    heard = "\n".join(Server.heard)  # the address has its own authorization
    assert [number for number in (5, 7, 10) if f"{MARK}-{number}" not in heard] == []
    files = [path for path in out.rglob("*") if path.is_file()]
    assert len(files) > 20
    assert any(path.name == "index.html" for path in files)
    texts = {path: path.read_bytes() for path in files}
    assert [path for path, text in texts.items() if leaked(text.decode(errors="replace"))] == []
    logs = "".join(path.read_text() for path in out.glob("secret/*/log.txt"))
    for line in ("printed ***-1", "logged ***", "2 ***", "the token *** is not known"):
        assert line in logs
    assert logs.count("the cell is computed") == len(done)
    (failure,) = [p for p in out.glob("secret/*/failed.json") if "401" in p.read_text()]
    assert "X-Amz-Signature=***" in failure.read_text()
    for made in ("table", "page"):
        where = tmp_path / made
        more = (
            ["--format", "csv", "--out", str(where)] if made == "table" else ["--out", str(where)]
        )
        told = forks.command(made, out, *more)
        assert told.returncode == 0
        assert not leaked(told.stdout + told.stderr)
        written = [where] if where.is_file() else [p for p in where.rglob("*") if p.is_file()]
        assert written
        assert [
            path for path in written if leaked(path.read_bytes().decode(errors="replace"))
        ] == []
