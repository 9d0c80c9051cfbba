"""Saved references: the readings of one setup in one JSON file, so that CI needs no setup A.

The file holds the texts, too: whoever has it needs neither data nor a network to compare with it.
Arrays are little-endian, compressed by zlib and written in base64.
"""

import base64
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from leval_harness.parity.reading import Messages, Reader, Reading
from leval_harness.parity.texts import ids_sha256
from leval_tasks.perplexity.documents import Text
from resonance_vllm.errors import UserError
from resonance_vllm.files import read_object, write_text

SCHEMA = 1
KIND = "leval-harness diff reference"
_FIELDS = {"logprob": "<f4", "top_ids": "<i4", "top": "<f4"}


@dataclass(frozen=True)
class Reference:
    """What one setup reads, with all that a comparison needs to know of it.

    Attributes:
        setup: the setup as it was written, its arguments, versions and facts.
        texts: what was read.
        encodings: token ids of each text as the setup makes them, by SHA-256 of the text.
        template: token ids of the probe chat; None where the setup could not say.
        readings: by SHA-256 of the token ids.
        ids: the token ids, by the same key.
    """

    setup: dict[str, Any]
    texts: list[Text]
    encodings: dict[str, list[int]]
    template: list[int] | None
    readings: dict[str, Reading]
    ids: dict[str, list[int]]

    def write(self, path: Path) -> None:
        """Write the file; distributions over the whole vocabulary are left out."""
        content = {
            "kind": KIND,
            "schema": SCHEMA,
            "setup": self.setup,
            "texts": [
                {
                    "name": each.name,
                    "sha256": each.sha256,
                    "text": each.text,
                    "encoding": _packed(np.array(self.encodings[each.sha256], "<i4")),
                }
                for each in self.texts
            ],
            "template": self.template,
            "readings": [
                {
                    "ids_sha256": key,
                    "ids": _packed(np.array(self.ids[key], "<i4")),
                    **{n: _packed(getattr(reading, n).astype(t)) for n, t in _FIELDS.items()},
                }
                for key, reading in self.readings.items()
            ],
        }
        write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read and verify what `write` wrote.

        Raises:
            UserError: it is no such file, of a newer schema, or not as it was written.
        """
        content = read_object(path)
        if content is None or content.get("kind") != KIND:
            raise UserError(f"{path} is no reference saved by `leval-harness diff --save`")
        if content.get("schema") != SCHEMA:
            raise UserError(f"{path}: schema {content.get('schema')!r}; allowed: {SCHEMA}")
        try:
            return cls._of(content)
        except (KeyError, TypeError, ValueError, zlib.error) as error:
            raise UserError(f"{path} is damaged: {error}") from None

    @classmethod
    def _of(cls, content: Mapping[str, Any]) -> Self:
        texts, encodings = [], {}
        for row in content["texts"]:
            text = Text(row["name"], row["text"])
            if text.sha256 != row["sha256"]:
                raise ValueError(f"text {text.name} does not have the SHA-256 that is written")
            texts.append(text)
            encodings[text.sha256] = _unpacked(row["encoding"], "<i4").tolist()
        readings, ids = {}, {}
        for row in content["readings"]:
            key, tokens = row["ids_sha256"], _unpacked(row["ids"], "<i4").tolist()
            if ids_sha256(tokens) != key:
                raise ValueError("token ids do not have the SHA-256 that is written")
            arrays = {name: _unpacked(row[name], kind) for name, kind in _FIELDS.items()}
            shapes = [
                each.shape[:-1] if n != "logprob" else each.shape for n, each in arrays.items()
            ]
            if set(shapes) != {(len(tokens) - 1,)}:
                raise ValueError("a reading does not have one entry a token")
            readings[key], ids[key] = Reading(**arrays), tokens
        return cls(content["setup"], texts, encodings, content["template"], readings, ids)


class SavedReader(Reader):
    """A reader of a reference; it knows the texts of its file alone."""

    def __init__(self, path: Path) -> None:
        self.reference = Reference.load(path)
        self.limit: int | None = max(map(len, self.reference.ids.values()), default=0)
        self.path = path

    def encode(self, text: str) -> list[int] | None:
        return self.reference.encodings.get(Text("", text).sha256)

    def template(self, messages: Messages) -> list[int] | None:
        return self.reference.template

    def read(self, rows: Sequence[list[int]]) -> Iterator[Reading]:
        for row in rows:
            if (key := ids_sha256(row)) not in self.reference.readings:
                raise UserError(
                    f"{self.path} has no reading of these {len(row)} tokens; allowed are its own "
                    "texts at its own lengths"
                )
            yield self.reference.readings[key]

    def generate(self, ids: list[int], tokens: int) -> list[int]:
        raise UserError(f"--probe: {self.path} is saved and cannot generate")

    def facts(self) -> dict[str, Any]:
        return dict(self.reference.setup)


def _packed(array: Any) -> dict[str, Any]:
    data = base64.b64encode(zlib.compress(array.tobytes(), 6)).decode("ascii")
    return {"shape": list(array.shape), "zlib_base64": data}


def _unpacked(packed: Mapping[str, Any], kind: str) -> Any:
    data = zlib.decompress(base64.b64decode(packed["zlib_base64"]))
    return np.frombuffer(data, kind).reshape(packed["shape"]).copy()
