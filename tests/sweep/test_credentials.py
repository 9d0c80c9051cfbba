"""A credential in a config is refused, the variable is named, and its value is printed nowhere."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from leval_harness.cli.main import app
from leval_harness.sweep import ConfigError
from leval_harness.sweep.config import parse_config
from resonance_vllm.common.credentials import refuse_credentials, without_credentials

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
    assert f"config.{place}: a credential does not belong in a config" in str(ended.exception)
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


@pytest.mark.parametrize("user", ["me:secret", "secret", ":secret", "me:sec%40ret"])
def test_credentials_user_of_address(user: str) -> None:
    with pytest.raises(ConfigError, match="an address with a user or a password") as caught:
        refuse_credentials({"base_url": f"http://{user}@host/v1"}, "config", ConfigError)
    assert "secret" not in str(caught.value)


QUERY_NAMES = [
    "api_key", "apiKey", "APIKEY", "api-key", "x-api-key", "key", "token", "access_token", "auth",
    "hf_token", "auth_token", "id_token", "password", "pwd", "secret", "client_secret", "sig",
    "signature", "X-Amz-Signature", "X-Amz-Security-Token", "subscription-key", "code", "jwt",
    "ocp-apim-subscription-key", "api%5Fkey", "api%255Fkey", "credential", "authorization",
]  # fmt: skip
"""Names under which servers and proxies take a credential in the query of their address."""
ADDRESSES = [
    "http://host/v1?{}={}", "http://host/v1?model=m&{}={}", "http://host/v1?model=m;{}={}",
    "https://host:8000/v1/completions#{}={}", "http://host/p?to=http%3A%2F%2Fother&{}={}",
]  # fmt: skip


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("name", QUERY_NAMES)
def test_credentials_query_of_address(name: str, address: str) -> None:
    settings = {"models": {"m": {"args": {"base_url": address.format(name, VALUE)}}}}
    with pytest.raises(
        ConfigError, match=r"config\.models\.m\.args\.base_url: .*address"
    ) as caught:
        refuse_credentials(settings, "config", ConfigError)
    assert VALUE not in str(caught.value)


@pytest.mark.parametrize("value", ["Bearer " + VALUE, "Authorization: bearer " + VALUE])
def test_credentials_header_as_text(value: str) -> None:
    with pytest.raises(ConfigError, match="authorization header") as caught:
        refuse_credentials({"args": {"header": value}}, "config", ConfigError)
    assert VALUE not in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"header": {"X-Auth": VALUE}}, {"headers": {"Auth": f"Basic {VALUE}"}},
        {"header": {"api-key": VALUE}}, {"extra_headers": {"Ocp-Apim-Key": VALUE}},
        {"header": {"anything": f"Basic {VALUE}"}}, {"header": f"basic {VALUE}"},
        {"model": VALUE}, {"path": f"sk-proj-{VALUE}"}, {"x": f"ghp_{VALUE}abcdefgh"},
        {"bearer": VALUE}, {"aws_access_key_id": VALUE}, {"aws_secret_access_key": VALUE},
        {"base_url": f"me:{VALUE}@host:8000/v1"}, {"base_url": f"me:{VALUE}@localhost"},
    ],
    ids=str,
)  # fmt: skip
def test_credentials_of_every_kind(settings: dict[str, object]) -> None:
    """They are refused in a config, and left out where somebody else's results have them."""
    with pytest.raises(ConfigError) as caught:
        refuse_credentials({"args": settings}, "config", ConfigError)
    assert VALUE not in str(caught.value)
    assert VALUE not in str(without_credentials({"args": settings}))


@pytest.mark.parametrize("value", [[VALUE], [[VALUE]], 12345678])
def test_credentials_value_in_list(value: object) -> None:
    with pytest.raises(ConfigError, match="api_key: a credential"):
        refuse_credentials({"api_key": value}, "config", ConfigError)


def test_credentials_in_address_print_nowhere(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(CONFIG)
    address = f"http://host/v1?api_key={VALUE}"
    for text in (f"models.m.args.base_url={address}", f"models.m.path={address}"):
        ended = CliRunner().invoke(
            app, ["sweep", str(tmp_path / "sweep.yaml"), "--dry-run", "--set", text]
        )
        assert isinstance(ended.exception, ConfigError)
        assert VALUE not in str(ended.exception) + ended.output


def test_ordinary_settings_pass() -> None:
    refuse_credentials(
        {
            "headers": {"User-Agent": "me", "X-Request-Id": "12345678"}, "path": "hf_model/name",
            "max_tokens": 3, "eos_token": "</s>", "token": None, "use_token": True,
            "base_url": "http://host:8000/v1", "tokens_per_second": 9.0, "header": {"X-Team": "a"},
            "url": "http://host/v1?model=a&max_tokens=3&api-version=2024-02-01&api_key=#top",
            "prompt": "The key=value pairs; a basic question? key=1", "mail": "someone@host",
        },
        "config",
    )  # fmt: skip
