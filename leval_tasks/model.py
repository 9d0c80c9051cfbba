"""The model that answers, as far as a task can know it: backend and tokenizer.

lm-eval gives a task the run's settings but not the model. While the evaluator has the task build
requests, the model is in the evaluator's own frame, where `running_model` finds it.
"""

import functools
import sys
from collections.abc import Mapping
from typing import Any

from leval_tasks.errors import TaskError


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


def find_tokenizer(settings: Mapping[str, Any]) -> Any:
    """The tokenizer that the settings name, else the running model's, else the checkpoint's.

    Raises:
        TaskError: none is known, it cannot be loaded, or it is not a fast one, which gives the
            character offsets of its tokens.
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
        TaskError: the settings name none.
    """
    for key in ("tokenizer", "pretrained", "model"):
        value = settings.get(key)
        if isinstance(value, str) and value:
            return value
    raise TaskError(
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
        raise TaskError(
            f"tokenizer: {name!r} cannot be loaded ({reason}); name one with "
            "tokenizer=NAME_OR_PATH in --model_args"
        ) from error
    if not tokenizer.is_fast:
        raise TaskError(
            f"tokenizer: {name!r} gives no character offsets; name a fast tokenizer of the same "
            "vocabulary with tokenizer=NAME_OR_PATH in --metadata"
        )
    return tokenizer
