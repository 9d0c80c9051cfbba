"""Parts of every training: its folder, its device, what made it."""

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
    """Refuse a folder that holds another training than `request`, which `file` in it tells.

    Raises:
        UserError: the folder holds something else.
    """
    folder, written = file.parent, read_json_object(file)
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


def refuse_infinite(loss: float, place: str) -> None:
    """Stop a training whose loss is NaN or infinite, with a `RunError`."""
    if not math.isfinite(loss):
        raise RunError(f"loss: {loss} at {place}; lower the learning rate, or train without bf16")


def device() -> torch.device:
    """The accelerator of this machine, else its CPU.

    A torch that was built for CUDA names it on machines without a GPU too, so availability is
    checked.
    """
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def made_by() -> dict[str, Any]:
    """`command` and `versions` of this process."""
    names = ("leval-harness", "torch", "transformers")
    program = Path(sys.argv[0]).name.replace("__main__.py", "leval-harness")  # python -m
    command = shlex.join([program, *sys.argv[1:]])
    return {"command": command, "versions": {name: version(name) for name in names}}
