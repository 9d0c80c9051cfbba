"""Every shell block of the documentation runs or gives a reason why not; every option exists."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from docs_shell_blocks import PAGES, ROOT, Block, blocks

from leval_harness.cli.main import app

pytestmark = pytest.mark.slow

BLOCKS = blocks()
RUN = [block for block in BLOCKS if not block.why_not]


def test_blocks_are_found():
    assert len(PAGES) > 15
    assert len(BLOCKS) > 25
    assert len(RUN) > 5


@pytest.mark.parametrize("block", [b for b in BLOCKS if any(b.commands())], ids=lambda b: b.id)
def test_every_option_exists(block: Block):
    for words in block.commands():
        check(app, words)


def check(command: click.Command, words: list[str]) -> None:
    """Fail for a command or an option that does not exist."""
    context = click.Context(command)
    if isinstance(command, click.Group):
        if not words or words[0].startswith("-"):
            return
        assert words[0] in command.list_commands(context), f"{words[0]}: no such command"
        check(command.get_command(context, words[0]), words[1:])
        return
    if command.name == "lm-eval":  # lm-eval's own
        return
    known = {
        name for each in command.get_params(context) for name in (*each.opts, *each.secondary_opts)
    }
    used = {word.split("=")[0] for word in words if word.startswith("--") and word != "--"}
    assert used <= known, f"{command.name}: {used - known}"


@pytest.fixture(scope="module")
def model(tmp_path_factory, save_llama) -> Path:
    folder = save_llama(
        tmp_path_factory.mktemp("docs") / "model", vocab_size=4096, max_position_embeddings=8192
    )
    for file in (ROOT / "tests" / "golden" / "tokenizer").iterdir():
        shutil.copy(file, folder)
    return folder


@pytest.mark.slow(long=True)
@pytest.mark.parametrize("page", sorted({block.page for block in RUN}))
def test_blocks_of_a_page_run_one_after_the_other(page: str, tmp_path: Path, model: Path):
    """In an empty folder. MODEL is a small checkpoint."""
    text = "\n".join(block.text for block in RUN if block.page == page)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text.replace("MODEL", str(model))],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{text}\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}"


def test_the_site_builds_strictly(tmp_path: Path):
    """Every link, anchor and docstring of the site exists."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", tmp_path / "site"],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "WARNING" not in done.stderr
    assert (tmp_path / "site" / "tutorial" / "index.html").is_file()
    api = (tmp_path / "site" / "api" / "index.html").read_text("utf-8")
    assert "resonance_vllm.hf.apply_rope" in api
