"""The rotary modules of a whole model: found, given what was asked of them, compared, told.

The model was built with its library's own settings (`hf_request`).
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from resonance_vllm.core import phase
from resonance_vllm.core.errors import RopeConfigError
from resonance_vllm.hf.carried import OURS, Carried, family, prefix
from resonance_vllm.hf.request import configs, requests_of, stock_settings
from resonance_vllm.hf.rotary import give, refill
from resonance_vllm.rotary_report import HeldRope, NoRope, says_none

_TRIED = (0, 1, 2, 3, 100)


def layer_types(module: nn.Module) -> list[str | None]:
    """The rotations that a module holds; None is the name of a single one, [] says no rotary."""
    if says_none(getattr(module, "config", None)):
        return []
    buffers = module._buffers
    if "inv_freq" in buffers:
        return [None] if hasattr(module, "rope_type") else []
    ends = "_original_inv_freq"
    return [name.removesuffix(ends) for name in buffers if name.endswith(ends)]


def text_rotary(model: Any) -> Iterator[tuple[str, nn.Module]]:
    """The rotary modules of a model's text part, those of pictures and sounds aside."""
    config: Any = getattr(model, "config", None)
    text = type(config.get_text_config()) if hasattr(config, "get_text_config") else object
    rotary = [(name, module) for name, module in model.named_modules() if layer_types(module)]
    of_text = [each for each in rotary if isinstance(getattr(each[1], "config", None), text)]
    # A model made of several parts without one text model: all of them.
    yield from of_text or rotary


def adapt(model: nn.Module) -> None:
    """Give every rotary module of a model, built with stock settings, what was asked of it.

    Raises:
        RopeConfigError: a request reached no module, or a module does not follow it.
    """
    reached: list[Any] = []
    for name, module in model.named_modules():
        requests = requests_of(getattr(module, "config", None))
        kinds = [kind for kind in layer_types(module) if kind in requests]
        if kinds:
            source = off_meta(module)
            give(module, {kind: Carried(source, kind, name) for kind in kinds})
            reached += [(kind, requests[kind]["rope_type"]) for kind in kinds]
    whole = getattr(model, "config", None)
    for config in configs(whole):
        for kind, settings in requests_of(config).items():
            if (kind, settings["rope_type"]) not in reached:
                raise no_rope(model, config, settings["rope_type"])
    if reached:
        refuse_encoder(model, reached[0][1])
    verify(model)


def refuse_encoder(model: Any, rope_type: str) -> None:
    """Raise RopeConfigError for a model whose text is read by an encoder: a request misses it."""
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        raise RopeConfigError(
            f"rope_type: {rope_type!r} would reach the decoder of {type(model).__name__}, not "
            "the encoder that reads its text; allowed: models without such an encoder"
        )


def off_meta(module: Any) -> Any:
    """The module, or one made alike on the CPU where it has no values yet."""
    if not any(buffer.is_meta for buffer in module._buffers.values()):
        return module
    with torch.device("cpu"), stock_settings(module.config):
        return family(module)(module.config)


def no_rope(model: Any, config: Any, rope_type: str) -> NoRope:
    """The error for a request that reached no module, with what the model holds."""
    held = ", ".join(f"{each.module} ({each.layer_type or 'all layers'})" for each in hold(model))
    return NoRope(
        f"rope_type: {rope_type!r} would be ignored: {type(model).__name__} of "
        f"model_type {getattr(config, 'model_type', None)!r} has no rotary module that reads it"
        + (f"; {held} holds its own" if held else "")
    )


def verify(model: nn.Module) -> None:
    """Compare what every adapted module answers with what it was asked for.

    Raises:
        RopeConfigError: a module turns by something else; it is named.
    """
    for name, module in model.named_modules():
        if not hasattr(type(module), OURS):
            continue
        for kind, each in module._carried.items():
            held = module._buffers[f"{prefix(kind)}inv_freq"]
            if held.is_meta or each.follows:
                continue
            positions = torch.tensor([_TRIED], device=held.device)
            keywords = {} if kind is None else {"layer_type": kind}
            like = torch.zeros(1, device=held.device)
            found = module(like, positions, **keywords)
            angles = phase.angles(positions, each.rotation.to(held.device))
            wanted = each.layout.arrange(angles, each.scale, like)
            for a, b in zip(_parts(found), _parts(wanted), strict=True):
                if a.shape != b.shape or not torch.allclose(a, b, atol=1e-3 * each.scale):
                    raise RopeConfigError(
                        f"rope_type: {name} does not turn by {each.spec.to_dict()}: it holds "
                        f"{held.tolist()[:4]} and so on; please report the family"
                    )


def settle(model: nn.Module) -> None:
    """Fill and verify the adapted modules of a model whose weights have been loaded."""
    for module in model.modules():
        if hasattr(type(module), OURS):
            refill(module)
    verify(model)


def set_precision(model: Any, precision: str) -> None:
    """Let every rotary module of the text model answer in float32, or in the model's precision."""
    for _, module in text_rotary(model):
        state: Any = module
        if hasattr(type(module), OURS):
            state._rope_precision = precision
        elif precision == "float32":
            give(module, {})
            state._rope_precision = precision


def hold(model: nn.Module) -> list[HeldRope]:
    """What every rotary module of a built model turns by, at its trained length."""
    held = []
    for name, module in text_rotary(model):
        carried = getattr(module, "_carried", {})
        for kind in layer_types(module):
            each = carried.get(kind)
            if each is None:
                source = off_meta(module)
                freqs = getattr(source, f"{prefix(kind)}inv_freq").tolist()
                factor = float(getattr(source, f"{prefix(kind)}attention_scaling", 1.0))
                held.append(HeldRope(name, kind, tuple(freqs), factor, False))
            else:
                freqs = each.rotation.inv_freq.tolist()
                exact = bool((each.rotation.periods > 0).any())
                held.append(HeldRope(name, kind, tuple(freqs), each.scale, exact))
    return held


def _parts(answer: Any) -> tuple[Tensor, ...]:
    return (answer.real, answer.imag) if isinstance(answer, Tensor) else tuple(answer)
