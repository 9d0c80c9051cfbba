"""What a table's reader needs to judge or repeat it: commands, versions, seeds and the scale."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from leval_harness.results import Run


def provenance_notes(
    commands: Iterable[str],
    versions: Iterable[Mapping[str, Any]],
    seeds: Iterable[object],
    scale: str,
) -> tuple[str, ...]:
    """Notes on some runs, each with a command, versions by name and a seed; `scale` is in words.

    What several runs share is said once.
    """
    known: dict[str, set[str]] = defaultdict(set)
    for mapping in versions:
        for name, version in mapping.items():
            if isinstance(version, str):
                known[name].add(version)
    notes = [f"Made by: {command}" for command in sorted({*commands} - {""})]
    listed = [f"{name} {' and '.join(sorted(each))}" for name, each in sorted(known.items())]
    notes += [f"Versions: {', '.join(listed)}"] if listed else []
    texts = {str(seed) for seed in seeds if seed not in (None, "")}
    named = sorted(texts, key=lambda each: (len(each), each))  # 10 after 9
    notes += [f"Seeds: {', '.join(named)}"] if named else []
    return (*notes, f"Scale: {scale}")


def run_provenance(runs: Sequence[Run], documents: str) -> tuple[str, ...]:
    """The same for lm-eval runs: models, precision, documents, machine, the time of all of them."""
    seconds = [run.seconds for run in runs if run.seconds is not None]
    parts = sorted({run.model for run in runs})
    parts += sorted({run.settings.get("dtype", "") for run in runs} - {""})
    parts += [documents, *sorted({machine(run.host) for run in runs} - {""})]
    parts += [f"{sum(seconds) / 60:.0f} minutes for all {len(runs)} runs"] if seconds else []
    return provenance_notes(
        (run.command for run in runs),
        (run.versions for run in runs),
        (run.settings.get("seed") for run in runs),
        ", ".join(parts),
    )


def machine(host: Mapping[str, Any]) -> str:
    """A machine by what decides its speed; never its name."""
    device, cores = host.get("device"), host.get("cores")
    if isinstance(device, str) and device:
        return device
    return f"{cores} CPU cores" if isinstance(cores, int) else ""
