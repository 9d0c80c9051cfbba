"""lm-eval backends that read each document once."""

from leval_harness.backends.registry import (
    OWN_BACKENDS,
    libraries,
    library_of,
    reading_once,
    register,
)

__all__ = ["OWN_BACKENDS", "libraries", "library_of", "reading_once", "register"]
