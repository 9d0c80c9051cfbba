"""`leval-harness prompt` on models whose files fail: a message, no traceback."""

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from leval_harness.cli.main import app
from resonance_vllm.errors import UserError

TOKENIZER = Path(__file__).parents[1] / "golden" / "tokenizer"
COMMAND = ("prompt", "leval_closed_toefl", "-n", "1", "--data-dir", "sample",
           "--context-length", "4000", "--model")  # fmt: skip


@pytest.fixture
def model(tmp_path):
    """A tokenizer in a folder of its own."""
    return Path(shutil.copytree(TOKENIZER, tmp_path / "model"))


def refusal(*arguments):
    """What a user reads; an error of another kind would be a traceback."""
    with pytest.raises(UserError) as caught:
        CliRunner().invoke(app, arguments, standalone_mode=False, catch_exceptions=False)
    return str(caught.value)


TEMPLATES = {
    "{{ raise_exception('roles must alternate') }}": "roles must alternate",
    "{{ 1 + messages }}": "unsupported operand",
    "{% if %}": "Expected an expression",
}


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_chat_template_that_fails_is_named(model, template):
    (model / "chat_template.jinja").write_text(template)
    message = refusal(*COMMAND, str(model), "--apply-chat-template")
    assert message.startswith(f"chat template of {model}: ")
    assert TEMPLATES[template] in message


@pytest.mark.parametrize("name", ["tokenizer_config.json", "tokenizer.json"])
def test_damaged_files_are_named(model, name):
    (model / name).write_text("{")
    assert refusal(*COMMAND, str(model)).startswith(f"tokenizer: '{model}' cannot be loaded (")


def test_a_model_that_is_nowhere_is_said_before_documents_are_looked_for(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "there is no folder of this name" in refusal(*COMMAND, "no-such-model")
    # no data_dir: the hub would be asked for L-Eval's files
    said = refusal("prompt", "leval_closed_toefl", "--model", "/no/such")
    assert "model: there is no folder '/no/such'" in said
