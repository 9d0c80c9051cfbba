"""What a rotary module of transformers is asked to turn by, and what it answers."""

import contextlib
import copy
import functools
import math
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from resonance_vllm.core import frequencies
from resonance_vllm.core.frequencies import Rotation
from resonance_vllm.core.spec import LENGTH, METHODS, RopeRequest, RopeSpec
from resonance_vllm.errors import RopeConfigError
from resonance_vllm.hf_hooks import Turning, ask, places_of
from resonance_vllm.positions import Settings, by_layer, pairs_whole_heads, text_config
from resonance_vllm.verify import Turns, differences, refusal

WRITTEN = ("rope_parameters", "max_position_embeddings", LENGTH, "head_dim")
"""Attributes of a config that settings change."""
CODE_ERRORS = (AttributeError, LookupError, NameError, RuntimeError, TypeError, ValueError)
"""What model code raises on settings that it does not know, and past the trained length."""
_FOLLOWED = "families whose model code follows rope_parameters"


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


def rope_function(
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


def built_anew(cls: Any, config: Any) -> Any:
    """A rotary module of a class made anew, on the CPU and in float32.

    Raises:
        RopeConfigError: the family's code does not take the settings.
    """
    try:
        with torch.device("cpu"), _float32(), torch.no_grad():
            return cls(config)
    except CODE_ERRORS as error:
        raise RopeConfigError(
            f"rope_type: the code of {cls.__name__} does not build with "
            f"{config.rope_parameters}: {type(error).__name__}: {error}"
        ) from error


def held_turns(module: Any, kind: str | None) -> Turns:
    """What a module keeps as its frequencies, and the attention factor that it states."""
    start = "" if kind is None else f"{kind}_"
    held = getattr(module, f"{start}inv_freq").detach().cpu()
    return Turns(held, float(getattr(module, f"{start}attention_scaling", 1.0)))


def as_asked(
    name: str, module: Any, kind: str | None, shipped: Any
) -> tuple[Turning | None, Turns]:
    """The hook that a module needs to turn as its config says, and what it answers then.

    Raises:
        RopeConfigError: it turns by something else.
    """
    cls, config = type(module), module.config
    spec, rotation, scale = rotation_of(config, kind)
    features = _features_as_shipped(module, kind, shipped)
    built = built_anew(cls, config)
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


def as_shipped(module: Any, kind: str | None) -> tuple[Turning | None, Turns]:
    """What a module holds that nothing was asked of.

    One of transformers' types that follow the length is given a hook too: its own frequencies are
    those of the longest sequence that it has read so far.
    """
    built = built_anew(type(module), module.config)
    try:
        held = _answered(built, kind, None)
    except CODE_ERRORS:
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
    for key in WRITTEN:
        if key in vars(text):
            setattr(before, key, vars(text)[key])
    rope = by_layer(before).get(kind) or {}
    if str(rope.get("rope_type")).endswith("proportional") and not pairs_whole_heads(before):
        before = _with_settings(before, kind, rope | {"rope_type": "default"})
    try:
        return len(held_turns(built_anew(type(module), before), kind).inv_freq)
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
    held = held_turns(built_anew(cls, shown), kind)
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
        except CODE_ERRORS as error:
            return [f"its code fails at {length} tokens: {type(error).__name__}: {error}"]
    return []
