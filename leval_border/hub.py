"""What is said while a model's name is looked up on the hub."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from leval_border.errors import SettingError, shown
from leval_border.files import user_path

logger = logging.getLogger(__name__)


def refuse_missing_folder(name: str, field: str) -> None:
    """Refuse a name that can only be a folder's, such as `./model`, where there is none.

    Args:
        name: of a folder or file, or a model on the hub.
        field: the setting that has it.

    Raises:
        SettingError: there is no such folder.
    """
    is_path = name.startswith((".", "/", "~")) or name.count("/") > 1
    if is_path and not user_path(name, field).exists():
        raise SettingError(f"{field}: there is no folder {shown(name)}")


@contextmanager
def asking_hub(name: str, field: str) -> Iterator[None]:
    """Say that a name is no folder before the hub is asked for it, and hide the hub's retries.

    Without a connection that takes up to a minute. A name that is a folder passes in silence.

    Args:
        name: of a folder or a model.
        field: the setting that has it.
    """
    if user_path(name, field).is_dir():
        yield
        return
    logger.warning("%s: there is no folder %s; the hub is asked for it", field, shown(name))
    with errors_only("huggingface_hub"):
        yield


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
