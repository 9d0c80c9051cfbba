"""Parts of every training: the claim on its folder, states to resume from, results, devices."""

import contextlib
import csv
import hashlib
import io
import json
import logging
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from pydantic import BaseModel, ValidationError
from torch.utils.data import SequentialSampler
from transformers import Trainer, TrainerCallback, TrainingArguments

from leval_harness.checkpoint_files import loaded_files
from leval_harness.locks import LockedError, lock
from resonance_vllm.errors import SettingError, UserError, shown
from resonance_vllm.files import (
    altered,
    file_sha256,
    hashes,
    read_object,
    user_path,
    write_json,
    write_text,
)

logger = logging.getLogger(__name__)

CLOCK = "leval_harness_clock"
STATE_FILES = "leval_harness_files.json"


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Lock a training's folder.

    Raises:
        UserError: another training works on it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock(folder / ".lock"))
        except LockedError as who:
            raise UserError(
                f"out: another training works on {folder} ({who}); wait for it, end it, or choose "
                "another folder"
            ) from None
        yield


def last_state(states: Path) -> tuple[str | None, int]:
    """Folder and step of the newest whole state, `(None, 0)` without one; see `WholeStates`."""
    folders = ((each.name.partition("-")[2], each) for each in states.glob("checkpoint-*"))
    steps = {int(step): folder for step, folder in folders if step.isdecimal() and len(step) < 12}
    for step, folder in sorted(steps.items(), reverse=True):
        named = (read_object(folder / STATE_FILES) or {}).get("files")
        if isinstance(named, dict) and named and not altered(folder, named):
            return str(folder), step
    return None, 0


class Finished(BaseModel, strict=True):
    """What is read of the result of a training; a subclass has what its command prints."""

    files: dict[str, str] = {}


def finished(result: Path, form: type[Finished]) -> dict[str, Any] | None:
    """The result of a training if it has a form and all files that it names are unchanged."""
    content = read_object(result)
    if content is None:
        return None
    try:
        form.model_validate(content)
    except ValidationError:
        logger.warning("%s: is no result of a training; trained again", result)
        return None
    if changed := altered(result.parent, content.get("files", {})):
        logger.warning("%s: %s changed since; trained again", result.parent, ", ".join(changed[:5]))
        return None
    return content


def content_of(source: str) -> str | None:
    """SHA-256 of a file, or over those of a folder; None of a name on the hub.

    Of a checkpoint the files count that transformers loads, of another folder all.
    """
    path = user_path(source)
    if path.is_file():
        return file_sha256(path)
    if not path.is_dir():
        return None
    content = hashes(path)
    if (path / "config.json").is_file():
        content = {str(each.relative_to(path)): file_sha256(each) for each in loaded_files(path)}
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def is_claimed(file: Path, request: Mapping[str, Any]) -> bool:
    """Whether `file` claims its folder for the same request; False if the folder is free.

    Raises:
        UserError: the folder holds something else, or was made from files that changed since.
    """
    folder = file.parent
    written = read_object(file) or read_object(_copy(file))
    if written is None and not file.is_file():
        if folder.is_dir() and any(not inside.name.startswith(".") for inside in folder.iterdir()):
            raise UserError(
                f"out: {folder} is not empty and holds no such training; choose another folder"
            )
        return False
    request = json.loads(json.dumps(request))
    if written == request:
        return True
    inputs = request.get("inputs", {})
    if written is not None and {**written, "inputs": inputs} == {**request, "inputs": inputs}:
        before = written.get("inputs")
        before = before if isinstance(before, dict) else {}
        changed = [name for name, each in inputs.items() if before.get(name) != each]
        raise UserError(
            f"out: {folder} holds a run on other content of {', '.join(changed)}, which "
            "changed since; choose another folder"
        )
    raise UserError(
        f"out: {folder} holds a run with other settings ({file.name}); choose another folder, "
        "or repeat the settings to continue there"
    )


