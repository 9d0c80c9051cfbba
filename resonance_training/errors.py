"""What can go wrong in a training, as a user should hear of it."""

from leval_border.errors import SettingError, UserError


class TrainingError(UserError):
    """A training that cannot be done or cannot go on."""


class TrainingSettingError(TrainingError, SettingError):
    """A setting, a name or a folder of a training that cannot be meant."""
