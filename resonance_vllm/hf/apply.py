"""RoPE in transformers: our types in its registry, and one function that gives them to a model.

`apply_rope` puts a hook behind each rotary module that needs what a function of the registry cannot
give (the exact phase, frequencies of each row's own length, float32 cos and sin), and compares what
every module answers with what was asked. `load` is the one loader of the product.
"""

import copy
import functools
import importlib
import inspect
import logging
import sys
from collections.abc import Mapping
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from resonance_vllm.checkpoint.config import (
    ROPE_PRECISIONS,
    VERIFY_ROPE_KEY,
    PositionConfig,
    is_windowed,
    language_model_config,
    rope_by_layer_type,
    rope_of_present_layers,
    with_rope,
)
from resonance_vllm.common.errors import RopeConfigError, check_choice
from resonance_vllm.common.hub import read_config
from resonance_vllm.core.remapping import RemappedMethod
from resonance_vllm.core.spec import OWN_TYPES, RopeSpec
from resonance_vllm.hf import remapping as hf_maps
from resonance_vllm.hf.rotary import (
    WRITTEN,
    InFloat32,
    Turning,
    built_anew,
    code_of,
    remove_hooks,
    rope_function,
    turning,
)
from resonance_vllm.verify import RotaryReport, differing_constants

logger = logging.getLogger(__name__)

_LOADED = "_rope_loaded"
"""Attribute of a model: its configs, and what they held of `WRITTEN` when it was loaded."""


@functools.cache
def register() -> None:
    """Add our types to transformers; a second call does nothing."""
    ROPE_INIT_FUNCTIONS.update(dict.fromkeys(OWN_TYPES, rope_function))
    for name in OWN_TYPES:  # without one transformers warns that it cannot check the type
        setattr(PreTrainedConfig, f"_validate_{name}_rope_parameters", lambda *_, **__: None)


def load(
    path: str,
    rope: RopeSpec | Mapping[str, Any] | None = None,
    *,
    precision: str = "model",
    limit: int | None = None,
    auto_class: Any = AutoModelForCausalLM,
    **arguments: Any,
) -> Any:
    """A checkpoint's model with RoPE settings.

    Args:
        path: checkpoint folder or hub name.
        rope: complete settings; None runs the checkpoint as it is.
        precision: as for `apply_rope`.
        limit: longest sequence in tokens, written into the config beside the settings.
        auto_class: of transformers.
        arguments: of its `from_pretrained`; a `config` among them is changed.

    Raises:
        RopeConfigError: the model does not turn as asked.
    """
    register()
    hub = ("revision", "trust_remote_code", "token", "cache_dir", "subfolder")
    config = arguments.pop("config", None) or AutoConfig.from_pretrained(
        path, **{key: arguments[key] for key in hub if key in arguments}
    )
    spec = _to_apply(rope, config)
    if spec is not None:
        with_rope(config, spec.to_dict(), limit)
    model = auto_class.from_pretrained(path, config=config, **arguments)
    _applied(model, spec, precision)
    return model


def apply_rope(
    model: Any, spec: RopeSpec | Mapping[str, Any] | None = None, precision: str = "model"
) -> list[RotaryReport]:
    """Let a loaded model turn by other settings, and compare what every module answers.

    It may be called again with others. The numbers are those of a model that was loaded with the
    settings, bit for bit. The config is changed, so that a saved model has them.

    Args:
        model: of transformers, or of PEFT around one.
        spec: complete settings; None is what the model was loaded with.
        precision: `float32` computes cos, sin and the rotation of q and k in float32; `model` in
            the dtype of the activations. The model's `rope_precision_used` is what it does.

    Returns:
        What each module turns by, up to the native context length.

    Raises:
        RopeConfigError: a module turns by something else, and is named; or no module reads the
            settings. The model then turns as it was loaded.
    """
    register()
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    as_built = _LOADED not in vars(inner) and spec is None
    loaded: list[tuple[Any, dict[str, Any]]] = vars(inner).setdefault(_LOADED, _kept(inner))
    for config, values in loaded:
        for key, value in values.items():
            setattr(config, key, copy.deepcopy(value))
    try:
        settings = _to_apply(spec, inner.config)
        if settings is not None:
            for config, _ in loaded:
                with_rope(config, settings.to_dict())
        _build_rotary_modules_again(inner)
        if not as_built:
            with torch.device("meta"):
                again = type(inner)(inner.config)
            for module, key, number, _ in differing_constants(inner, again):
                setattr(module, key, number)  # made of settings by a constructor (DeepSeek's scale)
        return _applied(inner, settings, precision)
    except RopeConfigError:
        if spec is not None:
            apply_rope(inner, None, precision)
        raise


