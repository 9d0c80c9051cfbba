"""vLLM general plugin: our rope types in every process of the engine.

vLLM has no extension point for rope types. It calls `register` in each of its processes before any
model file is imported; there `get_rope` is wrapped, so that a type that is ours is built by us and
everything else goes to vLLM untouched. Without the plugin our types are unknown to vLLM and it
refuses them.
"""

import copy
import functools
import inspect
import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any

from resonance_vllm.core.errors import RopeConfigError
from resonance_vllm.core.methods import METHODS
from resonance_vllm.core.spec import RESONANCE, RopeSpec, is_own_type, refuse_ignored_keys
from resonance_vllm.limits import length_limit
from resonance_vllm.positions import ModelPositions, rope_dictionaries

TESTED_VERSIONS = ("0.32.0",)

# Parameters that we rely on of what we call or replace.
_GET_ROPE = ("head_size", "max_position", "is_neox_style", "rope_parameters")
_MAX_LEN = ("hf_config", "model_arch_config", "max_model_len")
_COMMON = ("head_size", "rotary_dim", "max_position_embeddings", "base", "is_neox_style", "dtype")
# Named like methods of ours or of transformers, but computed otherwise by vLLM.
_VLLM_MEANING = {k: v for method in METHODS.values() for k, v in method.vllm_lookalikes.items()}

# Named after the package, below vLLM's own logger: that one has a handler in every process.
logger = logging.getLogger("vllm.resonance_vllm")


class VLLMInterfaceError(RuntimeError, ValueError):
    """The installed vLLM lacks something that the plugin builds on."""


def is_ours(rope_type: object) -> bool:
    """Whether a `rope_type` is one that we answer for, misspelt ones of our family included."""
    return is_own_type(rope_type) or str(rope_type).startswith(RESONANCE)


@functools.cache
def register() -> None:
    """Make our rope types known to vLLM in this process; calling it again changes nothing.

    Raises:
        VLLMInterfaceError: a function or class that we build on is missing or differs.
    """
    from vllm.config import model
    from vllm.model_executor.layers import rotary_embedding

    from resonance_vllm import hf

    check_interface()
    _check_version()
    # For configs that transformers reads, and for models that vLLM runs through its modules.
    hf.register()
    _replace(rotary_embedding.get_rope, _wrap_get_rope)
    _replace(model._get_and_verify_max_len, _wrap_max_len)


def check_interface() -> None:
    """Raise VLLMInterfaceError, with every difference named, unless vLLM is as we need it."""
    import vllm
    from vllm.config import model
    from vllm.model_executor.layers import rotary_embedding

    problems = _missing(rotary_embedding, "get_rope", _GET_ROPE)
    problems += _missing(model, "_get_and_verify_max_len", _MAX_LEN)
    classes = {method.vllm_class: tuple(method.vllm_arguments) for method in METHODS.values()}
    for name, arguments in classes.items():
        problems += _missing(rotary_embedding, name, _COMMON + arguments)
    where = rotary_embedding.__name__
    if not isinstance(getattr(rotary_embedding, "_ROPE_DICT", None), dict):
        problems.append(f"{where}._ROPE_DICT is no dictionary")
    base = getattr(rotary_embedding, "RotaryEmbedding", None)
    if base is not None and not hasattr(base, "_compute_cos_sin_cache"):
        problems.append(f"{where}.RotaryEmbedding has no method _compute_cos_sin_cache")
    if problems:
        raise VLLMInterfaceError(
            f"vLLM {vllm.__version__} differs from what the resonance_rope plugin needs: "
            f"{'; '.join(problems)}. Tested with vLLM {', '.join(TESTED_VERSIONS)}; to run this "
            "vLLM without the plugin set VLLM_PLUGINS to the plugins you want, without "
            "resonance_rope"
        )


def _missing(module: Any, name: str, parameters: tuple[str, ...]) -> list[str]:
    """What `module.name` lacks, as sentences."""
    where = f"{module.__name__}.{name}"
    if getattr(module, name, None) is None:
        return [f"{where} does not exist"]
    known = inspect.signature(getattr(module, name)).parameters
    return [f"{where} has no parameter {p}" for p in parameters if p not in known]


def _check_version() -> None:
    import vllm

    if vllm.__version__.split("+")[0] not in TESTED_VERSIONS:
        logger.warning(
            "resonance_rope: vLLM %s is not in the list of tested versions (%s); its interface "
            "looks right",
            vllm.__version__,
            ", ".join(TESTED_VERSIONS),
        )


def _replace(original: Callable[..., Any], wrap: Callable[..., Callable[..., Any]]) -> None:
    """Put a wrapper wherever vLLM's function is referenced already, its own module included."""
    name, wrapper = original.__name__, wrap(original)
    for loaded_name, loaded in list(sys.modules.items()):
        if loaded_name.startswith("vllm") and vars(loaded).get(name) is original:
            setattr(loaded, name, wrapper)


