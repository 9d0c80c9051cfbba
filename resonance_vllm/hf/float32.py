"""Rotation in float32: a family's own functions, given float32 cos and sin."""

import ast
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
# Where cos and sin may go besides a rotation: into a cache's arguments, out of a function.
_HANDED_ON = (ast.Tuple, ast.Dict, ast.Return, ast.Assign, ast.keyword)


def patch(model: nn.Module) -> str | None:
    """Let a model's rotations take float32 cos and sin and give back q and k in their own dtype.

    The families' functions are replaced in their modules by ones that do the same where dtypes
    agree.

    Returns:
        Why that is not enough, because model code turns q and k by itself; None where it is.
    """
    modules = {type(module).__module__ for module in model.modules()}
    sources = [sys.modules[name] for name in sorted(modules) if ".modeling_" in f".{name}"]
    found = False
    for source in sources:
        functions = dict(rotations(source))
        found = found or bool(functions)
        reason = _turned_elsewhere(source, frozenset(functions))
        if reason is not None:
            return reason
        for name, function in functions.items():
            if not hasattr(function, _MARK):
                setattr(source, name, _rotation(function))
    return None if found else "its model code has no rotation that takes cos and sin"


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


@functools.cache
def _turned_elsewhere(source: ModuleType, functions: frozenset[str]) -> str | None:
    """A place of a family's source that uses cos or sin outside its rotation functions."""
    try:
        tree = ast.parse(inspect.getsource(source))
    except (OSError, SyntaxError):
        return f"the source of {source.__name__} cannot be read"
    for top in tree.body:
        makes = isinstance(top, ast.ClassDef) and ("Rotary" in top.name or "ision" in top.name)
        if makes or (isinstance(top, ast.FunctionDef) and top.name in functions):
            continue
        for parent in ast.walk(top):
            for child in ast.iter_child_nodes(parent):
                if not _is_turn(child) or (isinstance(parent, ast.Subscript) and _is_turn(parent)):
                    continue
                called = isinstance(parent, ast.Call) and _called(parent) in functions
                if not called and not isinstance(parent, _HANDED_ON):
                    where = getattr(top, "name", source.__name__)
                    return f"{where} turns q and k by itself"
    return None


def _is_turn(node: ast.AST) -> bool:
    """Whether code reads cos or sin there, or a part of them."""
    while isinstance(node, ast.Subscript):
        node = node.value
    name = isinstance(node, ast.Name) and node.id in ("cos", "sin")
    return name and isinstance(node.ctx, ast.Load)  # type: ignore[attr-defined]


def _called(call: ast.Call) -> str | None:
    return call.func.id if isinstance(call.func, ast.Name) else None
