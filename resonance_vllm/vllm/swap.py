"""Models of vLLM built once more, without weights: to look at one, and to swap its tables.

What a model file makes of RoPE settings only it knows. So other settings are given to a running
engine by building its model with them on the meta device, comparing the two, and copying tables.
"""

import copy
import os
import tempfile
from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from resonance_vllm.checkpoint.config import (
    VERIFY_ROPE_KEY,
    global_layer_type,
    is_per_layer_type,
    model_specific_keys,
    rope_by_layer_type,
)
from resonance_vllm.common.errors import RopeConfigError
from resonance_vllm.core.frequencies import Rotation
from resonance_vllm.core.phase import cos_sin_table
from resonance_vllm.verify import RotaryReport, differing_constants
from resonance_vllm.vllm.plugin import (
    Apart,
    apart_now,
    asked_by,
    held_turns,
    register,
    rotary_modules,
    shipped_config,
    table_of,
)

_LOOK = 4096
"""Rows of a table from which frequencies are read."""
_FORWARD = ("forward", "forward_native", "forward_cuda", "forward_cpu")


def vllm_report(
    path: str, overrides: Mapping[str, Any] | None = None, max_model_len: int | None = None
) -> list[RotaryReport]:
    """The rotations that vLLM builds for a checkpoint, without reading its weights.

    `overrides` are vLLM's `hf_overrides`, `max_model_len` is in tokens. vLLM sets up a process
    group of this process alone, for its life. Where it refuses the model, the error is its own.
    """
    # standard output is for what commands answer; vLLM reads this when it is imported
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs

    register()
    # weights that this device cannot read are not read here
    overrides = {**(overrides or {}), "quantization_config": None}
    engine = EngineArgs(
        model=path,
        hf_overrides=overrides,
        max_model_len=max_model_len,
        skip_tokenizer_init=True,
        load_format="dummy",
        enforce_eager=True,
        language_model_only=True,
    ).create_engine_config()
    config = engine.model_config
    if config.using_transformers_backend():  # for whose models vLLM changes transformers' classes
        from resonance_vllm.hf.apply import report_of_checkpoint

        spec = next((each.spec for each in asked_by(config).values()), None)
        return report_of_checkpoint(path, spec, int(config.max_model_len))
    with set_current_vllm_config(engine):
        _one_process()
        where = Apart(torch.device("cpu"), _LOOK)
        try:
            built = built_apart(engine, where)
        except (NotImplementedError, RuntimeError):  # model code that reads its weights
            built = built_apart(engine, where, weights="cpu")
    held = _rotary_report(built, config.hf_text_config)
    if not held:
        raise RopeConfigError(f"{type(built).__name__} has no rotary module in vLLM")
    return held


def _one_process() -> None:
    """Process groups as vLLM wants them, with this process in all."""
    from vllm.distributed import (
        destroy_model_parallel,
        init_distributed_environment,
        initialize_model_parallel,
    )

    if torch.distributed.is_initialized():
        destroy_model_parallel()  # which groups there are depends on the model
    else:
        with tempfile.NamedTemporaryFile() as file:
            name = file.name
        init_distributed_environment(1, 0, f"file://{name}", 0, "gloo")
    initialize_model_parallel()


def _rotary_report(model: nn.Module, config: Any) -> list[RotaryReport]:
    """What every rotary module of a built model turns by, one entry for each layer type.

    Layers that share a module are one entry, with the name that it has in the first of them.
    """
    found: dict[tuple[int, str | None], RotaryReport] = {}
    modules = list(rotary_modules(model, config))
    several = len({id(module) for _, _, module in modules}) > 1
    several |= is_per_layer_type(getattr(config, "rope_parameters", None) or {})
    for name, kind, module in modules:
        key = id(module), kind if several else None
        if key not in found:
            turns = getattr(module, "resonance", None) or held_turns(module)
            found[key] = RotaryReport.from_state(name, key[1], turns)
    return list(found.values())


def built_apart(engine: Any, where: Apart, weights: str = "meta") -> nn.Module:
    """A model of vLLM's config beside one that may run; `weights`: device of all but tables."""
    from vllm.model_executor.layers.rotary_embedding import _ROPE_DICT
    from vllm.model_executor.model_loader import utils
    from vllm.utils.torch_utils import set_default_torch_dtype

    beside = copy.copy(engine)
    beside.compilation_config = copy.copy(engine.compilation_config)
    beside.compilation_config.static_forward_context = {}
    beside.compilation_config.static_all_moe_layers = []
    in_dtype, token = set_default_torch_dtype(engine.model_config.dtype), apart_now.set(where)
    try:  # the dictionary has modules whose tables were swapped
        with patch.dict(_ROPE_DICT, clear=True), in_dtype, torch.device(weights):
            return utils.initialize_model(vllm_config=beside)
    finally:
        apart_now.reset(token)


