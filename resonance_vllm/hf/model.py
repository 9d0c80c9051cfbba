"""A model of transformers is built with stock settings, changed as requested, and verified."""

import functools
import logging
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn

from resonance_vllm.config import ROPE_PRECISIONS
from resonance_vllm.core.maps import MappedMethod
from resonance_vllm.errors import RopeConfigError, one_of
from resonance_vllm.hf import float32, position_map
from resonance_vllm.hf import request as config_requests
from resonance_vllm.hf.held import (
    FAMILY_CLASS,
    at_run_time,
    family,
    features_as_shipped,
    keywords,
    plain_features_differ,
    twin,
)
from resonance_vllm.hf.rotary import give, held_turns, verify_given
from resonance_vllm.hf.rotation import FOLLOWED, ModuleRotation
from resonance_vllm.verifier import NoRope, Request, RotaryReport, differences, refusal

logger = logging.getLogger("resonance_vllm.hf.registration")

# What model code raises on settings that it does not know, and past the trained length.
# The last one where lists of a wrong length meet the frequencies of a head.
_SETTINGS_ERRORS = (AttributeError, KeyError, TypeError, ValueError, RuntimeError)
_LENGTH_ERRORS = (AttributeError, LookupError, NameError, RuntimeError, TypeError)

_building: ContextVar[bool] = ContextVar("_building", default=False)


def wrap_constructor(cls: Any) -> None:
    """Let a model's constructor see stock settings, and change what it built."""
    original = cls.__init__

    @functools.wraps(original)
    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        config: Any = args[0] if args else kwargs.get("config")
        if _building.get() or not hasattr(config, "rope_precision"):
            original(self, *args, **kwargs)
            return
        token = _building.set(True)
        every = list(config_requests.configs(config))
        try:
            with config_requests.shown(every, config_requests.stock_of) as changed:
                for each in every:
                    config_requests.prepare(each)
                _construct(functools.partial(original, self, *args, **kwargs), cls, changed)
                apply_requests(self)
        finally:
            _building.reset(token)
            if "_modules" in vars(self):
                # Model code makes copies of its config.
                for module in self.modules():
                    for each in config_requests.configs(getattr(module, "config", None)):
                        config_requests.restore(each)
        if config.rope_precision is not None:
            set_rope_precision(self, config.rope_precision)

    cls.__init__ = build


def _construct(construct: Callable[[], None], cls: Any, changed: list[Any]) -> None:
    """Build a model with stock settings, or plain ones where its code refuses a method's type.

    Ernie 4.5 VL takes no type but `default`, and DeepSeek's code reads a factor of every other.

    Args:
        construct: the constructor with its arguments.
        cls: the model class.
        changed: the configs in which stock settings are shown.

    Raises:
        RopeConfigError: it does not build with plain settings either; with the same error, the
            method is not the reason.
    """
    random = torch.get_rng_state()
    try:
        return construct()
    except _SETTINGS_ERRORS as error:
        if not changed or isinstance(error, torch.OutOfMemoryError):
            raise
        reason = error
    torch.set_rng_state(random)  # the weights of a seed, not the next ones
    for each in changed:
        config_requests.show(each, config_requests.plain_of)
    try:
        return construct()
    except _SETTINGS_ERRORS as error:
        if (type(error), str(error)) == (type(reason), str(reason)):
            raise RopeConfigError(
                f"the code of {cls.__name__} does not build from this config, whatever its RoPE: "
                f"{type(reason).__name__}: {reason}"
            ) from error
        first = next(iter(config_requests.requests_of(changed[0]).values()))
        raise RopeConfigError(
            f"rope_type: {first.spec.rope_type!r}: the code of {cls.__name__} does not build "
            f"with it: {type(reason).__name__}: {reason}; allowed: what this model's code reads"
        ) from error


def has_no_rope(config: Any) -> bool:
    """Whether a config states that positions are encoded otherwise.

    Falcon's code makes a rotary module beside ALiBi too, and does not use it.
    """
    kind = getattr(config, "position_embedding_type", None)
    return bool(getattr(config, "alibi", False)) or kind in ("nope", "absolute")


def layer_types(module: nn.Module) -> list[str | None]:
    """The rotations that a module holds; None is the name of a single one, [] of no rotary."""
    if has_no_rope(getattr(module, "config", None)):
        return []
    buffers = module._buffers
    if "inv_freq" in buffers:
        return [None] if hasattr(module, "rope_type") else []
    end = "_original_inv_freq"
    return [name.removesuffix(end) for name in buffers if name.endswith(end)]


def rotary_modules(model: Any) -> Iterator[tuple[str, nn.Module]]:
    """The rotary modules of a model's text part by name, those of images and audio aside."""
    config: Any = getattr(model, "config", None)
    text = type(config.get_text_config()) if hasattr(config, "get_text_config") else object
    rotary = [(name, module) for name, module in model.named_modules() if layer_types(module)]
    of_text = [each for each in rotary if isinstance(getattr(each[1], "config", None), text)]
    # A model made of several parts without one text model: all of them.
    yield from of_text or rotary


def rotary_report(model: Any) -> list[RotaryReport]:
    """What every rotary module of a built model turns by, at its trained length."""
    reports = []
    for name, module in rotary_modules(model):
        requested = getattr(module, "_requested", {})
        for layer_type in layer_types(module):
            found = requested.get(layer_type) or held_turns(off_meta(module), layer_type)
            reports.append(RotaryReport.of(name, layer_type, found))
    return reports


