"""How long a sequence may be in this run: one answer for all our tasks.

lm-eval cuts what is too long with no more than a warning, so a length above what the model reads
is refused here. The running model is asked; where there is none (prompts are only shown), or it
does not tell, the run's settings (a task's metadata) and the checkpoint's own files are.
"""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from leval_border.json_texts import parse_json
from leval_tasks.errors import ContextLengthError
from leval_tasks.metadata import BackendSettings, ContextSettings, read_metadata
from leval_tasks.running import running_model
from resonance_vllm.core.errors import RopeConfigError
from resonance_vllm.model_config.limits import length_limit, vllm_limit
from resonance_vllm.model_config.model_positions import ModelPositions

SERVER_DEFAULT = 2048  # lm-eval's own max_length for completion servers


@dataclass(frozen=True, slots=True)
class Reach:
    """How long a sequence the run's model reads without cutting it.

    Attributes:
        backend: class name of lm-eval's model, `api`, or `unknown`.
        limit: tokens of prompt and answer together; None where nothing says.
        origin: the setting or file that the limit is from.
        setting: the model argument that raises it.
        kept_back: positions of the limit that lm-eval gives to no prompt (completion servers: 1).
        after_window: positions that a scored text needs beside its own (vLLM generates a token).
        assumed: the limit is lm-eval's default for servers, which knows nothing of the server.
    """

    backend: str
    limit: int | None
    origin: str
    setting: str = "max_length"
    kept_back: int = 0
    after_window: int = 0
    assumed: bool = False

    @property
    def known(self) -> int:
        """The limit, where no length is asked for.

        Raises:
            ContextLengthError: none is known.
        """
        if self.limit is not None and not self.assumed:
            return self.limit
        if self.backend == "api":
            raise ContextLengthError(
                "max_length: not given, and a server does not say how long a sequence it takes; "
                "give max_length=N in --model_args, or context_length in --metadata"
            )
        raise ContextLengthError(
            "context_length: not known; give context_length in --metadata, or max_length "
            "(max_model_len for vllm) in --model_args"
        )

    def check(self, length: int, name: str, beside: int = 0) -> None:
        """Refuse a length that the backend would cut; `beside` positions are needed beside it.

        Raises:
            ContextLengthError: with the settings that would allow it.
        """
        if self.limit is None or length + beside <= self.limit:
            return
        most = self.limit - beside
        raise ContextLengthError(
            f"{name}: {length} is above the {most} tokens that this run's model ({self.backend}) "
            f"takes uncut{f' ({beside} of {self.limit} is kept for the answer)' * bool(beside)}; "
            f"give {self.setting}={length + beside} in --model_args. Past the trained length a "
            f"model also needs RoPE scaling, such as rope_type=yarn with "
            f"factor={-(-length // most):.1f} (`leval-harness rope` lists the methods); or take "
            f"context_length={most} or less"
        )


@dataclass(frozen=True, slots=True)
class Context:
    """Tokens of prompt and answer together, and the setting or file that decided it.

    `limit` is what the run's model reads without cutting it, None where nothing says.
    """

    length: int
    origin: str
    limit: int | None = field(default=None, compare=False)


def resolve_context(settings: Mapping[str, Any]) -> Context:
    """The length of context to use: `context_length`, else what the run's model reads.

    Raises:
        SettingError: a length is not a positive whole number.
        ContextLengthError: no length is known, or the model would cut prompts of it.
    """
    reach = find_reach(settings)
    asked = read_metadata(ContextSettings, settings)
    if asked.context_length:
        length, origin = asked.context_length, "context_length"
    else:
        length, origin = asked.length or reach.known, reach.origin
    reach.check(length, origin)
    if reach.limit is None:
        return Context(length, origin)
    limit = reach.limit - reach.kept_back
    return Context(min(length, limit), origin, limit)


