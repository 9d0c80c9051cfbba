"""Write the cards of results into a folder."""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from leval_border.files import write_text
from leval_harness.analysis import Analysis, Entry
from leval_harness.analysis.entries import grouped
from leval_harness.cards import every_eval, hub
from leval_harness.cards.identity import Says
from leval_harness.results import Run


@dataclass
class Written:
    """What was written: records, questions in them, files for the Hub; and what was left out."""

    records: int = 0
    instances: int = 0
    hub_files: int = 0
    left_out: list[str] = field(default_factory=list)


def write_cards(analysis: Analysis, out: Path, says: Says) -> Written:
    """Write `data/…` of Every Eval Ever and `hub/MODEL/.eval_results/…` into a folder.

    A record a run, with a line a question of its main scores beside it. Files of an earlier call
    are replaced, since their names follow from the runs.

    Raises:
        SettingError: something is said of a model or a task that the results have not.
        OSError: the folder cannot be written.
    """
    says = says.of_results(
        {run.model for run in analysis.results.runs}, {entry.task for entry in analysis.entries}
    )
    written = Written()
    told = [entry for entry in analysis.entries if every_eval.can_be_told(entry)]
    unknown = {e.score.metric for e in analysis.entries if e.score.finished} - {
        e.score.metric for e in told
    }
    written.left_out += [
        f"{name}: whether higher is better is not known" for name in sorted(unknown)
    ]
    for entries in grouped(told, lambda entry: entry.score.run).values():
        written.instances += _write_record(analysis, entries, out, says)
        written.records += 1
    main = [entry for entry in told if entry.score.primary]
    found = hub.files(main, says)
    for name, entry in found.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, yaml.safe_dump([entry], sort_keys=False))
    written.hub_files = len(found)
    for task, part in grouped(main, lambda entry: entry.task).items():
        reasons = dict.fromkeys(reason for each in part if (reason := hub.why_not(each, says)))
        written.left_out += [f"{task}: not for the Hub: {reason}" for reason in reasons]
    return written


def _write_record(analysis: Analysis, entries: list[Entry], out: Path, says: Says) -> int:
    """A run's record and its questions; how many there are."""
    run: Run = entries[0].run
    place = every_eval.place_of(run, says)
    record = every_eval.record(run, entries, says)
    path = out / f"{place}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps(line, allow_nan=False)
        for entry in entries
        if entry.score.primary and entry.score.from_samples
        if (samples := analysis.results.samples.get((entry.score.run, entry.task)))
        for line in every_eval.instances(entry, samples, says)
    ]
    if lines:
        text = "".join(f"{line}\n" for line in lines)
        write_text(out / f"{place}_samples.jsonl", text)
        record["detailed_evaluation_results"] = _reference(f"{place}_samples.jsonl", text, lines)
    write_text(path, json.dumps(record, indent=2, allow_nan=False) + "\n")
    return len(lines)


def _reference(name: str, text: str, lines: list[str]) -> dict[str, Any]:
    return {
        "format": "jsonl",
        "file_path": name,
        "hash_algorithm": "sha256",
        "checksum": hashlib.sha256(text.encode()).hexdigest(),
        "total_rows": len(lines),
    }
