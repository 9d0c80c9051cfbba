"""Comparisons of setups, as `leval-harness diff --out` wrote them."""

from pathlib import Path
from typing import Any

from leval_border.errors import UserError
from leval_border.files import read_object
from leval_harness.layout import DIFF_KIND, DIFF_SCHEMA


def read_diff(path: Path) -> dict[str, Any]:
    """The content of a `diff.json`.

    Raises:
        UserError: it is no such file, or of another schema.
    """
    content = read_object(path)
    if content is None or content.get("kind") != DIFF_KIND:
        raise UserError(f"{path} is no diff.json that `leval-harness diff --out` wrote")
    if content.get("schema") != DIFF_SCHEMA:
        raise UserError(f"{path}: schema {content.get('schema')!r}; allowed: {DIFF_SCHEMA}")
    return content
