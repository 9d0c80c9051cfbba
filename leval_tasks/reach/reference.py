"""Key tokens that another model's run of a reach task has told, from its logged samples."""

import hashlib

from pydantic import BaseModel, ConfigDict

from leval_border.files import user_path
from leval_tasks.data import numbered_rows, read_bytes
from leval_tasks.reach.key_tokens import Span


class _Document(BaseModel):
    model_config = ConfigDict(extra="ignore")

    document_id: str


class _Sample(BaseModel):
    """A line of a samples file; further fields are lm-eval's own."""

    model_config = ConfigDict(extra="ignore")

    doc: _Document
    key_spans: list[Span]


def read_reference(path: str) -> tuple[dict[str, list[Span]], str]:
    """Key tokens of each document as stretches of its text, and the file's SHA-256.

    Args:
        path: `samples_reach_*.jsonl` of a run on a backend that tells key tokens.

    Raises:
        DataError: The file is missing or damaged, or has no key tokens.
    """
    content = read_bytes(user_path(path, "key_tokens"))
    rows = numbered_rows(content, path, _Sample)
    spans = {row.doc.document_id: row.key_spans for _, row in rows}
    return spans, hashlib.sha256(content).hexdigest()
