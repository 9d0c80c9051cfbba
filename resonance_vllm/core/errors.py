"""The one error that bad RoPE settings raise."""


class RopeConfigError(ValueError):
    """RoPE settings that cannot be run: the message names field, value and what is allowed."""
