"""Which variables of the environment decide what is computed, and which do not."""

import ast
import importlib.util
from pathlib import Path

import pytest

from leval_harness.sweep.identity import environment

DECIDING = """
    ATEN_CPU_CAPABILITY ONEDNN_DEFAULT_FPMATH_MODE DNNL_DEFAULT_FPMATH_MODE ONEDNN_MAX_CPU_ISA
    MKL_CBWR NVIDIA_TF32_OVERRIDE TORCH_ALLOW_TF32_CUBLAS_OVERRIDE CUBLAS_WORKSPACE_CONFIG
    TORCH_BLAS_PREFER_CUBLASLT TORCHINDUCTOR_EMULATE_PRECISION_CASTS TORCHDYNAMO_DISABLE
    TRITON_F32_DEFAULT USE_HUB_KERNELS XLA_USE_BF16
"""
OF_VLLM = """
    VLLM_ATTENTION_BACKEND VLLM_CPU_SGL_KERNEL VLLM_USE_DEEP_GEMM VLLM_FLOAT32_MATMUL_PRECISION
    VLLM_MARLIN_INPUT_DTYPE VLLM_BATCH_INVARIANT VLLM_CPU_INT4_W4A8 VLLM_DISABLED_KERNELS
    VLLM_KNOWN_TO_NOBODY FLASHINFER_USE_CUDA_NORM
"""
# as they stand in containers, modules of clusters, schedulers and shells
ELSEWHERE = """
    PATH HOME PWD LANG HOSTNAME OMP_NUM_THREADS OPENBLAS_CORETYPE MKL_NUM_THREADS
    MKL_INTERFACE_LAYER MKLROOT CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES
    NVIDIA_DRIVER_CAPABILITIES CUDA_MODULE_LOADING CUDNN_VERSION CUBLAS_VERSION PYTORCH_VERSION
    TORCH_CUDA_ARCH_LIST TRITON_PTXAS_PATH PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF TORCH_HOME
    TORCH_EXTENSIONS_DIR TORCH_LOGS TORCHINDUCTOR_CACHE_DIR TORCHINDUCTOR_COMPILE_THREADS
    TORCH_NCCL_ASYNC_ERROR_HANDLING TORCH_SHOW_CPP_STACKTRACES TORCH_DISTRIBUTED_DEBUG
    TORCH_CPP_LOG_LEVEL TORCHELASTIC_RUN_ID TRITON_CACHE_DIR NCCL_DEBUG SLURM_JOB_ID HF_HOME
    HF_TOKEN HF_HUB_OFFLINE ONEDNN_VERBOSE TOKENIZERS_PARALLELISM TRANSFORMERS_VERBOSITY
    LEVAL_DATA_DIR RAY_ADDRESS VLLM_CACHE_ROOT VLLM_API_KEY VLLM_LOGGING_LEVEL
    VLLM_CPU_KVCACHE_SPACE VLLM_HOST_IP VLLM_PORT VLLM_USAGE_SOURCE VLLM_IMAGE_TAG
    VLLM_WORKER_MULTIPROC_METHOD VLLM_TARGET_DEVICE
"""


def test_what_chooses_a_precision_or_a_kernel_counts() -> None:
    given = dict.fromkeys(f"{DECIDING} {OF_VLLM} {ELSEWHERE}".split(), "1")
    assert list(environment("hf", given)) == sorted(DECIDING.split())
    assert list(environment("vllm-long", given)) == sorted(f"{DECIDING} {OF_VLLM}".split())
    assert environment("hf", dict.fromkeys(given, "")) == {}, "as if they were not set"


def test_what_is_asked_of_a_server_does_not_depend_on_it() -> None:
    assert environment("local-completions", dict.fromkeys(DECIDING.split(), "1")) == {}


def test_credentials_stay_where_they_are() -> None:
    given = {"TORCH_ACCESS_TOKEN": "x" * 9, "TRITON_MIRROR": "http://me:pass@host/x"}
    assert environment("hf", given) == {"TRITON_MIRROR": "http://host/x"}


# these stand in vLLM's list because they change no compiled code, and may change an answer
MAY_CHANGE_ANSWERS = {
    "VLLM_USE_MODELSCOPE", "VLLM_TEST_FORCE_LOAD_FORMAT", "VLLM_ZENTORCH_WEIGHT_PREPACK",
    "VLLM_CPU_MOE_PREPACK", "VLLM_FLASHINFER_AUTOTUNE_SKIP_OPS", "VLLM_MAX_EMBED_DECODE_BYTES",
}  # fmt: skip


@pytest.mark.vllm
def test_what_vllm_itself_says_changes_no_compiled_code_does_not_count() -> None:
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.submodule_search_locations
    text = Path(spec.submodule_search_locations[0], "envs.py").read_text()
    (ignored,) = [
        ast.literal_eval(node.value)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and node.target.id == "ignored_factors"
        and node.value
    ]
    assert set(environment("vllm", dict.fromkeys(ignored, "1"))) <= MAY_CHANGE_ANSWERS
