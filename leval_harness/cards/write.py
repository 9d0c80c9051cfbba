"""Write the cards of results: records of Every Eval Ever, and the Hub's `.eval_results` files.

The Hub's format: https://huggingface.co/docs/hub/eval-results
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from leval_border.files import write_text
from leval_harness.analysis import Analysis, Entry
from leval_harness.analysis.entries import grouped
from leval_harness.analysis.labels import length_label
from leval_harness.cards.every_eval import CLUSTERED, LEVAL, instances, place_of, record
from leval_harness.cards.publication import SOURCE, Publication, path_part
from leval_harness.secrets import redact
from leval_tasks.closed.catalog import TASKS
from leval_tasks.metrics import FAMILY_OF


@dataclass
class Written:
    """Numbers of records, of questions in them and of files for the Hub; and what was left out."""

    records: int = 0
    instances: int = 0
    hub_files: int = 0
    left_out: list[str] = field(default_factory=list)


def write_cards(analysis: Analysis, out: Path, publication: Publication) -> Written:
    """Write `data/…` of Every Eval Ever and `hub/MODEL/.eval_results/…` into a folder.

    A record per run, with a line per question of its main scores beside it. Files of an earlier
    call are replaced, since their names follow from the runs.

    Raises:
        SettingError: the publication names a model or a task that the results do not have.
        OSError: the folder cannot be written.
    """
    entries = [entry for entry in analysis.entries if entry.score.finished]
    publication.check(
        {run.model for run in analysis.results.runs}, {entry.task for entry in analysis.entries}
    )
    directed = [entry for entry in entries if entry.score.higher_is_better is not None]
    unknown = {e.score.metric for e in entries} - {e.score.metric for e in directed}
    written = Written()
    written.left_out += [
        f"{name}: whether higher is better is not known" for name in sorted(unknown)
    ]
    for of_run in grouped(directed, lambda entry: entry.score.run).values():
        written.instances += _write_record(analysis, of_run, out, publication)
        written.records += 1
    main = [entry for entry in directed if entry.score.primary]
    for name, content in _hub_files(main, publication).items():
        _write(out / name, yaml.safe_dump([content], sort_keys=False))
        written.hub_files += 1
    for task, part in grouped(main, lambda entry: entry.task).items():
        reasons = dict.fromkeys(why for each in part if (why := _why_not(each, publication)))
        written.left_out += [f"{task}: not for the Hub: {why}" for why in reasons]
    return written


def _write(path: Path, text: str) -> str:
    """Write a text without tokens and return it."""
    text = redact(text, names=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    return text


def _write_record(
    analysis: Analysis, entries: list[Entry], out: Path, publication: Publication
) -> int:
    """Write a run's record and its questions; return the number of questions."""
    run = entries[0].run
    place = place_of(run, publication)
    content = record(run, entries, publication)
    lines = [
        json.dumps(line, allow_nan=False)
        for entry in entries
        if entry.score.primary and entry.score.from_samples
        if (samples := analysis.results.samples.get((entry.score.run, entry.task)))
        for line in instances(entry, samples, publication)
    ]
    if lines:
        name = f"{place}_samples.jsonl"
        text = _write(out / name, "".join(f"{line}\n" for line in lines))
        content["detailed_evaluation_results"] = {
            "format": "jsonl",
            "file_path": name,
            "hash_algorithm": "sha256",
            "checksum": hashlib.sha256(text.encode()).hexdigest(),
            "total_rows": len(lines),
        }
    _write(out / f"{place}.json", json.dumps(content, indent=2, allow_nan=False) + "\n")
    return len(lines)


def _benchmark(entry: Entry, publication: Publication) -> tuple[str, str] | None:
    """Dataset and task on the Hub: L-Eval's own for its tasks, others as the user states."""
    if entry.task in publication.benchmarks:
        return publication.benchmarks[entry.task]
    return (LEVAL, TASKS[entry.task].key) if FAMILY_OF.get(entry.task) == "closed" else None


def _why_not(entry: Entry, publication: Publication) -> str:
    """Why a number is no result of a benchmark; empty where it is."""
    if _benchmark(entry, publication) is None:
        return "no benchmark of the Hub is named for it (--benchmark)"
    if entry.score.sample:
        return "made with the bundled sample"
    return "made with a part of the questions" if entry.score.partial else ""


def _hub_files(entries: Iterable[Entry], publication: Publication) -> dict[str, dict[str, Any]]:
    """Path -> content, of the numbers that are results of a benchmark; no two share a path.

    Each task, method and length has a file of its own, as the Hub expects of variants.
    """
    found: dict[str, dict[str, Any]] = {}
    for entry in entries:
        benchmark = _benchmark(entry, publication)
        if benchmark is None or _why_not(entry, publication):
            continue
        model = path_part(publication.model_id(entry.run).replace("/", "--"))
        name = path_part(f"{entry.task}_{entry.label}_{length_label(entry.length)}")
        stem, times = f"hub/{model}/.eval_results/{name}", 1
        while (path := f"{stem}{f'-{times}' if times > 1 else ''}.yaml") in found:
            times += 1
        found[path] = _hub_entry(entry, benchmark, publication.source_url)
    return found


def _hub_entry(entry: Entry, benchmark: tuple[str, str], url: str) -> dict[str, Any]:
    """One entry; shares in percent, as in the Hub's own examples, other metrics in their unit."""
    score = entry.score
    assert score.value is not None
    notes = [f"RoPE {entry.label}", f"{length_label(entry.length)} tokens", score.metric]
    if score.stderr is not None and entry.interval in ("clustered", "exact"):
        notes.append(f"standard error {score.percent * score.stderr:.2f} ({CLUSTERED})")
    if entry.low is not None and entry.high is not None:
        low, high = (score.percent * end for end in (entry.low, entry.high))
        notes.append(f"95% interval {low:.2f} to {high:.2f}")
    return {
        "dataset": {"id": benchmark[0], "task_id": benchmark[1]},
        "value": round(score.percent * score.value, 4),
        **({"date": entry.run.created} if "T" in entry.run.created else {}),
        **({"source": {"url": url, "name": SOURCE}} if url else {}),
        "notes": ", ".join(notes),
    }
