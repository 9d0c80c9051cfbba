"""Collect what a GPU machine without a network lacks: wheels of this project and of what it needs.

    python benchmarks/gpu/prepare.py OUT [--have FREEZE] [--python 3.12] [--part-mib 60]

FREEZE is the output of `pip freeze` over there; torch and transformers count as there in any case.
The wheels go into OUT/part-1, OUT/part-2, ... of at most 60 MiB each, in the versions of this
environment. The kit brings no data: models are of random weights, texts are Python's own
documentation. Over there:

    python -m pip install --no-index --no-deps --target SITE OUT/part-*/*.whl
    PYTHONPATH=SITE python benchmarks/gpu/run.py speed
"""

import argparse
import importlib.metadata
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
THERE = {"torch", "transformers"}
PLATFORMS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 24, 17, 12, 5)),
    "manylinux2014_x86_64",
    "manylinux1_x86_64",
)


def needed(extras: Iterable[str], have: set[str], python: str) -> dict[str, str]:
    """Name -> version of every package that is asked for with some extras and is not there."""
    found: dict[str, str] = {}
    ahead = [("leval-harness", frozenset(extras))]
    seen = set()
    while ahead:
        name, wanted = ahead.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        distribution = importlib.metadata.distribution(name)
        if name != "leval-harness":
            found[name] = distribution.version
        for text in distribution.requires or ():
            need = Requirement(text)
            marks = [{"extra": e, "python_version": python, "platform_system": "Linux"}
                     for e in ("", *wanted)]  # fmt: skip
            if need.marker and not any(need.marker.evaluate(mark) for mark in marks):
                continue
            other = canonicalize_name(need.name)
            if other not in have:
                ahead.append((other, frozenset(need.extras)))
    return found


def fetch(name: str, version: str, python: str, folder: Path) -> None:
    """A package's wheel for the other machine; built here where there is only a source."""
    target = [flag for platform in PLATFORMS for flag in ("--platform", platform)]
    download = ["download", "--only-binary=:all:", "--python-version", python,
                "--implementation", "cp", *target]  # fmt: skip
    for command in (download, ["wheel"]):
        end = ["--no-deps", "-q", "--dest" if command is download else "-w", str(folder)]
        done = subprocess.run(
            [sys.executable, "-m", "pip", *command, *end, f"{name}=={version}"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode == 0:
            return
    raise SystemExit(f"Error: no wheel of {name} {version}:\n{done.stderr[-2000:]}")


def in_parts(folder: Path, most: int) -> list[list[Path]]:
    """The wheels in groups of at most `most` bytes, the largest first.

    Raises:
        SystemExit: a wheel is larger than that by itself.
    """
    parts: list[list[Path]] = []
    sizes: list[int] = []
    for wheel in sorted(folder.glob("*.whl"), key=lambda path: -path.stat().st_size):
        size = wheel.stat().st_size
        if size > most:
            raise SystemExit(f"Error: {wheel.name} has {size >> 20} MiB, more than a part may have")
        place = next((at for at, sum_ in enumerate(sizes) if sum_ + size <= most), len(parts))
        if place == len(parts):
            parts.append([])
            sizes.append(0)
        parts[place].append(wheel)
        sizes[place] += size
    return parts


def main() -> None:
    """Collect, and say how much it is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--have", type=Path, help="output of `pip freeze` over there")
    parser.add_argument("--python", default="3.12")
    parser.add_argument("--part-mib", type=int, default=60)
    args = parser.parse_args()
    lines = args.have.read_text().splitlines() if args.have else []
    names = (line.partition("==")[0].partition(" @")[0].strip() for line in lines)
    have = THERE | {canonicalize_name(name) for name in names if name}
    wheels = args.out / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    own = ["wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(wheels), str(ROOT)]
    subprocess.run([sys.executable, "-m", "pip", *own], check=True)
    packages = needed(("hf", "train"), have, args.python) | {
        name: importlib.metadata.version(name)
        for name in ("pytest", "pluggy", "iniconfig") if name not in have
    }  # fmt: skip
    for name, version in sorted(packages.items()):
        print(f"{name} {version}", flush=True)
        fetch(name, version, args.python, wheels)
    for at, part in enumerate(in_parts(wheels, args.part_mib * 2**20), 1):
        folder = args.out / f"part-{at}"
        folder.mkdir(exist_ok=True)
        for wheel in part:
            wheel.rename(folder / wheel.name)
        size = sum(path.stat().st_size for path in folder.iterdir()) / 2**20
        print(f"{folder}: {len(part)} wheels, {size:.1f} MiB")
    wheels.rmdir()


if __name__ == "__main__":
    main()
