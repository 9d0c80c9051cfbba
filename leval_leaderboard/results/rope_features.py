"""Wavelengths and feature gaps that cells left beside their results, read as untrusted data."""

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from leval_leaderboard.layout import DONE, FEATURES
from leval_leaderboard.results.discover import inside
from leval_leaderboard.results.fields import ResultsError, finite, mapping, read_json, whole
from leval_leaderboard.results.schema import Run, check_version

log = logging.getLogger(__name__)

MOST_FEATURES = 1024


@dataclass(frozen=True)
class RopeFeatures:
    """A method's features on a model.

    `wavelengths` in tokens; `gaps[s]` between positions below `original` and up to `s * original`.
    """

    original: int
    context_length: int | None
    wavelengths: tuple[float, ...]
    gaps: Mapping[int, tuple[float, ...]]


def read_features(run: Run) -> RopeFeatures | None:
    """The features of a finished run; None if it left none, or none that can be trusted."""
    path = run.folder / FEATURES
    if run.status != "done" or not inside(path, run.folder):
        return None
    try:
        promised = mapping(read_json(run.folder / DONE), "files", run.folder / DONE).get(FEATURES)
        if hashlib.sha256(path.read_bytes()).hexdigest() != promised:
            raise ResultsError(f"{path}: altered after the run (SHA-256 differs)")
        found = read_json(path)
        check_version(found, path)
        original = whole(found, "original_max_position_embeddings", path)
        lengths = _numbers(found.get("wavelengths"), 1e-3)
        if not original or not lengths:
            raise ResultsError(f"{path}: no wavelengths")
        gaps = {
            int(key): values
            for key, value in mapping(found, "feature_gap", path).items()
            if key.isdecimal() and len(key) < 6 and len(values := _numbers(value)) == len(lengths)
        }
        return RopeFeatures(original, whole(found, "context_length", path), lengths, gaps)
    except (ResultsError, OSError) as error:
        log.warning("no RoPE features: %s", error)
        return None


def _numbers(values: object, least: float = 0.0) -> tuple[float, ...]:
    """A list of numbers of at least `least`; empty if it is anything else."""
    if not isinstance(values, list) or len(values) > MOST_FEATURES:
        return ()
    known = [n for value in values if (n := finite(value)) is not None and n >= least]
    return tuple(known) if len(known) == len(values) else ()