def _wrap_get_rope(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def get_rope(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        rope_parameters = call.arguments["rope_parameters"] or {}
        if not is_ours(rope_parameters.get("rope_type")):
            return original(*args, **kwargs)
        return _own_rope(call.arguments)

    return get_rope


def _own_rope(arguments: Mapping[str, Any]) -> Any:
    """Build (or find) the embedding for a call of `get_rope` with one of our types."""
    import torch
    from vllm.config import get_current_vllm_config_or_none
    from vllm.model_executor.layers.rotary_embedding import _ROPE_DICT

    from resonance_vllm.vllm_rotary import build

    rope_parameters = dict(arguments["rope_parameters"])
    if arguments.get("dual_chunk_attention_config") is not None:
        raise RopeConfigError(
            "dual_chunk_attention_config: cannot be combined with rope_type "
            f"{rope_parameters['rope_type']!r}; allowed: models with one RoPE over all positions"
        )
    # vLLM writes an explicit size of the rotated part here for some models.
    rope_dim = rope_parameters.pop("rope_dim", None)
    spec = RopeSpec.from_dict(rope_parameters)
    head_size = arguments["head_size"]
    engine = get_current_vllm_config_or_none()
    served = None if engine is None else engine.model_config
    request = {
        "head_size": head_size,
        "rotary_dim": rope_dim or int(head_size * spec.method.partial_rotary_factor),
        "max_position": arguments["max_position"],
        "is_neox_style": arguments["is_neox_style"],
        "dtype": arguments.get("dtype") or torch.get_default_dtype(),
        "served_length": None if served is None else int(served.max_model_len),
    }
    key = ("resonance_vllm", spec, *request.values())
    if key not in _ROPE_DICT:
        _ROPE_DICT[key] = table = build(spec, **request)
        logger.info("rope_type %s: %d positions in the cos/sin cache", spec.rope_type, table.rows)
    return _ROPE_DICT[key]


def _wrap_max_len(original: Callable[..., int]) -> Callable[..., int]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def get_and_verify_max_len(*args: Any, **kwargs: Any) -> int:
        call = signature.bind(*args, **kwargs)
        config = call.arguments["hf_config"]
        own = own_settings(config)
        if not own:
            _check_stock(config)
            return original(*args, **kwargs)
        check_model(config)
        limit = served_limit(own, config, call.arguments.get("max_model_len"))
        # vLLM multiplies unknown types by their factor, whether max_position_embeddings has it
        # already or not. It gets the finished limit and a type that it leaves alone.
        plain = copy.copy(config)
        plain.rope_parameters = {"rope_type": "default", "rope_theta": own[0].method.rope_theta}
        arch = copy.copy(call.arguments["model_arch_config"])
        name = "original_max_position_embeddings * factor"
        object.__setattr__(arch, "derived_max_model_len_and_key", (limit, name))
        call.arguments.update(hf_config=plain, model_arch_config=arch)
        return original(*call.args, **call.kwargs)

    return get_and_verify_max_len


def own_settings(config: Any) -> list[RopeSpec]:
    """Settings of a transformers config that we answer for, one for each layer type with them.

    Raises:
        RopeConfigError: they are wrong, or the model has MLA or multi-axis RoPE.
    """
    ours = [rope for rope in rope_dictionaries(config) if is_ours(rope.get("rope_type"))]
    if ours:
        ModelPositions.of(config.to_dict()).check_family()
    # vLLM writes an explicit size of the rotated part into some.
    return [RopeSpec.from_dict({k: v for k, v in r.items() if k != "rope_dim"}) for r in ours]


def check_model(config: Any) -> None:
    """Refuse a model without RoPE, on which our types would do nothing, before a worker starts."""
    try:
        fresh: Any = type(config)()
    except Exception:  # noqa: BLE001 - a config class that cannot be made bare tells nothing
        return
    if getattr(config, "alibi", False) or not any(
        hasattr(fresh, name) for name in ("rope_parameters", "rope_theta", "rope_scaling")
    ):
        raise RopeConfigError(
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
        asked = requested if spec.method.follows_length else None
        limits.append(length_limit(model, spec, asked))
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
    """Point out settings that vLLM will run as something else than they say.

    Raises:
        RopeConfigError: `yarn` with the paper's ramp, which vLLM does not know and would leave out.
    """
    for rope in rope_dictionaries(config):
        rope_type = rope.get("rope_type")
        if rope_type in _VLLM_MEANING:
            _warn_once(f"rope_type {rope_type} is vLLM's own: {_VLLM_MEANING[rope_type]}")
        refuse_ignored_keys(rope, "vLLM")
        if rope_type not in (None, "default") and rope.get("rope_theta") is None:
            _warn_once(
                f"rope_parameters of type {rope_type} without rope_theta: vLLM's model code falls "
                "back to a base of its own (10000 for most)"
            )
