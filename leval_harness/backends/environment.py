"""Environment variables that decide what a model computes: precisions, kernels, instruction sets.

The libraries know hundreds, others in each release. One that begins as those do that choose how to
compute counts, unless a word of its name says that it is about something else.
"""

import os
import re
from collections.abc import Mapping

from leval_harness import secrets
from leval_harness.backends.registry import libraries

_OF_TORCH = re.compile(
    r"(ATEN|ONEDNN|DNNL|CUBLAS|CUBLASLT|CUDNN|ROCBLAS|HIPBLASLT|MIOPEN|TRITON|XLA"
    r"|TORCH|TORCHINDUCTOR|TORCHDYNAMO|FLASH_ATTENTION)_"
    r"|(MKL_(CBWR|ENABLE_INSTRUCTIONS|DEBUG_CPU_TYPE)|NVIDIA_TF32_OVERRIDE|USE_HUB_KERNELS"
    r"|TRANSFORMERS_DISABLE_DEEPGEMM_LINEAR|ACCELERATE_(DOWNCAST_BF16|MIXED_PRECISION)"
    r"|PYTORCH_(TUNABLEOP_ENABLED|MPS_FAST_MATH|MPS_PREFER_METAL))$"
)
"""Of torch, of what it calls, and of transformers."""

_OF_VLLM = re.compile(r"(VLLM|FLASHINFER)_")

ASIDE = {
    **dict.fromkeys(("LOG", "LOGS", "LOGGING", "LOGO", "VERBOSE", "DEBUG", "TRACE", "STACKTRACES",
                     "STATS", "USAGE", "TRACK", "PROFILE", "PROFILER", "PROFILING", "COLOR"),
                    "what is told of the work"),
    **dict.fromkeys(("CACHE", "DIR", "HOME", "PATH", "ROOT", "FOLDER", "FILE", "URL", "URI",
                     "EXTENSIONS", "ASSETS", "MEDIA", "IMAGE", "VIDEO", "AUDIO"),
                    "where files lie"),
    **dict.fromkeys(("HOST", "PORT", "IP", "ADDR", "RANK", "NAME", "PREFIX", "RAY", "NCCL",
                     "PYNCCL", "DISTRIBUTED", "ELASTIC", "MULTIPROC", "MULTIPROCESSING", "DP",
                     "RPC"),
                    "which machines and processes there are"),
    **dict.fromkeys(("TIMEOUT", "SECONDS", "THREADS", "KVCACHE", "SPACE", "CHUNK", "MB", "ALIVE",
                     "RETRIES", "RESERVED", "INTERVAL"), "how fast it runs, in how much memory"),
    **dict.fromkeys(("BUILD", "VERSION", "PRECOMPILED", "DOCKER", "TARGET", "ARCH", "ARCHES",
                     "SOURCE", "COMPATIBILITY"), "how the library was built"),
    **dict.fromkeys(("API", "SERVER", "HTTP", "VALIDATION", "PLUGINS", "WEIGHTS", "RTLD",
                     "AUTOLOAD", "LAUNCH", "AOT", "STARTUP"), "what is loaded and served"),
}  # fmt: skip
"""Words that say of a variable that it decides no number, and why."""


def environment(backend: str, given: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables that are set and decide what a backend computes, without credentials.

    None for a model on a server, whose environment nobody knows here.

    Args:
        backend: lm-eval's name of it.
        given: an environment; None is this process's, in which libraries set their own as soon as
            they are imported.
    """
    if "completions" in backend:
        return {}
    variables = os.environ if given is None else given
    of_torch_alone = libraries().get(backend) == "transformers"
    return {
        name: secrets.public(variables[name])
        for name in sorted(variables)
        if variables[name]
        and (_OF_TORCH.match(name) or (_OF_VLLM.match(name) and not of_torch_alone))
        and not set(name.split("_")) & set(ASIDE)
        and not secrets.is_credential(name)
    }
