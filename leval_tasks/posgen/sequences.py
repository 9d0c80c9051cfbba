"""PosGen sequences: every token after the seed is a sum, modulo `m`, of earlier tokens.

Sources: arXiv 2403.00071, Section 5 and Appendix C.1; where its formula for the semi-recursive
sub-task is ambiguous, the reading that reproduces its Figure 2. In a checkpoint the number n is the
token with the id n.
"""

from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from leval_tasks.common.metadata import PosGenSettings
from resonance_vllm.common.errors import SettingError, invalid_value_message

Tokens = npt.NDArray[np.int64]
SPECIAL_TOKENS = ("[UNK]", "[PAD]", "[CLS]", "[SEP]", "[EOS]")
PREFIX = "[EOS]"  # starts every sequence


def position_ranges(settings: PosGenSettings) -> dict[str, tuple[int, int]]:
    """Return for each metric the positions `[start, end)` over which it is the accuracy.

    `ood_accuracy` is past the training length, `id_accuracy` from the end of the seed up to it.
    """
    train = settings.train_length
    past = {"ood_accuracy": (train, settings.length)} if settings.length > train else {}
    return {**past, "id_accuracy": (settings.seed_tokens, train)}


class Splits(NamedTuple):
    """Sequences `[n, length]` of the three splits."""

    train: Tokens
    validation: Tokens
    test: Tokens


def extend(seeds: Tokens, settings: PosGenSettings) -> Tokens:
    """Continue seed tuples `[n, far + near]` by the rule of a sub-task to `[n, length]`."""
    # Positions come first, so that one step reads and writes whole rows of memory.
    tokens = np.empty((settings.length, len(seeds)), dtype=np.int64)
    tokens[: settings.seed_tokens] = seeds.T
    for index in range(settings.seed_tokens, settings.length):
        tokens[index] = _next(tokens, index, settings)
    return np.ascontiguousarray(tokens.T)


def _next(tokens: Tokens, index: int, settings: PosGenSettings) -> Tokens:
    """Return the numbers `[n]` of the rule at an index, from the tokens before it, `[positions, n]`."""
    first = index - settings.seed_tokens
    start = {"recursive": first, "cot": 0, "semi_recursive": first // 2}[settings.subtask]
    total = tokens[start : start + settings.far].sum(axis=0)
    total += tokens[index - settings.near : index].sum(axis=0)
    return np.remainder(total, settings.modulus)


def random_seeds(n: int, width: int, modulus: int, seed: int) -> Tokens:
    """Return distinct tuples `[n, width]` drawn uniformly from all `modulus ** width`, in drawing order.

    Raises:
        SettingError: there are fewer than `n` tuples.
    """
    space = modulus**width
    if n > space:
        raise SettingError(
            f"{n} distinct seeds are needed, but modulus={modulus} and {width} seed tokens "
            f"give only {space}; ask for fewer sequences or use seed_policy=cycled"
        )
    # The legacy generator is the one whose stream numpy promises never to change (NEP 19).
    generator = np.random.RandomState(seed)
    drawn = np.empty(0, dtype=np.int64)
    while len(drawn) < n:
        more = generator.randint(0, space, size=2 * n, dtype=np.int64)
        drawn = np.concatenate([drawn, more])
        _, first = np.unique(drawn, return_index=True)
        drawn = drawn[np.sort(first)]
    powers = modulus ** np.arange(width - 1, -1, -1, dtype=np.int64)
    digits: Tokens = drawn[:n, None] // powers % modulus
    return digits


def cycled_seeds(n: int, width: int, modulus: int) -> Tokens:
    """Return all strictly increasing tuples in lexicographic order, repeated until there are `n`."""
    if width > modulus:
        raise SettingError(invalid_value_message("modulus", modulus, f"at least {width}"))
    tuples = np.array(list(combinations(range(modulus), width)), dtype=np.int64)
    return tuples[np.arange(n) % len(tuples)]


def splits(settings: PosGenSettings) -> Splits:
    """Return all sequences of a data set, the same on every machine.

    With `seed_policy: cycled` validation and test are the first sequences of the training set at
    full length, as in the authors' code.
    """
    width = settings.seed_tokens
    held_out = settings.validation + settings.test
    n = settings.train + held_out
    if settings.seed_policy == "cycled":
        sequences = extend(cycled_seeds(n, width, settings.modulus), settings)
        rest = sequences[:held_out]
    else:
        sequences = extend(random_seeds(n, width, settings.modulus, settings.seed), settings)
        rest = sequences[settings.train :]
    train = sequences[: settings.train, : settings.train_length]
    return Splits(train, rest[: settings.validation], rest[settings.validation :])


def special_id(token: str, modulus: int) -> int:
    """Return the id of a special token in a PosGen checkpoint: they follow the numbers 0..m-1."""
    return modulus + SPECIAL_TOKENS.index(token)


def vocabulary_size(modulus: int) -> int:
    """Return the number of tokens of a PosGen checkpoint: the numbers and the special ones."""
    return modulus + len(SPECIAL_TOKENS)


def modulus_of(tokenizer: Any) -> int:
    """Return how many numbers a tokenizer knows, each as the token with that id.

    Raises:
        SettingError: it does not know 0 and 1.
    """
    vocabulary = tokenizer.get_vocab()
    modulus = 0
    while vocabulary.get(str(modulus)) == modulus:
        modulus += 1
    if modulus < 2:
        raise SettingError(
            f"tokenizer: {getattr(tokenizer, 'name_or_path', tokenizer)!r} has no number "
            "vocabulary; use a checkpoint of `leval-harness posgen train`"
        )
    return modulus


def build_tokenizer(modulus: int) -> Any:
    """Return the tokenizer of PosGen checkpoints: one token per number, then the special ones."""
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
