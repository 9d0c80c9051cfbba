"""What is said while a model's name is looked up on the hub."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from leval_border.errors import SettingError, shown
from leval_border.files import user_path

logger = logging.getLogger(__name__)


def refuse_missing_folder(name: str | Path, field: str) -> None:
    """Refuse a name that can only be a folder's, such as `./model`, where there is none.

    Args:
        name: of a folder or file, or a model on the hub.
        field: the setting that has it.

    Raises:
        SettingError: there is no such folder.
    """
    name = str(name)
    is_path = name.startswith((".", "/", "~")) or name.count("/") > 1
    if is_path and not user_path(name, field).exists():
        raise SettingError(f"{field}: there is no folder {shown(name)}")


@contextmanager
def asking_hub(name: str, field: str) -> Iterator[None]:
    """Say that a name is no folder before the hub is asked for it, and hide the hub's retries.

    Without a connection what the hub left on this machine is looked at alone: its client would try
    for half a minute. A name that is a folder passes in silence.

    Args:
        name: of a folder or a model.
        field: the setting that has it.
    """
    if user_path(name, field).is_dir():
        yield
        return
    logger.warning("%s: there is no folder %s; the hub is asked for it", field, shown(name))
    from huggingface_hub import constants

    offline = constants.HF_HUB_OFFLINE
    with errors_only("huggingface_hub"):
        constants.HF_HUB_OFFLINE = offline or not _answers(name)
        try:
            yield
        finally:
            constants.HF_HUB_OFFLINE = offline


def _answers(name: str) -> bool:
    """Whether the hub can be asked for a model: one attempt."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        HfApi().model_info(name, timeout=10)
    except (HfHubHTTPError, HFValidationError):
        return True
    except Exception:  # noqa: BLE001 - of an HTTP library that the hub's client changes
        return False
    return True


@contextmanager
def errors_only(name: str) -> Iterator[None]:
    """Let a library's logger write errors alone."""
    quiet = logging.getLogger(name)
    level = quiet.level
    quiet.setLevel(logging.ERROR)
    try:
        yield
    finally:
        quiet.setLevel(level)
