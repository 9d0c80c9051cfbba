"""The model that answers, as far as a task can know it: backend, tokenizer, precision.

lm-eval gives a task the run's settings but not the model. While the evaluator has the task build
requests, the model is in the evaluator's own frame, where `running_model` finds it.
"""

import functools
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from leval_tasks.errors import TokenizerError
from resonance_vllm.errors import SettingError
from resonance_vllm.files import user_path

logger = logging.getLogger(__name__)


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


def is_chat_server(settings: Mapping[str, Any]) -> bool:
    """Whether requests go to a chat completion server, which applies its own template."""
    return str(settings.get("base_url", "")).rstrip("/").endswith("chat/completions")


def is_tokenized_api(settings: Mapping[str, Any]) -> bool:
    """Whether lm-eval sends token ids to a completion server (and cuts them at its limit)."""
    if not settings.get("base_url") or is_chat_server(settings):
        return False
    return str(settings.get("tokenized_requests", True)).lower() not in ("false", "0")


def adds_bos(settings: Mapping[str, Any]) -> bool | None:
    """Whether the backend adds the first token; None where it follows the tokenizer."""
    if is_chat_server(settings):
        return False
    given = settings.get("add_bos_token")
    if given is None and not is_tokenized_api(settings):
        return None
    return str(given).lower() == "true"


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
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        missing = "" if user_path(name).exists() else "there is no folder of this name; "
        raise TokenizerError(
            f"tokenizer: {name!r} cannot be loaded ({missing}{reason}); name one with "
            "tokenizer=NAME_OR_PATH in --model_args"
        ) from error
    if not tokenizer.is_fast:
        raise TokenizerError(
            f"tokenizer: {name!r} gives no character offsets; name a fast tokenizer of the same "
            "vocabulary with tokenizer=NAME_OR_PATH in --metadata"
        )
    return tokenizer


@dataclass(frozen=True, slots=True)
class Reader:
    """How the model reads text: fast tokenizer, rows of the embedding, precision of the softmax."""

    tokenizer: Any
    vocabulary: int | None
    softmax: str

    def encode(self, text: str) -> tuple[list[int], list[int]]:
        """Token ids without special tokens, and where in the text each ends (characters).

        Raises:
            SettingError: an id that the model's embedding does not have.
        """
        encoded = self.tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        tokens = list(encoded["input_ids"])
        if self.vocabulary and tokens and max(tokens) >= self.vocabulary:
            raise SettingError(
                f"tokenizer: {getattr(self.tokenizer, 'name_or_path', '')!r} does not match the "
                f"model: token id {max(tokens)} is outside its vocabulary of {self.vocabulary}; "
                "give tokenizer=NAME_OR_PATH of the model's own in --model_args"
            )
        return tokens, [end for _, end in encoded["offset_mapping"]]


def find_reader(settings: Mapping[str, Any], softmax: str = "") -> Reader:
    """The reader of this run; without a running model only its tokenizer is known.

    Args:
        settings: a task's metadata.
        softmax: precision of the softmax where the task computes it; empty for the model's.

    Raises:
        TokenizerError: there is no fast tokenizer.
    """
    tokenizer, model = find_tokenizer(settings), running_model()
    if model is None:
        return Reader(tokenizer, None, "unknown")
    if is_server(model):
        return Reader(tokenizer, None, "the server's")
    config = getattr(model, "config", None) or getattr(model, "_config", None)
    text_config = getattr(config, "get_text_config", lambda: config)()
    vocabulary = getattr(text_config, "vocab_size", None)
    return Reader(tokenizer, vocabulary, softmax or _softmax_precision(model))


def _softmax_precision(model: Any) -> str:
    """Precision of the softmax; lm-eval's `hf` takes the model's unless `softmax_dtype` is set."""
    if hasattr(model, "teacher_forced") or "vllm" in type(model).__module__:
        return "float32"
    given = str(getattr(model, "softmax_dtype", None) or "").removeprefix("torch.")
    own = str(getattr(getattr(model, "model", None), "dtype", "")).removeprefix("torch.")
    used = given or own or "unknown"
    if used not in ("float32", "float64"):
        logger.warning(
            "perplexities of this run are marked: the softmax is %s, which is off by some tenths "
            "of a percent; give softmax_dtype=float32 in --model_args",
            used,
        )
    return used
