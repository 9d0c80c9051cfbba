"""What vLLM builds for a checkpoint, seen without reading its weights."""

import os
import re
from collections.abc import Mapping
from typing import Any

import torch

from resonance_vllm.common.errors import RopeConfigError, error_message
from resonance_vllm.verify import RotaryReport
from resonance_vllm.vllm.build_context import SeparateBuild
from resonance_vllm.vllm.building import BUILD_ERRORS, build_separately, start_process_groups
from resonance_vllm.vllm.plugin import register
from resonance_vllm.vllm.requests import requests_of
from resonance_vllm.vllm.tables import reports_of_model

_ROWS = 4096
"""Rows of the tables from which frequencies are read."""


def report_of_checkpoint(
    path: str, overrides: Mapping[str, Any] | None = None, max_model_len: int | None = None
) -> list[RotaryReport]:
    """Return what the rotary modules rotate by that vLLM builds for a checkpoint.

    vLLM sets up a process group of this process alone, for the life of the process.

    Args:
        path: Checkpoint folder or hub name.
        overrides: vLLM's `hf_overrides`.
        max_model_len: Longest sequence in tokens; None is vLLM's own.

    Returns:
        One report per rotary module and layer type.

    Raises:
        RopeConfigError: A module does not rotate as requested, there is none, or the model's code
            cannot be imported, with the reason.
        Exception: Where vLLM refuses the model, the error is its own.
    """
    # Standard output is for what commands print; vLLM reads this when it is imported.
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    from vllm.config import set_current_vllm_config

    register()
    engine = _engine_config(path, overrides or {}, max_model_len)
    config = engine.model_config
    if config.using_transformers_backend():
        # For such models vLLM changes classes of transformers in this process, so transformers'
        # own modules are inspected.
        from resonance_vllm.hf import inspection

        requests = requests_of(config)
        spec = next((request.spec for request in requests.values()), None)
        return inspection.report_of_checkpoint(path, spec, int(config.max_model_len))
    with set_current_vllm_config(engine):
        start_process_groups()
        build = SeparateBuild(torch.device("cpu"), _ROWS)
        try:
            model = build_separately(engine, build)
        except BUILD_ERRORS:
            model = build_separately(engine, build, weights="cpu")
    reports = reports_of_model(model, config.hf_text_config)
    if not reports:
        raise RopeConfigError(f"{type(model).__name__} has no rotary module in vLLM")
    return reports


def _engine_config(path: str, overrides: Mapping[str, Any], max_model_len: int | None) -> Any:
    """Return the `VllmConfig` of an engine that would serve a checkpoint."""
    from vllm.engine.arg_utils import EngineArgs

    arguments = EngineArgs(
        model=path,
        # Weights that this device cannot read are not read here.
        hf_overrides={**overrides, "quantization_config": None},
        max_model_len=max_model_len,
        skip_tokenizer_init=True,
        load_format="dummy",
        enforce_eager=True,
        language_model_only=True,
    )
    try:
        return arguments.create_engine_config()
    except ValueError as error:
        cause = architecture_failure(error)
        if cause is None:
            raise
        raise RopeConfigError(cause) from error


def architecture_failure(error: BaseException) -> str | None:
    """Return why vLLM could not import a model's code; None where that is not what happened.

    vLLM imports it in another process, logs the reason there and raises an error without it. Here
    it is imported once more.

    Args:
        error: An error of vLLM.
    """
    names = re.search(r"Model architectures \[(.*?)\] failed to be inspected", str(error))
    if names is None:
        return None
    from vllm.model_executor.models import ModelRegistry

    for architecture in re.findall(r"'([^']+)'", names[1]):
        registered = ModelRegistry.models.get(architecture)
        if registered is None:
            continue
        try:
            registered.load_model_cls()
        except Exception as cause:  # noqa: BLE001 - any error of that code is the reason
            reason = f"{type(cause).__name__}: {error_message(cause)}"
            package = ""
            if isinstance(cause, ModuleNotFoundError) and cause.name:
                package = f"; install {cause.name.partition('.')[0]}"
            return f"vLLM cannot import its code of {architecture}: {reason}{package}"
    return None
