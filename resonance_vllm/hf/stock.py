"""Types of transformers' own that an override asks for: compared with what was built of them.

Model code may ignore them, keep keys of its own beside them, or fail on them past the trained
length. What a checkpoint ships is the model as it is, and nobody's request.
"""

import copy
import logging
from typing import Any

import torch
from torch import nn

from resonance_vllm.core.errors import RopeConfigError
from resonance_vllm.core.spec import RopeSpec
from resonance_vllm.hf import feature_layout as hf_layout
from resonance_vllm.hf.carried import family, frequencies_of, prefix, twin
from resonance_vllm.hf.model import layer_types, no_rope, off_meta, refuse_encoder
from resonance_vllm.hf.request import Settings, by_layer, configs, own_requests, spec_of
from resonance_vllm.model_config.layer_types import windowed
from resonance_vllm.verifier import Asked, asked_of, differences, held_words

logger = logging.getLogger("resonance_vllm.hf.registration")


def mark(config: Any, shipped: Any) -> None:
    """Let the settings of a config be compared with what is built, where they are not as shipped.

    Args:
        config: that of a language model, overrides applied.
        shipped: the same without them.
    """
    if own_requests(config):
        return  # a type of ours is given to the modules, and compared there
    before = by_layer(shipped)
    specs = {}
    for kind, settings in by_layer(config).items():
        known = before.get(kind, before.get(None))
        if windowed(kind):
            continue
        try:
            asked = spec_of(config, settings)
        except RopeConfigError as error:
            logger.warning("rope_parameters: what runs with %s is unknown: %s", settings, error)
            continue
        if known is None or not _same(asked, shipped, known):
            specs[kind] = asked
    if specs:
        marked = Asked(config.rope_parameters)
        marked.specs, marked.shipped = specs, copy.deepcopy(before)
        config.rope_parameters = marked


def _same(asked: RopeSpec, shipped: Any, settings: Settings) -> bool:
    try:
        return spec_of(shipped, settings) == asked
    except RopeConfigError:  # a type of the model's own
        return False


def verify(model: nn.Module) -> None:
    """Compare what a model's rotary modules hold with what overrides asked for.

    Raises:
        RopeConfigError: a request reached no module, or one that turns by something else.
    """
    reached = set()
    for name, module in model.named_modules():
        asked = asked_of(getattr(module, "config", None))
        for kind in layer_types(module) if asked else ():
            if asked and kind in asked.specs:
                _compare(module, name, kind, asked)
                reached.add((kind, asked.specs[kind]))
    whole = getattr(model, "config", None)
    for config in configs(whole):
        asked = asked_of(config)
        for kind, spec in asked.specs.items() if asked else ():
            if (kind, spec) not in reached:
                raise no_rope(model, config, spec.rope_type)
    for _, spec in reached:
        refuse_encoder(model, spec.rope_type)


def _compare(module: Any, name: str, kind: str | None, asked: Asked) -> None:
    """Raise RopeConfigError unless a module turns as was asked for, at each length."""
    method = asked.specs[kind].method
    built = off_meta(module)
    held = frequencies_of(built, kind)
    scale = _scale_of(built, kind)
    wrong = differences(method, held, scale)
    shipped = asked.shipped.get(kind, asked.shipped.get(None))
    if shipped:
        count = len(frequencies_of(twin(module, kind, shipped), kind))
        if count != len(held):
            wrong.append(f"{len(held)} features turn, and {count} as it is shipped")
    if not wrong:
        wrong = _past_the_trained_length(module, kind, asked)
    if wrong:
        raise RopeConfigError(
            f"rope_type: {method.name!r} is not what {name} ({family(module).__name__}) turns by: "
            f"{'; '.join(wrong)}; it holds {held_words(held, scale)}; allowed: families whose "
            "model code follows rope_parameters"
        )


def _past_the_trained_length(module: Any, kind: str | None, asked: Asked) -> list[str]:
    """How a module fails past the trained length, where its method may switch or follow it."""
    method = asked.specs[kind].method
    trained = method.trained_length
    if trained is None:
        return []
    turned = twin(module, kind, by_layer(module.config)[kind])
    keywords = {} if kind is None else {"layer_type": kind}
    for length in (1, 2 * trained, 2 * trained + 1):  # some code fails at the last one only
        positions = torch.tensor([[length - 1]], device="cpu")
        try:
            with torch.no_grad(), torch.device("cpu"):  # not on meta, as the model may be built
                turned(torch.zeros(1), positions, **keywords)
        except (AttributeError, LookupError, NameError, RuntimeError, TypeError) as error:
            if length == 1 and isinstance(error, IndexError | RuntimeError | TypeError):
                return []  # a module that cannot be asked by a position alone
            return [f"its code fails at {length} tokens: {type(error).__name__}: {error}"]
        found = frequencies_of(turned, kind)
        if wrong := differences(method, found, _scale_of(turned, kind), length):
            return [f"at {length} tokens {'; '.join(wrong)}"]
    return []


def _scale_of(module: Any, kind: str | None) -> float:
    """What a module multiplies cos and sin by."""
    try:
        return hf_layout.find(module, kind, len(frequencies_of(module, kind))).scale
    except RopeConfigError:  # one that our types could not be given to
        return float(getattr(module, f"{prefix(kind)}attention_scaling", 1.0))
