"""A faster way to read the long arrays of a GGUF file.

The `gguf` package makes several NumPy arrays for each entry of an array. A vocabulary of 262,144
tokens with its scores and types then takes minutes, and transformers reads the file three times.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gguf
import numpy as np

HEADER_BYTES = 12
"""Before the entries of an array: their type (4 bytes) and their number (8 bytes)."""


class ArrayReader(gguf.GGUFReader):
    """A reader that takes an array of numbers as one part, and a string as one part each."""

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        """Return size in bytes, parts, indices of the parts with data, and types of a field."""
        array = gguf.GGUFValueType.ARRAY
        if gguf.GGUFValueType(raw_type) != array:
            return super()._get_field_parts(orig_offs, raw_type)
        entry_type = self._get(orig_offs, np.uint32)
        count = self._get(orig_offs + 4, np.uint64)
        header = [entry_type, count]
        start = orig_offs + HEADER_BYTES
        kind = gguf.GGUFValueType(entry_type[0])
        if kind == gguf.GGUFValueType.STRING:
            strings, size = self._strings(start, int(count[0]))
            data_indices = list(range(len(header), len(header) + len(strings)))
            return HEADER_BYTES + size, [*header, *strings], data_indices, [array, kind]
        numbers = self._get(start, self.gguf_scalar_to_np[kind], int(count[0]))
        return HEADER_BYTES + numbers.nbytes, [*header, numbers], [len(header)], [array, kind]

    def _strings(self, start: int, count: int) -> tuple[list[np.ndarray], int]:
        """Return the bytes of `count` strings, each after its length (8 bytes), and their size."""
        content = memoryview(self.data)
        is_little = self.endianess == gguf.GGUFEndian.LITTLE
        strings: list[np.ndarray] = []
        position = start
        for _ in range(count):
            length_bytes = content[position : position + 8]
            length = int.from_bytes(length_bytes, "little" if is_little else "big")
            position += 8
            strings.append(np.frombuffer(content[position : position + length], np.uint8))
            position += length
        return strings, position - start


@contextmanager
def reading_arrays_at_once() -> Iterator[None]:
    """Let transformers read GGUF files with `ArrayReader` while the context is open.

    transformers imports the reader from `gguf` in each call and takes no other one.
    """
    original = gguf.GGUFReader
    gguf.GGUFReader = ArrayReader
    try:
        yield
    finally:
        gguf.GGUFReader = original
