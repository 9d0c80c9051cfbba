"""Inverse frequencies that nobody initialised.

Buffers that are not saved in a checkpoint have to be computed when a model is built. transformers
builds models on the meta device and recomputes such buffers for its own classes alone: those of
code that a checkpoint brings along keep whatever was in memory, another thing in each process.
"""

import contextlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers.modeling_utils import local_torch_dtype

from resonance_vllm.common.errors import RopeConfigError
from resonance_vllm.hf.building import CODE_ERRORS
from resonance_vllm.verify import RotaryState, frequency_problems

_ADVICE = (
    "this code does not work with this version of transformers: use the version that the model "
    "card names, or a checkpoint whose architecture transformers has itself"
)


def verify_frequencies(model: Any) -> None:
    """Refuse a model that holds inverse frequencies which its code did not compute.

    Raises:
        RopeConfigError: Inverse frequencies of a module are not finite, not positive or increase,
            or differ from those that its code computes; the module is named.
    """
    for name, module in model.named_modules():
        for key, buffer in module._buffers.items():
            if buffer is None or not key.endswith("inv_freq") or buffer.is_meta:
                continue
            problems = _problems(buffer, ordered=_is_custom(module))
            if problems:
                raise _not_initialised(name, module, f"{key}: {problems[0]}")
    if any(_is_custom(module) for module in model.modules()):
        _compare_with_code(model)


def _problems(inv_freq: Tensor, ordered: bool) -> list[str]:
    """Return why a buffer cannot hold inverse frequencies, in clauses; none where it can.

    Args:
        inv_freq: the buffer.
        ordered: whether they have to fall. transformers recomputes the buffers of its own classes,
            and some of these sort features by the axis of an image that rotates them (Pixtral).
    """
    if inv_freq.ndim == 1:
        state = RotaryState(inv_freq, attention_factor=1.0)
        return frequency_problems(state, ordered=ordered)
    # Models for images keep rows of frequencies, whose order and sign are the family's choice.
    if bool(inv_freq.detach().isfinite().all()):
        return []
    return ["the inverse frequencies are not finite"]


def _is_custom(module: nn.Module) -> bool:
    """Return whether a module's class is neither of transformers nor of torch."""
    package = type(module).__module__.partition(".")[0]
    return package not in ("torch", "transformers", "accelerate", "peft")


def _compare_with_code(model: Any) -> None:
    """Compare the buffers that no checkpoint holds with those of the model built once more."""
    rebuilt = None
    # Code with requirements of its own may not build like this: then there is nothing to compare.
    with contextlib.suppress(*CODE_ERRORS):
        rebuilt = _build_with_buffers(model)
    if rebuilt is None:
        return
    modules = dict(rebuilt.named_modules())
    for name, module in model.named_modules():
        reference = modules.get(name)
        if reference is None or type(reference) is not type(module) or not _is_custom(module):
            continue
        for key in module._non_persistent_buffers_set:
            held = module._buffers.get(key)
            computed = reference._buffers.get(key)
            if held is not None and computed is not None and not _same(held, computed):
                raise _not_initialised(name, module, f"{key}: not what its code computes")


class _EmptyOnMeta(TorchFunctionMode):
    """Put empty tensors, which layers make their weights of, on the meta device."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.empty, torch.Tensor.new_empty):
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


def _build_with_buffers(model: Any) -> Any:
    """Build a model from its config with computed buffers and without memory for weights."""
    with torch.no_grad(), local_torch_dtype(model.dtype), torch.device("cpu"), _EmptyOnMeta():
        return type(model)(model.config)


def _same(held: Tensor, computed: Tensor) -> bool:
    """Return whether two buffers agree up to the rounding of their dtypes."""
    if held.is_meta or computed.is_meta:
        return True
    if held.shape != computed.shape:
        return True  # a cache that has grown or was cut
    a = held.detach().cpu().double()
    b = computed.detach().double()
    tolerance = 1e-6
    for buffer in (held, computed):
        if buffer.is_floating_point():
            tolerance = max(tolerance, 2 * torch.finfo(buffer.dtype).eps)
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance * float(b.abs().max()))


def _not_initialised(name: str, module: nn.Module, clause: str) -> RopeConfigError:
    return RopeConfigError(f"{name} ({type(module).__name__}): {clause}; {_ADVICE}")
