"""Write the cards of results: records of Every Eval Ever, and the Hub's `.eval_results` files.

The Hub's format: https://huggingface.co/docs/hub/eval-results
"""

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from leval_harness.analysis import Analysis, Entry
from leval_harness.analysis.entries import grouped
from leval_harness.analysis.labels import length_label
from leval_harness.cards.every_eval import CLUSTERED, bounds, instances, place_of, record
from leval_harness.cards.publication import SOURCE, Publication, path_part
from leval_harness.old_results import Score
from leval_harness.old_results.fields import digest
from leval_harness.old_results.settings import METHOD
from leval_harness.secrets import redact
from resonance_vllm.errors import plain
from resonance_vllm.files import write_text


@dataclass
class Written:
    """Numbers of records, of questions in them and of files for the Hub; and what was left out."""

    records: int = 0
    instances: int = 0
    hub_files: int = 0
    left_out: list[str] = field(default_factory=list)

    def leave_out(self, what: str, reason: str) -> None:
        """Record once what is not written, and why."""
        text = f"{what}: {reason}"
        if text not in self.left_out:
            self.left_out.append(text)


def write_cards(analysis: Analysis, out: Path, publication: Publication) -> Written:
    """Write `data/…` of Every Eval Ever and `hub/MODEL/.eval_results/…` into a folder.

    A record per run, with a line per question of its main scores beside it. Files of an earlier
    call are replaced, since their names follow from the runs.

    Raises:
        SettingError: the publication names a model or a task that the results do not have.
        OSError: the folder cannot be written.
    """
    publication.check(
        analysis.results.runs, {entry.task for entry in analysis.entries} | _metrics(analysis)
    )
    written = Written()
    directed: list[Entry] = []
    for entry in analysis.entries:
        score = entry.score
        if not score.finished:
            reason = plain(score.note) or "no reason is recorded"
            written.leave_out(f"{score.task or entry.run.run_id} ({entry.label})",
                              f"{score.status}: {reason}")  # fmt: skip
        elif score.higher_is_better is None:
            written.leave_out(score.metric, "whether higher is better is not known")
        elif why := _impossible(score):
            written.leave_out(f"{score.task} ({entry.label}): {score.metric}", why)
        else:
            directed.append(entry)
    for of_run in grouped(directed, lambda entry: entry.score.run).values():
        written.instances += _write_record(analysis, of_run, out, publication)
        written.records += 1
    main = [entry for entry in directed if entry.score.primary]
    for name, content in _hub_files(main, publication, written).items():
        _write(out / name, yaml.safe_dump([content], sort_keys=False))
        written.hub_files += 1
    return written


def _impossible(score: Score) -> str:
    """Why a metric cannot have a value; empty where it can."""
    low, high = bounds(score) or (-math.inf, math.inf)
    if score.value is None or low <= score.value <= high:
        return ""
    return f"{score.value:.6g} is not between {low:g} and {high:g}"


def _metrics(analysis: Analysis) -> set[str]:
    """`task:metric` of every main score."""
    scores = (entry.score for entry in analysis.entries if entry.score.primary)
    return {f"{score.task}:{score.metric}" for score in scores}


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


def _why_not(entry: Entry, publication: Publication) -> str:
    """Why a number is no result of a benchmark; empty where it is."""
    if publication.benchmark(entry.score) is None:
        return "no benchmark of the Hub is named for it (--benchmark)"
    if entry.score.sample:
        return "made with the bundled sample"
    return "made with a part of the questions" if entry.score.partial else ""


def _hub_files(
    entries: Iterable[Entry], publication: Publication, written: Written
) -> dict[str, dict[str, Any]]:
    """Path -> content, of the numbers that are results of a benchmark.

    Each task, method and length has a file of its own, as the Hub expects of variants. Two numbers
    for one of them are refused: a reader could not tell which one counts.
    """
    fitting: dict[tuple[Any, ...], list[Entry]] = defaultdict(list)
    for entry in entries:
        if reason := _why_not(entry, publication):
            written.leave_out(entry.task, f"not for the Hub: {reason}")
        else:
            model = publication.model_id(entry.run)
            variant = entry.score.settings.get(METHOD, ""), entry.length
            fitting[model, publication.benchmark(entry.score), *variant].append(entry)
    found: dict[str, dict[str, Any]] = {}
    for (model, benchmark, *_), (entry, *others) in fitting.items():
        name = f"{entry.task}_{entry.run.method}_{length_label(entry.length)}"
        if others:
            what = " and ".join(dict.fromkeys(_told_apart(each) for each in (entry, *others)))
            written.leave_out(
                name, f"not for the Hub: several numbers for {':'.join(benchmark)}: {what}; give "
                "one run, or the metric with --benchmark TASK:METRIC=…"
            )  # fmt: skip
            continue
        stem = f"hub/{path_part(model.replace('/', '--'))}/.eval_results/{path_part(name)}"
        path = f"{stem}.yaml"
        if path in found:  # other names that are alike as file names
            path = f"{stem}-{digest(entry.score.settings.get(METHOD, entry.label))}.yaml"
        found[path] = _hub_entry(entry, benchmark, publication.source_url)
    return found


def _told_apart(entry: Entry) -> str:
    """A number by its metric, filter, run and setting."""
    return f"{entry.score.metric} {entry.score.chosen} of {entry.run.run_id} in '{entry.block}'"


def _hub_entry(entry: Entry, benchmark: tuple[str, str], url: str) -> dict[str, Any]:
    """One entry; shares in percent, as in the Hub's own examples, other metrics in their unit."""
    score = entry.score
    assert score.value is not None
    direction = "" if score.higher else " (lower is better)"
    notes = [f"RoPE {entry.label}", f"{length_label(entry.length)} tokens"]
    notes += [f"{score.metric}{direction}", *([score.chosen] if score.chosen else [])]
    if score.stderr is not None and entry.interval in ("clustered", "exact"):
        notes.append(f"standard error {score.percent * score.stderr:.2f} ({CLUSTERED})")
    if entry.low is not None and entry.high is not None:
        low, high = (score.percent * end for end in (entry.low, entry.high))
        notes.append(f"95% interval {low:.2f} to {high:.2f}")
    data = {"documents": " ".join(filter(None, (score.source, score.data, score.python)))}
    settings = {**score.settings, **data}
    notes += [f"{name.replace('_', ' ')} {text}" for name, text in sorted(settings.items()) if text]
    return {
        "dataset": {"id": benchmark[0], "task_id": benchmark[1]},
        "value": round(score.percent * score.value, 4),
        **({"date": entry.run.created} if "T" in entry.run.created else {}),
        **({"source": {"url": url, "name": SOURCE}} if url else {}),
        "notes": ", ".join(notes),
    }
