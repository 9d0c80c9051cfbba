"""The backends, and what other packages need to know of one before it is loaded.

This module imports neither torch nor lm-eval's models.
"""

from dataclasses import dataclass

from resonance_vllm.errors import UserError, one_of


class CannotExchange(UserError):  # noqa: N818 - says what cannot be done
    """RoPE settings that a loaded model cannot take: it has to be loaded anew."""


@dataclass(frozen=True)
class Backend:
    """What is known of a backend without loading it.

    Attributes:
        target: `module:class`.
        library: The library that runs the model, `transformers` or `vllm`. RoPE settings are
            written in its form. None for a model that runs as it is served.
        reads_once: Whether text that several requests share is computed once.
    """

    target: str
    library: str | None = None
    reads_once: bool = False


# Our backends, by their names in lm-eval's model registry.
OWN_BACKENDS = {
    "hf-long": Backend("leval_harness.backends.hf_long:HFLong", "transformers", reads_once=True),
    "vllm-long": Backend("leval_harness.backends.vllm_long:VLLMLong", "vllm", reads_once=True),
}
# lm-eval's own backends that take RoPE settings.
_STOCK_BACKENDS = {
    "hf": Backend("lm_eval.models.huggingface:HFLM", "transformers"),
    "vllm": Backend("lm_eval.models.vllm_causallms:VLLM", "vllm", reads_once=True),
}


def libraries() -> dict[str, str]:
    """Backend -> the library that runs its model, for every backend that takes RoPE settings."""
    known = sorted((_STOCK_BACKENDS | OWN_BACKENDS).items())
    return {name: backend.library for name, backend in known if backend.library}


def library_of(backend: str) -> str:
    """The library that runs a backend's model.

    Raises:
        SettingError: The backend takes no RoPE settings.
    """
    return libraries()[one_of("backend", backend, libraries())]


def reading_once() -> list[str]:
    """Names of the backends that compute text which several requests share once."""
    known = _STOCK_BACKENDS | OWN_BACKENDS
    return sorted(name for name, backend in known.items() if backend.reads_once)


def register() -> None:
    """Add our backends to lm-eval's model registry. Can be called any number of times."""
    import lm_eval.models  # noqa: F401 - lm-eval adds its own models only to an empty registry
    from lm_eval.api.registry import model_registry

    for name, backend in OWN_BACKENDS.items():
        if name not in model_registry:
            model_registry.register(name, target=backend.target)
