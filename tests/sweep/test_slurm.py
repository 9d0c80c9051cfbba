"""The documented job scripts on a real SLURM of two nodes, one of whose jobs is killed."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from forked_programs import Forks
from running_sweeps import claims, eight_runs, result_files, wait_for

pytestmark = [pytest.mark.slow(long=True), pytest.mark.engine("slurm")]
SCRIPT = Path(__file__).with_name("local_slurm.sh")
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "cluster.md"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """Runs a command of SLURM, whose daemons live as long as the module."""
    folder = tmp_path_factory.mktemp("slurm")
    for parent in (folder, *folder.parents[:3]):
        parent.chmod(0o755)  # munge has a user of its own
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    environment.pop("CUDA_VISIBLE_DEVICES", None)  # a job would inherit it

    def run(*words: str, **variables: str) -> str:
        there = {**environment, **variables}
        return subprocess.run(words, env=there, capture_output=True, text=True, check=True).stdout

    subprocess.run([str(SCRIPT), "start", str(folder)], check=True, env=environment)
    try:
        wait_for(lambda: run("sinfo", "-h", "-o", "%T %D").split() == ["idle", "2"], 60)
        yield run
    finally:
        subprocess.run([str(SCRIPT), "stop", str(folder)], check=False, env=environment)


def job(number: int, config: Path, out: Path, script: Path) -> Path:
    """A job script of the page, with the resources of this machine."""
    text = re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)[number]
    text = re.sub(r" --cpus-per-task=\d+", "", text).replace("1-8", "1-2").replace("gpu:8", "gpu:2")
    text = text.replace("my.yaml", str(config)).replace("SHARED/results", str(out))
    bin_folder = Path(sys.executable).parent
    script.write_text(text.replace("srun ", f"export PATH={bin_folder}:$PATH\nsrun "))
    return script


def finished_runs(out: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in out.glob("*/runs/*/run.json")]


def test_one_node(tiny: Path, tmp_path: Path, slurm: Callable[..., str]) -> None:
    """Two workers, each with one of the GPUs that SLURM gave to the job."""
    config, out = eight_runs(tiny, tmp_path), tmp_path / "results"
    script = job(0, config, out, tmp_path / "job.sh")
    slurm("sbatch", "--wait", f"--output={tmp_path}/%j.txt", str(script))
    runs = finished_runs(out)
    assert len(runs) == 8
    assert {run["cuda_visible_devices"] for run in runs} == {"0", "1"}
    assert (out / "eight" / "table.md").is_file()


DIVIDED = """
models: {{tiny: {{path: {root}/model, backend: hf-long, dtype: float32}}}}
methods: {{yarn: {{rope_type: yarn, factor: 8}}}}
context_lengths: [512]
tasks: [ppl_pydocs, {root}/tiny_gen.yaml]
metadata: {{num_docs: 6, max_tokens: 1024}}
"""
# Python runs this when it starts. The first two parts of a run end at once, the others when told.
HELD_PARTS = """
import os, time
from pathlib import Path
from leval_harness.sweep.parts_of_run import PartsOfRun
finish = PartsOfRun.finish
def finish_when_told(parts, number, counts):
    while number > 1 and not Path(os.environ["GO_ON"]).exists():
        time.sleep(0.1)
    finish(parts, number, counts)
    with open(os.environ["RECORD"], "a") as record:
        record.write(f"{parts.claim.run}+{number}\\n")
PartsOfRun.finish = finish_when_told
"""


def test_array_divides_a_run_and_loses_nothing(
    tiny: Path, tmp_path: Path, slurm: Callable[..., str], forks: Forks
) -> None:
    """One of two jobs is killed and requeued; results are bitwise identical to those of one worker."""
    config, out, alone = tmp_path / "my.yaml", tmp_path / "results", tmp_path / "alone"
    config.write_text(DIVIDED.format(root=tiny))
    assert forks.sweep(config, alone) == 0, forks.said()
    (tmp_path / "sitecustomize.py").write_text(HELD_PARTS)
    go_on, record = tmp_path / "go on", tmp_path / "record"
    variables = {"GO_ON": str(go_on), "RECORD": str(record)}
    variables["PYTHONPATH"] = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"

    def owners() -> set[str]:
        return {claim["sweep"] for claim in claims(out)}

    def names_of_claims() -> set[str]:
        return {path.name for path in out.glob("my/.work/claims/*+[2-9].*")}

    def squeue(of_job: str) -> str:
        return slurm("squeue", "-h", "-j", of_job, "-o", "%T").strip()

    script = job(1, config, out, tmp_path / "job.sh")
    words = ("sbatch", "--parsable", "--open-mode=append", f"--output={tmp_path}/%a.txt")
    array = slurm(*words, str(script), **variables).strip()
    wait_for(lambda: len(owners()) == 2 and len(names_of_claims()) == 2, 300)
    first_owners = owners()
    slurm("scancel", "--signal=KILL", f"{array}_2")
    wait_for(lambda: "RUNNING" not in squeue(f"{array}_2"), 60)
    slurm("scontrol", "requeue", f"{array}_2")
    slurm("scontrol", "update", f"JobId={array}_2", "StartTime=now")
    wait_for(lambda: owners() - first_owners and len(names_of_claims()) == 2, 300)
    go_on.touch()
    wait_for(lambda: not squeue(array), 300)
    said = "".join((tmp_path / f"{number}.txt").read_text() for number in (1, 2))
    assert result_files(out) == result_files(alone), said
    assert len(result_files(alone)) > len(finished_runs(out)) == 2
    parts = record.read_text().split()
    assert len(parts) == len(set(parts)) == 6 + 1, "finished parts are not computed again"
    assert not (out / "my" / "failed").exists()
    assert not list(out.glob("my/.work/[!l]*/*")), "only the log of the killed worker is left"
    assert (out / "my" / "table.md").is_file(), "the one that ended last wrote it"
    assert "[2/2]" in said
