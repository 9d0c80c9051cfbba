"""Training text: read, split by document before anything else, tokenised and packed."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from leval_harness.training.settings import FineTuneSettings
from leval_tasks.perplexity.documents import Document
from leval_tasks.perplexity.text_files import documents_of
from resonance_vllm.common.errors import SettingError, UserError, invalid_value_message
from resonance_vllm.common.files import expand_user

Ids = npt.NDArray[np.int64]
SHARED_RUN = 50
NONE: Ids = np.empty(0, dtype=np.int64)


def prepare_document(
    sources: Sequence[str], tokenizer: Any, settings: FineTuneSettings
) -> tuple[Ids, list[Document]]:
    """Packed training rows `[rows, sequence_length]` and the held-out documents.

    Document is split by document first; what training documents share with held-out ones in runs of
    50 tokens is cut out of them.

    Raises:
        UserError: there is too little text, or it cannot be read; the tokenizer has no end-of-text
            token.
    """

    def ids(document: Document) -> Ids:
        # Long documents are meant to be longer than the model; the tokenizer would warn of it.
        encoded = tokenizer(document.text, add_special_tokens=False, verbose=False)
        return np.array(encoded["input_ids"], dtype=np.int64)

    training, held_out = split_documents(read_documents(sources), settings.held_out, settings.seed)
    known = np.concatenate([NONE, *(run_hashes(ids(each)) for each in held_out)])
    pieces = [piece for document in training for piece in without_shared(ids(document), known)]
    if tokenizer.eos_token_id is None:
        raise UserError("tokenizer: eos_token is missing, which stands between documents")
    return pack(pieces, settings.sequence_length, tokenizer.eos_token_id, settings.seed), held_out


def read_documents(sources: Sequence[str]) -> list[Document]:
    """Text of what `documents_of` reads, each document once.

    Raises:
        SettingError: a source is not there or holds no text.
    """
    documents: dict[str, Document] = {}
    for source in sources:
        path = expand_user(source)
        if not source or not path.exists():
            kinds = "a .jsonl or text file that is there, or a folder of them"
            raise SettingError(invalid_value_message("data", source, kinds))
        documents |= {each.sha256: each for each in documents_of(path, "data") if each.text.strip()}
    if not documents:
        names = ", ".join(sources) or "nothing"
        raise SettingError(f"data: no text in {names}; give --data FILE")
    return list(documents.values())


def split_documents(
    documents: Sequence[Document], held_out: int, seed: int
) -> tuple[list[Document], list[Document]]:
    """Whole documents for training and for evaluation; which is which follows from their text.

    Training and `held_out` held-out documents are each in the order of `documents`, which are
    distinct; another seed gives another split.

    Raises:
        SettingError: no document would be left to train on.
    """
    if not 0 <= held_out < len(documents):
        raise SettingError(
            invalid_value_message(
                "held_out", held_out, f"0 to {len(documents) - 1} of the documents"
            )
        )
    keys = {d: hashlib.sha256(f"{seed}/{d.sha256}".encode()).hexdigest() for d in documents}
    chosen = set(sorted(documents, key=keys.__getitem__)[:held_out])
    return [d for d in documents if d not in chosen], [d for d in documents if d in chosen]


def run_hashes(ids: Ids, length: int = SHARED_RUN) -> Ids:
    """Hash of every run of `length` tokens, `[max(0, n - length + 1)]`, modulo 2 ** 64."""
    if len(ids) < length:
        return NONE
    weights = np.random.RandomState(0).randint(-(2**63), 2**63, length, dtype=np.int64)
    return np.convolve(ids, weights, "valid")


def without_shared(ids: Ids, held_out: Ids, length: int = SHARED_RUN) -> list[Ids]:
    """Pieces of a training document that share no run of `length` tokens with the held-out text.

    That is given by its `run_hashes`. What disappears are licences and what else many books share.
    """
    starts = np.flatnonzero(np.isin(run_hashes(ids, length), held_out))
    changes = np.zeros(len(ids) + 1, dtype=np.int64)
    np.add.at(changes, starts, 1)
    np.add.at(changes, starts + length, -1)
    kept = np.cumsum(changes[:-1]) == 0
    edges = np.flatnonzero(np.diff(np.concatenate([[0], kept.astype(np.int8), [0]])))
    return [ids[a:b] for a, b in edges.reshape(-1, 2)]


def pack(documents: Iterable[Ids], length: int, separator: int, seed: int) -> Ids:
    """Rows of `length` tokens from documents in a random order, a separator after each.

    Rows are in a random order too, `[rows, length]`; the tokens that do not fill a last row are
    left out.

    Raises:
        SettingError: the text is shorter than one row.
    """
    pieces = [np.append(ids, separator) for ids in documents]
    generator = np.random.RandomState(seed)
    order = generator.permutation(len(pieces))
    tokens = np.concatenate([NONE, *(pieces[at] for at in order)])
    rows = len(tokens) // length
    if rows == 0:
        raise SettingError(
            f"sequence_length: {length} is longer than the whole training text of {len(tokens)} "
            "tokens; give more text or a shorter length"
        )
    packed: Ids = tokens[: rows * length].reshape(rows, length)
    return packed[generator.permutation(rows)]
