"""A run in the format of Every Eval Ever, schema 0.3.0: a record, and a line a question.

Schemas: https://github.com/evaleval/every_eval_ever, folder `every_eval_ever/schemas`.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from leval_harness.analysis.entries import Entry
from leval_harness.cards.identity import SOURCE, Says, part_of_path, record_id
from leval_harness.results import Run, Score
from leval_harness.results.fields import finite
from leval_harness.results.metrics import is_of_nats
from leval_harness.results.sample_lines import (
    document_of,
    parsed_lines,
    question_key,
    responses_of,
)
from leval_harness.results.samples import Samples
from leval_harness.results.scores import FAMILY_OF

SCHEMA_VERSION = "0.3.0"
CLUSTERED = "clustered by document, CR2"
INTERVALS = {
    "clustered": "Student's t with the standard error clustered by document (CR2)",
    "exact": "Clopper-Pearson, one observation a document",
}
REPORTED = "as lm-eval reports it"
ENGINES = {"hf": "transformers", "vllm": "vllm"}

Text = dict[str, str]


def record(run: Run, entries: Sequence[Entry], says: Says) -> dict[str, Any]:
    """The record of a run: every figure whose direction is known."""
    created = _epoch(run.created)
    timed = {"evaluation_timestamp": created} if created else {}
    return {
        "schema_version": SCHEMA_VERSION,
        "evaluation_id": evaluation_id(run, says),
        **timed,
        "retrieved_timestamp": f"{datetime.now(UTC).timestamp():.0f}",
        "source_metadata": _source(says),
        "eval_library": _library(run),
        "model_info": _model(run, says),
        "evaluation_results": [_result(entry) for entry in entries],
    }


def evaluation_id(run: Run, says: Says) -> str:
    """The same whenever the record is written: by the run, not by the clock.

    A plain run is called by its file, whose name another may have.
    """
    content = f"-{run.content[:12]}" if run.content else ""
    return f"{SOURCE}/{says.model_id(run)}/{run.run_id}{content}"


def result_id(score: Score) -> str:
    """The figure among those of its run."""
    length = score.at or score.context_length
    return "/".join([score.task, score.metric, score.chosen, *([f"{length}"] if length else [])])


def can_be_told(entry: Entry) -> bool:
    """Whether a figure is there and its direction, which the format asks for, is known."""
    return entry.score.finished and entry.score.higher_is_better is not None


def _source(says: Says) -> dict[str, Any]:
    url = {"source_organization_url": says.source_url} if says.source_url else {}
    return {
        "source_name": SOURCE,
        "source_type": "evaluation_run",
        "source_organization_name": says.organization,
        **url,
        "evaluator_relationship": says.relationship,
    }


def _library(run: Run) -> dict[str, Any]:
    versions = {str(name).replace("-", "_"): str(each) for name, each in run.versions.items()}
    return {
        "name": "lm_eval",
        "version": versions.pop("lm_eval", "unknown"),
        "additional_details": versions,
    }


def _model(run: Run, says: Says) -> dict[str, Any]:
    model, backend = says.model_id(run), run.settings.get("backend", "")
    of, *name_of = model.split("/")  # a path has more parts, or begins with an empty one
    developer = {"developer": of} if of and len(name_of) == 1 and name_of[0] else {}
    name = ENGINES.get(backend.split("-")[0])
    version = run.versions.get(name or "")
    engine = {"name": name, **({"version": str(version)} if version else {})}
    known = ("rope", "rope_precision", "dtype", "revision", "backend")
    return {
        "name": run.model,
        "id": model,
        **developer,
        **({"inference_engine": engine} if name else {}),
        "additional_details": {
            "deployment_type": "self_deployed" if name else "unknown",
            "model_availability": "unknown",
            "rope_method": run.method,
            **{name: run.settings[name] for name in known if name in run.settings},
        },
    }


def _result(entry: Entry) -> dict[str, Any]:
    score = entry.score
    value = score.value
    assert value is not None
    return {
        "evaluation_result_id": result_id(score),
        "evaluation_name": score.task,
        "source_data": _data(score),
        "metric_config": _metric(score),
        "score_details": {
            "score": value,
            "details": _details(entry),
            "uncertainty": _uncertainty(entry),
        },
        "generation_config": {
            "generation_args": {"execution_command": entry.run.command or "unknown"},
            "additional_details": dict(score.settings),
        },
    }


def _data(score: Score) -> dict[str, Any]:
    repository = score.settings.get("dataset_path", "")
    if FAMILY_OF.get(score.task) == "closed" and score.source == "hub":
        repository = "L4NLP/LEval"
    if repository.count("/") == 1 and not repository.startswith(("/", ".")):
        return {"dataset_name": score.task, "source_type": "hf_dataset", "hf_repo": repository}
    told = {"source": score.source, "files_sha256_fingerprint": score.data}
    return {
        "dataset_name": score.task,
        "source_type": "other",
        "additional_details": {name: text for name, text in told.items() if text},
    }


def _metric(score: Score) -> dict[str, Any]:
    length = score.at or score.context_length
    told = {
        "metric_id": score.metric,
        "metric_name": score.family.replace("_", " "),
        "lower_is_better": not score.higher,
        "metric_parameters": {"context_length": length, "filter": score.chosen or None},
    }
    if score.percent == 100:
        return told | {
            "metric_unit": "proportion", "score_type": "continuous", "min_score": 0, "max_score": 1
        }  # fmt: skip
    if is_of_nats(score.metric):
        lowest = 1 if "perplexity" in score.metric else 0
        return told | {"score_type": "continuous", "min_score": lowest, "max_score": "Infinity"}
    return told | {"additional_details": {"bounds_status": "unknown"}}


def _details(entry: Entry) -> Text:
    score = entry.score
    numbers = {
        name: getattr(score, name)
        for name in ("clusters", "chance", "cut", "unparsed", "at_limit", "thinking_cut",
                     "if_wrong", "if_right")
    }  # fmt: skip
    flags = {"partial": score.partial, "bundled_sample": score.sample}
    return {
        "rope_method": entry.label,
        "setting": entry.block,
        **{name: f"{number:.6g}" for name, number in numbers.items() if number is not None},
        **{name: "true" for name, flag in flags.items() if flag},
    }


def _uncertainty(entry: Entry) -> dict[str, Any]:
    score = entry.score
    told: dict[str, Any] = {}
    if score.stderr is not None:
        method = REPORTED if entry.interval == "reported" else CLUSTERED
        told["standard_error"] = {"value": score.stderr, "method": method}
    if entry.low is not None and entry.high is not None:
        told["confidence_interval"] = {
            "lower": entry.low,
            "upper": entry.high,
            "confidence_level": 0.95,
            "method": INTERVALS.get(entry.interval, entry.interval),
        }
    if score.n:
        told["num_samples"] = int(score.n)
    return told


def _epoch(created: str) -> str:
    """A time as seconds since 1970; empty where it is none, or says not where on earth."""
    if (number := finite(_number(created))) is not None:
        return f"{number:.0f}"
    try:
        when = datetime.fromisoformat(created)
    except ValueError:
        return ""
    return f"{when.timestamp():.0f}" if when.tzinfo else ""


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def instances(entry: Entry, samples: Samples, says: Says) -> Iterator[dict[str, Any]]:
    """A line for each question behind a score; none for a perplexity, which is no answer."""
    score, run = entry.score, entry.run
    if is_of_nats(score.metric):
        return
    for row in parsed_lines(samples.path):
        worth = finite(row.get(score.metric)) if row else None
        if row is None or worth is None or str(row.get("filter", score.chosen)) != score.chosen:
            continue
        key, _, cluster = question_key(row)
        yield {
            "schema_version": SCHEMA_VERSION,
            "evaluation_id": evaluation_id(run, says),
            "model_id": says.model_id(run),
            "evaluation_name": score.task,
            "evaluation_result_id": result_id(score),
            "sample_id": key,
            "interaction_type": "single_turn",
            **_asked_and_answered(row, score.chosen),
            "evaluation": {"score": worth, "is_correct": worth == (1 if score.higher else 0)},
            "metadata": {"cluster": cluster, **_flags(row)},
        }


def _asked_and_answered(row: Mapping[str, Any], chosen: str) -> dict[str, Any]:
    doc = document_of(row)
    question, gold = doc.get("question"), doc.get("gold", row.get("target"))
    raw = question if isinstance(question, str) else ""
    reference = [gold if isinstance(gold, str) else f"{gold}"]
    digest = hashlib.sha256((raw + "".join(reference)).encode("utf-8", "surrogatepass"))
    read = row.get("filtered_resps")
    answers = read if isinstance(read, list) else [read]
    return {
        "sample_hash": digest.hexdigest(),
        "input": {"raw": raw, "reference": reference},
        "output": {"raw": responses_of(row)},
        "answer_attribution": [
            {
                "turn_idx": 0,
                "source": "output.raw",
                "extracted_value": answer if isinstance(answer, str) else f"{answer}",
                "extraction_method": chosen or "none",
                "is_terminal": True,
            }
            for answer in answers
        ],
    }


def _flags(row: Mapping[str, Any]) -> Text:
    names = ("truncated", "unparsed", "reached_limit", "thinking_unfinished", "prompt_tokens")
    found = {name: finite(row.get(name)) for name in names}
    return {name: f"{number:g}" for name, number in found.items() if number is not None}


def place_of(run: Run, says: Says) -> str:
    """Where the collection keeps a record, without its ending."""
    developer, _, model = says.model_id(run).rpartition("/")
    parts = (SOURCE, developer or "unknown", model)
    return "/".join(["data", *map(part_of_path, parts), record_id(run)])
