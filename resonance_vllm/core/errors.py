"""The one error that bad RoPE settings raise."""

from leval_border.errors import SettingError


class RopeConfigError(SettingError):
    """RoPE settings that cannot be run: the message names field, value and what is allowed."""
