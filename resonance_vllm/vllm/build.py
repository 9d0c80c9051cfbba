"""What vLLM's rotary modules hold for a checkpoint, which is built without weights.

vLLM chooses a platform, sets up a process group and keeps state for the life of a process, and a
model class may hang. So `report_of_checkpoint` builds in a child process with a time limit.
"""

import contextlib
import functools
import inspect
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from resonance_vllm.verifier import NoRope, RotaryReport

TIMEOUT = 300.0
"""Seconds; importing vLLM is most of what a look takes."""


def report_of_checkpoint(
    model: str,
    hf_overrides: Mapping[str, Any] | None = None,
    max_model_len: int | None = None,
    timeout: float = TIMEOUT,
    *,
    run: bool = False,
) -> list[RotaryReport]:
    """The rotations that vLLM builds for a checkpoint, one entry a module and layer type.

    Args:
        model: checkpoint folder (weights and tokenizer are not read) or hub name.
        hf_overrides: as vLLM takes them.
        max_model_len: longest sequence in tokens; None is what vLLM derives.
        timeout: seconds before the look is given up.
        run: whether a small model of the family is run on a few tokens, too.

    Raises:
        NoRope: vLLM or our plugin refuses the model, with the reason; or it has no RoPE, or its
            forward pass fails with the overrides alone.
    """
    job = {"model": model, "hf_overrides": hf_overrides, "max_model_len": max_model_len, "run": run}
    (answer,) = look_at([job], timeout)
    if "refused" in answer:
        raise NoRope(answer["refused"])
    return [RotaryReport(**{**one, "inv_freq": tuple(one["inv_freq"])}) for one in answer["held"]]


def look_at(jobs: list[dict[str, Any]], timeout: float = TIMEOUT) -> list[dict[str, Any]]:
    """Build several models in one child process: `held` or `refused` of each.

    A job has the arguments of `report_of_checkpoint`; one that ends the process, and those
    after it, are refused with the last line of its errors.
    """
    with tempfile.TemporaryDirectory() as folder:
        jobs_file, answers = Path(folder) / "jobs.json", Path(folder) / "answers.jsonl"
        jobs_file.write_text(json.dumps(jobs), encoding="utf-8")
        answers.touch()
        command = [sys.executable, "-m", "resonance_vllm.vllm.build", str(jobs_file), str(answers)]
        try:
            child = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=timeout,
                env={**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"},
            )  # fmt: skip
            ended = (child.stderr.strip() or "it ended without a message").splitlines()[-1]
        except subprocess.TimeoutExpired:
            ended = f"no answer within {timeout:g} seconds"
        done = [json.loads(line) for line in answers.read_text(encoding="utf-8").splitlines()]
    return done + [{"refused": f"vLLM built nothing: {ended}"}] * (len(jobs) - len(done))


def _main(jobs: list[dict[str, Any]], answers: Path) -> None:
    """The child: one line of JSON a job."""
    for job in jobs:
        try:
            answer: dict[str, Any] = {"held": [asdict(one) for one in _built(**job)]}
        except Exception as error:  # noqa: BLE001 - any error of vLLM is the reason
            answer = {"refused": _reason(error)}
        with answers.open("a", encoding="utf-8") as file:
            file.write(json.dumps(answer) + "\n")


def _reason(error: Exception) -> str:
    """An error of vLLM, its config errors without pydantic's frame."""
    text = str(error).strip()
    if "Value error, " in text:
        text = text.split("Value error, ", 1)[1].rsplit(" [type=", 1)[0]
    first = text.splitlines()[0] if text else ""
    return first if first and isinstance(error, ValueError) else f"{type(error).__name__}: {first}"


def _built(
    model: str, hf_overrides: Any, max_model_len: int | None, run: bool = False
) -> list[RotaryReport]:
    import torch
    from vllm.model_executor.model_loader import utils
    from vllm.utils.torch_utils import set_default_torch_dtype

    from resonance_vllm.hf.tiny import forward_problem
    from resonance_vllm.vllm.model import rotary_report

    _inspect_here()
    engine = _engine(model, hf_overrides, max_model_len)
    config = engine.model_config
    # Weights are never written, so their memory is never taken.
    with set_default_torch_dtype(config.dtype), torch.device("cpu"), _short_tables():
        built = utils.initialize_model(vllm_config=engine)
    reports = rotary_report(built, config.hf_text_config)
    if not reports:
        raise NoRope(f"{type(built).__name__} has no rotary position embeddings in vLLM")
    if run:
        forward = functools.partial(_run_forward, max_model_len=max_model_len)
        if problem := forward_problem(forward, model, hf_overrides):
            raise NoRope(problem)
    return reports


