"""Parts that every training shares: its folder, its device, and what made it."""

import json
import math
import shlex
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from resonance_vllm.common.errors import RunError, UserError
from resonance_vllm.common.files import read_json_object


def refuse_other(file: Path, request: Mapping[str, Any]) -> None:
    """Refuse an output folder that holds anything but the training of a request.

    Args:
        file: file in the output folder to which a training writes its request.
        request: settings of the training, as they are written.

    Raises:
        UserError: the folder holds another training, or something else.
    """
    folder = file.parent
    written = read_json_object(file)
    if written is None:
        visible = folder.is_dir() and any(
            not entry.name.startswith(".") for entry in folder.iterdir()
        )
        if visible:
            raise UserError(
                f"--out: {folder} is not empty and holds no {file.name} of a training; choose "
                "another folder"
            )
    elif written != json.loads(json.dumps(request)):  # as JSON: tuples are lists there
        raise UserError(
            f"--out: {folder} holds a training with other settings ({file.name}); choose another "
            "folder, or repeat those settings to continue it"
        )


def refuse_infinite(loss: float, place: str) -> None:
    """Stop a training whose loss is not a finite number.

    Args:
        loss: training loss in nats/token.
        place: step and training, for the message.

    Raises:
        RunError: the loss is NaN or infinite.
    """
    if not math.isfinite(loss):
        raise RunError(f"loss: {loss} at {place}; lower the learning rate, or train without bf16")


def device() -> torch.device:
    """Return the accelerator of this machine, else its CPU."""
    # a torch that was built for CUDA names it on machines without a GPU, too: hence the check
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator or torch.device("cpu")


def made_by() -> dict[str, Any]:
    """Return `command` and `versions` of this process, for results."""
    # the program's name under `python -m leval_harness` is the path of __main__.py
    program = Path(sys.argv[0]).name.replace("__main__.py", "leval-harness")
    packages = ("leval-harness", "torch", "transformers")
    return {
        "command": shlex.join([program, *sys.argv[1:]]),
        "versions": {package: version(package) for package in packages},
    }
