"""Where the documents of a corpus come from: Python itself, a file of the user, or `data_dir`.

A new corpus of files needs nothing but a task's YAML that names it. A corpus that needs no files
is a function and an entry of `BUNDLED`.
"""

import hashlib
import platform
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from leval_tasks.common.data import Source, folder_below, numbered_rows, resolve_source
from leval_tasks.common.errors import DataError
from leval_tasks.common.metadata import TextSettings
from leval_tasks.perplexity.documents import (
    Document,
    DocumentRow,
    DocumentTokens,
    Encode,
    consecutive_documents,
    draw,
    draw_pieces,
    draw_texts,
    pieces_of_characters,
    without_repeats,
)
from leval_tasks.perplexity.text_files import documents_of
from resonance_vllm.common.errors import SettingError
from resonance_vllm.common.files import expand_user

PYDOCS = "pydocs"
"""The language reference that every Python contains."""

PYSOURCE = "pysource"
"""The source of Python's standard library."""

JSONL = "jsonl"
"""A file of the user, which the setting `file` names."""

EXCLUDED_FOLDERS = frozenset(
    ("test", "tests", "idle_test", "site-packages", "dist-packages", "lib-dynload", "__pycache__")
)
"""Folders of the standard library that hold tests or no part of it."""

TABLES = frozenset(("encodings", "pydoc_data"))
"""Packages that are tables rather than code."""

BUILD_SPECIFIC = ("config-*", "_sysconfigdata*")
"""Folders and modules that differ between builds of one version."""

OFTEN_MISSING = frozenset(
    ("distutils", "ensurepip", "idlelib", "lib2to3", "tkinter", "turtledemo", "venv")
)
"""Packages that Linux distributions install separately. They come last, so that the documents before them
are the same where they are missing."""

Selection = tuple[list[DocumentTokens], dict[str, Any]]
"""Documents, and the description of their data that results record."""


def needs_file(corpus: str) -> bool:
    """Return whether `data_dir` must hold the file `<corpus>.jsonl`."""
    return corpus not in BUNDLED and corpus != JSONL


def read_corpus(
    corpus: str, settings: TextSettings, encode: Encode, least: int, longest: int | None, size: int
) -> Selection:
    """Read a corpus and choose the documents of a task.

    Args:
        corpus: the name in the task's metadata.
        settings: where documents come from, how many are drawn and how.
        encode: tokenizes a text.
        least: tokens that a document of a file needs.
        longest: tokens to which a document of a file is cut; None keeps all.
        size: tokens in a document of a bundled text, which is divided.

    Raises:
        DataError: documents are missing or damaged, or none is long enough.
        SettingError: `file` is missing, or is given to a task with documents of its own.
    """
    _check_file_is_read(corpus, settings)
    if corpus in BUNDLED:
        return BUNDLED[corpus](encode, settings, size)
    documents, data = _documents_of_files(corpus, settings)
    return draw(documents, encode, settings, least, longest), data


def read_same_text(
    corpus: str, settings: TextSettings, encode: Encode, least: int, characters: int
) -> Selection:
    """Read a corpus whose documents are the same text for every tokenizer.

    Bundled texts are divided into documents of so many characters, of which `pysource` takes
    consecutive ones and `pydocs` random ones. Documents of files are cut to as many, and shorter ones
    are excluded. No tokenizer decides which documents are read: one that makes too few tokens of a
    document is refused.

    Args:
        corpus: the name in the task's metadata.
        settings: where documents come from, how many are drawn and how.
        encode: tokenizes a text.
        least: tokens that a document needs.
        characters: the size of a document.

    Raises:
        DataError: documents are missing or damaged, none is long enough, or one has too few tokens.
        SettingError: `file` is missing, or is given to a task with documents of its own.
    """
    _check_file_is_read(corpus, settings)
    if corpus == PYSOURCE:
        files, data = standard_library()
        source = Document(PYSOURCE, "".join(file.text for file in files))
        first = settings.seed * settings.num_docs
        pieces = pieces_of_characters(source, characters)
        documents = pieces[first : first + settings.num_docs]
    elif corpus == PYDOCS:
        text, digest = language_reference()
        documents = pieces_of_characters(Document(PYDOCS, text), characters)
        data = described_python("pydoc_data.topics", digest)
    else:
        documents, data = _documents_of_files(corpus, settings)
    drawn = draw_texts(documents, settings, characters)
    if not drawn:
        raise DataError(
            f"max_characters={characters}: {corpus} has no document of so many characters for "
            f"num_docs={settings.num_docs} and seed={settings.seed}; use fewer characters or a smaller "
            "seed"
        )
    return [_with_tokens(document, encode, least) for document in drawn], data


