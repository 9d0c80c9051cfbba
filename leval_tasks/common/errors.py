"""Errors of a task's data or context; errors of its settings are `SettingError`s."""

from resonance_vllm.common.errors import RunError, UserError


class DataError(UserError):
    """Documents are missing, unreadable, altered or not in L-Eval's layout."""


class HubUnreachableError(DataError, RunError):
    """The hub cannot be reached, so fetching further files is pointless."""


class ContextLengthError(UserError):
    """The context length is unknown, too small for the prompt or above the backend's limit."""
