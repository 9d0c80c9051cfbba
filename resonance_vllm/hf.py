"""RoPE in transformers: our types in its registry, and one function that gives them to a model.

`register()` puts our types where transformers looks for its own, so that they work in config.json.
`apply_rope(model, spec)` gives a loaded model other settings, as often as one likes. It puts a hook
behind each rotary module that needs what a function of the registry cannot give (the exact phase,
frequencies of each row's own length, float32 cos and sin), and compares what every module answers
with what was asked. `load` is the one loader of the product.
"""

import contextlib
import copy
import functools
import inspect
import logging
import math
import sys
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from resonance_vllm import hf_maps
from resonance_vllm.config import ROPE_PRECISIONS, ModelPositions, with_rope
from resonance_vllm.core import frequencies
from resonance_vllm.core.frequencies import Rotation
from resonance_vllm.core.maps import MappedMethod
from resonance_vllm.core.spec import LENGTH, METHODS, OWN_TYPES, RopeRequest, RopeSpec
from resonance_vllm.errors import RopeConfigError, one_of
from resonance_vllm.hf_hooks import InFloat32, Turning, ask, places_of, remove_hooks
from resonance_vllm.hub import read_config
from resonance_vllm.positions import (
    Settings,
    by_layer,
    of_present_layers,
    pairs_whole_heads,
    text_config,
    windowed,
)
from resonance_vllm.verify import NoRope, RotaryReport, Turns, differences, refusal

logger = logging.getLogger(__name__)

_FOLLOWED = "families whose model code follows rope_parameters"
_WRITTEN = ("rope_parameters", "max_position_embeddings", LENGTH, "head_dim")
"""Attributes of a config that settings change."""
_OF_LOADING = ("dtype", "torch_dtype", "quantization_config")
"""Attributes of a config that `from_pretrained` takes itself."""
_LOADED = "_rope_loaded"
"""Attribute of a model: its configs, and what they held of `_WRITTEN` when it was loaded."""
# What model code raises on settings that it does not know, and past the trained length.
_CODE_ERRORS = (AttributeError, LookupError, NameError, RuntimeError, TypeError, ValueError)


@functools.cache
def register() -> None:
    """Add our types to transformers; a second call does nothing."""
    ROPE_INIT_FUNCTIONS.update(dict.fromkeys(OWN_TYPES, _rope_function))
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
        arguments: of its `from_pretrained`, and attributes of the config.

    Raises:
        RopeConfigError: the model does not turn as asked.
    """
    register()
    hub = ("revision", "trust_remote_code", "token", "cache_dir", "subfolder")
    config = arguments.pop("config", None) or AutoConfig.from_pretrained(
        path, **{key: arguments[key] for key in hub if key in arguments}
    )
    for key in [key for key in arguments if key in vars(config) and key not in _OF_LOADING]:
        setattr(config, key, arguments.pop(key))
    shipped, spec = copy.deepcopy(config), _spec(rope)
    if spec is not None:
        with_rope(config, spec.to_dict(), limit)
    model = auto_class.from_pretrained(path, config=config, **arguments)
    _applied(model, spec, shipped, precision)
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
        What each module turns by, up to the trained length.

    Raises:
        RopeConfigError: a module turns by something else, and is named; or no module reads the
            settings. The model then turns as it was loaded.
    """
    register()
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    settings, first = _spec(spec), _LOADED not in vars(inner)
    loaded: list[tuple[Any, dict[str, Any]]] = vars(inner).setdefault(_LOADED, _kept(inner))
    for config, values in loaded:
        for key, value in values.items():
            setattr(config, key, copy.deepcopy(value))
    shipped = copy.deepcopy(inner.config)
    try:
        for config, _ in loaded if settings is not None else ():
            with_rope(config, settings.to_dict())  # type: ignore[union-attr]
        _build_rotary_modules_again(inner)
        if settings is not None or not first:
            _scale_scores_again(inner)
        return _applied(inner, settings, shipped, precision)
    except RopeConfigError:
        if settings is not None:
            apply_rope(inner, None, precision)
        raise


