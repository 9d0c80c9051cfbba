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
"""Token ids, int64."""
SHARED_RUN = 50
"""Tokens of a passage that counts as shared between training and held-out text."""
NONE: Ids = np.empty(0, dtype=np.int64)


def prepare_document(
    sources: Sequence[str], tokenizer: Any, settings: FineTuneSettings
) -> tuple[Ids, list[Document]]:
    """Read, split, tokenise and pack the training text.

    Whole documents are held out. Passages of 50 tokens or more that a training document shares with
    a held-out one are cut out of the training document.

    Args:
        sources: files and folders of text.
        tokenizer: of transformers.
        settings: sequence length, number of held-out documents and seed.

    Returns:
        Token ids of the training rows, `[rows, sequence_length]`, and the held-out documents.

    Raises:
        UserError: there is too little text, it cannot be read, or the tokenizer has no end-of-text
            token.
    """

    def ids(document: Document) -> Ids:
        # verbose=False: documents may be longer than the model, of which the tokenizer would warn
        encoded = tokenizer(document.text, add_special_tokens=False, verbose=False)
        return np.array(encoded["input_ids"], dtype=np.int64)

    training, held_out = split_documents(read_documents(sources), settings.held_out, settings.seed)
    held_out_hashes = [run_hashes(ids(document)) for document in held_out]
    shared = np.concatenate([NONE, *held_out_hashes])
    pieces: list[Ids] = []
    for document in training:
        pieces += without_shared(ids(document), shared)
    if tokenizer.eos_token_id is None:
        raise UserError("tokenizer: it has no eos_token, which separates documents")
    return pack(pieces, settings.sequence_length, tokenizer.eos_token_id, settings.seed), held_out


def read_documents(sources: Sequence[str]) -> list[Document]:
    """Return the documents of files and folders, equal ones once, without empty ones.

    Args:
        sources: what `documents_of` reads.

    Raises:
        SettingError: a source does not exist, or there is no text in any.
    """
    documents: dict[str, Document] = {}
    for source in sources:
        path = expand_user(source)
        if not source or not path.exists():
            kinds = "an existing .jsonl or text file, or a folder of them"
            raise SettingError(invalid_value_message("--data", source, kinds))
        for document in documents_of(path, "--data"):
            if document.text.strip():
                documents[document.sha256] = document
    if not documents:
        if not sources:
            raise SettingError("--data: missing; give a file or folder of training text")
        raise SettingError(f"--data: there is no text in {', '.join(sources)}")
    return list(documents.values())


def split_documents(
    documents: Sequence[Document], held_out: int, seed: int
) -> tuple[list[Document], list[Document]]:
    """Split documents into those for training and those that are held out.

    Which is which follows from the documents' text and the seed, not from their order.

    Args:
        documents: distinct documents.
        held_out: number of documents to hold out.
        seed: another seed gives another split.

    Returns:
        Training documents and held-out documents, both in the order of `documents`.

    Raises:
        SettingError: no document would be left to train on.
    """
    if not 0 <= held_out < len(documents):
        raise SettingError(
            invalid_value_message(
                "held_out", held_out, f"0 to {len(documents) - 1} of the documents"
            )
        )
    keys = {}
    for document in documents:
        keys[document] = hashlib.sha256(f"{seed}/{document.sha256}".encode()).hexdigest()
    chosen = set(sorted(documents, key=keys.__getitem__)[:held_out])
    training = [document for document in documents if document not in chosen]
    return training, [document for document in documents if document in chosen]


def run_hashes(ids: Ids, length: int = SHARED_RUN) -> Ids:
    """Hash every run of consecutive tokens.

    Args:
        ids: token ids `[n]`.
        length: tokens of a run.

    Returns:
        One hash per run, `[max(0, n - length + 1)]`: a random linear combination of its ids, modulo
        2 ** 64.
    """
    if len(ids) < length:
        return NONE
    weights = np.random.RandomState(0).randint(-(2**63), 2**63, length, dtype=np.int64)
    return np.convolve(ids, weights, "valid")


def without_shared(ids: Ids, held_out: Ids, length: int = SHARED_RUN) -> list[Ids]:
    """Cut the passages that a training document shares with held-out text.

    These are licences, for example, which many books share.

    Args:
        ids: token ids of the training document, `[n]`.
        held_out: `run_hashes` of the held-out text.
        length: tokens of a passage.

    Returns:
        The pieces between the shared passages, in order.
    """
    starts = np.flatnonzero(np.isin(run_hashes(ids, length), held_out))
    # number of shared passages over each token: +1 where one starts, -1 after its end, summed up
    changes = np.zeros(len(ids) + 1, dtype=np.int64)
    np.add.at(changes, starts, 1)
    np.add.at(changes, starts + length, -1)
    is_own = np.cumsum(changes[:-1]) == 0
    # borders of the stretches of own tokens, alternately a first token and the one after the last
    padded = np.concatenate([[0], is_own.astype(np.int8), [0]])
    borders = np.flatnonzero(np.diff(padded)).reshape(-1, 2)
    return [ids[first:end] for first, end in borders]


def pack(documents: Iterable[Ids], length: int, separator: int, seed: int) -> Ids:
    """Pack documents into rows of equal length.

    Documents are joined in a random order with a separator after each, cut into rows, and the rows
    are shuffled. Tokens that do not fill a last row are dropped.

    Args:
        documents: token ids of each document.
        length: tokens of a row.
        separator: token id between documents.
        seed: of both orders.

    Returns:
        Token ids `[rows, length]`.

    Raises:
        SettingError: the text is shorter than one row.
    """
    pieces = [np.append(ids, separator) for ids in documents]
    generator = np.random.RandomState(seed)
    order = generator.permutation(len(pieces))
    tokens = np.concatenate([NONE, *(pieces[index] for index in order)])
    rows = len(tokens) // length
    if rows == 0:
        raise SettingError(
            f"sequence_length: {length} is longer than the whole training text of {len(tokens)} "
            "tokens; give more text or a shorter length"
        )
    packed: Ids = tokens[: rows * length].reshape(rows, length)
    return packed[generator.permutation(rows)]
