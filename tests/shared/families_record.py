"""What each library made of each family: `right`, or `refused: why`; and the page that says so.

The tests of a library call `settle` once a family. Run with FAMILIES_WRITE=1 they write
`record_<library>.json`, otherwise they compare with it. `python tests/shared/families_record.py`
writes the table of docs/reference/families.md from these.
"""

import json
import os
import re
from pathlib import Path

HERE = Path(__file__).parents[1] / "families"
PAGE = HERE.parents[1] / "docs" / "reference" / "families.md"
LIBRARIES = ("transformers", "vllm")
RIGHT = "right"
_BEGIN, _END = "<!-- table: begin -->", "<!-- table: end -->"


def folders() -> list[Path]:
    """Every folder with a config.json, those of LEVAL_FAMILIES included."""
    extra = os.environ.get("LEVAL_FAMILIES")
    roots = [HERE / "configs", *([Path(extra)] if extra else [])]
    return [file.parent for root in roots for file in sorted(root.glob("*/config.json"))]


def settle(library: str, family: Path, refused: str | None) -> None:
    """Note that a library is right on a family, or why it refuses; or compare with the note."""
    if family.parent != HERE / "configs":
        return
    # The same words for the next version.
    reason = re.sub(rf"({library}) \d[\w.+]*", r"\1", refused or "", flags=re.IGNORECASE)
    found = RIGHT if refused is None else f"refused: {reason}"
    if os.environ.get("FAMILIES_WRITE"):
        known = read(library) | {family.name: found}
        text = json.dumps(dict(sorted(known.items())), indent=1, ensure_ascii=False)
        _file(library).write_text(text + "\n", encoding="utf-8")
        return
    # A family that was just added has no note yet; the page says "not tried".
    noted = read(library).get(family.name, found)
    assert noted == found, f"{family.name} on {library}: run with FAMILIES_WRITE=1"


def read(library: str) -> dict[str, str]:
    """Family -> what was found, of one library."""
    file = _file(library)
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def table() -> str:
    """The page's table: the families that both libraries run, then those that one refuses."""
    records = [read(library) for library in LIBRARIES]
    both, rows = [], []
    for file in sorted((HERE / "configs").glob("*/config.json")):
        kind = json.loads(file.read_text(encoding="utf-8"))["model_type"]
        cells = [record.get(file.parent.name, "not tried").split(":")[0] for record in records]
        if cells == [RIGHT, RIGHT]:
            both.append(f"`{kind}`")
        else:
            rows.append(f"| `{kind}` ({file.parent.name}) | {' | '.join(cells)} |")
    head = [f"| model type | {' | '.join(LIBRARIES)} |", "|---|---|---|"]
    right = f"| {', '.join(dict.fromkeys(both))} | {RIGHT} | {RIGHT} |"
    return "\n".join([*head, right, *rows])


def page() -> str:
    """docs/reference/families.md with the table of the records."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n{table()}\n{_END}{after}"


def _file(library: str) -> Path:
    return HERE / f"record_{library}.json"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