def _engine(model: str, hf_overrides: Any, max_model_len: int | None) -> Any:
    """VLLM's config of a model without weights; this process becomes its only one."""
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs

    engine = EngineArgs(
        model=model,
        hf_overrides={**(hf_overrides or {}), **_unquantised(model)},
        max_model_len=max_model_len,
        skip_tokenizer_init=True,
        load_format="dummy",
        enforce_eager=True,
        language_model_only=True,
    ).create_engine_config()
    with set_current_vllm_config(engine):
        _one_process()
    return engine


def _run_forward(folder: str, overrides: Mapping[str, Any], max_model_len: int | None) -> None:
    """Build a small checkpoint with overrides by vLLM and run it, its attention without a cache.

    That is how vLLM measures the memory of a model before there is a cache.
    """
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.forward_context import set_forward_context
    from vllm.model_executor.model_loader import utils
    from vllm.utils.torch_utils import set_default_torch_dtype

    from resonance_vllm.hf.tiny import TOKENS

    engine = _engine(folder, overrides, max_model_len)
    with set_current_vllm_config(engine):
        config = engine.model_config
        with set_default_torch_dtype(config.dtype), torch.device("cpu"):
            model = utils.initialize_model(vllm_config=engine)
            for weight in model.parameters():
                weight.data.zero_()
            utils.process_weights_after_loading(model, config, torch.device("cpu"))
        positions = torch.arange(TOKENS)
        if engine.model_config.uses_mrope:
            positions = positions.expand(3, -1)
        with torch.inference_mode(), set_forward_context(None, engine, num_tokens=TOKENS):
            model(input_ids=torch.arange(1, TOKENS + 1), positions=positions)


def _inspect_here() -> None:
    """Look at model classes in this process, which ends anyway; an import error is the reason.

    vLLM would start a process for each class and answer that it failed.
    """
    from vllm.model_executor.models import registry

    names = ("_LazyRegisteredModel", "_ModelInfo")
    lazy, info = (vars(registry).get(name) for name in names)
    if hasattr(lazy, "inspect_model_cls") and hasattr(info, "from_model_cls"):
        lazy.inspect_model_cls = lambda self: info.from_model_cls(self.load_model_cls())
    if hasattr(registry, "_try_inspect_model_cls"):
        registry._try_inspect_model_cls = lambda name, model: model.inspect_model_cls()


def _unquantised(model: str) -> dict[str, None]:
    """An override for checkpoints whose weights this device cannot read; none are read here."""
    file = Path(model) / "config.json"
    key = "quantization_config"
    return {key: None} if file.is_file() and key in json.loads(file.read_text()) else {}


def _one_process() -> None:
    """Process groups as vLLM wants them, with this process in all."""
    import torch
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


@contextlib.contextmanager
def _short_tables() -> Iterator[None]:
    """Tables in float32, of which frequencies can be read, and no longer than a look needs."""
    import torch
    from vllm.model_executor.layers import rotary_embedding

    from resonance_vllm.vllm import plugin as vllm_plugin
    from resonance_vllm.vllm import rotary as vllm_rotary

    place = (rotary_embedding.__name__, "get_rope")

    def looking(original: Any) -> Any:
        signature = inspect.signature(original)

        def get_rope(*args: Any, **kwargs: Any) -> Any:
            call = signature.bind(*args, **kwargs)
            call.arguments["dtype"] = torch.float32
            with torch.device("cpu"), vllm_rotary.ShortTables():
                return original(*call.args, **call.kwargs)

        return get_rope

    ours = rotary_embedding.get_rope
    token = vllm_rotary.longest_table.set(vllm_rotary.ROWS_FOR_A_LOOK)
    vllm_plugin.put(*place, looking)
    try:
        yield
    finally:
        vllm_plugin.put(*place, lambda _: ours)
        vllm_rotary.longest_table.reset(token)


if __name__ == "__main__":
    _main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2]))
