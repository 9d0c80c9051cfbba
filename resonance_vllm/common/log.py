"""Log messages that are worth saying once."""

import functools
import logging


@functools.cache
def warn_once(logger: logging.Logger, message: str, *values: object) -> None:
    """Log a warning; the same message with the same values is logged once per process."""
    logger.warning(message, *values)
