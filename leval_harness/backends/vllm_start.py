"""How vLLM's engine is started: a cache that fits on a CPU, and the reason where it does not start.

This module imports neither torch nor vLLM before an engine is wanted.
"""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from subprocess import PIPE, Popen, TimeoutExpired
from tempfile import NamedTemporaryFile
from typing import Any

import psutil

from resonance_vllm.common.errors import RunError, UserError, error_message

CPU_CACHE_BYTES = 4 << 30
"""Keys and values of 180,000 tokens of SmolLM2-135M, or 32,000 tokens of an 8B model, bfloat16."""
LOGPROB_BYTES = 2 << 30
"""Memory for the logits of prompts whose log-probabilities are asked for."""
BYTES_PER_LOGIT = 16
"""Logits, their float32 copy, log-probabilities and their order, as measured in the V1 runner."""
LEAST_TOKENS = 256
MOST_TOKENS = 2048
"""Bounds of the token budget; more tokens in a step bring little."""
_SHARE = 0.4  # of the free memory: the weights need the rest
_SIZED_BY = ("kv_cache_memory_bytes", "gpu_memory_utilization", "num_gpu_blocks_override")

_EXCEPTION = re.compile(r"(?:^|[\s\]])((?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b: .+)$")
_POINTERS = ("root cause above", "EngineCore encountered", "EngineCore failed", "EngineDeadError")
"""What an engine says of an exception that its log names further above."""
FAILED_INSPECTION = "failed to be inspected"
"""What vLLM says where another process could not import the code of a model."""


def with_cpu_cache(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of vLLM's engine with a cache size that fits on a CPU.

    vLLM's own default asks for 92 % of all memory, and does not start where less is free. Arguments
    that state a size, and those for a GPU, are returned unchanged.
    """
    has_size = any(arguments.get(name) is not None for name in _SIZED_BY)
    if has_size or os.environ.get("VLLM_CPU_KVCACHE_SPACE") or not _on_cpu():
        return dict(arguments)
    cache_bytes = min(CPU_CACHE_BYTES, int(_SHARE * psutil.virtual_memory().available))
    return {**arguments, "kv_cache_memory_bytes": cache_bytes}


def with_token_budget(model: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of vLLM's engine with a token budget for which log-probabilities fit.

    The V1 model runner computes the logits of all prompt tokens of a step at once, where their
    log-probabilities are asked for, and does not count them among the memory that it needs: 12.6 GB
    for 16,384 tokens of a vocabulary of 49,152. The V2 runner computes 1,024 positions at a time.

    Args:
        model: checkpoint folder or hub name.
        arguments: of the engine; a stated budget is left as it is.
    """
    is_stated = arguments.get("max_num_batched_tokens") is not None
    is_unchunked = arguments.get("enable_chunked_prefill") is False
    if is_stated or is_unchunked or expects_v2_runner():
        return dict(arguments)
    vocabulary = vocabulary_size(model, arguments.get("revision"))
    if vocabulary is None:
        return dict(arguments)
    tokens = LOGPROB_BYTES // (vocabulary * BYTES_PER_LOGIT)
    # The engine takes at least a token of every sequence in a step.
    least = max(LEAST_TOKENS, int(arguments.get("max_num_seqs") or 0))
    return {**arguments, "max_num_batched_tokens": max(least, min(tokens, MOST_TOKENS))}


def expects_v2_runner() -> bool:
    """Return whether vLLM will use its V2 model runner, which is its default with Triton.

    A feature that V2 lacks makes vLLM fall back on V1; that is not known before it starts.
    """
    from vllm import envs
    from vllm.triton_utils import HAS_TRITON

    stated = getattr(envs, "VLLM_USE_V2_MODEL_RUNNER", False)  # older versions have no V2
    return bool(HAS_TRITON if stated is None else stated)


def vocabulary_size(model: str, revision: str | None = None) -> int | None:
    """Return the vocabulary size that a checkpoint's config states; None if it states none."""
    from resonance_vllm.checkpoint.positions import config_value, language_model_config
    from resonance_vllm.checkpoint.reading import read_config

    try:
        config = read_config(model, revision)
    except (UserError, OSError):
        return None  # of a file such as GGUF, or vLLM says what is wrong
    if isinstance(config, Mapping):
        size = config.get("vocab_size")
    else:
        text, _ = language_model_config(config)
        size = config_value(text, "vocab_size")
    return size if isinstance(size, int) else None


def _on_cpu() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def engine_reason(error: BaseException, log: str) -> str:
    """Return why an engine failed.

    vLLM's own error often points elsewhere: to the log, whose last exception is the cause, or to a
    process that could not import the code of the model.

    Args:
        error: the error of vLLM.
        log: what the engine printed.
    """
    text = error_message(error)
    if FAILED_INSPECTION in text:
        from resonance_vllm.vllm.inspection import architecture_failure

        return architecture_failure(error) or text
    if not _points_elsewhere(f"{type(error).__name__} {text}"):
        return text
    matches = (_EXCEPTION.search(line.rstrip()) for line in log.splitlines())
    exceptions = [match[1] for match in matches if match]
    causes = [exception for exception in exceptions if not _points_elsewhere(exception)]
    if not causes:
        return text
    return causes[-1]


def _points_elsewhere(text: str) -> bool:
    """Return whether an error only says that there was another one."""
    return any(pointer in text for pointer in _POINTERS)


@contextmanager
def starting() -> Iterator[None]:
    """Start an engine inside; where it fails, its reason is the message.

    The engine runs in a process of its own, which writes the reason of a failure to standard output
    and error alone. Both are copied by `tee`, which keeps writing to standard error as long as the
    engine lives.

    Raises:
        UserError: with the last exception of the engine's log.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    before = {number: os.dup(number) for number in (1, 2)}
    failed: Exception | None = None
    with NamedTemporaryFile("r", encoding="utf-8", errors="replace") as log:
        # A session of its own: Ctrl-C ends it with the last child that prints, not before.
        tee = Popen(["tee", log.name], stdin=PIPE, stdout=before[2], start_new_session=True)
        assert tee.stdin is not None
        for number in before:
            os.dup2(tee.stdin.fileno(), number)
        tee.stdin.close()
        try:
            yield
        except (RuntimeError, TypeError) as error:  # an argument that the engine does not have
            failed = error
        finally:
            for number, original in before.items():
                os.dup2(original, number)
                os.close(original)
        if failed is not None:
            with suppress(TimeoutExpired):  # it ends when the last child does
                tee.wait(2)
            reason = engine_reason(failed, log.read())
            raise RunError(f"vLLM does not start: {reason}") from failed