def claim(file: Path, request: Mapping[str, Any]) -> None:
    """Claim a folder for a training, see `is_claimed`; a copy replaces a damaged file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    for each in (_copy(file), file):
        write_text(each, json.dumps(request, indent=1, sort_keys=True))


def _copy(file: Path) -> Path:
    return file.with_name(f".{file.name}")


def write_rows(file: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a CSV: the rows that a resumed run has from the sessions before."""
    file.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *rows])
    write_text(file, text.getvalue())


def add_row(file: Path, row: Sequence[object]) -> None:
    """Append a row to a CSV that `write_rows` began."""
    with file.open("a", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerow(row)


def usable_device(name: str) -> torch.device:
    """A device of torch that can compute.

    Raises:
        SettingError: it has another form, or torch cannot use it on this machine.
    """
    try:
        torch.ones(1, device=name).item()
        return torch.device(name)
    except Exception as error:  # of many kinds
        reason = (str(error).splitlines() or [""])[0]
        raise SettingError(f"device: {shown(name)} cannot be used here: {reason}") from error


def fastest_device() -> torch.device:
    """The accelerator of this machine, else the CPU.

    A torch that was built for CUDA names it on machines without a GPU too, so availability is
    checked.
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator or torch.device("cpu")


def training_arguments(states: Path, cpu: bool = False, **options: Any) -> TrainingArguments:
    """Arguments of transformers' Trainer; `cpu` trains on the CPU even if there is a GPU."""
    return TrainingArguments(
        output_dir=str(states),
        logging_nan_inf_filter=False,
        # bf16 on a CPU is refused unless the CPU is named.
        use_cpu=cpu or not torch.accelerator.is_available(),
        dataloader_pin_memory=False,
        report_to=[],
        **options,
    )


class InOrderTrainer(Trainer):
    """Trainer that reads its data set once, in order; the data set has the rows of all steps.

    A run resumed after its last step is then at the end of its one epoch and trains no further;
    with more data than steps, transformers would do one step too many.
    """

    def _get_train_sampler(self, train_dataset: Any = None) -> SequentialSampler:
        return SequentialSampler(train_dataset or self.train_dataset)


class WholeStates(TrainerCallback):
    """Marks a state when all of it is written, with its files' hashes, and removes those before."""

    def __init__(self, states: Path) -> None:
        self.states = states

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """All processes have written their share when the first one marks it."""
        PartialState().wait_for_everyone()
        if not state.is_world_process_zero:
            return
        folder = self.states / f"checkpoint-{state.global_step}"
        write_json(folder / STATE_FILES, {"files": hashes(folder, without=(STATE_FILES,))})
        for other in self.states.glob("checkpoint-*"):
            if other != folder:
                shutil.rmtree(other, ignore_errors=True)


class Clock(TrainerCallback):
    """Seconds of training over all sessions of a run, kept in its states.

    Steps that a killed session had not saved are repeated and count once.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._before = self._start = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Continue from the time of earlier sessions."""
        self._before = self.seconds = float(state.stateful_callbacks.get(CLOCK, 0.0))
        self._start = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Record the time for a state that is saved now."""
        self.seconds = self._before + time.perf_counter() - self._start
        state.stateful_callbacks[CLOCK] = self.seconds


class Deadline(TrainerCallback):
    """Saves a state and ends the training after the first step past a time of `time.monotonic`."""

    def __init__(self, deadline: float | None) -> None:
        self.deadline = deadline

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Look at the clock."""
        if self.deadline is not None and time.monotonic() >= self.deadline:
            control.should_save = control.should_training_stop = True


def made_by() -> dict[str, Any]:
    """`command`, `versions` and `host` (cores, and the GPU if there is one) of this process."""
    versions = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in ("leval-harness", "torch", "transformers"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:  # run from its source tree
            continue
    host: dict[str, Any] = {"cores": os.cpu_count()}
    if torch.cuda.is_available():
        host["device"] = torch.cuda.get_device_name()
    program = Path(sys.argv[0]).name
    if program == "__main__.py":  # python -m leval_harness
        program = "leval-harness"
    command = shlex.join([program, *sys.argv[1:]])
    return {"command": command, "versions": versions, "host": host}
