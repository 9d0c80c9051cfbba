"""What a fine-tuning run reads: documents split, cleaned, packed, and put in order."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from torch import Tensor
from torch.utils.data import Dataset

from resonance_training import text
from resonance_training.errors import TrainingError
from resonance_training.finetune_settings import FineTuneSettings

CHARACTERS_PER_TOKEN = 6
"""More than English has, so that a large data set is read no further than one epoch needs."""


def processes() -> PartialState:
    """The processes of this run; accelerate finds those on a CPU only if it is named."""
    return PartialState(cpu=not torch.accelerator.is_available())


class Rows(Dataset[dict[str, Tensor]]):
    """All sequences of a run in the order in which they are read, epoch after epoch."""

    def __init__(self, rows: text.Ids, sequences: int, seed: int) -> None:
        self.rows = torch.from_numpy(rows)
        epochs = range(-(-sequences // len(rows)))
        orders = [np.random.RandomState(seed + e).permutation(len(rows)) for e in epochs]
        self.order = np.concatenate(orders)[:sequences]

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = self.rows[self.order[index]]
        return {"input_ids": row, "labels": row}


def prepare_text(
    sources: Sequence[str], tokenizer: Any, settings: FineTuneSettings
) -> tuple[text.Ids, list[text.TrainingText]]:
    """Packed training rows `[rows, sequence_length]` and the held-out documents.

    Text is split by document first; what training documents share with held-out ones in runs of
    50 tokens is cut out of them.
    """
    sequences = settings.sequences(processes().num_processes)
    characters = CHARACTERS_PER_TOKEN * sequences * settings.sequence_length
    training, held_out = text.split_documents(
        text.read_documents(sources, characters), settings.held_out, settings.seed
    )
    hashes = [text.run_hashes(_ids(tokenizer, d)) for d in held_out]
    known = np.unique(np.concatenate(hashes)) if hashes else np.empty(0, dtype=np.int64)
    pieces = [p for d in training for p in text.without_shared(_ids(tokenizer, d), known)]
    if tokenizer.eos_token_id is None:
        raise TrainingError("tokenizer: it has no end-of-text token to put between documents")
    separator = int(tokenizer.eos_token_id)
    return text.pack(pieces, settings.sequence_length, separator, settings.seed), held_out


def _ids(tokenizer: Any, document: text.TrainingText) -> text.Ids:
    # Long documents are meant to be longer than the model; the tokenizer would warn of it.
    encoded = tokenizer(document.text, add_special_tokens=False, verbose=False)
    return np.array(encoded["input_ids"], dtype=np.int64)
