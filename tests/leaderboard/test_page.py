"""The page in a real browser, opened from disk."""

import json
import shutil

import fixture_results as make
import pytest
from browser import chromium

from leval_harness.analysis import analyse
from leval_harness.page import write_page
from leval_harness.page.data import comparisons, script
from leval_harness.results import load_results
from leval_harness.tables import leaderboard_table


@pytest.fixture(scope="module")
def page(sweep, tmp_path_factory):
    return write_page(analyse(load_results(sweep)), tmp_path_factory.mktemp("page") / "out")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    assert shutil.which("chromium"), "the page's tests need chromium and chromium-driver"
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture
def opened(browser, page):
    from selenium.webdriver.support.ui import WebDriverWait

    browser.get(page.as_uri())
    WebDriverWait(browser, 20).until(lambda d: rows(d))
    yield browser
    log = [entry for entry in browser.get_log("browser") if entry["level"] != "INFO"]
    assert log == []
    assert browser.execute_script("return window.pwned") is None


def rows(browser):
    """The table's text, a list a row."""
    return browser.execute_script(
        "return [...document.querySelectorAll('#board tbody tr:not(.block)')]"
        ".map(r => [...r.children].filter(c => c.checkVisibility()).map(c => c.textContent))"
    )


def choose(browser, control, value):
    browser.execute_script(
        "const s = document.getElementById(arguments[0]); s.value = arguments[1];"
        "s.dispatchEvent(new Event(s.tagName === 'SELECT' ? 'change' : 'input'));",
        control,
        value,
    )


def wait(browser, condition):
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, 20).until(lambda d: d.execute_script("return " + condition))


@pytest.mark.browser
def test_leaderboard_shows_what_the_analysis_says(opened, sweep):
    frame = analyse(load_results(sweep)).frame()
    value = frame[
        (frame["label"] == "yarn")
        & (frame["context_length"] == 8192)
        & (frame["task"] == "leval_closed_toefl")
        & (frame["metric"] == "exact_match")
    ]["value"].iloc[0]
    row = next(r for r in rows(opened) if r[:2] == ["yarn", "8K"])
    assert row[5].startswith(f"{100 * value:.2f}")
    assert any(r[0] == "dynamic" and "failed" in r for r in rows(opened))


@pytest.mark.browser
def test_numbers_are_rounded_as_the_tables_round_them(opened):
    values = [sixteenths / 16 for sixteenths in range(-40, 1601)] + [0.15, 12.345, 33.333]
    for digits in (1, 2, 3):
        shown = opened.execute_script(
            "const [values, digits] = arguments; return values.map((each) => fixed(each, digits))",
            values,
            digits,
        )
        assert shown == [f"{value:.{digits}f}" for value in values]


@pytest.mark.browser
def test_sorting_by_click_and_by_keyboard(opened):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    opened.find_element(By.CSS_SELECTOR, "thead button[data-key='0']").click()
    values = [float(r[2].split(" ")[0].rstrip("*?")) for r in rows(opened) if r[2] != "–"]
    assert values == sorted(values, reverse=True)
    focused = opened.switch_to.active_element
    assert focused.get_attribute("data-key") == "0"
    focused.send_keys(Keys.ENTER)
    values = [float(r[2].split(" ")[0].rstrip("*?")) for r in rows(opened) if r[2] != "–"]
    assert values == sorted(values)
    head = opened.find_element(By.CSS_SELECTOR, "th[aria-sort='ascending']")
    assert "Coursera" in head.text
    assert rows(opened)[-1][2] == "–"


