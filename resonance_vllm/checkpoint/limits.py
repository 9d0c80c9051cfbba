"""How long a sequence a model may be given, and what a user should know about that length."""

import math

from resonance_vllm.checkpoint.positions import PositionConfig
from resonance_vllm.common.errors import RopeConfigError
from resonance_vllm.core.spec import ORIGINAL_LENGTH_KEY, OWN_TYPES, RopeSpec


def length_limit(
    model: PositionConfig, rope: RopeSpec | None = None, requested: int | None = None
) -> int:
    """Return the longest sequence that a model may be given, on transformers and vLLM alike.

    With a factor it is the original context length times the factor (`Method.length_limit`). Methods
    that extend nothing, plain RoPE among them, may extrapolate to the `requested` length, and
    `dynamic` recomputes its base for it. A model that looks positions up in a table has the table's
    length, whatever is requested.

    Args:
        model: what the checkpoint's config says.
        rope: complete settings; None is the unmodified checkpoint, whose config.json states the
            limit of stock types.
        requested: length in tokens that somebody wants to use.

    Returns:
        Tokens of prompt and answer together.

    Raises:
        RopeConfigError: no length is given, or the config has one of this package's types that
            cannot be read.
    """
    fallback = rope.method.original_length if rope else None
    model = model.with_length(requested or fallback)
    if rope is None:
        if model.has_position_table:
            return model.max_positions
        if model.rope["rope_type"] == "default":
            return max(model.max_positions, requested or 0)
        if model.rope["rope_type"] not in OWN_TYPES:
            return model.max_positions
        rope = model.own_spec()
    # Without an extension the original length counts, also where a scaling is replaced.
    positions = model.max_positions
    if not rope.method.extension:
        positions = model.original_length
    limit = rope.method.length_limit(positions)
    if rope.method.depends_on_length or not rope.method.extension:
        return max(limit, requested or 0)
    return limit


def check_length(model: PositionConfig, rope: RopeSpec | None, context_length: int | None) -> int:
    """Return the limit in tokens, or refuse a context length above it.

    Raises:
        RopeConfigError: `context_length` is above the limit; the message says what would help.
    """
    limit = length_limit(model, rope, context_length)
    if context_length is None or context_length <= limit:
        return limit
    remedy = f"allowed: up to {limit}, or a --rope method with a larger factor"
    if model.has_position_table and rope is None:
        remedy = f"allowed: up to {limit}, the positions of which the model has a table"
    elif ambiguity := _ambiguous_length(model, rope):
        remedy = ambiguity
    elif rope is None and (own := _own_remedy(model, context_length)):
        remedy = f"allowed: up to {limit}, which its config.json states, or {own}"
    raise RopeConfigError(
        f"context_length: {context_length} is above the limit of {limit} tokens; {remedy}"
    )


def length_notes(
    model: PositionConfig, rope: RopeSpec | None = None, context_length: int | None = None
) -> list[str]:
    """Return what a user should know about the lengths of a model with RoPE settings.

    Args:
        model: what the checkpoint's config says.
        rope: complete settings; None is the unmodified checkpoint.
        context_length: length in tokens that will be used; None is the limit.

    Returns:
        A sentence for each of: a method that shortens the context, a length that can be read in two
        ways, a length beyond the positions that the checkpoint was released for.
    """
    notes = []
    try:
        limit = length_limit(model, rope, context_length)
        unmodified = length_limit(model)
    except RopeConfigError:  # a length is unknown
        return []
    if rope is not None and rope.method.extension and limit < unmodified:
        notes.append(
            f"{rope.rope_type} shortens the context: it allows {limit:,} tokens "
            f"({rope.method.original_length or model.original_length:,} times "
            f"{rope.method.extension:g}), the unmodified checkpoint {unmodified:,}"
        )
    if ambiguity := _ambiguous_length(model, rope):
        notes.append(ambiguity)
    spec = rope or model.own_spec_or_none
    extrapolates = not model.is_scaled
    if spec is not None:
        extrapolates = not (spec.method.extension or spec.method.depends_on_length)
    if context_length is not None and context_length > unmodified and extrapolates:
        factor = math.ceil(context_length / unmodified)
        notes.append(
            f"{context_length:,} tokens are beyond the {unmodified:,} positions that this "
            "checkpoint was released for; without a scaling method RoPE extrapolates there and "
            f"the loss usually rises sharply. Try --rope yarn:factor={factor}"
        )
    return notes


def _own_remedy(model: PositionConfig, context_length: int) -> str | None:
    """Return how the checkpoint's own method is requested, where it reaches a length by itself.

    Its config.json then states a shorter one, such as an unscaled `max_position_embeddings`.
    """
    own = model.own_spec_or_none
    if own is None or own.method.extension is None:
        return None
    if length_limit(model, own, context_length) < context_length:
        return None
    request = f"--rope {own.rope_type}:factor={own.method.extension:g}, its own method"
    if own.method.depends_on_length:
        return f"{request}, which follows the length of the sequence"
    return f"{request} (limit {length_limit(model, own):,})"


def _ambiguous_length(model: PositionConfig, rope: RopeSpec | None) -> str | None:
    """Return a sentence about `max_position_embeddings` beside position interpolation.

    Checkpoints write it scaled or unscaled, and only `original_max_position_embeddings` decides.
    None where the length is not in doubt.
    """
    own = model.own_spec_or_none
    factor = own.method.extension if own is not None else None
    if own is None or factor is None or factor <= 1 or not own.method.config_length_is_scaled:
        return None
    if model.stated_original_length or (rope is not None and rope.method != own.method):
        return None
    positions = model.max_positions
    request = f"{own.rope_type}:factor={factor:g},{ORIGINAL_LENGTH_KEY}={positions}"
    return (
        f"max_position_embeddings: {positions:,} beside {own.rope_type!r} with factor {factor:g} "
        f"is read as the scaled length (original context length {int(positions / factor):,}, limit "
        f"{positions:,}). If {positions:,} is the original context length, {ORIGINAL_LENGTH_KEY} "
        f"decides: --rope {request} (limit {int(positions * factor):,})"
    )
