"""The backends, and what other packages need to know of one before it is loaded.

This module imports neither torch nor lm-eval's models.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from leval_border.errors import one_of
from leval_harness.secrets import is_credential, redact


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


# Variables of torch, of the libraries that it calls, and of transformers.
_TORCH_VARIABLE = re.compile(
    r"(ATEN|ONEDNN|DNNL|CUBLAS|CUBLASLT|CUDNN|ROCBLAS|HIPBLASLT|MIOPEN|TRITON|XLA"
    r"|TORCH|TORCHINDUCTOR|TORCHDYNAMO|FLASH_ATTENTION)_"
    r"|(MKL_(CBWR|ENABLE_INSTRUCTIONS|DEBUG_CPU_TYPE)|NVIDIA_TF32_OVERRIDE|USE_HUB_KERNELS"
    r"|TRANSFORMERS_DISABLE_DEEPGEMM_LINEAR|ACCELERATE_(DOWNCAST_BF16|MIXED_PRECISION)"
    r"|PYTORCH_(TUNABLEOP_ENABLED|MPS_FAST_MATH|MPS_PREFER_METAL))$"
)
_VLLM_VARIABLE = re.compile(r"(VLLM|FLASHINFER)_")
# A variable with one of these words in its name changes no number. By line: logs and reports;
# places of files; machines and processes; speed and memory; how the library was built; what is
# loaded and served.
_HARMLESS_WORD = re.compile(
    r"(^|_)("
    r"LOG|LOGS|LOGGING|LOGO|VERBOSE|DEBUG|TRACE|STACKTRACES|STATS|USAGE|TRACK|PROFILE|PROFILER"
    r"|PROFILING|COLOR"
    r"|CACHE|DIR|HOME|PATH|ROOT|FOLDER|FILE|URL|URI|EXTENSIONS|ASSETS|MEDIA|IMAGE|VIDEO|AUDIO"
    r"|HOST|PORT|IP|ADDR|RANK|NAME|PREFIX|RAY|NCCL|PYNCCL|DISTRIBUTED|ELASTIC|MULTIPROC"
    r"|MULTIPROCESSING|DP|RPC"
    r"|TIMEOUT|SECONDS|THREADS|KVCACHE|SPACE|CHUNK|MB|ALIVE|RETRIES|RESERVED|INTERVAL"
    r"|BUILD|VERSION|PRECOMPILED|DOCKER|TARGET|ARCH|ARCHES|SOURCE|COMPATIBILITY"
    r"|API|SERVER|HTTP|VALIDATION|PLUGINS|WEIGHTS|RTLD|AUTOLOAD|LAUNCH|AOT|STARTUP"
    r")(_|$)"
)


def environment(backend: str, variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment variables that can change a backend's numbers, without credentials.

    They choose precisions, kernels and instruction sets. The libraries know hundreds of them, so
    they are found by the beginning of their names. Empty for a model on a server, whose environment
    is not known here.

    Args:
        backend: Name in lm-eval's model registry.
        variables: An environment. None is this process's, to which libraries add variables when
            they are imported.
    """
    if "completions" in backend:
        return {}
    variables = os.environ if variables is None else variables
    vllm_counts = libraries().get(backend) != "transformers"
    return {
        name: redact(variables[name])
        for name in sorted(variables)
        if variables[name]
        and (_TORCH_VARIABLE.match(name) or (vllm_counts and _VLLM_VARIABLE.match(name)))
        and not _HARMLESS_WORD.search(name)
        and not is_credential(name)
    }
