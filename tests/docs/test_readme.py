"""The README's links and pictures work where it is shown alone."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
REPOSITORY = "https://github.com/OWNER/leval-harness/blob/main/"
RAW = "https://raw.githubusercontent.com/OWNER/leval-harness/main/"
LARGEST_PICTURE = 150_000


def test_readme_links_are_addresses():
    links = re.findall(r"\]\(([^)\s]+)\)", README)
    assert len(links) > 10
    assert [link for link in links if not link.startswith("https://")] == []


@pytest.mark.parametrize("start", [REPOSITORY, RAW])
def test_readme_addresses_lead_to_files(start: str):
    paths = [link.partition("#")[0] for link in re.findall(rf"{start}([^)\s]+)", README)]
    assert paths
    assert [path for path in paths if not (ROOT / path).is_file()] == []


def test_images_are_small():
    sizes = {path.name: path.stat().st_size for path in (ROOT / "docs" / "images").iterdir()}
    assert sizes
    assert max(sizes.values()) < LARGEST_PICTURE


def test_readme_states_limits_before_vllm():
    assert 0 < README.index("ot yet run on a GPU") < README.index("vllm serve")
