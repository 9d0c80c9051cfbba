"""The GPUs that this process may use, by the names under which CUDA or ROCm know them."""

import contextlib
import os
import re
import subprocess
from functools import cache

VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""Variables that hide GPUs from a process; inside of it the visible ones are numbered from 0."""
RENUMBERING = "ROCR_VISIBLE_DEVICES"
"""A variable of ROCm below these: they count the GPUs that it leaves from 0."""
LISTING_COMMANDS = {
    "nvidia-smi --query-gpu=index --format=csv,noheader": r"^\d+",
    "rocm-smi --showid --csv": r"^card(\d+)",
}
"""Command that lists the GPUs of the machine -> pattern of a GPU's number in its output."""


MEMORY_COMMAND = "nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits"
"""Command that prints the memory of each GPU in MiB."""


@cache
def memory_of_gpu() -> int | None:
    """Return the memory of the smallest GPU of the machine in bytes; None if no driver reports it."""
    try:
        printed = subprocess.run(
            MEMORY_COMMAND.split(), capture_output=True, text=True, timeout=60, check=True
        ).stdout
        return min(int(line) for line in printed.split()) * 2**20
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def visible_gpus() -> list[str]:
    """Return the names of the GPUs that this process may use.

    A variable decides if one is set; it may hold numbers, UUIDs or MIG names. Otherwise the tools
    of the driver are asked. torch is not: it may be a build for CPUs.
    """
    for variable in VISIBLE_DEVICES:
        if variable in os.environ:
            return parse_visible_devices(os.environ[variable])
    if RENUMBERING in os.environ:
        count = len(parse_visible_devices(os.environ[RENUMBERING]))
        return [str(number) for number in range(count)]
    return _listed_gpus()


def parse_visible_devices(value: str) -> list[str]:
    """Return the devices that a variable such as `CUDA_VISIBLE_DEVICES` leaves visible.

    CUDA stops reading at the first entry that is not a device: of `0,1,-1,3` two are visible. An
    entry that occurs twice hides all devices. A list of UUIDs (`GPU-...`) or of MIG names holds
    nothing else. A number ends at the first other character, so that `1x` is device 1.
    """
    entries = [entry.strip() for entry in value.split(",")]
    pattern = r"\d+"
    for prefix in ("GPU-", "MIG-"):
        if entries[0].startswith(prefix):
            pattern = f"{prefix}.+"
    devices: list[str] = []
    for entry in entries:
        match = re.match(pattern, entry)
        if match is None:
            break
        device = match[0]
        if device.isdecimal():
            device = str(int(device))  # "01" is device 1
        if device in devices:
            return []
        devices.append(device)
    return devices


def _listed_gpus() -> list[str]:
    """Return the numbers of the GPUs that the first available tool of a driver lists."""
    for command, number in LISTING_COMMANDS.items():
        with contextlib.suppress(OSError):
            output = subprocess.run(command.split(), capture_output=True, text=True, check=False)
            numbers = re.findall(number, output.stdout, re.MULTILINE)
            if numbers:
                return numbers
    return []
