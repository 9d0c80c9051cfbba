"""The run's tokenizer and the length of context that may be used.

A task sees the run's settings (lm-eval's `model_args` and `--metadata`) but not the model, so both
are resolved from those settings and, where they are silent, from the checkpoint's own files.
"""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from leval_tasks.errors import ContextLengthError, SettingError, TokenizerError

# types that transformers and vLLM know; for these `max_position_embeddings` is written scaled
STOCK_ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "llama3", "longrope", "su", "mrope")
VLLM_SCALED_TYPES = ("linear", "dynamic", "ntk")
VLLM_KEYS = (
    "hf_overrides",
    "gpu_memory_utilization",
    "tensor_parallel_size",
    "data_parallel_size",
    "enforce_eager",
    "enable_prefix_caching",
    "max_num_seqs",
)
LENGTH_KEYS = ("n_positions", "max_position_embeddings", "n_ctx", "max_seq_len", "seq_length")
API_DEFAULT_MAX_LENGTH = 2048  # lm-eval's own default for completion servers


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
        "No tokenizer is known to the task, so the document budget cannot be counted: name one "
        "with tokenizer=NAME_OR_PATH in --model_args, or "
        '--metadata \'{"tokenizer": "NAME_OR_PATH"}\'.'
    )


def load_tokenizer(settings: Mapping[str, Any]) -> Any:
    """The run's tokenizer, which must be a fast one (it tells where its tokens lie in the text).

    Raises:
        TokenizerError: none is named, it cannot be loaded, or it gives no offsets.
    """
    return _load_tokenizer(
        tokenizer_name(settings),
        _text_or_none(settings.get("tokenizer_revision") or settings.get("revision")),
        str(settings.get("trust_remote_code", "")).lower() in ("true", "1"),
    )


def _text_or_none(value: Any) -> str | None:
    return str(value) if value else None


@functools.lru_cache(maxsize=8)
def _load_tokenizer(name: str, revision: str | None, trust_remote_code: bool) -> Any:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            name, revision=revision or "main", trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise TokenizerError(
            f"tokenizer {name!r} cannot be loaded ({reason}). Name one with tokenizer=NAME_OR_PATH "
            "in --model_args."
        ) from error
    if not tokenizer.is_fast:
        raise TokenizerError(
            f"tokenizer {name!r} gives no character offsets, which the document budget needs. Name "
            "a fast tokenizer of the same vocabulary with tokenizer=NAME_OR_PATH in --metadata."
        )
    return tokenizer


@dataclass(frozen=True)
class Context:
    """How long a sequence may be.

    Attributes:
        length: prompt and generated tokens together.
        origin: the setting or file that decided it.
    """

    length: int
    origin: str


def resolve_context(settings: Mapping[str, Any]) -> Context:
    """Length of context to use.

    `context_length`, else `max_length` or `max_model_len`, else the checkpoint's limit with its
    RoPE settings.

    Raises:
        SettingError: a length is not a positive whole number.
        ContextLengthError: no length is known, or the one asked for is above the backend's limit,
            so that the backend would cut prompts without saying so in the results.
    """
    asked = positive_int("context_length", settings.get("context_length"))
    explicit = positive_int("max_length", settings.get("max_length")) or positive_int(
        "max_model_len", settings.get("max_model_len")
    )
    explicit_name = "max_length" if settings.get("max_length") else "max_model_len"
    if asked:
        context = Context(asked, "context_length")
    elif explicit:
        context = Context(explicit, explicit_name)
    else:
        limit = checkpoint_limit(settings)
        if limit is None:
            raise ContextLengthError(
                "The context length is not known: give context_length in --metadata, or "
                "max_length (max_model_len for vllm) in --model_args."
            )
        context = Context(limit, "checkpoint")
    limit = backend_limit(settings)
    if limit is not None and context.length > limit:
        raise ContextLengthError(
            f"context length {context.length} ({context.origin}) is above the backend's limit of "
            f"{limit}, which would cut prompts. Raise the limit with max_length={context.length} "
            f"(vllm: max_model_len) in --model_args, or set context_length to at most {limit}."
        )
    if is_tokenized_api(settings):
        # lm-eval keeps one token back on completion servers and cuts on the left
        longest = (explicit or API_DEFAULT_MAX_LENGTH) - 1
        return Context(min(context.length, longest), context.origin)
    return context


