"""The rotary modules of a model that vLLM built: found, verified, reported."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from resonance_vllm import hf
from resonance_vllm.errors import RopeConfigError
from resonance_vllm.positions import by_layer_type, windowed
from resonance_vllm.verifier import Request
from resonance_vllm.verify import NoRope, RotaryReport, Turns, differences, refusal
from resonance_vllm.vllm.request import AXES
from resonance_vllm.vllm.rotary import TableRotation, held_turns, table_of, tolerance


def rotary_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The rotary modules of a model's text part, by every name that they have."""
    prefix, language = _language_model(model)
    for name, module in language.named_modules(prefix=prefix, remove_duplicate=False):
        if "RotaryEmbedding" in type(module).__name__:
            yield name, module


def rotary_report(model: nn.Module, config: Any) -> list[RotaryReport]:
    """What every rotary module of a built model turns by, one entry for each layer type.

    Layers that share a module are one entry, with the name that it has in the first of them.

    Args:
        model: as vLLM built it in this process.
        config: that of the language model, which its model need not keep in vLLM.
    """
    language = _language_model(model)[1]
    of_transformers = [
        RotaryReport(name, kind, tuple(held.inv_freq.tolist()), held.attention_factor)
        for name, module in language.named_modules()
        for kind in hf.layer_types(module)
        for held in [hf.held_turns(module, kind)]
    ]
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
        given = getattr(module, "resonance", None)
        turns = held_turns(module) if given is None else given.turns
        kinds = dict.fromkeys(_layer_type_of(path, config) for path in paths[key])
        shown = kinds if several else [None]
        exact = given is not None and given.exact_phase
        inv_freq = tuple(turns.inv_freq.tolist())
        result += [
            RotaryReport(paths[key][0], kind, inv_freq, turns.attention_factor, exact)
            for kind in shown
        ]
    return result


def verify_requests(
    model: nn.Module, config: Any, requests: Mapping[str | None, Request], length: int
) -> None:
    """Compare every rotary module of a language model with what was requested.

    What a checkpoint ships, and overrides of users, are not compared.

    Args:
        model: as vLLM built it in this process, on a pipeline one stage of it.
        config: that of the language model.
        requests: its requests by layer type.
        length: served tokens, for types whose frequencies vLLM fixes by it.

    Raises:
        NoRope: no module has a rotation.
        RopeConfigError: a module turns by something else.
    """
    own = any(request.own for request in requests.values())
    reached = 0
    for name, module in rotary_modules(model):
        layer_type = _layer_type_of(name, config)
        request = requests.get(layer_type, requests.get(None))
        if hf.layer_types(module):  # transformers' own, verified when it was built
            reached += 1
        elif own:
            reached += _verify_own(module, name, layer_type, requests)
        elif request is not None and not windowed(layer_type):
            _verify_stock(module, name, request, length)
            reached += 1
    if not _on_any_stage(reached):
        raise NoRope(
            f"rope_type: {_types(requests)} reached no module: {type(model).__name__} has no "
            "rotary position embeddings in vLLM; allowed: models with RoPE"
        )


def _verify_own(
    module: Any, name: str, layer_type: str | None, requests: Mapping[str | None, Request]
) -> bool:
    """Compare a module with a request of ours that it was given; False where it has none."""
    requested: TableRotation | None = getattr(module, "resonance", None)
    everywhere = None in requests
    if requested is None:
        # Sliding layers may keep a rotation of their own.
        if windowed(layer_type) if everywhere else layer_type not in requests:
            return False
        raise RopeConfigError(
            f"rope_type: {_types(requests)} would be ignored: {name} ({type(module).__name__}) "
            f"holds {_description(module)}, which the model's code in vLLM fixes; allowed: "
            "resonance alone where that code reads rope_theta, transformers (hf-long), or "
            "models whose code reads rope_parameters"
        )
    if not everywhere and layer_type is not None and layer_type not in requests:
        raise RopeConfigError(
            f"rope_type: {_types(requests)} would reach {name}, which is of {layer_type} layers: "
            "the model's code in vLLM has one base for all; allowed: a config.json that has the "
            "base of those layers where the code reads it, or transformers (hf-long)"
        )
    held = held_turns(module)
    wrong = differences(held, requested.turns, close=tolerance(module))
    if len(table_of(module)[1]) < requested.rows:
        wrong.append(f"its table is shorter than {requested.rows} positions")
    if wrong:
        where = f"{name} ({type(module).__name__}) in vLLM"
        raise refusal(requested.spec, where, wrong, held, "models whose code leaves tables alone")
    return True


def _verify_stock(module: Any, name: str, request: Request, length: int) -> None:
    """Compare a module with a type of vLLM's own that an override requests.

    On models whose positions have several axes vLLM's `yarn` takes another trained length, and
    model files fix types of their own.

    Raises:
        RopeConfigError: the module turns by something else.
    """
    held = held_turns(module)
    wrong = differences(held, request.spec.method.at_length(length), close=tolerance(module))
    if AXES in request.settings and not getattr(module, AXES, None):
        wrong.append("positions of one axis turn it, and those of this model have several")
    if wrong:
        where = f"{name} ({type(module).__name__}) in vLLM"
        raise refusal(request.spec, where, wrong, held, "transformers (hf-long), or types of ours")


def _types(requests: Mapping[str | None, Request]) -> str:
    """The requested types, for a message."""
    names = dict.fromkeys(request.spec.rope_type for request in requests.values())
    return ", ".join(map(repr, names))


def _language_model(model: nn.Module) -> tuple[str, nn.Module]:
    """The part of a model that reads text, and its name."""
    whole: Any = model
    part = whole.get_language_model() if hasattr(whole, "get_language_model") else model
    return next((name for name, module in model.named_modules() if module is part), ""), part


def _layer_type_of(path: str, config: Any) -> str | None:
    """The type, as transformers names it, of the layer that a module belongs to."""
    index = re.search(r"\.(\d+)\.", path)
    kinds = getattr(config, "layer_types", None)
    if index is None or not kinds or int(index[1]) >= len(kinds):
        return None
    return str(kinds[int(index[1])])


def _description(module: Any) -> Turns | str:
    """What a module turns by, for a message."""
    try:
        return held_turns(module)
    except RopeConfigError:
        return "a rotation without a table"


def _on_any_stage(reached: int) -> bool:
    """Whether a module of the whole pipeline was reached; all stages call this together."""
    from vllm.distributed import get_pp_group

    group = get_pp_group()
    if group.world_size == 1:
        return reached > 0
    total = torch.tensor([reached], device="cpu")
    torch.distributed.all_reduce(total, group=group.cpu_group)
    return int(total) > 0
