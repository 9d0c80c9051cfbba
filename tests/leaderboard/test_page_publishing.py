"""A page is put into place by renaming: several may write it at once, and a reader finds one."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from leval_border.errors import UserError
from leval_harness.page import write
from leval_harness.page.write import FOLDERS, INDEX, MARKER


@pytest.fixture(autouse=True)
def small_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that all hold the page's title."""

    def make(analysis: object, out: Path, title: str, diffs: object) -> None:
        for name in (MARKER, INDEX, "page.css"):
            (out / name).write_text(title)
        for folder in FOLDERS:
            (out / folder).mkdir()
            (out / folder / title).write_text(title)

    monkeypatch.setattr(write, "_make", make)


def pages(out: Path) -> set[str]:
    return {path.name for path in out.iterdir()}


def test_pages_written_at_once_collide_nowhere(tmp_path: Path) -> None:
    out = tmp_path / "page"

    def many(number: int) -> None:
        for each in range(25):
            write.write_page(None, out, f"{number}-{each}")  # type: ignore[arg-type]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(many, range(4)))
    assert pages(out) == {MARKER, INDEX, "page.css", *FOLDERS}
    for folder in FOLDERS:
        (only,) = (out / folder).iterdir()
        assert only.read_text() == only.name


def test_what_else_lies_there_stays(tmp_path: Path) -> None:
    write.write_page(None, tmp_path, "one")  # type: ignore[arg-type]
    (tmp_path / "CNAME").write_text("example.org")
    write.write_page(None, tmp_path, "two")  # type: ignore[arg-type]
    assert pages(tmp_path) == {MARKER, INDEX, "page.css", "CNAME", *FOLDERS}
    assert (tmp_path / INDEX).read_text() == "two"


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(UserError, match="holds no leaderboard page"):
        write.write_page(None, tmp_path, "one")  # type: ignore[arg-type]
    assert pages(tmp_path) == {"thesis.tex"}