@pytest.mark.browser
def test_filtering(opened):
    look = "return by('legend').querySelector('li:last-child span').className"
    legend = "return [...by('legend').children].map(i => i.textContent.split(' ')[1])"
    wait(opened, "view.compare !== null")
    assert opened.execute_script(legend) == ["linear", "resonance_yarn", "yarn"]
    before = opened.execute_script(look)
    choose(opened, "search", "resonance")
    assert {r[0] for r in rows(opened)} == {"resonance_yarn"}
    assert opened.execute_script(legend) == ["resonance_yarn"]
    choose(opened, "search", "")
    assert opened.execute_script(look) == before
    choose(opened, "context", "4096")
    assert {r[1] for r in rows(opened)} == {"4K"}
    choose(opened, "tasks", "perplexity")
    heads = opened.execute_script(
        "return [...document.querySelectorAll('thead th')].map(h => h.textContent)"
    )
    assert heads[2:] == ["GovReport token ppl"]
    assert {r[1] for r in rows(opened)} == {"4K"}


@pytest.mark.browser
def test_another_baseline_gives_other_differences(opened):
    choose(opened, "show", "difference")
    wait(opened, "view.baseline === 'none' && view.compare !== null")
    assert next(r for r in rows(opened) if r[:2] == ["none", "4K"])[2] == "·"
    choose(opened, "baseline", "yarn")
    wait(opened, "view.baseline === 'yarn'")
    assert next(r for r in rows(opened) if r[:2] == ["yarn", "4K"])[2] == "·"
    assert next(r for r in rows(opened) if r[:2] == ["none", "4K"])[2][0] in "-+"


@pytest.mark.browser
def test_drill_down_shows_both_answers_and_never_runs_them(opened, sweep):
    before = opened.execute_script("return document.scripts.length")
    opened.execute_script(
        "const r = [...document.querySelectorAll('#board tbody tr')]"
        ".find(r => r.children[0].textContent === 'yarn' && r.children[1].textContent === '8K');"
        "r.querySelector('button[aria-label^=TOEFL]').click();"
    )
    wait(opened, "document.querySelectorAll('.question').length > 0")
    assert opened.execute_script("return document.scripts.length") == before + 3
    status = opened.execute_script("return document.getElementById('compare-status').textContent")
    frame = analyse(load_results(sweep)).frame()
    row = frame[
        (frame["label"] == "yarn")
        & (frame["context_length"] == 8192)
        & (frame["task"] == "leval_closed_toefl")
        & (frame["metric"] == "exact_match")
    ].iloc[0]
    assert status.startswith(
        f"269 common questions: {row['wins']:g} won, {row['ties']:g} tied, {row['losses']:g} lost"
    )
    answers = opened.execute_script(
        "return [...document.querySelectorAll('.question')].map(q => q.textContent)"
    )
    assert all("<script>window.pwned=1</script></td>" in text for text in answers)
    assert all("Expected: " in text for text in answers)
    assert any("Document cut: first 750 and last 750 of 1900 tokens kept" in t for t in answers)
    assert opened.execute_script("return document.querySelectorAll('.question script').length") == 0
    facts = opened.execute_script("return document.getElementById('provenance').textContent")
    for told in ("leval-harness sweep test.yaml", "torch 2.13.0", "Seed0", "28192/log.txt"):
        assert told in facts
    found = opened.execute_script("return by('facts').textContent")
    assert f"data_dir {row['data']} (source, and a fingerprint of the files’ SHA-256)" in found
    choose(opened, "which", "win")
    wins = opened.execute_script("return document.getElementById('compare-status').textContent")
    assert f"of {row['wins']:g} shown" in wins


