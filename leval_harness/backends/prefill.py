"""How many tokens of a document one forward pass reads.

One pass is the fastest way to read a document that nothing else continues, as long as its
activations are small. Beyond that it is read in chunks, whose activations do not grow with the
document. Only the length and the model's config decide, never the memory of this machine: the same
run gives the same numbers everywhere.
"""

from typing import Any

CHUNK = 2048
"""Tokens of a chunk."""

ONE_PASS_BYTES = 1 << 29
"""Most memory for activations of a document that is read in one pass: 512 MiB, which is 5 % of a
device with 10 GB and 0.6 % of one with 80 GB."""


def one_pass_tokens(config: Any, bytes_per_value: int) -> int:
    """Return the longest document that is read in one forward pass by default.

    In a model with sliding windows it is a chunk: in one pass such layers compute, and then mask,
    the scores of all pairs of tokens.

    Args:
        config: of the model, from transformers.
        bytes_per_value: of the model's dtype.
    """
    text = config.get_text_config(decoder=True)
    if has_windows(text):
        return CHUNK
    return max(CHUNK, ONE_PASS_BYTES // activation_bytes(text, bytes_per_value))


def has_windows(text: Any) -> bool:
    """Return whether a layer of a language model attends to a part of the tokens before it only.

    Args:
        text: config of the language model.
    """
    kinds = getattr(text, "layer_types", None)
    if kinds:
        return any(kind in ("sliding_attention", "chunked_attention") for kind in kinds)
    is_used = getattr(text, "use_sliding_window", True)
    return bool(is_used and getattr(text, "sliding_window", None))


def activation_bytes(text: Any, bytes_per_value: int) -> int:
    """Return the most memory of activations per token of a forward pass.

    A layer holds at a time the residual stream and its norm, and either queries, keys, values and
    what attention makes of them, or three tensors as wide as its feed-forward part.

    Args:
        text: config of the language model.
        bytes_per_value: of the model's dtype.
    """
    hidden = int(getattr(text, "hidden_size", 0) or 0)
    feed_forward = getattr(text, "intermediate_size", None) or 4 * hidden
    if isinstance(feed_forward, list | tuple):  # one width per layer
        feed_forward = max(feed_forward)
    values = 8 * hidden + max(8 * hidden, 3 * feed_forward)
    return max(1, values * bytes_per_value)
