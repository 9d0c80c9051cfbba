"""Credentials come from the environment or from `hf auth login`; settings with one are refused.

A credential is recognised by the whole name of its key: `hf_token`, `api_key`, not `max_tokens`.
"""

import re
from collections.abc import Mapping
from typing import Any

from resonance_vllm.common.errors import SettingError

_NAME = re.compile(
    r"(?<![^\W_])((api|access|secret|private|signing)[_-]?keys?"
    r"|(api|access|auth|bearer|refresh|session|security|hf|hub|huggingface|github|wandb|openai)"
    r"[_-]?tokens?"
    r"|secrets?|credentials?|authori[sz]ation|cookies?|passwd|passphrase|password|(?<!\w)token)$",
    re.IGNORECASE,
)
"""`token` counts alone, because most names that end in it are about text: `eos_token`."""
_USER_OF_URL = re.compile(r"://[^/@\s]+@")


def refuse_credentials(value: Any, where: str, error: type[ValueError] = SettingError) -> None:
    """Refuse settings that hold a credential; the message names the place, never the value.

    Raises:
        ValueError: as `error`; `where` is how the user calls the place: `config.models.llama`.
    """
    if isinstance(value, Mapping):
        for key, inside in value.items():
            place = f"{where}.{key}" if where else str(key)
            found = _NAME.search(str(key)) is not None
            if found and isinstance(inside, str | int) and inside is not True:
                is_token = str(key).lower().endswith("token")
                variable = "HF_TOKEN" if is_token else "OPENAI_API_KEY"
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
