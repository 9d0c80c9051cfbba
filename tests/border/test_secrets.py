"""Credentials are recognised by the whole names of settings and by their form in text."""

import copy
import os
import time
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leval_harness.secrets import HIDDEN, is_credential, redact, without_credentials

CREDENTIALS = [
    *("token", "hf_token", "HF_TOKEN", "api_key", "apiKey", "API_KEY", "OPENAI_API_KEY"),
    *("password", "authorization", "Authorization", "auth_token", "access_token", "Set-Cookie"),
    *("use_auth_token", "header", "headers", "X-Api-Key", "client_secret", "Proxy-Authorization"),
    *("aws_secret_access_key", "db_password", "wandb_api_key", "github_token", "PGPASSWORD"),
    *("extra_headers", "private_key", "bearer_token", "hfToken", "hf_token2", "API_KEY_1", "jwt"),
]
SETTINGS = [
    *("max_tokens", "eos_token", "bos_token", "pad_token", "add_bos_token", "tokenizer"),
    *("max_new_tokens", "think_end_token", "prefix_token_id", "min_tokens", "num_tokens"),
    *("key", "keys", "author", "tokens_per_second", "token_ids", "stop_token", "cache_key"),
    *("monkey", "authority", "image_token", "special_token", "tokens", "token_id", "main"),
    *("value", "answer_key", "key_tokens", "column_header", "secretary", "forward_pass", "pass"),
    *(
        "max-token",
        "eos-token",
        "PWD",
        "HOME",
        "PATH",
        "SSH_AUTH_SOCK",
        "XAUTHORITY",
        "HF_HOME",
        "rope_type",
        "exact_match",
    ),
]


@pytest.mark.parametrize("name", CREDENTIALS)
def test_credentials_are_recognised_by_whole_names(name: str) -> None:
    assert is_credential(name)
    settings = {"a": [{name: "mark-1234", "rest": 1}]}
    assert without_credentials(settings) == {"a": [{name: HIDDEN, "rest": 1}]}
    assert without_credentials(settings, keep_names=False) == {"a": [{"rest": 1}]}
    assert without_credentials({name: {"x": "mark-1234"}}) == {name: HIDDEN}
    for harmless in (True, False, None):
        assert without_credentials({name: harmless}) == {name: harmless}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_are_no_credentials(name: str) -> None:
    assert not is_credential(name)
    assert without_credentials({name: "value"}) == {name: "value"}
    assert redact(f"{name}=value, {name}: 'value', --{name} value") == (
        f"{name}=value, {name}: 'value', --{name} value"
    )


FORMS = [
    "hf_" + "a" * 34, "sk-" + "b" * 40, "ghp_" + "c" * 36, "AKIA" + "D" * 16, "gsk_" + "a" * 40,
    "nvapi-" + "b" * 40, "xai-" + "c" * 40, "github_pat_" + "d" * 30, "glpat-" + "e" * 20,
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "https://hooks.slack.com/services/T/B/x",
    "hf_oauth_" + "a" * 34, "hf_jwt_eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
    "sk-ant-api03-" + "b" * 30, "sk_live_" + "c" * 24, "xapp-1-A0B1-" + "d" * 20, "hvs." + "e" * 24,
    "glrt-" + "f" * 20, "GOCSPX-" + "a" * 28, "dapi" + "0b" * 16, "SG." + "c" * 22 + "." + "d" * 43,
    "1234567890:AA" + "e" * 33, "wandb_v1_" + "f" * 40,
]  # fmt: skip


@pytest.mark.parametrize("token", FORMS)
@pytest.mark.parametrize("names", [True, False])
def test_issued_tokens_are_recognised_wherever_they_stand(token: str, names: bool) -> None:
    for text in (
        *("{}", "said {}!", '{{"answer": "{}"}}', "x={},y=1", "\r 30%|##| {} it/s", "my_{}"),
        *("b'1\\n{}'", "https://h/x?t%3D{}", "\\x1b[31m{}"),
    ):
        assert redact(text.format(token), names=names) == text.format(HIDDEN)
    assert without_credentials({"plain": [f"at {token}."]}) == {"plain": [f"at {HIDDEN}."]}


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("https://me:mark-1234@host:80/v1?x=1", "https://host:80/v1?x=1"),
        ("https://mark-1234@host/v1", "https://host/v1"),
        ("http://me:p@mark-1234@host/v1", "http://host/v1"),
        ("https://h/x?X-Amz-Signature=mark-1234", "https://h/x?X-Amz-Signature=***"),
        ("https://h/x?a=1&sig=mark-1234&n=1", "https://h/x?a=1&sig=***&n=1"),
        ("Bearer mark-1234", "Bearer ***"),
        ("bearer mark-1234", "bearer ***"),
        ('{"Bearer": "mark-1234"}', '{"Bearer": "***"}'),
        ("/x?a=1\\u0026sig=mark-1234\\u0026n=1", "/x?a=1\\u0026sig=***\\u0026n=1"),
        ("u%3Dx%26sig%3Dmark-1234%26n%3D1", "u%3Dx%26sig%3D***%26n%3D1"),
        ("-----BEGIN PRIVATE KEY-----\nMII+Ev/Q=\n-", "-----BEGIN PRIVATE KEY-----***-"),
    ],
)
def test_forms_that_hold_in_every_text(text: str, safe: str) -> None:
    assert redact(text) == redact(text, names=False) == safe


