"""A run in the format of Every Eval Ever, schema 0.3.0: a record, and a line per question.

Schemas: https://github.com/evaleval/every_eval_ever, folder `every_eval_ever/schemas`.
"""

import contextlib
import hashlib
import math
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from leval_harness.analysis import Entry
from leval_harness.cards.publication import LEVAL, SOURCE, Publication, model_name, path_part
from leval_harness.old_results import Run, Score
from leval_harness.old_results.fields import finite
from leval_harness.old_results.sample_lines import Sample, parsed_lines
from leval_harness.old_results.samples import Samples
from leval_tasks.metrics import FAMILY_OF

SCHEMA_VERSION = "0.3.0"
CLUSTERED = "clustered by document, CR2"
INTERVALS = {
    "clustered": "Student's t with the standard error clustered by document (CR2)",
    "exact": "Clopper-Pearson, one observation a document",
}
REPORTED = "as lm-eval reports it"
ENGINES = {"hf": "transformers", "vllm": "vllm"}


def record(run: Run, entries: Sequence[Entry], publication: Publication) -> dict[str, Any]:
    """The record of a run: every number whose direction is known."""
    created, url = _epoch(run.created), publication.source_url
    versions = {str(name).replace("-", "_"): str(each) for name, each in run.versions.items()}
    return {
        "schema_version": SCHEMA_VERSION,
        "evaluation_id": evaluation_id(run, publication),
        **({"evaluation_timestamp": created} if created else {}),
        "retrieved_timestamp": f"{datetime.now(UTC).timestamp():.0f}",
        "source_metadata": {
            "source_name": SOURCE,
            "source_type": "evaluation_run",
            "source_organization_name": publication.organization,
            **({"source_organization_url": url} if url else {}),
            "evaluator_relationship": publication.relationship,
        },
        "eval_library": {
            "name": "lm_eval",
            "version": versions.pop("lm_eval", "unknown"),
            "additional_details": versions,
        },
        "model_info": _model(run, publication),
        "evaluation_results": [_result(entry) for entry in entries],
    }


def place_of(run: Run, publication: Publication) -> str:
    """Where the collection keeps a record, without its ending.

    The name is a version-4 UUID made from the run, so that a record written again replaces itself.
    """
    developer, _, model = publication.model_id(run).rpartition("/")
    name = f"{run.run_id} {run.content} {run.model} {run.method}"
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()
    parts = map(path_part, (SOURCE, developer or "unknown", model))
    return "/".join(["data", *parts, str(uuid.UUID(bytes=digest[:16], version=4))])


def evaluation_id(run: Run, publication: Publication) -> str:
    """The same whenever the record is written; of a plain run with the digest of its file."""
    content = f"-{run.content[:12]}" if run.content else ""
    return f"{SOURCE}/{publication.model_id(run)}/{run.run_id}{content}"


def result_id(score: Score) -> str:
    """The number among those of its run."""
    length = score.at or score.context_length
    return "/".join([score.task, score.metric, score.chosen, *([f"{length}"] if length else [])])


def bounds(score: Score) -> tuple[float, float] | None:
    """The least and the greatest value that a metric can take; None where they are unknown."""
    if score.percent == 100:
        return 0, 1
    if score.meaning.kind != "loss":
        return None
    if score.higher:  # a difference of two losses
        return -math.inf, math.inf
    return (1 if score.meaning.unit == "perplexity" else 0), math.inf


def _model(run: Run, publication: Publication) -> dict[str, Any]:
    model = publication.model_id(run)
    developer, *names = model.split("/")  # a path has more parts, or begins with an empty one
    has_developer = developer and len(names) == 1 and names[0]
    name = ENGINES.get(run.settings.get("backend", "").split("-")[0])
    version = run.versions.get(name or "")
    engine = {"name": name, **({"version": str(version)} if version else {})}
    known = ("rope", "rope_precision", "dtype", "revision", "backend")
    return {
        "name": model_name(run),
        "id": model,
        **({"developer": developer} if has_developer else {}),
        **({"inference_engine": engine} if name else {}),
        "additional_details": {
            "deployment_type": "self_deployed" if name else "unknown",
            "model_availability": "unknown",
            "rope_method": run.method,
            **({"base_model": run.model} if model_name(run) != run.model else {}),
            **{name: run.settings[name] for name in known if name in run.settings},
        },
    }


