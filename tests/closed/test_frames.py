"""The frames by name: Llama-2's byte for byte, when each is used, and what is said about it."""

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from lm_eval.utils import warning_once

from leval_harness.cli.prompt import prompt as command
from leval_harness.sweep.config import parse_config
from leval_harness.sweep.plan import plan
from leval_tasks.closed.catalog import TASKS
from leval_tasks.closed.prompts import CHAT_TEMPLATE
from leval_tasks.closed.task import LEvalClosedTask
from leval_tasks.common.metadata import FRAMES
from resonance_vllm.common.errors import SettingError

GOLDEN = Path(__file__).parents[1] / "golden"
OFFICIAL = json.loads((Path(__file__).parent / "data/official_prompts.json").read_text())["sent"]
OFFICIAL_TASKS = [name for name, task in TASKS.items() if Path(task.file).stem in OFFICIAL]


def messages(said: Any, **options: Any) -> Any:
    """A chat server's template: what is sent is the messages."""
    return list(said)


def made(name: str, frame: str | None, template: Any = None, **more: Any) -> LEvalClosedTask:
    metadata = {
        "data_dir": str(GOLDEN / "sample"),
        "tokenizer": str(GOLDEN / "tokenizer"),
        "max_length": 10**6,
        "frame": frame,
        **more,
    }
    task = LEvalClosedTask({"task": name, "metadata": metadata})
    task.prepare(template, "")
    return task


def sent(task: LEvalClosedTask, template: Any = None) -> list[Any]:
    return [each for doc in task.test_docs() for each in task.prompts_of(doc).arguments(template)]


def test_official_prompts_are_those_of_known_tasks() -> None:
    assert len(OFFICIAL_TASKS) == len(OFFICIAL) == 7


@pytest.mark.parametrize("name", OFFICIAL_TASKS)
def test_prompts_are_the_scripts_own(name: str) -> None:
    said = json.dumps(sent(made(name, "llama2")), ensure_ascii=False)
    expected = OFFICIAL[Path(TASKS[name].file).stem]
    assert hashlib.sha256(said.encode()).hexdigest() == expected


@pytest.mark.parametrize("name", OFFICIAL_TASKS)
def test_the_plain_frame_is_llama_2s_without_its_markers(name: str) -> None:
    for ours, official in zip(sent(made(name, "plain")), sent(made(name, "llama2")), strict=True):
        bare = official.removeprefix("[INST]<<SYS>>\n").replace("\n<</SYS>>", "")
        assert ours == bare.replace("[/INST]", "")


@pytest.mark.parametrize("frame", FRAMES)
def test_a_frame_goes_with_a_template_or_without(frame: str) -> None:
    template, other = (messages, None) if frame == CHAT_TEMPLATE else (None, messages)
    with pytest.raises(SettingError, match=f"frame: {frame!r}"):
        made("leval_closed_toefl", frame, other, num_docs=1)
    task = made("leval_closed_toefl", frame, template, num_docs=1)
    assert task.config.metadata["settings"]["frame"] == frame
    if frame != "plain":  # the one that is taken where none is named
        unnamed = made("leval_closed_toefl", None, template, num_docs=1)
        assert sent(unnamed, template) == sent(task, template)


def test_prompt_shows_frame_cut_and_second_prompt() -> None:
    arguments = ["sfiction", "-n", "1", "--model", str(GOLDEN / "tokenizer"), "--frame", "plain"]
    shown = CliRunner().invoke(
        command, [*arguments, "--data-dir", "sample", "--context-length", "2048"]
    )
    assert shown.exit_code == 0, shown.output
    for part in ("prompt template: plain", "tokens dropped", "--- second prompt"):
        assert part in shown.output


@pytest.mark.parametrize(
    ("frame", "template", "lines"), [(None, None, 1), ("llama2", None, 0), (None, messages, 0)]
)
def test_prompt_without_the_models_template_warns(
    caplog: pytest.LogCaptureFixture, frame: str | None, template: Any, lines: int
) -> None:
    warning_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        for name in ("leval_closed_toefl", "leval_closed_gsm"):
            made(name, frame, template, num_docs=1)
    said = [each.getMessage() for each in caplog.records if "template" in each.getMessage()]
    assert len(said) == lines
    assert all("--apply_chat_template" in each and "frame" in each for each in said)


@pytest.mark.parametrize(
    ("of_model", "given", "lines"),
    [({}, {}, 1), ({"apply_chat_template": True}, {}, 0), ({}, {"tasks": "ppl_pydocs"}, 0)],
)
def test_a_sweep_says_it_when_it_is_planned(
    tmp_path, save_llama, caplog, of_model, given, lines
) -> None:
    for file in (GOLDEN / "tokenizer").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    save_llama(tmp_path, vocab_size=1500, max_position_embeddings=2048)
    content = {
        "name": "x",
        "models": {"m": {"path": str(tmp_path), "backend": "hf-long", **of_model}},
        "methods": {"shipped": None},
        "context_lengths": [512, 1024],
        "tasks": ["leval_closed_toefl", "leval_closed_gsm"],
        "metadata": {"data_dir": "sample"},
    }
    with caplog.at_level(logging.WARNING):
        plan(parse_config(content | given))
    said = [each.getMessage() for each in caplog.records if "chat template" in each.getMessage()]
    assert len(said) == lines
    assert all("apply_chat_template: true" in each for each in said)
