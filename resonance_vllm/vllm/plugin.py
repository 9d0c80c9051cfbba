"""vLLM general plugin: our rope types in every process of the engine.

vLLM has no extension point for rope types. It calls `register` in each of its processes before any
model file is imported; there the few functions of `HOOKS` are wrapped, so that a model with a
request for a type of ours gets it, or is refused. Every other model goes to vLLM untouched, also on
a vLLM whose interface we do not know. Without the plugin our types are unknown to vLLM, which
refuses them.
"""

import functools
import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any

from resonance_vllm.positions import by_layer
from resonance_vllm.vllm import hooks
from resonance_vllm.vllm.hooks import Wrapped
from resonance_vllm.vllm.request import has_ours, logger

_ROPE = "vllm.model_executor.layers.rotary_embedding"
HOOKS: dict[tuple[str, str], tuple[tuple[str, ...], Callable[[Wrapped], Wrapped]]] = {
    (_ROPE, "get_rope"): (
        (
            "head_size",
            "max_position",
            "is_neox_style",
            "rope_parameters",
            "dtype",
            "mrope_positions_factor",
        ),
        hooks.wrap_get_rope,
    ),
    ("vllm.model_executor.model_loader.utils", "initialize_model"): (
        ("vllm_config", "model_config"),
        hooks.wrap_initialize_model,
    ),
    ("vllm.config.model", "_get_and_verify_max_len"): (
        ("hf_config", "model_arch_config", "max_model_len"),
        hooks.wrap_max_len,
    ),
    ("vllm.config.model", "ModelConfig._apply_dict_overrides"): (
        ("config", "overrides"),
        hooks.wrap_overrides,
    ),
    ("vllm.engine.arg_utils", "EngineArgs.create_speculative_config"): (
        ("target_model_config",),
        hooks.wrap_speculative,
    ),
}
"""What is wrapped -> the parameters that we rely on, and the wrapper."""


class VLLMInterfaceError(RuntimeError, ValueError):
    """The installed vLLM lacks something that the plugin builds on."""


@functools.cache
def register() -> None:
    """Make our rope types known to vLLM in this process; calling it again changes nothing.

    A vLLM that differs from what we build on serves every model that does not ask for our types,
    and refuses the others with what differs.
    """
    problems = interface_problems()
    if problems:
        _refuse_all(problems)
        return
    from resonance_vllm import hf

    # For configs that transformers reads, and for models that vLLM runs through its modules.
    hf.register()
    for (module, name), (_, wrap) in HOOKS.items():
        put(module, name, wrap)


def interface_problems() -> list[str]:
    """What the installed vLLM lacks of what the plugin builds on, as sentences."""
    problems = [
        problem
        for (module, name), (parameters, _) in HOOKS.items()
        for problem in _missing(module, name, parameters)
    ]
    cache = _found(_ROPE, "_ROPE_DICT")
    if not isinstance(cache, dict):
        problems.append(f"{_ROPE}._ROPE_DICT is no dictionary")
    if not isinstance(_found(_ROPE, "YaRNScalingRotaryEmbedding"), type):
        problems.append(f"{_ROPE}.YaRNScalingRotaryEmbedding is no class")
    return problems


def _found(module: str, name: str) -> Any:
    """What stands under a dotted name of a module, None if nothing does."""
    try:
        return functools.reduce(getattr, name.split("."), importlib.import_module(module))
    except (ImportError, AttributeError):
        return None


def _missing(module: str, name: str, parameters: tuple[str, ...]) -> list[str]:
    """What a function lacks, as sentences."""
    where, found = f"{module}.{name}", _found(module, name)
    if not callable(found):
        return [f"{where} does not exist"]
    known = inspect.signature(found).parameters
    return [f"{where} has no parameter {p}" for p in parameters if p not in known]


def _refuse_all(problems: list[str]) -> None:
    """Let this vLLM serve what does not ask for our types; anything else is an error."""
    import vllm

    message = (
        f"vLLM {getattr(vllm, '__version__', '(unknown version)')} differs from what the "
        f"resonance_rope plugin needs: {'; '.join(problems)}"
    )
    logger.warning("%s. Models that do not ask for its rope types run as always", message)

    def refusing(original: Wrapped) -> Wrapped:
        @functools.wraps(original)
        def checked(*args: Any, **kwargs: Any) -> Any:
            if any(_has_request(value) for value in (*args, *kwargs.values())):
                raise VLLMInterfaceError(
                    f"{message}; allowed here: rope types that vLLM has itself, or an older vLLM"
                )
            return original(*args, **kwargs)

        return checked

    for module, name in HOOKS:
        if callable(_found(module, name)):
            put(module, name, refusing)


def _has_request(value: Any) -> bool:
    """Whether an argument of vLLM, a dictionary or a config, requests a type of ours."""
    configs = [value, getattr(value, "hf_config", None), getattr(value, "hf_text_config", None)]
    inner = getattr(value, "model_config", None)
    configs += [getattr(inner, "hf_config", None), getattr(inner, "hf_text_config", None)]
    ropes = [rope for config in configs for rope in by_layer(config).values()]
    return any(has_ours(each) for each in (value, *ropes))


def put(module: str, name: str, wrap: Callable[[Wrapped], Wrapped]) -> None:
    """Put a wrapper in place of a function, wherever vLLM references it already."""
    original = _found(module, name)
    owner, _, attribute = name.rpartition(".")
    wrapper = wrap(original)
    if owner:
        setattr(_found(module, owner), attribute, wrapper)
        return
    for loaded_name, loaded in list(sys.modules.items()):
        if loaded_name.startswith("vllm") and vars(loaded).get(name) is original:
            setattr(loaded, name, wrapper)
