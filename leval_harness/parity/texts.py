"""The texts that both setups read."""

from collections.abc import Iterator
from pathlib import Path

from leval_harness.text_files import texts_of
from leval_tasks.perplexity.documents import PYDOCS, Text, language_reference
from resonance_vllm.errors import SettingError, not_allowed

CHARACTERS_PER_TOKEN = 6
"""A piece of a long text has this many characters for each token that is read of it, which is more
than tokenizers put into one."""


def read_texts(source: str, longest: int) -> list[Text]:
    """All texts of a source, each once; some may be too short for `longest` tokens.

    Args:
        source: `pydocs` (the language reference that comes with Python), or what `texts_of` reads.
            The language reference and a single text file are cut into pieces.
        longest: tokens that will be read of each.

    Raises:
        SettingError: an unknown source, or a file that holds no texts.
    """
    path = Path(source).expanduser()
    if source == PYDOCS:
        found = _pieces(Text(PYDOCS, language_reference()[0]), longest)
    elif not path.exists():
        allowed = f"{PYDOCS}, a JSONL or text file, a folder of them"
        raise SettingError(not_allowed("--texts", source, allowed))
    elif path.is_dir() or path.suffix == ".jsonl":
        texts = enumerate(texts_of(path, "--texts"), 1)
        found = (Text(f"{each.name}-{number}", each.text) for number, each in texts)
    else:
        (whole,) = texts_of(path, "--texts")
        found = _pieces(whole, longest)
    once: dict[str, Text] = {}  # a copy is no further unit of chance
    for each in found:
        once.setdefault(each.text.strip(), each)
    return [each for content, each in once.items() if content]


def _pieces(text: Text, tokens: int) -> Iterator[Text]:
    """Pieces of equal size, each from the beginning of a line; what remains is left out."""
    start, size = 0, tokens * CHARACTERS_PER_TOKEN
    while start + size <= len(text.text):
        yield Text(f"{text.name}-{start}", text.text[start : start + size])
        start = text.text.find("\n", start + size - 1) + 1 or len(text.text)
