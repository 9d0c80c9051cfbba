"""The run's tokenizer."""

import functools
from collections.abc import Mapping
from typing import Any

from leval_tasks.errors import TokenizerError
from leval_tasks.running import running_model


def find_tokenizer(settings: Mapping[str, Any]) -> Any:
    """The tokenizer that is named, else the running model's, else that of the checkpoint.

    Raises:
        TokenizerError: none is known, it cannot be loaded, or it is not a fast one, which tells
            where its tokens lie in the text.
    """
    if not settings.get("tokenizer"):
        model = running_model()
        tokenizer = getattr(model, "tokenizer", None) if settings.get("pretrained") else None
        if getattr(tokenizer, "is_fast", False):
            return tokenizer
    return load_tokenizer(settings)


def tokenizer_name(settings: Mapping[str, Any]) -> str:
    """Name or path of the tokenizer: `tokenizer`, else `pretrained`, else `model`.

    Raises:
        TokenizerError: the settings name none.
    """
    for key in ("tokenizer", "pretrained", "model"):
        value = settings.get(key)
        if isinstance(value, str) and value:
            return value
    raise TokenizerError(
        "tokenizer: none is known to the task, which counts the tokens of documents; name one "
        "with tokenizer=NAME_OR_PATH in --model_args, or "
        '--metadata \'{"tokenizer": "NAME_OR_PATH"}\''
    )


def load_tokenizer(settings: Mapping[str, Any]) -> Any:
    """Load the tokenizer that the settings name; see `find_tokenizer`."""
    revision = settings.get("tokenizer_revision") or settings.get("revision") or "main"
    trusted = str(settings.get("trust_remote_code", "")).lower() in ("true", "1")
    return _load(tokenizer_name(settings), str(revision), trusted)


@functools.lru_cache(maxsize=8)
def _load(name: str, revision: str, trust_remote_code: bool) -> Any:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            name, revision=revision, trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise TokenizerError(
            f"tokenizer: {name!r} cannot be loaded ({reason}); name one with "
            "tokenizer=NAME_OR_PATH in --model_args"
        ) from error
    if not tokenizer.is_fast:
        raise TokenizerError(
            f"tokenizer: {name!r} gives no character offsets; name a fast tokenizer of the same "
            "vocabulary with tokenizer=NAME_OR_PATH in --metadata"
        )
    return tokenizer
