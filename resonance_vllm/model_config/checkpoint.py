"""How the config of a checkpoint is read: by transformers' own class, a folder like a hub name."""

import functools
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from leval_border.errors import UserError, shown
from leval_border.files import user_path
from leval_border.json_texts import parse_json
from resonance_vllm.core.errors import RopeConfigError
from resonance_vllm.model_config.hub import asking_hub, errors_only, refuse_missing_folder

logger = logging.getLogger(__name__)

MOST_LAYERS, MOST_EXPERTS = 4096, 2**17
"""What is built; no model has as many. (Doge counts rows of a table as 16,384 experts.)"""
_PARTS = re.compile(r"(num|n)_\w*(layer|expert|block)s?|\w+_layers|depth")


def read_config(path: str, revision: str | None = None) -> Any:
    """The config of a checkpoint folder or hub model, as transformers' class for it reads it.

    A dictionary, the content of config.json, where transformers does not know the model type; that
    is logged.

    Raises:
        SettingError: there is no such folder.
        RopeConfigError: it holds no config.json, transformers cannot read
            that, or it has more layers or experts than could be built.
        OSError: neither a folder nor a model of the hub has the name, or the hub did not answer.
    """
    folder = user_path(path, "model")
    refuse_missing_folder(path, "model")
    from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig

    name = str(folder) if folder.is_dir() else path
    if folder.is_dir():
        content = _json_object(folder / "config.json")
    else:
        try:
            with asking_hub(path, "model"):
                content, _ = PretrainedConfig.get_config_dict(path, revision=revision)
        except OSError as error:
            raise OSError(
                f"model: there is no folder {shown(path)}, and the hub gives no such model: "
                f"{reason_of(error)}"
            ) from error
    _refuse_endless(content)
    kind = content.get("model_type")
    if kind is not None and (not isinstance(kind, str) or kind not in CONFIG_MAPPING):
        _warn_unknown(path, shown(kind))
        return content
    try:
        # transformers warns of types and keys that it does not know, which may be ours
        with errors_only("transformers.modeling_rope_utils"):
            return AutoConfig.from_pretrained(name, revision=revision, trust_remote_code=False)
    except Exception as error:
        if kind is None:  # neither the file nor the folder's name tells the family
            return content
        raise RopeConfigError(
            f"config.json of {path}: transformers cannot read it: {reason_of(error)}"
        ) from error


@contextmanager
def loading(path: str) -> Iterator[None]:
    """Errors of transformers on a folder that is no model, which are of many kinds, as one.

    Raises:
        SettingError: there is no such folder.
        UserError: names the folder and gives transformers' reason.
    """
    refuse_missing_folder(path, "model")
    try:
        with asking_hub(path, "model"):
            yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{path}: transformers cannot load it: {reason_of(error)}") from error


def reason_of(error: Exception) -> str:
    """The reason that a library gives for refusing a checkpoint, in one line."""
    return (" ".join(str(error).split()) or type(error).__name__)[:300]


def _json_object(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise RopeConfigError(f"model: {file.parent} holds no config.json")
    content = parse_json(file.read_bytes(), str(file), RopeConfigError)
    if not isinstance(content, Mapping):
        raise RopeConfigError(f"{file}: {shown(content)} is not allowed; allowed: an object")
    return dict(content)


def _refuse_endless(content: Mapping[str, Any]) -> None:
    """Config classes and model code make a list entry, or a module, of each layer and expert."""
    for key, value in content.items():
        if isinstance(value, Mapping):
            _refuse_endless(value)
        elif isinstance(value, int) and _PARTS.fullmatch(key):
            most = MOST_EXPERTS if "expert" in key else MOST_LAYERS
            if value > most:
                raise RopeConfigError(
                    f"{key}: {shown(value)} in config.json is not allowed; allowed: up to {most}"
                )


@functools.cache
def _warn_unknown(path: str, kind: str) -> None:
    import transformers

    logger.warning(
        "%s: transformers %s does not know model type %s; its config.json is read as it stands",
        path,
        transformers.__version__,
        kind,
    )
