"""`.eval_results/*.yaml` of a model on Hugging Face's Hub: an entry a benchmark task.

https://huggingface.co/docs/hub/eval-results
"""

from collections.abc import Iterable, Mapping
from typing import Any

from leval_harness.analysis.entries import Entry
from leval_harness.analysis.labels import length_label
from leval_harness.cards.every_eval import CLUSTERED
from leval_harness.cards.identity import Says, part_of_path
from leval_harness.results.scores import FAMILY_OF
from leval_tasks.closed.catalog import TASKS

LEVAL = "L4NLP/LEval"


def benchmark_of(entry: Entry, says: Says) -> tuple[str, str] | None:
    """Dataset and task on the Hub; L-Eval's own for its tasks, others as the user says."""
    if entry.task in says.benchmarks:
        return says.benchmarks[entry.task]
    return (LEVAL, TASKS[entry.task].key) if FAMILY_OF.get(entry.task) == "closed" else None


def why_not(entry: Entry, says: Says) -> str:
    """Why a figure is no result of a benchmark; empty where it is."""
    score = entry.score
    if benchmark_of(entry, says) is None:
        return "no benchmark of the Hub is named for it (--benchmark)"
    if score.sample:
        return "made with the bundled sample"
    return "made with a part of the questions" if score.partial else ""


def entry_of(entry: Entry, says: Says) -> dict[str, Any]:
    """One entry; shares in percent, as the Hub's own examples are, all else as it stands."""
    score = entry.score
    benchmark = benchmark_of(entry, says)
    assert benchmark is not None
    assert score.value is not None
    dataset, task = benchmark
    date = {"date": entry.run.created} if "T" in entry.run.created else {}
    source = {"url": says.source_url, "name": "leval-harness"}
    return {
        "dataset": {"id": dataset, "task_id": task},
        "value": round(score.percent * score.value, 4),
        **date,
        **({"source": source} if says.source_url else {}),
        "notes": notes(entry),
    }


def notes(entry: Entry) -> str:
    """How it was made and how sure it is, in one line."""
    score = entry.score
    said = [f"RoPE {entry.label}", f"{length_label(entry.length)} tokens", score.metric]
    if score.stderr is not None and entry.interval in ("clustered", "exact"):
        said.append(f"standard error {score.percent * score.stderr:.2f} ({CLUSTERED})")
    if entry.low is not None and entry.high is not None:
        ends = (score.percent * entry.low, score.percent * entry.high)
        said.append("95% interval {:.2f} to {:.2f}".format(*ends))
    return ", ".join(said)


def file_of(entry: Entry, says: Says) -> str:
    """One file a task, method and length: the Hub takes each variant from a file of its own."""
    score, model = entry.score, says.model_id(entry.run)
    name = f"{score.task}_{entry.label}_{length_label(entry.length)}"
    return f"hub/{part_of_path(model.replace('/', '--'))}/.eval_results/{part_of_path(name)}"


def files(entries: Iterable[Entry], says: Says) -> Mapping[str, dict[str, Any]]:
    """Path -> entry, of the figures that are results of a benchmark; no two share a path."""
    found: dict[str, dict[str, Any]] = {}
    for each in entries:
        if why_not(each, says):
            continue
        stem, times = file_of(each, says), 1
        while (path := f"{stem}{f'-{times}' if times > 1 else ''}.yaml") in found:
            times += 1
        found[path] = entry_of(each, says)
    return found
