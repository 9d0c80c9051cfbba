"""Take a sweep's finished cells as fixtures: python take.py SWEEP_FOLDER.

Paths of the machine are replaced by names, logs are left out, and `done.json` is written anew.
"""

import hashlib
import json
import re
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PLACES = {
    re.escape(str(Path(sys.prefix))): "VENV",
    re.escape(str(ROOT)): "PROJECT",
    r"/[^\s\"']*/models/(?=SmolLM2)": "MODELS/",
    r"/(?:home|root|tmp|work)/[^\s\"']*": "PATH",
}


def take(sweep: Path) -> None:
    """Copy every finished cell into `results`."""
    shutil.rmtree(HERE / "results", ignore_errors=True)
    for done in sorted(sweep.glob("*/done.json")):
        target = HERE / "results" / done.parent.name
        target.mkdir(parents=True)
        record = json.loads(done.read_text())
        record["files"] = {}
        for path in sorted(done.parent.iterdir()):
            if path.suffix not in (".json", ".jsonl", ".npy") or path == done:
                continue
            content = path.read_bytes()
            if path.suffix != ".npy":
                content = named(content.decode()).encode()
            (target / path.name).write_bytes(content)
            record["files"][path.name] = hashlib.sha256(content).hexdigest()
        (target / done.name).write_text(named(json.dumps(record)))


def named(text: str) -> str:
    """The text with names in place of paths."""
    for place, name in PLACES.items():
        text = re.sub(place, name, text)
    return text


if __name__ == "__main__":
    take(Path(sys.argv[1]))
