"""The same windows through lm-eval's `local-completions` and an OpenAI-style server."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.hf


@pytest.fixture
def server(tiny: Path) -> Iterator[str]:
    """Echoes prompts of token ids with their log-probabilities, as completion servers do."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32).eval()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert request["echo"]
            choices = [answer(i, ids) for i, ids in enumerate(request["prompt"])]
            body = json.dumps({"choices": choices}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            """Nothing on the terminal."""

    def answer(index: int, ids: list[int]) -> dict[str, Any]:
        with torch.no_grad():
            logprobs = model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
        gold = logprobs[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
        top = [{"best": value} for value in logprobs.max(-1).values.tolist()]
        # the first token has no probability; the last entry is the generated token
        values = {"token_logprobs": [None, *gold, 0.0], "top_logprobs": [None, *top]}
        return {"index": index, "logprobs": values}

    running = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{running.server_port}/v1/completions"
    running.shutdown()
    thread.join()
    running.server_close()


def test_a_completion_server_scores_the_same_windows_alike(tiny, data_dir, server):
    import lm_eval
    import lm_eval.models
    from lm_eval.tasks import TaskManager

    import leval_tasks.perplexity

    folder = str(Path(leval_tasks.perplexity.__file__).parent / "tasks")
    samples = []
    arguments = {
        "local-completions": {
            "model": "tiny",
            "base_url": server,
            "tokenizer": str(tiny),
            "max_length": 97,
        },
        "hf": {"pretrained": str(tiny), "dtype": "float32", "device": "cpu"},
    }
    metadata = {"context_length": [48, 96], "stride": 16, "data_dir": str(data_dir), "num_docs": 2}
    for model, settings in arguments.items():
        manager = TaskManager(
            include_path=folder, include_defaults=False, metadata=settings | metadata
        )
        results = lm_eval.simple_evaluate(
            model=model,
            model_args=settings,
            tasks=["ppl_govreport"],
            task_manager=manager,
            batch_size=1,
            bootstrap_iters=0,
        )
        samples.append(results["samples"]["ppl_govreport"])
    for a, b in zip(*samples, strict=True):
        assert a["arguments"] == b["arguments"]
        for name in ("token_perplexity@48", "token_perplexity@96"):
            assert a[name][1] == b[name][1]
            assert a[name][0] / a[name][1] == pytest.approx(b[name][0] / b[name][1], abs=1e-4)
