"""A page is put into place by renaming: a reader finds a whole one."""

from pathlib import Path

import pytest

from leval_harness.page import write
from leval_harness.page.write import FOLDERS, INDEX, MARKER
from resonance_vllm.errors import UserError


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


def test_what_else_lies_there_stays(tmp_path: Path) -> None:
    write.write_page(None, tmp_path, "one")  # type: ignore[arg-type]
    (tmp_path / "CNAME").write_text("example.org")
    write.write_page(None, tmp_path, "two")  # type: ignore[arg-type]
    assert pages(tmp_path) == {MARKER, INDEX, "page.css", "CNAME", *FOLDERS}
    assert (tmp_path / INDEX).read_text() == "two"


def test_a_page_that_fails_leaves_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write.write_page(None, tmp_path, "one")  # type: ignore[arg-type]

    def fail(analysis: object, out: Path, title: str, diffs: object) -> None:
        (out / INDEX).write_text(title)
        raise OSError("no space left")

    monkeypatch.setattr(write, "_make", fail)
    with pytest.raises(OSError, match="no space"):
        write.write_page(None, tmp_path, "two")  # type: ignore[arg-type]
    assert pages(tmp_path) == {MARKER, INDEX, "page.css", *FOLDERS}
    assert (tmp_path / INDEX).read_text() == "one"


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(UserError, match="holds no leaderboard page"):
        write.write_page(None, tmp_path, "one")  # type: ignore[arg-type]
    assert pages(tmp_path) == {"thesis.tex"}
