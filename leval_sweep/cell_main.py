"""One cell: one lm-eval evaluation in a process of its own.

    python -m leval_sweep.cell_main CELL_FOLDER [--parent PID]

The folder holds `cell.json`. What is printed goes to the cell's log. The exit code says what kind
of failure it was, the last line of the log why.
"""

import contextlib
import ctypes
import fcntl
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import leval_backends
from leval_border.files import read_object
from leval_leaderboard.layout import CELL, PARTIAL
from leval_sweep import own_tasks
from leval_sweep.cell_files import DISK_ERRORS, clear_attempt, publish
from leval_sweep.errors import CellError
from leval_sweep.rope_features import write_features

log = logging.getLogger("leval_sweep.cell")

# kind of failure -> exit code; a code that nothing else uses, so that it cannot be mistaken
EXIT_CODES = {"error": 1, "oom": 70, "disk": 74}
REASON_MARK = "leval-harness cell failed: "
OOM_TYPES = ("OutOfMemoryError", "MemoryError")
OOM_TEXTS = ("out of memory", "can't allocate memory", "cannot allocate memory")
_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """End this process when the sweep that started it is gone: no orphan keeps computing."""

    def gone() -> bool:
        return os.getppid() != parent

    def watch() -> None:
        while not gone():
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)

    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=watch, daemon=True).start()
    if gone():  # it died before we could ask to be told
        os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def cell_lock(folder: Path, patience: float = 30.0) -> Iterator[None]:
    """Hold the folder alone; a dying process of an earlier sweep gets `patience` seconds to go.

    Raises:
        CellError: somebody else computes this cell.
    """
    with (folder / ".lock").open("w") as handle:
        until = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise CellError(f"{folder} is being computed by another process") from None
                time.sleep(0.1)
        yield


def register(backend: str) -> None:
    """Make our RoPE types and our backends known before the model is built.

    vLLM loads our plugin by itself, in each of its processes.
    """
    if leval_backends.libraries().get(backend) == "transformers":
        from resonance_vllm import hf

        hf.register()
    leval_backends.register()


def default_device(backend: str) -> str | None:
    """Where a transformers model goes if nobody says: lm-eval would insist on a GPU."""
    if leval_backends.libraries().get(backend) != "transformers":
        return None
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def load_tasks(cell: Mapping[str, Any]) -> tuple[Any, list[Any]]:
    """Task manager, and task and group objects with generation settings applied."""
    from lm_eval.tasks import TaskManager

    names = list(cell["tasks"])
    metadata = {**cell["model_args"], **cell["metadata"]}
    known = own_tasks.own_tasks()
    if all(name in known or own_tasks.is_file(name) for name in names):
        folders = [str(folder) for folder in own_tasks.task_folders()]
        manager = TaskManager(include_path=folders, include_defaults=False, metadata=metadata)
    else:
        manager = TaskManager(metadata=metadata)
    objects: list[Any] = []
    tasks: dict[str, Any] = {}
    for name in names:
        loaded = manager.load([name])
        tasks |= loaded["tasks"]
        group = loaded["groups"].get(name)
        objects += [group] if group is not None else list(loaded["tasks"].values())
    for name in cell["task_gen_kwargs"]:
        if name not in tasks:
            raise CellError(f"task_gen_kwargs: '{name}' is not one of {', '.join(tasks)}")
    for name, task in tasks.items():
        settings = {**cell["gen_kwargs"], **cell["task_gen_kwargs"].get(name, {})}
        if settings and task.get_config("output_type") == "generate_until":
            task.set_config(key="generation_kwargs", value=settings, update=True)
    return manager, objects


