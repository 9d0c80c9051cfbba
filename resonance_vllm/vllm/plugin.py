"""The vLLM general plugin: this package's RoPE types in every process of an engine.

vLLM calls `register` in each of its processes before a model file is imported. There `get_rope`
and `initialize_model` are wrapped, so that a model whose config requests a type of this package is
built from a stock type, gets the requested tables, and is verified. `EngineCore.collective_rpc` is
wrapped so that a swap of the settings empties the prefix cache.
"""

import contextlib
import functools
import importlib
import importlib.metadata
import inspect
import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from resonance_vllm.checkpoint.rope_dict import rope_by_layer_type
from resonance_vllm.common.errors import RopeConfigError
from resonance_vllm.core.spec import OWN_TYPES
from resonance_vllm.vllm.build_context import current_build
from resonance_vllm.vllm.embeddings import rotary_embedding
from resonance_vllm.vllm.requests import LayerRequest, requests_of
from resonance_vllm.vllm.stock_view import TaggedBase, stock_settings_in
from resonance_vllm.vllm.tables import verify_model

# A name below vLLM's own logger: that one has a handler in every process.
logger = logging.getLogger("vllm.resonance_vllm")

_ROWS_FROM_ARGUMENT = ("default", "proportional", "llama3")
"""vLLM's types whose tables have as many rows as `max_position` says."""

Function = Callable[..., Any]


@functools.cache
def register() -> None:
    """Make this package's RoPE types known to vLLM in this process; a second call does nothing.

    It is the entry point of the group `vllm.general_plugins`. A vLLM without the functions that it
    wraps is left as it is, with a warning: it refuses this package's types as unknown, and serves
    everything else.
    """
    try:
        core = importlib.import_module("vllm.v1.engine.core").EngineCore
        core.collective_rpc = _wrap_collective_rpc(core.collective_rpc)
        _replace("vllm.model_executor.layers.rotary_embedding", "get_rope", _wrap_get_rope)
        loader = "vllm.model_executor.model_loader.utils"
        _replace(loader, "initialize_model", _wrap_initialize_model)
    except (ImportError, AttributeError) as error:
        logger.warning("resonance_vllm does not know this vLLM, which runs without it: %s", error)
        return
    from resonance_vllm import hf

    hf.register()  # for configs that transformers reads, and models that vLLM runs through it


def _replace(module_name: str, name: str, wrap: Callable[[Function], Function]) -> None:
    """Replace a function by its wrapper, wherever vLLM's modules have imported it already."""
    original = getattr(importlib.import_module(module_name), name)
    wrapper = functools.wraps(original)(wrap(original))
    for loaded_name, loaded in list(sys.modules.items()):
        if loaded_name.startswith("vllm") and vars(loaded).get(name) is original:
            setattr(loaded, name, wrapper)


def _wrap_get_rope(original: Function) -> Function:
    """Wrap `get_rope`: a tagged base gets an embedding with the settings that it carries."""
    signature = inspect.signature(original)

    def get_rope(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        arguments = call.arguments
        rope = arguments["rope_parameters"] or {}
        if arguments["dtype"] is None:
            arguments["dtype"] = torch.get_default_dtype()
        device: Any = contextlib.nullcontext()
        build = current_build.get()
        if build is not None:
            device = build.device
            arguments["dtype"] = torch.float32
            if rope.get("rope_type", "default") in _ROWS_FROM_ARGUMENT:
                arguments["max_position"] = min(arguments["max_position"], build.rows)
        with device:
            if isinstance(rope.get("rope_theta"), TaggedBase):
                return rotary_embedding(original, arguments)
            return original(*call.args, **call.kwargs)

    return get_rope


def _wrap_initialize_model(original: Function) -> Function:
    """Wrap `initialize_model`: a model with requests is built from stock types, then verified."""
    signature = inspect.signature(original)

    def initialize_model(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
        config = arguments.get("model_config") or arguments["vllm_config"].model_config
        requests = requests_of(config)
        if not requests:
            model = original(*args, **kwargs)
            _log_own_settings(config.hf_text_config)
            return model
        model = _build(functools.partial(original, *args, **kwargs), config, requests)
        if config.using_transformers_backend():
            from resonance_vllm import hf

            hf.apply_rope(model.model)  # verifies, and adds the hooks of exact phase
        else:
            verify_model(model, config.hf_text_config, requests)
        if current_build.get() is None:
            spec = next(iter(requests.values())).spec
            log_settings(spec.to_dict())
        return model

    return initialize_model


def _build(build: Function, config: Any, requests: Mapping[str | None, LayerRequest]) -> Any:
    """Build a model while its config has stock types in place of this package's.

    vLLM's Transformers backend builds transformers' modules, which know this package's types.

    Raises:
        RopeConfigError: The model's code does not build with the settings.
    """
    rope_type = next(iter(requests.values())).spec.rope_type
    settings: Any = contextlib.nullcontext()
    if rope_type in OWN_TYPES and not config.using_transformers_backend():
        settings = stock_settings_in(config.hf_text_config, requests, int(config.max_model_len))
    try:
        with settings:
            return build()
    except (AttributeError, KeyError, TypeError) as error:  # code with a form of its own
        raise RopeConfigError(
            f"rope_type: {rope_type!r}: the code of {config.architecture} in vLLM does not build "
            f"with these settings: {type(error).__name__}: {error}"
        ) from error


def _log_own_settings(config: Any) -> None:
    """Log the settings of a language model's config of which vLLM makes what it does without us."""
    ropes = rope_by_layer_type(config)
    if current_build.get() is None and ropes:
        layer_type = next(iter(ropes))
        log_settings(ropes[layer_type], remark="not verified, ")


def log_settings(rope: Mapping[str, Any] | None, remark: str = "") -> None:
    """Log the RoPE settings of an engine and the version of this package, in one line.

    Of the processes of an engine only the first one logs.

    Args:
        rope: The settings; None are those of config.json.
        remark: Goes before the name of this package.
    """
    from vllm.distributed.parallel_state import is_global_first_rank

    if not is_global_first_rank():
        return
    settings = "as in config.json"
    if rope is not None:
        keys = sorted(rope, key=lambda key: key != "rope_type")  # the method's name comes first
        settings = ", ".join(f"{key}={rope[key]}" for key in keys)
    version = importlib.metadata.version("leval-harness")
    logger.info(
        "RoPE settings: %s (%sresonance_vllm of leval-harness %s)", settings, remark, version
    )


def _wrap_collective_rpc(original: Function) -> Function:
    """Wrap `EngineCore.collective_rpc`: a swap empties the prefix cache first.

    Cached keys are rotated by the settings before.
    """

    @functools.wraps(original)
    def collective_rpc(self: Any, method: Any, *args: Any, **kwargs: Any) -> Any:
        if method == "set_rope" and not self.reset_prefix_cache(reset_connector=True):
            raise RopeConfigError(
                "set_rope: requests are running; call it after the last one has finished"
            )
        return original(self, method, *args, **kwargs)

    return collective_rpc
