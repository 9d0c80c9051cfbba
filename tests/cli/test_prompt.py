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
def model(tmp_path: Path) -> Path:
    """A tokenizer in a folder of its own."""
    return Path(shutil.copytree(TOKENIZER, tmp_path / "model"))


def refusal(*arguments: str) -> str:
    """What a user reads; an error of another kind would be a traceback."""
    with pytest.raises(UserError) as caught:
        CliRunner().invoke(
            app, [*COMMAND, *arguments], standalone_mode=False, catch_exceptions=False
        )
    return str(caught.value)


TEMPLATES = {
    "{{ raise_exception('roles must alternate') }}": "roles must alternate",
    "{{ ''.__class__.__mro__ }}": "unsafe",
    "{{ 1 + messages }}": "unsupported operand",
    "{{ messages[0].content.nothing.more }}": "has no attribute",
    "{% for i in range(10**9) %}x{% endfor %}": "Range too big",
    "{% if %}": "Expected an expression",
    "{{ 'x' * 10**15 }}": "MemoryError",
}


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_chat_template_that_fails_is_named(model: Path, template: str) -> None:
    (model / "chat_template.jinja").write_text(template)
    message = refusal(str(model), "--apply-chat-template")
    assert message.startswith(f"chat template of {model}: ")
    assert TEMPLATES[template] in message


@pytest.mark.parametrize("name", ["tokenizer_config.json", "tokenizer.json", "config.json"])
@pytest.mark.parametrize("content", ["[" * 100_000, '{"a":' * 100_000, "{", "[1]", "\0"])
def test_damaged_files_are_named(model: Path, name: str, content: str) -> None:
    (model / name).write_text(content)
    if name == "config.json":  # the tokenizer's class does not need it, or says what is wrong
        result = CliRunner().invoke(app, [*COMMAND, str(model)], standalone_mode=False)
        assert result.exception is None or isinstance(result.exception, UserError)
    else:
        assert refusal(str(model)).startswith(f"tokenizer: '{model}' cannot be loaded (")


def test_a_model_that_is_nowhere_is_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "there is no folder of this name" in refusal("no-such-model")


def test_a_folder_that_does_not_exist_is_said_before_documents_are_looked_for() -> None:
    # no data_dir: the hub would be asked for L-Eval's files
    command = ["prompt", "leval_closed_toefl", "--model", "/no/such"]
    with pytest.raises(UserError, match="model: there is no folder '/no/such'"):
        CliRunner().invoke(app, command, standalone_mode=False, catch_exceptions=False)


def test_a_number_of_questions_below_one_is_refused(model: Path) -> None:
    done = CliRunner().invoke(app, [*COMMAND, str(model), "-n", "-1"])
    assert done.exit_code == 2
    assert "-1 is not in the range x>=1" in done.output
