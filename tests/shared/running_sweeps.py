"""What tests of running sweeps share: waiting, claims, and a sweep of eight runs of one model instance."""

import contextlib
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

EIGHT_RUNS = """
models: {{tiny: {{path: {root}/model, backend: hf, dtype: float32{more}}}}}
methods: {{rope: {{rope_type: default}}}}
context_lengths: [128]
tasks: [{tasks}]
"""


def wait_for(what: Callable[[], Any], seconds: float = 120) -> Any:
    until = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.02)
    return found


def claims(out: Path) -> list[dict[str, Any]]:
    """The claims of running runs, whole ones."""
    found = []
    for path in out.glob("*/.work/claims/*"):
        with contextlib.suppress(OSError, ValueError):
            found.append(json.loads(path.read_text()))
    return found


def eight_runs(tiny: Path, folder: Path, more: str = "") -> Path:
    """A sweep of one model and of tasks that differ in their name; `more` settings of the model."""
    names = []
    for number in range(8):
        task = (tiny / "tiny_gen.yaml").read_text().replace("tiny_gen", f"task_{number}", 1)
        names.append(str(folder / str(number) / "task.yaml"))
        (folder / str(number)).mkdir()
        Path(names[-1]).write_text(task)
    config = folder / "eight.yaml"
    config.write_text(EIGHT_RUNS.format(root=tiny, tasks=", ".join(names), more=more))
    return config


def result_files(out: Path) -> dict[str, bytes]:
    """Run and name -> content of the files with results, numbers of lm-eval's among them."""
    found = {}
    for pattern in ("losses_*.npy", "samples_*.jsonl"):
        for path in out.glob(f"*/runs/*/{pattern}"):
            name = re.sub(r"_\d{4}-.*", "", path.name)
            found[f"{path.parent.name}/{name}"] = path.read_bytes()
    for path in out.glob("*/runs/*/results_*.json"):
        numbers = json.loads(path.read_text())["results"]
        found[f"{path.parent.name}/numbers"] = json.dumps(numbers).encode()
    return found
