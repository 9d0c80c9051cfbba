"""Batches for a stack of runs, in an order that depends on each run's seed alone."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from leval_harness.training.posgen_settings import PosGenRun, Recipe
from leval_tasks.posgen.sequences import splits
from leval_tasks.posgen.vocabulary import PREFIX, special_id


class StackData:
    """Token ids of each run's splits: the numbers themselves, the prefix token in front."""

    def __init__(self, recipe: Recipe, runs: Sequence[PosGenRun]) -> None:
        self.recipe, self.runs = recipe, list(runs)
        self.settings = recipe.settings(runs[0].subtask)
        self.first_target = self.settings.seed_tokens + 1
        prefix = special_id(PREFIX, self.settings.modulus)
        self._tokens: dict[tuple[str, str], Tensor] = {}
        for subtask in {run.subtask for run in runs}:
            for split, numbers in vars(splits(recipe.settings(subtask))).items():
                tokens = np.pad(numbers, ((0, 0), (1, 0)), constant_values=prefix)
                self._tokens[subtask, split] = torch.from_numpy(tokens)

    def sequences(self, run: PosGenRun, split: str) -> Tensor:
        """`[n, length + 1]` of `train`, `validation` or `test`."""
        return self._tokens[run.subtask, split]


class Batches(Dataset[Tensor]):
    """Every batch of every epoch as one item, so that a resumed run continues at its step."""

    def __init__(self, data: StackData) -> None:
        self.data = data
        self._epoch, self._orders = -1, np.empty((0, 0), dtype=np.int64)

    def __len__(self) -> int:
        return self.data.recipe.steps

    def __getitem__(self, step: int) -> Tensor:
        """`[models, batch, train_length + 1]`; the last batch of an epoch may be smaller."""
        recipe, runs = self.data.recipe, self.data.runs
        epoch, index = divmod(step, recipe.steps_per_epoch)
        if epoch != self._epoch:
            n = self.data.settings.train
            self._orders = np.stack([_epoch_order(run.seed, epoch, n) for run in runs])
            self._epoch = epoch
        orders = self._orders[:, index * recipe.batch_size : (index + 1) * recipe.batch_size]
        return torch.stack(
            [
                self.data.sequences(run, "train")[torch.from_numpy(order)]
                for run, order in zip(runs, orders, strict=True)
            ]
        )


def _epoch_order(seed: int, epoch: int, n: int) -> np.ndarray:
    generator = np.random.RandomState(np.array([seed, epoch], dtype=np.uint32))
    return generator.permutation(n)
