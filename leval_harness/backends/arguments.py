"""What users set for the backends on transformers: arguments, and options of generation."""

import inspect
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pydantic import ConfigDict, Field

from resonance_vllm.errors import SettingError, hint
from resonance_vllm.settings import Settings, field_names, read


class HFLongSettings(Settings):
    """The arguments that only `hf-long` has. Text is converted, as on a command line.

    Attributes:
        share_prefix: False runs every request by itself, for comparison.
        prefill_chunk: Largest number of tokens in one forward pass. None: 2,048 of a text that
            several requests share, and a text that shares nothing in one pass.
        question_batch_size: Largest number of questions of one document answered together.
    """

    model_config = ConfigDict(strict=False)

    share_prefix: bool = True
    prefill_chunk: int | None = Field(None, gt=0)
    question_batch_size: int = Field(64, gt=0)


def split_arguments(given: Mapping[str, Any]) -> tuple[HFLongSettings, dict[str, Any]]:
    """Our settings, and the other arguments, which are for `hf`."""
    names = field_names(HFLongSettings)
    settings = read(HFLongSettings, {name: given[name] for name in names if name in given})
    return settings, {name: value for name, value in given.items() if name not in names}


def arguments_of(*classes: type) -> list[str]:
    """Names of the arguments that classes are constructed with."""
    every = [inspect.getfullargspec(each) for each in classes]
    return [name for each in every for name in (*each.args[1:], *each.kwonlyargs)]


@contextmanager
def refusing_unknown(
    backend: str, given: Collection[str], known: Collection[str]
) -> Iterator[None]:
    """Refuse an argument that no code takes, while a backend is constructed.

    Backends pass arguments that they do not know to the model or engine that they load, which may
    refuse them.

    Args:
        backend: For the message.
        given: Names of the arguments.
        known: Names that the message may propose.

    Raises:
        SettingError: Names the argument, the allowed ones and near matches.
    """
    try:
        yield
    except TypeError as error:
        named = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if not named or named[1] not in given:
            raise
        raise no_such_argument(backend, named[1], known) from error


def no_such_argument(backend: str, name: str, known: Collection[str]) -> SettingError:
    """The error about an argument that a backend does not have."""
    return SettingError(f"{name}: {backend} has no such argument{hint(name, known)}")


_SAMPLING = {"do_sample", "temperature", "top_k", "top_p", "use_cache"}
"""Options of sampling, which greedy decoding ignores."""
_POSITIONLESS = {"min_new_tokens", "suppress_tokens"}
"""Options that depend on the number of a step or on the vocabulary, not on earlier tokens."""
_LOOKING_BACK = {"repetition_penalty", "no_repeat_ngram_size", "bad_words_ids", "sequence_bias"}
"""Options that depend on earlier tokens, which padding would change."""
_HARMLESS = {
    "bos_token_id", "eos_token_id", "pad_token_id", "do_sample", "temperature", "top_k", "top_p",
    "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "transformers_version", "use_cache",
    "_from_model_config", "cache_implementation", "max_length", "max_new_tokens",
    "output_attentions", "output_hidden_states", "output_scores", "output_logits",
    "return_dict_in_generate",
}  # fmt: skip
"""Keys of a checkpoint's generation config that greedy decoding ignores, or that are the same for
every row."""


def must_run_alone(options: Mapping[str, Any]) -> str:
    """Why generation options cannot be served from a shared text; empty if they can."""
    if options.get("do_sample"):
        return "sampling"
    known = {"until", "max_gen_toks", *_SAMPLING, *_POSITIONLESS, *_LOOKING_BACK}
    used = sorted(options.keys() - known)
    return f"generation option {', '.join(used)}" if used else ""


def depends_on_earlier_tokens(options: Mapping[str, Any], generation_config: Any) -> bool:
    """Whether decoding depends on earlier tokens, so that the rows of a batch cannot be padded."""
    configured = generation_config.to_diff_dict().keys()
    return bool((options.keys() - _SAMPLING | configured - _HARMLESS) - _POSITIONLESS)


def greedy(options: Mapping[str, Any]) -> dict[str, Any]:
    """Generation options for greedy decoding, without those of sampling."""
    return {k: v for k, v in options.items() if k not in _SAMPLING} | {"do_sample": False}
