"""The model that answers, as far as a task can know it: tokenizer and length limit.

lm-eval cuts longer sequences with no more than a warning, so a length above the backend's limit is
refused here. The limit comes from the running model; where none runs (prompts are only shown), or
it states none, from the run's settings (a task's metadata) and the checkpoint's own files.
"""

import functools
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leval_tasks.common.errors import ContextLengthError
from leval_tasks.common.metadata import BackendSettings, ContextSettings, read_metadata
from leval_tasks.common.token_logprobs import class_path, scoring_of
from resonance_vllm.checkpoint.limits import length_limit
from resonance_vllm.checkpoint.positions import PositionConfig
from resonance_vllm.common.errors import RopeConfigError, SettingError

SERVER_DEFAULT = 2048  # lm-eval's own max_length for completion servers
CLIENT = "lm_eval.models.api_models:TemplateAPI"
"""Class of lm-eval's models that ask a server."""


def running_model() -> Any | None:
    """Return the model of the lm-eval evaluation that is building requests, or None outside of one.

    lm-eval gives a task the run's settings but not the model, which is in the evaluator's frame.
    """
    frame = sys._getframe()
    while (caller := frame.f_back) is not None:
        frame = caller
        if frame.f_globals.get("__name__") == "lm_eval.evaluator" and "lm" in frame.f_locals:
            model = frame.f_locals["lm"]
            # --use_cache wraps the model
            if type(model).__name__ == "CachingLM":
                return model.lm
            return model
    return None


def find_tokenizer(settings: Mapping[str, Any]) -> Any:
    """Return the tokenizer that the settings name, else the running model's, else the checkpoint's.

    Raises:
        SettingError: none is known.
    """
    if settings.get("pretrained") and not settings.get("tokenizer"):
        tokenizer = getattr(running_model(), "tokenizer", None)
        if getattr(tokenizer, "is_fast", False):  # which gives the places of its tokens
            return tokenizer
    revision = settings.get("tokenizer_revision") or settings.get("revision") or "main"
    trusted = str(settings.get("trust_remote_code", "")).lower() in ("true", "1")
    return _load(tokenizer_name(settings), str(revision), trusted)


