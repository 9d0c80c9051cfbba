"""What can be wrong with a task's data, tokenizer or context; settings are `SettingError`s."""

from leval_border.errors import UserError


class TaskError(UserError):
    """A task cannot run as asked."""


class DataError(TaskError):
    """Documents are missing, unreadable, altered or not in L-Eval's layout."""


class HubUnreachableError(DataError):
    """The hub cannot be asked at all, so no other file can be had either."""


class PredictionError(DataError):
    """A prediction file is not in L-Eval's published format."""


class TokenizerError(TaskError):
    """No tokenizer is known to the task, or it cannot say where its tokens lie in the text."""


class ContextLengthError(TaskError):
    """The context length is unknown, too small for the prompt or above the backend's limit."""
