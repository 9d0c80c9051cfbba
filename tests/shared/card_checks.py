"""Cards against the published schemas, the rules of Every Eval Ever's gate, and the Hub's reader.

The gate is `every_eval_ever validate` of the project of that name, which is run as it is
(`leaderboard/schemas/README.md` says where it comes from). The checks here hold for its rules
without it: schemas, paths, the pair of record and samples, bounds of scores, and that a model
states how it is deployed.
"""

import contextlib
import functools
import hashlib
import io
import json
import math
import re
from pathlib import Path

import yaml
from every_eval_ever.validator.validate import main as every_eval_ever
from jsonschema import Draft7Validator

SCHEMAS = Path(__file__).parents[1] / "leaderboard" / "schemas"
PLACE = re.compile(
    r"data/[^/<>:\"\\|?*]+/[^/<>:\"\\|?*]+/[^/<>:\"\\|?*]+/"
    r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}(\.json|_samples\.jsonl)"
)
CARDS = "data/leval-harness/**/*.json*"
"""Documents of L-Eval, which are no cards, may stand in the same `data`."""
OWNED = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_.-]*")
"""A model on the Hub."""


@functools.cache
def validator(name):
    """The validator of a schema, which takes longer to make than to use."""
    return Draft7Validator(json.loads((SCHEMAS / f"{name}.schema.json").read_text()))


def violations(name, content):
    """What a schema finds wrong."""
    return [error.message for error in validator(name).iter_errors(content)]


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


def gate_lets_pass(out):
    """Run the validator of Every Eval Ever: no error, and no warning where the model has an owner.

    A model that was run from a folder has none until `--model-id` names it.
    """
    files = [str(path) for path in out.rglob(CARDS)]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        ended = every_eval_ever([*files, "--format", "json"]) if files else 0
    reports = json.loads(printed.getvalue() or "[]")
    assert ended in (0, 2), [each for report in reports for each in report["errors"]][:3]
    for report in reports:
        if report["warnings"]:
            model = json.loads(Path(report["file"]).read_text())["model_info"]["id"]
            assert not OWNED.fullmatch(model), report
            assert {each["loc"] for each in report["warnings"]} == {"model_info"}


def cards_are_valid(out):
    """Check everything below a folder; return the numbers of records and of files for the Hub."""
    gate_lets_pass(out)
    for path in out.rglob(CARDS):
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
