"""`leval-harness prompt` on models whose files fail: a message, no traceback."""

import shutil
from pathlib import Path

import pytest
from golden_access import TOKENIZER, run

COMMAND = ("prompt", "leval_closed_toefl", "-n", "1", "--data-dir", "sample",
           "--context-length", "4000", "--model")  # fmt: skip


@pytest.fixture
def model(tmp_path):
    """A tokenizer in a folder of its own."""
    return Path(shutil.copytree(TOKENIZER, tmp_path / "model"))


@pytest.mark.parametrize(
    ("template", "says"),
    [("{{ raise_exception('must alternate') }}", "must alternate"), ("{% if %}", "Expected an")],
)
def test_prompt_names_a_chat_template_that_fails(model, template, says):
    (model / "chat_template.jinja").write_text(template)
    ran = run(*COMMAND, model, "--apply-chat-template")
    assert ran.code in (1, 2)
    assert "chat template" in ran.err
    assert says in ran.err
    assert "Traceback" not in ran.err


def test_prompt_names_a_missing_model_before_documents(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "find them in the cached files" in run(*COMMAND, "no-such-model").err
    # no data_dir: the hub would be asked for L-Eval's files
    said = run("prompt", "leval_closed_toefl", "--model", "/no/such").err
    assert "model: there is no folder '/no/such'" in said