def swap(model: nn.Module, engine: Any, rope: Mapping[str, Any] | None) -> list[RotaryReport]:
    """Let a running model of vLLM's config turn by other settings, its tables replaced in place."""
    wanted = _with_settings(engine, rope)
    text, served = wanted.model_config.hf_text_config, int(wanted.model_config.max_model_len)
    tables = [table_of(module)[1] for _, _, module in rotary_modules(model, text)]
    if not tables:
        raise RopeConfigError(f"rope_type: {type(model).__name__} has no rotary module in vLLM")
    where = Apart(tables[0].device, max(map(len, tables)), for_running=True)
    try:
        fresh = built_apart(wanted, where)
    except (NotImplementedError, RuntimeError) as error:  # model code that reads its weights
        raise _refused(f"{type(model).__name__} is not built without weights: {error}") from error
    pairs = _pairs(model, fresh, text)
    if others := differing_constants(model, fresh):
        raise _refused(others[0][-1])
    new = {id(module): _rows(other, served) for module, other in pairs}
    for module, other in pairs:
        name, table = table_of(module)
        rows = min(len(table), len(new[id(module)]))
        for each in (table, getattr(module, f"{name}_bf16", None)):
            if each is not None:
                each[:rows].copy_(new[id(module)][:rows])
        module.resonance = getattr(other, "resonance", None)
    return _rotary_report(model, text)


def _refused(reason: str) -> RopeConfigError:
    return RopeConfigError(f"rope_type: to be had in an engine of its own alone: {reason}")


def _with_settings(engine: Any, rope: Mapping[str, Any] | None) -> Any:
    """An engine's config with other RoPE settings, in a copy; None is what config.json has."""
    changed, model = copy.copy(engine), copy.copy(engine.model_config)
    configs = copy.deepcopy((model.hf_config, model.hf_text_config))
    changed.model_config = model
    model.hf_config, model.hf_text_config = configs
    shipped = copy.deepcopy(getattr(shipped_config(model), "rope_parameters", None) or {})
    setattr(model.hf_config, VERIFY_ROPE_KEY, rope is not None)
    if rope is None:
        written = shipped
    elif is_per_layer_type(shipped) and not is_per_layer_type(rope):
        kind = global_layer_type(shipped)
        written = {**shipped, kind: {**model_specific_keys(shipped[kind]), **rope}}
    else:
        written = {**model_specific_keys(shipped), **rope}
    model.hf_text_config.rope_parameters = written
    for one in rope_by_layer_type(model.hf_text_config).values():
        if one.get("rope_type") == "dynamic":
            raise _refused("vLLM makes the base of 'dynamic' from the length that it starts with")
    return changed


def _pairs(model: nn.Module, fresh: nn.Module, config: Any) -> list[tuple[Any, Any]]:
    """The rotary modules of a running model, each with the one that it is to turn like."""
    new = {name: module for name, _, module in rotary_modules(fresh, config)}
    pairs: dict[int, tuple[Any, Any]] = {}
    for path, _, module in rotary_modules(model, config):
        other = new[path]
        (name, table), (there, wanted) = table_of(module), table_of(other)
        if pairs.setdefault(id(module), (module, other))[1] is not other:
            raise _refused(f"{path} shares its table with layers that are to turn otherwise")
        code, others = (
            [getattr(type(each), name, None) for name in _FORWARD] for each in (module, other)
        )
        if (name, table.shape[1], code) != (there, wanted.shape[1], others):
            raise _refused(f"{path} is {type(module).__name__} and not {type(other).__name__}")
        if getattr(other, "use_long_rope", False):
            raise _refused(f"{path} has two tables, of short and of long sequences")
    return list(pairs.values())


def _rows(module: Any, rows: int) -> torch.Tensor:
    """A module's table, float32, with a row for each served position, also where YaRN's ends."""
    _, table = table_of(module)
    if len(table) >= rows:
        return table
    yarn = hasattr(module, "mscale")
    found = module._compute_inv_freq(module.scaling_factor if yarn else module.base)
    turning = Rotation(found, torch.zeros(len(found), dtype=torch.int64))
    scale = module.mscale if yarn else 1.0
    longer = cos_sin_table(turning, scale, rows, device=table.device)
    if not torch.equal(longer[: len(table)], table):
        raise _refused(f"{type(module).__name__} has {len(table)} positions of {rows} served")
    return longer