def find_reach(settings: Mapping[str, Any]) -> Reach:
    """What the run's model reads without cutting.

    Raises:
        SettingError: a length in the settings is not a positive whole number.
    """
    asked = read_metadata(BackendSettings, settings)
    model = running_model()
    if settings.get("base_url") or is_server(model):
        return _server(model, settings, asked)
    given = "max_length" if asked.max_length else "max_model_len" if asked.max_model_len else None
    limit, backend = getattr(model, "max_length", None), type(model).__name__
    if isinstance(limit, int):
        vllm, origin = "vllm" in type(model).__module__, given or "model"
    else:
        vllm = "hf_overrides" in settings or given == "max_model_len"
        backend, origin = "unknown", given or "checkpoint"
        limit = asked.length or checkpoint_limit(settings)
    if vllm:
        return Reach(backend, limit, origin, "max_model_len", after_window=1)
    return Reach(backend, limit, origin)


def _server(model: Any, settings: Mapping[str, Any], asked: BackendSettings) -> Reach:
    """lm-eval keeps one token back on completion servers, and cuts token ids on the left."""
    origin = "max_model_len" if asked.max_model_len else "max_length"
    if not getattr(model, "tokenized_requests", is_tokenized_api(settings)):
        return Reach("api", asked.length, origin)
    kept = getattr(model, "max_length", None)
    limit = kept + 1 if isinstance(kept, int) else asked.length or SERVER_DEFAULT
    return Reach("api", limit, origin, kept_back=1, after_window=1, assumed=not asked.length)


def is_server(model: object) -> bool:
    """Whether lm-eval's model asks a server."""
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


def checkpoint_limit(settings: Mapping[str, Any]) -> int | None:
    """The checkpoint's limit with the run's RoPE settings, None where neither tells one."""
    found = (_positions(*each) for each in _names(settings))
    model = next((each for each in found if each is not None), ModelPositions())
    given = {**_mapping(settings.get("hf_overrides")), **dict(settings)}
    seen = model.overridden({key: _mapping(value) or value for key, value in given.items()})
    if seen.max_position_embeddings is None:
        return None
    return vllm_limit(seen) if "hf_overrides" in settings else length_limit(seen)


def claimed_lengths(settings: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """The lengths that the checkpoint's own config claims: as shipped, and under the run's method.

    What the run asks for beyond them is no claim.
    """
    for each in _names(settings):
        model = _positions(*each)
        if model is None or model.max_position_embeddings is None:
            continue
        shipped = length_limit(model)
        overrides = _mapping(settings.get("hf_overrides"))
        rope = _mapping(settings.get("rope_parameters") or overrides.get("rope_parameters"))
        if not rope:
            return shipped, shipped
        try:
            return shipped, length_limit(model, model.complete({**rope, "replace": True}))
        except RopeConfigError:
            return shipped, None
    return None, None


def _names(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What may name the files of a run's model, and their revision."""
    for key in ("pretrained", "tokenizer", "model"):
        name = settings.get(key)
        if isinstance(name, str) and name:
            yield name, str(settings.get("revision") or "main")


@functools.lru_cache(maxsize=8)
def _positions(name: str, revision: str) -> ModelPositions | None:
    try:
        return ModelPositions.of_checkpoint(name, revision)
    except RopeConfigError:
        raise
    except (OSError, ValueError):  # what is named is no model of the hub
        return None


def _mapping(value: Any) -> Mapping[str, Any]:
    if isinstance(value, str) and value.strip().startswith("{"):
        value = parse_json(value, "model_args")
    return value if isinstance(value, Mapping) else {}


def checkpoint_config(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The text part of the checkpoint's config.json; empty where there is none to read."""
    configs = (_read_config(*each) for each in _names(settings))
    config = next(filter(None, configs), {})
    return {**config, **_mapping(config.get("text_config"))}


@functools.lru_cache(maxsize=8)
def _read_config(name: str, revision: str) -> dict[str, Any]:
    from transformers import PretrainedConfig

    try:
        config, _ = PretrainedConfig.get_config_dict(name, revision=revision)
    except (OSError, ValueError):
        return {}
    return dict(config)