def positive_int(field: str, value: object) -> int | None:
    """A setting as a positive whole number, None where it is absent.

    Raises:
        SettingError: it is something else.
    """
    if value is None or value == "":
        return None
    try:
        number = int(str(value))
    except ValueError:
        number = 0
    if number < 1:
        raise SettingError(f"{field} is {value!r}; it must be a positive whole number.")
    return number


def is_chat_server(settings: Mapping[str, Any]) -> bool:
    """Whether requests go to a chat completion server, which applies its own template."""
    return str(settings.get("base_url", "")).rstrip("/").endswith("chat/completions")


def is_tokenized_api(settings: Mapping[str, Any]) -> bool:
    """Whether lm-eval sends token ids to a completion server (and cuts them at its limit)."""
    if not settings.get("base_url") or is_chat_server(settings):
        return False
    return str(settings.get("tokenized_requests", True)).lower() not in ("false", "0")


def backend_limit(settings: Mapping[str, Any]) -> int | None:
    """Longest sequence that the backend takes without cutting; None where it sets no limit."""
    explicit = settings.get("max_length") or settings.get("max_model_len")
    if settings.get("base_url"):
        if is_tokenized_api(settings):
            return int(explicit or API_DEFAULT_MAX_LENGTH)
        return int(explicit) if explicit else None
    if explicit:
        return int(explicit)
    positions, rope = rope_of(settings)
    if positions is None:
        return None
    if not any(key in settings for key in VLLM_KEYS):
        return positions  # what lm-eval's hf backend reads
    if str(rope.get("rope_type", rope.get("type"))) in VLLM_SCALED_TYPES and "factor" in rope:
        return int(positions * float(rope["factor"]))
    return rope_limit(rope, positions)


def checkpoint_limit(settings: Mapping[str, Any]) -> int | None:
    """The checkpoint's limit with the run's RoPE settings, None where neither tells one."""
    positions, rope = rope_of(settings)
    return None if positions is None else rope_limit(rope, positions)


def rope_limit(rope: Mapping[str, Any], positions: int) -> int:
    """Limit of one RoPE dictionary.

    Args:
        rope: `rope_parameters`; empty for none.
        positions: `max_position_embeddings` that applies with it.

    Returns:
        `original_max_position_embeddings * factor` for this project's types, whether `positions`
        is written scaled or not; `positions` for stock types and those without a factor.
    """
    kind = str(rope.get("rope_type", rope.get("type", "default")))
    original, factor = rope.get("original_max_position_embeddings"), rope.get("factor")
    if kind in STOCK_ROPE_TYPES or not original or not factor:
        return positions
    return int(original * float(factor))


def rope_of(settings: Mapping[str, Any]) -> tuple[int | None, Mapping[str, Any]]:
    """`max_position_embeddings` and RoPE dictionary that the model will run with.

    `hf_overrides` (vllm) and the plain arguments `rope_parameters` and `max_position_embeddings`
    (hf) replace what config.json says, key by key, as the libraries do it.
    """
    config = checkpoint_config(settings)
    given = {**_mapping(settings.get("hf_overrides")), **dict(settings)}
    length = next((config[k] for k in LENGTH_KEYS if config.get(k)), None)
    length = given.get("max_position_embeddings") or length
    rope: Mapping[str, Any] = {}
    for source in (given, config):
        rope = _mapping(source.get("rope_parameters")) or _mapping(source.get("rope_scaling"))
        if rope:
            break
    return (int(length) if length else None), rope


def _mapping(value: Any) -> Mapping[str, Any]:
    if isinstance(value, str) and value.strip().startswith("{"):
        value = json.loads(value)
    return value if isinstance(value, Mapping) else {}


def checkpoint_config(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The text part of the checkpoint's config.json; empty where there is none to read."""
    for key in ("pretrained", "tokenizer", "model"):
        name = settings.get(key)
        if isinstance(name, str) and name:
            config = _read_config(name, _text_or_none(settings.get("revision")))
            if config:
                return {**config, **_mapping(config.get("text_config"))}
    return {}


@functools.lru_cache(maxsize=8)
def _read_config(name: str, revision: str | None) -> dict[str, Any]:
    from transformers import PretrainedConfig

    try:
        config, _ = PretrainedConfig.get_config_dict(name, revision=revision or "main")
    except (OSError, ValueError):
        return {}
    return dict(config)
