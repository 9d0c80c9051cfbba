"""Rotation in float32: a family's own functions, given float32 cos and sin."""

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

_MARK = "_resonance_float32"
_TURNS = ("cos", "sin", "freqs_cis")


def patch(model: nn.Module) -> bool:
    """Let a model's rotations take float32 cos and sin and give back q and k in their own dtype.

    The families' functions are replaced in their modules by ones that do the same where dtypes
    agree. Returns whether there are any.
    """
    modules = {type(module).__module__ for module in model.modules()}
    found = False
    for source in (sys.modules[name] for name in modules if ".modeling_" in f".{name}"):
        for name, function in list(rotations(source)):
            found = True
            if not hasattr(function, _MARK):
                setattr(source, name, _rotation(function))
    return found


def rotations(source: ModuleType) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Functions of a module that turn tensors by cos and sin which they are given."""
    for name, value in vars(source).items():
        if inspect.isfunction(value):
            names = set(inspect.signature(value).parameters)
            if names >= {"cos", "sin"} or "freqs_cis" in names:
                yield name, value


def _rotation(original: Callable[..., Any]) -> Callable[..., Any]:
    names = list(inspect.signature(original).parameters)
    turn = next(name for name in names if name in _TURNS)
    place = names.index(turn)

    @functools.wraps(original)
    def rotate(*args: Any, **kwargs: Any) -> Any:
        wide = kwargs[turn] if turn in kwargs else args[place]
        given = next(each for each in (*args, *kwargs.values()) if isinstance(each, Tensor))
        if wide.dtype != torch.float32 or given.dtype not in (torch.bfloat16, torch.float16):
            return original(*args, **kwargs)
        wider = [_cast(each, torch.float32) for each in args]
        turned = original(*wider, **{k: _cast(each, torch.float32) for k, each in kwargs.items()})
        if isinstance(turned, Tensor):
            return turned.to(given.dtype)
        return tuple(_cast(each, given.dtype) for each in turned)

    setattr(rotate, _MARK, True)
    return rotate


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
