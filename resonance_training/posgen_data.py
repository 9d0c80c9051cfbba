"""Batches for a stack of runs, in an order that depends on each run's seed alone."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from leval_tasks.posgen.sequences import Splits, splits
from leval_tasks.posgen.vocabulary import PREFIX, special_id
from resonance_training.posgen_settings import PosGenRun, Recipe


def with_prefix(sequences: np.ndarray, prefix: int) -> Tensor:
    """Token ids `[n, length + 1]`: the numbers themselves, with the prefix token in front."""
    front = np.full((len(sequences), 1), prefix, dtype=np.int64)
    return torch.from_numpy(np.concatenate([front, sequences], axis=1))


class StackData:
    """The splits of each run, computed once a sub-task."""

    def __init__(self, recipe: Recipe, runs: Sequence[PosGenRun]) -> None:
        self.recipe, self.runs = recipe, list(runs)
        self._splits: dict[str, Splits] = {}
        for run in runs:
            if run.subtask not in self._splits:
                self._splits[run.subtask] = splits(recipe.settings(run.subtask))
        data = recipe.settings(runs[0].subtask)
        self.prefix = special_id(PREFIX, data.modulus)
        self.first_target = data.seed_tokens + 1
        self._encoded = {
            (subtask, name): with_prefix(part, self.prefix)
            for subtask, all_parts in self._splits.items()
            for name, part in vars(all_parts).items()
        }

    def stacked(self, split: str, rows: slice) -> Tensor:
        """`[models, rows, length + 1]` of `validation` or `test`."""
        return torch.stack([self._encoded[run.subtask, split][rows] for run in self.runs])

    def rows(self, split: str) -> int:
        """Sequences in a split."""
        return len(self._encoded[self.runs[0].subtask, split])

    def batch(self, model: int, order: np.ndarray) -> Tensor:
        """Training sequences `[len(order), train_length + 1]` of one model."""
        return self._encoded[self.runs[model].subtask, "train"][torch.from_numpy(order)]


class Batches(Dataset[Tensor]):
    """Every batch of every epoch as one item, so that a resumed run continues at its step."""

    def __init__(self, data: StackData) -> None:
        self.data = data
        self._epoch, self._orders = -1, np.empty((0, 0), dtype=np.int64)

    def __len__(self) -> int:
        return self.data.recipe.steps

    def __getitem__(self, step: int) -> Tensor:
        """`[models, batch, train_length + 1]`; the last batch of an epoch may be smaller."""
        recipe = self.data.recipe
        epoch, index = divmod(step, recipe.steps_per_epoch)
        if epoch != self._epoch:
            n = self.data.rows("train")
            self._orders = np.stack([epoch_order(run.seed, epoch, n) for run in self.data.runs])
            self._epoch = epoch
        chosen = self._orders[:, index * recipe.batch_size : (index + 1) * recipe.batch_size]
        return torch.stack([self.data.batch(i, order) for i, order in enumerate(chosen)])


def epoch_order(seed: int, epoch: int, n: int) -> np.ndarray:
    """Permutation of the training sequences in one epoch of a run."""
    generator = np.random.RandomState(np.array([seed, epoch], dtype=np.uint32))
    return generator.permutation(n)
