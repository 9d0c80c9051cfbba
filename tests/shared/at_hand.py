"""What this machine has for tests, and why a test cannot run where something is missing.

A test says what it needs by a marker: `engine(NAME)`, or `data` for real documents.
"""

import importlib.util
import os
import shutil
from pathlib import Path

DOCUMENTS = Path(os.environ.get("LEVAL_TEST_DATA", "DATA")).resolve()
REAL_DATA = "real data"
IN_CI = {"vllm", "ray", "browser", "latex"}
"""Engines that have to be there in CI."""
CAP_SYS_ADMIN = 21


def may_mount() -> bool:
    """Return whether this process may mount file systems, and has the command for it."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return False
    (capabilities,) = (line.split()[1] for line in status.splitlines() if "CapEff" in line)
    return bool(int(capabilities, 16) >> CAP_SYS_ADMIN & 1) and shutil.which("mount") is not None


def missing() -> dict[str, str]:
    """Return what this machine lacks, and for each the reason with which a test is skipped."""
    has_browser = all(map(shutil.which, ("chromium", "chromedriver")))
    has_slurm = shutil.which("slurmctld") is not None and os.getuid() == 0
    there = {
        REAL_DATA: (DOCUMENTS.is_dir(), f"no documents in {DOCUMENTS}; set LEVAL_TEST_DATA"),
        "mount": (may_mount(), "no right to mount a file system"),
        "vllm": (importlib.util.find_spec("vllm") is not None, "vLLM is not installed"),
        "ray": (importlib.util.find_spec("ray") is not None, "Ray is not installed"),
        "browser": (has_browser, "no chromium"),
        "latex": (shutil.which("pdflatex") is not None, "no pdflatex"),
        "slurm": (has_slurm, "no slurmctld"),
    }
    return {name: reason for name, (is_there, reason) in there.items() if not is_there}
