"""Collect what a GPU machine without a network lacks: wheels of this project and of what it needs.

    python benchmarks/gpu/prepare.py OUT [--have FREEZE] [--python 3.12] [--part-mib 60]

FREEZE is the output of `pip freeze` over there; without it torch and transformers count as there,
with what they need.
The wheels go into OUT/part-1, OUT/part-2, ... of at most 60 MiB each, in the versions of this
environment. The kit brings no data: models are of random weights, documents are Python's own
documentation. Over there:

    python -m pip install --no-index --no-deps --target SITE OUT/part-*/*.whl
    PYTHONPATH=SITE python benchmarks/gpu/run.py speed
"""

import argparse
import importlib.metadata
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
THERE = ("torch", "transformers")
# What tests/conftest.py imports and the settings of pytest name.
FOR_CHECKS = ("pytest", "pytest-timeout", "hypothesis")
PLATFORMS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 24, 17, 12, 5)),
    "manylinux2014_x86_64",
    "manylinux1_x86_64",
)


def needed(
    asked: Mapping[str, Iterable[str]], have: Collection[str], python: str
) -> dict[str, str]:
    """Name -> version of packages, asked for with their extras, and of all they need."""
    found: dict[str, str] = {}
    ahead = [(name, frozenset(extras)) for name, extras in asked.items() if name not in have]
    seen = set()
    while ahead:
        name, wanted = ahead.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        distribution = importlib.metadata.distribution(name)
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


def collected(have: Collection[str], python: str) -> dict[str, str]:
    """Name -> version of the packages whose wheels the kit brings beside its own."""
    there = {*have, *THERE} if have else needed(dict.fromkeys(THERE, ()), (), python)
    asked = {"leval-harness": ("hf", "train"), **dict.fromkeys(FOR_CHECKS, ())}
    packages = needed(asked, there, python)
    del packages["leval-harness"]
    return dict(sorted(packages.items()))


def fetch(packages: Mapping[str, str], python: str, folder: Path) -> None:
    """Wheels for the other machine, all at once; one by one where one has only a source.

    Such a one is built here.
    """
    target = [flag for platform in PLATFORMS for flag in ("--platform", platform)]
    wheels = ["download", "--only-binary=:all:", "--python-version", python,
              "--implementation", "cp", *target, "--dest"]  # fmt: skip
    every = [f"{name}=={version}" for name, version in packages.items()]
    if not pip([*wheels, str(folder)], *every).returncode:
        return
    for one in every:
        if pip([*wheels, str(folder)], one).returncode:
            done = pip(["wheel", "-w", str(folder)], one)
            if done.returncode:
                raise SystemExit(f"Error: no wheel of {one}:\n{done.stderr[-2000:]}")


def pip(command: list[str], *packages: str) -> "subprocess.CompletedProcess[str]":
    """Run pip on packages by themselves, without what they need."""
    full = [sys.executable, "-m", "pip", *command, "-q", "--no-deps", *packages]
    return subprocess.run(full, capture_output=True, text=True, check=False)


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
    have = {canonicalize_name(name) for name in names if name}
    wheels = args.out / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    own = ["wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(wheels), str(ROOT)]
    subprocess.run([sys.executable, "-m", "pip", *own], check=True)
    packages = collected(have, args.python)
    print("\n".join(f"{name} {version}" for name, version in packages.items()), flush=True)
    fetch(packages, args.python, wheels)
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
