"""One RoPE method a module; every list of methods and types is made from what stands here.

A module dropped into this folder is a method of both libraries, of every command, of sweep
configs, of the documentation's table and of the parametrised tests. A class without a `name` is a
base of others.
"""

import importlib
import pkgutil
from collections.abc import Iterator

from resonance_vllm.core.method import Method


def _classes() -> Iterator[type[Method]]:
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for value in vars(module).values():
            own = getattr(value, "__module__", None) == module.__name__
            if (
                own
                and isinstance(value, type)
                and issubclass(value, Method)
                and hasattr(value, "name")
            ):
                yield value


METHODS: dict[str, type[Method]] = {method.name: method for method in _classes()}
