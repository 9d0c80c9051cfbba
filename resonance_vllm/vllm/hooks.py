"""The wrappers of vLLM's functions: requests for our types are handled here, others pass through.

Each takes vLLM's function and returns the one that replaces it.
"""

import contextlib
import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from resonance_vllm.config import COMPARED, ModelPositions, length_limit
from resonance_vllm.core.spec import METHODS, RopeSpec
from resonance_vllm.errors import RopeConfigError
from resonance_vllm.positions import by_layer, of_present_layers
from resonance_vllm.verify import NoRope
from resonance_vllm.vllm import request
from resonance_vllm.vllm.request import logger

# Named like methods of ours or of transformers, but computed otherwise by vLLM.
_VLLM_MEANING = {k: v for method in METHODS.values() for k, v in method.vllm_lookalikes.items()}

Wrapped = Callable[..., Any]


# What vLLM builds for a call of `get_rope`.


def wrap_get_rope(original: Wrapped) -> Wrapped:
    """`get_rope`: an embedding whose base carries our settings is built by us."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def get_rope(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        rope = call.arguments["rope_parameters"] or {}
        if request.is_ours(rope):  # a call without a model, in which stock settings would be shown
            spec, positions = request.spec_for_vllm(rope), call.arguments["max_position"]
            spec = request.at_length(rope, _served_length() or spec.method.length_limit(positions))
            stock = request.tagged_stock(rope, spec, positions)
            return _own_rope(original, {**call.arguments, "rope_parameters": stock})
        if not isinstance(rope.get("rope_theta"), request.TaggedBase):
            return original(*args, **kwargs)
        try:
            return _own_rope(original, call.arguments)
        except RopeConfigError as error:
            # Layers that keep a rotation of their own may take the base from our settings; for all
            # others the verification after the build reports the same.
            logger.info("%s", error)
            return original(*args, **kwargs)

    return get_rope


def _served_length() -> int | None:
    from vllm.config import get_current_vllm_config_or_none

    engine = get_current_vllm_config_or_none()
    model = None if engine is None else engine.model_config
    return None if model is None else int(model.max_model_len)


def _own_rope(original: Wrapped, arguments: Mapping[str, Any]) -> Any:
    """Build (or find) the embedding for a call of `get_rope` with a base that carries settings."""
    import torch
    from vllm.model_executor.layers.rotary_embedding import _ROPE_DICT

    from resonance_vllm.vllm import rotary

    spec = arguments["rope_parameters"]["rope_theta"].spec
    if arguments.get("dual_chunk_attention_config") is not None:
        raise RopeConfigError(
            "dual_chunk_attention_config: cannot be combined with rope_type "
            f"{spec.rope_type!r}; allowed: models with one RoPE over all positions"
        )
    served = _served_length()
    arguments = {**arguments, "dtype": arguments.get("dtype") or torch.get_default_dtype()}
    key = ("resonance_vllm", spec, served, str(arguments))
    if key not in _ROPE_DICT:
        _ROPE_DICT[key] = made = rotary.build(original, arguments, served)
        logger.info(
            "rope_type %s: %d positions in the cos/sin cache", spec.rope_type, made.resonance.rows
        )
    return _ROPE_DICT[key]


# What vLLM builds a model from, and what it has built.


def wrap_initialize_model(original: Wrapped) -> Wrapped:
    """`initialize_model`: a model with requests is built from stock settings, then verified."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def initialize_model(*args: Any, **kwargs: Any) -> Any:
        from resonance_vllm.vllm.model import verify_requests

        call = signature.bind(*args, **kwargs)
        engine = call.arguments["vllm_config"]
        config = call.arguments.get("model_config") or engine.model_config
        text, length = config.hf_text_config, int(config.max_model_len)
        requests = request.requests_of(text)
        if not requests:
            _refuse_unread(config)
            return original(*args, **kwargs)
        first = next(iter(requests.values()))
        if first.own:
            _refuse_draft(config, engine.speculative_config)
        try:
            with _built_with(config, text, length) if first.own else contextlib.nullcontext():
                model = original(*args, **kwargs)
        except RopeConfigError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            # Model code that keeps its RoPE in a form of its own.
            form = "" if None in requests else ", a dictionary by layer type"
            raise RopeConfigError(
                f"rope_type: {first.spec.rope_type!r}: the code of "
                f"{config.architecture} in vLLM does not build with it{form}: "
                f"{type(error).__name__}: {error}; allowed: what this model's code reads"
            ) from error
        verify_requests(model, text, requests, length)
        return model

    return initialize_model


@contextlib.contextmanager
def _built_with(config: Any, text: Any, length: int) -> Iterator[None]:
    """The config as the code that builds the model is to see it."""
    if config.using_transformers_backend():
        request.fix_length(text, length)
        yield
    else:
        with request.shown_as_stock(text, length):
            yield


def _refuse_unread(config: Any) -> None:
    """Raise RopeConfigError for settings of ours where no language model reads them."""
    outer = config.hf_config
    if outer is config.hf_text_config:
        return
    for rope in by_layer(outer).values():
        if request.is_ours(rope):
            raise RopeConfigError(
                f"rope_parameters: rope_type {rope['rope_type']!r} stands at the top of a config "
                f"of model_type {outer.model_type!r}, which nests its language model; allowed: "
                'hf_overrides {"text_config": {"rope_parameters": ...}}'
            )


