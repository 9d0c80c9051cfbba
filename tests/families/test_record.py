"""The page of families says what the tests found."""

from families_record import HERE, LIBRARIES, PAGE, page, read


def test_the_page_is_made_from_the_records():
    written = PAGE.read_text(encoding="utf-8")
    assert written == page(), "run python tests/shared/families_record.py"


def test_every_record_is_of_a_family_that_is_there():
    there = {file.parent.name for file in (HERE / "configs").glob("*/config.json")}
    for library in LIBRARIES:
        assert set(read(library)) <= there
