"""Teacher-forced loss and accuracy of a stack of PosGen models, by position."""

from typing import Any

import torch
from torch import Tensor

from leval_tasks.metadata import PosGenSettings
from leval_tasks.posgen.sequences import position_ranges
from resonance_training.posgen_data import StackData
from resonance_training.stacked import StackedDecoder, token_losses

EVALUATION_BATCH = 125


@torch.no_grad()
def evaluate(
    stack: StackedDecoder, data: StackData, split: str, rows: int | None = None
) -> list[dict[str, Any]]:
    """Teacher-forced metrics of each model, over all tokens after the seed.

    Args:
        stack: the models.
        data: their sequences.
        split: `validation` or `test`.
        rows: only the first so many sequences.

    Returns:
        One dictionary a model: `loss`, `id_accuracy`, `ood_accuracy` and `accuracy@a-b` for each
        band (fractions; loss in nats), and `by_position`, the accuracy of each number after the
        seed.
    """
    was_training = stack.training
    stack.eval()
    device = next(stack.parameters()).device
    n = min(rows or data.rows(split), data.rows(split))
    losses: Tensor | float = 0.0
    correct: Tensor | float = 0.0
    for start in range(0, n, EVALUATION_BATCH):
        ids = data.stacked(split, slice(start, min(start + EVALUATION_BATCH, n))).to(device)
        targets = ids[..., data.first_target :]
        logits = stack.logits(ids[..., :-1])[:, :, data.first_target - 1 :]
        losses = losses + token_losses(logits, targets).double().sum(dim=1)
        correct = correct + (logits.argmax(-1) == targets).double().sum(dim=1)
    stack.train(was_training)
    assert isinstance(losses, Tensor)
    assert isinstance(correct, Tensor)
    settings = data.recipe.settings(data.runs[0].subtask)
    by_position = (correct / n).cpu().tolist()
    return [
        {"loss": float(loss.mean() / n), **_by_range(shares, settings), "by_position": shares}
        for loss, shares in zip(losses.cpu(), by_position, strict=True)
    ]


def _by_range(accuracy: list[float], settings: PosGenSettings) -> dict[str, float]:
    """Means over position ranges; `accuracy` starts with the first number after the seed."""
    offset = settings.seed_tokens
    return {
        name: sum(accuracy[a - offset : b - offset]) / (b - a)
        for name, (a, b) in position_ranges(settings).items()
    }