@pytest.mark.browser
def test_averages_and_shares_lead_to_the_answers_they_are_made_of(opened, sweep):
    """Two clicks: the number, then a task; then the answers that a share counts, no others."""
    cells = "[...document.querySelectorAll('#board tbody tr:not(.block)')].map((row) => "
    heads = opened.execute_script(
        "return [...by('board').tHead.rows[0].cells].map(c => c.innerText)"
    )
    places = [heads.index(name) for name in ("Avg.", "Cut %", "Unparsed %")]
    told = opened.execute_script(
        f"return {cells} arguments[0].map((at) => [row.children[at].textContent,"
        "Boolean(row.children[at].querySelector('button'))]))",
        places,
    )
    assert all(leads == (text != "–") for row in told for text, leads in row)
    assert sum(leads for row in told for _, leads in row) == 24  # four methods, two lengths
    path = next((sweep / "28192").glob("samples_leval_closed_quality_*"))
    logged = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    counted = (len(logged), sum(r["truncated"] for r in logged), sum(r["unparsed"] for r in logged))
    for at, number in zip(places, counted, strict=True):
        opened.execute_script(
            f"{cells} row).find((row) => row.children[0].textContent === 'yarn' &&"
            "row.children[1].textContent === '8K').children[arguments[0]]"
            ".querySelector('button').click()",
            at,
        )
        buttons = "[...by('facts').querySelectorAll('dd button')]"
        assert opened.execute_script(f"return {buttons}.length") == 6
        assert not opened.execute_script("return by('compare').checkVisibility()")
        names = "return [...by('facts').querySelectorAll('dt')].map((name) => name.textContent)"
        place = opened.execute_script(names).index("QuALITY")
        opened.execute_script(f"{buttons}[{place}].click()")
        wait(opened, "by('compare-status').textContent.includes('shown')")
        assert (
            opened.execute_script("return by('detail-title').textContent") == "yarn · QuALITY · 8K"
        )
        status = opened.execute_script("return by('compare-status').textContent")
        assert status.startswith("202 questions. ")
        assert status.endswith(f" of {number:g} shown.")
        opened.execute_script("by('compare-status').textContent = ''")


def press(browser, *keys):
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(browser).send_keys(*keys).perform()


def tab_to(browser, selector):
    """Press Tab until the focus is on what is looked for; nothing is clicked."""
    from selenium.webdriver.common.keys import Keys

    for _ in range(60):
        press(browser, Keys.TAB)
        focused = browser.switch_to.active_element
        if browser.execute_script("return arguments[0].matches(arguments[1])", focused, selector):
            return focused
    raise AssertionError(f"{selector} is not reached with the Tab key")


@pytest.mark.browser
def test_filter_baseline_and_drill_down_with_the_keyboard_alone(opened):
    from selenium.webdriver.common.keys import Keys

    tab_to(opened, "#search")
    press(opened, "resonance")
    assert {r[0] for r in rows(opened)} == {"resonance_yarn"}
    press(opened, *[Keys.BACKSPACE] * len("resonance"))
    assert len({r[0] for r in rows(opened)}) == 5
    tab_to(opened, "#context")
    press(opened, "8K")  # type-ahead of a list
    assert {r[1] for r in rows(opened)} == {"8K"}
    tab_to(opened, "#baseline")
    before = opened.execute_script("return view.baseline")
    press(opened, Keys.ARROW_DOWN)
    wait(opened, f"view.baseline !== {json.dumps(before)} && view.compare !== null")
    chosen = opened.execute_script("return view.baseline")
    assert chosen in {"linear", "yarn", "resonance_yarn"}

    cell = tab_to(opened, "#board td button")
    assert ": details" in cell.get_attribute("aria-label")
    press(opened, Keys.ENTER)
    wait(opened, "document.querySelectorAll('.question').length > 0")
    assert opened.switch_to.active_element.get_attribute("id") == "detail-title"
    assert f"Against {chosen}" in opened.execute_script("return by('facts').textContent")
    tab_to(opened, "#detail summary")
    press(opened, Keys.ENTER)
    assert opened.execute_script("return document.querySelector('#detail details').open")
    tab_to(opened, "#which")
    press(opened, Keys.END)  # all questions
    wait(opened, "by('compare-status').textContent.includes('20 of 172 shown')")
    tab_to(opened, "#more-questions")
    press(opened, Keys.SPACE)
    wait(opened, "document.querySelectorAll('.question').length === 40")


