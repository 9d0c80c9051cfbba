"""Take results as fixtures: python take.py TARGET FOLDER...

The folders are of sweeps, lm-eval or `posgen train`. Names replace paths of the machine.
Logs, tables, weights and lm-eval's description of the machine are left out.
"""

import json
import platform
import re
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[3]
KEPT = (
    *("sweep.json", "run.json", "failed.json"),
    *("results_*.json", "samples_*.jsonl", "losses_*.npy"),
    *("settings.json", "result.json", "metrics.csv", "tested/*.json"),
)
PLACES = {
    re.escape(str(Path(sys.prefix))): "VENV",
    re.escape(str(ROOT)): "PROJECT",
    r"/[^\s\"']*/models/(?=SmolLM2)": "MODELS/",
    r"__[^\s\"']*__models__(?=SmolLM2)": "MODELS__",
    r"/(?:home|root|tmp|work)/[^\s\"']*": "PATH",
    r"__(?:home|root|tmp|work)__[^\s\"']*": "PATH",
    r'(?<="pretty_env_info": )"[^"]*"': '""',
    rf'(?<="name": ){re.escape(json.dumps(platform.node()))}': '"HOST"',
    rf'(?<="system": ){re.escape(json.dumps(platform.platform()))}': '"Linux"',
}


def take(target: Path, folders: Iterable[Path]) -> None:
    """Copy the results below each folder to the same place below the target."""
    for folder in folders:
        for path in sorted(path for name in KEPT for path in folder.rglob(name)):
            inside = path.relative_to(folder)
            if any(part.startswith(".") or part == "page" for part in inside.parts):
                continue
            content = path.read_bytes()
            if path.suffix != ".npy":
                content = named(content.decode()).encode()
            (target / inside).parent.mkdir(parents=True, exist_ok=True)
            (target / inside).write_bytes(content)


def named(text: str) -> str:
    """The text with names in place of paths."""
    for place, name in PLACES.items():
        text = re.sub(place, name, text)
    return text


if __name__ == "__main__":
    take(Path(sys.argv[1]), map(Path, sys.argv[2:]))
