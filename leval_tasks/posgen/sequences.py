"""PosGen sequences: every token after the seed is a sum, modulo `m`, of earlier tokens.

Sources: arXiv 2403.00071, Section 5 and Appendix C.1; where its formula for the semi-recursive
sub-task is ambiguous, the reading that reproduces its Figure 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from leval_tasks.errors import one_of

Tokens = npt.NDArray[np.int64]

SUBTASKS = ("recursive", "cot", "semi_recursive")
SEED_POLICIES = ("random", "cycled")


class PosGenError(ValueError):
    """A PosGen setting that cannot be met."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What one PosGen data set is made of.

    Attributes:
        subtask: `recursive`, `cot` or `semi_recursive`.
        modulus: size `m` of the number vocabulary 0..m-1.
        far: `j`, how many far tokens each sum takes.
        near: `k`, how many of the tokens just before.
        train_length: numbers in a training sequence (`L`).
        length: numbers in a validation or test sequence (`L'`).
        train: number of training sequences.
        validation: number of validation sequences.
        test: number of test sequences.
        seed_policy: `random` draws distinct tuples over all splits, as the paper's text asks;
            `cycled` repeats the sorted tuples of distinct numbers, as the authors' code does, so
            that every test sequence begins like a training sequence.
        seed: of the random draw; `cycled` does not use it.
    """

    subtask: str
    modulus: int = 17
    far: int = 1
    near: int = 3
    train_length: int = 64
    length: int = 256
    train: int = 10_000
    validation: int = 1_000
    test: int = 1_000
    seed_policy: str = "random"
    seed: int = 0

    def __post_init__(self) -> None:
        one_of("subtask", self.subtask, SUBTASKS, PosGenError)
        one_of("seed_policy", self.seed_policy, SEED_POLICIES, PosGenError)
        for name in ("far", "near", "train", "validation", "test"):
            if getattr(self, name) < 1:
                raise PosGenError(f"{name}: {getattr(self, name)} is not allowed; at least 1")
        if self.modulus < 2:
            raise PosGenError(f"modulus: {self.modulus} is not allowed; at least 2")
        if not self.far + self.near < self.train_length <= self.length:
            raise PosGenError(
                f"train_length: {self.train_length} is not allowed; above the "
                f"{self.far + self.near} seed tokens and at most length={self.length}"
            )

    @property
    def seed_tokens(self) -> int:
        """Tokens at the head of a sequence that no rule gives: `j + k`."""
        return self.far + self.near


@dataclass(frozen=True)
class Splits:
    """Sequences `[n, length]` of the three splits."""

    train: Tokens
    validation: Tokens
    test: Tokens


def far_start(subtask: str, index: int, far: int, near: int) -> int:
    """Position of the first far token in the sum for position `index`."""
    if subtask == "recursive":
        return index - far - near
    if subtask == "cot":
        return 0
    return (index - far - near) // 2


def extend(seeds: Tokens, subtask: str, length: int, modulus: int, far: int, near: int) -> Tokens:
    """Continue seed tuples by the rule of a sub-task.

    Args:
        seeds: `[n, far + near]` numbers below `modulus`.
        subtask: one of `SUBTASKS`.
        length: numbers in a finished sequence.
        modulus: `m`.
        far: `j`.
        near: `k`.

    Returns:
        `[n, length]`; the first `far + near` columns are the seeds.
    """
    one_of("subtask", subtask, SUBTASKS, PosGenError)
    if seeds.ndim != 2 or seeds.shape[1] != far + near:
        raise PosGenError(f"seeds: shape {seeds.shape} is not allowed; [n, {far + near}]")
    if length < far + near:
        raise PosGenError(f"length: {length} is not allowed; at least the {far + near} seed tokens")
    # Positions lead, so that one step reads and writes whole rows of memory.
    tokens = np.empty((length, len(seeds)), dtype=np.int64)
    tokens[: far + near] = seeds.T
    for index in range(far + near, length):
        start = far_start(subtask, index, far, near)
        total = tokens[start : start + far].sum(axis=0) + tokens[index - near : index].sum(axis=0)
        np.remainder(total, modulus, out=tokens[index])
    return np.ascontiguousarray(tokens.T)


def random_seeds(n: int, width: int, modulus: int, seed: int) -> Tokens:
    """Distinct tuples drawn uniformly from all `modulus ** width`.

    Returns:
        `[n, width]`, in drawing order.

    Raises:
        PosGenError: there are fewer than `n` tuples.
    """
    space = modulus**width
    if n > space:
        raise PosGenError(
            f"{n} distinct seeds were asked for, but modulus={modulus} and {width} seed tokens "
            f"give only {space}; ask for fewer sequences or use seed_policy=cycled"
        )
    # The legacy generator is the one whose stream numpy promises never to change (NEP 19).
    generator = np.random.RandomState(seed)
    drawn = np.empty(0, dtype=np.int64)
    while len(drawn) < n:
        more = generator.randint(0, space, size=2 * n, dtype=np.int64)
        drawn = np.concatenate([drawn, more])
        _, first = np.unique(drawn, return_index=True)
        drawn = drawn[np.sort(first)]
    powers = modulus ** np.arange(width - 1, -1, -1, dtype=np.int64)
    digits: Tokens = drawn[:n, None] // powers % modulus
    return digits


def cycled_seeds(n: int, width: int, modulus: int) -> Tokens:
    """All strictly increasing tuples in lexicographic order, repeated until there are `n`."""
    if width > modulus:
        raise PosGenError(f"modulus: {modulus} is too small for {width} different seed tokens")
    tuples = np.array(list(combinations(range(modulus), width)), dtype=np.int64)
    return tuples[np.arange(n) % len(tuples)]


def splits(settings: Settings) -> Splits:
    """All sequences of a data set; the same on every machine.

    With `seed_policy: cycled` validation and test are the first sequences of the training set at
    full length, as in the authors' code.

    Raises:
        PosGenError: the settings cannot be met.
    """
    rule = (settings.subtask, settings.length, settings.modulus, settings.far, settings.near)
    n = settings.train + settings.validation + settings.test
    width = settings.seed_tokens
    if settings.seed_policy == "cycled":
        everything = extend(cycled_seeds(n, width, settings.modulus), *rule)
        return Splits(
            everything[: settings.train, : settings.train_length],
            everything[: settings.validation],
            everything[settings.validation : settings.validation + settings.test],
        )
    everything = extend(random_seeds(n, width, settings.modulus, settings.seed), *rule)
    train, validation, test = np.split(everything, [settings.train, n - settings.test])
    result = Splits(train[:, : settings.train_length], validation, test)
    if overlap(result, width):
        raise PosGenError("seeds: two splits share a seed although they are drawn distinct")
    return result


def overlap(data: Splits, width: int) -> int:
    """How many different seed tuples occur in more than one split."""
    seeds = [{tuple(row) for row in part[:, :width].tolist()} for part in vars(data).values()]
    train, validation, test = seeds
    return len((train & validation) | (train & test) | (validation & test))