def _with_tokens(document: Document, encode: Encode, least: int) -> DocumentTokens:
    """Return a document in the model's tokens.

    Raises:
        DataError: there are fewer than `least`.
    """
    tokens, ends = encode(document.text)
    if len(tokens) < least:
        raise DataError(
            f"max_characters={len(document.text)}: document {document.name} has {len(tokens)} of this "
            f"model's tokens, and the longest context needs {least}. Use more characters, for all "
            "models, or a shorter context_length"
        )
    return DocumentTokens(document.name, document.text, tokens, ends)


def _check_file_is_read(corpus: str, settings: TextSettings) -> None:
    """Refuse a user's file for a task with documents of its own."""
    if settings.file and corpus != JSONL:
        raise SettingError(
            f"file: this task reads the corpus {corpus!r}; use ppl_jsonl or effective_context_jsonl "
            f"for the documents of {settings.file}"
        )


def _documents_of_files(
    corpus: str, settings: TextSettings
) -> tuple[list[Document], dict[str, Any]]:
    """Return the documents of a corpus that no package brings, and the description of their data."""
    if corpus == JSONL:
        return own_file(settings.file)
    return file_of_corpus(corpus, settings.data_dir)


def own_file(file: str | None) -> tuple[list[Document], dict[str, Any]]:
    """Return the documents of a user's file, named after it.

    Raises:
        SettingError: no file is named, it does not exist, or it is damaged.
    """
    if not file:
        raise SettingError(
            'file: missing; name your documents, one JSON object with "text" per line, with '
            '--metadata \'{"file": "PATH.jsonl"}\''
        )
    path = expand_user(file)
    if not path.is_file():
        raise SettingError(f"file: {file} does not exist or is not a file")
    rows = enumerate(documents_of(path, "file"))
    documents = [Document(f"{path.stem}-{number}", row.text) for number, row in rows]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return documents, _described("file", str(path), path.name, digest)


def file_of_corpus(corpus: str, data_dir: str | None) -> tuple[list[Document], dict[str, Any]]:
    """Return the documents of a corpus from its file in `data_dir`.

    Raises:
        DataError: the file is missing or damaged.
    """
    path = corpus_file(f"{corpus}.jsonl", resolve_source(data_dir))
    content = path.read_bytes()
    rows = numbered_rows(content, str(path), DocumentRow)
    documents = [Document(f"{corpus}-{number - 1}", row.text) for number, row in rows]
    digest = hashlib.sha256(content).hexdigest()
    return documents, _described("data_dir", str(path), path.name, digest)


def corpus_file(name: str, source: Source) -> Path:
    """Return the path of a corpus file, in a source's folder or its subfolder `corpora`.

    Raises:
        DataError: there is no such file; names the folder below that holds one.
    """
    folders = [source.folder, source.folder / "corpora"] if source.folder else []
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    raise DataError(
        f'data_dir: {source.path} ({source.kind}) has no {name}, one JSON object with "text" per '
        f"line{folder_below(source.folder, name)}; docs/reference/perplexity.md says how to get it, and "
        "pysource and pydocs need no files"
    )


