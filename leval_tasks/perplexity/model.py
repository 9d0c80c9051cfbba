"""What the perplexity tasks must know of the model that will answer: tokenizer, limit, precision.

lm-eval gives a task the run's settings but not the model, and cuts over-long requests with no more
than a warning. The model is in the evaluator's own frame while it has the task build requests, so
it is looked up there; the settings serve where there is none, as when prompts are only shown.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from leval_tasks.errors import ContextLengthError, SettingError
from leval_tasks.running import running_model
from leval_tasks.tokens import backend_limit, checkpoint_config, checkpoint_limit, load_tokenizer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reader:
    """The model as far as windows depend on it.

    Attributes:
        tokenizer: A fast tokenizer.
        backend: Class name of lm-eval's model, or "unknown".
        limit: Longest window it takes uncut, or None where nothing says.
        raise_limit: The setting that raises the limit.
        vocabulary: Rows of its embedding, or None.
        softmax: "float32", or a remark where the softmax is less precise.
    """

    tokenizer: Any
    backend: str
    limit: int | None
    raise_limit: str
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
                f"the tokenizer {getattr(self.tokenizer, 'name_or_path', '')!r} does not match the "
                f"model: token id {max(tokens)} is outside its vocabulary of {self.vocabulary}; "
                "give tokenizer=NAME_OR_PATH of the model's own in --model_args"
            )
        return tokens, [end for _, end in encoded["offset_mapping"]]

    def check_window(self, context_length: int) -> None:
        """Refuse a window that the backend would cut.

        Raises:
            ContextLengthError: With the RoPE method and the setting that would allow it.
        """
        if self.limit is None or context_length <= self.limit:
            return
        needed = context_length + (self.raise_limit == "max_model_len" or self.backend == "api")
        factor = -(-context_length // self.limit)
        raise ContextLengthError(
            f"context_length={context_length} is larger than the {self.limit} positions that this "
            f"run's model ({self.backend}) takes uncut"
            f"{' (vLLM keeps one for the token it generates)' if needed > context_length else ''}; "
            f"give {self.raise_limit}={needed} in --model_args. Past the trained length a model "
            f"also needs RoPE scaling, such as rope_type=yarn with factor={factor:.1f} "
            f"(`leval-harness rope` lists the methods); or take context_length={self.limit} or less"
        )


def find_reader(metadata: Mapping[str, Any]) -> Reader:
    """The reader of this run, from the running model or else from the run's settings.

    Raises:
        TokenizerError: No fast tokenizer is to be had.
    """
    model = running_model()
    if model is None:
        return _from_settings(metadata)
    tokenizer = getattr(model, "tokenizer", None)
    if not getattr(tokenizer, "is_fast", False):
        tokenizer = load_tokenizer(metadata)
    backend, length = type(model).__name__, getattr(model, "max_length", None)
    module = type(model).__module__
    if "vllm" in module:
        return Reader(
            tokenizer, backend, model.max_length - 1, "max_model_len", _vocabulary(model), "float32"
        )
    if module.startswith(("lm_eval.models.openai", "lm_eval.models.api")):
        return Reader(tokenizer, "api", length, "max_length", None, "the server's")
    return Reader(tokenizer, backend, length, "max_length", _vocabulary(model), _softmax(model))


def _from_settings(metadata: Mapping[str, Any]) -> Reader:
    tokenizer = load_tokenizer(metadata)
    vllm = "max_model_len" in metadata
    limit = backend_limit(metadata) or checkpoint_limit(metadata)
    return Reader(
        tokenizer,
        "unknown",
        limit - int(vllm) if limit else None,
        "max_model_len" if vllm else "max_length",
        checkpoint_config(metadata).get("vocab_size"),
        "unknown",
    )


def _vocabulary(model: Any) -> int | None:
    config = getattr(model, "config", None) or getattr(model, "_config", None)
    text_config = getattr(config, "get_text_config", lambda: config)()
    return getattr(text_config, "vocab_size", None)


def _softmax(model: Any) -> str:
    """Precision of the softmax; lm-eval's `hf` takes the model's unless told otherwise."""
    if hasattr(model, "teacher_forced"):
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
