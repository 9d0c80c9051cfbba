"""What the rotary modules of a model built by vLLM hold, and whether that is what was asked for."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from resonance_vllm.core.errors import RopeConfigError
from resonance_vllm.core.phase import cos_sin_table
from resonance_vllm.core.spec import RopeSpec
from resonance_vllm.hf import carried as hf_carried
from resonance_vllm.hf import model as hf_model
from resonance_vllm.model_config.layer_types import by_layer_type, windowed
from resonance_vllm.rotary_report import HeldRope, NoRope
from resonance_vllm.verifier import held_words
from resonance_vllm.vllm.rotary import Carried, table_of, turned_by

_SEEN = 64
"""Rows of a table that are compared."""


def verify(model: nn.Module, config: Any, asked: Mapping[str | None, RopeSpec]) -> None:
    """Compare every rotary module of a language model with what was asked for.

    Args:
        model: as vLLM built it in this process, on a pipeline one stage of it.
        config: that of the language model.
        asked: settings of ours by layer type, None for all layers, as `vllm_request.of_config`.

    Raises:
        NoRope: no module has a rotation.
        RopeConfigError: a module carries something else.
    """
    hf_model.verify(model)  # where vLLM runs transformers' modules
    carrying = 0
    for path, module in rotary_modules(model):
        layer_type = layer_type_of(path, config)
        what = getattr(module, "resonance", None)
        if hasattr(type(module), hf_carried.OURS):
            carrying += 1
            continue
        if isinstance(what, Carried):
            _refuse_elsewhere(path, layer_type, asked)
            _check_table(path, module, what)
            carrying += 1
        elif _must_carry(layer_type, asked):
            raise RopeConfigError(
                f"rope_type: {_types(asked)} would be ignored: {path} ({type(module).__name__}) "
                f"holds {description(module)}, which the model's code in vLLM fixes; allowed: "
                "resonance alone where that code reads rope_theta, transformers (hf-long), or "
                "models whose code reads rope_parameters"
            )
    if not on_any_stage(carrying):
        raise reached_none(model, asked)


def reached_none(model: nn.Module, asked: Mapping[str | None, RopeSpec]) -> NoRope:
    """The error for a request that no rotary module carries, by layer type."""
    return NoRope(
        f"rope_type: {_types(asked)} reached no module: {type(model).__name__} has no rotary "
        f"position embeddings in vLLM; allowed: models with RoPE"
    )


def held(model: nn.Module, config: Any) -> list[HeldRope]:
    """What every rotary module of a language model turns by, one entry for each layer type.

    Layers that share a module are one entry, with the name that it has in the first of them.
    """
    of_transformers = hf_model.hold(language_model(model)[1])
    if of_transformers:
        return of_transformers
    paths: dict[int, list[str]] = {}
    modules = dict[int, Any]()
    for path, module in rotary_modules(model):
        paths.setdefault(id(module), []).append(path)
        modules[id(module)] = module
    several = len(modules) > 1 or by_layer_type(getattr(config, "rope_parameters", None) or {})
    result = []
    for key, module in modules.items():
        kinds = dict.fromkeys(layer_type_of(path, config) for path in paths[key])
        shown = kinds if several else [None]
        result += [_held(paths[key][0], kind, module) for kind in shown]
    return result


def _held(path: str, layer_type: str | None, module: Any) -> HeldRope:
    what = getattr(module, "resonance", None)
    if isinstance(what, Carried):
        exact = bool((what.rotation.periods > 0).any())
        inv_freq, scale = what.rotation.inv_freq, what.scale
    else:
        inv_freq, scale = turned_by(module)
        exact = False
    return HeldRope(path, layer_type, tuple(inv_freq.tolist()), scale, exact)


def rotary_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Rotary modules of the language model by every name that they have."""
    prefix, language = language_model(model)
    for name, module in language.named_modules(prefix=prefix, remove_duplicate=False):
        if "RotaryEmbedding" in type(module).__name__:
            yield name, module


def language_model(model: nn.Module) -> tuple[str, nn.Module]:
    """The part of a model that reads text, and its name."""
    whole: Any = model
    part = whole.get_language_model() if hasattr(whole, "get_language_model") else model
    return next((name for name, module in model.named_modules() if module is part), ""), part


def layer_type_of(path: str, config: Any) -> str | None:
    """The type, as transformers names it, of the layer that a module belongs to."""
    index = re.search(r"\.(\d+)\.", path)
    kinds = getattr(config, "layer_types", None)
    if index is None or not kinds or int(index[1]) >= len(kinds):
        return None
    return str(kinds[int(index[1])])


def _must_carry(layer_type: str | None, asked: Mapping[str | None, RopeSpec]) -> bool:
    """Whether a layer may not have another rotation: sliding layers may keep one of their own."""
    if None not in asked:
        return layer_type in asked
    return not windowed(layer_type)


def _refuse_elsewhere(
    path: str, layer_type: str | None, asked: Mapping[str | None, RopeSpec]
) -> None:
    """Refuse a module of a layer type that was not asked for: its layers keep their rotation."""
    if None not in asked and layer_type is not None and layer_type not in asked:
        raise RopeConfigError(
            f"rope_type: {_types(asked)} would reach {path}, which is of {layer_type} layers: the "
            "model's code in vLLM has one base for all; allowed: a config.json that has the base "
            "of those layers where the code reads it, or transformers (hf-long)"
        )


def _check_table(path: str, module: Any, what: Carried) -> None:
    """Raise RopeConfigError unless the module's table still is the one that it was given."""
    _, table = table_of(module)
    rows = min(_SEEN, what.rows)
    wanted = cos_sin_table(what.rotation, what.scale, rows, dtype=table.dtype, device=table.device)
    tolerance = 4 * torch.finfo(table.dtype).eps
    start = len(table) - what.rows  # LongRoPE's other table
    if start < 0 or not torch.allclose(table[start : start + rows], wanted, atol=tolerance, rtol=0):
        raise RopeConfigError(
            f"rope_type: {what.spec.rope_type!r} would be ignored: the model's code in vLLM "
            f"changed the table of {path} ({type(module).__name__}); it holds "
            f"{description(module)}"
        )


def description(module: Any) -> str:
    """What a module turns by, in words."""
    try:
        inv_freq, scale = turned_by(module)
    except RopeConfigError:
        return "a rotation without a table"
    return held_words(inv_freq, scale)


def _types(asked: Mapping[str | None, RopeSpec]) -> str:
    return ", ".join(repr(name) for name in dict.fromkeys(s.rope_type for s in asked.values()))


def on_any_stage(carrying: int) -> bool:
    """Whether a module of the whole pipeline carries the request; every stage asks at once."""
    from vllm.distributed import get_pp_group

    group = get_pp_group()
    if group.world_size == 1:
        return carrying > 0
    total = torch.tensor([carrying], device="cpu")
    torch.distributed.all_reduce(total, group=group.cpu_group)
    return int(total) > 0
