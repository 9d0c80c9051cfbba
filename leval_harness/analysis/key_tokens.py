"""Losses on the tokens that a long context helps: LongPPL (arXiv 2410.23771).

A reference model determines these key tokens: after the whole text before it, its loss of a token
is more than `GAP` nats lower than after a short window, and below `MOST` nats. If each model
determined its own, models would be compared on different tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leval_harness.analysis.entries import FAMILY, Analysis, Entry, grouped
from leval_harness.layout import SHORT_WINDOWS
from leval_harness.old_results import Results
from leval_harness.old_results.token_losses import read_texts
from leval_tasks.effective_context.reads import FULL, SHORT
from resonance_vllm.errors import SettingError, one_of

GAP = 2.0
"""Nats that the long context must gain: the authors' `alpha`."""

MOST = 2.0
"""Nats that may be left after it: the authors' `-beta`."""


Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class KeyLine:
    """Losses of one model under one method on the key tokens of some texts.

    `loss` is their mean in nats a token; LongPPL is its exponential.
    """

    block: str
    method: str
    loss: float
    tokens: int
    texts: int


def key_lines(analysis: Analysis, reference: str) -> list[KeyLine]:
    """A line for each model and method but the read that determined the key tokens.

    Texts count where both reads have the same tokens and the runs kept each token's loss.

    Args:
        analysis: from `analyse`.
        reference: name of a model; its reads under the baseline determine the key tokens.

    Raises:
        SettingError: no model of this name has results of effective-context tasks, or it was read
            with several methods and none of them is the baseline.
    """
    entries = [e for e in analysis.entries if e.family == FAMILY and e.score.finished]
    one_of("reference", reference, sorted({entry.run.model for entry in entries}))
    full = [entry for entry in entries if entry.run.method != SHORT_WINDOWS]
    own = [entry for entry in full if entry.run.model == reference]
    if len({entry.label for entry in own}) > 1:
        own = [entry for entry in own if entry.label == analysis.baselines.get(entry.block)]
    if not own:
        raise SettingError(
            f"reference: {reference} was read with several methods; name the one that determines "
            "the key tokens by --baseline"
        )
    windows = [e for e in entries if e.run.method == SHORT_WINDOWS and e.run.model == reference]
    keys = _keys(own, windows, analysis.results)
    others = [entry for entry in full if entry not in own]
    lines, results = [], analysis.results
    for (block, method), part in grouped(others, lambda entry: (entry.block, entry.label)).items():
        losses = [
            text.losses[FULL][keys[name, text.digest]]
            for name, text in read_texts(results, [entry.score for entry in part], []).items()
            if (name, text.digest) in keys and FULL in text.losses
        ]
        if losses and (nats := np.concatenate(losses)).size:
            lines.append(KeyLine(block, method, float(nats.mean()), nats.size, len(losses)))
    return lines


def _keys(
    own: Sequence[Entry], windows: Sequence[Entry], results: Results
) -> dict[tuple[str, str], Mask]:
    """Name and digest of each text of the reference, and which of its tokens are key tokens."""
    long, short = (
        read_texts(results, [entry.score for entry in part], []) for part in (own, windows)
    )
    short = short or long
    keys = {}
    for name, text in long.items():
        other = short.get(name)
        if other and other.digest == text.digest and FULL in text.losses and SHORT in other.losses:
            full = text.losses[FULL]
            keys[name, text.digest] = (other.losses[SHORT] - full > GAP) & (full < MOST)
    return keys
