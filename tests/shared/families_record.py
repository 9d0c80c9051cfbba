"""What each library makes of each family, as docs/reference/families.md says: right or refused."""

import json
import os
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1] / "families"
PAGE = HERE.parents[1] / "docs" / "reference" / "families.md"
LIBRARIES = ("transformers", "vllm")
RIGHT = "right"


def folders() -> list[Path]:
    """Every folder with a config.json, those of LEVAL_FAMILIES included."""
    extra = os.environ.get("LEVAL_FAMILIES")
    roots = [HERE / "configs", *([Path(extra)] if extra else [])]
    return [file.parent for root in roots for file in sorted(root.glob("*/config.json"))]


def every(nth, families):
    """Parameters of a test: every nth family, and the others in the long tests alone."""
    return [
        pytest.param(each, id=each.name, marks=pytest.mark.slow(long=True) if turn % nth else ())
        for turn, each in enumerate(families)
    ]


def said(library: str, family: Path) -> str | None:
    """What the page says of a family, by its folder's name or its type; None of one not there."""
    if family.parent != HERE / "configs":
        return None
    kind = json.loads((family / "config.json").read_text(encoding="utf-8"))["model_type"]
    found: dict[str, str] = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        runs = [run.strip() for run in line.strip("|").split("|")]
        if len(runs) == 1 + len(LIBRARIES):
            answer = runs[1 + LIBRARIES.index(library)]
            found |= dict.fromkeys(runs[0].split(", "), answer)
    return found.get(f"`{kind}` ({family.name})", found.get(f"`{kind}`"))


def settle(library: str, family: Path, refused: str | None) -> None:
    """Compare with the page that a library is right on a family, or why it refuses."""
    found = RIGHT if refused is None else "refused"
    assert said(library, family) in (None, found), f"{family.name} on {library}: {refused}"
