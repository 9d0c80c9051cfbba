"""Every YAML block of the documentation is what it says, and each sweep is planned."""

import json
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from docs_shell_blocks import BLOCK, PAGES, ROOT
from golden_access import SAMPLE

from leval_harness.sweep import ConfigError
from leval_harness.sweep.config import load_config
from leval_harness.sweep.executor import Capacity
from leval_harness.sweep.plan import plan
from leval_harness.sweep.preflight import check_runs
from resonance_vllm.core.spec import RopeRequest

EIGHT_GPUS = Capacity([str(number) for number in range(8)], 1, 8)
CONFIG = {
    "model_type": "llama", "max_position_embeddings": 8192, "rope_theta": 1e4, "hidden_size": 64,
    "num_attention_heads": 1, "num_hidden_layers": 2, "vocab_size": 4096, "intermediate_size": 128,
}  # fmt: skip
ELSEWHERE = {
    "docs/how-to/diff.md": "a workflow of GitHub",
    "CONTRIBUTING.md": "a task, which tests/contributing runs",
}
"""Page -> what its blocks are that this module does not know."""


class YamlBlock(NamedTuple):
    page: str
    line: int
    text: str

    @property
    def keys(self) -> set[str]:
        content = yaml.load(self.text, yaml.BaseLoader)
        return set(content) if isinstance(content, dict) else set()


def yaml_blocks() -> list[YamlBlock]:
    blocks = []
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        content = page.read_text("utf-8")
        for match in BLOCK.finditer(content):
            if match["kind"] in ("yaml", "yml"):
                line = content[: match.start()].count("\n") + 1
                blocks.append(YamlBlock(str(page.relative_to(ROOT)), line, match["text"]))
    return blocks


BLOCKS = [block for block in yaml_blocks() if block.page not in ELSEWHERE]
SWEEPS = [block for block in BLOCKS if "models" in block.keys]
OTHERS = [block for block in BLOCKS if "models" not in block.keys]


def name_of(block: YamlBlock) -> str:
    return f"{block.page}:{block.line}"


def test_every_block_is_of_a_known_kind() -> None:
    assert len(SWEEPS) >= 6
    assert {name_of(block) for block in OTHERS if block.keys != {"rope_parameters"}} == set()


@pytest.mark.parametrize("block", OTHERS, ids=name_of)
def test_rope_settings_are_read(block: YamlBlock) -> None:
    content = yaml.safe_load(block.text)
    assert RopeRequest.from_dict(content["rope_parameters"])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Folder of a checkpoint of 8,192 positions, whose weights are empty."""
    folder = tmp_path / "model"
    shutil.copytree(ROOT / "tests" / "golden" / "tokenizer", folder)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "model.safetensors").write_bytes(b"")
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Folder of documents as a reader would have it: the sample of L-Eval, and long reports."""
    folder = tmp_path / "data"
    shutil.copytree(SAMPLE, folder)
    report = json.dumps({"text": "The committee met again, and decided nothing. " * 8000})
    (folder / "govreport.jsonl").write_text(f"{report}\n" * 3)
    return folder


def with_what_is_at_hand(text: str, model: Path, data: Path) -> dict[str, Any]:
    """Return a sweep in which this machine's model and data are in the place of the reader's."""
    text = re.sub(r"\bDATA\b", str(data), text)
    content: dict[str, Any] = yaml.safe_load(text.replace("MODEL", str(model)))
    for settings in content["models"].values():
        if str(settings.get("backend", "")) != "local-completions":
            settings["path"] = str(model)
    return content


@pytest.mark.slow
@pytest.mark.parametrize("block", SWEEPS, ids=name_of)
def test_sweep_is_planned_and_nothing_is_missing(
    block: YamlBlock, model: Path, data: Path, tmp_path: Path
) -> None:
    sweeps = tmp_path / "sweeps"
    sweeps.mkdir()
    (tmp_path / "models").symlink_to(ROOT / "harness_configs" / "models")
    content = with_what_is_at_hand(block.text, model, data)
    (sweeps / "of-a-page.yaml").write_text(yaml.safe_dump(content))
    runs = plan(load_config(str(sweeps / "of-a-page.yaml")))
    assert runs
    check_runs(runs, EIGHT_GPUS)


def test_a_misspelt_key_in_a_page_is_seen(model: Path, data: Path) -> None:
    content = with_what_is_at_hand(SWEEPS[0].text.replace("baseline", "basline"), model, data)
    with pytest.raises(ConfigError, match="basline"):
        load_config(content)
