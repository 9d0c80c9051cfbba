"""Wavelengths and feature gaps that cells left beside their results, read as untrusted data."""

import logging
from typing import Annotated

from pydantic import Field

from leval_harness.layout import FEATURES
from leval_harness.old_results.fields import (
    LARGEST_NUMBER,
    Outside,
    ResultsError,
    read_model,
)
from leval_harness.old_results.run_record import Run
from resonance_vllm.settings import LENIENT

log = logging.getLogger(__name__)

MOST_FEATURES = 1024

Wavelength = Annotated[float, Field(ge=1e-3, le=LARGEST_NUMBER)]
Gap = Annotated[float, Field(ge=0, le=LARGEST_NUMBER)]


class RopeFeatures(Outside):
    """A method's features on a model; `wavelengths` and the trained length `original` in tokens."""

    schema_version: int = Field(ge=1)
    original: int = Field(alias="original_max_position_embeddings", gt=0, le=LARGEST_NUMBER)
    context_length: int | None = Field(None, ge=0, le=LARGEST_NUMBER)
    wavelengths: list[Wavelength] = Field(min_length=1, max_length=MOST_FEATURES)
    feature_gap: dict[str, Annotated[list[Gap] | None, LENIENT]] | None = None

    @property
    def gaps(self) -> dict[int, list[float]]:
        """`s` -> gaps between positions below `original` and up to `s * original`.

        A gap that cannot be read, or not of every wavelength, is left out.
        """
        return {
            int(multiple): gaps
            for multiple, gaps in (self.feature_gap or {}).items()
            if multiple.isdecimal() and len(multiple) < 6
            if gaps is not None and len(gaps) == len(self.wavelengths)
        }


def read_features(run: Run) -> RopeFeatures | None:
    """The features of a finished run; None if it left none, or none that can be trusted."""
    if run.status != "done" or FEATURES not in run.hashes:
        return None
    try:
        return read_model(RopeFeatures, run.file(FEATURES))
    except ResultsError as error:
        log.warning("no RoPE features: %s", error)
        return None
