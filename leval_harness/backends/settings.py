"""What users may set of `hf-long` beside the arguments of lm-eval's `hf`."""

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pydantic import ConfigDict, Field

from leval_border.errors import SettingError, hint, one_of
from leval_border.settings import Settings, field_names, read
from resonance_vllm.model_config.overrides import ROPE_PRECISIONS


class HFLongSettings(Settings):
    """The arguments that are `hf-long`'s own; text stands for a number, as on a command line.

    Attributes:
        share_prefix: False asks every request by itself, for comparison.
        share_attention: False keeps the model's own attention function over copies of the prefix.
        prefill_chunk: Tokens in one forward pass over a shared prefix at most.
        question_batch_size: Questions of one document decoded together at most.
        kv_cache_gib: Bound on the caches held at once, in GiB: a batch is made smaller until it
            fits, and a prefix that does not fit is not shared. None: what the device has free
            bounds the batches.
        rope_precision: `float32` rotates queries and keys in float32 whatever the model's dtype,
            `model` in the model's own; None leaves the model as transformers loads it.
    """

    model_config = ConfigDict(strict=False)

    share_prefix: bool = True
    share_attention: bool = True
    prefill_chunk: int = Field(2048, gt=0)
    question_batch_size: int = Field(64, gt=0)
    kv_cache_gib: float | None = Field(None, gt=0)
    rope_precision: str | None = None

    @property
    def kv_cache_bytes(self) -> int | None:
        """`kv_cache_gib` in bytes."""
        return None if self.kv_cache_gib is None else int(self.kv_cache_gib * (1 << 30))


def split_arguments(given: Mapping[str, Any]) -> tuple[HFLongSettings, dict[str, Any]]:
    """Our settings, and the arguments that are left for lm-eval's `hf`."""
    names = field_names(HFLongSettings)
    settings = read(HFLongSettings, {name: given[name] for name in names if name in given})
    if settings.rope_precision is not None:
        one_of("rope_precision", settings.rope_precision, ROPE_PRECISIONS)
    return settings, {name: value for name, value in given.items() if name not in names}


def unknown_argument(name: str, of_hf: Collection[str]) -> SettingError:
    """The error for an argument that neither we nor lm-eval's `hf` nor the model takes."""
    known = [*field_names(HFLongSettings), *of_hf]
    return SettingError(f"{name}: hf-long has no such argument{hint(name, known)}")


@contextmanager
def naming_unknown(given: Collection[str], of_hf: Collection[str]) -> Iterator[None]:
    """Name which of the given arguments nobody takes: `hf` hands those that it lacks to the model.

    Raises:
        SettingError: Python refused one of them as unexpected.
    """
    try:
        yield
    except TypeError as error:
        named = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if not named or named[1] not in given:
            raise
        raise unknown_argument(named[1], of_hf) from error
