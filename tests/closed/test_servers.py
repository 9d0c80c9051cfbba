"""The tasks on lm-eval's server backends, against a real local server."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forked_programs import Forks

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
TASKS = "leval_closed_toefl,leval_closed_sfiction"
NEW_TOKENS = 6


@pytest.fixture(scope="module")
def address(vllm_server: Any, smollm2: Path) -> Iterator[str]:
    with vllm_server(smollm2, "--dtype", "float32", "--max-model-len", "2048") as url:
        yield url


STOCK = "from lm_eval.__main__ import cli_evaluate; cli_evaluate()"


def lm_eval(
    forks: Forks, out: Path, model: str, arguments: dict[str, Any], *flags: str
) -> dict[str, Any]:
    """lm-eval's own `run` on two questions of the sample; samples by task."""
    metadata = {"data_dir": "sample", "num_docs": 1, "context_length": 900}
    command = ["run", "--model", model]
    command += ["--model_args", json.dumps(arguments), "--tasks", TASKS, "--limit", "2"]
    command += ["--metadata", json.dumps(metadata), "--gen_kwargs", f"max_gen_toks={NEW_TOKENS}"]
    command += ["--output_path", str(out), "--log_samples", *flags]
    done = forks.python(STOCK, *command)
    assert done.returncode == 0, done.stderr[-3000:]
    return {
        task: [
            json.loads(line)
            for path in out.rglob(f"samples_{task}_*.jsonl")
            for line in path.read_text("utf-8").split("\n")
            if line
        ]
        for task in TASKS.split(",")
    }


def used_tokens(url: str, body: dict[str, Any]) -> int:
    """Prompt length as the server counts it."""
    request = urllib.request.Request(
        url,
        json.dumps({"model": "smollm2", "max_tokens": 1, **body}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return int(json.load(answer)["usage"]["prompt_tokens"])


def test_completions_equal_hf(forks: Forks, address: str, smollm2: Path, tmp_path: Path) -> None:
    url = f"{address}/completions"
    server = {"model": "smollm2", "base_url": url, "tokenizer": str(smollm2), "max_length": 2048}
    server["tokenizer_backend"] = "huggingface"
    ours = lm_eval(forks, tmp_path / "server", "local-completions", server)
    local = {"pretrained": str(smollm2), "dtype": "float32"}
    reference = lm_eval(forks, tmp_path / "hf", "hf", local)
    for task, samples in ours.items():
        assert len(samples) == 2
        for served, here in zip(samples, reference[task], strict=True):
            assert served["arguments"] == here["arguments"]
            assert served["resps"] == here["resps"]
            prompt, sizes = served["arguments"]["gen_args_0"]["arg_0"], served["doc"]["prompt"]
            assert used_tokens(url, {"prompt": prompt}) == sizes["prompt_tokens"]
            assert sizes["prompt_tokens"] <= 900 - NEW_TOKENS
            assert sizes["truncated"]


def test_chat_completions(forks: Forks, address: str, smollm2: Path, tmp_path: Path) -> None:
    url = f"{address}/chat/completions"
    server = {"model": "smollm2", "base_url": url, "tokenizer": str(smollm2)}
    ours = lm_eval(forks, tmp_path, "local-chat-completions", server, "--apply_chat_template")
    for sample in (each for samples in ours.values() for each in samples):
        sent = sample["arguments"]["gen_args_0"]["arg_0"]
        messages = json.loads(sent[0] if isinstance(sent, list) else sent)
        assert [message["role"] for message in messages] == ["system", "user"]
        assert messages[1]["content"].endswith("\nAnswer:")
        assert used_tokens(url, {"messages": messages}) == sample["doc"]["prompt"]["prompt_tokens"]
        assert all(isinstance(response[0], str) for response in sample["resps"])
