"""Holm's step-down correction."""

import numpy as np
import numpy.typing as npt


def holm(p: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Adjusted p values (Holm 1979): compare them with the level itself.

    Args:
        p: one-dimensional; NaN entries stay NaN and do not count as tests.
    """
    raw = np.asarray(p, dtype=np.float64)
    adjusted = np.full(raw.shape, np.nan)
    tested = np.flatnonzero(~np.isnan(raw))
    order = tested[np.argsort(raw[tested], kind="stable")]
    steps = np.arange(order.size, 0, -1)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(raw[order] * steps))
    return adjusted
