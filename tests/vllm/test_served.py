"""The ways people run vLLM, with Resonance YaRN and nothing mocked."""

import contextlib
import importlib.metadata
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forked_programs import Forks
from loaded_hf import load_hf

from leval_harness.diff.compare import save_reference
from leval_harness.diff.setups import Setup

pytestmark = [pytest.mark.engine("vllm"), pytest.mark.slow]

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "served-models.md").read_text("utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SERVE, LM_EVAL, LM_EVAL_CONTEXT, SWEEP, SWEEP_COMMAND, DIFF = [
    text for _, text in BLOCK.findall(PAGE)
]

SCALED = {"rope_theta": 100000.0, "factor": 2.0, "original_max_position_embeddings": 8192}
YARN = {"rope_type": "yarn", **SCALED}
RESONANCE = {"rope_type": "resonance_yarn", **SCALED}


def served_options() -> dict[str, str]:
    """Return the options of the page's `vllm serve`."""
    words = shlex.split(SERVE.replace("\n", " "))[3:]
    return dict(zip(words[::2], words[1::2], strict=True))


LENGTH = int(served_options()["--max-model-len"])


@pytest.fixture(scope="module")
def tiny_chat_model(
    smollm2: Path, tmp_path_factory: pytest.TempPathFactory, save_llama: Callable[..., Path]
) -> Path:
    """Random float32 weights behind the real model's tokenizer: reads 8,000 tokens in a second.

    They are wider than usual, so that attention is sharp and a wrong position shows.
    """
    folder = save_llama(
        tmp_path_factory.mktemp("tiny-chat"),
        vocab_size=49152,
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=2,
        num_key_value_heads=1,
        max_position_embeddings=8192,
        initializer_range=0.15,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(smollm2 / name, folder)
    return folder


@pytest.fixture(
    scope="module", params=["tiny", pytest.param("smollm2", marks=pytest.mark.slow(long=True))]
)
def served_model(request: pytest.FixtureRequest, tiny_chat_model: Path, smollm2: Path) -> Path:
    """The checkpoint of the server; each is served once for all tests."""
    return {"tiny": tiny_chat_model, "smollm2": smollm2}[request.param]


@pytest.fixture(scope="module")
def address(vllm_server: Any, served_model: Path) -> Iterator[Any]:
    """A running `vllm serve`, started as the page says."""
    arguments = [word for option in served_options().items() for word in option]
    arguments += ["--dtype", "float32"]
    arguments += ["--worker-extension-cls", "resonance_vllm.vllm.RopeWorker"]
    arguments += ["--enable-server-load-tracking"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_SERVER_DEV_MODE", "1")
        with vllm_server(served_model, *arguments) as url:
            yield url


@pytest.fixture(scope="module")
def client(address: str) -> Any:
    from openai import OpenAI

    return OpenAI(base_url=address, api_key="none", timeout=300, max_retries=0)


def test_server_has_the_requested_length_and_answers(
    client: Any, served_model: Path, smollm2: Path
) -> None:
    (model,) = client.models.list().data
    assert model.max_model_len == LENGTH
    answer = client.completions.create(
        model="mine", prompt="The capital of France is", max_tokens=4, temperature=0, logprobs=3
    )
    (choice,) = answer.choices
    if served_model == smollm2:  # the other one has random weights
        assert "Paris" in choice.text
    assert len(choice.logprobs.token_logprobs) == answer.usage.completion_tokens


SUN = "The sun and the moon. " * 60


def logprobs(client: Any) -> list[float]:
    answer = client.completions.create(
        model="mine", prompt=SUN, max_tokens=4, temperature=0, logprobs=1
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


def test_server_swaps_settings(client: Any, address: Any, served_model: Path) -> None:
    """Its cached keys are forgotten: coming back gives the numbers of before, twice asked."""
    before = logprobs(client)
    assert before == pytest.approx(by_transformers(served_model, YARN), abs=1e-3)
    assert logprobs(client) == pytest.approx(before, abs=1e-4), "of cached keys"
    # Settings are completed from config.json, as on the command line.
    assert set_rope(address, "resonance_yarn:factor=2")
    assert logprobs(client) == pytest.approx(by_transformers(served_model, RESONANCE), abs=1e-3)
    assert logprobs(client) != pytest.approx(before, abs=1e-2)
    assert not set_rope(address, {"rope_type": "yarn", "factor": 2.0})
    assert logprobs(client) == before
    lines = [line for line in address.log.read_text().splitlines() if "RoPE settings: " in line]
    own_version = importlib.metadata.version("leval-harness")
    for line, rope_type in zip(lines[-3:], ("yarn", "resonance_yarn", "yarn"), strict=True):
        assert f"RoPE settings: rope_type={rope_type}, " in line
        assert "factor=2.0, original_max_position_embeddings=8192" in line
        assert line.endswith(f"(resonance_vllm of leval-harness {own_version})")


def set_rope(address: str, rope: dict[str, Any] | str | None) -> bool:
    """Give the server settings; whether its modules have exact phase then."""
    request = urllib.request.Request(
        address.removesuffix("/v1") + "/collective_rpc",
        data=json.dumps({"method": "set_rope", "args": [rope]}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        (reports,) = json.load(answer)["results"]
    return all(report["exact_phase"] for report in reports)


@pytest.fixture
def as_shipped(address: str) -> Iterator[str]:
    """The same server without a method, for a comparison with lm-eval's own `hf`."""
    set_rope(address, None)
    yield address
    set_rope(address, YARN)


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
        json.dumps({"model": "mine", "max_tokens": 1, **body}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return int(json.load(answer)["usage"]["prompt_tokens"])


def test_server_completions_equal_hf(
    forks: Forks, as_shipped: str, served_model: Path, tmp_path: Path
) -> None:
    url = f"{as_shipped}/completions"
    server = {"model": "mine", "base_url": url, "tokenizer": str(served_model), "max_length": 2048}
    server["tokenizer_backend"] = "huggingface"
    through_server = lm_eval(forks, tmp_path / "server", "local-completions", server)
    local = {"pretrained": str(served_model), "dtype": "float32"}
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
    forks: Forks, as_shipped: str, served_model: Path, tmp_path: Path
) -> None:
    url = f"{as_shipped}/chat/completions"
    server = {"model": "mine", "base_url": url, "tokenizer": str(served_model)}
    through_server = lm_eval(
        forks, tmp_path, "local-chat-completions", server, "--apply_chat_template"
    )
    for sample in itertools.chain.from_iterable(through_server.values()):
        sent = sample["arguments"]["gen_args_0"]["arg_0"]
        messages = json.loads(sent[0] if isinstance(sent, list) else sent)
        assert [message["role"] for message in messages] == ["system", "user"]
        assert messages[1]["content"].endswith("\nAnswer:")
        assert used_tokens(url, {"messages": messages}) == sample["doc"]["prompt"]["prompt_tokens"]
        assert all(isinstance(response[0], str) for response in sample["resps"])


@pytest.mark.slow(long=True)
def test_lm_eval_runs_the_closed_tasks(tiny_chat_model: Path, tmp_path: Path) -> None:
    """Stock lm-eval, RoPE settings through `hf_overrides`."""
    arguments = {
        "pretrained": str(tiny_chat_model),
        "hf_overrides": {"rope_parameters": RESONANCE},
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


def of_page(text: str, address: str, served_model: Path) -> str:
    """Return a block of the page for the server of these tests, with lengths that take seconds."""
    text = text.replace("MODEL", str(served_model)).replace("http://localhost:8000/v1", address)
    text = text.replace("http://localhost:8000", address.removesuffix("/v1"))
    for length, small in {"12288": "768", "8192": "512", "--length 4096": "--length 128"}.items():
        text = re.sub(rf"{length}\b", small, text)
    few = "{data_dir: sample, num_docs: 1, stride: 256}"
    of_entry = f"{few}\n    limit: 1\n    gen_kwargs: {{max_gen_toks: 4}}"
    text = text.replace("{data_dir: sample}", of_entry)
    text = text.replace(
        '"data_dir": "sample"', '"data_dir": "sample", "num_docs": 1, "stride": 256'
    )
    return text.replace("--limit 5", "--limit 1 --gen_kwargs max_gen_toks=4")


@contextlib.contextmanager
def requests_in_flight(address: str) -> Iterator[list[int]]:
    """Note how many requests the server has at a time, by its own count, while the block runs.

    It counts an answered request for a moment longer: one at a time may be two.
    """
    counts: list[int] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.02):
            with urllib.request.urlopen(f"{address.removesuffix('/v1')}/load") as answer:
                counts.append(json.load(answer)["server_load"])

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield counts
    finally:
        ended.set()
        watcher.join()


def run_page(forks: Forks, block: str) -> list[str]:
    """Run the commands of a block; return what each printed."""
    printed = []
    for line in block.replace("\\\n", " ").strip().split("\nleval-harness "):
        program, *words = shlex.split(line.replace("\n", " "))
        if program == "lm_eval":
            done = forks.python(STOCK, *words)
        elif program == "leval-harness":
            done = forks.command(*words)
        else:
            done = forks.command(program, *words)
        assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
        printed.append(done.stdout)
    return printed


@pytest.fixture
def page_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a folder that has the name of the served model."""
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow(long=True)
def test_page_evaluates_with_lm_eval(
    forks: Forks, address: str, served_model: Path, page_folder: Path
) -> None:
    _, table = run_page(forks, of_page(LM_EVAL, address, served_model))
    assert "YaRN x2" in table
    _, table = run_page(forks, of_page(LM_EVAL_CONTEXT, address, served_model))
    assert "YaRN x2" in table


@pytest.mark.slow(long=True)
def test_page_sweeps(forks: Forks, address: str, served_model: Path, page_folder: Path) -> None:
    """The served name is sent as it is, although a folder has it; `num_concurrent` is 4."""
    (page_folder / "served.yaml").write_text(of_page(SWEEP, address, served_model))
    with requests_in_flight(address) as in_flight:
        (table,) = run_page(forks, of_page(SWEEP_COMMAND, address, served_model))
    assert max(in_flight) > 2
    assert "mine (YaRN x2)" in table
    assert "as served" in table


@pytest.mark.slow(long=True)
def test_page_diff(forks: Forks, address: str, served_model: Path) -> None:
    command = f"{of_page(DIFF, address, served_model).strip()} --count 2"
    (said,) = run_page(
        forks, command.replace(f"hf:{served_model}", f"hf:{served_model},dtype=float32")
    )
    first, verdict, *_ = said.splitlines()
    assert first.startswith("A runs with {'rope_type': 'yarn', ")
    assert first.endswith("(--rope-a); B does not expose its RoPE settings.")
    assert "he same within " in verdict


@pytest.fixture(scope="module")
def saved(served_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Saves what the model reads under a method, for `diff --against`: it is loaded in here."""

    def save(rope: str | None) -> Path:
        path = tmp_path_factory.mktemp("saved") / "a.npz"
        model = Setup.parse(f"hf:{served_model},dtype=float32", rope)
        save_reference(model, path, length=128, count=2, isolated=False)
        return path

    return save


def test_diff_shows_method_of_a(forks: Forks, address: str, saved: Callable[..., Path]) -> None:
    done = forks.command("diff", "--against", saved("yarn:factor=2"), address)
    first, verdict, *_ = done.stdout.splitlines()
    assert first.startswith("A runs with {'rope_type': 'yarn', ")
    assert first.endswith("(--rope-a); B does not expose its RoPE settings.")
    assert (done.returncode, verdict[:16]) == (0, "The same within ")


def test_diff_of_unscaled_model_asks_about_server(
    forks: Forks, address: str, served_model: Path, smollm2: Path, saved: Callable[..., Path]
) -> None:
    """Without a method, with one that changes little here, and with one that changes much."""
    cases: list[tuple[Any, int, str]] = [(None, 0, "The same within "), (YARN, 3, "Not decided: ")]
    if served_model == smollm2:  # random weights have nothing to lose
        cases.append(("linear:factor=8", 4, "Worse: "))
    unscaled = saved(None)
    for rope, code, verdict in cases:
        set_rope(address, rope)
        done = forks.command("diff", "--against", unscaled, address, "--margin", "0.001")
        first, second, *_ = done.stdout.splitlines()
        assert (done.returncode, first[: len(verdict)]) == (code, verdict), done.stdout
        question = (
            "A is unscaled. Is B served with a RoPE method? Then give A the same one: --rope-a "
            "TYPE:factor=FACTOR."
        )
        assert (second == question) == (code != 0)
    set_rope(address, YARN)


def test_diff_asks_a_server_before_a_is_loaded(forks: Forks, address: str) -> None:
    for b, more, code, message in (
        (address, ("--length", str(LENGTH)), 1, f"B reads at most {LENGTH - 1} tokens"),
        (f"{address},model=other", (), 1, "does not serve 'other'; allowed: mine"),
        (address, ("--length", "4"), 2, "4 is not in the range"),
    ):
        # A is a config without weights: loading it would be another error.
        done = forks.command("diff", f"hf:{CONFIG}", b, *more)
        assert (done.returncode, "loading" in done.stderr) == (code, False)
        assert message in done.stderr


CONFIG = Path(__file__).parents[1] / "families" / "configs" / "llama31_8b"


def losses(model: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Document -> read -> losses of its tokens, with a model of lm-eval, in this process."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    import leval_harness.backends
    from leval_harness.sweep.task_registry import task_folders

    leval_harness.backends.register()
    metadata = {**arguments, "context_length": 384, "window": 256, "num_docs": 3}
    manager = TaskManager(
        include_path=[str(folder) for folder in task_folders()],
        include_defaults=False,
        metadata=metadata,
    )
    (task,) = manager.load(["effective_context_pydocs"])["tasks"].values()
    lm_eval.simple_evaluate(
        model=model, model_args=arguments, tasks=[task], task_manager=manager, bootstrap_iters=0
    )
    return dict(task.token_losses)


def check_alike(losses: dict[str, Any], others: dict[str, Any]) -> None:
    """Every token has the same loss to 1e-4 nats."""
    assert losses.keys() == others.keys()
    for document, reads in losses.items():
        assert reads.keys() == {"full", "reference"}
        for read, values in reads.items():
            np.testing.assert_allclose(values, others[document][read], atol=1e-4)


def server_arguments(address: str, served_model: Path, **more: Any) -> dict[str, Any]:
    return {
        "model": "mine",
        "base_url": f"{address}/completions",
        "tokenizer": str(served_model),
        "tokenizer_backend": "huggingface",
        "max_length": 1024,
        **more,
    }


def test_server_effective_context_equals_hf(as_shipped: str, served_model: Path) -> None:
    """Token by token, with one request at a time and with several."""
    local = {"pretrained": str(served_model), "dtype": "float32", "device": "cpu"}
    expected = losses("hf-long", local)
    for connections in (1, 4):
        served = server_arguments(as_shipped, served_model, num_concurrent=connections)
        with requests_in_flight(as_shipped) as in_flight:
            check_alike(losses("local-completions", served), expected)
        assert (max(in_flight) > 2) == (connections > 1)


@pytest.mark.slow(long=True)
def test_server_effective_context_equals_vllm_long(as_shipped: str, served_model: Path) -> None:
    engine = {"pretrained": str(served_model), "dtype": "float32", "max_model_len": 1024}
    engine |= {"enforce_eager": True, "max_num_seqs": 2, "kv_cache_memory_bytes": 2**28}
    served = server_arguments(as_shipped, served_model, num_concurrent=4)
    check_alike(losses("local-completions", served), losses("vllm-long", engine))
