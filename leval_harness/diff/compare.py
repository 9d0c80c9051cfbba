"""`diff(a, b)`: A reads documents and is closed, B reads the same tokens, the losses are compared."""

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from leval_harness.diff.result import DiffResult, compared
from leval_harness.diff.setups import SAVED, Setup
from leval_harness.diff.side import DEFAULT_LENGTH, Side, in_process, read_side
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
        length: tokens that are read of each document; None for 4,096, or fewer if A cannot read
            as many. A saved reference has its own.
        count: documents.
        margin: nats/token; a smaller difference counts as none.
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
    """Does setup `b` still read like setup `a`?

    Args:
        a: a setup, its text as `setups` reads it, or the path of a saved reference.
        b: the other one; it is loaded, so no saved reference.
        **options: fields of `Options`.

    Raises:
        SettingError: a setup or an option is wrong.
        UserError: a setup cannot be loaded or cannot score given tokens.

    Example:
        >>> result = diff("hf:smollm2", "vllm:smollm2,kv_cache_dtype=fp8_e4m3")  # doctest: +SKIP
        >>> result.verdict, result.bins[0].start  # doctest: +SKIP
        ('worse', 0)
    """
    wanted, first, second = parse_settings(Options, options), _setup(a), _setup(b)
    if second.kind == SAVED:
        raise SettingError(f"B: {second.text} is a saved reference, which can only be A")
    for each in (first, second):
        each.described()  # what is written wrong is found before a model is loaded
    of_a = _first(first, wanted)
    of_b = _run(second, wanted, of_a.documents, of_a.rows)
    return compared(of_a, of_b, wanted.margin, wanted.ignore)


def save_reference(a: Sided, path: Path, **options: Any) -> Side:
    """Let a setup read the documents and keep what it reads, for `diff --against`.

    Raises:
        UserError: as for `diff`.
    """
    reference = _first(_setup(a), parse_settings(Options, options))
    reference.save(path)
    return reference


def _setup(given: Sided) -> Setup:
    return given if isinstance(given, Setup) else Setup.parse(os.fspath(given))


def _first(setup: Setup, options: Options) -> Side:
    """What A reads of the options' documents, or what a saved reference holds."""
    if setup.kind == SAVED:
        return Side.load(Path(setup.target).expanduser())
    documents = read_documents(options.documents, options.length or DEFAULT_LENGTH)
    random.Random(SEED).shuffle(documents)
    return _run(setup, options, documents, None, options.length, options.count)


def _run(setup: Setup, options: Options, *arguments: Any) -> Side:
    apart = options.isolated and setup.library is not None
    return (in_process if apart else read_side)(setup, *arguments)


def read_documents(source: str, longest: int) -> list[Document]:
    """All documents of a source, each once; some may be too short for `longest` tokens.

    Args:
        source: `pydocs` (the language reference that comes with Python), or what `documents_of`
            reads. The language reference and a single text file are cut into pieces.
        longest: tokens that will be read of each.

    Raises:
        SettingError: an unknown source, or a file that holds no documents.
    """
    path = Path(source).expanduser()
    if source == PYDOCS:
        found = _pieces(Document(PYDOCS, language_reference()[0]), longest)
    elif not path.exists():
        allowed = f"{PYDOCS}, a JSONL or text file, a folder of them"
        raise SettingError(invalid_value_message("--documents", source, allowed))
    elif path.is_dir() or path.suffix == ".jsonl":
        documents = enumerate(documents_of(path, "--documents"), 1)
        found = (Document(f"{each.name}-{number}", each.text) for number, each in documents)
    else:
        (whole,) = documents_of(path, "--documents")
        found = _pieces(whole, longest)
    once: dict[str, Document] = {}  # a copy is no further unit of chance
    for each in found:
        once.setdefault(each.text.strip(), each)
    return [each for content, each in once.items() if content]


def _pieces(text: Document, tokens: int) -> Iterator[Document]:
    """Pieces of equal size, each from the beginning of a line; what remains is left out."""
    start, size = 0, tokens * CHARACTERS_PER_TOKEN
    while start + size <= len(text.text):
        yield Document(f"{text.name}-{start}", text.text[start : start + size])
        start = text.text.find("\n", start + size - 1) + 1 or len(text.text)