@pytest.mark.parametrize(
    "text",
    [
        "a@b, c://d", "http://host/a@b", "git@github.com:a/b.git", "Cookie: a biscuit",
        "Basic arithmetic, bearer instruments", "token=true, password=false", "eos_token='</s>'",
        "per-token losses", "the last token: 128001", "--max-token 12", "the password: is not one",
        "m.args.api_key: unknown setting", "hf_hub_download, sk-learn",
    ],
)  # fmt: skip
def test_other_text_is_left_as_it_is(text: str) -> None:
    assert redact(text) == redact(text, names=False) == text


@pytest.mark.parametrize(
    "text",
    [
        "http://host/v1?api_key=mark-1234&max_tokens=3", "https://h/x#access_token=mark-1234",
        "Authorization: mark-1234", "X-Api-Key: mark-1234, and so on",
        "m.args.api_key: 'mark-1234' is not allowed", "{'a': 1, token: mark-1234}",
        "pretrained=m,plain,x={'a': [1, 2]},token=mark-1234", 'x={"k": 1, "token": "mark-1234"}',
        r'{"a": "{\"token\": \"mark-1234\"}"}', "sweep x --api-key mark-1234",
        "sweep x --set a.token=mark-1234",
        "serve --wandb_api_key mark-1234 -hf-token2 mark-1234",
        "sweep x --set=a.token=mark-1234 '--set=b.password=mark-1234'", "  token: mark-1234\n",
        "--model_args=token=mark-1234", "HTTP_PROXY_PASSWORD=mark-1234",
    ],
)  # fmt: skip
def test_messages_lose_what_they_name_as_a_credential(text: str) -> None:
    assert redact(text) == text.replace("mark-1234", HIDDEN)
    assert redact(text, names=False) == text, "the texts of results keep it"


RANDOM = "q8Rt0bU7vXw2yZa4cDe6fGh9"


@pytest.mark.parametrize(
    "text",
    [
        f"(b'x-api-key', b'{RANDOM}')", f"['X-Api-Key', '{RANDOM}']", f"api_key=b'{RANDOM}'",
        f"api_key=SecretStr('{RANDOM}')", f"Incorrect API key provided: {RANDOM}.",
        f"Invalid token {RANDOM}", f"password = {RANDOM}", f"--token '{RANDOM}'",
        f"Authorization: ApiKey {RANDOM}", f"<token>{RANDOM}</token>", f"token%3D{RANDOM}",
        f"{{'token': ['{RANDOM}']}}", f"the secret\t{RANDOM}",
    ],
)  # fmt: skip
def test_a_random_word_beside_the_name_of_a_credential_goes(text: str) -> None:
    assert RANDOM not in redact(text)
    assert redact(text, names=False) == text


@pytest.mark.parametrize(
    "text",
    [
        "/data/token/run_2024_01_01_experiment", "org/token-dropping-bert-large-uncased-v2",
        "the last token LlamaForCausalLM", "secret = none of the files of this folder",
        f"max_tokens = {RANDOM}", f"eos_token: {RANDOM}", f"a token of the file {RANDOM}",
    ],
)  # fmt: skip
def test_words_that_only_look_so_stay(text: str) -> None:
    assert redact(text) == without_credentials(text) == text


def test_settings_lose_no_value_by_a_guess() -> None:
    """Two settings that differ have to stay different: they decide the identity of a cell."""
    settings = {"pretrained": f"my token {RANDOM}"}
    assert without_credentials(settings) == settings


def test_what_a_header_says_before_its_credential_goes_too() -> None:
    assert redact("{'Authorization': 'Bearer mark-1234'}") == "{'Authorization': '***'}"
    assert redact("Authorization: Basic bWU6bWFyaw==") == "Authorization: ***"


def test_a_password_in_the_environment_changes_no_text_that_equals_it() -> None:
    results = {"rope_type": "default", "exact_match,none": 0.5, "higher_is_better": "exact_match"}
    with patch.dict(os.environ, {"DB_PASSWORD": "default", "PGPASSWORD": "exact_match"}):
        assert without_credentials(results) == results
        assert redact(str(results)) == str(results)


PLAIN = st.none() | st.booleans() | st.integers() | st.text() | st.just("http://a:secret@b/c")
NAMES = st.sampled_from([*CREDENTIALS, *SETTINGS]) | st.text(max_size=5)
NESTED = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4)
)


@given(NESTED)
def test_keys_stay_and_nothing_is_left_to_hide(settings: Any) -> None:
    before = copy.deepcopy(settings)
    safe = without_credentials(settings)
    assert settings == before
    assert without_credentials(safe) == safe
    if isinstance(settings, dict):
        assert list(safe) == list(settings)


WORDS = (
    *("a", "_", ".", "-", "a.", "a_", "eyJ-", "1-", "?a=", "token=", "token='", "--token ", "{a:"),
    *(" ", "\\", '"a":', "a: ", "token_x: ", "basic ", "//", "://", "a:b@", "cookie:", "\n"),
    *("token", "-a-", "bearer ", "eyJaaaaaaaa.", "password", "api_key: '"),
)


@pytest.mark.parametrize("word", WORDS)
def test_a_long_text_of_one_word_takes_no_time(word: str) -> None:
    """Results of others may hold such a text; a quadratic pattern takes hours for a megabyte."""
    text = (word * 100_000)[:100_000]
    began = time.process_time()
    redact(text)
    assert time.process_time() - began < 3
