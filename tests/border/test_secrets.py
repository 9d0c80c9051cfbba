"""Credentials are told by whole names, and what is split is joined again."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leval_harness import secrets

CREDENTIALS = [
    *("token", "hf_token", "HF_TOKEN", "api_key", "apiKey", "API_KEY", "OPENAI_API_KEY"),
    *("password", "authorization", "Authorization", "auth_token", "access_token"),
    *("use_auth_token", "header", "headers", "X-Api-Key", "client_secret"),
    *("aws_secret_access_key", "db_password", "wandb_api_key", "github_token"),
    *("extra_headers", "private_key", "bearer_token", "hfToken"),
    *("hf_token2", "token_2", "API_KEY_1", "apiKey2", "api_key_prod", "token_value", "HFTOKEN"),
    *("api_tokens", "openai_key", "HUGGINGFACE_KEY", "signing_key", "PGPASSWORD", "dbpassword"),
    *("DB_PASS", "smtpPass", "GITHUB_PAT", "passcode"),
    *("jwt", "oauth", "creds", "proxy_authentication", "accesstoken", "apikeys"),
]
SETTINGS = [
    *("max_tokens", "eos_token", "bos_token", "pad_token", "add_bos_token", "tokenizer"),
    *("max_new_tokens", "think_end_token", "prefix_token_id", "min_tokens"),
    *("num_tokens", "key", "keys", "author", "tokens_per_second", "token_ids", "stop_token"),
    *("cache_key", "monkey", "authority", "image_token", "special_token"),
    *("tokens", "tokens_2", "token_id", "main", "value", "eos_token_2", "answer_key", "base"),
    *("forward_pass", "pass", "pat", "max_pass"),
    # a shell's, a desktop's and a job scheduler's
    *("PWD", "OLDPWD", "HOME", "PATH", "SSH_AUTH_SOCK", "SSH_AGENT_PID", "XAUTHORITY", "LOGNAME"),
    *("DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR", "VIRTUAL_ENV", "CONDA_PREFIX", "HF_HOME"),
    *("SLURM_SUBMIT_DIR", "SLURM_JOB_ID", "RAY_ADDRESS", "CUDA_VISIBLE_DEVICES", "LS_COLORS"),
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
        ("http://me:p@mark-1234@host/v1", "http://host/v1"),
        ("//me:mark-1234@host/v1", "//host/v1"),
        ("me:mark-1234@proxy:3128", "proxy:3128"),
        ("git@github.com:a/b.git", "git@github.com:a/b.git"),
        ("https://h/x?key=mark-1234&n=1", "https://h/x?key=***&n=1"),
        ("https://h/x?X-Amz-Signature=mark-1234", "https://h/x?X-Amz-Signature=***"),
        ("https://h/x#access_token=mark-1234", "https://h/x#access_token=***"),
        ("https://h/x;token=mark-1234", "https://h/x;token=***"),
        ("bearer mark-1234", "bearer ***"),
        ("Token mark-1234", "Token ***"),
        ("Basic bWU6bWFyay0xMjM0", "Basic ***"),
        ("Basic arithmetic, bearer instruments", "Basic arithmetic, bearer instruments"),
        ("authorization: mark-1234", "authorization: ***"),
        ("Cookie: a biscuit", "Cookie: a biscuit"),
        ("Cookie: id=mark-1234", "Cookie: ***"),
        ("X-Auth-Token: mark-1234, and so on", "X-Auth-Token: ***, and so on"),
        ("{'a': 1, token: mark-1234}", "{'a': 1, token: ***}"),
        ("sweep x --set 'models.a.args={passwd: mark-1234}'", None),
        ("m.args.api_key: 'mark-1234' is not allowed", "m.args.api_key: '***' is not allowed"),
        ("m.args.api_key: unknown setting", "m.args.api_key: unknown setting"),
        ("-----BEGIN RSA PRIVATE KEY-----\nab\n-----END RSA PRIVATE KEY-----", "***"),
        ("to https://hooks.slack.com/services/T0/B0/xyz now", "to *** now"),
        ("pretrained=m,plain,x={'a': [1, 2]},token=mark-1234", None),
        ('x={"k": 1, "token": "mark-1234"}', 'x={"k": 1, "token": "***"}'),
        (r'{"a": "{\"token\": \"mark-1234\"}"}', r'{"a": "{\"token\": \"***\"}"}'),
        ("sweep x --api-key mark-1234 --set a.token=mark-1234", None),
        ("sweep x --set=a.token=mark-1234 '--set=b.passwd=mark-1234'", None),
        ("at hf_mark-1234" + "x" * 30, "at hf_mark-1234" + "x" * 30),
        ("token=true, password=false", "token=true, password=false"),
        ("the password: is not one", "the password: is not one"),
        *(
            (f"says {mark}!", "says ***!")
            for mark in ("gsk_" + "a" * 40, "nvapi-" + "b" * 40, "xai-" + "c" * 40)
        ),
        *(
            (f"says {mark}!", "says ***!")
            for mark in ("hf_" + "a" * 34, "sk-" + "b" * 40, "ghp_" + "c" * 36, "AKIA" + "D" * 16)
        ),
    ],
)
def test_text_loses_what_is_secret_in_it(text: str, public: str | None) -> None:
    public = text.replace("mark-1234", "***") if public is None else public
    content, kept = secrets.split({"base_url": text, "list": [text]})
    assert content == {"base_url": public, "list": [public]}
    assert secrets.joined(content, kept) == {"base_url": text, "list": [text]}
    if public != text:
        assert "mark-1234" not in secrets.hidden(f"at {text}: ", secrets.values(kept, {}))


def test_settings_that_others_wrote_as_pairs() -> None:
    given = {"model_args": "pretrained=m,hf_token=mark,max_tokens=3", "config": ["a=1,password=x"]}
    expected = {"model_args": "pretrained=m,max_tokens=3", "config": ["a=1"]}
    assert secrets.redacted(given) == expected
    beside = 'pretrained=m,{part},api_key=mark,x={{"a": 1, "token": "mark"}},dtype=auto'
    for part in ("a=1", "trust_remote_code", "y=[1,2]", "hf_token=mark"):
        shown = secrets.redacted(beside.format(part=part))
        assert "mark" not in shown
        assert shown.startswith("pretrained=m,")
        assert shown.endswith(',x={"a": 1, "token": "***"},dtype=auto')


def test_the_folder_that_a_shell_is_in_is_said() -> None:
    texts = secrets.values([], {"PWD": "/home/me/work", "PGPASSWORD": "mark-1234"})
    assert secrets.hidden("/home/me/work mark-1234", texts) == "/home/me/work ***"


def test_an_environment_has_secrets_too() -> None:
    environment = {
        "HF_TOKEN": "mark-1",
        "HTTPS_PROXY": "http://me:mark-2@proxy:1",
        "http_proxy": "me:mark-3@proxy:1",
        "OPTIONS": "--x 1 --api-key=mark-4",
        "HOME": "/home",
    }
    texts = secrets.values([], environment)
    assert secrets.hidden("mark-1, mark-2, mark-3, mark-4 at /home", texts) == (
        "***, ***, ***, *** at /home"
    )


def test_a_secret_is_known_in_each_form_in_which_it_comes_back() -> None:
    texts = secrets.values([(["password"], 'p@ss"wörd')], {})
    for shown in ("p%40ss%22w%C3%B6rd", r"p@ss\"w\u00f6rd", 'p@ss"wörd'):
        assert secrets.hidden(f"at {shown}.", texts) == "at ***."
    in_address = secrets.values([(["base_url"], "http://me:p%40ss-word@host")], {})
    assert secrets.hidden("p@ss-word", in_address) == "***"


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


@pytest.mark.parametrize("given", [
    {"headers_of_mine": [{"name": "X-Api-Key", "value": "mark-1234"}]},
    {"env": [{"key": "HF_TOKEN", "value": "mark-1234"}, {"key": "A", "value": "b"}]},
    {"runtime_env": {"env_vars": {"hf_token": "mark-1234"}}},
    {"args": ["--api-key", "mark-1234", "--max-tokens", "3"]},
    {"args": [["serve", "-hf_token", "mark-1234"]]},
])  # fmt: skip
def test_what_stands_beside_a_name_is_secret(given: dict[str, Any]) -> None:
    content, kept = secrets.split(given)
    assert "mark-1234" not in str(content)
    assert secrets.joined(content, kept) == given
    assert secrets.hidden("at mark-1234", secrets.values(kept, {})) == "at ***"


def test_lists_of_words_are_no_options() -> None:
    given = {"until": ["password", "secret-1"], "stop": ["--max-tokens", "12"], "rows": [{"name":
             "what is your password", "value": 1}]}  # fmt: skip
    assert secrets.split(given) == (given, [])


def test_a_name_and_password_are_known_as_a_header_has_them() -> None:
    texts = secrets.values([(["base_url"], "http://me:mark-1234@host")], {})
    assert secrets.hidden("Basic bWU6bWFyay0xMjM0", texts) == "Basic ***"


WORDS = (
    *("a", "_", ".", "-", "a.", "a_", "eyJ-", "1-", "?a=", "token=", "token='", "--token ", "{a:"),
    *(" ", "\\", '"a":', "a: ", "token_x: ", "basic ", "//", "a:b@", "cookie:", "-----BEGIN "),
)


@pytest.mark.parametrize("word", WORDS)
def test_a_text_of_one_word_takes_no_time(word: str) -> None:
    """Such as another project's results may hold; some patterns took hours for a megabyte."""
    text = (word * 100_000)[:100_000]
    began = time.process_time()
    secrets.public(text)
    assert time.process_time() - began < 3
