"""Tables of the frozen results."""

from golden_access import RESULTS, fine, inside, run


def table(*flags):
    with inside(RESULTS):
        ran = run("table", "posgen", *flags)
    assert ran.code == 0, ran.err
    return ran.out


def test_a_file_holds_what_is_printed(tmp_path):
    table("--out", tmp_path / "table.md")
    assert table() == table("--format", "md") == (tmp_path / "table.md").read_text(encoding="utf-8")


def test_posgen_runs(golden):
    with inside(RESULTS):
        golden("table-posgen_train.md", fine("posgen", "table", "posgen_train", "--format", "md"))
