"""How far two distributions over the next token lie apart, from whole ones or from their tops."""

import numpy as np
import numpy.typing as npt

from leval_tasks.statistics.by_document import Floats

Ids = npt.NDArray[np.integer]


def kl_divergence(a: Floats, b: Floats) -> Floats:
    """`KL(A || B)` in nats of whole distributions.

    Args:
        a: log-probabilities `[..., V]`.
        b: the same; where one has fewer tokens (padding of the vocabulary), those that only the
            other one has count as impossible.
    """
    width = min(a.shape[-1], b.shape[-1])
    a, b = (np.asarray(each[..., :width], np.float64) for each in (a, b))
    return np.maximum((np.exp(a) * (a - b)).sum(axis=-1), 0.0)


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
