"""Credentials stay out of files and off the terminal.

Two rules. In settings, a credential is recognised by the whole name of its key (`hf_token`,
`api_key`, not `max_tokens`). In text, it is recognised by its form: a token as a service issues it
(`hf_...`, `sk-...`), a `Bearer` header, the user and the signature of a URL. Nothing is replaced
because it equals the value of an environment variable: passwords can be ordinary words.
"""

import re
from collections.abc import Mapping
from typing import Any

from resonance_vllm.errors import SettingError

VARIABLE = "LEVAL_HARNESS_REQUEST"
"""Environment variable that hands settings with credentials to a cell's process."""
HIDDEN = "***"

_NAME = (
    r"(?:(?<![^\W_])(?:"
    r"(?:api|access|secret|private|signing|subscription|account)[_-]?keys?"
    r"|(?:api|access|auth|bearer|refresh|session|security|hf|hub|huggingface|github|gitlab|wandb"
    r"|openai)[_-]?tokens?"
    r"|secrets?|credentials?|authori[sz]ation|cookies?|jwt|passwd|passphrase)"
    r"|password|(?<!\w)(?<!\w-)token)_?\d*"
)
"""The end of a credential's name, whatever stands before it: `wandb_api_key`, `PGPASSWORD`.
`token` counts alone, because most names that end in it are about text: `eos_token`."""

_NAMED = re.compile(rf"(?:{_NAME}|(?<!\w)(?:default_|extra_)?headers?)", re.IGNORECASE)
"""Names in settings. The headers that a server gets are credentials as a whole."""

_ASSIGNED = re.compile(
    rf"""({_NAME})(
    =["']?                                        # token=x: URLs, command lines, model_args
    | \\*["']\s*:\s*\\*["']?                      # "token": "x", also as JSON in JSON
    | \s*:\s*\\*["']                              # token: "x"
    | \s*:\s+(?=[^\s,"'}}]{{6}})(?=[^\s,"'}}]*\d)(?=[^\s,"'}}]*[a-z])   # token: x1, not a word
    | (?<=tion)\s*:\s*                            # Authorization: Basic x
    )(?:(?:Bearer|Basic|Token)\s+)?
    (?!(?:true|false|none|null)\b)
    (?:(?<=")[^"\\]+|(?<=')[^'\\]+|[^\s"'\\,;&{{}}()\[\]]+)""",
    re.IGNORECASE | re.VERBOSE,
)
_OPTION = re.compile(
    rf"""(?<![^\s"'])(--?(?:[^\W_]+[-_])*{_NAME}[ \t]+["']?)[^\s"'-][^\s"']*""", re.IGNORECASE
)
_YAML_LINE = re.compile(rf"(?m)^([ \t]*[\w-]*?{_NAME}:[ \t]+)\S+$", re.IGNORECASE)
"""Values after the names of credentials; the name stays."""
_BETWEEN = r"""[\s"'=:,(<>\[{]{1,8}"""
_NEAR = re.compile(
    rf"""((?:{_NAME}|(?<!\w)api\ key)(?!\w)(?:{_BETWEEN}(?:[A-Za-z]{{1,12}}{_BETWEEN}){{0,2}}|%3D))
    (?=[A-Za-z_+/=-]{{0,60}}\d)(?=[\d_+/=-]{{0,60}}[A-Za-z])[\w+/=-]{{20,}}""",
    re.IGNORECASE | re.VERBOSE,
)
"""A random word at most two words after the name, however the two are written: as a pair of bytes,
`SecretStr('...')`, `API key provided: ...`."""

_USER = re.compile(r"(?<=://)[^/\s?#\"'<>\\]+@")
_SIGNATURE = re.compile(
    r"((?:(?:[?&;#]|%3F|%26|\\u0026)(?:signature|sig|key|code)"
    r"|\bx-(?:amz|goog)-(?:signature|credential|security-token)|\bSharedAccessSignature"
    r"|(?<=u0026)x-(?:amz|goog)-(?:signature|credential|security-token))(?:=|%3D))"
    r"(?:(?!%26|\\u0026)[^&\s\"'<>;#])+",
    re.IGNORECASE,
)
_BEARER = re.compile(
    r"\b(Bearer(?:\s+|%20|[\"']?:\s*[\"']?))(?=[^\s\"']*\d)[\w.~+/=-]{6,}", re.IGNORECASE
)
_BEFORE = r"(?:(?<![^\W_])|(?<=[\d\[]m)|(?<=\\[nrt])|(?<=%[0-9A-Fa-f]{2}))"
"""No letter or digit stands before a token, except as the end of a terminal's colour code, of an
escape in quoted text, or of a percent-encoded character."""
_ISSUED = re.compile(
    r"https://(?:hooks\.slack\.com/services|discord(?:app)?\.com/api/webhooks)/[\w/-]+"
    rf"|{_BEFORE}(?:hf_(?:(?:oauth|jwt|app)_)?[A-Za-z0-9]{{16,}}(?:\.[\w-]+)*|api_org_\w{{20,}}"
    r"|sk-[\w-]{20,}|(?:[sr]k_(?:live|test)|whsec|rpa|sntrys|shp[a-z]{2}|lin_api|wandb_v\d|tgp_v\d"
    r"|dop_v\d)_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|gl[a-z]{2,5}-[\w-]{16,}"
    r"|xox[abprs]-[\w-]{10,}|xapp-[\w-]{10,}|A[KS]IA[0-9A-Z]{16}"
    r"|AIza[\w-]{30,}|GOCSPX-[\w-]{20,}|ya29\.[\w-]{20,}|SG\.[\w-]{16,}\.[\w-]{20,}|hvs\.\w{20,}"
    r"|gsk_\w{20,}|nvapi-[\w-]{20,}|xai-\w{20,}|pplx-\w{20,}|csk-\w{20,}|r8_\w{20,}|npm_\w{20,}"
    r"|pypi-[\w-]{20,}|dckr_pat_[\w-]{20,}|dapi[0-9a-f]{32}|ATATT3[\w=-]{20,}"
    r"|(?:bot)?\d{8,10}:AA[\w-]{33}|eyJ[\w-]{8,1000}\.[\w-]{8,1000}\.[\w-]+)"
)
"""Tokens with the prefix of their service, JSON Web Tokens, addresses that are a token."""
_KEY_BLOCK = re.compile(r"(-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----)[^-]+")


