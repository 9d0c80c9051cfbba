"""Shared fixtures, and which tests this machine can run."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import at_hand
import coverage
import hypothesis
import lm_eval_index
import pytest
from forked_programs import Forks, forked

hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.register_profile("dev", deadline=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def pytest_configure(config: pytest.Config) -> None:
    """Shells start background jobs with SIGINT ignored, which the tests of Ctrl-C would inherit."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """End the first of pytest-cov's two measurements in a process of xdist: `no_cover` does not."""
    if hasattr(session.config, "workerinput") and (first := coverage.Coverage.current()):
        first.stop()


NO_ENGINE = 3


def _start_cost_order(item: pytest.Item) -> int:
    """Return a number by which files are ordered: the less, the more it costs to begin with one."""
    if "vllm_server" in getattr(item, "fixturenames", ()):
        return 0
    engines = {marker.args[0] for marker in item.iter_markers("engine")}
    if "vllm" in engines:
        return 1
    return 2 if engines else NO_ENGINE


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what cannot run on this machine, and say why; in CI the engines have to be there."""
    # Files that are costly to begin come first: that of the server, then those of vLLM, then those
    # of other engines. The first process has them, and others take what is left of its share from
    # its end; one that took half of such a file would start or import the same again. Files stay
    # whole, so that what the tests of a file share is made once.
    order: dict[Path, int] = {}
    for item in items:
        order[item.path] = min(_start_cost_order(item), order.get(item.path, NO_ENGINE))
    items.sort(key=lambda item: order[item.path])
    missing = at_hand.missing()
    for item in items:
        if "real_data" in getattr(item, "fixturenames", ()):
            item.add_marker("data")
        needed = {marker.args[0] for marker in item.iter_markers("engine")}
        if item.get_closest_marker("data"):
            needed.add(at_hand.REAL_DATA)
        for name in sorted(needed & missing.keys()):
            if os.environ.get("CI") and name in at_hand.IN_CI:
                raise pytest.UsageError(f"{missing[name]}; in CI every engine has to be there")
            item.add_marker(pytest.mark.skip(reason=missing[name]))
        if item.get_closest_marker("engine") or item.get_closest_marker("slow"):
            item.add_marker("no_cover")  # measuring coverage makes Python half slower again


@pytest.fixture
def few_lm_eval_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let lm-eval read few of its own tasks and describe the machine once; see `lm_eval_index`."""
    for target, name, value in lm_eval_index.replacements():
        monkeypatch.setattr(target, name, value)


@pytest.fixture(scope="module")
def few_lm_eval_tasks_of_file() -> Iterator[None]:
    """The same for what the tests of a file share: that is made before anything of one test."""
    with pytest.MonkeyPatch.context() as patch:
        for target, name, value in lm_eval_index.replacements():
            patch.setattr(target, name, value)
        yield


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder with `leval/closed`, `leval/predictions` and `corpora`.

    Set `LEVAL_TEST_DATA` to use a copy elsewhere; without it tests that need it are skipped.
    """
    return at_hand.DOCUMENTS


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Checkpoint folder of the small real model, made on first use and kept in the cache."""
    from leval_harness.models.prepare import prepare

    return prepare("smollm2")


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Programs that start at once, for what is not about starting and ending processes."""
    with forked(tmp_path_factory.mktemp("forks")) as made:
        yield made


@pytest.fixture(scope="session")
def save_llama() -> Callable[..., Path]:
    """Saves a Llama of random weights into a folder; further arguments are those of its config."""

    def save(folder: Path, dtype: str = "float32", **config: Any) -> Path:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        sizes = {
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        }
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(**{**sizes, **config}))
        model.to(getattr(torch, dtype)).save_pretrained(folder)
        return folder

    return save


@pytest.fixture(scope="session")
def vllm_server(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., AbstractContextManager[str]]:
    """Starts `vllm serve MODEL ARGUMENTS…` under the name mine; gives its `/v1` address."""

    @contextmanager
    def serve(model: Path, *arguments: str) -> Iterator[str]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        log = tmp_path_factory.mktemp("server") / "log.txt"
        command = [str(Path(sys.executable).with_name("vllm")), "serve", str(model)]
        command += ["--served-model-name", "mine", "--max-num-seqs", "4", "--enforce-eager"]
        command += ["--host", "127.0.0.1", "--port", str(port), *arguments]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
        with log.open("w") as output:
            server = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        try:
            deadline = time.monotonic() + 900
            while not _answers(f"http://127.0.0.1:{port}/health"):
                if server.poll() is not None or time.monotonic() > deadline:
                    pytest.fail(f"the server does not answer:\n{log.read_text()[-3000:]}")
                time.sleep(1)
            yield ServerAddress(f"http://127.0.0.1:{port}/v1", log)
        finally:
            server.terminate()
            try:
                server.wait(60)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()

    return serve


class ServerAddress(str):
    """The address of a server, and the file of its log."""

    log: Path

    def __new__(cls, url: str, log: Path) -> "ServerAddress":
        self = super().__new__(cls, url)
        self.log = log
        return self


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.fixture
def without_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where vLLM is not installed: a process of it for each question takes half a minute."""
    import resonance_vllm.check

    seen = resonance_vllm.check.is_installed
    monkeypatch.setattr(
        resonance_vllm.check, "is_installed", lambda library: library != "vllm" and seen(library)
    )


@pytest.fixture(scope="session")
def while_running() -> Callable[..., Any]:
    """Calls a function as lm-eval's evaluator would, with a model of a class, `module:class`."""

    def call(function: Callable[[], Any], path: str, **attributes: Any) -> Any:
        scope = {"__name__": "lm_eval.evaluator", "function": function}
        exec("def evaluate(lm):\n    return function()", scope)
        module, _, name = path.partition(":")
        names = {"__module__": module, "__qualname__": name}
        model = type(name, (SimpleNamespace,), names)
        return scope["evaluate"](model(**attributes))

    return call
