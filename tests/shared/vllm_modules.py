"""What vLLM builds for checkpoints, many of them in one process of its own.

vLLM sets up a process group for the life of a process, and changes classes of transformers that it
runs models through. It looks at a model class in a further process each, which is left out here.
"""

import gc
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any


def looked_at(jobs: list[dict[str, Any]], timeout: float = 3600) -> list[dict[str, Any]]:
    """`held`, the fields of `RotaryReport` of each module, or `refused` of each job.

    A job has `model`, and may have `hf_overrides` and `max_model_len`. One that ends the process,
    and those after it, are refused with the last line of its errors.
    """
    pictures = str(Path(sys.prefix) / "pictures")  # packages that classes of families import
    path = os.pathsep.join(filter(None, [pictures, os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory() as folder:
        answers = Path(folder) / "answers.jsonl"
        answers.touch()
        run = subprocess.run(
            [sys.executable, __file__, str(answers)],
            env={**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", "PYTHONPATH": path},
            input=json.dumps(jobs), capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip
        done = [json.loads(line) for line in answers.read_text(encoding="utf-8").splitlines()]
    reason = (run.stderr.strip() or "nothing was built").splitlines()[-1]
    return done + [{"refused": reason}] * (len(jobs) - len(done))


def main() -> None:
    """The process."""
    from vllm.model_executor.models import registry

    from resonance_vllm.check import refusal_message
    from resonance_vllm.vllm.inspection import report_of_checkpoint

    gc.disable()  # which saves a third of the time that imports take; this process soon ends
    sys.modules["sklearn"] = None  # type: ignore[assignment] # imported where it is, for nothing
    lazy, info = registry._LazyRegisteredModel, registry._ModelInfo
    lazy.inspect_model_cls = lambda self: info.from_model_cls(self.load_model_cls())
    registry._try_inspect_model_cls = lambda name, model: model.inspect_model_cls()
    with Path(sys.argv[1]).open("a", encoding="utf-8") as file:
        for job in json.load(sys.stdin):
            try:
                reports = report_of_checkpoint(
                    job["model"], job.get("hf_overrides"), job.get("max_model_len")
                )
                answer = {"held": [asdict(each) for each in reports]}
            except Exception as error:  # noqa: BLE001 - any error of vLLM is the reason
                answer = {"refused": refusal_message(error)}
            file.write(json.dumps(answer) + "\n")
            file.flush()


if __name__ == "__main__":
    main()
