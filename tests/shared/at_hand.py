"""What this machine has for tests, and why a test cannot run where something is missing.

A test says what it needs by its marker (`vllm`, `browser`, `latex`), by the fixture `real_data`, or
by `pytest.mark.needs(NAME)`.
"""

import importlib.util
import os
import shutil
from pathlib import Path

DOCUMENTS = Path(os.environ.get("LEVAL_TEST_DATA", "DATA")).resolve()
CAP_SYS_ADMIN = 21


def may_mount() -> bool:
    """Whether this process may mount file systems, and has the command for it."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return False
    (capabilities,) = (line.split()[1] for line in status.splitlines() if "CapEff" in line)
    return bool(int(capabilities, 16) >> CAP_SYS_ADMIN & 1) and shutil.which("mount") is not None


def missing() -> dict[str, str]:
    """What this machine lacks -> why the tests that need it are skipped."""
    there = {
        "documents": (DOCUMENTS.is_dir(), f"no documents in {DOCUMENTS}; set LEVAL_TEST_DATA"),
        "mount": (may_mount(), "no right to mount a file system"),
        "vllm": (importlib.util.find_spec("vllm") is not None, "vLLM is not installed"),
        "browser": (all(map(shutil.which, ("chromium", "chromedriver"))), "no chromium"),
        "latex": (shutil.which("pdflatex") is not None, "no pdflatex"),
        "slurm": (shutil.which("slurmctld") is not None and os.getuid() == 0, "no slurmctld"),
    }
    return {name: why for name, (is_there, why) in there.items() if not is_there}
