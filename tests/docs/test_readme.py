"""Documents are short, and the README's links and pictures work where it is shown alone."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
REPOSITORY = "https://github.com/OWNER/leval-harness/blob/main/"
RAW = "https://raw.githubusercontent.com/OWNER/leval-harness/main/"
LARGEST_PICTURE = 150_000


@pytest.mark.parametrize(
    ("pages", "most"),
    [
        ("README.md", 700),
        ("CONTRIBUTING.md", 700),
        ("docs/measured.md", 2_000),
        ("docs/reference/*.md", 11_000),
        ("docs/**/*.md", 22_000),
    ],
)
def test_documents_have_few_words(pages: str, most: int):
    found = list(ROOT.glob(pages))
    assert 0 < sum(len(page.read_text("utf-8").split()) for page in found) <= most


def test_every_link_is_an_address():
    links = re.findall(r"\]\(([^)\s]+)\)", README)
    assert len(links) > 10
    assert [link for link in links if not link.startswith("https://")] == []


@pytest.mark.parametrize("start", [REPOSITORY, RAW])
def test_addresses_of_the_repository_lead_to_its_files(start: str):
    paths = [link.partition("#")[0] for link in re.findall(rf"{start}([^)\s]+)", README)]
    assert paths
    assert [path for path in paths if not (ROOT / path).is_file()] == []


def test_pictures_are_small():
    sizes = {each.name: each.stat().st_size for each in (ROOT / "docs" / "images").iterdir()}
    assert sizes
    assert max(sizes.values()) < LARGEST_PICTURE


def test_limits_stand_before_the_recipe_for_vllm():
    assert 0 < README.index("ot yet run on a GPU") < README.index("vllm serve")
