"""The printed table of frequencies; the values are compared in `tests/rope`."""

from golden_access import fine

SMALL = ("--theta", 10000, "--head-dim", 16, "--original", 256, "--factor", 4)


def test_the_printed_table(golden, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    golden("rope.txt", fine("rope", "--method", "yarn", "--resonance", *SMALL))
