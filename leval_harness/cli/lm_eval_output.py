"""What lm-eval writes while `leval-harness lm-eval` runs: without credentials, and plain text."""

import contextlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from leval_border.errors import SettingError, printable
from leval_harness import secrets
from leval_harness.backends import environment
from leval_harness.yaml_files import read_yaml

_LINES = re.compile(r"[\n\r\t]")
_MOVES = re.compile(r"(\n|\x1b\[A)+")
"""What progress bars write, alone, to get from one to another."""


class Cleaned:
    """A stream to which pass no credentials, and no control characters but those of lines."""

    def __init__(self, stream: TextIO, hidden: Sequence[str]) -> None:
        self._stream = stream
        self._hidden = hidden

    def write(self, text: str) -> int:
        """Write a text; how much of it was taken, which is all."""
        if not _MOVES.fullmatch(text):
            text = secrets.hidden(text, self._hidden)
            ends = [*_LINES.findall(text), ""]
            pairs = zip(_LINES.split(text), ends, strict=True)
            self._stream.write("".join(printable(part) + end for part, end in pairs))
        else:
            self._stream.write(text)
        return len(text)

    def writelines(self, lines: Sequence[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def credentials(arguments: Sequence[str]) -> list[str]:
    """Every text that must not be seen: of lm-eval's arguments and config file, of environment."""
    found: secrets.Secrets = []
    for before, argument in zip(["", *arguments], arguments, strict=False):
        name, equals, value = argument.partition("=")
        option, text = (name, value) if equals and name.startswith("-") else (before, argument)
        if re.match("-C[^=]", argument):
            option, text = "-C", argument[2:]
        found += secrets.in_text(text)
        if option in ("--config", "-C"):
            with contextlib.suppress(SettingError):  # lm-eval says what is wrong with it
                for setting in read_yaml(Path(text)).items():
                    found += secrets.split(dict([setting]))[1]
                    found += secrets.in_text(setting[1]) if isinstance(setting[1], str) else []
    return secrets.values(found)


@contextlib.contextmanager
def cleaned(hidden: Sequence[str]) -> Iterator[None]:
    """While this lasts, what is printed is without some texts, and plain text."""
    out, err = Cleaned(sys.stdout, hidden), Cleaned(sys.stderr, hidden)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield


@contextlib.contextmanager
def cleaned_files(hidden: Sequence[str], started_in: Mapping[str, str]) -> Iterator[None]:
    """While this lasts, lm-eval saves its results without some texts, nor what bears their name.

    Their `config` says which variables of the environment that it was `started_in` decide numbers.
    """
    from lm_eval import loggers

    stock = loggers.EvaluationTracker

    class Tracker(stock):  # type: ignore[misc,valid-type]
        def save_results_aggregated(self, results: Any, samples: Any = None) -> None:
            called = results.get("config") or {}
            if given := environment(str(called.get("model")), started_in):
                results = {**results, "config": {**called, "environment": given}}
            stated = {"config", "configs", "pretty_env_info"} & set(results)
            named = {name: secrets.redacted(results[name]) for name in stated}
            public = secrets.hidden({**results, **named}, hidden)
            super().save_results_aggregated(public, secrets.hidden(samples, hidden))

        def save_results_samples(self, task_name: str, samples: Any) -> None:
            super().save_results_samples(task_name, secrets.hidden(samples, hidden))

    loggers.EvaluationTracker = Tracker
    try:
        yield
    finally:
        loggers.EvaluationTracker = stock
