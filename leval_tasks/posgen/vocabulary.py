"""The number vocabulary of PosGen checkpoints: the number n is the token with the id n."""

from typing import Any

from leval_tasks.errors import TaskError

SPECIAL_TOKENS = ("[UNK]", "[PAD]", "[CLS]", "[SEP]", "[EOS]")
PREFIX = "[EOS]"  # starts every sequence


def special_id(token: str, modulus: int) -> int:
    """Id of a special token in a PosGen checkpoint: they follow the numbers 0..m-1."""
    return modulus + SPECIAL_TOKENS.index(token)


def vocabulary_size(modulus: int) -> int:
    """Tokens of a PosGen checkpoint: the numbers and the special ones."""
    return modulus + len(SPECIAL_TOKENS)


def modulus_of(tokenizer: Any) -> int:
    """How many numbers a tokenizer knows: those of which the text is the token with that id.

    Raises:
        TaskError: it does not know 0 and 1.
    """
    known, modulus = tokenizer.get_vocab(), 0
    while known.get(str(modulus)) == modulus:
        modulus += 1
    if modulus < 2:
        raise TaskError(
            f"tokenizer: {getattr(tokenizer, 'name_or_path', tokenizer)!r} has no number "
            "vocabulary; use a checkpoint of `leval-harness posgen train`"
        )
    return modulus


def build_tokenizer(modulus: int) -> Any:
    """The tokenizer that PosGen checkpoints carry: one token a number, then the special ones."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = [*map(str, range(modulus)), *SPECIAL_TOKENS]
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.post_processor = processors.TemplateProcessing(
        single=f"{PREFIX} $A", special_tokens=[(PREFIX, special_id(PREFIX, modulus))]
    )
    names = {"unk": "[UNK]", "pad": "[PAD]", "cls": "[CLS]", "sep": "[SEP]"}
    special = {f"{name}_token": token for name, token in names.items()}
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, **special, eos_token=PREFIX, bos_token=PREFIX
    )
