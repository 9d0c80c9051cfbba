"""Whether a model's prefix cache may be reused, decided by its config and then by trying it.

A key/value cache of a prefix is right for every continuation only if nothing about the prefix
depends on what follows. Dynamic RoPE types rotate all positions by a base that depends on the
whole length. What a layer keeps of it, and whether rows after it may be padded, its cache says.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from textwrap import shorten
from typing import Any

from leval_harness.backends.cache import Footprint
from leval_harness.backends.prefix_selfcheck import difference_on_trial, tolerance
from resonance_vllm.core.method import Method
from resonance_vllm.core.spec import BASE_TYPES, PREFIX

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reuse:
    """How prefixes are shared on one model.

    Attributes:
        mode: `split` (one copy for all rows), `copied` (the model's own attention, one copy of
            the prefix a row) or `none`.
        reason: Why it is not the mode before in that list; empty for `split`.
        max_length: Longest sequence for which reuse is right, None for any.
        footprint: What the cache takes.
        padded: Whether rows of unequal length may be read together, padded at the left; else they
            are read apart and joined where their ends are.
    """

    mode: str
    reason: str = ""
    max_length: int | None = None
    footprint: Footprint = field(default_factory=Footprint)
    padded: bool = True

    def refusal(self, length: int) -> str:
        """Why a sequence of this length cannot use a shared prefix; empty if it can."""
        if self.mode == "none":
            return self.reason
        if self.max_length is not None and length > self.max_length:
            return f"longer than {self.max_length} tokens, where the RoPE base changes"
        return ""


def rope_limit(config: Any) -> tuple[int | None, str]:
    """Longest sequence up to which cached keys do not depend on the final length, and why.

    (None, "") if they never do.
    """
    text = config.get_text_config(decoder=True)
    parameters = getattr(text, "rope_parameters", None) or {}
    # Models with several kinds of layers have one dictionary a kind.
    nested = [value for value in parameters.values() if isinstance(value, Mapping)]
    limits: list[tuple[int, str]] = []
    for rope in nested or [parameters]:
        kind = str(rope.get("rope_type", "default"))
        original = rope.get("original_max_position_embeddings")
        method, _ = BASE_TYPES.get(kind.removeprefix(PREFIX), (None, None))
        if method.follows_length if method else "dynamic" in kind:
            known = [text.max_position_embeddings, original]
            limits.append((min(int(value) for value in known if value), kind))
        elif switch := _switch_length(method, rope, text):
            limits.append((switch, kind))
    if not limits:
        return None, ""
    limit, kind = min(limits)
    return limit, f"rope type {kind!r} rotates anew beyond {limit} tokens"


def _switch_length(method: type[Method] | None, rope: Mapping[str, Any], text: Any) -> int | None:
    """The length beyond which a method has other frequencies, with a config's own keys."""
    if method is None:
        return None
    names = ("original_max_position_embeddings", "max_position_embeddings")
    original = next(filter(None, (getattr(text, name, None) for name in names)), None)
    known = {names[0]: original, **rope}
    taken = {key: known[key] for key in method.key_names() if known.get(key) is not None}
    return method.model_construct(**taken).switch_length


def obstacle(model: Any) -> str:
    """Why the model's cache cannot be cut at a prefix, from its config; empty if it can."""
    config = model.config
    if getattr(config, "is_encoder_decoder", False):
        return "encoder-decoder model"
    peft = getattr(model, "peft_config", None) or {}
    if isinstance(peft, Mapping) and any(
        getattr(entry, "is_prompt_learning", False) for entry in peft.values()
    ):
        return "prompt-learning adapter adds virtual tokens"
    return ""


def examine(model: Any, *, share_attention: bool = True) -> Reuse:
    """Find the best way to share prefixes that gives the answers of a loaded causal model.

    `share_attention=False` keeps the model's own attention function, whatever it costs.
    """
    limit, why = rope_limit(model.config)
    modes = ["split", "copied"]
    if failed := obstacle(model):
        modes = []
    elif not share_attention:
        failed, modes = "shared attention is switched off", ["copied"]
    if limit is not None and modes:
        logger.warning("prefixes are shared only among prompts up to %d tokens: %s", limit, why)
    for mode in modes:
        try:
            difference, path = difference_on_trial(model, split=mode == "split")
        # Whatever a foreign model raises here only means that this mode is not for it.
        except Exception as error:  # noqa: BLE001
            # A compiler's error carries all it printed.
            failed = shorten(f"{mode}: {type(error).__name__}: {error}", 200)
            continue
        if difference <= tolerance(model.dtype):
            if failed:
                logger.warning("each row gets its own copy of the shared prefix (%s)", failed)
            return Reuse(mode, failed, limit, path.footprint, path.takes_padding)
        failed = f"{mode}: log-probabilities differ by {difference:.2g} of their spread from `hf`"
    logger.warning("no prefix is shared: %s", failed)
    return Reuse("none", failed)
