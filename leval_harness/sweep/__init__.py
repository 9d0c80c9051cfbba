"""Sweeps: configs, runs and their identity, workers on GPUs and machines, and their errors."""

from resonance_vllm.common.errors import SettingError


class ConfigError(SettingError):
    """A sweep config cannot be run as it is written (exit code 2)."""


class SweepError(OSError):
    """A sweep cannot continue, for a reason outside of its runs."""
