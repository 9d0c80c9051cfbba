"""Parts of every training: its folder, states to resume from, metrics, devices."""

import contextlib
import csv
import io
import json
import os
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import SequentialSampler
from transformers import Trainer, TrainerCallback, TrainingArguments

from leval_harness.locks import LockedError, lock
from resonance_vllm.errors import UserError
from resonance_vllm.files import read_object, write_text

CLOCK = "leval_harness_clock"


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


def last_state(states: Path) -> str | None:
    """Folder of the newest whole state of transformers' Trainer.

    The Trainer writes `trainer_state.json` last, but would resume from a state that lacks it.
    """
    files = states.glob("checkpoint-*/trainer_state.json")
    whole = [file.parent for file in files if read_object(file)]
    newest = max(whole, key=lambda folder: int(folder.name.rpartition("-")[2]), default=None)
    return None if newest is None else str(newest)


def refuse_other(file: Path, request: Mapping[str, Any]) -> None:
    """Refuse a folder that holds another training than `request`, which `file` in it tells.

    Raises:
        UserError: the folder holds something else.
    """
    folder, written = file.parent, read_object(file)
    if written is None:
        if folder.is_dir() and any(not inside.name.startswith(".") for inside in folder.iterdir()):
            raise UserError(
                f"out: {folder} is not empty and holds no such training; choose another folder"
            )
    elif written != json.loads(json.dumps(request)):
        raise UserError(
            f"out: {folder} holds a run with other settings ({file.name}); choose another folder, "
            "or repeat the settings to continue there"
        )


def write_rows(file: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a CSV of all rows so far."""
    file.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *rows])
    write_text(file, text.getvalue())


def device_of(name: str) -> torch.device:
    """`cpu`, or for `auto` the accelerator of this machine, else its CPU.

    A torch that was built for CUDA names it on machines without a GPU too, so availability is
    checked.
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator if name == "auto" and accelerator else torch.device("cpu")


def training_arguments(states: Path, cpu: bool = False, **options: Any) -> TrainingArguments:
    """Arguments of transformers' Trainer; `cpu` trains on the CPU even if there is a GPU."""
    return TrainingArguments(
        output_dir=str(states),
        save_total_limit=1,
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


class Clock(TrainerCallback):
    """Seconds of training over all sessions of a run, kept in its states.

    Steps that a killed session had not saved are repeated and count once.
    """

    seconds = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Continue from the time of earlier sessions."""
        self.seconds = float(state.stateful_callbacks.get(CLOCK, 0.0))
        self._start = time.perf_counter() - self.seconds

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Record the time for a state that is saved now."""
        self.seconds = state.stateful_callbacks[CLOCK] = time.perf_counter() - self._start


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
