"""`diff(a, b)`: A reads documents and is closed, B reads the same tokens, the losses are compared."""

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from leval_harness.diff.result import DiffResult, compared
from leval_harness.diff.setups import SAVED, Setup
from leval_harness.diff.side import (
    DEFAULT_LENGTH,
    Lengths,
    Side,
    in_process,
    read_a,
    read_b,
    refuse_longer,
    server_limit,
)
from leval_tasks.perplexity.corpora import PYDOCS, language_reference
from leval_tasks.perplexity.documents import Document
from leval_tasks.perplexity.text_files import documents_of
from leval_tasks.statistics.difference import MARGIN
from resonance_vllm.common.errors import SettingError, invalid_value_message
from resonance_vllm.common.settings import Settings, parse_settings

SEED = 0
"""Order in which documents are taken; the same in every run."""
CHARACTERS_PER_TOKEN = 6
"""A piece of a long text has this many characters for each token that is read of it, which is more
than tokenizers put into one."""
Sided = Setup | str | os.PathLike[str]


class Options(Settings):
    """How to compare.

    Attributes:
        documents: a source of `read_documents`.
        length: tokens that are read of each document; None for 4,096, or fewer if A, or B on a
            server, cannot read as many. A saved reference has its own.
        count: documents.
        margin: nats/token; a smaller difference is treated as zero.
        ignore: kinds of findings that do not count.
        isolated: whether each checkpoint is loaded in a process of its own.
    """

    documents: str = PYDOCS
    length: Annotated[int, Field(ge=8)] | None = None
    count: PositiveInt = 8
    margin: PositiveFloat = MARGIN
    ignore: tuple[Literal["bos", "tokenizer", "template"], ...] = Field((), strict=False)
    isolated: bool = True


def diff(a: Sided, b: Sided, **options: Any) -> DiffResult:
    """Compare the token losses of setup `b` with those of setup `a` on the same documents.

    Args:
        a: a setup, its text as `setups` reads it, or the path of a saved reference.
        b: the other one; it is loaded, so no saved reference.
        **options: fields of `Options`.

    Returns:
        The differences by position in nats/token (b minus a) with their intervals, and the verdict.

    Raises:
        SettingError: a setup or an option is wrong.
        UserError: a setup cannot be loaded or cannot score given tokens.

    Example:
        >>> result = diff("hf:smollm2", "vllm:smollm2,kv_cache_dtype=fp8_e4m3")  # doctest: +SKIP
        >>> result.verdict, result.bins[0].start  # doctest: +SKIP
        ('worse', 0)
    """
    wanted = parse_settings(Options, options)
    setup_a = _setup(a)
    setup_b = _setup(b)
    if setup_b.kind == SAVED:
        raise SettingError(f"B: {setup_b.text} is a saved reference, which can only be A")
    for setup in (setup_a, setup_b):
        setup.described()  # finds what is written wrong before a model is loaded
    side_a = _read_a(setup_a, wanted, setup_b)
    side_b = _read(read_b, setup_b, wanted, side_a.documents, side_a.rows)
    return compared(side_a, side_b, wanted.margin, wanted.ignore)


def save_reference(a: Sided, path: Path, **options: Any) -> Side:
    """Let a setup read the documents and keep what it reads, for `diff --against`.

    Raises:
        UserError: as for `diff`.
    """
    reference = _read_a(_setup(a), parse_settings(Options, options), None)
    reference.save(path)
    return reference


def _setup(side: Sided) -> Setup:
    """Return a setup, parsed if it is given as text or path."""
    if isinstance(side, Setup):
        return side
    return Setup.parse(os.fspath(side))


def _read_a(setup: Setup, options: Options, setup_b: Setup | None) -> Side:
    """Return what A reads of the documents, or what a saved reference holds.

    Args:
        setup: A.
        options: how to compare.
        setup_b: B, which is asked how much it reads before A is loaded, if it is a server.

    Raises:
        UserError: B cannot read as many tokens, or A cannot be read.
    """
    if setup.kind == SAVED:
        saved = Side.load(Path(setup.target).expanduser())
        refuse_longer("B", len(saved.rows[0]), server_limit(setup_b))
        return saved
    limit_of_b = server_limit(setup_b)
    length = options.length
    most = DEFAULT_LENGTH
    if length is not None:
        refuse_longer("B", length, limit_of_b)
    elif limit_of_b is not None:
        most = min(DEFAULT_LENGTH, limit_of_b)
    documents = read_documents(options.documents, length or most)
    random.Random(SEED).shuffle(documents)
    return _read(read_a, setup, options, documents, Lengths(length, most), options.count)


def _read(function: Callable[..., Side], setup: Setup, options: Options, *arguments: Any) -> Side:
    """Let a setup read: a checkpoint in a process of its own, which frees all its memory."""
    is_loaded_here = setup.library is not None
    if options.isolated and is_loaded_here:
        return in_process(function, setup, *arguments)
    return function(setup, *arguments)


def read_documents(source: str, longest: int) -> list[Document]:
    """Return all documents of a source, each once; some may be shorter than `longest` tokens.

    Args:
        source: `pydocs` (the language reference that comes with Python), or what `documents_of`
            reads. The language reference and a single text file are cut into pieces.
        longest: tokens that will be read of each.

    Raises:
        SettingError: an unknown source, or a file that holds no documents.
    """
    path = Path(source).expanduser()
    if source == PYDOCS:
        candidates = _pieces(Document(PYDOCS, language_reference()[0]), longest)
    elif not path.exists():
        allowed = f"{PYDOCS}, a JSONL or text file, a folder of them"
        raise SettingError(invalid_value_message("--documents", source, allowed))
    elif path.is_dir() or path.suffix == ".jsonl":
        numbered = enumerate(documents_of(path, "--documents"), start=1)
        candidates = (Document(f"{doc.name}-{number}", doc.text) for number, doc in numbered)
    else:
        (whole,) = documents_of(path, "--documents")
        candidates = _pieces(whole, longest)
    # A copy of a document adds nothing new, and would make intervals too narrow.
    by_content: dict[str, Document] = {}
    for document in candidates:
        by_content.setdefault(document.text.strip(), document)
    return [document for content, document in by_content.items() if content]


def _pieces(document: Document, tokens: int) -> Iterator[Document]:
    """Yield pieces of equal size, each from the beginning of a line; the rest is dropped."""
    text = document.text
    size = tokens * CHARACTERS_PER_TOKEN
    start = 0
    while start + size <= len(text):
        yield Document(f"{document.name}-{start}", text[start : start + size])
        end_of_line = text.find("\n", start + size - 1)
        if end_of_line < 0:
            return
        start = end_of_line + 1