def apply_requests(model: nn.Module) -> None:
    """Let every rotary module of a model, built with stock settings, turn as requested.

    Raises:
        RopeConfigError: a request reached no module, or a module does not follow it.
    """
    reached = set()
    for name, module in model.named_modules():
        requests = config_requests.requests_of(getattr(module, "config", None))
        requests = {kind: requests[kind] for kind in layer_types(module) if kind in requests}
        given = {}
        for kind, request in requests.items():
            built = off_meta(module)
            if request.own or plain_features_differ(built, kind, request):
                given[kind] = ModuleRotation(built, kind, name, request)
            else:
                _verify_stock(built, name, kind, request)
            reached.add((kind, request.spec))
        if given:
            give(module, given)
        for kind, request in requests.items():
            if isinstance(request.spec.method, MappedMethod):
                position_map.install(model, module, kind)
    verify_given(model)
    for config in config_requests.configs(getattr(model, "config", None)):
        for layer_type, request in config_requests.requests_of(config).items():
            if (layer_type, request.spec) not in reached:
                raise _reached_none(model, config, request.spec.rope_type)
    encoded = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    for _, spec in reached if encoded else ():
        raise RopeConfigError(
            f"rope_type: {spec.rope_type!r} would reach the decoder of {type(model).__name__}, not "
            "the encoder that reads its text; allowed: models without such an encoder"
        )


def _reached_none(model: Any, config: Any, rope_type: str) -> NoRope:
    """The error for a request that reached no module, with what the model holds."""
    held = ", ".join(
        f"{each.module} ({each.layer_type or 'all layers'})" for each in rotary_report(model)
    )
    return NoRope(
        f"rope_type: {rope_type!r} would be ignored: {type(model).__name__} of "
        f"model_type {getattr(config, 'model_type', None)!r} has no rotary module that reads it"
        + (f"; {held} holds its own" if held else "")
    )


def off_meta(module: Any) -> Any:
    """The module, or one made alike on the CPU where it has no values yet."""
    if not any(buffer.is_meta for buffer in module._buffers.values()):
        return module
    every = config_requests.configs(module.config)
    with torch.device("cpu"), config_requests.shown(every, config_requests.stock_of):
        return family(module)(module.config)


def _verify_stock(module: Any, name: str, layer_type: str | None, request: Request) -> None:
    """Compare a module with a type of transformers' own that an override requests.

    Model code may ignore such a type, keep keys of its own beside it, or fail on it past the
    trained length.

    Raises:
        RopeConfigError: the module turns by something else.
    """
    method = request.spec.method
    held = held_turns(module, layer_type)
    features = features_as_shipped(module, layer_type, request, method.name)
    wrong = differences(held, method, features=features)
    if not wrong and method.trained_length is not None:
        wrong = _past_the_trained_length(module, layer_type, request, method.trained_length)
    if wrong:
        where = f"{name} ({family(module).__name__})"
        raise refusal(request.spec, where, wrong, held, FOLLOWED)


def _past_the_trained_length(
    module: Any, layer_type: str | None, request: Request, trained: int
) -> list[str]:
    """How a module fails past the trained length, where its method may switch or follow it."""
    turning = twin(module, layer_type, request.settings)
    for length in (1, 2 * trained, 2 * trained + 1):  # some code fails at the last one only
        positions = torch.tensor([[length - 1]], device="cpu")
        try:
            with at_run_time():
                turning(torch.zeros(1), positions, **keywords(layer_type))
        except _LENGTH_ERRORS as error:
            if length == 1 and isinstance(error, IndexError | RuntimeError | TypeError):
                return []  # a module that takes more than a position
            return [f"its code fails at {length} tokens: {type(error).__name__}: {error}"]
        wrong = differences(held_turns(turning, layer_type), request.spec.method, length=length)
        if wrong:
            return [f"at {length} tokens {'; '.join(wrong)}"]
    return []


def set_rope_precision(model: nn.Module, rope_precision: str) -> None:
    """Choose the precision in which a built model rotates q and k.

    `float32` computes cos, sin and the rotation in float32 and casts q and k back before cache and
    attention; `model` is what transformers does. A model whose code cannot be given float32 keeps
    its own precision, with a warning. The model's `rope_precision_used` is what it uses.

    Raises:
        RopeConfigError: another word.
    """
    one_of("rope_precision", rope_precision, ROPE_PRECISIONS, RopeConfigError)
    state: Any = model
    used = rope_precision
    patched = rope_precision == "float32" and any(rotary_modules(model)) and float32.patch(model)
    if rope_precision == "float32" and not patched:
        used = "model"
        logger.warning(
            "rope_precision: %s rotates in its own precision, not in float32: its code has no "
            "rotation that takes cos and sin",
            type(model).__name__,
        )
    for _, module in rotary_modules(model):
        rotary: Any = module
        if used == "float32" and not hasattr(type(module), FAMILY_CLASS):
            give(module, {})
        if hasattr(type(module), FAMILY_CLASS):
            rotary._rope_precision = used
    state.rope_precision_used = used
    state.config.rope_precision = rope_precision
