"""A credential in a config is refused, the variable is named, and its value is printed nowhere."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from leval_harness.cli.main import app
from leval_harness.sweep import ConfigError
from leval_harness.sweep.config import parse_config
from leval_harness.sweep.credentials import refuse_credentials

VALUE = "hf_" + "x1" * 12
PLACES = [
    ("models.m.args.token", "HF_TOKEN"),
    ("models.m.args.api_key", "OPENAI_API_KEY"),
    ("models.m.args.apiKey", "OPENAI_API_KEY"),
    ("models.m.args.header.Authorization", "OPENAI_API_KEY"),
    ("tasks.0.gen_kwargs.password", "OPENAI_API_KEY"),
    ("api_key", "OPENAI_API_KEY"),
]
CONFIG = """
models: {m: {path: p, backend: local-completions}}
methods: {served: null}
tasks: [{tasks: leval_closed_gsm}]
"""


@pytest.mark.parametrize(("place", "variable"), PLACES)
def test_it_is_refused_wherever_it_stands(tmp_path: Path, place: str, variable: str) -> None:
    (tmp_path / "sweep.yaml").write_text(CONFIG)
    words = ["sweep", str(tmp_path / "sweep.yaml"), "--out", str(tmp_path / "out")]
    ended = CliRunner().invoke(app, [*words, "--set", f"{place}={VALUE}"])
    assert isinstance(ended.exception, ConfigError)  # exit code 2
    assert f"config.{place}: a credential does not belong into a config" in str(ended.exception)
    assert f"the environment variable {variable} " in str(ended.exception)
    assert VALUE not in str(ended.exception) + ended.output
    assert not (tmp_path / "out").exists()


def test_no_other_mistake_prints_it() -> None:
    content = {"models": {"m": {"args": [VALUE]}}, "methods": 3, "token": VALUE}
    with pytest.raises(ConfigError) as caught:
        parse_config(content)
    assert VALUE not in str(caught.value)
    for text in (f"a.b.c.token={VALUE}", f"models=[{VALUE}", f"tasks.9.api_key={VALUE}"):
        ended = CliRunner().invoke(app, ["sweep", "quickstart", "--dry-run", "--set", text])
        assert isinstance(ended.exception, ConfigError)
        assert VALUE not in str(ended.exception) + ended.output


def test_an_address_with_a_password_is_refused() -> None:
    with pytest.raises(ConfigError, match="an address with a user or a password") as caught:
        refuse_credentials({"base_url": "http://me:secret@host/v1"}, "config", ConfigError)
    assert "secret" not in str(caught.value)


def test_ordinary_settings_pass() -> None:
    refuse_credentials(
        {
            "max_tokens": 3, "eos_token": "</s>", "token": None, "use_token": True,
            "base_url": "http://host:8000/v1", "tokens_per_second": 9.0, "header": {"X-Team": "a"},
        },
        "config",
    )  # fmt: skip
