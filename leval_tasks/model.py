"""The model that answers, as far as a task can know it: backend and tokenizer.

lm-eval gives a task the run's settings but not the model. While the evaluator has the task build
requests, the model is in the evaluator's own frame, where `running_model` finds it.
"""

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any

from leval_tasks.errors import TokenizerError


def running_model() -> Any | None:
    """The model of the lm-eval evaluation that is building requests, or None outside of one."""
    frame = sys._getframe()
    while (caller := frame.f_back) is not None:
        frame = caller
        if frame.f_globals.get("__name__") == "lm_eval.evaluator" and "lm" in frame.f_locals:
            model = frame.f_locals["lm"]
            # --use_cache wraps the model
            return model.lm if type(model).__name__ == "CachingLM" else model
    return None


def is_server(model: object) -> bool:
    """Whether lm-eval's model is a client of a server."""
    return type(model).__module__.startswith(("lm_eval.models.openai", "lm_eval.models.api"))


def sends_tokens(model: object, settings: Mapping[str, Any]) -> bool:
    """Whether lm-eval sends token ids to the server, and cuts them at its limit."""
    chat = str(settings.get("base_url", "")).rstrip("/").endswith("chat/completions")
    return bool(getattr(model, "tokenized_requests", not chat))


def find_tokenizer(settings: Mapping[str, Any]) -> Any:
    """The tokenizer that the settings name, else the running model's, else the checkpoint's.

    Raises:
        TokenizerError: none is known, it cannot be loaded, or it is not a fast one, which gives
            the character offsets of its tokens.
    """
    if settings.get("pretrained") and not settings.get("tokenizer"):
        tokenizer = getattr(running_model(), "tokenizer", None)
        if getattr(tokenizer, "is_fast", False):
            return tokenizer
    revision = settings.get("tokenizer_revision") or settings.get("revision") or "main"
    trusted = str(settings.get("trust_remote_code", "")).lower() in ("true", "1")
    return _load(tokenizer_name(settings), str(revision), trusted)


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


@functools.lru_cache(maxsize=8)
def _load(name: str, revision: str, trust_remote_code: bool) -> Any:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            name, revision=revision, trust_remote_code=trust_remote_code
        )
    except Exception as error:  # what libraries raise for a damaged file is of many kinds
        reason = (str(error).strip() or repr(error)).splitlines()[0]
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


def encoder(tokenizer: Any) -> Callable[[str], tuple[list[int], list[int]]]:
    """Text -> token ids without special tokens, and where in the text each ends (characters)."""

    def encode(text: str) -> tuple[list[int], list[int]]:
        encoded = tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        return list(encoded["input_ids"]), [end for _, end in encoded["offset_mapping"]]

    return encode
