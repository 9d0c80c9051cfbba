"""What runs will take: tokens, operations, memory and hours, before they are computed."""

import platform
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil

from leval_harness.backends import BACKENDS
from leval_harness.backends.prefill import one_pass_tokens
from leval_harness.results.layout import REFERENCE, RUN_FILE, RUNS_FOLDER
from leval_harness.sweep.cost import (
    PASS_TOKENS,
    ComputedShare,
    Cost,
    Memory,
    ModelSize,
    cost_of,
    model_size,
    peak_memory,
)
from leval_harness.sweep.gpus import memory_of_gpu
from leval_harness.sweep.identity import RUNNING_TEXT
from leval_harness.sweep.run_record import RunRecord
from leval_harness.sweep.task_registry import families_of
from leval_harness.sweep.workload import (
    Workload,
    Workloads,
    longest_pass,
    without_first_windows,
)
from resonance_vllm.checkpoint.reading import read_config
from resonance_vllm.common.errors import UserError
from resonance_vllm.common.files import read_json_object

FLOPS = "flops"
"""Key in the telemetry of a run: the floating-point operations that were estimated for it."""
DAY = 24.0
MUCH_OF_A_PASS = 0.2
"""Share of the memory from which on a forward pass of fewer tokens is worth trying."""
OFTEN = 50
"""Times that each scored token is read from which on a larger stride is worth a remark."""


class MeasuredRates:
    """Operations per second that finished runs have reached on this machine.

    Args:
        folder: results of a sweep; the sweeps beside it count, too.
    """

    def __init__(self, folder: Path) -> None:
        self.runs: list[RunRecord] = []
        for path in sorted(folder.parent.glob(f"*/{RUNS_FOLDER}/*/{RUN_FILE}")):
            content = read_json_object(path) or {}
            is_measured = content.get("seconds") and (content.get("telemetry") or {}).get(FLOPS)
            if is_measured and (content.get("host") or {}).get("name") == platform.node():
                self.runs.append(RunRecord.model_validate(content))

    def of(self, run: RunRecord) -> float | None:
        """Return the operations per second of the runs that are most like a planned one.

        Runs of the same model, backend and dtype that also score text (or generate answers) go
        before those that have less in common; None without any of this backend and dtype.
        """
        wanted = _traits(run)
        for common in range(len(wanted), 1, -1):
            alike = [other for other in self.runs if _traits(other)[:common] == wanted[:common]]
            seconds = sum(other.seconds or 0.0 for other in alike)
            if seconds:
                return float(sum(other.telemetry[FLOPS] for other in alike) / seconds)
        return None


def _traits(run: RunRecord) -> tuple[Any, ...]:
    """Return what decides the rate of a run, the most important first."""
    scores_text = families_of(run.tasks) <= RUNNING_TEXT
    return (run.model.backend, run.model.dtype, scores_text, run.model.path)


