"""Rotation of queries and keys in float32, for one model and without a trace in any other.

Model code calls its family's rotation (`apply_rotary_pos_emb`) as a global of its module. Given
float32 cos and sin it returns float32 queries and keys, which attention does not accept beside
bfloat16 values. So each module of the model that rotates gets its own methods once more, with the
same code, in which that global casts its result back. `unapply` removes them.
"""

import functools
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

_REPLACED = "_replaces_for_float32_rotation"
"""Attribute of a method made here: the attribute of the instance that it replaced, or None."""
_NOTHING = object()


def rotate_in_float32(model: nn.Module) -> bool:
    """Let a model's modules rotate by float32 cos and sin, and return the model's dtype.

    Returns:
        Whether the model has code that rotates queries and keys by cos and sin.
    """
    globals_of: dict[int, dict[str, Any]] = {}
    methods_of: dict[type, dict[str, Any]] = {}
    for module in model.modules():
        module_class = type(module)
        if module_class not in methods_of:
            methods_of[module_class] = {
                name: _with_casting_globals(function, globals_of)
                for name, function in _methods(module_class)
                if _reads_rotation(function)
            }
        for name, function in methods_of[module_class].items():
            _replace(module, name, function)
    return any(methods_of.values())


def restore_precision(model: nn.Module) -> None:
    """Remove what `rotate_in_float32` gave to a model's modules."""
    for module in model.modules():
        for name, value in list(vars(module).items()):
            replaced: Any = getattr(value, _REPLACED, _NOTHING)
            if replaced is _NOTHING:
                continue
            if replaced is None:
                delattr(module, name)
            else:
                setattr(module, name, types.MethodType(replaced, module))


def _methods(module_class: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield names and functions of a class's methods, those of torch itself excluded."""
    for name in dir(module_class):
        function = inspect.getattr_static(module_class, name)
        if inspect.isfunction(function) and not str(function.__module__).startswith("torch."):
            yield name, function


def _replace(module: nn.Module, name: str, function: Any) -> None:
    """Give a module another method of a name.

    accelerate keeps the method that its own hooks call as `_old_forward` of the instance.
    """
    target = name
    if name == "forward" and "_old_forward" in vars(module):
        target = "_old_forward"
    existing = vars(module).get(target)
    own = _copied_function(function, function.__globals__)
    setattr(own, _REPLACED, getattr(existing, "__func__", None))
    setattr(module, target, types.MethodType(own, module))


def _is_rotation(value: object) -> bool:
    """Return whether a function rotates by arguments `cos` and `sin`, or by `freqs_cis`."""
    if not inspect.isfunction(value):
        return False
    names = inspect.signature(value).parameters
    return {"cos", "sin"} <= names.keys() or "freqs_cis" in names


def _names_in(code: types.CodeType) -> set[str]:
    """Return the global names and attributes that code reads, nested functions included."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names_in(constant)
    return names


def _reads_rotation(function: Any) -> bool:
    """Return whether a function, or one that it decorates, reads a rotation as a global."""
    while function is not None:
        if inspect.isfunction(function):
            for name in _names_in(function.__code__):
                if _is_rotation(function.__globals__.get(name)):
                    return True
        function = getattr(function, "__wrapped__", None)
    return False


def _with_casting_globals(function: Any, globals_of: dict[int, dict[str, Any]]) -> Any:
    """Return a function with the same code, whose rotations cast their results back.

    A decorated function is copied with its decorators: they keep it in a cell of their closure.

    Args:
        function: A function that reads rotations as globals.
        globals_of: The changed globals by the id of the original ones, filled here, so that the
            methods of all layers share them.
    """
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is not None and function.__closure__:
        inner = _with_casting_globals(wrapped, globals_of)
        cells = []
        for cell in function.__closure__:
            holds_wrapped = cell.cell_contents is wrapped
            cells.append(types.CellType(inner) if holds_wrapped else cell)
        return _copied_function(function, function.__globals__, tuple(cells))
    original = function.__globals__
    if id(original) not in globals_of:
        changed = dict(original)
        for name, value in original.items():
            if _is_rotation(value):
                changed[name] = _casting_back(value)
        globals_of[id(original)] = changed
    return _copied_function(function, globals_of[id(original)])


def _copied_function(
    function: Any, new_globals: dict[str, Any], closure: tuple[Any, ...] | None = None
) -> Any:
    """Return a copy of a function with other globals, and another closure where one is given."""
    copied = types.FunctionType(
        function.__code__,
        new_globals,
        function.__name__,
        function.__defaults__,
        function.__closure__ if closure is None else closure,
    )
    for name in ("__kwdefaults__", "__annotations__", "__doc__", "__module__", "__qualname__"):
        setattr(copied, name, getattr(function, name))
    return copied


def _casting_back(rotation: Any) -> Any:
    """Return a rotation whose results have the dtype of its first tensor, the queries."""

    @functools.wraps(rotation)
    def rotate(*args: Any, **kwargs: Any) -> Any:
        dtype = _first_tensor(args, kwargs).dtype
        rotated = rotation(*args, **kwargs)
        if isinstance(rotated, Tensor):
            return rotated.to(dtype)
        return tuple(_cast(result, dtype) for result in rotated)

    return rotate


def _cast(result: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a tensor in a dtype; one of integers unchanged."""
    return result.to(dtype) if result.is_floating_point() else result


def _first_tensor(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """Return the first tensor among arguments."""
    return next(value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
