"""What the tests of this folder share."""

import pytest


@pytest.fixture(autouse=True)
def _few_lm_eval_tasks(few_lm_eval_tasks: None) -> None:
    """lm-eval reads few of its own tasks here."""
