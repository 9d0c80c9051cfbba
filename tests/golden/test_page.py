"""The leaderboard page's data, less versions, times and paths."""

import json
from functools import cache

import pytest
from golden_access import RESULTS, fine, inside

FOLDERS = {
    "sweep": ("sweep",),
    "against-yarn": ("sweep", "--baseline", "yarn"),
    "all": ("sweep", "perplexity", "posgen", "lm_eval"),
}
CHANGING = ("Versions", "Host", "Log", "Created")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The folder of a page, written once."""

    @cache
    def write(name):
        out = tmp_path_factory.mktemp("page") / "out"
        with inside(RESULTS):
            fine("page", *FOLDERS[name], "--out", out)
        return out

    return write


def received(path):
    """The name and the value that a script file hands to the page."""
    text = path.read_text(encoding="utf-8").strip()
    text = text.removeprefix("LEVAL.receive(").removesuffix(");")
    name, value = json.loads(f"[{text}]")
    return name, value


@pytest.mark.parametrize("name", FOLDERS)
def test_data_of_the_page(golden, name, page):
    out = page(name)
    found = dict(sorted(received(path) for path in (out / "data").glob("*.js")))
    board = found.pop("leaderboard")
    for run in board["runs"]:
        for key in CHANGING:
            run.pop(key, None)
    rows = {f"row {at}": row for at, row in enumerate(board.pop("rows"))}
    runs = {f"run {at}": run for at, run in enumerate(board.pop("runs"))}
    golden(f"page/{name}.json", board | rows | runs)
    golden(f"page/{name}-compared.json", {k: v for k, v in found.items() if k[0] == "c"})
    if name == "sweep":
        golden("page/samples.json", {k: v for k, v in found.items() if k[0] in "aq"})


def test_files_of_the_page(golden, page):
    out = page("all")
    files = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
    golden("page/files.txt", "\n".join(files) + "\n")
    golden("page/index.html", (out / "index.html").read_text(encoding="utf-8"))
