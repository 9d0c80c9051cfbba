"""The smallest factor of a RoPE method that covers a sequence, in a model that is already built.

A static factor changes short sequences as well. Here each sequence gets the smallest multiple of a
step that covers it. All of its keys are rotated by that factor, so that a cache stays right.
"""

import dataclasses
import logging
import math
from collections.abc import Iterator, Mapping
from typing import Any

from resonance_vllm.core.methods.longrope import LongRope
from resonance_vllm.core.methods.position_map import MappedMethod
from resonance_vllm.errors import RopeConfigError
from resonance_vllm.hf.held import twin
from resonance_vllm.hf.model import layer_types, rotary_modules
from resonance_vllm.hf.request import own_settings, stock_of
from resonance_vllm.hf.rotary import give
from resonance_vllm.hf.rotation import ModuleRotation
from resonance_vllm.model_config.family import by_layer, windowed
from resonance_vllm.model_config.model_positions import ModelPositions
from resonance_vllm.verifier import Request

logger = logging.getLogger("resonance_vllm.hf")


class CoveringFactor:
    """Chooses and sets the factor of a model's RoPE method, for sequences of one factor together.

    Args:
        model: a built model of transformers whose method has a factor.
        step: factors are its multiples, from 1 up to the method's own.
    """

    def __init__(self, model: Any, step: float) -> None:
        text = model.config.get_text_config(decoder=True)
        self.spec = ModelPositions.of_config(text).shipped()
        method = self.spec.method
        self.model, self.step = model, step
        self.trained, self.largest = method.trained_length or 0, method.extension or 1.0
        self._made: dict[float, list[tuple[Any, dict[str | None, ModuleRotation]]]] = {}
        self.use(self.largest)

    def of(self, length: int) -> float:
        """The smallest factor for a sequence of `length` tokens."""
        steps = math.ceil(length / self.trained / self.step - 1e-9)
        return min(max(1.0, steps * self.step), self.largest)

    def groups(self, lengths: Mapping[int, int]) -> Iterator[list[int]]:
        """Numbers of sequences by factor, from their lengths; the model has it meanwhile."""
        by_factor: dict[float, list[int]] = {}
        for number, length in lengths.items():
            by_factor.setdefault(self.of(length), []).append(number)
        try:
            for factor, numbers in sorted(by_factor.items()):
                self.use(factor)
                yield numbers
        finally:
            self.use(self.largest)

    def use(self, factor: float) -> None:
        """Let every rotary module with the method turn by a factor of it."""
        if factor not in self._made:
            self._made[factor] = list(self._rotations(factor))
        for module, rotations in self._made[factor]:
            precision = getattr(module, "_rope_precision", "model")
            give(module, {**getattr(module, "_requested", {}), **rotations})
            module._rope_precision = precision
            for each in rotations.values():
                if each.mapped is not None:
                    each.mapped.requested, each.mapped.method = each, each.spec.method

    def _rotations(self, factor: float) -> Iterator[tuple[Any, dict[str | None, ModuleRotation]]]:
        changed = self.spec.method.changed(RopeConfigError, factor=factor)
        spec = dataclasses.replace(self.spec, method=changed)
        for name, held in rotary_modules(self.model):
            module: Any = held
            config = module.config
            settings, own = by_layer(config), own_settings(config)
            rotations = {}
            for kind in layer_types(module):
                if windowed(kind):
                    continue
                written = {**settings[kind], **spec.to_dict()}
                shown = stock_of(written) if kind in own else written
                built = twin(module, kind, shown)
                request = Request(spec, True, shown)
                rotations[kind] = ModuleRotation(built, kind, name, request)
                if isinstance(changed, MappedMethod):
                    rotations[kind].mapped = module._requested[kind].mapped
            yield module, rotations


def covering_factor(model: Any, step: float) -> CoveringFactor | None:
    """`CoveringFactor`; None, with a line in the log, where the method has no factor to choose."""
    text = model.config.get_text_config(decoder=True)
    method = ModelPositions.of_config(text).shipped().method
    fixed = method.follows_length or isinstance(method, LongRope)  # whose lists fit one factor
    if fixed or method.extension is None or method.trained_length is None:
        logger.warning("factor_step: rope_type %r has no factor to choose", method.name)
        return None
    return CoveringFactor(model, step)