def report_of_checkpoint(
    path: str, rope: RopeSpec | None = None, limit: int | None = None
) -> list[RotaryReport]:
    """The rotations that transformers builds for a checkpoint, without reading its weights.

    A RopeConfigError says that it does not know the model, or how a module does not turn as asked.
    """
    register()
    config = read_config(path)
    if isinstance(config, Mapping):
        version, kind = transformers.__version__, config.get("model_type")
        raise RopeConfigError(f"transformers {version} does not know model type {kind!r}")
    spec = _to_apply(rope, config)
    if spec is not None:
        with_rope(config, spec.to_dict(), limit)
    with code_of(type(config)):
        built = on_meta(config)
    reports = _applied(built, spec, "model")
    if not reports:
        raise RopeConfigError(f"{type(config).__name__} builds no rotary module")
    return reports


def on_meta(config: Any) -> Any:
    """The model of a config on the meta device; its text model where others need a package."""
    text = config.get_text_config(decoder=True)
    with torch.device("meta"):
        try:
            return _model_class(config)(config)
        except ImportError:
            if text is config:
                raise
            return _model_class(text)(text)


def _model_class(config: Any) -> Any:
    """The class that a checkpoint names, else the one that transformers has for its config."""
    for name in getattr(config, "architectures", None) or ():
        if hasattr(transformers, str(name)):
            return getattr(transformers, name)
    for name in ("_FOR_CAUSAL_LM", "_FOR_IMAGE_TEXT_TO_TEXT", "_FOR_MASKED_LM", ""):
        found = getattr(transformers, f"MODEL{name}_MAPPING").get(type(config), None)
        # For images on text a list may name the class of the text model, which takes its config.
        if found is not None and isinstance(config, found.config_class or object):
            return found
    module = type(config).__module__.replace("configuration_", "modeling_")
    for found in vars(importlib.import_module(module)).values():  # of a text part (Step 3.5)
        if isinstance(found, type) and getattr(found, "config_class", None) is type(config):
            return found
    raise RopeConfigError(f"transformers has no model class for {type(config).__name__}")


def layer_types(module: nn.Module) -> list[str | None]:
    """The rotations of a module; None is the name of a single one, [] of no rotary module."""
    config = getattr(module, "config", None)  # Falcon has a module beside ALiBi, without using it
    other = getattr(config, "position_embedding_type", None) in ("nope", "absolute")
    if other or getattr(config, "alibi", False):
        return []
    if "inv_freq" in module._buffers:
        return [None] if hasattr(module, "rope_type") else []
    end = "_original_inv_freq"
    return [name.removesuffix(end) for name in module._buffers if name.endswith(end)]


def rotary_modules(model: Any) -> list[tuple[str, Any]]:
    """The rotary modules of a model's text part by name, those of images and audio aside."""
    text = type(language_model_config(model.config)[0])
    found = [each for each in model.named_modules() if layer_types(each[1])]
    # A model made of several parts without one text model: all of them.
    return [each for each in found if isinstance(each[1].config, text)] or found


def _to_apply(rope: RopeSpec | Mapping[str, Any] | None, shipped: Any) -> RopeSpec | None:
    """Settings to write into a config; None where it has them already."""
    spec = RopeSpec.from_dict(rope) if isinstance(rope, Mapping) else rope
    return None if spec == PositionConfig.from_config(shipped).own_spec_or_none else spec


