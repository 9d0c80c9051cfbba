"""Files: written completely or not at all, hashed, and read with clear errors; JSON documents."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from resonance_vllm.common.errors import SettingError, error_message


def expand_user(text: str | os.PathLike[str]) -> Path:
    """A path as a user writes it, `~` and `~name` resolved."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 - it leaves an unknown ~name as it is


def write_text(path: Path, content: str) -> None:
    """Write a file so that a reader sees the old one or the whole new one, also after a power cut.

    An OSError names the file; no temporary one stays behind.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8", newline="") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
        fsync_folder(path.parent)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:  # of a write, which names none
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object, see `write_text`; NaN or an infinite number is a `ValueError`."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def fsync_folder(folder: Path) -> None:
    """Make renames in a folder last through a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_sha256(path: Path) -> str:
    """SHA-256 (hex) of a file's bytes."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def read_json_object(path: Path) -> dict[str, Any] | None:
    """A JSON object from a file; None if there is none, or it is cut short or something else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def iter_json_lines(text: str) -> Iterator[tuple[int, str]]:
    r"""Number (from 1) and text of every non-empty line of a JSON-lines file; only \n ends one."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line


def parse_json(text: str | bytes, where: str, error: type[ValueError] = SettingError) -> Any:
    """The value of a JSON document; else an `error` that names file or option, as `where` does."""
    try:
        return json.loads(text)
    except ValueError as wrong:
        raise error(f"{where}: not JSON ({error_message(wrong)})") from None