@pytest.mark.browser
def test_rows_out_of_sight_are_found_sorted_and_reached(opened):
    """Many rows: all of them are in the page, none is laid out before it is scrolled to."""
    opened.execute_script(
        "const one = LEVAL.board.rows[0]; LEVAL.board.rows = Array.from({length: 1000}, (_, at) =>"
        "({...one, at, method: 'method ' + at, text: 'method ' + at}));"
        "view.charted = null; draw();"
    )
    wait(opened, "view.whole")
    assert "too many for a chart" in opened.execute_script("return by('charts').textContent")
    assert len(opened.execute_script("return [...by('board').tBodies[0].rows]")) == 1000
    assert opened.execute_script("return window.find('method 987')")
    press(opened, *"x")  # a key that does nothing here
    last = "const r = [...by('board').tBodies[0].rows].at(-1); r.scrollIntoView(); "
    assert opened.execute_script(last + "return r.getBoundingClientRect().height > 20")
    widths = "return [...r.children].map(c => Math.round(c.getBoundingClientRect().left))"
    head = "return [...by('board').tHead.rows[0].children].map(c => "
    seen = opened.execute_script(last + widths + ".filter(x => x)")
    assert opened.execute_script(head + "Math.round(c.getBoundingClientRect().left))") == seen


@pytest.mark.browser
def test_phone_width_scrolls_only_inside_the_table(page, tmp_path):
    with chromium(tmp_path, width=390, height=800, dark=True) as driver:
        driver.get(page.as_uri())
        width = driver.execute_script("return document.documentElement.scrollWidth")
        assert width <= 390
        colour = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert colour == "rgb(20, 23, 26)"


def test_the_page_names_no_other_host_and_copies_no_prompt(page):
    for path in page.parent.rglob("*"):
        if path.suffix in {".html", ".js", ".css"}:
            text = path.read_text(encoding="utf-8")
            assert "http://" not in text
            assert "https://" not in text
            assert "<script>window" not in text
            assert "gen_args_0" not in text


def test_file_names_are_counters_whatever_the_results_say(tmp_path):
    samples = {"leval_closed_gsm": make.closed_samples("leval_closed_gsm", 0.4, 1)}
    make.write_cell(tmp_path / "r", "x1", samples, method="../../evil", model="/etc/passwd")
    write_page(analyse(load_results(tmp_path / "r")), tmp_path / "out")
    names = {p.name for p in (tmp_path / "out" / "data").iterdir()}
    assert names == {"leaderboard.js", "q00000.js", "a000000.js", "c000.js"}
    assert {p.name for p in tmp_path.iterdir()} == {"r", "out"}


def test_an_older_page_is_replaced_and_other_folders_are_left_alone(tmp_path, sweep):
    analysis = analyse(load_results(sweep / "04096"))
    out = tmp_path / "out"
    write_page(analysis, out)
    (out / "data" / "old.js").write_text("")
    write_page(analysis, out)
    assert not (out / "data" / "old.js").exists()
    other = tmp_path / "mine"
    other.mkdir()
    (other / "thesis.tex").write_text("x")
    with pytest.raises(ValueError, match="not empty"):
        write_page(analysis, other)
    assert [p.name for p in other.iterdir()] == ["thesis.tex"]


def test_a_block_without_the_method_is_compared_with_nothing(tmp_path):
    for model, methods in (("small", ("none", "linear", "yarn")), ("large", ("none", "linear"))):
        for at, method in enumerate(methods):
            samples = {
                "leval_closed_gsm": make.closed_samples("leval_closed_gsm", 0.3 + 0.1 * at, at)
            }
            make.write_cell(tmp_path, f"{model}{at}", samples, model=model, method=method)
    analysis = analyse(load_results(tmp_path))
    block_of = {str(at): run.model for at, run in enumerate(analysis.results.runs)}
    for method, compared in comparisons(leaderboard_table(analysis), analysis).items():
        pairs = [block_of[place.split()[0]] for place in compared]
        assert sorted(pairs) == {"yarn": ["small"] * 2}.get(method, ["large"] + ["small"] * 2)


def test_script_files_are_harmless_wherever_they_are_pasted():
    text = script("x", {"a": "</script><!--\u2028&"})
    assert not set("<>&\u2028") & set(text)
    inner = text[text.index(",") + 1 : text.rindex(")")]
    assert json.loads(inner) == {"a": "</script><!--\u2028&"}
    assert script("x", "half a pair: \ud83d").encode("utf-8")
