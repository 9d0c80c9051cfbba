"""Whether stock model code turns as requested under an exported config: both are built.

Families read `longrope` settings from their config, or keep a type of their own, or turn by halves
of their size. None of that is written down, so the two models are built without weights by
transformers and compared.
"""

import inspect
import logging
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig

from resonance_vllm.config import loading
from resonance_vllm.core import frequencies
from resonance_vllm.core.spec import RopeSpec
from resonance_vllm.errors import RopeConfigError
from resonance_vllm.hf import apply_rope, layer_types, on_meta, register, report_of_checkpoint
from resonance_vllm.positions import text_config
from resonance_vllm.verify import NoRope, RotaryReport, differences

# Relative, of float32 frequencies that transformers takes from factors.
SAME = 1e-5
# Of frequencies that are read off a table of cos and sin.
SAME_IN_TABLE = 1e-4

logger = logging.getLogger(__name__)


def requested_rotation(
    checkpoint: Path, rope: RopeSpec, overrides: Mapping[str, Any]
) -> RotaryReport:
    """The one rotation of a checkpoint with a method, frequencies in float64.

    Raises:
        RopeConfigError: the model has no RoPE or several, features that stand still, or turns
            neighbouring dimensions, which vLLM's longrope does not.
        UserError: transformers cannot build the model.
    """
    with loading(str(checkpoint)):
        one, *others = report_of_checkpoint(str(checkpoint), rope)
    if any(each.layer_type is not None for each in (one, *others)):
        raise RopeConfigError(
            f"{one.module}: has several RoPEs by layer type; allowed: models with one, because "
            "a portable config holds one"
        )
    other = next((each for each in others if each.inv_freq != one.inv_freq), None)
    if other is not None or not all(one.inv_freq):
        which = f"{one.module} and {other.module} differ" if other else f"{one.module} stands still"
        raise RopeConfigError(
            f"{which} in some features; allowed: models in which every feature turns, alike in "
            "all layers, because a portable config holds one divisor a feature"
        )
    if rope.is_stock:
        exact = frequencies.base_frequencies(rope, torch.tensor(one.inv_freq))
        one = RotaryReport(one.module, None, tuple(exact.tolist()), one.attention_factor, False)
    _refuse_neighbours(checkpoint)
    return one


def compare(
    checkpoint: Path, overrides: Mapping[str, Any], exported: Path, one: RotaryReport
) -> None:
    """Raise RopeConfigError unless stock code turns by `one` under the config in `exported`.

    Other numbers that model code takes from RoPE settings (a softmax scale) have to be the same,
    too, as with the request.
    """
    register()
    requested = on_meta(AutoConfig.from_pretrained(checkpoint, **overrides))
    try:
        found = on_meta(AutoConfig.from_pretrained(exported))
    except Exception as error:
        reason = f"{type(requested).__name__} cannot be built from an exported config: {error!r}"
        raise RopeConfigError(
            f"rope_type: {reason[:280]}; allowed: families whose code reads longrope from "
            "config.json"
        ) from error
    for held in apply_rope(found):
        _refuse_other(f"{held.module} of {type(found).__name__}", held, one, SAME)
    wanted = dict(_numbers(requested))
    for place, value in _numbers(found):
        if wanted.get(place, value) != value:
            raise RopeConfigError(
                f"rope_type: {'.'.join(place)} of {type(found).__name__} would be {value}, not "
                f"{wanted[place]}, under an exported config; allowed: families whose code takes "
                "frequencies and attention factor alone from longrope"
            )


def compare_vllm(exported: Path, one: RotaryReport) -> None:
    """Compare with the installed vLLM, in a process of its own; a refusal of the model is logged.

    Raises:
        RopeConfigError: it would turn by something else.
    """
    from resonance_vllm.vllm import build as vllm_build

    try:
        found = vllm_build.report_of_checkpoint(str(exported))
    except NoRope as error:
        logger.warning("vLLM would not run this export: %s", error)
        return
    for held in found:
        _refuse_other(f"{held.module} of vLLM", held, one, SAME_IN_TABLE)


def _refuse_other(where: str, held: RotaryReport, one: RotaryReport, close: float) -> None:
    if wrong := differences(held.turns, one.turns, close=close):
        raise RopeConfigError(
            f"rope_type: {where} does not follow an exported config: {'; '.join(wrong)}; it holds "
            f"{held.turns}; allowed: families whose code reads longrope from config.json"
        )


def _numbers(model: nn.Module) -> Iterator[tuple[tuple[str, str], float]]:
    """Fractions that modules other than the rotary ones keep, by module and name."""
    for name, module in model.named_modules():
        if not layer_types(module):
            for key, value in vars(module).items():
                if isinstance(value, float):
                    yield (name, key), value


def _refuse_neighbours(checkpoint: Path) -> None:
    """Refuse a family that turns dimensions (2i, 2i+1): each of its rotations is tried."""
    config, _ = text_config(AutoConfig.from_pretrained(checkpoint))
    family = type(on_meta(config)).__module__
    for name, function in list(vars(sys.modules[family]).items()):
        if name.startswith("apply_rotary") and turns_neighbours(function):
            raise RopeConfigError(
                f"model_type: {config.model_type!r} turns neighbouring dimensions ({name} of "
                "transformers); allowed: families that turn the halves of a head, as vLLM's "
                "longrope does"
            )


def turns_neighbours(function: Any) -> bool:
    """Whether a family's rotation brings dimension 0 to dimension 1 by a quarter turn.

    False where it cannot be called with one head.
    """
    unit = torch.zeros(1, 1, 1, 8, device="cpu")
    unit[..., 0] = 1.0
    turn = {"cos": torch.zeros(1, 1, 8, device="cpu"), "sin": torch.ones(1, 1, 8, device="cpu")}
    turn["freqs_cis"] = torch.full((1, 1, 4), 1j, device="cpu")
    given = {"q": unit, "k": unit, "x": unit, "xq": unit, "xk": unit, "hidden_states": unit}
    names = inspect.signature(function).parameters  # of one in float32, the family's own
    known = {name: value for name, value in {**given, **turn}.items() if name in names}
    try:
        answer = function(**known)
    except (IndexError, RuntimeError, TypeError, ValueError):
        return False
    turned: torch.Tensor = (answer[0] if isinstance(answer, tuple) else answer).flatten()
    return bool(turned[1].abs() > 0.5)
