"""What is run: sweep configs, runs and their identity, workers, progress; and what can fail."""

from resonance_vllm.common.errors import SettingError


class ConfigError(SettingError):
    """A sweep config that cannot be run as it is written (wrong usage: exit code 2)."""


class SweepError(OSError):
    """A sweep that cannot go on, for a reason outside of its runs."""
