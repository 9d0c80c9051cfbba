"""What the perplexity tasks must know of the model that will answer: tokenizer and precision."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from leval_border.errors import SettingError
from leval_tasks.context import checkpoint_config, is_server
from leval_tasks.running import running_model
from leval_tasks.tokenizer import find_tokenizer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reader:
    """How the model reads text: fast tokenizer, rows of the embedding, precision of the softmax."""

    tokenizer: Any
    vocabulary: int | None
    softmax: str

    def encode(self, text: str) -> tuple[list[int], list[int]]:
        """Token ids without special tokens, and where in the text each ends (characters).

        Raises:
            SettingError: An id that the model's embedding does not have.
        """
        encoded = self.tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        tokens = list(encoded["input_ids"])
        if self.vocabulary and tokens and max(tokens) >= self.vocabulary:
            raise SettingError(
                f"tokenizer: {getattr(self.tokenizer, 'name_or_path', '')!r} does not match the "
                f"model: token id {max(tokens)} is outside its vocabulary of {self.vocabulary}; "
                "give tokenizer=NAME_OR_PATH of the model's own in --model_args"
            )
        return tokens, [end for _, end in encoded["offset_mapping"]]


def find_reader(metadata: Mapping[str, Any]) -> Reader:
    """The reader of this run, from the running model or else from the run's settings.

    Raises:
        TokenizerError: No fast tokenizer is to be had.
    """
    tokenizer, model = find_tokenizer(metadata), running_model()
    if model is None:
        return Reader(tokenizer, checkpoint_config(metadata).get("vocab_size"), "unknown")
    if is_server(model):
        return Reader(tokenizer, None, "the server's")
    config = getattr(model, "config", None) or getattr(model, "_config", None)
    text_config = getattr(config, "get_text_config", lambda: config)()
    return Reader(tokenizer, getattr(text_config, "vocab_size", None), _softmax(model))


def _softmax(model: Any) -> str:
    """Precision of the softmax; lm-eval's `hf` takes the model's unless told otherwise."""
    if hasattr(model, "teacher_forced") or "vllm" in type(model).__module__:
        return "float32"
    given = str(getattr(model, "softmax_dtype", None) or "").removeprefix("torch.")
    own = str(getattr(getattr(model, "model", None), "dtype", "")).removeprefix("torch.")
    used = given or own or "unknown"
    if used not in ("float32", "float64"):
        logger.warning(
            "perplexities of this run are marked: the softmax is %s, which is off by some tenths "
            "of a percent; give softmax_dtype=float32 in --model_args",
            used,
        )
    return used
