"""Names of checkpoints, which are folders or models of the hub, and errors of loading them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from resonance_vllm.common.errors import (
    SettingError,
    UserError,
    error_message,
    short_repr,
)
from resonance_vllm.common.files import expand_user


@contextmanager
def loading_errors(path: str) -> Iterator[None]:
    """Turn whatever transformers raises while it loads a checkpoint into a `UserError`."""
    check_folder_exists(path, "model")
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{path}: transformers cannot load it: {error_message(error)}") from error


def check_folder_exists(name: str | Path, field: str) -> None:
    """Refuse a name that can only be a folder's, such as `./model`, where there is none.

    Raises:
        SettingError: there is no such folder; `field` begins the message.
    """
    name = str(name)
    is_path = name.startswith((".", "/", "~")) or name.count("/") > 1
    if is_path and not expand_user(name).exists():
        raise SettingError(f"{field}: there is no folder {short_repr(name)}")


def is_offline() -> bool:
    """Return whether HF_HUB_OFFLINE forbids to ask the hub."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def resolve_commit(repo: str, revision: str | None) -> tuple[str, Path | None]:
    """Return the commit that a hub name refers to, and the folder of its local snapshot.

    Without a connection the local snapshot decides.

    Returns:
        The commit's hash, and the folder of that commit's snapshot; None if it is not here.

    Raises:
        OSError: the hub does not answer, and there is no local snapshot.
    """
    from huggingface_hub import HfApi, try_to_load_from_cache

    names = ("config.json", "adapter_config.json", "tokenizer_config.json")
    snapshot = None
    for name in names:
        cached = try_to_load_from_cache(repo, name, revision=revision)
        if snapshot is None and isinstance(cached, str):
            snapshot = Path(cached).parent
    try:
        commit = str(HfApi().model_info(repo, revision=revision).sha)
    except Exception as error:
        if snapshot is None:
            raise OSError(
                f"{short_repr(repo)}: the hub does not give it: {error_message(error)}"
            ) from error
        return snapshot.name, snapshot
    if snapshot is not None and snapshot.name != commit:
        snapshot = None  # of an older commit
    return commit, snapshot
