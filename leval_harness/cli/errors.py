"""From an exception to a message and an exit code."""

import os
import traceback

import click

from leval_border.errors import SettingError, needs_extra, printable

EXTRAS = {
    "hf": ("torch", "transformers", "accelerate", "safetensors", "tokenizers"),
    "quickstart": ("gguf", "sentencepiece"),
    "ray": ("ray",),
    "ruler": ("nltk", "wonderwords"),
    "train": ("peft",),
    "vllm": ("vllm",),
}
"""Packages that the base installation lacks, and the extra that brings them."""

MENDABLE = (ValueError, OSError, ImportError, NotImplementedError)
"""With these, libraries tell a user what is missing or cannot be done."""


def _extra_for(error: BaseException) -> str:
    """What to install where a package of an extra is missing; empty for every other error."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    found = [extra for extra, packages in EXTRAS.items() if missing in packages]
    return f"; {needs_extra(found[0])}" if found else ""


def _say(message: str) -> None:
    """Print a message, which may quote names from results and files that could steer a terminal."""
    lines = map(printable, message.split("\n"))
    click.echo("Error: " + "\n".join(lines), err=True)


def exit_code_for(error: BaseException) -> int:
    """Print `error` as a user should see it and return the exit code.

    1 has failed, 2 is wrong usage (a `SettingError`, or what click refuses), 130 interrupted; a
    `SystemExit` keeps its own code.
    """
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        _say(error.code)
        return 1
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt | click.Abort):
        click.echo("Interrupted.", err=True)
        return 130
    if isinstance(error, click.ClickException):
        error.show()
        return error.exit_code
    from_template = type(error).__module__.startswith("jinja2")
    mendable = isinstance(error, MENDABLE) or from_template
    if os.environ.get("LEVAL_HARNESS_DEBUG") or not mendable:
        traceback.print_exception(error)
    reason = str(error) or type(error).__name__  # a MemoryError says nothing
    _say(f"{'chat template: ' if from_template else ''}{reason}{_extra_for(error)}")
    return 2 if isinstance(error, SettingError) else 1
