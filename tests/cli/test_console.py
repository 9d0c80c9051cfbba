"""Signals that end a command."""

import signal

import pytest

from leval_harness.cli.console import END_SIGNALS, interrupted_by_signals


def test_console_first_signal_interrupts():
    before = [signal.getsignal(number) for number in END_SIGNALS]
    cleaned = []

    def interrupted():
        with interrupted_by_signals():
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                signal.raise_signal(signal.SIGINT)
                cleaned.append(True)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert cleaned == [True]
    assert [signal.getsignal(number) for number in END_SIGNALS] == before
