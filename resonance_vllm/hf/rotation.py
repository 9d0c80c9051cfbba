"""What a rotary module of transformers is requested to turn by.

Computed on the CPU, from what transformers computes for the module, before that changes.
"""

import copy
from typing import Any

import torch
from torch import Tensor

from resonance_vllm.core import frequencies
from resonance_vllm.core.frequencies import Rotation
from resonance_vllm.errors import RopeConfigError
from resonance_vllm.hf.held import (
    family,
    features_as_shipped,
    find_layout,
    has_still_part,
    held_frequencies,
    keywords,
    plain_features_differ,
    twin,
    type_of_module,
)
from resonance_vllm.positions import Settings
from resonance_vllm.verifier import Request, RequestedRotation, Turns, differences, refusal

FOLLOWED = "families whose model code follows rope_parameters"


class ModuleRotation(RequestedRotation):
    """A requested rotation, from what a module holds that was built with stock settings.

    Attributes:
        beyond: the rotation past the length at which a method switches, where it does.
        layout: of the family's cos and sin.
        follows: whether the frequencies change with every further token.
        own_angles: whether angles are ours; else the family's code makes them of frequencies.
        mapped: the position map with the attention layers that follow it; None without one.
    """

    def __init__(self, module: Any, layer_type: str | None, name: str, request: Request) -> None:
        """Read what a module holds that was built with stock settings, off the meta device.

        Raises:
            RopeConfigError: the module does not follow its settings; it is named.
        """
        self.layer_type, self.spec, self.name = layer_type, request.spec, name
        method, shown = request.spec.method, request.settings
        self.stock_type: str = shown["rope_type"]
        self.stock = held_frequencies(module, layer_type)
        self.by_library = self.spec.base_is_stock and self.stock_type == method.name
        kind = type_of_module(module, layer_type)
        fixed_by_model = kind != self.stock_type or self._has_own_base()
        if fixed_by_model:
            self._check_own_type(module, shown, kind)
            self.stock_type = kind
        elif self.stock_type != "proportional" and has_still_part(module, shown):
            plain = {key: shown[key] for key in ("rope_theta", "partial_rotary_factor")}
            whole = twin(module, layer_type, plain | {"rope_type": "proportional"})
            self.stock = held_frequencies(whole, layer_type)
            self.stock_type, self.by_library = "proportional", False
        features = features_as_shipped(module, layer_type, request, self.stock_type)
        if plain_features_differ(module, layer_type, request):
            part = twin(module, layer_type, shown | {"rope_type": "linear", "factor": 1.0})
            self.stock = held_frequencies(part, layer_type)
        self.layout = find_layout(module, layer_type, len(self.stock))
        self.scale = self.layout.scale if self.by_library else method.scale()
        # Code may choose frequencies of its own by the settings, and a base of its own.
        by_formula = self.by_library and not fixed_by_model and method.name != "default"
        held = Turns(self.stock, self.layout.scale)
        wrong = differences(held, method if by_formula else held, features=features)
        if wrong:
            where = f"{name} ({family(module).__name__})"
            raise refusal(self.spec, where, wrong, held, FOLLOWED)
        self.current = self.rotation = self._rotation(self.stock, None)
        self.switch = None if fixed_by_model else method.switch_length
        self.beyond = None if self.switch is None else self.at_length(module, self.switch + 1)
        self.follows = method.follows_length and not fixed_by_model
        self.trained = self.length = self.spec.method.trained_length or 0
        self.own_angles = self.spec.resonance or self.beyond is not None
        self.mapped: Any = None

    def at_length(self, module: Any, length: int) -> Rotation:
        """The rotation of a sequence of `length` tokens, past the trained length."""
        if not self.by_library:
            return self._rotation(self.stock, length)
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        config = copy.copy(module.config)
        # transformers takes this for the trained length of dynamic; ours is written.
        if self.spec.method.follows_length and self.spec.method.trained_length is not None:
            config.max_position_embeddings = self.spec.method.trained_length
        function = ROPE_INIT_FUNCTIONS[self.stock_type]
        found, _ = function(config, "cpu", seq_len=length, **keywords(self.layer_type))
        return self._rotation(found, length)

    def _rotation(self, stock: Tensor, length: int | None) -> Rotation:
        base = frequencies.base_frequencies(self.spec, stock, length, by_library=self.by_library)
        return frequencies.rotation(self.spec, base)

    def _has_own_base(self) -> bool:
        """Whether a type that follows the length starts from another base than its settings say."""
        if not self.by_library or not self.spec.method.follows_length:
            return False
        wanted = self.spec.method.frequencies(2 * len(self.stock))
        return not torch.allclose(self.stock.double(), wanted, rtol=1e-4, atol=0)

    def _check_own_type(self, module: Any, shown: Settings, kind: str) -> None:
        """Refuse a type that stands in the family's code, unless the code chose it by the settings.

        HunYuan's does, for `dynamic` with an `alpha` beside it: no length changes its frequencies.
        (transformers calls them `ntk_alpha` since 5.20; before, it dropped them past the trained
        length.) Code that names a type whatever the settings say would ignore the request.
        """
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        reason = None
        if kind != self.stock_type:
            plain = twin(module, self.layer_type, shown | {"rope_type": "default"})
            follows = (
                self.spec.method.name == "default" or type_of_module(plain, self.layer_type) != kind
            )
            if kind in ROPE_INIT_FUNCTIONS or not follows:
                reason = f"holds rope_type {kind!r} of its own"
        factor = self.spec.method.extension or 1.0
        if reason is None and factor != 1.0:
            other = twin(module, self.layer_type, shown | {"factor": 2 * factor})
            if torch.equal(held_frequencies(other, self.layer_type), self.stock):
                reason = f"holds frequencies of its own, which factor {factor:g} does not change"
        if reason is not None:
            raise RopeConfigError(
                f"rope_type: {self.spec.rope_type!r} would be ignored: {self.name} {reason}; "
                f"allowed: {FOLLOWED}"
            )
