"""Needle grid and MRCR, and lm-eval's GraphWalks, LongProc and LongBench v2, in sweeps.

lm-eval's are tried on files of their schemas: `datasets` takes a folder with the name of a data set
for it, so that nothing is fetched.
"""

import json
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from forked_programs import Forks
from mrcr_files import write_files

from leval_harness.backends.documents import WORTH_A_BATCH
from leval_harness.results.load import load_results

pytestmark = pytest.mark.slow

GRAPH = {
    "prompt": "The graph has the following edges:\nuvRzn -> kQMpd\nkQMpd -> aaBcd\n\nOperation: find the "
              "parents of kQMpd.",
    "answer_nodes": ["uvRzn"], "prompt_chars": 99, "problem_type": "parents",
}  # fmt: skip
ROUTE = {
    "id": 1,
    "input_prompt": "From Rome there is a bus to Bonn. Find the route from Rome to Bonn.",
    "reference_output": "From Rome, take a bus to Bonn.",
    "metadata": "{}",
}
BOOK = {
    "context": "The novel is about a lighthouse. " * 4,
    "question": "What is the novel about?",
    "choices": ["A lighthouse", "A ship", "A whale", "A storm"],
    "answer": 0,
}
CONFIGS = "---\nconfigs:\n- config_name: {name}\n  data_files:\n  - {{split: {split}, path: {file}}}\n---\n"

TASKS: dict[str, tuple[str, str, dict[str, Any], set[str]]] = {
    "graphwalks_128k": ("openai/graphwalks", "", GRAPH, {"f1", "flexible_f1"}),
    "longproc_path_traversal_0.5k": (
        "PrincetonPli/LongProc", "test", ROUTE,
        {"score", "accuracy", "partial_accuracy", "extraction_rate"},
    ),
    "longbench2_academic_single": ("recursal/longbench-v2", "train", BOOK, {"acc"}),
}  # fmt: skip
"""Task -> data set, split that its configuration names, a row, and its metrics."""


def write_data(task: str, folder: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    name, split, row, _ = TASKS[task]
    data = folder / name
    data.mkdir(parents=True)
    rows = [row, {**row, **({"id": 2} if "id" in row else {})}]
    if not split:
        table = pyarrow.Table.from_pylist(rows)
        pyarrow.parquet.write_table(table, data / "graphwalks_128k_and_shorter.parquet")
        return
    config = task.removeprefix("longproc_").removeprefix("longbench2_")
    (data / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (data / "README.md").write_text(CONFIGS.format(name=config, split=split, file="rows.jsonl"))


def tokens_read_once(model: Path, prompts: Iterable[str]) -> int:
    """Tokens of prompts without those that another prompt has begun with."""
    from transformers import AutoTokenizer

    encode = AutoTokenizer.from_pretrained(model)
    read = 0
    previous: list[int] = []
    for tokens in sorted(encode(prompt)["input_ids"] for prompt in prompts):
        pairs = zip(tokens, previous, strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        read += len(tokens) - shared
        previous = tokens
    return read


def test_needles_and_mrcr_share_what_prompts_begin_with(
    tiny: Path, forks: Forks, tmp_path: Path
) -> None:
    needles = {
        "tasks": "retrieval_niah_single",
        "metadata": {"context_length": [1024, 2048], "num_samples": 2, "haystack": "noise"},
    }
    mrcr = {
        "tasks": "mrcr_2needle",
        "metadata": {"data_dir": str(write_files(tmp_path)), "bin_tokenizer": "model"},
    }
    options = [f"--set=tasks={json.dumps([needles, mrcr])}", "--set=context_lengths=[2048]"]
    options += ["--set=methods={yarn: {rope_type: yarn, factor: 32}}", "--set=baseline=yarn"]
    options += ["--set=models.tiny.backend=hf-long", "--set=gen_kwargs={max_gen_toks: 4}"]
    assert forks.sweep(tiny / "sweep.yaml", tmp_path / "out", *options) == 0, forks.said()
    frames = load_results(tmp_path / "out")
    scores = frames.scores.set_index(["metric", "length"])
    assert {(f"depth_{depth}", length) for depth in (0, 50, 100) for length in (1024, 2048)} <= set(
        scores.index
    )
    assert scores.loc[("accuracy", 2048), "asked"].item() == 12
    counted = frames.samples[frames.samples["metric"] == "accuracy@2048"]
    assert len(counted) == 6
    assert counted["document"].nunique() == 6
    assert ("mrcr", 2048) in scores.index
    for run in (tmp_path / "out").glob("*/runs/*"):
        telemetry = json.loads((run / "run.json").read_text())["telemetry"]
        (samples,) = run.glob("samples_*.jsonl")
        rows = [json.loads(line) for line in samples.read_text().splitlines()]
        prompts = sum(row["doc"]["prompt"]["prompt_tokens"] for row in rows)
        assert telemetry["tokens_prefilled"] < 0.65 * prompts
        # What several prompts begin with is read once, but for beginnings that are shorter than what
        # a batch of its own would be worth.
        texts = [row["arguments"]["gen_args_0"]["arg_0"] for row in rows]
        once = tokens_read_once(tiny / "model", texts)
        assert once <= telemetry["tokens_prefilled"] <= once + WORTH_A_BATCH * len(rows)


@pytest.mark.slow(long=True)
@pytest.mark.parametrize("task", TASKS)
def test_long_context_task_runs_in_a_sweep(
    task: str, tiny: Path, forks: Forks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_data(task, tmp_path)
    monkeypatch.chdir(tmp_path)
    options = [f"--set=tasks={task}", "--set=gen_kwargs={max_gen_toks: 8}", "--set=limit=2"]
    options += ["--set=confirm_run_unsafe_code=true"]  # LongProc's scorers run what is written
    assert forks.sweep(tiny / "sweep.yaml", tmp_path / "out", *options) == 0, forks.said()
    runs = list((tmp_path / "out").glob("*/runs/*"))
    assert len(runs) == 2
    for run in runs:
        (file,) = run.glob("results_*.json")
        results = json.loads(file.read_text())
        metrics = {key.split(",")[0] for key in results["results"][task] if key.endswith(",none")}
        assert {name for name in metrics if not name.endswith("_stderr")} >= TASKS[task][3]
        assert results["n-samples"][task]["effective"] == 2
        (samples,) = run.glob("samples_*.jsonl")
        rows = [json.loads(line) for line in samples.read_text().splitlines()]
        assert all("truncated" in row for row in rows)
