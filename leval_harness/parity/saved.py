"""Saved references: the readings of one setup in one `.npz`, so that a gate needs no setup A.

The file holds the texts, too: whoever has it needs neither data nor a network to compare with it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from zipfile import BadZipFile

import numpy as np

from leval_harness.parity.reading import Messages, Reader, Reading
from leval_tasks.perplexity.documents import Text
from resonance_vllm.errors import UserError

SCHEMA = 2
FIELDS = ("logprob", "top_ids", "top")


class SavedReader(Reader):
    """What one setup has read. It knows the texts of its file alone.

    Attributes:
        setup: the setup as it was written, its arguments, versions and facts.
        texts: what was read.
        rows: token ids of each text at each length.
    """

    def __init__(
        self,
        setup: Mapping[str, Any],
        texts: Sequence[Text],
        template: list[int] | None,
        rows: Sequence[list[int]],
        readings: Sequence[Reading],
    ) -> None:
        self.setup, self.texts, self.chat, self.rows = dict(setup), list(texts), template, rows
        self.readings = dict(zip(map(tuple, rows), readings, strict=True))
        self.limit: int | None = max(map(len, rows), default=0)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of the texts, ascending."""
        return tuple(sorted({len(row) for row in self.rows}))

    def save(self, path: Path) -> None:
        """Write the file, which appears whole or not at all."""
        about = {
            "schema": SCHEMA,
            "setup": self.setup,
            "texts": [[each.name, each.text] for each in self.texts],
            "template": self.chat,
        }
        arrays: dict[str, Any] = {"about": np.array(json.dumps(about))}
        for number, row in enumerate(self.rows):
            arrays[f"{number}.ids"] = np.array(row, np.int32)
            reading = self.readings[tuple(row)]
            arrays |= {f"{number}.{name}": getattr(reading, name) for name in FIELDS}
        temporary = path.with_name(f".{path.name}.part")
        with temporary.open("wb") as file:
            np.savez_compressed(file, **arrays)
        temporary.replace(path)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote.

        Raises:
            UserError: it is no such file, or of another schema.
        """
        try:
            with np.load(path, allow_pickle=False) as content:
                arrays = dict(content)
            about = json.loads(str(arrays.pop("about")))
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            said = f"{path} is no reference saved by `leval-harness diff --save`: {error}"
            raise UserError(said) from None
        if about["schema"] != SCHEMA:
            raise UserError(f"{path}: schema {about['schema']!r}; allowed: {SCHEMA}; save it again")
        count = len(arrays) // (len(FIELDS) + 1)
        return cls(
            about["setup"],
            [Text(name, text) for name, text in about["texts"]],
            about["template"],
            [arrays[f"{number}.ids"].tolist() for number in range(count)],
            [Reading(*(arrays[f"{n}.{name}"] for name in FIELDS)) for n in range(count)],
        )

    def encode(self, text: str) -> list[int] | None:
        """The longest row of a text of the file."""
        known = {each.text: at for at, each in enumerate(self.texts)}
        if text not in known:
            return None
        longest = [row for row in self.rows if len(row) == self.limit]
        return longest[known[text]]

    def template(self, messages: Messages) -> list[int] | None:
        """As it was rendered when the file was saved."""
        return self.chat

    def read(self, rows: Sequence[list[int]]) -> Iterator[Reading]:
        """Of the texts of the file, at its lengths or shorter."""
        for row in rows:
            longer = (each for each in self.rows if each[: len(row)] == row)
            found = next(longer, None)
            if found is None:
                raise UserError(
                    f"the reference has no reading of these {len(row)} tokens; allowed are its own "
                    "texts up to its own lengths"
                )
            yield self.readings[tuple(found)].first(len(row))

    def facts(self) -> dict[str, Any]:
        """What was recorded of the setup."""
        return self.setup
