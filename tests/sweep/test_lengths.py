"""lm-eval's long-context tasks in sweeps: one run a length, told to the task, its cuts counted."""

import json
from pathlib import Path
from typing import Any

import pytest
from forked_programs import COMMAND, Forks

from leval_harness.sweep import ConfigError
from leval_harness.sweep import plan as runs
from leval_harness.sweep import task_registry as lengths
from leval_harness.sweep.config import parse_config
from leval_harness.sweep.evaluation import mark_truncated
from leval_harness.sweep.run_record import RunRecord

pytestmark = pytest.mark.slow

LENGTHS = [4096, 8192, 16384]
TOLD = {"ruler": lambda length: [length], "babilong": lambda length: f"{length // 1024}k"}
"""What the READMEs of these folders of lm-eval say that `max_seq_lengths` is to be."""
UNTOLD = ("longbench", "longbench2", "infinitebench")
KEY = lengths.LENGTH_KEY


def planned(folder: Path, task: Any, **changes: Any) -> list[RunRecord]:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 8192}))
    content = {
        "name": "lengths",
        "models": {"small": {"path": str(folder)}},
        "methods": {"rope": {"rope_type": "default"}, "yarn": {"rope_type": "yarn", "factor": 2}},
        "tasks": task,
        "context_lengths": LENGTHS,
        "limit": 20,
    }
    return runs.plan(parse_config({**content, **changes}))


@pytest.mark.parametrize("folder", [*TOLD, *UNTOLD])
def test_run_passes_its_own_length_only(checkpoint: Path, folder: str) -> None:
    """And reads more for what these tasks put beside it, where the method reads further."""
    made = planned(checkpoint, folder)
    assert len({run.run_id for run in made}) == len(made) == 2 * len(LENGTHS)
    for run in made:
        length = run.context_length
        assert length is not None
        expected = {KEY: TOLD[folder](length)} if folder in TOLD else {}
        assert run.metadata == run.identity["metadata"] == expected
        at_the_end = run.method.name == "yarn" and length == 16384
        beside = lengths.BESIDE_LENGTH if folder in TOLD and not at_the_end else 0
        assert run.model_args["max_length"] == length + beside


def test_a_tag_is_told_what_its_tasks_are() -> None:
    assert lengths.length_setting(["longcxt"], {}, 8192) == {KEY: [8192]}
    assert lengths.length_setting(["wikitext"], {}, 8192) == {}
    assert lengths.length_setting(["ruler"], {KEY: [4096]}, None) == {}, "by hand, without a length"


def test_the_length_is_not_told_by_hand(checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match=f"metadata.{KEY}: write it as context_lengths"):
        planned(checkpoint, "niah_single_1", metadata={KEY: [4096]})


def test_our_tasks_beside_others_read_no_more_than_the_length(checkpoint: Path) -> None:
    made = planned(checkpoint, [["ruler_vt", "leval_closed_gsm"]], metadata={"data_dir": "sample"})
    assert {c.context_length - c.model_args["max_length"] for c in made} == {0}


class Words:
    """A model that reads eight words."""

    max_length = 8
    max_gen_toks = 3

    def tok_encode(self, text: str) -> list[str]:
        return text.split()


def test_cut_prompts_are_counted() -> None:
    def row(*requests: tuple[Any, ...]) -> dict[str, Any]:
        return {"arguments": list(requests)}

    given: dict[str, Any] = {}
    five, eight = "a b c d e", "a b c d e f g h"
    rows = [
        row((five, given)),
        row((five, {"max_gen_toks": 4})),
        row((five, {"max_new_tokens": 4, "until": "x"})),
        row((five, {"max_completion_tokens": "1"})),
        row((eight, "x")),
        row(("a b", "c"), (five, "d e f")),
        row(((1, 2), [3])),
        {},
    ]
    mark_truncated(Words(), {"task": rows})
    assert [each.get("truncated") for each in rows] == [0, 1, 1, 0, 1, 0, None, None]
    assert [each.get("prompt_tokens") for each in rows] == [5, 5, 5, 5, 8, 5, None, None]
    untouched = [row((eight, given))]
    mark_truncated(object(), {"task": untouched})
    assert untouched == [row((eight, given))]


RULER = """
models:
  tiny: {{path: {root}/model, backend: hf, dtype: float32, device: cpu}}
methods:
  rope: {{rope_type: default}}
  yarn: {{rope_type: yarn, factor: 32}}
context_lengths: [1024]
tasks: [[niah_single_1, ruler_fwe]]
gen_kwargs: {{max_gen_toks: 2}}
limit: 3
"""


@pytest.mark.slow(long=True)
def test_ruler_asks_every_method_the_same_questions(
    tmp_path: Path, tiny: Path, forks: Forks
) -> None:
    (tmp_path / "ruler.yaml").write_text(RULER.format(root=tiny))
    # Its modules take seconds to import; runs are forks that have them already.
    modules = "import lm_eval.tasks.ruler.niah_utils, lm_eval.tasks.ruler.fwe_utils"
    command = ("sweep", tmp_path / "ruler.yaml", "--out", tmp_path)
    ran = forks.python(f"{modules}; {COMMAND}", *command)
    assert ran.returncode == 0, ran.stderr[-2000:]
    asked = []
    for folder in {path.parent for path in tmp_path.rglob("run.json")}:
        (path,) = folder.glob("results_*.json")
        results = json.loads(path.read_text())
        for task in ("niah_single_1", "ruler_fwe"):
            assert 0 <= results["results"][task]["1024,none"] <= 1
            assert results["n-samples"][task]["effective"] == 3
        rows = [
            json.loads(line)
            for path in sorted(folder.glob("samples_*.jsonl"))
            for line in path.read_text().splitlines()
        ]
        assert [row["truncated"] for row in rows] == [0.0] * 6
        assert max(row["prompt_tokens"] for row in rows) <= 1024 + 512 - 2
        assert {row["reached_limit"] for row in rows} <= {0.0, 1.0}
        assert sum(row["reached_limit"] for row in rows)  # two tokens are few
        asked.append([row["doc_hash"] for row in rows])
    assert len(asked) == 2
    assert asked[0] == asked[1]
    assert len(set(asked[0])) == 6