def report_of_checkpoint(
    path: str, rope: RopeSpec | None = None, limit: int | None = None
) -> list[RotaryReport]:
    """The rotations that transformers builds for a checkpoint, one entry a module and layer type.

    Weights and tokenizer are not read.

    Raises:
        NoRope: the model has no RoPE, or transformers does not know the model.
        RopeConfigError: the config cannot be read, or a module does not turn as asked.
    """
    register()
    config = read_config(path)
    if isinstance(config, Mapping):
        version, kind = transformers.__version__, config.get("model_type")
        raise NoRope(f"transformers {version} does not know model type {kind!r}")
    shipped = copy.deepcopy(config)
    if rope is not None:
        with_rope(config, rope.to_dict(), limit)
    try:
        built = on_meta(config)
    except _CODE_ERRORS as error:
        raise NoRope(
            f"rope_type: the code of {type(config).__name__} does not build with it: "
            f"{type(error).__name__}: {error}"
        ) from error
    reports = _applied(built, rope, shipped, "model")
    if not reports:
        raise NoRope(f"{type(config).__name__} builds no rotary module: a model without RoPE")
    return reports


def on_meta(config: Any) -> Any:
    """The model of a config with its weights on the meta device.

    Of the text model, where parts for images or audio need a package that is not installed.
    """
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
    for mapping in ("CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "MASKED_LM", None):
        name = f"MODEL_FOR_{mapping}_MAPPING" if mapping else "MODEL_MAPPING"
        found = getattr(transformers, name).get(type(config), None)
        # For images on text a list may name the class of the text model, which takes its config.
        if found is not None and isinstance(config, found.config_class or object):
            return found
    module = type(config).__module__.replace("configuration_", "modeling_")
    for found in vars(__import__(module, fromlist=["_"])).values():
        if isinstance(found, type) and getattr(found, "config_class", None) is type(config):
            return found
    raise NoRope(f"transformers has no model class for {type(config).__name__}")


# What is asked, from a config.


def spec_of(config: Any, rope: Mapping[str, Any]) -> RopeSpec:
    """The settings in a dictionary of a config, with the lengths that the config knows.

    Keys of the model's own may stand beside those of the method.

    Raises:
        RopeConfigError: a value is wrong, or a key is a misspelt one of the method.
    """
    kind = RopeRequest.from_dict({"rope_type": rope.get("rope_type", rope.get("type"))}).type
    known, given = kind.key_names(), dict[str, Any]()
    for key, value in rope.items():
        if key not in _every_key() and (near := get_close_matches(key, known, 1, 0.88)):
            raise RopeConfigError(f"{key}: unknown setting; did you mean {near[0]!r}?")
        if key in known and value is not None:
            given[key] = value
    positions = getattr(config, "max_position_embeddings", None)
    original = getattr(config, LENGTH, None) or positions
    if LENGTH in known:
        if LENGTH not in given and original is not None:
            given[LENGTH] = int(original)
        if LENGTH in given:
            kind.method.fill(given, int(positions or given[LENGTH]))
    return RopeSpec.of(kind, given)


@functools.cache
def _every_key() -> frozenset[str]:
    return frozenset(key for method in METHODS.values() for key in method.key_names())


def rotation_of(
    config: Any, layer_type: str | None, length: int | None = None
) -> tuple[RopeSpec, Rotation, float]:
    """What a rotary module of a config is asked to turn by: settings, rotation, attention factor.

    The base method is computed by transformers' own function, so that rotated sizes and attention
    factors are those of the family.

    Args:
        config: of the language model.
        layer_type: key of its settings by layer type; None where there is one for all layers.
        length: of the sequence in tokens, for methods that follow it.

    Raises:
        RopeConfigError: the settings are wrong.
    """
    spec = spec_of(config, by_layer(config)[layer_type])
    shown, by_library = _stock_config(config, layer_type, spec)
    found, scale = _library_turns(shown, layer_type, length)
    if spec.is_stock:  # to the bit
        return spec, frequencies.rotation(spec, found.double()), scale
    base = frequencies.base_frequencies(spec, found, length, by_library=by_library)
    return spec, frequencies.rotation(spec, base), scale if by_library else spec.method.scale()


def _stock_config(config: Any, kind: str | None, spec: RopeSpec) -> tuple[Any, bool]:
    """A copy of a config with stock settings, and whether they are those of the base method.

    Else they are plain ones, which the method changes.
    """
    rope, name = by_layer(config)[kind], spec.method.name
    by_library = spec.base_is_stock
    if name != "proportional" and pairs_whole_heads(config) and rope.get("partial_rotary_factor"):
        by_library, name = False, "proportional"  # Gemma 4: a part of the features stands still
    elif not by_library:
        name = "default"
    ours = {"type", "ramp", *(spec.method.key_names() if not by_library else ())}
    ours = ours - {"rope_theta", "partial_rotary_factor"} | set(spec.method.hf_warns_of)
    stock = {key: value for key, value in rope.items() if key not in ours} | {"rope_type": name}
    shown = _with_settings(config, kind, stock)
    if spec.method.follows_length and spec.method.trained_length is not None:
        shown.max_position_embeddings = spec.method.trained_length
    return shown, by_library


def _with_settings(config: Any, kind: str | None, rope: Settings) -> Any:
    """A copy of a config with other settings of a layer type."""
    shown = copy.copy(config)
    shown.rope_parameters = rope if kind is None else {**config.rope_parameters, kind: rope}
    if vars(shown).get("head_dim", 0) is None:  # Mixtral: transformers' functions multiply None
        shown.head_dim = shown.hidden_size // shown.num_attention_heads
    return shown


def _library_turns(config: Any, kind: str | None, length: int | None = None) -> Turns:
    """What transformers' function of a stock type computes for a config."""
    rope = by_layer(config)[kind]
    if rope["rope_type"] == "default":  # which is no function of the registry
        config = _with_settings(config, kind, rope | {"rope_type": "linear", "factor": 1.0})
    function = ROPE_INIT_FUNCTIONS[by_layer(config)[kind]["rope_type"]]
    with torch.device("cpu"), _float32():
        return Turns(*function(config, "cpu", seq_len=length, layer_type=kind))


def _rope_function(
    config: Any, device: Any = None, seq_len: Any = None, layer_type: str | None = None
) -> tuple[Tensor, float]:
    """The entry of each of our types in transformers' registry: float32 frequencies, factor."""
    length = None if seq_len is None else int(seq_len)
    _, rotation, scale = rotation_of(config, layer_type, length)
    target = torch.get_default_device() if device is None else device
    return rotation.inv_freq.to(target, torch.float32), scale


@contextlib.contextmanager
def _float32() -> Iterator[None]:
    """The default dtype while a model is built is the model's; frequencies are float32."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


# What a model holds.


def layer_types(module: nn.Module) -> list[str | None]:
    """The rotations of a module; None is the name of a single one, [] of no rotary module.

    Falcon's code makes a rotary module beside ALiBi too, and does not use it.
    """
    config = getattr(module, "config", None)
    other = getattr(config, "position_embedding_type", None) in ("nope", "absolute")
    if other or getattr(config, "alibi", False):
        return []
    if "inv_freq" in module._buffers:
        return [None] if hasattr(module, "rope_type") else []
    end = "_original_inv_freq"
    return [name.removesuffix(end) for name in module._buffers if name.endswith(end)]


def rotary_modules(model: Any) -> list[tuple[str, Any]]:
    """The rotary modules of a model's text part by name, those of images and audio aside."""
    text = type(text_config(model.config)[0])
    found = [each for each in model.named_modules() if layer_types(each[1])]
    # A model made of several parts without one text model: all of them.
    return [each for each in found if isinstance(each[1].config, text)] or found


def held_turns(module: Any, kind: str | None) -> Turns:
    """What a module keeps as its frequencies, and the attention factor that it states."""
    start = "" if kind is None else f"{kind}_"
    held = getattr(module, f"{start}inv_freq").detach().cpu()
    return Turns(held, float(getattr(module, f"{start}attention_scaling", 1.0)))


def _spec(rope: RopeSpec | Mapping[str, Any] | None) -> RopeSpec | None:
    return rope if rope is None or isinstance(rope, RopeSpec) else RopeSpec.from_dict(rope)


def _kept(model: Any) -> list[tuple[Any, dict[str, Any]]]:
    """Each config of a model that its text part reads, and what settings would change in it."""
    every = [text_config(model.config)[0], *(each.config for _, each in rotary_modules(model))]
    distinct = {id(config): config for config in every}.values()
    return [
        (config, {key: vars(config)[key] for key in _WRITTEN if key in vars(config)})
        for config in copy.copy(list(distinct))
    ]


def _built(cls: Any, config: Any) -> Any:
    """A rotary module of a class made anew, on the CPU and in float32.

    Raises:
        RopeConfigError: the family's code does not take the settings.
    """
    try:
        with torch.device("cpu"), _float32(), torch.no_grad():
            return cls(config)
    except _CODE_ERRORS as error:
        raise RopeConfigError(
            f"rope_type: the code of {cls.__name__} does not build with "
            f"{config.rope_parameters}: {type(error).__name__}: {error}"
        ) from error


def _build_rotary_modules_again(model: Any) -> None:
    """Let rotary modules hold what they hold in a model made anew, whatever was read or cast."""
    for _, module in rotary_modules(model):
        remove_hooks(module)
        fresh = _built(type(module), module.config)
        device = next(iter(module._buffers.values())).device
        for key, value in vars(fresh).items():
            if not key.startswith("_") and key not in ("config", "training"):
                setattr(module, key, value.to(device) if isinstance(value, Tensor) else value)
        for key, buffer in fresh._buffers.items():
            module.register_buffer(key, buffer.to(device), persistent=False)


def _scale_scores_again(model: Any) -> None:
    """Let attention have the numbers that its constructor makes of settings (DeepSeek's scale)."""
    with torch.device("meta"):
        anew = dict(type(model)(model.config).named_modules())
    for name, module in model.named_modules():
        if hasattr(module, "layer_idx") and name in anew:
            scales = {k: v for k, v in vars(anew[name]).items() if isinstance(v, float)}
            vars(module).update({k: v for k, v in scales.items() if k in vars(module)})


def _applied(model: Any, spec: RopeSpec | None, shipped: Any, precision: str) -> list[RotaryReport]:
    """Put hooks on a model that was built with its settings, and compare.

    Args:
        model: its configs hold the settings.
        spec: those that were asked for. None, or what is shipped, runs what the config says;
            transformers' own types are not compared then.
        shipped: the model's config without them.
        precision: as for `apply_rope`.
    """
    one_of("rope_precision", precision, ROPE_PRECISIONS, RopeConfigError)
    if spec is not None and ModelPositions.of_config(shipped).ships(spec):
        spec = None
    reports: list[RotaryReport] = []
    hf_maps.remove(model)
    wanted = _asked(text_config(model.config)[0], every=spec is not None)
    hooks: list[tuple[Any, Turning | None]] = []
    for name, module in rotary_modules(model):
        remove_hooks(module)
        rope = by_layer(module.config)
        for kind in layer_types(module):
            if kind in wanted and kind in rope:
                wanted[kind] = True
                hook, held = _as_asked(name, module, kind, shipped)
            else:
                hook, held = _as_shipped(module, kind)
            hooks.append((module, hook))
            inv_freq, scale = tuple(held.inv_freq.tolist()), held.attention_factor
            exact = hook is not None and hook.exact
            reports.append(RotaryReport(name, kind, inv_freq, scale, exact))
    if not all(wanted.values()):
        raise _reached_none(model, reports)
    if wanted and getattr(model.config, "is_encoder_decoder", False):
        raise RopeConfigError(
            f"rope_type: the settings would reach the decoder of {type(model).__name__}, not the "
            "encoder that reads its text; allowed: models without such an encoder"
        )
    for module, hook in hooks:
        if hook is not None:
            hook.to(next(iter(module._buffers.values())).device)
            module.register_forward_hook(hook, with_kwargs=True)
            if isinstance(hook.method, MappedMethod):
                hf_maps.install(model, module, hook)
    _set_precision(model, precision)
    return reports


def _asked(text: Any, *, every: bool) -> dict[str | None, bool]:
    """The layer types whose settings were asked for; False: no module is known to read them."""
    return {
        kind: False
        for kind, rope in of_present_layers(text).items()
        if not windowed(kind) and (every or _is_ours(rope))
    }


def _is_ours(rope: Mapping[str, Any]) -> bool:
    """Whether a dictionary has a type of ours, or a ramp that transformers does not know."""
    return rope.get("rope_type") in OWN_TYPES or rope.get("ramp", "dimension") != "dimension"


def _as_asked(
    name: str, module: Any, kind: str | None, shipped: Any
) -> tuple[Turning | None, Turns]:
    """The hook that a module needs to turn as its config says, and what it answers then.

    Raises:
        RopeConfigError: it turns by something else.
    """
    cls, config = type(module), module.config
    spec, rotation, scale = rotation_of(config, kind)
    features = _features_as_shipped(module, kind, shipped)
    built = _built(cls, config)
    wrong = _failing(built, kind, spec)
    if wrong:
        raise refusal(spec, f"{name} ({cls.__name__})", wrong, held_turns(built, kind), _FOLLOWED)
    hook = _hook(built, kind, spec, rotation, scale)
    if hook is not None:
        built.register_forward_hook(hook, with_kwargs=True)
    held = _answered(built, kind, hook)
    wrong = _of_the_family(cls, config, kind, spec, features)
    wrong += differences(held, Turns(rotation.inv_freq, scale), features=features)
    if wrong:
        raise refusal(spec, f"{name} ({cls.__name__})", wrong, held, _FOLLOWED)
    return hook, held if hook is None else Turns(rotation.inv_freq, scale)


def _as_shipped(module: Any, kind: str | None) -> tuple[Turning | None, Turns]:
    """What a module holds that nothing was asked of.

    One of transformers' types that follow the length is given a hook too: its own frequencies are
    those of the longest sequence that it has read so far.
    """
    built = _built(type(module), module.config)
    try:
        held = _answered(built, kind, None)
    except _CODE_ERRORS:
        return None, held_turns(built, kind)
    try:
        spec, rotation, scale = rotation_of(module.config, kind)
        if not differences(held, Turns(rotation.inv_freq, scale)) and spec.is_stock:
            return _hook(built, kind, spec, rotation, scale), held
    except (KeyError, RopeConfigError):  # settings of the model's own
        pass
    return None, held


def _hook(
    built: Any, kind: str | None, spec: RopeSpec, rotation: Rotation, scale: float
) -> Turning | None:
    """What a rotary module, here a new one on the CPU, needs beside its own frequencies."""
    method = spec.method
    switch = method.switch_length
    if spec.is_stock and switch is None and not method.follows_length:
        return None
    hook = Turning(kind, method, rotation, scale, *places_of(built, kind, len(rotation.inv_freq)))
    if method.follows_length:
        hook.switch = method.trained_length or built.config.max_position_embeddings
        hook.at_length = functools.partial(_rotation_at, built.config, kind)
    elif switch is not None:
        hook.switch, hook.beyond = switch, _rotation_at(built.config, kind, switch + 1)
    return hook


def _rotation_at(config: Any, kind: str | None, length: int) -> Rotation:
    return rotation_of(config, kind, length)[1]


def _answered(built: Any, kind: str | None, hook: Turning | None) -> Turns:
    """What a module on the CPU turns by at position 1: read from its answer, where that is ours."""
    kept = held_turns(built, kind)
    angles, amplitudes = ask(built, kind, torch.ones(1, 1, dtype=torch.int64))
    scale, stated = float(amplitudes.max()), kept.attention_factor
    # What the module states has more digits, where it is what it multiplies by.
    scale = stated if math.isclose(stated, scale, rel_tol=1e-5) else scale
    if hook is None:
        return Turns(kept.inv_freq, scale)
    order = hook.places.tolist()
    return Turns(angles[[order.index(j) for j in range(max(order) + 1)]], scale)


def _features_as_shipped(module: Any, kind: str | None, shipped: Any) -> int | None:
    """How many features turn with the settings that were replaced; None if that is unknown."""
    before, text = copy.copy(module.config), text_config(shipped)[0]
    for key in _WRITTEN:
        if key in vars(text):
            setattr(before, key, vars(text)[key])
    rope = by_layer(before).get(kind) or {}
    if str(rope.get("rope_type")).endswith("proportional") and not pairs_whole_heads(before):
        before = _with_settings(before, kind, rope | {"rope_type": "default"})
    try:
        return len(held_turns(_built(type(module), before), kind).inv_freq)
    except (AttributeError, RopeConfigError):  # a type of the model's own
        return None


def _of_the_family(
    cls: Any, config: Any, kind: str | None, spec: RopeSpec, features: int | None
) -> list[str]:
    """How a family's code makes other frequencies of stock settings than transformers' functions.

    Such code would ignore a type of ours, or lose keys of its own beside it (HunYuan's `alpha`).
    """
    shown, by_library = _stock_config(config, kind, spec)
    found = _library_turns(shown, kind)
    held = held_turns(_built(cls, shown), kind)
    if not by_library and len(held.inv_freq) != len(found.inv_freq) == features:
        return []  # Mistral 4 makes plain features of whole heads, and turns a part of each
    wrong = differences(held, found)
    if not wrong and by_library and spec.method.name != "default":
        wrong = differences(held, spec.method)
    return wrong


def _failing(built: Any, kind: str | None, spec: RopeSpec) -> list[str]:
    """How code fails with its settings: at once, or past the length at which others apply."""
    trained, method = spec.method.trained_length, spec.method
    lengths = [1]
    if trained is not None and (method.follows_length or method.switch_length):
        lengths += [2 * trained, 2 * trained + 1]  # some code fails at the last one only
    for length in lengths:
        try:
            ask(built, kind, torch.tensor([[length - 1]]))
        except _CODE_ERRORS as error:
            return [f"its code fails at {length} tokens: {type(error).__name__}: {error}"]
    return []


def _reached_none(model: Any, reports: list[RotaryReport]) -> NoRope:
    held = ", ".join(f"{each.module} ({each.layer_type or 'all layers'})" for each in reports)
    return NoRope(
        f"rope_parameters: would be ignored: {type(model).__name__} of model_type "
        f"{getattr(model.config, 'model_type', None)!r} has no rotary module that reads them"
        + (f"; {held} holds its own" if held else "")
    )


# The precision of rotation.


def _set_precision(model: Any, precision: str) -> None:
    used = "model"
    if precision == "float32":
        if rotary_modules(model) and _rotations_give_back(model):
            used = "float32"
            for _, module in rotary_modules(model):
                module.register_forward_pre_hook(InFloat32(), with_kwargs=True)
        else:
            logger.warning(
                "rope_precision: %s rotates in its own precision, not in float32: its code has no "
                "rotation that takes cos and sin",
                type(model).__name__,
            )
    model.rope_precision_used = used


def _rotations_give_back(model: nn.Module) -> bool:
    """Let a family's rotations, given float32 cos and sin, answer in the dtype of q and k.

    The functions are replaced in their modules by ones that do the same where dtypes agree. Returns
    whether there are any.
    """
    found = False
    for name in {type(module).__module__ for module in model.modules()}:
        source = sys.modules[name]
        for key, value in list(vars(source).items()) if ".modeling_" in name else ():
            if inspect.isfunction(value) and _is_rotation(value):
                found = True
                if not hasattr(value, "_gives_back"):
                    setattr(source, key, _giving_back(value))
    return found


def _is_rotation(function: Any) -> bool:
    names = set(inspect.signature(function).parameters)
    return names >= {"cos", "sin"} or "freqs_cis" in names


def _giving_back(original: Any) -> Any:
    @functools.wraps(original)
    def rotate(*args: Any, **kwargs: Any) -> Any:
        dtype = next(each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)).dtype
        turned = original(*args, **kwargs)
        if dtype not in (torch.bfloat16, torch.float16):
            return turned
        if isinstance(turned, Tensor):
            return turned.to(dtype)
        return tuple(each.to(dtype) if each.is_floating_point() else each for each in turned)

    rotate._gives_back = True  # type: ignore[attr-defined]
    return rotate
