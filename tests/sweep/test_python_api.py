"""`lh.run` on a real model of a few kilobytes, and `lh.check` on the same."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest
from click.testing import CliRunner
from forked_programs import Forks

import leval_harness as lh
from leval_harness.cli.checkpoints import check

pytestmark = pytest.mark.slow

RUN = """
import json, sys, yaml
from pathlib import Path
import leval_harness as lh
from resonance_vllm.common.errors import UserError

config, out = yaml.safe_load(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
config.update(json.loads(sys.argv[3]))
try:
    frame = lh.run(config, overrides=json.loads(sys.argv[4]), out=out).to_pandas()
    frame = frame[["method", "metric", "length", "value"]]
except UserError as error:
    sys.exit(str(error))
done = {str(path): path.stat().st_mtime_ns for path in out.rglob("run.json")}
print(json.dumps({"rows": json.loads(frame.to_json(orient="records")), "done": done}))
"""


def test_a_sweep_from_a_dictionary_runs_resumes_and_is_read(
    tiny: Path, forks: Forks, tmp_path: Path
) -> None:
    words = (tiny / "sweep.yaml", tmp_path, "{}", '["methods.yarn.factor=4"]')
    first, second = (forks.python(RUN, *words) for _ in range(2))
    assert first.returncode == 0, first.stderr
    found = json.loads(first.stdout.splitlines()[-1])
    scores = [row for row in found["rows"] if row["metric"] == "exact_match"]
    assert sorted(row["method"] for row in scores) == ["rope", "yarn"]
    assert {row["length"] for row in scores} == {128}
    assert all(0 <= row["value"] <= 1 for row in scores)
    assert len(found["done"]) == 2
    assert json.loads(second.stdout.splitlines()[-1]) == found


def test_sweep_in_which_every_run_fails_is_an_error(
    tiny: Path, forks: Forks, tmp_path: Path
) -> None:
    model = {"path": str(tiny / "model"), "backend": "hf", "device": "cpu"}
    wrong = {"models": {"tiny": {**model, "args": {"attn_implementation": "no_such"}}}}
    changed = {**wrong, "methods": {"rope": None}, "baseline": None}
    ended = forks.python(RUN, tiny / "sweep.yaml", tmp_path, json.dumps(changed), "[]")
    assert ended.returncode == 1
    assert re.search("no run could be computed; the first one failed: .*no_such", ended.stderr)


@pytest.mark.usefixtures("without_vllm")
def test_check_has_the_facts_of_the_command(tiny: Path) -> None:
    model = str(tiny / "model")
    command = CliRunner().invoke(check, [model, "--rope", "yarn:factor=2", "--json"])
    printed = json.loads(command.stdout)["transformers"]
    checked = lh.check(Path(model), {"rope_type": "yarn", "factor": 2})
    assert isinstance(checked, lh.CheckReport)
    assert checked.transformers.limit == printed["limit"]
    assert checked.transformers.refused is None
    modules = [
        {**asdict(each), "inv_freq": [*each.inv_freq]} for each in checked.transformers.modules
    ]
    assert modules == printed["modules"]
    assert checked.vllm.not_installed == "vllm is not installed"
    assert lh.check(model).transformers.limit != checked.transformers.limit
