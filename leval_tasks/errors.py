"""Errors of a task's data, tokenizer or context; errors of its settings are `SettingError`s."""

from resonance_vllm.errors import UserError


class TaskError(UserError):
    """A task cannot run with these settings, data or model."""


class DataError(TaskError):
    """Documents are missing, unreadable, altered or not in L-Eval's layout."""


class HubUnreachableError(DataError):
    """The hub cannot be reached, so fetching further files is pointless."""


class PredictionError(DataError):
    """A prediction file is not in L-Eval's published format."""


class TokenizerError(TaskError):
    """No tokenizer is known to the task, or it gives no character offsets of its tokens."""


class ContextLengthError(TaskError):
    """The context length is unknown, too small for the prompt or above the backend's limit."""
