"""What vLLM's rotary modules hold for a checkpoint, which is built without weights.

vLLM chooses a platform, sets up a process group and keeps state for the life of a process, and a
model class may hang. So `report_of_checkpoint` builds in a child process with a time limit.
"""

import contextlib
import gc
import inspect
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from resonance_vllm.verify import NoRope, RotaryReport

TIMEOUT = 300.0
"""Seconds; importing vLLM is most of what a look takes."""
logger = logging.getLogger(__name__)


def report_of_checkpoint(
    model: str,
    overrides: Mapping[str, Any] | None = None,
    *,
    max_model_len: int | None = None,
    run: bool = False,
    process: subprocess.Popen[str] | None = None,
) -> list[RotaryReport]:
    """The rotations that vLLM builds for a checkpoint, one entry a module and layer type.

    Args:
        model: checkpoint folder (weights and tokenizer are not read) or hub name.
        overrides: as vLLM takes its `hf_overrides`.
        max_model_len: longest sequence in tokens; None is what vLLM derives.
        run: whether a small model of the family is run on a few tokens, too. Where that says
            nothing, because it does not run as shipped either, a warning is logged.
        process: from `importing`; None starts one.

    Raises:
        NoRope: vLLM or our plugin refuses the model, with the reason; or it has no RoPE, or its
            forward pass fails with the overrides alone.
    """
    job = {"model": model, "hf_overrides": overrides, "max_model_len": max_model_len, "run": run}
    (answer,) = look_at([job], TIMEOUT, process)
    if "refused" in answer:
        raise NoRope(answer["refused"])
    if "not_run" in answer:
        logger.warning("vLLM: no forward pass was tried: %s", answer["not_run"])
    return [RotaryReport(**{**one, "inv_freq": tuple(one["inv_freq"])}) for one in answer["held"]]


@contextlib.contextmanager
def importing() -> Iterator[subprocess.Popen[str]]:
    """A process for `look_at` that imports vLLM while this one goes on."""
    command = [sys.executable, "-m", "resonance_vllm.vllm.build"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, text=True, stdin=pipe, stdout=pipe, stderr=pipe,
        env={"OMP_NUM_THREADS": "1", **os.environ, "VLLM_LOGGING_LEVEL": "ERROR"},
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def look_at(
    jobs: list[dict[str, Any]],
    timeout: float = TIMEOUT,
    process: subprocess.Popen[str] | None = None,
) -> list[dict[str, Any]]:
    """Build several models in one process: `held` or `refused` of each.

    A job has `model`, and may have `hf_overrides`, `max_model_len` and `run`. One that ends the
    process, and those after it, are refused with the last line of its errors. `not_run` says why no
    small model ran.
    """
    if process is None:
        with importing() as started:
            return look_at(jobs, timeout, started)
    with tempfile.TemporaryDirectory() as folder:
        answers = Path(folder) / "answers.jsonl"
        answers.touch()
        try:
            task = json.dumps({"jobs": jobs, "answers": str(answers)})
            _, errors = process.communicate(task, timeout)
            ended = (errors.strip() or f"it ended with {process.returncode}").splitlines()[-1]
        except subprocess.TimeoutExpired:
            ended = f"no answer within {timeout:g} seconds"
        done = [json.loads(line) for line in answers.read_text(encoding="utf-8").splitlines()]
    return done + [{"refused": f"vLLM built nothing: {ended}"}] * (len(jobs) - len(done))


def _main() -> None:
    """The process: jobs on standard input, a line of JSON for each in the file of answers."""
    gc.disable()  # which saves a third of the time that imports take; this process soon ends
    sys.modules["sklearn"] = None  # type: ignore[assignment] # imported where it is, for nothing
    from vllm.model_executor.model_loader import utils  # noqa: F401 - while there is no job yet

    task = json.load(sys.stdin)
    for job in task["jobs"]:
        try:
            answer: dict[str, Any] = {
                "held": _held(job["model"], job.get("hf_overrides"), job.get("max_model_len"))
            }
        except Exception as error:  # noqa: BLE001 - any error of vLLM is the reason
            answer = {"refused": _reason(error)}
        with Path(task["answers"]).open("a", encoding="utf-8") as file:
            file.write(json.dumps(answer) + "\n")


def _reason(error: Exception) -> str:
    """An error of vLLM, its config errors without pydantic's frame."""
    text = str(error).strip()
    if "Value error, " in text:
        text = text.split("Value error, ", 1)[1].rsplit(" [type=", 1)[0]
    first = text.splitlines()[0] if text else ""
    return first if first and isinstance(error, ValueError) else f"{type(error).__name__}: {first}"


def _held(model: str, hf_overrides: Any, max_model_len: int | None) -> list[dict[str, Any]]:
    import torch
    from vllm.model_executor.model_loader import utils
    from vllm.utils.torch_utils import set_default_torch_dtype

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
    return [asdict(each) for each in reports]


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
    _main()
