"""Credentials come from the environment or from `hf auth login`; settings with one are refused.

A config is copied into the results and shown in messages, so that a credential in it would be
published with them. It is recognised by the name of its key, in a mapping or in the query of an
address, and by what it looks like in a header. Results that another program wrote may hold one:
it is omitted where they are read.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote_plus

from resonance_vllm.common.errors import SettingError

_SETTING_NAME = re.compile(
    r"(?<![^\W_])((api|access|secret|private|signing|subscription)[_-]?keys?"
    r"|(api|access|auth|bearer|refresh|session|security|id|hf|hub|huggingface|github|wandb|openai)"
    r"[_-]?tokens?"
    r"|secrets?|credentials?|authori[sz]ation|cookies?|passwd|passphrase|password"
    r"|access[_-]key[_-]id|(?<!\w)bearer|(?<!\w)token)$",
    re.IGNORECASE,
)
"""The whole end of a key: `hf_token`, `api_key`, not `max_tokens`.

`token` counts only alone, because most names that end in it are about text: `eos_token`.
"""
_QUERY_NAME = re.compile(
    r"(?<![^\W_])(keys?|apikey|token|auth|pass|pwd|pw|sig|signature|jwt|code|credential)$",
    re.IGNORECASE,
)
"""Names that are credentials in the query of an address, where no setting is about text."""
_HEADERS = re.compile(r"(?<![^\W_])(headers?|extra_headers)$", re.IGNORECASE)
_NAME_OF_HEADER = re.compile(r"auth|key|token|secret|cookie|signature", re.IGNORECASE)
"""What the name of a header contains whose value is a credential; no header is about text."""
_USER_OF_ADDRESS = re.compile(r"://[^/@\s?#]*@|^[^/@\s:?#]+:[^/@\s?#]+@(?=[\w.-]+(:\d+)?(/|$))")
_HEADER_VALUE = re.compile(
    r"^\s*(authorization\s*:.*\S|(bearer|basic)\s+\S{6,}\s*$)", re.IGNORECASE
)
_KEY = re.compile(
    r"^\s*(sk-[\w-]{20,}|hf_[A-Za-z0-9]{20,}|gh[opsur]_\w{30,}|glpat-[\w-]{16,}|AKIA[0-9A-Z]{16})\s*$"
)
"""Keys of known services by what they look like, whatever the setting is called."""
_PARAMETERS = re.compile(r"[?&;#]([^=&;#?\s]+)=([^&;#\s]+)")
"""Name and value of each parameter of an address, in its query or its fragment."""


def refuse_credentials(value: Any, where: str, error: type[ValueError] = SettingError) -> None:
    """Refuse settings that hold a credential; the message names the place, never the value.

    Args:
        value: the settings, with mappings and lists to any depth.
        where: how the user calls their place, such as `config.models.llama`.
        error: the exception to raise.

    Raises:
        ValueError: as `error`, for the first credential.
    """
    if isinstance(value, Mapping):
        for key, inside in value.items():
            place = f"{where}.{key}" if where else str(key)
            if _is_credential(str(key), where) and _holds_text(inside):
                raise error(
                    f"{place}: a credential does not belong in a config, which is copied into the "
                    f"results; {_instead(str(key))}"
                )
            refuse_credentials(inside, place, error)
    elif isinstance(value, list | tuple):
        for number, inside in enumerate(value):
            refuse_credentials(inside, f"{where}.{number}", error)
    elif isinstance(value, str):
        _refuse_in_text(value, where, error)


def without_credentials(value: Any, where: str = "") -> Any:
    """Return settings without credentials, for results that are shown.

    Args:
        value: the settings, with mappings and lists to any depth.
        where: the name of the setting whose value this is.

    Returns:
        The same settings. Keys of credentials are missing; of an address those parameters that are
        credentials, and user and password; of a header it is all.
    """
    if isinstance(value, Mapping):
        return {
            key: without_credentials(inside, str(key))
            for key, inside in value.items()
            if not (_is_credential(str(key), where) and _holds_text(inside))
        }
    if isinstance(value, list | tuple):
        return [without_credentials(inside, where) for inside in value]
    if not isinstance(value, str):
        return value
    if _HEADER_VALUE.search(value) or _KEY.search(value):
        return ""
    without_user = _USER_OF_ADDRESS.sub(lambda user: "://" * ("://" in user[0]), value)
    if "://" not in value:
        return without_user
    return _PARAMETERS.sub(_kept_parameter, without_user)


def _is_credential(name: str, where: str) -> bool:
    """Return whether a key names a credential; `where` is the place of the mapping that has it."""
    if _HEADERS.search(where) and _NAME_OF_HEADER.search(name):
        return True
    return _SETTING_NAME.search(name) is not None


def _kept_parameter(parameter: re.Match[str]) -> str:
    """Return a parameter of an address as it is; only its name if it is a credential."""
    name = unquote_plus(unquote_plus(parameter[1]))
    if _SETTING_NAME.search(name) or _QUERY_NAME.search(name):
        return parameter[0].partition("=")[0]
    return parameter[0]


def _refuse_in_text(text: str, where: str, error: type[ValueError]) -> None:
    """Refuse a single value that holds a credential: an address or a header."""
    if _USER_OF_ADDRESS.search(text):
        raise error(
            f"{where}: an address with a user or a password does not belong in a config; set the "
            "environment variable OPENAI_API_KEY instead"
        )
    for name in _query_names(text):
        if _SETTING_NAME.search(name) or _QUERY_NAME.search(name):
            raise error(
                f"{where}: the parameter {name[:40]!r} of an address is a credential and does not "
                f"belong in a config, which is copied into the results; {_instead(name)}"
            )
    if _KEY.search(text):
        raise error(
            f"{where}: this looks like a key, which does not belong in a config; {_instead(where)}"
        )
    if _HEADER_VALUE.search(text):
        raise error(
            f"{where}: an authorization header does not belong in a config; set the environment "
            "variable OPENAI_API_KEY instead"
        )


def _query_names(text: str) -> Iterator[str]:
    """Yield the decoded names of the parameters of an address that have a value."""
    if "://" not in text:
        return
    for name, _ in _PARAMETERS.findall(text):
        yield unquote_plus(unquote_plus(name))  # a proxy's address holds another one, encoded twice


def _holds_text(value: Any) -> bool:
    """Return whether a value may be a secret: text or a number, alone or in a list."""
    if isinstance(value, list | tuple):
        return any(_holds_text(item) for item in value)
    return isinstance(value, str | int) and not isinstance(value, bool)


def _instead(name: str) -> str:
    """Return what to do in place of a credential of this name."""
    variable = "HF_TOKEN" if name.lower().endswith("token") else "OPENAI_API_KEY"
    return f"set the environment variable {variable} instead, or log in with `hf auth login`"
