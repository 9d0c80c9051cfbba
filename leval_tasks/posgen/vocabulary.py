"""The number vocabulary: which token id of a model's tokenizer stands for which number."""

from dataclasses import dataclass
from typing import Any

from leval_tasks.posgen.sequences import PosGenError, Tokens

SPECIAL_TOKENS = ("[UNK]", "[PAD]", "[CLS]", "[SEP]", "[EOS]")
PREFIX = "[EOS]"  # starts every sequence


def special_id(token: str, modulus: int) -> int:
    """Id of a special token in a PosGen checkpoint: they follow the numbers 0..m-1."""
    return modulus + SPECIAL_TOKENS.index(token)


def vocabulary_size(modulus: int) -> int:
    """Tokens of a PosGen checkpoint: the numbers and the special ones."""
    return modulus + len(SPECIAL_TOKENS)


@dataclass(frozen=True)
class Vocabulary:
    """Token ids of the numbers 0..m-1 and of the token in front of each sequence, if any."""

    numbers: tuple[int, ...]
    prefix: int | None

    @property
    def modulus(self) -> int:
        """How many numbers the tokenizer knows in one token each."""
        return len(self.numbers)

    def encode(self, sequences: Tokens) -> list[list[int]]:
        """Token ids, each sequence with the prefix in front of it.

        Raises:
            PosGenError: a number is not in the vocabulary.
        """
        highest = int(sequences.max())
        if highest >= self.modulus:
            raise PosGenError(
                f"modulus: the sequences hold the number {highest}, but the tokenizer has single "
                f"tokens only for 0 to {self.modulus - 1}; use a checkpoint of `posgen train`"
            )
        front = [] if self.prefix is None else [self.prefix]
        return [front + [self.numbers[n] for n in row] for row in sequences.tolist()]


def from_tokenizer(tokenizer: Any) -> Vocabulary:
    """Read the numbers out of a tokenizer: every n for which the text of n is one token.

    Raises:
        PosGenError: it has no tokens for 0 and 1.
    """
    known = tokenizer.get_vocab()
    numbers: list[int] = []
    while str(len(numbers)) in known:
        numbers.append(known[str(len(numbers))])
    if len(numbers) < 2:
        raise PosGenError(
            f"tokenizer: {getattr(tokenizer, 'name_or_path', tokenizer)!r} has no number "
            "vocabulary (single tokens `0`, `1`, …); use a checkpoint of `leval-harness posgen "
            "train`"
        )
    prefix = tokenizer.bos_token_id
    return Vocabulary(tuple(numbers), tokenizer.eos_token_id if prefix is None else prefix)


def build_tokenizer(modulus: int) -> Any:
    """The tokenizer that PosGen checkpoints carry: one token a number, then the special ones.

    Its ids are those of the authors' code: numbers 0..m-1, [UNK] m, … [EOS] m + 4.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = [*map(str, range(modulus)), *SPECIAL_TOKENS]
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.post_processor = processors.TemplateProcessing(
        single=f"{PREFIX} $A", special_tokens=[(PREFIX, special_id(PREFIX, modulus))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        eos_token=PREFIX,
        bos_token=PREFIX,
    )