def _result(entry: Entry) -> dict[str, Any]:
    score = entry.score
    assert score.value is not None
    return {
        "evaluation_result_id": result_id(score),
        "evaluation_name": score.task,
        "source_data": _data(score),
        "metric_config": _metric(score),
        "score_details": {
            "score": score.value,
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
        repository = LEVAL
    if repository.count("/") == 1 and not repository.startswith(("/", ".")):
        return {"dataset_name": score.task, "source_type": "hf_dataset", "hf_repo": repository}
    details = {"source": score.source, "files_sha256_fingerprint": score.data}
    return {
        "dataset_name": score.task,
        "source_type": "other",
        "additional_details": {name: text for name, text in details.items() if text},
    }


def _metric(score: Score) -> dict[str, Any]:
    length = score.at or score.context_length
    metric = {
        "metric_id": score.metric,
        "metric_name": score.family.replace("_", " "),
        "lower_is_better": not score.higher,
        "metric_parameters": {"context_length": length, "filter": score.chosen or None},
    }
    if (interval := bounds(score)) is None:
        return metric | {"additional_details": {"bounds_status": "unknown"}}
    low, high = (
        str(end).replace("inf", "Infinity") if math.isinf(end) else end for end in interval
    )
    unit = {"metric_unit": "proportion"} if score.percent == 100 else {}
    return metric | unit | {"score_type": "continuous", "min_score": low, "max_score": high}


def _details(entry: Entry) -> dict[str, str]:
    score = entry.score
    names = ("clusters", "chance", "cut", "unparsed", "at_limit", "thinking_cut", "if_wrong",
             "if_right")  # fmt: skip
    numbers = {name: getattr(score, name) for name in names}
    flags = {"partial": score.partial, "bundled_sample": score.sample}
    return {
        "rope_method": entry.label,
        "setting": entry.block,
        **{name: f"{number:.6g}" for name, number in numbers.items() if number is not None},
        **{name: "true" for name, flag in flags.items() if flag},
    }


def _uncertainty(entry: Entry) -> dict[str, Any]:
    score = entry.score
    found: dict[str, Any] = {}
    if score.stderr is not None:
        method = REPORTED if entry.interval == "reported" else CLUSTERED
        found["standard_error"] = {"value": score.stderr, "method": method}
    if entry.low is not None and entry.high is not None:
        found["confidence_interval"] = {
            "lower": entry.low,
            "upper": entry.high,
            "confidence_level": 0.95,
            "method": INTERVALS.get(entry.interval, entry.interval),
        }
    return found | ({"num_samples": int(score.n)} if score.n else {})


def _epoch(created: str) -> str:
    """A time as seconds since 1970; empty if it is no number and no time with a time zone."""
    with contextlib.suppress(ValueError):
        number = finite(float(created))
        return "" if number is None else f"{number:.0f}"
    with contextlib.suppress(ValueError):
        when = datetime.fromisoformat(created)
        return f"{when.timestamp():.0f}" if when.tzinfo else ""
    return ""


def instances(entry: Entry, samples: Samples, publication: Publication) -> Iterator[dict[str, Any]]:
    """A line for each question behind a score; none for a perplexity, which is no answer."""
    score, run = entry.score, entry.run
    if score.meaning.kind == "loss":
        return
    for sample in filter(None, parsed_lines(samples.path)):
        value = finite(sample.row.get(score.metric))
        if value is None or str(sample.row.get("filter", score.chosen)) != score.chosen:
            continue
        key, _, cluster = sample.key
        yield {
            "schema_version": SCHEMA_VERSION,
            "evaluation_id": evaluation_id(run, publication),
            "model_id": publication.model_id(run),
            "evaluation_name": score.task,
            "evaluation_result_id": result_id(score),
            "sample_id": key,
            "interaction_type": "single_turn",
            **_question_and_answer(sample, score.chosen),
            "evaluation": {"score": value, "is_correct": value == (1 if score.higher else 0)},
            "metadata": {"cluster": cluster, **_flags(sample)},
        }


def _question_and_answer(sample: Sample, chosen: str) -> dict[str, Any]:
    doc = sample.document
    question, gold = doc.get("question"), doc.get("gold", sample.row.get("target"))
    raw = question if isinstance(question, str) else ""
    reference = [gold if isinstance(gold, str) else f"{gold}"]
    digest = hashlib.sha256((raw + "".join(reference)).encode("utf-8", "surrogatepass"))
    return {
        "sample_hash": digest.hexdigest(),
        "input": {"raw": raw, "reference": reference},
        "output": {"raw": sample.responses},
        "answer_attribution": [
            {
                "turn_idx": 0,
                "source": "output.raw",
                "extracted_value": answer if isinstance(answer, str) else f"{answer}",
                "extraction_method": chosen or "none",
                "is_terminal": True,
            }
            for answer in sample.answers
        ],
    }


def _flags(sample: Sample) -> dict[str, str]:
    names = ("truncated", "unparsed", "reached_limit", "thinking_unfinished", "prompt_tokens")
    found = sample.notes
    return {name: f"{found[name]:g}" for name in names if name in found}
