"""What both trainings share: resuming after a kill, transformers' Trainer, what made a result."""

import contextlib
import csv
import hashlib
import io
import json
import logging
import math
import os
import shlex
import shutil
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from torch.utils.data import SequentialSampler
from transformers import Trainer, TrainerCallback, TrainingArguments

from leval_border.errors import UserError
from leval_border.files import (
    altered,
    file_sha256,
    hashes,
    read_object,
    user_path,
    write_json,
    write_text,
)
from leval_harness.locks import LockedError, lock

logger = logging.getLogger(__name__)

CLOCK = "leval_harness_clock"
STATE_FILES = "leval_harness_files.json"


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a training's folder alone.

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


def finished(result: Path, numbers: Collection[str]) -> dict[str, Any] | None:
    """The result of a training, if it is whole and all files that it names are as it left them.

    It holds `numbers`, which may be of a part: `test.ood_accuracy`.
    """
    content = read_object(result)
    if content is None:
        return None
    named = content.get("files", {})
    wrong = altered(result.parent, named) if _are_hashes(named) else [f"{result.name}: files"]
    wrong += [f"{result.name}: {name}" for name in numbers if not _is_number(content, name)]
    if wrong:
        logger.warning("%s: %s changed since; trained again", result.parent, ", ".join(wrong[:5]))
        return None
    return content


def _are_hashes(named: Any) -> bool:
    return isinstance(named, dict) and all(isinstance(each, str) for each in named.values())


def _is_number(content: Any, name: str) -> bool:
    for part in name.split("."):
        content = content.get(part) if isinstance(content, dict) else None
    return isinstance(content, int | float) and math.isfinite(content)


def content_of(source: str) -> str | None:
    """SHA-256 of a file, or over those of a folder; None of a name on the hub."""
    path = user_path(source)
    if path.is_file():
        return file_sha256(path)
    if not path.is_dir():
        return None
    return hashlib.sha256(json.dumps(hashes(path)).encode()).hexdigest()


def is_claimed(file: Path, request: Mapping[str, Any]) -> bool:
    """Whether `file` claims its folder for the same request; False where the folder is free.

    Raises:
        UserError: the folder holds something else, or was made from files that changed since.
    """
    folder = file.parent
    written = read_object(file) or read_object(_copy(file))
    if written is not None or file.is_file():
        asked = json.loads(json.dumps(request))
        before = {**(written or {}), "inputs": (written or {}).get("inputs", asked.get("inputs"))}
        if before == {"inputs": None, **asked}:
            return True
        if {**before, "inputs": asked.get("inputs")} == asked:
            noted = before["inputs"] if isinstance(before["inputs"], dict) else {}
            changed = [name for name, each in asked["inputs"].items() if noted.get(name) != each]
            raise UserError(
                f"out: {folder} holds a run on other content of {', '.join(changed)}, which "
                "changed since; choose another folder"
            )
        raise UserError(
            f"out: {folder} holds a run with other settings ({file.name}); choose another folder, "
            "or repeat the settings to continue there"
        )
    if folder.is_dir() and any(not inside.name.startswith(".") for inside in folder.iterdir()):
        raise UserError(
            f"out: {folder} is not empty and holds no such training; choose another folder"
        )
    return False


def claim(file: Path, request: Mapping[str, Any]) -> None:
    """Make a folder that of a training, see `is_claimed`; a copy stands in for a damaged file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    for each in (_copy(file), file):
        write_text(each, json.dumps(request, indent=1, sort_keys=True))


def _copy(file: Path) -> Path:
    return file.with_name(f".{file.name}")


def write_rows(file: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a CSV anew: what a resumed run knows of the steps before."""
    file.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *rows])
    write_text(file, text.getvalue())


def add_row(file: Path, row: Sequence[object]) -> None:
    """Append a row to a CSV that `write_rows` began."""
    with file.open("a", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerow(row)


def training_arguments(states: Path, cpu: bool = False, **options: Any) -> TrainingArguments:
    """What all our trainings ask of transformers' Trainer.

    `cpu` trains on the CPU even where there is something faster.
    """
    return TrainingArguments(
        output_dir=str(states),
        logging_nan_inf_filter=False,
        # bf16 on a CPU is refused unless the CPU is asked for by name.
        use_cpu=cpu or not torch.accelerator.is_available(),
        dataloader_pin_memory=False,
        report_to=[],
        **options,
    )


class InOrderTrainer(Trainer):
    """Trainer that reads its data set once, in order; the data set holds what all steps need.

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
        """Take up the time of the sessions before."""
        self._before = self.seconds = float(state.stateful_callbacks.get(CLOCK, 0.0))
        self._start = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Note the time, so that a state saved now holds it."""
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
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    return {"command": command, "versions": versions, "host": host}