def _described(source: str, path: str, file: str, digest: str) -> dict[str, Any]:
    """Return what results record about the data."""
    return {"source": source, "path": path, "sample": False, "files": {file: digest}}


def described_python(source: str, digest: str) -> dict[str, Any]:
    """Return what results record about text that comes with Python."""
    version = platform.python_version()
    data = _described(source, f"Python {version}", source, digest)
    return {**data, "python_version": version}


def language_reference(topics: Mapping[str, str] | None = None) -> tuple[str, str]:
    """Return the topics of the language reference in one text, and its SHA-256.

    Passages that an earlier topic contains are excluded, because `pydoc_data.topics` has many of
    them under several names.

    Args:
        topics: name -> text; by default those of this Python's `pydoc_data.topics`.
    """
    if topics is None:
        from pydoc_data.topics import topics as bundled_topics

        topics = bundled_topics
    paragraphs: list[str] = []
    for name in sorted(topics):
        paragraphs += topics[name].split("\n\n")
    text = "\n\n".join(paragraph.strip("\n") for paragraph in without_repeats(paragraphs))
    return text, Document(PYDOCS, text).sha256


def draw_from_pydocs(encode: Encode, settings: TextSettings, size: int) -> Selection:
    """Draw documents of `size` tokens from the language reference.

    Raises:
        DataError: the language reference is shorter than one document.
    """
    text, digest = language_reference()
    documents = draw_pieces(Document(PYDOCS, text), encode, settings, size)
    return documents, described_python("pydoc_data.topics", digest)


def library_files(library: Path) -> Iterator[Document]:
    """Yield the modules of a standard library in a fixed order, each after its path.

    The order is that of the paths, with packages that may be missing last. Tests, tables and what
    differs between builds are excluded.

    Args:
        library: the folder of the standard library.
    """
    paths = [path.relative_to(library) for path in library.rglob("*.py")]
    chosen = [path for path in paths if _is_source(path)]
    for path in sorted(chosen, key=lambda path: (path.parts[0] in OFTEN_MISSING, path.parts)):
        source = (library / path).read_bytes().decode("utf-8", "replace")
        yield Document(path.as_posix(), f"# {path.as_posix()}\n\n{source}\n\n")


def _is_source(path: Path) -> bool:
    """Return whether a path, relative to the standard library, is a module that counts as text."""
    folders = set(path.parts[:-1])
    specific = any(Path(path.parts[0]).match(pattern) for pattern in BUILD_SPECIFIC)
    return not specific and not folders & (EXCLUDED_FOLDERS | TABLES)


def consecutive_from_pysource(encode: Encode, settings: TextSettings, size: int) -> Selection:
    """Return `num_docs` consecutive documents of `size` tokens of Python's standard library.

    Nothing is drawn at random: seed 0 takes the first `num_docs` documents, seed 1 the next ones,
    and so on. The documents of two seeds are disjoint.

    Raises:
        DataError: the source is not installed, or has too few tokens.
    """
    files, data = standard_library()
    skipped = settings.seed * settings.num_docs
    documents = consecutive_documents(files, encode, PYSOURCE, size, skipped, settings.num_docs)
    return documents, data


@cache
def standard_library() -> tuple[list[Document], dict[str, Any]]:
    """Return the modules of Python's standard library, and the description of these data.

    Raises:
        DataError: the source is not installed.
    """
    library = Path(sysconfig.get_path("stdlib"))
    files = list(library_files(library))
    if not files:
        raise DataError(
            f"{library} holds no source of the standard library, which pysource reads; use pydocs or "
            "documents of your own"
        )
    digest = hashlib.sha256("".join(file.text for file in files).encode()).hexdigest()
    return files, described_python("Python standard library", digest)


BUNDLED: dict[str, Callable[[Encode, TextSettings, int], Selection]] = {
    PYDOCS: draw_from_pydocs,
    PYSOURCE: consecutive_from_pysource,
}
"""Corpus that needs no files -> the function that chooses its documents."""
