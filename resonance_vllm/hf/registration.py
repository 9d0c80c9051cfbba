"""Registration in transformers: our rope types, exact phase, precision of rotation.

Call `register()` once in a process, before a model is built. Then the types work wherever
transformers reads `rope_parameters`: config.json, `from_pretrained(rope_parameters=...)`,
`AutoConfig`, save and reload. Stock types keep transformers' own functions.
"""

import functools
from collections.abc import Callable
from typing import Any

from resonance_vllm.core.spec import OWN_TYPES
from resonance_vllm.hf import model, request
from resonance_vllm.hf.model import set_rope_precision
from resonance_vllm.hf.rotation import rope_function

__all__ = ["register", "set_rope_precision"]


@functools.cache
def register() -> None:
    """Add our rope types to transformers; a second call does nothing.

    `rope_precision` becomes a keyword of `from_pretrained` and a key of config.json: `float32` or
    `model` (the default: the activations' dtype, as transformers does).
    """
    from transformers import PreTrainedConfig, PreTrainedModel
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    ROPE_INIT_FUNCTIONS.update(dict.fromkeys(OWN_TYPES, rope_function))
    # Most classes are imported much later, so each is changed when its first object is made.
    _when_first_made(PreTrainedConfig, request.validate_plain)
    _when_first_made(PreTrainedModel, model.wrap_constructor)
    model.wrap_loading(PreTrainedModel)
    request.wrap_reading(PreTrainedConfig)


def _when_first_made(base: Any, change: Callable[[Any], None]) -> None:
    """Change every class of a kind when its first object is made."""
    once = functools.cache(change)

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        once(cls)
        return super(base, cls).__new__(cls)

    base.__new__ = new
