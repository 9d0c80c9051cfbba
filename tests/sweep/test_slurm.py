"""The documented job scripts on a real SLURM of two nodes, one of whose jobs is killed."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from running_sweeps import claims, eight_runs, wait_for

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

    def run(*words: str) -> str:
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    subprocess.run([str(SCRIPT), "start", str(folder)], check=True, env=environment)
    try:
        wait_for(lambda: run("sinfo", "-h", "-o", "%T %D").split() == ["idle", "2"], 60)
        yield run
    finally:
        subprocess.run([str(SCRIPT), "stop", str(folder)], check=False, env=environment)


def job(number: int, config: Path, out: Path, script: Path) -> Path:
    """A job script of the page, with the resources of this machine."""
    text = re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)[number]
    text = re.sub(r" --gres=gpu:\d| --cpus-per-task=\d+", "", text).replace("1-8", "1-2")
    text = text.replace("my.yaml", str(config)).replace("SHARED/results", str(out))
    bin_folder = Path(sys.executable).parent
    script.write_text(text.replace("srun ", f"export PATH={bin_folder}:$PATH\nsrun "))
    return script


def test_one_node(tiny: Path, tmp_path: Path, slurm: Callable[..., str]) -> None:
    config, out = eight_runs(tiny, tmp_path, ", device: cpu"), tmp_path / "results"
    script = job(0, config, out, tmp_path / "job.sh")
    slurm("sbatch", "--wait", f"--output={tmp_path}/%j.txt", str(script))
    assert len(list(out.glob("eight/runs/*"))) == 8
    assert (out / "eight" / "table.md").is_file()


def test_an_array_of_two_of_which_one_is_killed(
    tiny: Path, tmp_path: Path, slurm: Callable[..., str]
) -> None:
    config, out = eight_runs(tiny, tmp_path, ", device: cpu"), tmp_path / "results"
    script = job(1, config, out, tmp_path / "job.sh")
    said = slurm("sbatch", "--parsable", f"--output={tmp_path}/%a.txt", str(script)).strip()
    wait_for(lambda: len({claim["sweep"] for claim in claims(out)}) == 2, 300)
    slurm("scancel", "--signal=KILL", f"{said}_2")
    wait_for(lambda: not slurm("squeue", "-h", "-j", said).strip(), 600)
    runs = [json.loads(path.read_text()) for path in out.glob("eight/runs/*/run.json")]
    assert len(runs) == 8, (tmp_path / "1.txt").read_text()
    assert not (out / "eight" / "failed").exists()
    assert not list(out.glob("eight/.work/cache/*"))
    assert (out / "eight" / "table.md").is_file(), "the one that ended last wrote it"
    assert "[8/8]" in (tmp_path / "1.txt").read_text()
