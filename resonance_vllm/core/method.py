"""What a RoPE method is: the class that those of `resonance_vllm.core.methods` derive from.

Symbols: `b` is `rope_theta`, `d` the rotated size of a head, `j = 0..d/2-1` a feature (a pair of
dimensions), `s` the factor, `L` the original length. A feature turns by its frequency in radians a
token; its wavelength is `2*pi/frequency` tokens. Torch is imported where something is computed.
"""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from resonance_vllm.common.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor as Tensor
else:
    Tensor = Any


# 8192.0, as some tools write it, is a whole number.
_WHOLE = BeforeValidator(lambda v: int(v) if isinstance(v, float) and v.is_integer() else v)
# Up to here a float64 holds every integer.
MAX_TOKENS = 2**53
Tokens = Annotated[int, _WHOLE, Field(ge=1, le=MAX_TOKENS)]
Extension = Annotated[float, Field(ge=1, le=1e6)]
Positive = Annotated[float, Field(gt=0)]
NativeLength = Annotated[
    Tokens, Field(examples=[4096], description="Native context length L in tokens.")
]
Divisors = Annotated[tuple[Positive, ...], Field(strict=False, min_length=1)]


class Method(Settings):
    """Settings of one method; a subclass is all that the project knows of it.

    Fields are the keys that users write beside `rope_type`, with their ranges. Resonance is no
    method: it modifies each of them (`resonance_vllm.core.spec`).
    """

    name: ClassVar[str]
    """The `rope_type`."""
    stock: ClassVar[bool] = False
    """Whether transformers and vLLM both have the method under its name."""
    depends_on_length: ClassVar[bool] = False
    """Whether the frequencies change with every further token beyond `L`."""
    config_length_is_scaled: ClassVar[bool] = False
    """Whether checkpoints with the method have `max_position_embeddings` times its factor."""

    rope_theta: float = Field(gt=1, description="Base b of the frequencies b^(-2j/d).")
    partial_rotary_factor: float = Field(1.0, gt=0, le=1, description="Share that rotates.")

    @classmethod
    def key_names(cls) -> list[str]:
        """The method's keys in `rope_parameters`, those that every method has at the end."""
        common = list(Method.model_fields)
        return [key for key in cls.model_fields if key not in common] + common

    @classmethod
    def example_settings(cls, dim: int) -> dict[str, Any]:
        """The `examples` of required fields, for a look at the method in `dim` dimensions."""
        return {key: field.examples[0] for key, field in cls.model_fields.items() if field.examples}

    @classmethod
    def fill_from_config(cls, given: dict[str, Any], positions: int) -> None:
        """Add what follows from a model's `max_position_embeddings`, in tokens, if not written."""

    def to_settings(self) -> dict[str, Any]:
        """The keys whose value differs from the default, as JSON would hold them."""
        result: dict[str, Any] = {"rope_theta": self.rope_theta}
        for key in self.key_names():
            value = getattr(self, key)
            if value != type(self).model_fields[key].default:
                result[key] = list(value) if isinstance(value, tuple) else value
        return result

    @property
    def extension(self) -> float | None:
        """`s`; without it an explicit length may exceed the limit, as bare extrapolation."""
        return getattr(self, "factor", None)

    @property
    def is_stock_formula(self) -> bool:
        """Whether both libraries compute these settings without us."""
        return self.stock

    @property
    def native_length(self) -> int | None:
        """`L` in tokens, where the settings hold it."""
        return getattr(self, "original_max_position_embeddings", None)

    @property
    def switch_length(self) -> int | None:
        """Length in tokens beyond which other frequencies apply; None where there is none."""
        return None

    def compute_inv_freq(self, dim: int, seq_len: int | None = None) -> Tensor:
        """Inverse frequencies without Resonance, float64 `[dim/2]` on the CPU, radians a token.

        `dim` is the rotated part of a head, even; `seq_len` the current length, None up to `L`.
        """
        raise NotImplementedError

    def compute_attention_factor(self) -> float:
        """The attention factor: what cos and sin are multiplied by."""
        return 1.0

    def length_limit(self, positions: int) -> int:
        """Longest sequence in tokens that the settings are meant for.

        With a factor `L * s`, whether the model's `max_position_embeddings` (`positions`) is
        written scaled or not; without one `positions`.
        """
        if self.extension is None:
            return positions
        return int((self.native_length or positions) * self.extension)

    def at_length(self, length: int) -> "Method":
        """What has these frequencies at one length, for a library that fixes them at start-up."""
        return self

    def to_vllm(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """`rope_parameters` (complete, ours) with the keys that vLLM knows.

        A RopeConfigError says that vLLM cannot run the method.
        """
        return parameters


class ScaledMethod(Method):
    """A method that extends the native context length by a factor; factor 1 is plain RoPE."""

    factor: Extension = Field(examples=[8.0], description="Context extension s.")
    original_max_position_embeddings: Tokens | None = Field(
        None, description="Native context length L."
    )


def plain_frequencies(base: float, dim: int) -> Tensor:
    """`b^(-2j/d)`, float64 `[dim/2]`: plain RoPE (Su et al. 2021)."""
    import torch

    exponents = torch.arange(0, dim, 2, dtype=torch.float64, device="cpu") / dim
    return torch.pow(torch.tensor(base, dtype=torch.float64, device="cpu"), -exponents)
