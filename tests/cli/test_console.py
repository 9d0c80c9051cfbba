"""What a command prints: without credentials, and to readers that may leave."""

import io
import os
import signal
import sys

import pytest

from leval_harness.cli.console import ENDING, SafeStream, interrupted_by_signals, safe_streams
from leval_harness.cli.main import main

TOKEN = "hf_" + 20 * "x"


@pytest.mark.parametrize(
    ("names", "plain", "text", "printed"),
    [
        (False, False, f"at {TOKEN}\n", "at ***\n"),
        (False, False, "password=abc1\n", "password=abc1\n"),
        (True, False, "password=abc1\n", "password=***\n"),
        (True, False, f"\r 30%|##| \x1b[31m{TOKEN}", "\r 30%|##| \x1b[31m***"),
        (True, True, f"\x1b[31ma\tb\r{TOKEN}\x07\n", "\\x1b[31ma\tb\r***\\x07\n"),
        (True, True, "\n\x1b[A\x1b[A", "\n\x1b[A\x1b[A"),
    ],
)
def test_credentials_and_control_characters_do_not_pass(names, plain, text, printed):
    inner = io.StringIO()
    assert SafeStream(inner, names=names, plain=plain).write(text) == len(text)
    assert inner.getvalue() == printed


def test_messages_are_redacted_by_names_and_output_by_forms_alone(capsys):
    with safe_streams():
        sys.stdout.write(f"password=abc1 {TOKEN}\n")
        sys.stderr.write(f"password=abc1 {TOKEN}")
    assert capsys.readouterr() == ("password=abc1 ***\n", "password=*** ***")


def test_what_click_quotes_cannot_steer_a_terminal(capsys):
    with pytest.raises(SystemExit) as end:
        main(["data", "list", "no\x9bpe\x1b[31m"])
    said = capsys.readouterr().err
    assert end.value.code == 2
    assert said.startswith("Usage: ")
    assert "no\\x9bpe\\x1b[31m" in said.splitlines()[-1]


@pytest.mark.parametrize("needs_reader", [True, False])
def test_a_reader_that_leaves_ends_a_command_or_not(needs_reader):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        stream = SafeStream(pipe, names=True)
        stream.needs_reader = needs_reader
        stream.write("a line\n")
        if needs_reader:
            with pytest.raises(BrokenPipeError):
                stream.flush()
            os.dup2(os.open(os.devnull, os.O_WRONLY), writing)  # for what is buffered
        else:
            stream.flush()
            assert stream.write("more\n") == 5
            stream.flush()


def test_the_first_signal_interrupts_and_those_that_follow_do_not():
    before = [signal.getsignal(number) for number in ENDING]
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
    assert [signal.getsignal(number) for number in ENDING] == before
