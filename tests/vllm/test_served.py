"""The ways people run vLLM, with Resonance YaRN and nothing mocked."""

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from forked_programs import Forks
from loaded_hf import load_hf

pytestmark = [pytest.mark.engine("vllm"), pytest.mark.slow]

ROPE = {
    "rope_type": "resonance_yarn",
    "rope_theta": 100000.0,
    "factor": 2.0,
    "original_max_position_embeddings": 8192,
}
LENGTH = 9216


@pytest.fixture(scope="module")
def address(vllm_server: Any, smollm2: Path) -> Iterator[str]:
    """A running `vllm serve`, started as the documentation says."""
    arguments = ["--hf-overrides", json.dumps({"rope_parameters": ROPE})]
    arguments += ["--max-model-len", str(LENGTH), "--dtype", "float32"]
    arguments += ["--worker-extension-cls", "resonance_vllm.vllm.RopeWorker"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_SERVER_DEV_MODE", "1")
        with vllm_server(smollm2, *arguments) as url:
            yield url


@pytest.fixture(scope="module")
def client(address: str) -> Any:
    from openai import OpenAI

    return OpenAI(base_url=address, api_key="none", timeout=300, max_retries=0)


def test_server_has_the_requested_length_and_answers(client: Any) -> None:
    (model,) = client.models.list().data
    assert model.max_model_len == LENGTH
    answer = client.completions.create(
        model="smollm2", prompt="The capital of France is", max_tokens=4, temperature=0, logprobs=3
    )
    (choice,) = answer.choices
    assert "Paris" in choice.text
    assert len(choice.logprobs.token_logprobs) == answer.usage.completion_tokens


SUN = "The sun and the moon. " * 60


def logprobs(client: Any) -> list[float]:
    answer = client.completions.create(
        model="smollm2", prompt=SUN, max_tokens=4, temperature=0, logprobs=1
    )
    return list(answer.choices[0].logprobs.token_logprobs)


def by_transformers(path: Path, rope: dict[str, Any]) -> list[float]:
    """The same four numbers in float32."""
    import torch
    from transformers import AutoTokenizer

    model = load_hf(path, rope, LENGTH)
    tokens = AutoTokenizer.from_pretrained(path)(SUN, return_tensors="pt").input_ids
    answer = model.generate(tokens, max_new_tokens=4, do_sample=False)
    with torch.no_grad():
        last = model(answer).logits[0, -5:-1].log_softmax(-1)
    return last.max(-1).values.tolist()


def test_server_swaps_settings(client: Any, address: str, smollm2: Path) -> None:
    """Its cached keys are forgotten: coming back gives the numbers of before, twice asked."""
    before = logprobs(client)
    assert before == pytest.approx(by_transformers(smollm2, ROPE), abs=1e-3)
    assert logprobs(client) == pytest.approx(before, abs=1e-4), "of cached keys"
    plain = {**ROPE, "rope_type": "yarn"}
    assert not set_rope(address, plain)
    assert logprobs(client) == pytest.approx(by_transformers(smollm2, plain), abs=1e-3)
    assert logprobs(client) != pytest.approx(before, abs=1e-2)
    assert set_rope(address, ROPE)
    assert logprobs(client) == before


def set_rope(address: str, rope: dict[str, Any] | None) -> bool:
    """Give the server settings; whether its modules have exact phase then."""
    request = urllib.request.Request(
        address.removesuffix("/v1") + "/collective_rpc",
        data=json.dumps({"method": "set_rope", "args": [rope]}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        (reports,) = json.load(answer)["results"]
    return all(each["exact_phase"] for each in reports)


@pytest.fixture
def as_shipped(address: str) -> Iterator[str]:
    """The same server without a method, for a comparison with lm-eval's own `hf`."""
    set_rope(address, None)
    yield address
    set_rope(address, ROPE)


TASKS = "leval_closed_toefl,leval_closed_sfiction"
CONTEXT, NEW_TOKENS = 500, 6
STOCK = "from lm_eval.__main__ import cli_evaluate; cli_evaluate()"


def lm_eval(
    forks: Forks, out: Path, model: str, arguments: dict[str, Any], *flags: str
) -> dict[str, Any]:
    """lm-eval's own `run` on a question of each task of the sample; samples by task."""
    metadata = {"data_dir": "sample", "num_docs": 1, "context_length": CONTEXT}
    command = ["run", "--model", model]
    command += ["--model_args", json.dumps(arguments), "--tasks", TASKS, "--limit", "1"]
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


def test_server_completions_equal_hf(
    forks: Forks, as_shipped: str, smollm2: Path, tmp_path: Path
) -> None:
    url = f"{as_shipped}/completions"
    server = {"model": "smollm2", "base_url": url, "tokenizer": str(smollm2), "max_length": 2048}
    server["tokenizer_backend"] = "huggingface"
    through_server = lm_eval(forks, tmp_path / "server", "local-completions", server)
    local = {"pretrained": str(smollm2), "dtype": "float32"}
    reference = lm_eval(forks, tmp_path / "hf", "hf", local)
    for task, (served,) in through_server.items():
        (here,) = reference[task]
        assert served["arguments"] == here["arguments"]
        assert served["resps"] == here["resps"]
        prompt, sizes = served["arguments"]["gen_args_0"]["arg_0"], served["doc"]["prompt"]
        assert used_tokens(url, {"prompt": prompt}) == sizes["prompt_tokens"]
        assert sizes["prompt_tokens"] <= CONTEXT - NEW_TOKENS
        assert sizes["truncated"]


@pytest.mark.slow(long=True)
def test_server_chat_completions(
    forks: Forks, as_shipped: str, smollm2: Path, tmp_path: Path
) -> None:
    url = f"{as_shipped}/chat/completions"
    server = {"model": "smollm2", "base_url": url, "tokenizer": str(smollm2)}
    through_server = lm_eval(
        forks, tmp_path, "local-chat-completions", server, "--apply_chat_template"
    )
    for sample in (each for samples in through_server.values() for each in samples):
        sent = sample["arguments"]["gen_args_0"]["arg_0"]
        messages = json.loads(sent[0] if isinstance(sent, list) else sent)
        assert [message["role"] for message in messages] == ["system", "user"]
        assert messages[1]["content"].endswith("\nAnswer:")
        assert used_tokens(url, {"messages": messages}) == sample["doc"]["prompt"]["prompt_tokens"]
        assert all(isinstance(response[0], str) for response in sample["resps"])


@pytest.fixture(scope="module")
def tiny_chat_model(
    smollm2: Path, tmp_path_factory: pytest.TempPathFactory, save_llama: Callable[..., Path]
) -> Path:
    """Random weights behind the real model's tokenizer: reads 8,000 tokens in a second."""
    folder = save_llama(
        tmp_path_factory.mktemp("tiny-chat"),
        dtype="bfloat16",
        vocab_size=49152,
        hidden_size=64,
        intermediate_size=64,
        num_key_value_heads=1,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(smollm2 / name, folder)
    return folder


@pytest.mark.slow(long=True)
def test_lm_eval_runs_the_closed_tasks(tiny_chat_model: Path, tmp_path: Path) -> None:
    """Stock lm-eval, RoPE settings through `hf_overrides`."""
    arguments = {
        "pretrained": str(tiny_chat_model),
        "hf_overrides": {"rope_parameters": ROPE},
        "max_model_len": 16384,
        "enforce_eager": True,
        "max_num_seqs": 4,
    }
    stock = str(Path(sys.executable).with_name("lm_eval"))
    command = [stock, "run", "--model", "vllm", "--tasks", "leval_closed"]
    command += ["--model_args", json.dumps(arguments), "--output_path", str(tmp_path)]
    command += ["--metadata", json.dumps({"data_dir": "sample", "num_docs": 1})]
    command += ["--limit", "2", "--gen_kwargs", "max_gen_toks=4"]
    command += ["--apply_chat_template", "--log_samples"]
    run = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=800,
        env={**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1"},
    )  # fmt: skip
    # The engine may abort while the interpreter ends; what counts was written before.
    written = list(tmp_path.rglob("results_*.json"))
    assert written, run.stderr[-3000:]
    results = json.loads(written[0].read_text())
    assert any(key.startswith("exact_match,") for key in results["groups"]["leval_closed"])
    for task in ("coursera", "gsm", "quality", "toefl", "codeu", "sfiction"):
        assert results["n-samples"][f"leval_closed_{task}"]["effective"] > 0
    # The document is not cut: the budget knows the length that is really served.
    sample = next(tmp_path.rglob("samples_leval_closed_sfiction_*.jsonl"))
    prompt = json.loads(sample.read_text().splitlines()[0])["doc"]["prompt"]
    assert not prompt["truncated"]
