"""Credentials come from the environment or from `hf auth login`; settings with one are refused.

A credential is recognised by the whole name of its key: `hf_token`, `api_key`, not `max_tokens`.
"""

import re
from collections.abc import Mapping
from typing import Any

from resonance_vllm.errors import SettingError

_NAME = re.compile(
    r"(?<![^\W_])((api|access|secret|private|signing)[_-]?keys?"
    r"|(api|access|auth|bearer|refresh|session|security|hf|hub|huggingface|github|wandb|openai)"
    r"[_-]?tokens?"
    r"|secrets?|credentials?|authori[sz]ation|cookies?|passwd|passphrase|password|(?<!\w)token)$",
    re.IGNORECASE,
)
"""`token` counts alone, because most names that end in it are about text: `eos_token`."""
_USER_OF_URL = re.compile(r"://[^/@\s]+@")
VARIABLES = {"token": "HF_TOKEN", "api_key": "OPENAI_API_KEY", "authorization": "OPENAI_API_KEY"}
"""End of a credential's name -> the environment variable that the libraries read."""


def is_credential(name: str) -> bool:
    """Whether a setting of this name is a credential."""
    return _NAME.search(name) is not None


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
