"""A sweep that loads the model once for all runs, and one that loads it for each: seconds and differences.

python swap.py CONFIG WORK [KEY=VALUE ...]    # CONFIG: swap.yaml, or quickstart
"""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import leval_harness as lh

RUN = "from leval_harness.cli.main import main; main()"
ALONE = """
from uuid import uuid4
from leval_harness.sweep import plan as runs
runs.group_of = lambda *_: uuid4().hex
"""
KEYS = ["method", "context_length", "task", "name", "filter"]


def timed(config, overrides, folder, *, alone):
    """Seconds of a sweep; with `alone` each run is a group of its own, in a process of its own."""
    sets = [word for each in overrides for word in ("--set", each)]
    words = ["sweep", config, "--out", str(folder), *sets]
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", ALONE * alone + RUN, *words], check=True)
    return time.monotonic() - started


def losses(folder):
    """Nats of the tokens of every text, float64, by run and file."""
    return {
        f"{path.parent.name}/{path.name}": np.load(path).astype(np.float64)
        for path in folder.glob("*/runs/*/losses_*.npy")
    }


def main(config, work, *overrides):
    """Run both forms and print what they took and how far apart their numbers are."""
    work = Path(work)
    folders = {False: work / "one", True: work / "each"}
    seconds = {alone: timed(config, overrides, at, alone=alone) for alone, at in folders.items()}
    logs = {alone: list(at.glob("*/runs/*/log.txt")) for alone, at in folders.items()}
    loads = {
        alone: sum("model ready after" in log.read_text(errors="replace") for log in logs[alone])
        for alone in folders
    }
    for alone, name in ((False, "loaded once"), (True, "loaded for each run")):
        ran = lh.load(folders[alone]).runs["seconds"].sum()
        print(f"{name}: {seconds[alone]:.0f} s, of it evaluation {ran:.0f}; {loads[alone]} loads")
    frames = [lh.load(at).scores.merge(lh.load(at).runs, on="run") for at in folders.values()]
    both = frames[0].merge(frames[1], on=KEYS, suffixes=("", "_alone"))
    apart = (both["value"] - both["value_alone"]).abs()
    print(
        f"{len(both)} numbers, {(apart == 0).sum()} bitwise identical, most apart {apart.max():.2e}"
    )
    first, second = map(losses, folders.values())
    far = [np.nanmax(np.abs(first[name] - second[name])) for name in first if name in second]
    print(f"token losses of {len(far)} documents: most apart {max(far, default=0):.2e} nats")


if __name__ == "__main__":
    main(*sys.argv[1:])