def tokenize_with_offsets(tokenizer: Any, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the token ids of a text, and for each its first character and the one after its last.

    Raises:
        SettingError: the tokenizer does not know where its tokens are: it is written in Python.
    """
    if not tokenizer.is_fast:
        raise SettingError(
            f"tokenizer: {type(tokenizer).__name__} is a slow tokenizer, which does not say where "
            "its tokens are in a text, so documents cannot be cut; name a fast one (with a "
            "tokenizer.json) with tokenizer=NAME_OR_PATH in --model_args"
        )
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    return list(encoding["input_ids"]), list(encoding["offset_mapping"])


def tokenizer_name(settings: Mapping[str, Any]) -> str:
    """Return the name or path of the tokenizer: `tokenizer`, else `pretrained`, else `model`.

    Raises:
        SettingError: the settings name none.
    """
    if names := _named(settings, "tokenizer", "pretrained", "model"):
        return names[0]
    raise SettingError(
        "tokenizer: none is known to the task, which counts the tokens of documents; name one with "
        'tokenizer=NAME_OR_PATH in --model_args, or --metadata \'{"tokenizer": "NAME_OR_PATH"}\''
    )


def _named(settings: Mapping[str, Any], *keys: str) -> list[str]:
    """Return the names and paths in the settings, in the order of the keys."""
    values = (settings.get(key) for key in keys)
    return [value for value in values if isinstance(value, str) and value]


@functools.lru_cache(maxsize=8)
def _load(name: str, revision: str, trust_remote_code: bool) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(
        name, revision=revision, trust_remote_code=trust_remote_code
    )


@dataclass(frozen=True, slots=True)
class LengthLimit:
    """The longest sequence that the run's backend reads without cutting it.

    Attributes:
        backend: class name of lm-eval's model, `api`, or `unknown`.
        tokens: of prompt and answer together; None where it is not known.
        kept_back: positions of the limit that lm-eval gives to no prompt (completion servers: 1).
        after_window: positions that a scored text needs in addition (vLLM generates a token).
        assumed: the limit is lm-eval's default for servers, not the server's own.
    """

    backend: str
    tokens: int | None
    kept_back: int = 0
    after_window: int = 0
    assumed: bool = False

    @property
    def known(self) -> int:
        """Return the limit, for a run that sets no length.

        Raises:
            ContextLengthError: it is not known.
        """
        if self.tokens is None or self.assumed:
            server = ", and a server does not say how much it reads" * (self.backend == "api")
            raise ContextLengthError(
                f"max_length: not given{server}; give it in --model_args (max_model_len for vllm), "
                "or context_length in --metadata"
            )
        return self.tokens

    def check(self, length: int, name: str, extra: int = 0) -> None:
        """Refuse a length that the backend would cut, of which `name` is the setting.

        `extra` positions are needed in addition.

        Raises:
            ContextLengthError: names the settings that would allow it.
        """
        if self.tokens is None or length + extra <= self.tokens:
            return
        most = self.tokens - extra
        kept = f" ({extra} of {self.tokens} is kept for the answer)" if extra else ""
        raise ContextLengthError(
            f"{name}: {length} is above the {most} tokens that this run's model ({self.backend}) "
            f"reads without a cut{kept}; give max_length={length + extra} in --model_args "
            "(max_model_len for vllm). Past the native context length a model also needs RoPE scaling, "
            f"such as rope_type=yarn with factor={-(-length // most):.1f} (`leval-harness rope` "
            f"lists the methods); or take context_length={most} or less"
        )


def resolve_context(settings: Mapping[str, Any]) -> int:
    """Return the tokens of prompt and answer together: `context_length`, else the backend's limit.

    Raises:
        SettingError: a length is not a positive whole number.
        ContextLengthError: no length is known, or the backend would cut prompts of it.
    """
    limit = find_limit(settings)
    requested = read_metadata(ContextSettings, settings)
    length = requested.context_length or requested.length or limit.known
    limit.check(length, "context_length")
    if limit.tokens is None:
        return length
    return min(length, limit.tokens - limit.kept_back)


def find_limit(settings: Mapping[str, Any]) -> LengthLimit:
    """Return the limit of the run's backend.

    Raises:
        SettingError: a length in the settings is not a positive whole number.
    """
    requested = read_metadata(BackendSettings, settings)
    model = running_model()
    backend = type(model).__name__
    stated = getattr(model, "max_length", None)
    is_client = CLIENT in map(class_path, type(model).__mro__)
    if settings.get("base_url") or is_client:
        chat = str(settings.get("base_url", "")).rstrip("/").endswith("chat/completions")
        if not getattr(model, "tokenized_requests", not chat):
            return LengthLimit("api", requested.length)
        # lm-eval sends token ids, cuts them on the left, and keeps one token back
        served = stated + 1 if isinstance(stated, int) else requested.length or SERVER_DEFAULT
        assumed = not requested.length
        return LengthLimit("api", served, kept_back=1, after_window=1, assumed=assumed)
    if not isinstance(stated, int):
        return LengthLimit("unknown", requested.length or shipped_length(settings))
    return LengthLimit(backend, stated, after_window=scoring_of(model).generated)


def shipped_length(settings: Mapping[str, Any]) -> int | None:
    """Return the native context length that the checkpoint's own config states.

    Lengths that the run sets do not count. The first checkpoint in the settings that states a
    length decides.
    """
    for name in _named(settings, "pretrained", "tokenizer", "model"):
        positions = _positions(name, str(settings.get("revision") or "main"))
        if positions is not None and positions.max_position_embeddings is not None:
            return length_limit(positions)
    return None


@functools.lru_cache(maxsize=8)
def _positions(name: str, revision: str) -> PositionConfig | None:
    """Return what a model's config says of its positions; None where there is no config to read.

    Raises:
        RopeConfigError: its RoPE settings are wrong.
    """
    if Path(name).is_dir() and not (Path(name) / "config.json").is_file():
        return None  # of a tokenizer alone
    try:
        return PositionConfig.from_checkpoint(name, revision)
    except RopeConfigError:
        raise
    except (OSError, ValueError):  # the hub has no model of this name
        return None