def wrap_overrides(original: Wrapped) -> Wrapped:
    """`ModelConfig._apply_dict_overrides`: settings of ours reach the language model."""

    @functools.wraps(original)
    def _apply_dict_overrides(self: Any, config: Any, overrides: Any) -> None:
        own = request.has_ours(overrides)
        shipped = request.Shipped.of(config)
        original(self, config, overrides)
        if own:
            request.place_override(config, shipped)
        elif getattr(config, COMPARED, False):  # vLLM writes what is no dictionary before
            request.note_override(config.get_text_config(), shipped)

    return _apply_dict_overrides


def wrap_speculative(original: Wrapped) -> Wrapped:
    """`EngineArgs.create_speculative_config`: no draft model runs without our settings."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def create_speculative_config(*args: Any, **kwargs: Any) -> Any:
        target = signature.bind(*args, **kwargs).arguments["target_model_config"]
        made = original(*args, **kwargs)
        _refuse_draft(target, made)
        return made

    return create_speculative_config


def _refuse_draft(target: Any, speculative: Any) -> None:
    """Raise RopeConfigError if a draft model would run beside settings of ours, without them.

    vLLM applies `hf_overrides` to the target alone, and a draft's table ends at its own length.
    """
    own = request.own_specs(target.hf_text_config)
    draft = getattr(speculative, "draft_model_config", None)
    # Methods without a draft model name the target's config.
    if not own or draft is None or request.own_specs(draft.hf_text_config) == own:
        return
    raise RopeConfigError(
        f"speculative_config: the draft model {getattr(draft, 'model', None)!r} would not get "
        f"rope_type {next(iter(own.values())).rope_type!r}, which vLLM gives the target alone; "
        "allowed: methods without a draft model (ngram, suffix), or a draft whose own config has "
        "the same settings"
    )


# How long a sequence vLLM serves.


def wrap_max_len(original: Wrapped) -> Wrapped:
    """`_get_and_verify_max_len`: our types have the limit of `limits.length_limit`."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def get_and_verify_max_len(*args: Any, **kwargs: Any) -> int:
        call = signature.bind(*args, **kwargs)
        config = call.arguments["hf_config"]
        own = list(request.own_specs(config).values())
        if not own:
            _check_stock(config)
            return int(original(*args, **kwargs))
        _check_model(config)
        limit = served_limit(own, config, call.arguments.get("max_model_len"))
        # vLLM multiplies unknown types by their factor, whether max_position_embeddings has it
        # already or not. It gets the finished limit and a type that it leaves alone.
        plain = copy.copy(config)
        rope = {"rope_type": "default", "rope_theta": own[0].method.rope_theta}
        vars(plain)["rope_parameters"] = rope  # some config classes allow one a layer type only
        arch = copy.copy(call.arguments["model_arch_config"])
        name = "original_max_position_embeddings * factor"
        object.__setattr__(arch, "derived_max_model_len_and_key", (limit, name))
        call.arguments.update(hf_config=plain, model_arch_config=arch)
        return int(original(*call.args, **call.kwargs))

    return get_and_verify_max_len


def _check_model(config: Any) -> None:
    """Refuse a model without RoPE before a worker starts.

    Raises:
        NoRope: our types would do nothing on it.
    """
    try:
        fresh: Any = type(config)()
    except Exception:  # noqa: BLE001 - many config classes need arguments
        fresh = config
    keys = ("rope_parameters", "rope_theta", "rope_scaling")
    if getattr(config, "alibi", False) or not any(hasattr(fresh, key) for key in keys):
        raise NoRope(
            f"model_type: {config.model_type!r} has no RoPE, so rope_parameters would change "
            "nothing; allowed: models with rotary position embeddings"
        )


def served_limit(own: list[RopeSpec], config: Any, requested: int | None) -> int:
    """Longest sequence that may be served, in tokens: the smallest of several layer types.

    Types that follow the length follow `requested`, the user's `max_model_len`.
    """
    model = ModelPositions(max_position_embeddings=config.max_position_embeddings)
    limits = []
    for spec in own:
        length = requested if spec.method.follows_length else None
        limits.append(length_limit(model, spec, length))
        if spec.method.follows_length:
            logger.warning(
                "rope_type %s: vLLM fixes frequencies at start-up; the base is that of %d tokens",
                spec.rope_type,
                requested or limits[-1],
            )
    return min(limits)


@functools.cache
def _warn_once(message: str) -> None:
    logger.warning("%s", message)


def _check_stock(config: Any) -> None:
    """Point out settings that vLLM runs otherwise than their names suggest.

    Raises:
        RopeConfigError: `yarn` with the paper's ramp, which vLLM does not know and would leave out.
    """
    for rope in of_present_layers(config).values():
        rope_type = rope.get("rope_type")
        if rope_type in _VLLM_MEANING:
            _warn_once(f"rope_type {rope_type} is vLLM's own: {_VLLM_MEANING[rope_type]}")
        if rope_type not in (None, "default") and rope.get("rope_theta") is None:
            _warn_once(
                f"rope_parameters of type {rope_type} without rope_theta: vLLM's model code falls "
                "back to a base of its own (10000 for most)"
            )
