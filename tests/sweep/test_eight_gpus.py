"""The sweep of docs/how-to/eight-gpus.md: planned for eight GPUs from a folder of configs alone."""

import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from leval_harness.cli.main import app
from leval_harness.sweep.config import load_config
from leval_harness.sweep.executor import capacity_here
from leval_harness.sweep.plan import plan
from leval_harness.sweep.preflight import checkpoint_problems, generation_problems, gpu_problems

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "eight-gpus.md").read_text("utf-8")
LLAMA_70B = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8192,
    "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
    "num_key_value_heads": 8, "vocab_size": 128256, "rope_theta": 500000.0, "dtype": "bfloat16",
    "max_position_embeddings": 131072, "tie_word_embeddings": False,
}  # fmt: skip
GPUS = "0,1,2,3,4,5,6,7"


@pytest.fixture
def big(tmp_path: Path) -> Path:
    """Folder with the page's YAML and a checkpoint that has no weights."""
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
    assert len(blocks) == 1
    (tmp_path / "big.yaml").write_text(blocks[0])
    shutil.copytree(ROOT / "tests" / "golden" / "tokenizer", tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text(json.dumps(LLAMA_70B))
    return tmp_path


def settings(folder: Path, *more: str) -> list[str]:
    return [f"models.big.path={folder / 'model'}", *more]


@pytest.mark.slow(long=True)
def test_page_shows_its_own_dry_run(big: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", GPUS)
    words = [
        "sweep",
        str(big / "big.yaml"),
        "--dry-run",
        "--device-tflops",
        "300",
        "--device-gb",
        "80",
    ]
    for setting in settings(big, "models.big.args.load_format=dummy"):
        words += ["--set", setting]
    result = CliRunner().invoke(app, [*words, "--out", str(big / "out")])
    assert result.exception is None, result.output
    shown = re.search(r"\$ CUDA_VISIBLE_DEVICES=[^\n]*\n(.*?)```", PAGE, re.S)
    assert shown is not None
    printed = result.output.split("Group 1", 1)[1]
    assert f"Group 1{printed}".startswith(shown[1].rstrip())
    assert "4 runs, 4 to do" in printed
    titles = re.findall(r"to do  big \| (\S+) @ (\d+)", printed)
    assert titles == [
        ("reference", "131072"), ("unmodified", "196608"), ("yarn", "196608"),
        ("resonance_yarn", "196608"),
    ]  # fmt: skip
    assert "needs about" not in printed
    assert not (big / "out").exists()


def test_all_mistakes_of_the_plan_at_once(big: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    wrong = "gen_kwargs.temprature=0"
    runs = plan(load_config(str(big / "big.yaml"), settings(big, wrong)))
    (gpus,) = gpu_problems(runs, capacity_here("local", 1))
    assert "big takes 8 GPUs and 4 are visible on one machine" in gpus
    (weights,) = checkpoint_problems(runs)
    assert "to plan without them: --set models.big.args.load_format=dummy" in weights
    assert "temperature" in next(iter(generation_problems(runs)))
    dummy = "models.big.args.load_format=dummy"
    planned = plan(load_config(str(big / "big.yaml"), settings(big, dummy)))
    assert list(checkpoint_problems(planned)) == []
