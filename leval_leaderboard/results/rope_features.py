"""Wavelengths and feature gaps that cells left beside their results, read as untrusted data."""

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from leval_leaderboard.cell_record import DoneRecord
from leval_leaderboard.layout import DONE, FEATURES
from leval_leaderboard.results.discover import inside
from leval_leaderboard.results.fields import (
    LARGEST_NUMBER,
    LENIENT,
    Outside,
    ResultsError,
    read_versioned,
)
from leval_leaderboard.results.runs import Run

log = logging.getLogger(__name__)

MOST_FEATURES = 1024

Length = Annotated[int, Field(gt=0, le=LARGEST_NUMBER)]
Gap = Annotated[float, Field(ge=0, le=LARGEST_NUMBER)]
Gaps = Annotated[list[Gap] | None, LENIENT]


@dataclass(frozen=True)
class RopeFeatures:
    """A method's features on a model.

    `wavelengths` in tokens; `gaps[s]` between positions below `original` and up to `s * original`.
    """

    original: int
    context_length: int | None
    wavelengths: tuple[float, ...]
    gaps: Mapping[int, tuple[float, ...]]


class _FeaturesFile(Outside):
    """The file; a gap that cannot be read is left out."""

    schema_version: int = Field(ge=1)
    original_max_position_embeddings: Length
    context_length: Annotated[int, Field(ge=0, le=LARGEST_NUMBER)] | None = None
    wavelengths: Annotated[
        list[Annotated[float, Field(ge=1e-3, le=LARGEST_NUMBER)]],
        Field(min_length=1, max_length=MOST_FEATURES),
    ]
    feature_gap: dict[str, Gaps] | None = None

    def features(self) -> RopeFeatures:
        """Gaps of as many features as there are wavelengths."""
        gaps = {
            int(multiple): tuple(values)
            for multiple, values in (self.feature_gap or {}).items()
            if multiple.isdecimal() and len(multiple) < 6 and values is not None
        }
        return RopeFeatures(
            self.original_max_position_embeddings,
            self.context_length,
            tuple(self.wavelengths),
            {s: values for s, values in gaps.items() if len(values) == len(self.wavelengths)},
        )


def read_features(run: Run) -> RopeFeatures | None:
    """The features of a finished run; None if it left none, or none that can be trusted."""
    path = run.folder / FEATURES
    if run.status != "done" or not inside(path, run.folder):
        return None
    try:
        promised = read_versioned(DoneRecord, run.folder / DONE).files.get(FEATURES)
        if hashlib.sha256(path.read_bytes()).hexdigest() != promised:
            raise ResultsError(f"{path}: altered after the run (SHA-256 differs)")
        return read_versioned(_FeaturesFile, path).features()
    except (ResultsError, OSError) as error:
        log.warning("no RoPE features: %s", error)
        return None
