"""Faults for the tests of training."""

from contextlib import contextmanager

import pytest


@pytest.fixture
def killed(monkeypatch):
    """`with killed(owner, name, times): ...` stops what runs in it at a call of `owner.name`."""

    @contextmanager
    def stop(owner, name, times=1):
        original, calls = getattr(owner, name), []

        def hook(*args, **kwargs):
            calls.append(name)
            if len(calls) == times:
                raise KeyboardInterrupt
            return original(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, hook)
            with pytest.raises(KeyboardInterrupt):
                yield

    return stop


@pytest.fixture(autouse=True)
def _few_lm_eval_tasks(few_lm_eval_tasks: None) -> None:
    """lm-eval reads few of its own tasks here."""
