"""What a user may set through `--metadata`, checked once."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from leval_tasks.errors import SettingError
from leval_tasks.perplexity.windows import check_context_lengths, check_settings


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one perplexity task.

    Attributes:
        context_lengths: Positions of a window, BOS included; several make a curve.
        mode: See `leval_tasks.perplexity.windows.MODES`.
        stride: Tokens between sliding windows, and tokens scored by `last`.
        num_docs: Documents drawn.
        seed: Seed of the draw.
        min_tokens: Shortest document that counts; never less than the longest context needs.
        max_tokens: Documents are cut to this many tokens, or None for whole documents.
        bos: Whether windows begin with BOS.
    """

    context_lengths: tuple[int, ...]
    mode: str
    stride: int
    num_docs: int
    seed: int
    min_tokens: int
    max_tokens: int | None
    bos: bool

    @property
    def longest(self) -> int:
        """The longest context length."""
        return self.context_lengths[-1]

    @property
    def full_window(self) -> int:
        """Document tokens in a window of the longest context."""
        return self.longest - int(self.bos)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for the results file."""
        return asdict(self) | {"context_lengths": list(self.context_lengths)}


def read_settings(
    metadata: Mapping[str, Any], *, has_bos: bool, default_length: int | None
) -> Settings:
    """Settings from a task's merged metadata.

    Args:
        metadata: YAML metadata, `model_args` and `--metadata`, merged by lm-eval; foreign keys are
            other tasks' or the model's business.
        has_bos: Whether the tokenizer has a BOS token.
        default_length: The longest window the model takes, used when no length is given.

    Raises:
        SettingError: A value of the wrong kind or out of range, `bos: true` without a BOS token,
            or no context length to be had.
    """
    lengths = metadata.get("context_length") or default_length
    if lengths is None:
        raise SettingError(
            "context_length is not given and the model names no limit; "
            "give it, for example --metadata '{\"context_length\": [4096, 8192]}'"
        )
    context_lengths = check_context_lengths(
        lengths if isinstance(lengths, (list, tuple)) else [lengths]
    )
    bos = _bos(metadata.get("bos"), has_bos)
    mode = metadata.get("mode", "sliding")
    stride = _whole(metadata, "stride", 256, minimum=1)
    for length in context_lengths:
        check_settings(length, stride, mode, bos)
    full = context_lengths[-1] - int(bos)
    max_tokens = metadata.get("max_tokens")
    if max_tokens is not None:
        max_tokens = _whole(metadata, "max_tokens", full, minimum=full)
    return Settings(
        context_lengths=context_lengths,
        mode=mode,
        stride=stride,
        num_docs=_whole(metadata, "num_docs", 50, minimum=1),
        seed=_whole(metadata, "seed", 0, minimum=0),
        min_tokens=max(_whole(metadata, "min_tokens", full, minimum=1), full),
        max_tokens=max_tokens,
        bos=bos,
    )


def _bos(value: Any, has_bos: bool) -> bool:
    if value not in (None, True, False):
        raise SettingError(f"bos={value!r}; give true or false, or leave it out")
    if value and not has_bos:
        raise SettingError(
            "bos=true, but the tokenizer has no BOS token; leave bos out: the first token of each "
            "document is then context only and not scored"
        )
    return has_bos if value is None else bool(value)


def _whole(metadata: Mapping[str, Any], name: str, default: int, *, minimum: int) -> int:
    value = metadata.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise SettingError(f"{name}={value!r} must be a whole number")
    if value < minimum:
        raise SettingError(f"{name}={value} must be at least {minimum}")
    return value
