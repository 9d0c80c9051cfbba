"""What a worker's log says about a failure: its last line, the last exception of an engine."""

import re

from resonance_vllm.errors import printable

_EXCEPTION = re.compile(r"(?:^|[\s\]])((?:\w+\.)*\w*(?:Error|Exception)\b: .+)$")
_POINTERS = ("root cause above", "EngineCore encountered", "EngineCore failed", "EngineDeadError")
"""What an engine says of an exception that stands further above."""


def last_line(log: bytes) -> str:
    """The last line of a log, fit for a terminal; a bar counts as its last state."""
    text = log[-64 * 1024 :].decode("utf-8", errors="replace")
    states = (line.rstrip().split("\r")[-1].strip() for line in text.split("\n"))
    lines = [state for state in states if state]
    return printable(lines[-1][:500]) if lines else "no output"


def reason_of(error: BaseException, log: bytes) -> str:
    """Why an evaluation failed, in one line.

    An engine in a process of its own says that it has failed; its reason is in the log.
    """
    text = f"{type(error).__name__}: {error}".strip()
    if not any(pointer in text for pointer in _POINTERS):
        return text
    lines = log.decode("utf-8", errors="replace").splitlines()
    found = [match[1] for line in lines if (match := _EXCEPTION.search(line.rstrip()))]
    causes = [line for line in found if not any(pointer in line for pointer in _POINTERS)]
    return printable(causes[-1]) if causes else text
