"""Models that a server runs, in sweeps and on the command line; no server is asked."""

from pathlib import Path
from typing import Any

import pytest

from leval_harness.backends import asks_server
from leval_harness.cli.lm_eval_run import _check_model
from leval_harness.sweep import ConfigError
from leval_harness.sweep.config import parse_config
from leval_harness.sweep.executor import Capacity
from leval_harness.sweep.plan import plan
from leval_harness.sweep.preflight import check_runs
from leval_harness.sweep.run_record import RunRecord

ADDRESS = "http://localhost:8000/v1"


def served(backend: str = "local-completions", **changes: Any) -> list[RunRecord]:
    """Plan a sweep of a model that a server calls `mine`."""
    chat = "chat/" * ("chat" in backend)
    tokenizer = str(Path(__file__).parents[1] / "golden" / "tokenizer")
    args = {"base_url": f"{ADDRESS}/{chat}completions", "tokenizer": tokenizer}
    content = {
        "name": "served",
        "models": {"mine": {"path": "mine", "backend": backend, "args": args}},
        "methods": {"as served": None},
        "context_lengths": [512],
        "tasks": "leval_closed_toefl",
        "metadata": {"data_dir": "sample"},
    }
    return plan(parse_config({**content, **changes}))


def test_plan_sends_a_served_name_that_is_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = served()[0]
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    (run,) = served()
    assert run.model_args["model"] == run.model.path == "mine"
    assert run.run_id == before.run_id


@pytest.mark.parametrize("backend", ["local-completions", "local-chat-completions"])
def test_lm_eval_sends_a_served_name_of_a_small_model(backend: str) -> None:
    args = {"pretrained": "smollm2", "base_url": ADDRESS}
    _check_model(backend, args)
    assert args["pretrained"] == "smollm2"


@pytest.mark.parametrize(
    ("name", "arguments", "asks"),
    [
        ("local-completions", {}, True), ("openai-chat-completions", {}, True),
        ("sglang-generate", {"base_url": ADDRESS}, True), ("hf", {}, False),
        ("vllm-long", {"base_url": "x"}, False), ("mamba_ssm", {}, False),
    ],
)  # fmt: skip
def test_asks_server(name: str, arguments: dict[str, Any], asks: bool) -> None:
    assert asks_server(name, arguments) is asks


@pytest.mark.parametrize("tasks", ["ppl_pydocs", "effective_context_pydocs"])
def test_preflight_refuses_texts_for_chat_endpoints(tasks: str) -> None:
    runs = served("local-chat-completions", tasks=tasks, metadata={"window": 256, "stride": 64})
    with pytest.raises(ConfigError, match=r"^models.mine: .*chat endpoints .*local-completions"):
        check_runs(runs, Capacity([], 0, 1))
    check_runs(served(tasks=tasks, metadata={"window": 256, "stride": 64}), Capacity([], 0, 1))


def test_plan_lets_reference_and_methods_read_the_same_documents() -> None:
    """A server generates a token after a text, so that a full read has one token less."""
    reference, full = served(tasks="effective_context_pydocs", metadata={"window": 256})
    assert reference.metadata["context_length"] == [511]
    assert (full.model_args["max_length"], full.metadata["reads"]) == (512, "full")
