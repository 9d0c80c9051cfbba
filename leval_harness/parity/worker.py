"""A setup in a process of its own, and how much memory it will need.

Two engines in one process share threads, devices and what libraries set globally; a crash of one
would end both. Where both fit into memory they stay loaded, otherwise one replaces the other.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from leval_harness.parity.reading import Reader
from leval_harness.parity.setups import GGUF, SAVED, SERVER, Setup
from leval_harness.secrets import redact
from resonance_vllm.errors import UserError

GIB = 1 << 30
OVERHEAD = 1 * GIB
"""Libraries, activations of a text and slices of logits."""
VLLM_CPU_CACHE_GIB = 4.0
"""vLLM's cache of keys and values on a CPU unless VLLM_CPU_KVCACHE_SPACE says otherwise."""
PATIENCE = 20.0
"""Seconds that a process has to end by itself."""
BYTES = {"float32": 4, "float64": 8, "float16": 2, "half": 2, "bfloat16": 2}


def open_reader(setup: Setup, longest: int) -> Reader:
    """Load a setup in this process; `longest` is the most tokens that it will be given."""
    if setup.kind == SAVED:
        from leval_harness.parity.saved import SavedReader

        return SavedReader(Path(setup.target).expanduser())
    if setup.kind == SERVER:
        from leval_harness.parity.server import ServerReader

        return ServerReader(setup)
    if setup.kind == GGUF:
        from leval_harness.parity.gguf import GGUFReader

        return GGUFReader(setup, longest)
    from leval_harness.parity.local import HFReader, VLLMReader

    return HFReader(setup) if setup.library == "transformers" else VLLMReader(setup)


_reader: Reader | None = None


def _open(setup: Setup, longest: int) -> None:
    global _reader
    os.dup2(2, 1)  # engines log to standard output, which is for the result alone
    try:
        _reader = open_reader(setup, longest)
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 - not all that libraries raise can be sent
        raise UserError(redact(f"{type(error).__name__}: {error}")) from None


def _answer(reader: Reader | None, name: str, *arguments: Any) -> Any:
    """A method or an attribute of a reader; iterators come back as lists."""
    found = getattr(reader, name)
    found = found(*arguments) if callable(found) else found
    return list(found) if isinstance(found, Iterator) else found


def _call(name: str, *arguments: Any) -> Any:
    try:
        return _answer(_reader, name, *arguments)
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 - as in `_open`
        raise UserError(redact(f"{type(error).__name__}: {error}")) from None


def _close() -> None:
    if _reader is not None:
        _reader.close()


class Worker:
    """A loaded setup in a process of its own, or in this one.

    Raises:
        UserError: the setup cannot be loaded, or its process ended.
    """

    def __init__(self, setup: Setup, longest: int, *, isolated: bool = True) -> None:
        self.setup = setup
        self._pool: ProcessPoolExecutor | None = None
        self._here: Reader | None = None
        if not isolated or setup.kind in (SAVED, SERVER):
            self._here = open_reader(setup, longest)
            return
        self._pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
        self._pid = self._in_pool(os.getpid)
        try:
            self._in_pool(_open, setup, longest)
        except BaseException:
            self.close()
            raise

    def call(self, name: str, *arguments: Any) -> Any:
        """A method or an attribute of the reader; iterators come back as lists."""
        if self._here is not None:
            return _answer(self._here, name, *arguments)
        return self._in_pool(_call, name, *arguments)

    def _in_pool(self, function: Any, *arguments: Any) -> Any:
        assert self._pool is not None
        try:
            return self._pool.submit(function, *arguments).result()
        except BrokenProcessPool:
            raise UserError(
                f"{self.setup.text}: its process ended, out of memory or by a crash of the engine"
            ) from None

    def close(self) -> None:
        """End the process, and those that an engine started in it."""
        if self._here is not None:
            self._here.close()
            self._here = None
        if self._pool is not None:
            import psutil

            family = []
            with suppress(psutil.Error):
                process = psutil.Process(self._pid)
                family = [process, *process.children(recursive=True)]
            with suppress(Exception):  # it may have crashed, or hang: it is ended below
                self._pool.submit(_close).result(PATIENCE)
            self._pool.shutdown(wait=False, cancel_futures=True)
            _, alive = psutil.wait_procs(family, PATIENCE)
            for each in alive:
                with suppress(psutil.Error):
                    each.kill()
            self._pool = None


def bytes_needed(setup: Setup) -> int:
    """Estimate of the memory that a loaded setup takes, before it is loaded.

    Weights in the dtype of the setup, the cache that vLLM reserves on a CPU, and `OVERHEAD`. 0 for
    servers and saved references, and where the weights are not on this machine yet.
    """
    if setup.kind in (SAVED, SERVER):
        return 0
    path = Path(setup.target).expanduser()
    if setup.kind == GGUF:
        return path.stat().st_size + OVERHEAD if path.is_file() else 0
    weights = _weights(path, str(setup.arguments.get("dtype", "auto")))
    if weights == 0:
        return 0
    cache = 0.0
    if setup.library == "vllm" and not _on_gpu():
        cache = float(os.environ.get("VLLM_CPU_KVCACHE_SPACE") or VLLM_CPU_CACHE_GIB)
    return int(weights + cache * GIB) + OVERHEAD


def _weights(folder: Path, dtype: str) -> int:
    """Bytes of a checkpoint's weights once loaded."""
    from safetensors import safe_open

    total = 0
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "numpy") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - it is no dictionary
                part = tensors.get_slice(name)
                count = 1
                for size in part.get_shape():
                    count *= size
                stored = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}.get(part.get_dtype(), 1)
                total += count * BYTES.get(dtype, stored)
    return total


def _on_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def free_memory() -> int:
    """Bytes that are free on the device that local setups use."""
    import psutil

    if _on_gpu():
        import torch

        return int(torch.cuda.mem_get_info()[0])
    return int(psutil.virtual_memory().available)


def both_fit(a: Setup, b: Setup) -> bool:
    """Whether both setups can stay loaded.

    Raises:
        UserError: one of them alone does not fit.
    """
    needs = [bytes_needed(a), bytes_needed(b)]
    if not any(needs):
        return True
    free = free_memory()
    for setup, need in zip((a, b), needs, strict=True):
        if need > free:
            raise UserError(
                f"{setup.text} needs about {need / GIB:.1f} GiB of memory, {free / GIB:.1f} GiB "
                "are free; take a smaller dtype, or free memory"
            )
    if _on_gpu() and any(each.library == "vllm" for each in (a, b)):
        return False  # vLLM takes most of a GPU
    return sum(needs) <= free