def _kept(model: Any) -> list[tuple[Any, dict[str, Any]]]:
    """Each config of a model that its text part reads, and what settings would change in it."""
    every = [
        language_model_config(model.config)[0],
        *(each.config for _, each in rotary_modules(model)),
    ]
    return [
        (config, {key: vars(config)[key] for key in WRITTEN if key in vars(config)})
        for config in {id(config): config for config in every}.values()
    ]


def _build_rotary_modules_again(model: Any) -> None:
    """Let rotary modules hold what they hold in a model made again, whatever was read or cast."""
    for _, module in rotary_modules(model):
        remove_hooks(module)
        fresh = built_anew(type(module), module.config)
        device = next(iter(module._buffers.values())).device
        for key, value in vars(fresh).items():
            if not key.startswith("_") and key not in ("config", "training"):
                setattr(module, key, value.to(device) if isinstance(value, Tensor) else value)
        for key, buffer in fresh._buffers.items():
            module.register_buffer(key, buffer.to(device), persistent=False)


def _applied(model: Any, spec: RopeSpec | None, precision: str) -> list[RotaryReport]:
    """Put hooks on a model whose configs hold its settings, and compare.

    Types of ours are compared always, transformers' own where they were asked for: a `spec`, or
    what vLLM is given.
    """
    check_choice("rope_precision", precision, ROPE_PRECISIONS, RopeConfigError)
    hf_maps.remove(model)
    every = spec is not None or getattr(model.config, VERIFY_ROPE_KEY, False)
    ropes = rope_of_present_layers(language_model_config(model.config)[0])
    reached = {
        kind: False
        for kind, rope in ropes.items()
        if not is_windowed(kind) and (every or rope.get("rope_type") in OWN_TYPES)
    }
    what = type(model).__name__
    reports: list[RotaryReport] = []
    hooks: list[tuple[Any, Turning | None]] = []
    for name, module in rotary_modules(model):
        remove_hooks(module)
        for kind in layer_types(module):
            if asked := kind in reached and kind in rope_by_layer_type(module.config):
                reached[kind] = True
            hook, held = turning(name, module, kind, asked=asked)
            hooks.append((module, hook))
            reports.append(RotaryReport.from_state(name, kind, held))
    if not all(reached.values()):
        raise RopeConfigError(f"rope_parameters: {what} has no rotary module that reads them")
    if reached and getattr(model.config, "is_encoder_decoder", False):
        raise RopeConfigError(f"rope_type: not for the encoder of {what}, which reads its text")
    for module, hook in hooks:
        if hook is not None:
            hook.to(next(iter(module._buffers.values())).device)
            module.register_forward_hook(hook, with_kwargs=True)
            if isinstance(hook.method, RemappedMethod):
                hf_maps.install(model, module, hook)
    in_float32 = precision == "float32" and bool(hooks) and _rotations_give_back(model)
    for _, module in rotary_modules(model) if in_float32 else ():
        module.register_forward_pre_hook(InFloat32(), with_kwargs=True)
    if precision == "float32" and not in_float32:
        logger.warning("rope_precision: %s rotates in its own precision, not in float32", what)
    model.rope_precision_used = "float32" if in_float32 else "model"
    return reports


def _rotations_give_back(model: nn.Module) -> bool:
    """Let a family's rotations answer in the dtype of q and k; whether there are any.

    The functions are replaced in their modules by ones that do the same where dtypes agree.
    """
    found = False
    for name in {type(module).__module__ for module in model.modules()}:
        source = sys.modules[name]
        for key, value in list(vars(source).items()) if ".modeling_" in name else ():
            names = set(inspect.signature(value).parameters) if inspect.isfunction(value) else set()
            if names >= {"cos", "sin"} or "freqs_cis" in names:
                found = True
                if not hasattr(value, "_gives_back"):
                    setattr(source, key, _giving_back(value))
    return found


def _giving_back(original: Any) -> Any:
    @functools.wraps(original)
    def rotate(*args: Any, **kwargs: Any) -> Any:
        dtype = next(each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)).dtype
        turned = original(*args, **kwargs)
        if isinstance(turned, Tensor):
            return turned.to(dtype)
        return tuple(each.to(dtype) if each.is_floating_point() else each for each in turned)

    rotate._gives_back = True  # type: ignore[attr-defined]
    return rotate
