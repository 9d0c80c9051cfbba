"""Cards against the published schemas, the rules of Every Eval Ever's gate, and the Hub's reader.

The gate is `every_eval_ever validate` of the project of that name (`schemas/README.md` says how to
run it). It checks, beside the schemas: paths, the pair of record and samples, bounds of scores, and
that a model states how it is deployed.
"""

import hashlib
import importlib.util
import json
import math
import re
from pathlib import Path

import yaml
from jsonschema import Draft7Validator

SCHEMAS = Path(__file__).parent / "schemas"
PLACE = re.compile(
    r"data/[^/<>:\"\\|?*]+/[^/<>:\"\\|?*]+/[^/<>:\"\\|?*]+/"
    r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}(\.json|_samples\.jsonl)"
)


def violations(name, content):
    """What a schema finds wrong."""
    schema = Draft7Validator(json.loads((SCHEMAS / f"{name}.schema.json").read_text()))
    return [error.message for error in schema.iter_errors(content)]


def records(out):
    """Every record of Every Eval Ever."""
    return [json.loads(path.read_text()) for path in sorted(out.glob("data/*/*/*/*.json"))]


def hub_entries(out):
    """`(path, entry)` of every file for the Hub, read by the Hub's own parser."""
    from huggingface_hub import parse_eval_result_entries

    found = []
    for path in sorted(out.glob("hub/*/.eval_results/*.yaml")):
        content = yaml.safe_load(path.read_text())
        assert violations("eval_results", content) == []
        (entry,) = parse_eval_result_entries(content)
        found.append((path, entry))
    return found


def cards_are_valid(out):
    """Check everything below a folder; return the numbers of records and of files for the Hub."""
    if importlib.util.find_spec("every_eval_ever") is not None:
        from every_eval_ever.validator.validate import main

        files = [str(path) for path in out.rglob("data/**/*.json*")]
        assert main([*files, "--format", "json"]) in (0, 2)  # 2: warnings
    for path in out.rglob("data/**/*.json*"):
        assert PLACE.fullmatch(path.relative_to(out).as_posix()), path
    for path in sorted(out.glob("data/*/*/*/*.json")):
        record = json.loads(path.read_text())
        assert violations("eval", record) == []
        details = record["model_info"]["additional_details"]
        assert details["deployment_type"] in ("self_deployed", "externally_managed", "unknown")
        for result in record["evaluation_results"]:
            metric, score = result["metric_config"], result["score_details"]["score"]
            if metric.get("score_type") == "continuous":
                assert float(metric["min_score"]) <= score <= float(metric["max_score"])
            assert math.isfinite(score)
        samples = path.with_name(f"{path.stem}_samples.jsonl")
        stated = record.get("detailed_evaluation_results")
        assert (stated is not None) == samples.exists()
        if stated:
            assert stated["file_path"] == samples.relative_to(out).as_posix()
            content = samples.read_bytes()
            assert hashlib.sha256(content).hexdigest() == stated["checksum"]
            lines = [json.loads(line) for line in content.splitlines()]
            assert len(lines) == stated["total_rows"] > 0
            names = {each["evaluation_result_id"] for each in record["evaluation_results"]}
            for line in lines:
                assert violations("instance_level_eval", line) == []
                assert line["evaluation_id"] == record["evaluation_id"]
                assert line["model_id"] == record["model_info"]["id"]
                assert line["evaluation_result_id"] in names
    keys = [(path.parent, entry.dataset_id, entry.task_id, entry.notes)
            for path, entry in hub_entries(out)]  # fmt: skip
    assert len(set(keys)) == len(keys)
    return len(records(out)), len(keys)
