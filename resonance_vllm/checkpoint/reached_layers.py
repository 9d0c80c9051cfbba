"""Which layers of a model requested RoPE settings reach."""

from collections.abc import Collection, Sequence
from itertools import groupby
from typing import Any

from resonance_vllm.checkpoint.rope_dict import is_windowed, rope_of_present_layers
from resonance_vllm.common.errors import RopeConfigError

WITHOUT_ATTENTION = {"linear_attention", "mamba", "mamba2", "conv", "recurrent", "moe", "mlp"}
"""Layer types of hybrid models that rotate nothing."""
ROTATE_WINDOWED_ONLY = {
    "afmoe", "cohere2", "exaone4", "exaone4_5_text", "exaone_moe",
}  # fmt: skip
"""Families whose layers without a window have no RoPE."""


def refuse_unused(config: Any) -> None:
    """Refuse requested settings that no layer of a language model would use.

    Methods change layers without a window alone, so a model that has only others would run, and
    give every method the numbers of the unmodified model.

    Args:
        config: The config of the language model, the settings in it.

    Raises:
        RopeConfigError: No layer uses them; the layers are named.
    """
    refuse_windowed_only(
        rope_of_present_layers(config),
        getattr(config, "layer_types", None) or (),
        config.model_type,
    )
    _refuse_unrotated_layers_only(config)
    rotated = getattr(config, "no_rope_layers", None)  # 1 is a layer with RoPE, despite the name
    if rotated and not any(rotated):
        last = len(rotated) - 1
        raise RopeConfigError(
            f"rope_type: no layer of this {config.model_type!r} model would use the settings: "
            f"layers 0 to {last} have no RoPE (no_rope_layers); run it unmodified"
        )


def _refuse_unrotated_layers_only(config: Any) -> None:
    """Refuse requested settings where no layer type of the model rotates at all.

    The model builds a rotary module all the same, so that nothing else shows it.

    Raises:
        RopeConfigError: No layer rotates; the layers are named.
    """
    layer_types = getattr(config, "layer_types", None) or ()
    rotating = [name for name in layer_types if name not in WITHOUT_ATTENTION]
    reason = "have no attention"
    # Exaone 4 rotates all layers if none has a window.
    if config.model_type in ROTATE_WINDOWED_ONLY and getattr(config, "sliding_window", None):
        rotating = [name for name in rotating if is_windowed(name)]
        reason = f"have no RoPE, which {config.model_type!r} gives to layers with a window alone"
    if layer_types and not rotating:
        raise RopeConfigError(
            f"rope_type: no layer of this {config.model_type!r} model would use the settings: "
            f"{_layers(layer_types)}, and they {reason}; run it unmodified"
        )


def refuse_windowed_only(
    with_settings: Collection[str | None], layer_types: Sequence[str], model_type: str | None
) -> None:
    """Refuse requested settings where every layer type that has settings is windowed.

    Args:
        with_settings: Layer types of which the model has layers, and its config settings.
        layer_types: The type of every layer.
        model_type: The family, for the message.

    Raises:
        RopeConfigError: All of them are windowed; the layers are named.
    """
    if with_settings and all(is_windowed(layer_type) for layer_type in with_settings):
        raise RopeConfigError(
            f"rope_type: no layer of this {model_type!r} model would use the settings: "
            f"{_layers(layer_types)}, and methods change layers without a window alone; "
            "run it unmodified"
        )


def _layers(layer_types: Sequence[str]) -> str:
    """Return runs of layers with their type, `layers 0 to 4 are sliding_attention`."""
    runs = []
    first = 0
    for layer_type, members in groupby(layer_types):
        count = len(list(members))
        if count == 1:
            runs.append(f"layer {first} is {layer_type}")
        else:
            runs.append(f"layers {first} to {first + count - 1} are {layer_type}")
        first += count
    return ", ".join(runs)
