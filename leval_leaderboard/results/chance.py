"""What a guess would score."""

import math
from collections.abc import Sequence

CHANCE = {
    "leval_gsm": 0.0,
    "leval_quality": 0.25,
    "leval_toefl": 0.25,
    "leval_codeu": 0.0,
    "leval_sfiction": 0.5,
}

CHANCE_NOTE = (
    "Chance: one of four letters for QuALITY and TOEFL (25%), true or false for SFiction (50%), "
    "nothing for GSM and CodeU. Coursera questions may have several right letters; chance is the "
    "expected official score of one of the 15 sets of letters A to D, drawn at random, over the "
    "gold answers read: (1 + 0.25 (2^k - 2)) / 15 where k letters are right, since a part of the "
    "right set earns 0.25."
)


def chance_level(task: str, golds: Sequence[str]) -> float:
    """Expected score of guessing, as a fraction; NaN where the task does not define one.

    Args:
        task: task name.
        golds: gold answers, for Coursera's letters.
    """
    if task != "leval_coursera":
        return CHANCE.get(task, math.nan)
    letters = [len(set(gold) & set("ABCD")) for gold in golds]
    letters = [k for k in letters if k]
    if not letters:
        return math.nan
    return sum((1 + 0.25 * (2**k - 2)) / 15 for k in letters) / len(letters)
