"""lm-eval backends that read each document once."""

from leval_harness.backends.registry import (
    OWN_BACKENDS,
    CannotExchange,
    backend_class,
    libraries,
    library_of,
    register,
    set_rope,
    take_over,
)

__all__ = [
    "OWN_BACKENDS", "CannotExchange", "backend_class", "libraries", "library_of", "register",
    "set_rope", "take_over",
]  # fmt: skip