class _SaveErrors(logging.Handler):
    """Remembers what lm-eval's tracker logs when it cannot save: it raises nothing."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())

    def disk_full(self) -> bool:
        """Whether one of the messages is the repr of an OSError of a full disk."""
        return any(f"Error({code}," in text for code in DISK_ERRORS for text in self.messages)


def evaluate(cell: Mapping[str, Any], folder: Path, partial: Path) -> dict[str, Any]:
    """Run lm-eval and leave its result and sample files in `partial`.

    Returns:
        The backend's telemetry, if it keeps any.

    Raises:
        CellError: lm-eval could not write what it computed.
    """
    import lm_eval
    from lm_eval.api.registry import get_model
    from lm_eval.loggers import EvaluationTracker

    model = cell["model"]
    device = cell["device"] or default_device(model["backend"])
    options = {"batch_size": cell["batch_size"], "max_batch_size": None, "device": device}
    started = time.monotonic()
    lm = get_model(model["backend"]).create_from_arg_obj(dict(cell["model_args"]), options)
    log.info("model ready after %.1f s", time.monotonic() - started)
    tracker = EvaluationTracker(output_path=str(partial))
    seed = cell["seed"]
    manager, tasks = load_tasks(cell)
    results = lm_eval.simple_evaluate(
        model=lm,
        model_args=dict(cell["model_args"]),
        tasks=tasks,
        task_manager=manager,  # without one lm-eval builds its whole index
        num_fewshot=cell["num_fewshot"],
        batch_size=cell["batch_size"],
        device=device,
        use_cache=str(folder / "cache") if cell["use_cache"] else None,
        limit=cell["limit"],
        log_samples=True,
        evaluation_tracker=tracker,
        apply_chat_template=cell["apply_chat_template"],
        random_seed=seed,
        numpy_random_seed=seed,
        torch_random_seed=seed,
        fewshot_random_seed=seed,
        confirm_run_unsafe_code=cell["confirm_run_unsafe_code"],
        metadata={**cell["model_args"], **cell["metadata"]},
    )
    if results is None:
        raise CellError("lm-eval returned no results")
    samples = results.pop("samples")
    save(tracker, results, samples)
    flatten(partial, {name: len(rows) for name, rows in samples.items()})
    telemetry = dict(lm.telemetry()) if hasattr(lm, "telemetry") else {}
    if failed := telemetry.get("requests_failed"):
        # an unanswered request scores as a wrong answer: not a result of the method
        raise CellError(
            f"{len(failed)} requests ran out of memory even alone: {', '.join(failed[:5])}; use a "
            "shorter context_length, a smaller dtype or a larger device"
        )
    return telemetry


def save(tracker: Any, results: dict[str, Any], samples: Mapping[str, Any]) -> None:
    """Write lm-eval's files; its tracker turns every error into a warning, so we listen.

    Raises:
        CellError: something was not written; with errno ENOSPC where the disk was the reason.
    """
    errors = _SaveErrors()
    logger = logging.getLogger("lm_eval.loggers.evaluation_tracker")
    logger.addHandler(errors)
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        tracker.save_results_aggregated(results=results, samples=samples)
        for name, rows in samples.items():
            tracker.save_results_samples(task_name=name, samples=rows)
    finally:
        logger.removeHandler(errors)
        logger.setLevel(level)
    if any(message.startswith("Could not save") for message in errors.messages):
        text = "; ".join(errors.messages)
        if errors.disk_full():
            raise CellError(DISK_ERRORS[0], f"the disk is full: {text}")
        raise CellError(f"lm-eval could not save its results: {text}")


def flatten(partial: Path, rows: Mapping[str, int]) -> None:
    """Move lm-eval's files from its folder named after the model up into `partial`, and count them.

    Raises:
        CellError: a file is missing or shorter than what was computed.
    """
    for path in [*partial.rglob("results_*.json"), *partial.rglob("samples_*.jsonl")]:
        path.replace(partial / path.name)
    for folder in sorted((each for each in partial.rglob("*") if each.is_dir()), reverse=True):
        folder.rmdir()
    results = list(partial.glob("results_*.json"))
    if len(results) != 1 or read_object(results[0]) is None:
        raise CellError("lm-eval's results file is missing or not whole")
    for name, expected in rows.items():
        written = 0
        for path in partial.glob(f"samples_{name}_*.jsonl"):
            if path.name[len(f"samples_{name}_") :][:4].isdigit():
                with path.open("rb") as handle:
                    written += sum(1 for line in handle if line.endswith(b"\n"))
        if written != expected:
            raise CellError(f"samples of {name}: {written} of {expected} lines were written")


def run(folder: Path) -> None:
    """Compute the cell in `folder` from nothing and publish it."""
    cell = read_object(folder / CELL)
    if cell is None:
        raise CellError(f"{folder / CELL} is missing or not whole")
    started = time.monotonic()
    with cell_lock(folder):
        clear_attempt(folder)
        partial = folder / f"{PARTIAL}-{os.getpid()}"
        partial.mkdir()
        register(cell["model"]["backend"])
        telemetry = evaluate(cell, folder, partial)
        write_features(cell, partial)
        seconds = round(time.monotonic() - started, 3)
        marker = {"cell_id": cell["cell_id"], "seconds": seconds, "telemetry": telemetry}
        publish(folder, partial, marker)


def kind_of(error: BaseException) -> str:
    """`oom`, `disk` or `error`, from the exception or what caused it."""
    seen: BaseException | None = error
    while seen is not None:
        text = str(seen).lower()
        if type(seen).__name__ in OOM_TYPES or any(each in text for each in OOM_TEXTS):
            return "oom"
        if isinstance(seen, OSError) and seen.errno in DISK_ERRORS:
            return "disk"
        seen = seen.__cause__ or seen.__context__
    return "error"


def main(arguments: list[str]) -> int:
    """Run one cell; the exit code tells the kind of failure."""
    folder = Path(arguments[0])
    if "--parent" in arguments:
        die_with_parent(int(arguments[arguments.index("--parent") + 1]))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    logging.captureWarnings(True)
    try:
        run(folder)
    except Exception as error:
        kind = kind_of(error)
        # a log on a full disk cannot take the reason; the exit code still can
        with contextlib.suppress(OSError):
            log.exception("the cell ended")
            sys.stderr.write(f"{REASON_MARK}{type(error).__name__}: {error}\n")
            sys.stderr.flush()
        return EXIT_CODES[kind]
    log.info("done")
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    # the results are on disk: engines that hang or abort while they shut down must not cost them
    os._exit(code)