@dataclass(frozen=True)
class Estimate:
    """What a run will take.

    Attributes:
        cost: tokens, operations and memory; None where they are not known.
        hours: of one worker; None without a rate.
        times_read: how often each scored token is read, on average; 1 where answers are generated.
        share: the share of the run that some tokens are; None where the cost is not known.
    """

    cost: Cost | None
    hours: float | None = None
    times_read: float = 1.0
    share: ComputedShare | None = field(default=None, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; None for what is not known."""
        if self.cost is None:
            return {}
        return {
            "documents": self.cost.documents,
            "prefill_tokens": self.cost.prefill_tokens,
            "decode_tokens": self.cost.decode_tokens,
            "flops": self.cost.flops or None,
            **(self.cost.memory.to_dict() if self.cost.memory.total else {"memory_bytes": None}),
            "hours": self.hours,
        }

    def text(self, with_parts: bool = False) -> str:
        """Return the values in a line for people.

        Args:
            with_parts: whether memory is divided into weights, KV cache, activations and logits.
        """
        if self.cost is None:
            return "not estimated"
        noun = "document"
        if self.cost.decode_tokens:
            noun = "question"
        if self.cost.documents != 1:
            noun += "s"
        parts = [
            f"{self.cost.documents:,} {noun}",
            f"{self.cost.prefill_tokens:,} tokens to prefill",
        ]
        if self.cost.decode_tokens:
            parts.append(f"up to {self.cost.decode_tokens:,} to decode")
        if self.cost.flops:
            parts.append(operations_text(self.cost.flops))
        if self.cost.memory.total:
            gigabytes = f"{self.cost.memory.total / 1e9:,.1f} GB"
            parts.append(self.cost.memory.text() if with_parts else gigabytes)
        if self.hours is not None:
            parts.append(duration(self.hours))
        return ", ".join(parts)


class Estimator:
    """Estimates runs.

    Args:
        workloads: what is known of them already.
        rates: what this machine has reached.
        device_tflops: 10^12 operations per second that a device reaches, in place of these.
    """

    def __init__(
        self, workloads: Workloads, rates: MeasuredRates, device_tflops: float | None = None
    ) -> None:
        self.workloads = workloads
        self.rates = rates
        self.device_tflops = device_tflops

    def of_all(self, runs: Sequence[RunRecord]) -> dict[str, Estimate]:
        """Return what each of some runs will take, where they are computed together.

        Args:
            runs: those that are to be computed.

        Returns:
            Id of each run -> its estimate.
        """
        return {run.run_id: self.of(run, has_full_read(run, runs)) for run in runs}

    def of(self, run: RunRecord, first_windows_are_known: bool = False) -> Estimate:
        """Return what a run will take.

        Args:
            run: a planned run.
            first_windows_are_known: whether another run reads the first window of each document, so
                that this one does not.
        """
        try:
            workload = self.workloads.of(run)
        except UserError:
            return Estimate(None)  # the dry run names it among the problems
        if workload is None:
            return Estimate(None)
        if first_windows_are_known:
            workload = without_first_windows(workload)
        size = size_of_model(run)
        cost = cost_of(size, workload.passes, workload.documents)
        times_read = _times_read(run, workload)
        if size is None:
            share = ComputedShare(None, workload.passes, PASS_TOKENS)
            return Estimate(cost, None, times_read, share)
        share = ComputedShare(size, workload.passes, pass_tokens(run, size, workload))
        cost = replace(cost, memory=memory_of(run, size, workload))
        rate = self._rate(run, cost)
        hours = None
        if rate is not None:
            hours = cost.hours(rate / 1e12)
        return Estimate(cost, hours, times_read, share)

    def _rate(self, run: RunRecord, cost: Cost) -> float | None:
        """Return the operations per second for a run; None if they are unknown."""
        if self.device_tflops is not None:
            return self.device_tflops * 1e12 * max(1, run.gpus)
        rate = self.rates.of(run)
        if rate is None and cost.flops > WORTH_A_BENCHMARK and _runs_on_this_cpu(run):
            rate = rate_of_cpu(_dtype_of(run))
        return rate


def has_full_read(run: RunRecord, others: Sequence[RunRecord]) -> bool:
    """Return whether the first windows of a reference are the beginning of what another run reads.

    The unmodified model reads the same documents in full. `hf-long` computes what both reads have in
    common once, if one model instance does both and the full read comes first.
    """
    backend = BACKENDS.get(run.model.backend)
    if run.method.name != REFERENCE or backend is None:
        return False
    if not backend.shares_documents or not backend.runs_in_torch:
        return False
    return any(
        other.group == run.group
        and other.method.name != REFERENCE
        and _is_unmodified(other)
        and _documents_of(other) == _documents_of(run)
        for other in others
    )


def _is_unmodified(run: RunRecord) -> bool:
    """Return whether a run has the rotation of its checkpoint."""
    rope = run.method.rope_parameters
    return rope is None or (rope["rope_type"] == "default" and run.replaced is None)


def _documents_of(run: RunRecord) -> tuple[Any, ...]:
    """Return what decides which documents an effective-context run reads."""
    settings = {"context_length": [run.context_length], **run.metadata}
    settings.pop("reads", None)
    return run.tasks, settings


def run_cost(run: RunRecord, workloads: Workloads | None = None) -> float:
    """Return the floating-point operations of a run, by which the longest can start first.

    Args:
        run: a planned run.
        workloads: takes what is learned about the run.

    Returns:
        The operations; 0 where they are not known.
    """
    try:
        workload = (workloads or Workloads()).of(run)
    except UserError:
        return 0.0
    if workload is None:
        return 0.0
    return cost_of(size_of_model(run), workload.passes, workload.documents).flops


WORTH_A_BENCHMARK = 1e11
"""Operations of a run, some seconds at least, from which on the CPU's rate is worth half a second."""
SHARE_OF_PRODUCT = 0.8
"""Rate of a whole forward pass beside that of its largest matrix products, see docs/measured.md."""


def _runs_on_this_cpu(run: RunRecord) -> bool:
    """Return whether transformers runs a model on the CPU, whose rate is that of torch."""
    on_cpu = run.gpus == 0 or (memory_of_gpu() is None and run.device in (None, "cpu"))
    return on_cpu and BACKENDS[run.model.backend].runs_in_torch


@cache
def rate_of_cpu(dtype: str) -> float:
    """Return the operations per second that a forward pass will reach on this CPU, by a benchmark.

    Matrix products of this data type are computed for half a second: without instructions for
    bfloat16 they are five times as slow as those of float32.

    Args:
        dtype: of the model, by the name that torch has for it.
    """
    import torch

    values = torch.ones(512, 1024, dtype=getattr(torch, dtype))
    weights = torch.ones(1024, 1024, dtype=values.dtype)
    torch.nn.functional.linear(values, weights)
    products = 0
    started = time.perf_counter()
    while time.perf_counter() - started < 0.5:
        torch.nn.functional.linear(values, weights)
        products += 1
    operations = products * 2.0 * values.numel() * weights.shape[0]
    return SHARE_OF_PRODUCT * operations / (time.perf_counter() - started)


def total(estimates: Sequence[Estimate]) -> Estimate:
    """Return what runs take one after the other; hours only where those of all are known."""
    cost = sum((one.cost for one in estimates if one.cost is not None), Cost())
    hours: float | None = 0.0
    for one in estimates:
        if one.hours is None or hours is None:
            hours = None
        else:
            hours += one.hours
    if all(one.cost is None for one in estimates):
        return Estimate(None)
    return Estimate(cost, hours)


def size_of_model(run: RunRecord) -> ModelSize | None:
    """Return the sizes of the model of a run; None without a config on this machine."""
    if run.model.backend not in BACKENDS:
        return None
    return model_size(_config_of(run), _dtype_of(run))


def _config_of(run: RunRecord) -> dict[str, Any]:
    """Return the config of the checkpoint of a run; empty without one."""
    if not Path(run.model.path).is_dir():
        return _complete_config(run.model.path, run.model.revision)
    folder = Path(run.model.path) / str(run.model.args.get("subfolder", ""))
    content = read_json_object(folder / "config.json") or {}
    if not content:
        return {}
    try:
        return _complete_config(str(folder), None)
    except UserError:
        return content


@cache
def _complete_config(path: str, revision: str | None) -> dict[str, Any]:
    """Return a config with the defaults of its model type.

    Published files leave some out: that of Gemma 3 4B has no number of heads.
    """
    config = read_config(path, revision)
    if isinstance(config, Mapping):
        return dict(config)
    complete: dict[str, Any] = config.to_dict()
    return complete


def _dtype_of(run: RunRecord) -> str:
    """Return the data type that a model is loaded in; bfloat16 where the config states none."""
    dtype = run.model.dtype
    if dtype == "auto":
        config = _config_of(run)
        dtype = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    return dtype


def pass_tokens(run: RunRecord, size: ModelSize, workload: Workload) -> int:
    """Return the most tokens of one forward pass of a run."""
    backend = BACKENDS[run.model.backend]
    longest = longest_pass(workload)
    if backend.chunk_argument is None:
        return longest
    stated = int(run.model.args.get(backend.chunk_argument) or 0)
    if stated:
        return stated
    scores_text = families_of(run.tasks) <= RUNNING_TEXT
    if backend.reads_in_chunks or not scores_text:
        return PASS_TOKENS
    config = _config_of(run)
    text = SimpleNamespace(**(config.get("text_config") or config))
    checkpoint = SimpleNamespace(get_text_config=lambda decoder: text)
    if longest <= one_pass_tokens(checkpoint, size.bytes_per_value):
        return longest
    return PASS_TOKENS


def memory_of(run: RunRecord, size: ModelSize, workload: Workload) -> Memory:
    """Return the most memory that a run takes, over all its GPUs."""
    backend = BACKENDS[run.model.backend]
    scores_text = families_of(run.tasks) <= RUNNING_TEXT
    rows = 1
    if isinstance(run.batch_size, int) and not scores_text:
        rows = run.batch_size
    return peak_memory(
        size,
        longest_pass(workload),
        chunk=pass_tokens(run, size, workload),
        rows=rows,
        all_logits=scores_text and backend.keeps_all_logits,
    )


def all_warnings(
    runs: Iterable[RunRecord], estimates: Mapping[str, Estimate], device_gb: float | None = None
) -> list[str]:
    """Return the warnings about some runs, each once.

    Args:
        runs: those that are to be computed.
        estimates: id of a run -> what it will take.
        device_gb: memory of one device in 10^9 bytes; None for that of this machine's.
    """
    warnings = [
        warning
        for run in runs
        for warning in warnings_of(run, estimates[run.run_id], device_memory(run, device_gb))
    ]
    return list(dict.fromkeys(warnings))


def warnings_of(run: RunRecord, estimate: Estimate, memory: float | None) -> Iterator[str]:
    """Yield what a run should be changed for: more than a day, or more memory than there is.

    The text does not name the method: what holds for one holds for all methods of a model.

    Args:
        run: a planned run.
        estimate: what it will take.
        memory: bytes that there are for it; None if that is not known.
    """
    if estimate.cost is None:
        return
    where = f"{run.model.name} @ {run.context_length} | {', '.join(run.tasks)}"
    needed = estimate.cost.memory
    if memory is not None and needed.total > memory:
        yield (
            f"{where}: needs about {needed.text()}, and there are {memory / 1e9:,.1f} GB; "
            f"{_less_memory(run, needed)}"
        )
    if estimate.hours is not None and estimate.hours > DAY:
        yield f"{where}: takes about {duration(estimate.hours)} for each method; {_less_time(run, estimate)}"
    elif estimate.times_read > OFTEN:
        times = f"{estimate.times_read:,.0f} times"
        yield f"{where}: reads each token about {times}; {_less_time(run, estimate)}"


def device_memory(run: RunRecord, device_gb: float | None = None) -> float | None:
    """Return the memory that there is for a run in bytes; None if a GPU's is not known.

    Args:
        run: a planned run.
        device_gb: memory of one device in 10^9 bytes; None for that of this machine's.
    """
    if device_gb is not None:
        return max(1, run.gpus) * device_gb * 1e9
    if run.gpus == 0:
        return int(psutil.virtual_memory().total)
    of_one = memory_of_gpu()
    if of_one is None:
        return None
    return run.gpus * of_one


def _less_memory(run: RunRecord, needed: Memory) -> str:
    """Return which setting lets a run take less memory."""
    backend = BACKENDS[run.model.backend]
    of_a_pass = needed.activations + needed.logits
    if of_a_pass > needed.total * MUCH_OF_A_PASS:
        if backend.chunk_argument is not None:
            return f"a smaller args.{backend.chunk_argument} reads in smaller chunks"
        for other in BACKENDS.values():
            if other.library == backend.library and other.chunk_argument is not None:
                return f"backend: {other.name} reads in chunks (args.{other.chunk_argument})"
    if backend.parallel_arguments:
        return f"a larger args.{backend.parallel_arguments[0]} divides the model"
    if _dtype_of(run) == "float32":
        return "dtype: bfloat16 halves it; gpus and args.parallelize divide the model"
    return "gpus and args.parallelize divide the model"


def _less_time(run: RunRecord, estimate: Estimate) -> str:
    """Return which setting lets a run take less time."""
    families = families_of(run.tasks)
    if "perplexity" in families and estimate.times_read > 2:
        stride = run.metadata.get("stride", 256)
        return f"a larger metadata.stride (now {stride}) or a smaller metadata.num_docs takes less"
    if families <= RUNNING_TEXT | {"closed"}:
        return "a smaller metadata.num_docs takes less"
    return "a smaller limit takes less"


def _times_read(run: RunRecord, workload: Workload) -> float:
    """Return how often each scored token is read, on average; 1 where answers are generated."""
    scored = sum(one.scored for one in workload.passes)
    if not families_of(run.tasks) <= RUNNING_TEXT or not scored:
        return 1.0
    return sum(one.tokens - one.cached for one in workload.passes) / scored


def duration(hours: float) -> str:
    """Return hours as people say them: seconds, minutes, hours or days."""
    if hours < 1 / 60:
        return f"{hours * 3600:.0f} s"
    if hours < 1:
        return f"{hours * 60:.0f} min"
    if hours < 2 * DAY:
        return f"{hours:.1f} h"
    return f"{hours / DAY:,.1f} days"


def operations_text(flops: float) -> str:
    """Return floating-point operations as people say them: TFLOP (10^12), PFLOP or EFLOP."""
    for unit, size in (("EFLOP", 1e18), ("PFLOP", 1e15)):
        if flops >= size:
            return f"{flops / size:,.3g} {unit}"
    return f"{flops / 1e12:,.3g} TFLOP"


def flops_by_run(estimates: Mapping[str, Estimate]) -> dict[str, float]:
    """Return the operations of the runs for which they are known."""
    return {
        name: estimate.cost.flops
        for name, estimate in estimates.items()
        if estimate.cost is not None and estimate.cost.flops
    }
