"""Credentials are told by whole names, and what is split is joined again."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leval_border import secrets

CREDENTIALS = [
    *("token", "hf_token", "HF_TOKEN", "api_key", "apiKey", "API_KEY", "OPENAI_API_KEY"),
    *("password", "authorization", "Authorization", "auth_token", "access_token"),
    *("use_auth_token", "header", "headers", "X-Api-Key", "client_secret"),
    *("aws_secret_access_key", "db_password", "wandb_api_key", "github_token"),
    *("extra_headers", "private_key", "bearer_token", "hfToken"),
]
SETTINGS = [
    *("max_tokens", "eos_token", "bos_token", "pad_token", "add_bos_token", "tokenizer"),
    *("max_new_tokens", "think_end_token", "prefix_token_id", "min_tokens"),
    *("num_tokens", "key", "keys", "author", "tokens_per_second", "token_ids", "stop_token"),
    *("cache_key", "monkey", "authority", "image_token", "special_token"),
]


@pytest.mark.parametrize("name", CREDENTIALS)
def test_credentials_are_told_by_whole_words(name: str) -> None:
    assert secrets.is_credential(name)
    public, kept = secrets.split({"a": {name: "mark-1234", "rest": 1}})
    assert public == {"a": {"rest": 1}}
    assert kept == [(["a", name], "mark-1234")]
    assert secrets.split({name: True}) == ({name: True}, [])


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_are_no_credentials(name: str) -> None:
    assert not secrets.is_credential(name)
    assert secrets.split({name: "value"}) == ({name: "value"}, [])


@pytest.mark.parametrize(
    ("text", "public"),
    [
        ("https://me:mark-1234@host:80/v1?x=1", "https://host:80/v1?x=1"),
        ("https://mark-1234@host/v1", "https://host/v1"),
        (
            "http://host/v1?api_key=mark-1234&max_tokens=3",
            "http://host/v1?api_key=***&max_tokens=3",
        ),
        ("Bearer mark-1234", "Bearer ***"),
        ("a@b, c://d", "a@b, c://d"),
        ("http://host/a@b", "http://host/a@b"),
    ],
)
def test_text_loses_what_is_secret_in_it(text: str, public: str) -> None:
    content, kept = secrets.split({"base_url": text, "list": [text]})
    assert content == {"base_url": public, "list": [public]}
    assert secrets.joined(content, kept) == {"base_url": text, "list": [text]}
    if public != text:
        assert "mark-1234" not in secrets.hidden(f"at {text}: ", secrets.values(kept, {}))


def test_settings_that_others_wrote_as_pairs() -> None:
    given = {"model_args": "pretrained=m,hf_token=mark,max_tokens=3", "config": ["a=1,password=x"]}
    expected = {"model_args": "pretrained=m,max_tokens=3", "config": ["a=1"]}
    assert secrets.redacted(given) == expected


def test_an_environment_has_secrets_too() -> None:
    environment = {"HF_TOKEN": "mark-1", "HTTPS_PROXY": "http://me:mark-2@proxy:1", "HOME": "/home"}
    texts = secrets.values([], environment)
    assert secrets.hidden("mark-1 and mark-2 at /home", texts) == "*** and *** at /home"


NAMES = st.sampled_from([*CREDENTIALS, *SETTINGS]) | st.text(max_size=5)
PLAIN = st.none() | st.booleans() | st.integers() | st.text() | st.just("http://a:secret@b/c")
NESTED = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4)
)


@given(NESTED)
def test_what_is_split_is_joined(content: Any) -> None:
    public, kept = secrets.split(content)
    assert secrets.joined(public, kept) == content
    assert secrets.split(public)[1] == []
