"""Continuing a training run that was killed: which saved state is whole, and how long it took."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from torch.utils.data import SequentialSampler
from transformers import Trainer, TrainerCallback

STATE_FILE = "trainer_state.json"
CLOCK = "leval_harness_clock"


def last_state(states: Path) -> tuple[str | None, int]:
    """Folder and step of the newest whole state, `(None, 0)` without one.

    transformers' Trainer writes `trainer_state.json` last; a state without a readable one was cut
    off while it was written, and the one before it still stands.
    """
    for folder in sorted(states.glob("checkpoint-*"), key=_step, reverse=True):
        try:
            json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        return str(folder), _step(folder)
    return None, 0


def _step(folder: Path) -> int:
    number = folder.name.rsplit("-", 1)[1]
    return int(number) if number.isdigit() else -1


def write_whole(file: Path, content: str) -> None:
    """Write a file so that it is there whole or not at all; its folder is made if need be.

    The unfinished file stands beside the folder, so that a folder that was never claimed is empty.
    """
    folder = file.parent.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder.with_name(f".{folder.name}.{file.name}.{os.getpid()}")
    unfinished.write_text(content, encoding="utf-8")
    unfinished.replace(file)


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
