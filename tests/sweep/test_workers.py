"""Real workers on pretended GPUs: how often a model is loaded, where, and by whom."""

import json
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from forked_programs import SWEEP, Forks, forked
from running_sweeps import eight_runs, result_files

pytestmark = [pytest.mark.slow]


def loads(out: Path) -> dict[str, int]:
    """`CUDA_VISIBLE_DEVICES` of finished runs -> how often a model was loaded for them."""
    found: dict[str, int] = {}
    for path in out.glob("*/runs/*/run.json"):
        devices = json.loads(path.read_text())["cuda_visible_devices"]
        log = (path.parent / "log.txt").read_text()
        found[devices] = found.get(devices, 0) + log.count("model ready after")
    return found


def test_one_model_fills_eight_gpus(tiny: Path, forks: Forks, tmp_path: Path) -> None:
    config, out = eight_runs(tiny, tmp_path), tmp_path / "out"
    eight = {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b,GPU-c,GPU-d,GPU-e,GPU-f,GPU-g,GPU-h"}
    assert forks.sweep(config, out, **eight) == 0, forks.said()
    every = dict.fromkeys(eight["CUDA_VISIBLE_DEVICES"].split(","), 1)
    found = loads(out)  # on a busy machine a worker may find that others have taken all runs
    assert len(found) >= 4
    assert found.items() <= every.items()
    assert len(list(out.glob("eight/runs/*"))) == 8


@pytest.mark.parametrize(
    ("devices", "more", "expected"),
    [("", "", {"": 1}), ("5", "", {"5": 1}), ("4,5,6,7", ", gpus: 4", {"4,5,6,7": 1})],
    ids=["cpu", "one", "four together"],
)
def test_one_slot_is_one_load(
    tiny: Path, forks: Forks, tmp_path: Path, devices: str, more: str, expected: dict[str, int]
) -> None:
    config, out = eight_runs(tiny, tmp_path, more), tmp_path / "out"
    assert forks.sweep(config, out, CUDA_VISIBLE_DEVICES=devices) == 0, forks.said()
    assert loads(out) == expected


def test_two_starts_on_one_folder_share_the_runs(tiny: Path, forks: Forks, tmp_path: Path) -> None:
    """As on two machines: each run once, both sides compute, and whoever ends last knows it."""
    config, out = eight_runs(tiny, tmp_path), tmp_path / "out"
    with forked(tmp_path, "other") as other:
        second = threading.Thread(target=other.sweep, args=(config, out))
        second.start()
        assert forks.sweep(config, out, CUDA_VISIBLE_DEVICES="") == 0, forks.said()
        second.join()
        said = [forks.said(), other.said()]
    assert len(list(out.glob("eight/runs/*"))) == 8
    assert sum(loads(out).values()) in (1, 2)  # the second may find nothing left
    assert [text.count("[8/8]") for text in said].count(0) <= 1


REFUSING = """
from leval_harness.backends import CannotSwapError, hf
given = hf.HF.set_rope
def refuse(lm, rope, *more):
    if {refused}:
        raise CannotSwapError("not this one")
    given(lm, rope, *more)
hf.HF.set_rope = refuse
"""
METHODS = {
    "shipped": None,
    "rope": {"rope_type": "default"},
    "yarn": {"rope_type": "yarn", "factor": 2},
    "resonance_yarn": {"rope_type": "resonance_yarn", "factor": 2},
}


def answers(out: Path) -> dict[tuple[str, int], list[Any]]:
    """Method and length -> the answers of the samples, log-likelihoods whole."""
    found = {}
    for path in out.glob("*/runs/*/run.json"):
        run = json.loads(path.read_text())
        (samples,) = path.parent.glob("samples_*.jsonl")
        rows = [json.loads(line)["resps"] for line in samples.read_text().splitlines()]
        found[run["method"]["name"], run["context_length"]] = rows
    return found


def choices(tiny: Path, folder: Path) -> Path:
    """The tiny task as one of multiple choice, which scores documents."""
    task = (tiny / "tiny_gen.yaml").read_text()
    task = task.replace("output_type: generate_until", "output_type: multiple_choice")
    generation = "generation_kwargs: {until: [], max_gen_toks: 4}"
    task = task.replace(generation, "doc_to_choice: ['0', '2']")
    task = task.replace('doc_to_target: "{{a}}"', "doc_to_target: 0")
    path = folder / "choice.yaml"
    path.write_text(task.replace("exact_match", "acc").replace("tiny_gen", "choice", 1))
    return path


@pytest.mark.parametrize(
    "backend", [pytest.param("hf", marks=pytest.mark.slow(long=True)), "hf-long"]
)
def test_shared_instance_reads_as_each_run_alone(
    tiny: Path, forks: Forks, tmp_path: Path, backend: str
) -> None:
    """Bit for bit: the samples of lm-eval hold every digit of a log-likelihood.

    Alone a run also is where its rotation cannot be swapped: it gets a model instance of its own then.
    """
    base = [f"--set=tasks={choices(tiny, tmp_path)}", "--set=context_lengths=[64, 128]"]
    base += [f"--set=models.tiny.backend={backend}"]
    every = f"--set=methods={json.dumps(METHODS)}"
    together, alone = tmp_path / "together", tmp_path / "alone"
    assert forks.sweep(tiny / "sweep.yaml", together, *base, every) == 0, forks.said()
    assert sum(loads(together).values()) == 1
    words = ("sweep", tiny / "sweep.yaml", "--out", alone, *base, every)
    ended = forks.python(REFUSING.format(refused="True") + SWEEP, *words)
    assert ended.returncode == 0, ended.stderr
    assert sum(loads(alone).values()) == 8  # that of the group is in no log of a finished run
    found = answers(together)
    assert len(found) == 8
    assert found == answers(alone)
    assert found["rope", 128] != found["yarn", 128]


def test_unswappable_method_gets_its_own_instance(tiny: Path, forks: Forks, tmp_path: Path) -> None:
    words = ("sweep", tiny / "sweep.yaml", "--out", tmp_path, "--set=context_lengths=[64, 128]")
    one = "rope and rope['rope_type'] == 'default'"  # the second of four
    every = f"--set=methods={json.dumps(METHODS)}"
    ended = forks.python(REFUSING.format(refused=one) + SWEEP, *words, every)
    assert ended.returncode == 0, ended.stderr
    assert len(list(tmp_path.glob("*/runs/*"))) == 8
    assert sum(loads(tmp_path).values()) == 1 + 2


@pytest.mark.slow(long=True)
@pytest.mark.engine("vllm")
def test_shared_vllm_engine_reads_as_each_run_alone(
    tiny: Path, smollm2: Path, tmp_path: Path
) -> None:
    """Without forks, of which an engine cannot start its own processes."""
    args = {"enforce_eager": True, "kv_cache_memory_bytes": 200_000_000}
    model = {"path": str(smollm2), "backend": "vllm", "dtype": "bfloat16", "args": args}
    base = [f"--set=models={json.dumps({'small': model})}", "--set=context_lengths=[512]"]
    base += [f"--set=tasks={choices(tiny, tmp_path)}"]

    def sweep(out: Path, methods: dict[str, Any], name: str) -> dict[tuple[str, int], list[Any]]:
        words = [str(tiny / "sweep.yaml"), "--out", str(out), *base, f"--set=name={name}"]
        words += [f"--set=methods={json.dumps(methods)}", f"--set=baseline={next(iter(methods))}"]
        command = [sys.executable, "-m", "leval_harness", "sweep", *words]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
        return answers(out)

    together = sweep(tmp_path / "together", METHODS, "all")
    assert sum(loads(tmp_path / "together").values()) == 1
    assert len(together) == 4
    for name in ("shipped", "resonance_yarn"):
        alone = sweep(tmp_path / name, {name: METHODS[name]}, name)
        assert together[name, 512] == alone[name, 512]


def losses(out: Path, documents: int) -> dict[str, bytes]:
    """Read and file -> losses of the runs of so many documents."""
    found = {}
    for path in out.glob("*/runs/*/losses_*.npy"):
        run = json.loads((path.parent / "run.json").read_text())
        if run["metadata"]["num_docs"] == documents:
            found[path.name] = path.read_bytes()
    return found


@pytest.mark.slow(long=True)
def test_run_of_more_documents_reuses_losses(tiny: Path, forks: Forks, tmp_path: Path) -> None:
    """Of method and reference alike: one text more is all that is read."""
    options = ["--set=tasks=effective_context_pydocs", "--set=metadata.window=64"]
    options += ["--set=methods={yarn: {rope_type: yarn, factor: 2}}", "--set=baseline=yarn"]
    grown, fresh = tmp_path / "grown", tmp_path / "fresh"
    for out, documents in ((grown, 2), (grown, 3), (fresh, 3)):
        more = f"--set=metadata.num_docs={documents}"
        assert forks.sweep(tiny / "sweep.yaml", out, *options, more) == 0, forks.said()
    assert losses(grown, 3).keys() == losses(fresh, 3).keys()
    assert losses(grown, 3) == losses(fresh, 3)
    assert len(losses(fresh, 3)) == 6
    found = []
    for path in grown.glob("*/runs/*/run.json"):
        if json.loads(path.read_text())["metadata"]["num_docs"] == 3:
            log = (path.parent / "log.txt").read_text()
            found += re.findall(r"(\d+ of \d+) answers are there already", log)
    assert sorted(found) == ["2 of 3", "6 of 9"], "full reads and windows"


SLOW_PARTS = """
import os, time
from leval_harness.sweep import parts_of_run
finish = parts_of_run.PartsOfRun.finish
def finish_slowly(parts, number, counts):
    time.sleep(0.5)
    with open(os.environ["RECORD"], "a") as record:
        record.write(f"{parts.claim.run}+{number} {os.getpid()}\\n")
    finish(parts, number, counts)
parts_of_run.PartsOfRun.finish = finish_slowly
"""
DIVIDED = {
    "losses": ["--set=tasks=effective_context_pydocs", "--set=metadata={window: 64, num_docs: 6}"],
    "answers": [
        "--set=tasks=[{tasks: [leval_closed_quality, leval_closed_toefl, leval_closed_coursera]}]",
        "--set=metadata.data_dir=sample",
        "--set=gen_kwargs={max_gen_toks: 4}",
    ],
}


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(task, marks=() if task == "losses" else pytest.mark.slow(long=True))
        for task in DIVIDED
    ],
)
def test_divided_run_equals_that_of_one_worker(
    tiny: Path, forks: Forks, tmp_path: Path, task: str
) -> None:
    """Bit for bit, whoever computed which documents."""
    base = ["--set=models.tiny.backend=hf-long", "--set=context_lengths=[1024]", *DIVIDED[task]]
    base += ["--set=methods={yarn: {rope_type: yarn, factor: 8}}", "--set=baseline=yarn"]
    alone, together, record = tmp_path / "alone", tmp_path / "together", tmp_path / "record"
    assert forks.sweep(tiny / "sweep.yaml", alone, *base) == 0, forks.said()
    words = ("sweep", tiny / "sweep.yaml", "--out", together, *base, "--jobs", "3")
    ended = forks.python(SLOW_PARTS + SWEEP, *words, RECORD=str(record))
    assert ended.returncode == 0, ended.stderr
    parts, workers = zip(*map(str.split, record.read_text().splitlines()), strict=True)
    assert len(parts) == len(set(parts)), "no part is computed twice"
    assert len(set(workers)) == 3
    assert result_files(alone) == result_files(together)
    assert result_files(alone)
    assert not list(together.glob("*/.work/parts/*"))
