"""Faults for the tests of training."""

from contextlib import contextmanager

import pytest


def _global_step(args):
    """The step of a Trainer, or of the state that a callback is given."""
    states = (getattr(each, "state", each) for each in args)
    return next((s.global_step for s in states if hasattr(s, "global_step")), None)


@pytest.fixture
def killed(monkeypatch):
    """`with killed(owner, name): ...` stops what runs in it when `owner.name` is called.

    With `step` only at that training step; with `after` once the call has done its work.
    """

    @contextmanager
    def stop(owner, name, step=None, after=False):
        original = getattr(owner, name)

        def hook(*args, **kwargs):
            now = step is None or _global_step(args) == step
            if now and not after:
                raise KeyboardInterrupt
            result = original(*args, **kwargs)
            if now:
                raise KeyboardInterrupt
            return result

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, hook)
            with pytest.raises(KeyboardInterrupt):
                yield

    return stop


@pytest.fixture
def no_driver(monkeypatch):
    """Torch as it is for CUDA on a machine without a GPU: it names CUDA, which is not to be had."""
    import torch

    def named(check_available=False):
        return None if check_available else torch.device("cuda")

    monkeypatch.setattr(torch.accelerator, "current_accelerator", named)
