"""Real workers on pretended GPUs: how often a model is loaded, where, and by whom."""

import json
import threading
from pathlib import Path

import pytest
from forked_programs import Forks, forked

pytestmark = [pytest.mark.hf, pytest.mark.slow]
EIGHT_CELLS = """
models: {{tiny: {{path: {root}/model, backend: hf, dtype: float32{more}}}}}
methods: {{rope: {{rope_type: default}}}}
context_lengths: [128]
tasks: [{tasks}]
"""


def write(tiny: Path, folder: Path, more: str = "") -> Path:
    """A sweep of eight cells of one model: tasks that differ in their name."""
    names = []
    for number in range(8):
        task = (tiny / "tiny_gen.yaml").read_text().replace("tiny_gen", f"task_{number}", 1)
        names.append(str(folder / str(number) / "task.yaml"))
        (folder / str(number)).mkdir()
        Path(names[-1]).write_text(task)
    config = folder / "eight.yaml"
    config.write_text(EIGHT_CELLS.format(root=tiny, tasks=", ".join(names), more=more))
    return config


def loads(out: Path) -> dict[str, int]:
    """`CUDA_VISIBLE_DEVICES` of finished cells -> how often a model was loaded for them."""
    found: dict[str, int] = {}
    for path in out.glob("*/cells/*/cell.json"):
        devices = json.loads(path.read_text())["cuda_visible_devices"]
        log = (path.parent / "log.txt").read_text()
        found[devices] = found.get(devices, 0) + log.count("model ready after")
    return found


def test_one_model_fills_eight_gpus(tiny: Path, forks: Forks, tmp_path: Path) -> None:
    config, out = write(tiny, tmp_path), tmp_path / "out"
    eight = {"CUDA_VISIBLE_DEVICES": "0,1,2,3,GPU-a,GPU-b,6,7"}
    assert forks.sweep(config, out, **eight) == 0, forks.said()
    assert loads(out) == dict.fromkeys(eight["CUDA_VISIBLE_DEVICES"].split(","), 1)
    assert len(list(out.glob("eight/cells/*"))) == 8


@pytest.mark.parametrize(
    ("devices", "more", "expected"),
    [("", "", {"": 1}), ("5", "", {"5": 1}), ("4,5,6,7", ", gpus: 4", {"4,5,6,7": 1})],
    ids=["cpu", "one", "four together"],
)
def test_one_slot_is_one_load(
    tiny: Path, forks: Forks, tmp_path: Path, devices: str, more: str, expected: dict[str, int]
) -> None:
    config, out = write(tiny, tmp_path, more), tmp_path / "out"
    assert forks.sweep(config, out, CUDA_VISIBLE_DEVICES=devices) == 0, forks.said()
    assert loads(out) == expected


def test_two_starts_on_one_folder_share_the_cells(tiny: Path, forks: Forks, tmp_path: Path) -> None:
    """As on two machines: each cell once, both sides compute, and whoever ends last knows it."""
    config, out = write(tiny, tmp_path), tmp_path / "out"
    with forked(tmp_path, "other") as other:
        second = threading.Thread(target=other.sweep, args=(config, out))
        second.start()
        assert forks.sweep(config, out, CUDA_VISIBLE_DEVICES="") == 0, forks.said()
        second.join()
        said = [forks.said(), other.said()]
    assert len(list(out.glob("eight/cells/*"))) == 8
    assert sum(loads(out).values()) == 2
    assert [text.count("[8/8]") for text in said].count(0) <= 1
