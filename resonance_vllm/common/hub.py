"""How a checkpoint's config is read: by transformers' own class, from a folder or from the hub."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from resonance_vllm.common.errors import (
    RopeConfigError,
    SettingError,
    UserError,
    error_message,
    short_repr,
)
from resonance_vllm.common.files import expand_user

logger = logging.getLogger(__name__)


def read_config(path: str, revision: str | None = None) -> Any:
    """The config of a checkpoint folder or hub model, as transformers' class for it reads it.

    Where transformers does not know the model type, it is the content of config.json.

    Raises:
        SettingError: there is no such folder.
        RopeConfigError: transformers cannot read the folder's config.json.
        OSError: neither a folder nor a model of the hub has the name, or the hub did not answer.
    """
    check_folder_exists(path, "model")
    import transformers

    local = expand_user(path).is_dir()
    name = str(expand_user(path)) if local else path
    if local and not Path(name, "config.json").is_file():
        raise RopeConfigError(f"model: {name} holds no config.json; give a checkpoint")
    try:
        content, _ = transformers.PreTrainedConfig.get_config_dict(name, revision=revision)
        kind = content.get("model_type")
        if kind not in transformers.CONFIG_MAPPING:
            logger.warning("%s: transformers does not know model type %r", path, kind)
            return dict(content)
        # it warns of types and keys that it does not know, which may be ours
        logging.getLogger("transformers.modeling_rope_utils").setLevel(logging.ERROR)
        return transformers.AutoConfig.from_pretrained(name, revision=revision)
    except Exception as error:
        reason = error_message(error)
        if local:
            raise RopeConfigError(f"config.json of {path}: cannot be read: {reason}") from error
        raise OSError(
            f"model: no folder {short_repr(path)}, and none on the hub: {reason}"
        ) from error


@contextmanager
def loading_errors(path: str) -> Iterator[None]:
    """Errors of transformers on a folder that is no model, of many kinds, as a `UserError`."""
    check_folder_exists(path, "model")
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{path}: transformers cannot load it: {error_message(error)}") from error


def check_folder_exists(name: str | Path, field: str) -> None:
    """A name that can only be a folder's, such as `./model`, where there is none: SettingError."""
    name = str(name)
    is_path = name.startswith((".", "/", "~")) or name.count("/") > 1
    if is_path and not expand_user(name).exists():
        raise SettingError(f"{field}: there is no folder {short_repr(name)}")


def resolve_commit(repo: str, revision: str | None) -> tuple[str, Path | None]:
    """The commit that a hub name means, and the folder of its snapshot if it is on this machine.

    Without a connection the snapshot on this machine counts; without one either, it is an OSError.
    """
    from huggingface_hub import HfApi, try_to_load_from_cache

    names = ("config.json", "adapter_config.json", "tokenizer_config.json")
    found = (try_to_load_from_cache(repo, name, revision=revision) for name in names)
    snapshot = next((Path(each).parent for each in found if isinstance(each, str)), None)
    try:
        commit = str(HfApi().model_info(repo, revision=revision).sha)
    except Exception as error:
        if snapshot is None:
            raise OSError(
                f"{short_repr(repo)}: the hub does not give it: {error_message(error)}"
            ) from error
        return snapshot.name, snapshot
    return commit, snapshot if snapshot and snapshot.name == commit else None
