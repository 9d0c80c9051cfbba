"""What a RoPE method is: the class that those of `resonance_vllm.core.methods` derive from.

Symbols: `b` is `rope_theta`, `d` the number of rotated dimensions of a head, `j = 0 … d/2 - 1` a
feature (a pair of dimensions), `s` the factor, `L` the original context length in tokens. At position
`n` a feature is rotated by the angle `n * theta_j`, where `theta_j` is its inverse frequency in
radians per token; its wavelength `2 pi / theta_j` is in tokens. Torch is imported where something
is computed, so that settings can be read without it.
"""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from resonance_vllm.common.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor as Tensor
else:
    Tensor = Any


# Some tools write 8192.0 for a whole number.
_WHOLE = BeforeValidator(lambda v: int(v) if isinstance(v, float) and v.is_integer() else v)
# Up to here float64 represents every integer.
MAX_TOKENS = 2**53
Tokens = Annotated[int, _WHOLE, Field(ge=1, le=MAX_TOKENS)]
Extension = Annotated[float, Field(ge=1, le=1e6)]
Positive = Annotated[float, Field(gt=0)]
OriginalLength = Annotated[
    Tokens, Field(examples=[4096], description="Original context length L in tokens.")
]
Divisors = Annotated[tuple[Positive, ...], Field(strict=False, min_length=1)]


class Method(Settings):
    """Settings of one method; a subclass holds all that the project knows about it.

    Fields are the keys that users write beside `rope_type`, with their ranges: registries, choices
    of the command line, documentation tables and tests are made from them. Resonance is not a
    method of its own: it modifies each of them (`resonance_vllm.core.spec`).

    Attributes:
        rope_theta: base `b`.
        partial_rotary_factor: share of a head's dimensions that is rotated.
    """

    name: ClassVar[str]
    """The `rope_type`."""
    stock: ClassVar[bool] = False
    """Whether transformers and vLLM both have the method under its name."""
    depends_on_length: ClassVar[bool] = False
    """Whether the frequencies change with every token beyond `L`."""
    config_length_is_scaled: ClassVar[bool] = False
    """Whether checkpoints with the method state `max_position_embeddings` times its factor."""

    rope_theta: float = Field(gt=1, description="Base b of the frequencies b^(-2j/d).")
    partial_rotary_factor: float = Field(1.0, gt=0, le=1, description="Share that rotates.")

    @classmethod
    def key_names(cls) -> list[str]:
        """Return the method's keys in `rope_parameters`, those that every method has last."""
        common = list(Method.model_fields)
        return [key for key in cls.model_fields if key not in common] + common

    @classmethod
    def example_settings(cls, dim: int) -> dict[str, Any]:
        """Return example values of the required keys, for heads with `dim` rotated dimensions."""
        return {key: field.examples[0] for key, field in cls.model_fields.items() if field.examples}

    @classmethod
    def fill_from_config(cls, given: dict[str, Any], positions: int) -> None:
        """Add keys that follow from a model's config, unless they are given.

        Args:
            given: keys of a request, which is changed.
            positions: the model's `max_position_embeddings` in tokens.
        """

    def to_settings(self) -> dict[str, Any]:
        """Return the keys whose value differs from the default, as JSON holds them."""
        result: dict[str, Any] = {"rope_theta": self.rope_theta}
        for key in self.key_names():
            value = getattr(self, key)
            if value != type(self).model_fields[key].default:
                result[key] = list(value) if isinstance(value, tuple) else value
        return result

    @property
    def extension(self) -> float | None:
        """Return the factor `s`; None for a method without one, which extrapolates beyond `L`."""
        return getattr(self, "factor", None)

    @property
    def is_stock_formula(self) -> bool:
        """Return whether both libraries compute these settings without this package."""
        return self.stock

    @property
    def original_length(self) -> int | None:
        """Return `L` in tokens; None where the settings do not hold it."""
        return getattr(self, "original_max_position_embeddings", None)

    @property
    def switch_length(self) -> int | None:
        """Return the length beyond which a second set of frequencies applies; None without one."""
        return None

    def compute_inv_freq(self, dim: int, seq_len: int | None = None) -> Tensor:
        """Compute the inverse frequencies, without Resonance.

        Args:
            dim: rotated dimensions of a head, even.
            seq_len: current length in tokens, for methods that depend on it; None is up to `L`.

        Returns:
            Radians per token, float64 `[dim/2]` on the CPU, fastest feature first.

        Raises:
            RopeConfigError: `dim` does not fit the settings, or they lack a key.
        """
        raise NotImplementedError

    def compute_attention_factor(self) -> float:
        """Compute the attention factor, by which cos and sin are multiplied.

        Query and key are both rotated, so attention logits are multiplied by its square. 1 for
        methods that do not change the temperature of attention.
        """
        return 1.0

    def length_limit(self, positions: int) -> int:
        """Return the longest sequence in tokens that the settings are meant for.

        With a factor it is `L * s`, whether or not the model's config states the scaled length;
        without one it is `positions`.

        Args:
            positions: the model's `max_position_embeddings` in tokens; replaces `L` where the
                settings do not hold it.
        """
        if self.extension is None:
            return positions
        return int((self.original_length or positions) * self.extension)

    def at_length(self, length: int) -> "Method":
        """Return an equivalent static method for a fixed sequence length in tokens."""
        return self

    def to_vllm(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Return complete `rope_parameters` with the keys that vLLM reads.

        Raises:
            RopeConfigError: vLLM cannot run the method.
        """
        return parameters


class ScaledMethod(Method):
    """A method that extends the original context length by a factor; factor 1 is plain RoPE."""

    factor: Extension = Field(examples=[8.0], description="Context extension s.")
    original_max_position_embeddings: Tokens | None = Field(
        None, description="Original context length L."
    )


def plain_frequencies(base: float, dim: int) -> Tensor:
    """Compute the inverse frequencies of plain RoPE, `theta_j = b^(-2j/d)`.

    Su et al. 2021, arXiv 2104.09864, section 3.2.2 (there with `b = 10000`).

    Args:
        base: `b`.
        dim: `d`, even.

    Returns:
        Radians per token, float64 `[dim/2]` on the CPU: from 1 down to `b^(-(d-2)/d)`.
    """
    import torch

    exponents = torch.arange(0, dim, 2, dtype=torch.float64, device="cpu") / dim
    return torch.pow(torch.tensor(base, dtype=torch.float64, device="cpu"), -exponents)
