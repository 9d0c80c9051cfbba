"""What one rotation of a model is asked to be, from what transformers computes for its module.

All of it is worked out on the CPU, before the module changes.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from resonance_vllm.core import frequencies
from resonance_vllm.core.errors import RopeConfigError
from resonance_vllm.core.frequencies import Rotation
from resonance_vllm.core.method import plain_frequencies
from resonance_vllm.hf import feature_layout as hf_layout
from resonance_vllm.hf.request import by_layer, names, requests_of, spec_of, stock_of

OURS = "_resonance_rope"
"""Attribute of our rotary classes: the family's class."""


def prefix(layer_type: str | None) -> str:
    """How the attributes of a layer type begin."""
    return "" if layer_type is None else f"{layer_type}_"


def rope_function(
    config: Any,
    device: torch.device | str | None = None,
    seq_len: int | Tensor | None = None,
    layer_type: str | None = None,
) -> tuple[Tensor, float]:
    """The entry of every type of ours in transformers' `ROPE_INIT_FUNCTIONS`.

    For a rotary module that is made alone, outside a model: frequencies without the exact phase.

    Returns:
        `inv_freq`, float32 `[features]`, and the attention factor, at a `seq_len` that is a tensor
        where it follows a sequence; `layer_type` is the key of `rope_parameters` by layer type.
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    settings = by_layer(config)[layer_type]
    spec, stock = spec_of(config, settings), stock_of(settings)
    if stock["rope_type"] == "default":  # which is no function of the registry
        stock |= {"rope_type": "linear", "factor": 1.0}
    shown = copy.copy(config)
    shown.rope_parameters = (
        stock if layer_type is None else {**config.rope_parameters, layer_type: stock}
    )
    length = None if seq_len is None else int(seq_len)
    function = ROPE_INIT_FUNCTIONS[stock["rope_type"]]
    found, scale = function(shown, device, seq_len=length, layer_type=layer_type)
    rotation = frequencies.rotation(spec, frequencies.carried(spec, found, length))
    target = torch.get_default_device() if device is None else device
    factor = scale if spec.base_is_stock else spec.method.scale()
    return rotation.inv_freq.to(dtype=torch.float32, device=target), factor


class Carried:
    """What one rotation of a module is asked to be, worked out on the CPU.

    Attributes:
        spec: the request.
        rotation: up to the trained length.
        beyond: past the length at which a method switches, where it does.
        layout: of the family's cos and sin.
        fixed_by_model: whether the family's code chose frequencies of its own by the settings,
            which no length changes.
        scale: what cos and sin are multiplied by.
    """

    def __init__(self, module: Any, layer_type: str | None, name: str) -> None:
        """Read the request of a module that was built with stock settings, off the meta device.

        Raises:
            RopeConfigError: the module does not follow its settings; it is named.
        """
        settings = requests_of(module.config)[layer_type]
        self.layer_type, self.name = layer_type, name
        self.spec = spec_of(module.config, settings)
        shown = by_layer(module.config)[layer_type]
        self.stock_type: str = shown["rope_type"]
        self.stock = frequencies_of(module, layer_type)
        self.by_library = self.spec.base_is_stock and self.stock_type == self.spec.method.name
        kind = _type_of(module, layer_type)
        self.fixed_by_model = kind != self.stock_type or self._has_own_base()
        if self.fixed_by_model:
            self._check_own_type(module, shown, kind)
            self.stock_type = kind
        elif self.stock_type != "proportional":
            whole = _of_whole_head(module, layer_type, shown)
            if whole is not None:
                self.stock, self.stock_type, self.by_library = whole, "proportional", False
        self._check_count(module, shown)
        self.layout = hf_layout.find(module, layer_type, len(self.stock))
        self.scale = self.layout.scale if self.by_library else self.spec.method.scale()
        self.current = self.rotation = self._rotation(self.stock, None)
        self._check_frequencies()
        changes = not self.fixed_by_model
        self.switch = self.spec.method.switch_length if changes else None
        self.beyond = None if self.switch is None else self.at_length(module, self.switch + 1)
        self.follows = self.spec.method.follows_length and changes
        self.trained = self.length = self.spec.trained_length or 0
        self.exact = self.spec.resonance is not None or self.beyond is not None

    def at_length(self, module: Any, length: int) -> Rotation:
        """The rotation of a sequence of `length` tokens, past the trained length."""
        if not self.by_library:
            return self._rotation(self.stock, length)
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        config = copy.copy(module.config)
        # transformers takes this for the trained length of dynamic; ours is written.
        if self.spec.method.follows_length and self.spec.trained_length is not None:
            config.max_position_embeddings = self.spec.trained_length
        keywords = {} if self.layer_type is None else {"layer_type": self.layer_type}
        found, _ = ROPE_INIT_FUNCTIONS[self.stock_type](config, "cpu", seq_len=length, **keywords)
        return self._rotation(found, length)

    def _rotation(self, stock: Tensor, length: int | None) -> Rotation:
        base = frequencies.carried(self.spec, stock, length)
        if self.spec.base_is_stock and not self.by_library:
            # The library has the type, but not for this module.
            dim, method = 2 * len(stock), self.spec.method
            plain = plain_frequencies(method.rope_theta, dim)
            base = stock.double() / plain * method.frequencies(dim, length)
        return frequencies.rotation(self.spec, base)

    def _has_own_base(self) -> bool:
        """Whether a type that follows the length starts from another base than it is said to."""
        if not self.by_library or not self.spec.method.follows_length:
            return False
        wanted = self.spec.method.frequencies(2 * len(self.stock))
        return not torch.allclose(self.stock.double(), wanted, rtol=1e-4, atol=0)

    def _check_own_type(self, module: Any, shown: dict[str, Any], kind: str) -> None:
        """Refuse a type that stands in the family's code, unless the code chose it by the settings.

        HunYuan's does, for `dynamic` with an `alpha` beside it: frequencies that no length changes,
        and what ours start from. (transformers calls them `ntk_alpha` since 5.20; before, it forgot
        them past the trained length.) Code that names a type whatever the settings say would ignore
        the request.
        """
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        if kind != self.stock_type:
            plain = twin(module, self.layer_type, shown | {"rope_type": "default"})
            follows = self.spec.method.name == "default" or _type_of(plain, self.layer_type) != kind
            if kind in ROPE_INIT_FUNCTIONS or not follows:
                raise self._refusal(f"holds rope_type {kind!r} of its own")
        factor = self.spec.method.extension or 1.0
        if factor != 1.0:
            other = twin(module, self.layer_type, shown | {"factor": 2 * factor})
            if torch.equal(frequencies_of(other, self.layer_type), self.stock):
                raise self._refusal(
                    f"holds frequencies of its own, which factor {factor:g} does not change"
                )

    def _check_count(self, module: Any, shown: dict[str, Any]) -> None:
        """Refuse a type that makes more features than the family's code turns.

        transformers' `proportional` fills a whole head; code that turns a part of a head fails on
        that, or turns features of which the checkpoint knows nothing.
        """
        if self.stock_type != "proportional" or names(module.config, "proportional"):
            return
        plain = frequencies_of(
            twin(module, self.layer_type, shown | {"rope_type": "default"}), self.layer_type
        )
        if len(plain) != len(self.stock):
            raise RopeConfigError(
                f"rope_type: {self.spec.rope_type!r} makes {len(self.stock)} features of a whole "
                f"head, and {self.name} ({family(module).__name__}) turns {len(plain)}: a part of "
                "a head; allowed: proportional types on families whose whole head is turned, or "
                "another method"
            )

    def _check_frequencies(self) -> None:
        """Refuse a module that was built with scaled settings and turns by plain ones."""
        method, count = self.spec.method, len(self.stock)
        plain = plain_frequencies(method.rope_theta, 2 * count)
        if not self.by_library or method.name == "default" or method.follows_length:
            return
        wanted = method.frequencies(2 * count)
        holds_plain = torch.allclose(self.stock.double(), plain, rtol=1e-4, atol=0)
        if holds_plain and not torch.allclose(wanted, plain, rtol=1e-3, atol=0):
            raise self._refusal("holds plain frequencies")

    def _refusal(self, holds: str) -> RopeConfigError:
        return RopeConfigError(
            f"rope_type: {self.spec.rope_type!r} would be ignored: {self.name} {holds}; allowed: "
            "families whose model code follows rope_parameters"
        )


def _type_of(module: Any, layer_type: str | None) -> Any:
    kinds = getattr(module, "rope_type", None)
    return kinds.get(layer_type) if isinstance(kinds, dict) else kinds


def frequencies_of(module: Any, layer_type: str | None) -> Tensor:
    """What a module keeps as its frequencies now, radians a token `[features]` on the CPU."""
    found: Tensor = getattr(module, f"{prefix(layer_type)}inv_freq")
    return found.detach().cpu()


def _of_whole_head(module: Any, layer_type: str | None, shown: dict[str, Any]) -> Tensor | None:
    """Frequencies of a module whose features that do not turn are a part of it, with frequency 0.

    Such a family (Gemma 4) states the share that turns for transformers' `proportional` type. The
    other types of the registry make fewer features of that share than its heads have.
    """
    share = shown.get("partial_rotary_factor")
    if share is None or share >= 1 or not names(module.config, "proportional"):
        return None
    plain = {"rope_theta": shown["rope_theta"], "partial_rotary_factor": share}
    return frequencies_of(
        twin(module, layer_type, plain | {"rope_type": "proportional"}), layer_type
    )


def twin(module: Any, layer_type: str | None, shown: dict[str, Any]) -> Any:
    """A rotary module made alike, on the CPU, with other stock settings."""
    config = copy.copy(module.config)
    config.rope_parameters = (
        shown if layer_type is None else {**config.rope_parameters, layer_type: shown}
    )
    with torch.device("cpu"):
        return family(module)(config)


def family(module: nn.Module) -> Any:
    """The class of a rotary module as its family has it."""
    return getattr(type(module), OURS, type(module))