def is_credential(name: str) -> bool:
    """Whether a setting of this name is a credential: `hf_token`, `apiKey`; not `max_tokens`."""
    return any(found.end() == len(name) for found in _NAMED.finditer(name))


VARIABLES = {"token": "HF_TOKEN", "api_key": "OPENAI_API_KEY", "authorization": "OPENAI_API_KEY"}
"""End of a credential's name -> the environment variable that the libraries read."""
_USER_OF_URL = re.compile(r"://[^/@\s]+@")


def refuse_credentials(value: Any, where: str, error: type[ValueError] = SettingError) -> None:
    """Refuse settings that hold a credential; the message names the place, never the value.

    Args:
        value: mappings, lists and plain values, as they were read.
        where: how the user calls the place, for instance `config.models.llama`.
        error: raised.
    """
    if isinstance(value, Mapping):
        for key, inside in value.items():
            place = f"{where}.{key}" if where else str(key)
            if is_credential(str(key)) and isinstance(inside, str | int) and inside is not True:
                lower = str(key).lower().replace("-", "_")
                ends = (name for end, name in VARIABLES.items() if lower.endswith(end))
                variable = next(ends, lower.upper())
                raise error(
                    f"{place}: a credential does not belong into a config, which is copied into "
                    f"the results; set the environment variable {variable} instead, or log in "
                    "with `hf auth login`"
                )
            refuse_credentials(inside, place, error)
    elif isinstance(value, list | tuple):
        for at, inside in enumerate(value):
            refuse_credentials(inside, f"{where}.{at}", error)
    elif isinstance(value, str) and _USER_OF_URL.search(value):
        raise error(
            f"{where}: an address with a user or a password does not belong into a config; set the "
            "environment variable OPENAI_API_KEY instead"
        )


def redact(text: str, *, names: bool = True, guess: bool = True) -> str:
    """A text with `***` in place of everything that has the form of a credential.

    The user and password of a URL are removed.

    Args:
        text: a log line, an error message, a command line, a rendered table.
        names: whether `token=x`, `"api_key": "x"` and `--password x` count as well. False for the
            texts of results: a question about `password = 'x'` keeps it.
        guess: whether with `names` a random word near the name of a credential counts as well.
            False for settings, where a path or a model may be called so.
    """
    text = _USER.sub("", text)
    text = _SIGNATURE.sub(rf"\1{HIDDEN}", text)
    if names and guess:
        text = _NEAR.sub(rf"\1{HIDDEN}", text)
    if names:
        text = _ASSIGNED.sub(rf"\1\2{HIDDEN}", text)
        text = _OPTION.sub(rf"\1{HIDDEN}", text)
        text = _YAML_LINE.sub(rf"\1{HIDDEN}", text)
    text = _BEARER.sub(rf"\1{HIDDEN}", text)
    text = _KEY_BLOCK.sub(rf"\1{HIDDEN}", text)
    return _ISSUED.sub(HIDDEN, text)


def without_credentials(value: Any, *, keep_names: bool = True) -> Any:
    """A copy of nested settings without credentials; keys are never changed.

    Args:
        value: mappings, lists and plain values; tuples become lists, as in JSON.
        keep_names: whether the key of a credential stays, with `***` as its value. The identity of
            a cell leaves it out, since a token decides no number.
    """
    if isinstance(value, Mapping):
        found = {}
        for key, inside in value.items():
            secret = isinstance(key, str) and is_credential(key)
            if not secret or inside is None or isinstance(inside, bool):
                found[key] = without_credentials(inside, keep_names=keep_names)
            elif keep_names:
                found[key] = HIDDEN
        return found
    if isinstance(value, list | tuple):
        return [without_credentials(inside, keep_names=keep_names) for inside in value]
    return redact(value, guess=False) if isinstance(value, str) else value


def redact_samples(value: Any, is_document: bool = False) -> Any:
    """A copy of lm-eval's samples without credentials; documents lose issued tokens alone.

    Args:
        value: samples, or a part of them.
        is_document: whether it is part of a document, which may have a field named `token`.
    """
    if isinstance(value, Mapping):
        return {
            key: HIDDEN
            if isinstance(inside, str) and is_credential(str(key)) and not is_document
            else redact_samples(inside, is_document or key == "doc")
            for key, inside in value.items()
        }
    if isinstance(value, list | tuple):
        return type(value)([redact_samples(inside, is_document) for inside in value])
    return redact(value, names=False) if isinstance(value, str) else value
