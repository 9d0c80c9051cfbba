"""The page opens from disk in a browser, narrow and wide, and lets no model output run."""

import json
import re
import shutil
from html import escape, unescape

import pytest
from axe import violations
from block_frames import compared_of
from browser import chromium, show_as

from leval_harness.report.effective_context import compared_frame
from leval_harness.report.effective_summary import summaries
from leval_harness.report.page import MARKER, Bar, write_page
from leval_harness.report.verdict import TERMS, verdicts
from leval_harness.results.load import load_results

SIZES = [(390, False), (768, False), (1440, False), (1440, True)]
# The line separator ends no line of a samples file; lm-eval writes it as it is.
EVIL = "<script>window.pwned=1</script></td><img src=x onerror=window.pwned=1>\u2028"


@pytest.fixture(scope="module")
def answered(sweep, tmp_path_factory):
    """The sweep with HTML in what a model wrote, and in a question."""
    folder = shutil.copytree(sweep, tmp_path_factory.mktemp("answered") / "sweep")
    for path in folder.rglob("samples_leval_closed_toefl_*.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for row in rows:
            row["resps"] = [[EVIL]]
            row["doc"]["question"] = EVIL
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        path.write_text("".join(lines), encoding="utf-8")
    return load_results(folder)


@pytest.fixture(scope="module")
def page(answered, tmp_path_factory):
    return write_page(
        answered, compared_frame(answered), tmp_path_factory.mktemp("page") / "p", "T"
    )


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """One browser for all tests of this file: to start it takes longer than to open a page."""
    with chromium(tmp_path_factory.mktemp("browser"), 1440) as started:
        yield started


def visit(driver, path, width=1440, dark=False):
    from selenium.webdriver.support.ui import WebDriverWait

    show_as(driver, width, dark=dark)
    driver.get(f"file://{path}")
    WebDriverWait(driver, 20).until(
        lambda d: d.execute_script("return document.body.classList.contains('ready')")
    )
    return driver


def questions_of_gsm(page):
    head = "<h1>GSM, SmolLM2-135M</h1>"
    (found,) = [p for p in page.parent.glob("questions-*.html") if head in p.read_text("utf-8")]
    return found


def test_page_holds_verdict_tables_and_numbers(page, answered):
    text = page.read_text(encoding="utf-8")
    compared = compared_frame(answered)
    for verdict in verdicts(compared):
        for sentence in verdict.sentences:
            assert escape(sentence.split("`")[0], quote=False) in unescape(text).replace(
                "&", "&amp;"
            )
    assert all(text.count(f"<dt>{term}</dt>") == 1 for term in TERMS)
    assert (page.parent / "numbers.csv").read_text().count("\n") == len(compared) + 1
    for source in re.findall(r'(?:src|href)="([^"#]+)"', text):
        assert not source.startswith("http")
        assert (page.parent / source).is_file(), source


# Long lengths are at the right end of a figure, and there the loss rises.
FIGURES_WITHOUT_THEIR_END = """
    const right = element => element.getBoundingClientRect().right;
    const frames = [...document.querySelectorAll('.picture')].filter(frame => frame.offsetParent);
    return frames.filter(frame => right(frame.firstChild) > right(frame) + 1).length;
"""


@pytest.mark.engine("browser")
@pytest.mark.parametrize(("width", "dark"), SIZES)
def test_page_fits_every_width(driver, page, width, dark):
    driver.get_log("browser")  # without what other tests left
    for path in (page, page.parent / "questions-000.html"):
        visit(driver, path, width, dark)
        sizes = "return [document.documentElement.scrollWidth, innerWidth]"
        wide, window = driver.execute_script(sizes)
        assert wide <= window == width
        assert driver.execute_script("return document.documentElement.className") == (
            "dark" if dark else ""
        )
        images = "return [...document.images].every(i => i.complete && i.naturalWidth > 0)"
        assert driver.execute_script(images)
        assert driver.execute_script(FIGURES_WITHOUT_THEIR_END) == 0
        assert driver.get_log("browser") == []


@pytest.mark.engine("browser")
def test_page_runs_no_model_output(driver, page):
    for path in sorted(page.parent.glob("*.html")):
        visit(driver, path)
        assert not driver.execute_script("return 'pwned' in window"), path
        assert driver.find_elements("css selector", "img[src='x']") == []
    assert any("onerror=window.pwned" in p.read_text() for p in page.parent.glob("questions-*"))
    # the policy holds even where a text was not escaped
    run = "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=window.pwned=1>')"
    driver.execute_script(run)
    visit_again = "return new Promise(done => setTimeout(() => done('pwned' in window), 500))"
    assert not driver.execute_script(visit_again)


@pytest.mark.engine("browser")
def test_page_tables_sort_filter_and_export(driver, page):
    visit(driver, page)
    column = """
        const table = [...document.querySelectorAll('table.sortable')].find(
          t => t.textContent.includes('TOEFL'));
        const at = [...table.tHead.rows[0].cells].findIndex(c => c.textContent.includes('TOEFL'));
        if (arguments[0]) table.tHead.rows[0].cells[at].click();
        return [...table.tBodies[0].rows].map(row => row.cells[at].textContent);
    """
    before = driver.execute_script(column, False)
    driver.execute_script(column, True)
    after = driver.execute_script(column, False)
    assert sorted(before) == sorted(after)
    values = [float(re.match(r"[\d.]+", each)[0]) for each in after if re.match(r"\d+\.", each)]
    assert values == sorted(values)
    assert values != [float(re.match(r"[\d.]+", e)[0]) for e in before if re.match(r"\d+\.", e)]
    labels = [each.text for each in driver.find_elements("css selector", "button.dt-button")]
    assert {"Copy", "CSV"} <= set(labels)
    visit(driver, questions_of_gsm(page))
    rows = "return document.querySelectorAll('tbody tr').length"
    everything = driver.execute_script(rows)
    driver.find_element("css selector", ".dt-search input").send_keys("no such text at all")
    assert driver.execute_script("return document.querySelector('tbody').textContent") != ""
    assert driver.execute_script(rows) == 1 < everything  # a line that says that nothing matches


@pytest.mark.engine("browser")
def test_page_prints_what_is_folded_and_no_buttons(driver, page):
    visit(driver, page)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    shown = "return [...document.querySelectorAll('button.dt-button')].some(b => b.offsetParent)"
    assert not driver.execute_script(shown)
    folded = "return [...document.querySelectorAll('details > *')].every(e => e.offsetHeight)"
    assert driver.execute_script(folded)


def test_page_answers_are_side_by_side(page):
    text = questions_of_gsm(page).read_text(encoding="utf-8")
    heads = re.findall(r'<th scope="col">([^<]*)</th>', text)
    methods = ["rope at 512", "yarn at 512", "resonance_yarn at 512"]
    assert heads == ["Document", "Question", "Expected", *methods]
    row = re.search(r"<tbody>\s*<tr>(.*?)</tr>", text, re.S)[1]
    assert row.count("<td") == len(heads)
    assert re.search(r'class="(right|wrong)"', row)


def test_page_of_several_models_has_contents_and_ranking(page):
    text = page.read_text(encoding="utf-8")
    assert text.count('<section id="model-') == len(re.findall(r'<a href="#model-', text)) > 1
    assert ">Across models</h2>" in text


@pytest.fixture(scope="module")
def effective_page(real_runs, tmp_path_factory):
    """A page with effective context length, of runs that leave something undecided."""
    results = load_results(real_runs)
    out = tmp_path_factory.mktemp("effective") / "p"
    return write_page(results, compared_frame(results), out, title="A <b>")


@pytest.mark.slow
def test_page_begins_with_the_answer(effective_page):
    text = effective_page.read_text(encoding="utf-8")
    assert "A &lt;b&gt;" in text
    parts = [
        "Native context length 8,192 tokens; 3 documents of 1,024 tokens", "Recommended:",
        '<table class="answer"', "figures/00-effective.svg", '<ul class="sentences">', "<details",
    ]  # fmt: skip
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert re.search(r"<code>leval-harness sweep [^<]*--set [^<]*num_docs=\d+</code>", text)
    assert re.search(r'alt="Loss increase over [^"]*: rope ≥ 1,024 \(longest measured\)', text)


@pytest.mark.slow
def test_page_says_what_was_run(effective_page):
    text = unescape(effective_page.read_text(encoding="utf-8"))
    for part in ("Tokens/s", "Peak memory, GiB", "float32", "transformers 5.", "Hardware"):
        assert part in text.partition("What was run</h3>")[2]


@pytest.mark.engine("browser")
@pytest.mark.parametrize("dark", [False, True])
def test_page_has_no_accessibility_violation(driver, page, effective_page, dark):
    for path in (page, page.parent / "questions-000.html", effective_page):
        visit(driver, path, dark=dark)
        open_details = "document.querySelectorAll('details').forEach(d => d.open = true)"
        driver.execute_script(open_details)
        assert violations(driver) == [], path


@pytest.mark.engine("browser")
def test_page_is_readable_without_scripts(driver, effective_page):
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        driver.get(f"file://{effective_page}")
        text = driver.find_element("tag name", "body").text
    finally:
        driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert "Recommended: rope up to 1,024 tokens." in text


@pytest.mark.parametrize(
    ("method", "width", "native", "is_open"),
    [("rope", 86.4, 72.7, False), ("yarn", 100.0, 72.7, True)],
)
def test_bar_of_a_length(method, width, native, is_open):
    (answer,) = summaries(compared_of({"rope": "rope", "yarn": "yarn"}))
    (length,) = [each.length for each in answer.methods if each.method == method]
    bar = Bar.of_length(length, answer.longest)
    assert (round(bar.width, 1), round(bar.native, 1), bar.is_open) == (width, native, is_open)


def test_page_replaces_a_page_and_nothing_else(page, sweep, tmp_path):
    results = load_results(sweep)
    compared = compared_frame(results)[:20]
    out = shutil.copytree(page.parent, tmp_path / "p")
    (out / "old.svg").write_text("")
    write_page(results, compared, out, "T")
    assert not (out / "old.svg").exists()
    assert (out / MARKER).is_file()
    assert [each.name for each in tmp_path.iterdir()] == ["p"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("")
    with pytest.raises(ValueError, match="not empty and holds no leaderboard page"):
        write_page(results, compared, tmp_path / "other", "T")
    assert [each.name for each in (tmp_path / "other").iterdir()] == ["thesis.tex"]
