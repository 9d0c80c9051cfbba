"""What a client of a server sends, to each kind of server."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI

from leval_tasks.common.served import NEUTRAL, match_loaded_models, models_address

TOKENIZER = str(Path(__file__).parents[1] / "golden" / "tokenizer")
OPENAI_FIELDS = {
    "model", "prompt", "messages", "max_tokens", "temperature", "stop", "seed", "echo", "logprobs",
    "top_p", "presence_penalty", "frequency_penalty",
}  # fmt: skip
TEXT = "a thought\nof lines </think> the answer\nand more"


class Server(ThreadingHTTPServer):
    """Answers with `TEXT` up to the stop strings that it gets, and notes the requests.

    Its list of models has the entry `model`, if there is one. Unless it is vLLM or SGLang it
    refuses fields that the OpenAI API lacks.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.model = model
        self.asked: list[dict[str, Any]] = []


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def respond(self, code: int, content: Any) -> None:
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(content if isinstance(content, bytes) else json.dumps(content).encode())

    def do_GET(self) -> None:
        if self.path != "/v1/models" or self.server.model is None:
            self.respond(404, {"detail": "Not Found"})
        elif isinstance(self.server.model, bytes):
            self.respond(200, self.server.model)
        else:
            self.respond(200, {"data": [self.server.model]})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(asked)
        owner = self.server.model.get("owned_by") if isinstance(self.server.model, dict) else None
        if owner not in ("vllm", "sglang") and not asked.keys() <= OPENAI_FIELDS:
            self.respond(400, {"error": f"unknown: {sorted(asked.keys() - OPENAI_FIELDS)}"})
            return
        text = TEXT
        for stop in asked.get("stop") or []:
            text = text.split(stop)[0]
        self.respond(200, {"choices": [{"index": 0, "text": text, "message": {"content": text}}]})


@pytest.fixture
def serve() -> Iterator[Any]:
    """Starts a server whose list of models has this entry."""
    started = []

    def start(model: Any) -> Server:
        server = Server(model)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        started.append(server)
        return server

    yield start
    for server in started:
        server.shutdown()
        server.server_close()


def client(server: Server, kind: str = "completions", **arguments: Any) -> Any:
    """lm-eval's client of a server, as this package changes it."""
    classes = {"completions": LocalCompletionsAPI, "chat/completions": LocalChatCompletion}
    url = f"http://127.0.0.1:{server.server_port}/v1/{kind}"
    lm = classes[kind](
        base_url=url, model="mine", tokenizer=TOKENIZER, tokenizer_backend="huggingface",
        tokenized_requests=False, max_retries=1, **arguments,
    )  # fmt: skip
    match_loaded_models(lm)
    match_loaded_models(lm)
    return lm


def answers(lm: Any, number: int = 1, **options: Any) -> list[str]:
    options = {"until": [], "do_sample": False, "max_gen_toks": 8, **options}
    prompt: Any = "a question"
    if isinstance(lm, LocalChatCompletion):
        prompt = lm.apply_chat_template([{"role": "user", "content": prompt}])
    requests = [
        Instance("generate_until", {}, (prompt, dict(options)), at, ("task", at, 1))
        for at in range(number)
    ]
    return list(lm.generate_until(requests, disable_tqdm=True))


@pytest.mark.parametrize("kind", ["completions", "chat/completions"])
@pytest.mark.parametrize(
    ("model", "is_sent", "warns"),
    [
        ({"id": "mine", "owned_by": "vllm"}, True, False),
        ({"id": "mine", "owned_by": "sglang"}, True, False),
        ({"id": "other", "owned_by": "vllm"}, True, False),
        ({"id": "mine", "owned_by": "llamacpp"}, False, False),
        ({"id": "mine", "owned_by": "openai"}, False, False),
        ({"id": "mine", "owned_by": "library"}, False, True),
        ({"id": "mine"}, False, True),
        (None, False, True),
        (b"<html>", False, True),
    ],
)
def test_neutral_values_go_to_engines_that_know_them(
    serve: Any, kind: str, model: Any, is_sent: bool, warns: bool, caplog: Any
) -> None:
    server = serve(model)
    lm = client(server, kind)
    assert answers(lm, 2) == [TEXT, TEXT]
    for asked in server.asked:
        assert {name: asked[name] for name in NEUTRAL if name in asked} == (
            dict(NEUTRAL) if is_sent else {}
        )
    assert lm.telemetry()["neutral_values_sent"] == (dict(NEUTRAL) if is_sent else {})
    assert caplog.text.count("repetition_penalty=1.0") == warns


@pytest.mark.parametrize(
    "setting", [{"repetition_penalty": 1.2}, {"top_k": 5, "temperature": 0.7}, {"min_p": 0.1}]
)
def test_gen_kwargs_decide(serve: Any, setting: dict[str, Any]) -> None:
    server = serve({"id": "mine", "owned_by": "vllm"})
    answers(client(server), **setting)
    (asked,) = server.asked
    assert NEUTRAL | setting == {name: asked[name] for name in {**NEUTRAL, **setting}}


def test_settings_of_the_served_checkpoint_are_recorded(serve: Any, tmp_path: Path) -> None:
    settings = {"repetition_penalty": 1.1, "top_k": 20, "presence_penalty": 0.0, "eos_token_id": 2}
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    lm = client(serve({"id": "mine", "owned_by": "vllm", "root": str(tmp_path)}))
    assert lm.get_model_info()["neutralized"] == {"repetition_penalty": 1.1}
    lm = client(serve({"id": "mine", "owned_by": "llamacpp", "root": str(tmp_path)}))
    assert lm.get_model_info()["neutralized"] == {}


@pytest.mark.parametrize("connections", [1, 3])
@pytest.mark.parametrize("until", ["\n", ["\n"], ["nothing of it", "\n"]])
def test_chat_stop_strings_count_after_thinking(serve: Any, connections: int, until: Any) -> None:
    server = serve({"id": "mine", "owned_by": "openai"})
    lm = client(server, "chat/completions", num_concurrent=connections, think_end_token="</think>")
    assert answers(lm, 3, until=until) == ["the answer"] * 3
    lm = client(server, "chat/completions", num_concurrent=connections)
    assert answers(lm, 3, until=until) == ["a thought"] * 3


@pytest.mark.parametrize(
    ("base_url", "models"),
    [
        ("http://h:1/v1/completions", "http://h:1/v1/models"),
        ("http://h:1/v1/completions/", "http://h:1/v1/models"),
        ("https://h/a/v1/chat/completions", "https://h/a/v1/models"),
        ("https://h/chat/completions?api-version=1", "https://h/models?api-version=1"),
        ("http://h:1/generate", None),
        ("", None),
        (None, None),
    ],
)
def test_address_of_the_list_of_models(base_url: Any, models: str | None) -> None:
    assert models_address(base_url) == models
