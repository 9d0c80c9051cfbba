"""The page opens from disk in a browser, narrow and wide, and lets no model output run."""

import json
import re
import shutil

import pytest
from browser import chromium

from leval_harness.report.effective_context import compared_frame
from leval_harness.report.page import MARKER, write_page
from leval_harness.report.verdict import TERMS, said
from leval_harness.results.load import load_results

SIZES = [(390, False), (1440, False), (1440, True)]
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
def opened(page, tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("browser"), 1440) as driver:
        yield driver, page


def visit(driver, path):
    from selenium.webdriver.support.ui import WebDriverWait

    driver.get(f"file://{path}")
    WebDriverWait(driver, 20).until(
        lambda d: d.execute_script("return document.body.classList.contains('ready')")
    )
    return driver


def questions_of_gsm(page):
    head = "<h1>GSM, SmolLM2-135M</h1>"
    (found,) = [p for p in page.parent.glob("questions-*.html") if head in p.read_text("utf-8")]
    return found


def test_the_page_holds_verdict_figures_tables_and_questions(page, answered):
    text = page.read_text(encoding="utf-8")
    compared = compared_frame(answered)
    for label, sentence in said(compared):
        assert f"<b>{label}</b>: " in text
        assert sentence.split(";")[0] in text
    assert all(text.count(f"<dt>{term}</dt>") == 1 for term in TERMS)
    assert (page.parent / "numbers.csv").read_text().count("\n") == len(compared) + 1
    for source in re.findall(r'(?:src|href)="([^"#]+)"', text):
        assert not source.startswith("http")
        assert (page.parent / source).is_file(), source


@pytest.mark.browser
@pytest.mark.parametrize(("width", "dark"), SIZES)
def test_nothing_overflows_and_nothing_fails(page, width, dark, tmp_path):
    for path in (page, page.parent / "questions-000.html"):
        with chromium(tmp_path / path.stem, width, dark=dark) as driver:
            visit(driver, path)
            sizes = "return [document.documentElement.scrollWidth, innerWidth]"
            wide, window = driver.execute_script(sizes)
            assert wide <= window
            assert driver.execute_script("return document.documentElement.className") == (
                "dark" if dark else ""
            )
            images = "return [...document.images].every(i => i.complete && i.naturalWidth > 0)"
            assert driver.execute_script(images)
            assert driver.get_log("browser") == []


@pytest.mark.browser
def test_what_a_model_wrote_does_not_run(opened):
    driver, page = opened
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


@pytest.mark.browser
def test_tables_sort_by_number_filter_and_export(opened):
    driver, page = opened
    visit(driver, page)
    column = """
        const table = [...document.querySelectorAll('table.sortable')].find(
          t => t.textContent.includes('TOEFL'));
        const at = [...table.tHead.rows[0].runs].findIndex(c => c.textContent.includes('TOEFL'));
        if (arguments[0]) table.tHead.rows[0].runs[at].click();
        return [...table.tBodies[0].rows].map(row => row.runs[at].textContent);
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


@pytest.mark.browser
def test_the_page_prints_without_buttons(opened):
    driver, page = opened
    visit(driver, page)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    shown = "return [...document.querySelectorAll('button.dt-button')].some(b => b.offsetParent)"
    assert not driver.execute_script(shown)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_answers_to_a_question_stand_side_by_side(page):
    text = questions_of_gsm(page).read_text(encoding="utf-8")
    heads = re.findall(r"<th>([^<]*)</th>", text)
    methods = ["rope at 512", "yarn at 512", "resonance_yarn at 512"]
    assert heads == ["Document", "Question", "Expected", *methods]
    row = re.search(r"<tbody>\s*<tr>(.*?)</tr>", text, re.S)[1]
    assert row.count("<td") == len(heads)
    assert re.search(r'class="(right|wrong)"', row)


def test_models_are_compared_too_where_there_are_several(page):
    assert "<h2>Across models</h2>" in page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_effective_context_stands_first(real_runs, tmp_path):
    results = load_results(real_runs)
    page = write_page(results, compared_frame(results), tmp_path / "p", title="A <b>")
    text = page.read_text(encoding="utf-8")
    assert "A &lt;b&gt;" in text
    assert text.index("00-effective.svg") < text.index("<h2>Tables</h2>")
    assert re.search(r"<code>leval-harness sweep [^<]*--set [^<]*num_docs=\d+</code>", text)


def test_a_page_replaces_a_page_and_nothing_else(page, sweep, tmp_path):
    results = load_results(sweep)
    compared = compared_frame(results)[:20]
    out = tmp_path / "p"
    write_page(results, compared, out, "T")
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
