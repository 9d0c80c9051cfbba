"""Types of vLLM's own that were asked for through us: compared with what vLLM built of them.

On models whose positions have several axes vLLM's `yarn` takes another trained length, and model
files fix types of their own. What a checkpoint ships, and overrides that are not ours, are not
looked at.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from resonance_vllm.core.errors import RopeConfigError
from resonance_vllm.core.spec import RopeSpec
from resonance_vllm.hf import model as hf_model
from resonance_vllm.model_config.layer_types import by_layer_type, windowed
from resonance_vllm.verifier import CLOSE, Asked, differences, held_words
from resonance_vllm.vllm.model import layer_type_of, on_any_stage, reached_none, rotary_modules
from resonance_vllm.vllm.request import AXES, spec_of
from resonance_vllm.vllm.rotary import table_of, turned_by


def mark(text: Any, shipped: Any) -> None:
    """Let a stock type in the config of a language model be compared with what is built.

    Args:
        text: the config, overrides applied.
        shipped: its `rope_parameters` before them.
    """
    rope, before = text.rope_parameters, shipped if isinstance(shipped, Mapping) else {}
    one_each = rope if by_layer_type(rope) else {None: rope}
    marked = Asked(rope)
    marked.specs = {kind: spec_of(one) for kind, one in one_each.items() if not windowed(kind)}
    marked.shipped = dict(before) if by_layer_type(before) else {None: dict(before)}
    text.rope_parameters = marked


def verify(model: nn.Module, config: Any, asked: Asked, length: int) -> None:
    """Compare every rotary module of a language model with a type of vLLM's own that was asked for.

    Args:
        model: as vLLM built it in this process.
        config: that of the language model.
        asked: its settings.
        length: that is served, in tokens, for types whose frequencies vLLM fixes by it.

    Raises:
        NoRope: no module has a rotation.
        RopeConfigError: a module turns by something else.
    """
    carrying = 0
    for path, module in rotary_modules(model):
        layer_type = layer_type_of(path, config)
        spec = asked.specs.get(layer_type, asked.specs.get(None))
        if hf_model.layer_types(module):  # transformers' own, compared when it was built
            carrying += 1
        elif spec is not None and not windowed(layer_type):
            _compare(path, module, spec, length, several=AXES in asked)
            carrying += 1
    if not on_any_stage(carrying):
        raise reached_none(model, asked.specs)


def _compare(path: str, module: Any, spec: RopeSpec, length: int, *, several: bool) -> None:
    """Raise RopeConfigError unless a module turns as was asked for, on several axes or one."""
    _, table = table_of(module)
    method = spec.method.at_length(length)
    found, scale = turned_by(module)
    wrong = differences(method, found, scale, close=max(CLOSE, 2 * torch.finfo(table.dtype).eps))
    if several and not getattr(module, AXES, None):
        wrong.append("positions of one axis turn it, and those of this model have several")
    if wrong:
        raise RopeConfigError(
            f"rope_type: {spec.rope_type!r} is not what {path} ({type(module).__name__}) turns "
            f"by in vLLM: {'; '.join(wrong)}; it holds {held_words(found, scale)}; allowed: "
            "transformers (hf-long), or types of ours"
        )
