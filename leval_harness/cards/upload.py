"""Send a folder of results, a page or cards to a data set repository of the Hugging Face Hub."""

import os
from collections.abc import Sequence
from pathlib import Path

from leval_harness.layout import PARTIAL, SUPERSEDED
from leval_harness.secrets import redact
from resonance_vllm.errors import SettingError, UserError, printable

LEFT_OUT = (f"{PARTIAL}*", SUPERSEDED, ".*")
"""Unfinished attempts, cells of an earlier config, hidden files."""
TEXT = (".json", ".jsonl", ".txt", ".csv", ".md", ".html", ".yaml", ".yml")


def files_to_upload(folder: Path) -> list[Path]:
    """The regular files below a folder that are published, relative to it, in order.

    Raises:
        UserError: there is none, or a text holds something in the form of a credential.
    """
    found = [
        path.relative_to(folder)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and not _left_out(path.relative_to(folder))
    ]
    if not found:
        raise UserError(f"FOLDER: {printable(str(folder))} holds no file to upload")
    for path in found:
        if path.suffix in TEXT:
            text = (folder / path).read_text(encoding="utf-8", errors="replace")
            if redact(text, names=False) != text:
                raise UserError(
                    f"{printable(str(folder / path))}: holds text in the form of a credential; "
                    "nothing was uploaded. Remove it first"
                )
    return found


def _left_out(path: Path) -> bool:
    return any(Path(part).match(pattern) for part in path.parts for pattern in LEFT_OUT)


def check_repository(repository: str) -> None:
    """Refuse what cannot be a repository of the Hub.

    Raises:
        SettingError: names what is allowed.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise SettingError(f"--repo: {error}") from error


def upload(folder: Path, files: Sequence[Path], repository: str, *, private: bool) -> str:
    """Upload files of a folder in one commit, under the folder's name; the commit's address.

    The repository is created if it does not exist. The token is that of `hf auth login` or
    `HF_TOKEN`; `HF_ENDPOINT` names another hub.

    Raises:
        SettingError: it cannot be a repository's name.
        UserError: the hub refuses, cannot be reached, or there is no token.
    """
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.errors import OfflineModeIsEnabled

    check_repository(repository)
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"), library_name="leval-harness")
    name = folder.resolve().name
    operations = [CommitOperationAdd(f"{name}/{path.as_posix()}", folder / path) for path in files]
    try:
        api.create_repo(repository, repo_type="dataset", private=private, exist_ok=True)
        done = api.create_commit(
            repository, operations, commit_message=f"Results: {name}", repo_type="dataset"
        )
    except OfflineModeIsEnabled as error:
        raise UserError("HF_HUB_OFFLINE: is set; unset it to upload") from error
    except Exception as error:  # the hub's client raises errors of an HTTP library that it changes
        raise UserError(f"--repo: {repository} was not written: {redact(str(error))}") from error
    return done.commit_url
