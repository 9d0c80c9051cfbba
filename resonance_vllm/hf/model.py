"""The rotary modules of a whole model: found, changed as requested, verified, reported.

The model was built with its library's own settings (`hf.request`).
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from resonance_vllm.core.errors import RopeConfigError
from resonance_vllm.hf.layout import keywords
from resonance_vllm.hf.request import Request, configs, requests_of, shown, stock_of
from resonance_vllm.hf.rotary import (
    FAMILY_CLASS,
    FOLLOWED,
    RequestedRotation,
    family,
    features_as_shipped,
    fill,
    give,
    held_turns,
    twin,
)
from resonance_vllm.model_config.family import has_no_rope
from resonance_vllm.verifier import NoRope, RotaryReport, Turns, differences, refusal

_CODE_ERRORS = (AttributeError, LookupError, NameError, RuntimeError, TypeError)


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
            each = requested.get(layer_type)
            if each is None:
                turns, exact = held_turns(off_meta(module), layer_type), False
            else:
                turns = Turns(each.rotation.inv_freq, each.scale)
                exact = bool((each.rotation.periods > 0).any())
            inv_freq = tuple(turns.inv_freq.tolist())
            reports.append(RotaryReport(name, layer_type, inv_freq, turns.attention_factor, exact))
    return reports


def apply_requests(model: nn.Module) -> None:
    """Let every rotary module of a model, built with stock settings, turn as requested.

    Raises:
        RopeConfigError: a request reached no module, or a module does not follow it.
    """
    reached = set()
    for name, module in model.named_modules():
        requests = requests_of(getattr(module, "config", None))
        requests = {kind: requests[kind] for kind in layer_types(module) if kind in requests}
        own = {kind: each for kind, each in requests.items() if each.own}
        if own:
            built = off_meta(module)
            give(module, {k: RequestedRotation(built, k, name, each) for k, each in own.items()})
        for layer_type, request in requests.items():
            if not request.own:
                _verify_stock(module, name, layer_type, request)
            reached.add((layer_type, request.spec))
    verify(model)
    for config in configs(getattr(model, "config", None)):
        for layer_type, request in requests_of(config).items():
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
    with torch.device("cpu"), shown(configs(module.config), stock_of):
        return family(module)(module.config)


def verify(model: nn.Module) -> None:
    """Compare what every module of our classes turns by with what was requested.

    Raises:
        RopeConfigError: a module turns by something else; it is named.
    """
    for name, module in model.named_modules():
        if not hasattr(type(module), FAMILY_CLASS):
            continue
        for layer_type, each in module._requested.items():
            if any(buffer.is_meta for buffer in module._buffers.values()):
                continue
            held = held_turns(module, layer_type)
            if wrong := differences(held, Turns(each.rotation.inv_freq, each.scale)):
                where = f"{name} ({family(module).__name__})"
                raise refusal(each.spec, where, wrong, held, "please report the family")


def _verify_stock(module: Any, name: str, layer_type: str | None, request: Request) -> None:
    """Compare a module with a type of transformers' own that an override requests.

    Model code may ignore such a type, keep keys of its own beside it, or fail on it past the
    trained length.

    Raises:
        RopeConfigError: the module turns by something else.
    """
    method = request.spec.method
    built = off_meta(module)
    held = held_turns(built, layer_type)
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
    turning = twin(module, layer_type, request.shown)
    for length in (1, 2 * trained, 2 * trained + 1):  # some code fails at the last one only
        positions = torch.tensor([[length - 1]], device="cpu")
        try:
            with torch.no_grad(), torch.device("cpu"):  # not on meta, as the model may be built
                turning(torch.zeros(1), positions, **keywords(layer_type))
        except _CODE_ERRORS as error:
            if length == 1 and isinstance(error, IndexError | RuntimeError | TypeError):
                return []  # a module that takes more than a position
            return [f"its code fails at {length} tokens: {type(error).__name__}: {error}"]
        wrong = differences(held_turns(turning, layer_type), request.spec.method, length=length)
        if wrong:
            return [f"at {length} tokens {'; '.join(wrong)}"]
    return []


def refill(model: nn.Module) -> None:
    """Fill and verify the modules of our classes in a model whose weights have been loaded."""
    for module in model.modules():
        if hasattr(type(module), FAMILY_CLASS):
            fill(module)
    verify(model)


def set_precision(model: Any, precision: str) -> None:
    """Let every rotary module of the text model answer in float32, or in the model's precision."""
    for _, module in rotary_modules(model):
        state: Any = module
        if precision == "float32" and not hasattr(type(module), FAMILY_CLASS):
            give(module, {})
        if hasattr(type(module), FAMILY_CLASS):
            state._rope_precision = precision
