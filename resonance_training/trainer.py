"""What both trainings share: resuming after a kill, transformers' Trainer, what made a result."""

import csv
import json
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import SequentialSampler
from transformers import Trainer, TrainerCallback, TrainingArguments

from leval_border.errors import UserError
from leval_border.files import read_object, write_text

CLOCK = "leval_harness_clock"


def last_state(states: Path) -> tuple[str | None, int]:
    """Folder and step of the newest whole state, `(None, 0)` without one.

    transformers' Trainer writes `trainer_state.json` last; a state without a readable one was cut
    off while it was written, and the one before it still stands.
    """
    steps = {int(folder.name.split("-")[1]): folder for folder in states.glob("checkpoint-*")}
    for step, folder in sorted(steps.items(), reverse=True):
        if read_object(folder / "trainer_state.json") is not None:
            return str(folder), step
    return None, 0


def is_claimed(file: Path, request: Mapping[str, Any]) -> bool:
    """Whether `file` claims its folder for the same request; False where the folder is free.

    Raises:
        UserError: the folder holds something else.
    """
    folder = file.parent
    if file.is_file():
        if read_object(file) == json.loads(json.dumps(request)):
            return True
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
    """Make a folder that of a training, see `is_claimed`."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, json.dumps(request, indent=1, sort_keys=True))


def keep_rows(file: Path, columns: Sequence[str], last: int) -> None:
    """Keep a CSV's rows up to a step, its first column; a resumed run writes later ones again."""
    rows: list[list[str]] = []
    if file.is_file():
        with file.open(newline="") as stream:
            rows = [r for r in csv.reader(stream) if r and r[0].isdigit() and int(r[0]) <= last]
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, "".join(f"{','.join(row)}\n" for row in [columns, *rows]))


def add_row(file: Path, row: Sequence[object]) -> None:
    """Append a row to a CSV that `keep_rows` began."""
    with file.open("a", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerow(row)


def training_arguments(states: Path, cpu: bool = False, **options: Any) -> TrainingArguments:
    """What all our trainings ask of transformers' Trainer.

    Of the resumable states in the folder `states` the newest is kept; `cpu` trains on the CPU even
    where there is something faster.
    """
    return TrainingArguments(
        output_dir=str(states),
        save_total_limit=1,
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
