"""Settings of a closed-ended task, read from the run's metadata."""

from collections.abc import Mapping
from typing import Any

from leval_border.settings import Settings, field_names, read
from leval_tasks.metadata import ClosedSettings, OptionalCount, read_metadata


def read_settings(side: str, metadata: Mapping[str, Any]) -> ClosedSettings:
    """What was asked for; where nothing is said of truncation, `side`.

    Raises:
        SettingError: a value that is not allowed.
    """
    settings = read_metadata(ClosedSettings, metadata)
    return settings if settings.truncation else settings.changed(truncation=side)


class _AnswerLength(Settings):
    """The names that lm-eval's backends accept."""

    max_gen_toks: OptionalCount = None
    max_new_tokens: OptionalCount = None
    max_tokens: OptionalCount = None
    max_completion_tokens: OptionalCount = None


def generation_tokens(generation_kwargs: Mapping[str, Any]) -> int:
    """Tokens to generate, under any of the names that lm-eval's backends accept.

    Raises:
        SettingError: not a positive whole number.
    """
    names = field_names(_AnswerLength)
    given = read(_AnswerLength, {k: v for k, v in generation_kwargs.items() if k in names})
    return next((tokens for _, tokens in given if tokens), 512)
