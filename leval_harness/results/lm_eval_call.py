"""What lm-eval was called with, as its results file states it: model, arguments, limits, seed."""

import json
from functools import cached_property
from typing import Any

from pydantic import ConfigDict

from leval_harness.results import settings
from leval_harness.results.fields import Outside, Text, digest, finite

LONGEST_ARGUMENTS = 20_000
"""Characters of arguments in one text that are taken apart."""


def _apart(text: str) -> list[str]:
    """The arguments in a text: the next bracket behind a comma inside a value closes."""
    parts, end, is_inside = [], len(text), False
    for at in range(len(text) - 1, -1, -1):
        if text[at] in "{}[]":
            is_inside = text[at] in "}]"
        elif text[at] == "," and not is_inside:
            parts.append(text[at + 1 : end])
            end = at
    return [text[:end], *reversed(parts)]


def _value(text: str) -> Any:
    """An argument's value as JSON has it, so that both ways of writing it say the same."""
    try:
        return json.loads({"True": "true", "False": "false", "None": "null"}.get(text, text))
    except (ValueError, RecursionError):
        return text


def _mapping(value: Any) -> dict[str, Any] | None:
    """A mapping that may have been written as JSON; None for anything else."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = _value(value)
    return value if isinstance(value, dict) else None


def _number(value: Any) -> Any:
    """A value that may have been written as text; `finite` says whether it is a number."""
    return _value(value) if isinstance(value, str) else value


class EvaluationConfig(Outside):
    """What lm-eval was called with."""

    model: Text = None
    model_args: Any = None
    model_dtype: Text = None
    model_revision: Text = None
    model_sha: Text = None
    limit: Any = None
    max_samples: Any = None
    gen_kwargs: Any = None
    random_seed: Any = None

    model_config = ConfigDict(extra="allow")

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """`model_args`, which lm-eval writes as a mapping or as `key=value,...`.

        What can be read as neither stands under a name of its own: it tells runs apart as well.
        """
        given = self.model_args
        if isinstance(given, str):
            parts = (part.partition("=") for part in _apart(given[:LONGEST_ARGUMENTS]))
            rest = {"model_args": digest(given)} if len(given) > LONGEST_ARGUMENTS else {}
            named = {n.strip(): _value(text) if sign else True for n, sign, text in parts}
            return {name: value for name, value in named.items() if name} | rest
        if isinstance(given, dict):
            return {name: _mapping(value) or value for name, value in given.items()}
        return {} if given is None else {"model_args": given}

    @property
    def questions(self) -> float | None:
        """How many were asked for of each task; None for all, and where nobody can tell."""
        numbers = (finite(_number(each)) for each in (self.limit, self.max_samples))
        return next((number for number in numbers if number and number > 0), None)

    def deciding(self) -> dict[str, Any]:
        """Everything that decides numbers, under the names that cells have for them."""
        arguments = self.arguments
        return {
            **settings.without(self.model_extra or {}, settings.RUN_ASIDE),
            "backend": self.model,
            "dtype": self._dtype,
            "revision": self.model_sha or self.model_revision or arguments.get("revision"),
            "rope_precision": arguments.get("rope_precision"),
            "model_args": settings.model_arguments(arguments),
            "gen_kwargs": self.gen_kwargs,
            "seed": self.random_seed,
            "limit": [] if self.questions else [self.limit or 0] * (self.limit is not None),
            "rope_parameters": [given for given in self._ropes if given != self.rope],
        }

    @property
    def _dtype(self) -> str:
        """As loaded; with what was asked for where that was another one."""
        asked = str(self.arguments.get("dtype") or "").removeprefix("torch.")
        loaded = (self.model_dtype or asked).removeprefix("torch.")
        return loaded if asked in ("", "auto", loaded) else f"{loaded}, asked for {asked}"

    @property
    def rope(self) -> dict[str, Any]:
        """`rope_parameters`, also where vLLM has them."""
        return next((given for given in self._ropes if isinstance(given, dict)), {})

    @property
    def _ropes(self) -> list[Any]:
        """The same from each place that may have them, as they were written."""
        arguments = self.arguments
        overrides = arguments.get("hf_overrides")
        inside = overrides.get("rope_parameters") if isinstance(overrides, dict) else None
        given = (arguments.get("rope_parameters"), _mapping(inside) or inside)
        return [each for each in given if each is not None]
