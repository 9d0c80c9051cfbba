"""How far two distributions over the next token lie apart, from their most probable tokens."""

import numpy as np
import numpy.typing as npt

from leval_tasks.statistics.effective_context import Floats

Ids = npt.NDArray[np.integer]


def kl_lower_bound(ids_a: Ids, a: Floats, ids_b: Ids, b: Floats) -> Floats:
    """A lower bound of `KL(A || B)` from the most probable tokens of both.

    Tokens that are among the tops of both are kept; all others are one event. Merging events can
    only make the divergence smaller (data-processing inequality).

    Args:
        ids_a: token ids of A's top `[P, k]`, each once in a row.
        a: their log-probabilities `[P, k]`.
        ids_b: token ids of B's top.
        b: their log-probabilities.

    Returns:
        `[P]`, nats, at least 0.
    """
    same = ids_a[:, :, None] == ids_b[:, None, :]
    p, q = (np.exp(np.asarray(each, np.float64)) for each in (a, b))
    shared = same.any(axis=2)
    matched = np.where(shared, (same * q[:, None, :]).sum(axis=2), 1.0)
    kept = np.where(shared, p, 0.0)
    tiny = np.finfo(np.float64).tiny
    inner = kept * (np.log(np.maximum(kept, tiny)) - np.log(np.maximum(matched, tiny)))
    rest_p = np.clip(1 - kept.sum(axis=1), 0.0, 1.0)
    rest_q = np.clip(1 - np.where(shared, matched, 0.0).sum(axis=1), 1e-12, 1.0)
    rest = rest_p * (np.log(np.maximum(rest_p, tiny)) - np.log(rest_q))
    return np.maximum(inner.sum(axis=1) + np.where(rest_p > 0, rest, 0.0), 0.0)
