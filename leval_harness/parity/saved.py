"""What one setup has read, and its file `.npz`: a gate in CI then needs no setup A.

The file holds the texts, too: whoever has it needs neither data nor a network to compare with it.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from zipfile import BadZipFile

import numpy as np

from leval_harness.parity.reading import Messages, Reader, Reading
from leval_tasks.perplexity.documents import Text
from resonance_vllm.errors import SettingError, UserError

SCHEMA = 2
FIELDS = ("logprob", "top_ids", "top")


@dataclass
class SavedReader(Reader):
    """What one setup has read. As a reader it knows these texts alone.

    Attributes:
        setup: the setup as it was written, its arguments, RoPE settings, versions and facts.
        texts: what was read.
        chat: the rendered chat, see `Reader.template`.
        rows: token ids of each text at each length.
        readings: one a row.
    """

    setup: dict[str, Any]
    texts: list[Text]
    chat: list[int] | None
    rows: list[list[int]]
    readings: list[Reading]

    def __post_init__(self) -> None:
        self.limit: int | None = max(map(len, self.rows), default=0)

    @property
    def lengths(self) -> list[int]:
        """Tokens of the texts, ascending."""
        return sorted({len(row) for row in self.rows})

    def save(self, path: Path) -> None:
        """Write the file, which appears whole or not at all."""
        texts = [[each.name, each.text] for each in self.texts]
        about = {"schema": SCHEMA, "setup": self.setup, "texts": texts, "template": self.chat}
        arrays: dict[str, Any] = {"about": np.array(json.dumps(about))}
        for number, (row, reading) in enumerate(zip(self.rows, self.readings, strict=True)):
            arrays[f"{number}.ids"] = np.array(row, np.int32)
            arrays |= {f"{number}.{name}": getattr(reading, name) for name in FIELDS}
        temporary = path.with_name(f".{path.name}.part")
        with temporary.open("wb") as file:
            np.savez_compressed(file, **arrays)
        temporary.replace(path)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote.

        Raises:
            SettingError: it is no such file, or of another schema.
        """
        try:
            with np.load(path, allow_pickle=False) as content:
                arrays = dict(content)
            about = json.loads(str(arrays.pop("about")))
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            said = f"{path} is no reference saved by `leval-harness diff --save`: {error}"
            raise SettingError(said) from None
        if about["schema"] != SCHEMA:
            raise SettingError(f"{path}: schema {about['schema']!r}, not {SCHEMA}; save it again")
        count = range(len(arrays) // (len(FIELDS) + 1))
        return cls(
            about["setup"],
            [Text(name, text) for name, text in about["texts"]],
            about["template"],
            [arrays[f"{number}.ids"].tolist() for number in count],
            [Reading(*(arrays[f"{number}.{name}"] for name in FIELDS)) for number in count],
        )

    def encode(self, text: str) -> list[int] | None:
        """The longest row of a text of the file."""
        longest = [row for row in self.rows if len(row) == self.limit]
        known = zip(self.texts, longest, strict=True)
        return next((row for each, row in known if each.text == text), None)

    def template(self, messages: Messages) -> list[int] | None:
        """As it was rendered when the file was saved."""
        return self.chat

    def read(self, rows: Sequence[list[int]]) -> Iterator[Reading]:
        """Of the texts of the file, at its lengths or shorter."""
        known = list(zip(self.rows, self.readings, strict=True))
        for row in rows:
            found = next((reading for each, reading in known if each[: len(row)] == row), None)
            if found is None:
                raise UserError(
                    f"the reference has no reading of these {len(row)} tokens; save it again"
                )
            yield found.first(len(row))

    def facts(self) -> dict[str, Any]:
        """What was recorded of the setup."""
        return dict(self.setup["facts"])
