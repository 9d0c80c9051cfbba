"""Files written completely or not at all, hashed, and read with clear errors; JSON documents."""

import hashlib
import json
import os
import platform
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from resonance_vllm.common.errors import SettingError, error_message


def expand_user(text: str | os.PathLike[str]) -> Path:
    """Return a path as users write it, with `~` and `~name` expanded."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 - it leaves an unknown ~name as it is


def unique_name(prefix: str) -> str:
    """Return a file name that no other process uses: machines that share a folder share process ids."""
    return f"{prefix}.{platform.node()}.{os.getpid()}.{uuid.uuid4().hex[:8]}"


def write_text(path: Path, content: str) -> None:
    """Write a file so that a reader sees the old one or the whole new one, even after a power cut.

    Raises:
        OSError: it cannot be written; the error names the file, and no temporary file remains.
    """
    temporary = path.with_name(unique_name(f".{path.name}"))
    try:
        with temporary.open("w", encoding="utf-8", newline="") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
        fsync_folder(path.parent)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        # An error of `write` or `fsync` has no file name.
        if isinstance(error, OSError) and error.filename is None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object as `write_text` does; NaN or an infinite number is a `ValueError`."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def fsync_folder(folder: Path) -> None:
    """Make renames in a folder last through a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes in hexadecimal."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def read_json_object(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if the file is missing, cut short or another value."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def iter_json_lines(text: str) -> Iterator[tuple[int, str]]:
    r"""Yield number (from 1) and text of the non-empty lines of a JSON-lines file; \n ends one."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line


def parse_json(text: str | bytes, where: str, error: type[ValueError] = SettingError) -> Any:
    """Return the value of a JSON document; `where`, a file or option, begins the `error`."""
    try:
        return json.loads(text)
    except ValueError as wrong:
        raise error(f"{where}: not JSON ({error_message(wrong)})") from None
