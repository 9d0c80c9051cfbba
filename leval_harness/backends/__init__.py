"""How a model is asked: lm-eval backends that read each document once."""

from leval_harness.backends.registry import (
    libraries,
    library_of,
    own_backends,
    reading_once,
    register,
)

__all__ = ["libraries", "library_of", "own_backends", "reading_once", "register"]
