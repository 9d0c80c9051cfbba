"""What a trained checkpoint's result says of its making: command, versions and machine."""

import os
import shlex
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("leval-harness", "torch", "transformers")


def made_by() -> dict[str, Any]:
    """`command`, `versions` and `host` (cores, and the GPU if there is one) of this process."""
    versions = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    host: dict[str, Any] = {"cores": os.cpu_count()}
    if torch.cuda.is_available():
        host["device"] = torch.cuda.get_device_name()
    program = Path(sys.argv[0]).name
    return {
        "command": shlex.join([program, *sys.argv[1:]]),
        "versions": versions,
        "host": host,
    }
