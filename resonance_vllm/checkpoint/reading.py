"""How a checkpoint's config is read: by transformers' own class, from a folder or the hub."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from resonance_vllm.checkpoint.rope_dict import refuse_contradictions
from resonance_vllm.common.errors import RopeConfigError, error_message, short_repr
from resonance_vllm.common.files import expand_user
from resonance_vllm.common.hub import check_folder_exists

logger = logging.getLogger(__name__)


def read_config(path: str, revision: str | None = None) -> Any:
    """Return the config of a checkpoint as transformers' class for its family reads it.

    Args:
        path: checkpoint folder or hub name.
        revision: of the hub.

    Returns:
        A `PreTrainedConfig`; where transformers does not know the model type, the content of
        config.json as a dictionary.

    Raises:
        SettingError: `path` can only be a folder, and there is none.
        RopeConfigError: transformers cannot read the folder's config.json, or it has RoPE settings
            in two places that differ.
        OSError: neither a folder nor a model of the hub has the name, or the hub did not answer.
    """
    check_folder_exists(path, "model")
    import transformers

    is_local = expand_user(path).is_dir()
    name = str(expand_user(path)) if is_local else path
    if is_local and not Path(name, "config.json").is_file():
        raise RopeConfigError(f"model: {name} holds no config.json; give a checkpoint")
    try:
        content, _ = transformers.PreTrainedConfig.get_config_dict(name, revision=revision)
        refuse_contradictions(content)
        model_type = content.get("model_type")
        if model_type not in transformers.CONFIG_MAPPING:
            logger.warning("%s: transformers does not know model type %r", path, model_type)
            return dict(content)
        with _without_rope_warnings():
            return transformers.AutoConfig.from_pretrained(name, revision=revision)
    except RopeConfigError as error:
        raise RopeConfigError(f"config.json of {path}: {error}") from None
    except Exception as error:
        reason = error_message(error)
        if is_local:
            raise RopeConfigError(f"config.json of {path}: cannot be read: {reason}") from error
        missing = f"model: no folder {short_repr(path)}, and none on the hub: {reason}"
        raise OSError(missing) from error


@contextlib.contextmanager
def _without_rope_warnings() -> Iterator[None]:
    """Silence warnings of types and keys that transformers does not know: they may be this package's."""
    rope_logger = logging.getLogger("transformers.modeling_rope_utils")
    level = rope_logger.level
    rope_logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        rope_logger.setLevel(level)
