"""The page in a real browser, opened from disk."""

import json
import math
import shutil

import fixture_results as make
import pytest
from browser import chromium

from leval_harness.analysis import analyse
from leval_harness.old_results import load_results
from leval_harness.old_results.sample_lines import Sample
from leval_harness.page import write_page
from leval_harness.page.data import comparisons, script
from leval_harness.old_tables import leaderboard_table


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


def table(browser):
    """Method -> heading of a column -> the cell's text."""
    found = browser.execute_script(
        "return [...document.querySelectorAll('#board table')].flatMap((t) => {"
        " const [groups, heads] = t.tHead.rows;"
        " const names = [...groups.cells].slice(1).flatMap((g) =>"
        "   Array(g.colSpan).fill(g.textContent));"
        " const keys = [...heads.cells].map((h, at) => names[at] + ' ' + h.innerText);"
        " return [...t.tBodies[0].rows].filter((r) => r.className !== 'block').map((r) =>"
        "   [r.cells[0].innerText, keys.map((k, at) =>"
        "     [k.replace(/ [↑↓]$/, ''), r.cells[at + 1].textContent])]); })"
    )
    return {name: dict(cells) for name, cells in found}


def numbers_of(browser, column):
    """The numbers of a column, from above; what has none is left out."""
    texts = [cells[column] for cells in table(browser).values()]
    return [float(text.split(" ")[0].rstrip("*?")) for text in texts if text[0].isdigit()]


@pytest.mark.browser
def test_each_method_has_one_row_and_lengths_are_columns(opened, sweep):
    found = table(opened)
    assert set(found) == {"none", "Linear scaling", "YaRN", "Resonance YaRN", "Dynamic NTK"}
    frame = analyse(load_results(sweep)).frame()
    for length in (4096, 8192):
        value = frame[
            (frame["label"] == "yarn")
            & (frame["context_length"] == length)
            & (frame["task"] == "leval_closed_toefl")
            & (frame["metric"] == "exact_match")
        ]["value"].iloc[0]
        assert found["YaRN"][f"TOEFL {length // 1024}K"].startswith(f"{100 * value:.2f}")
    assert found["Dynamic NTK"]["GSM 8K"] == "failed"
    assert [key for key in found["YaRN"] if "ppl" in key] == [
        f"GovReport token ppl ↓ {length}K" for length in (1, 2, 4)
    ]
    assert len({tuple(cells) for cells in found.values()}) == 1


@pytest.mark.browser
def test_what_matters_comes_first(opened):
    """Verdict, one large figure, the table; everything else is folded."""
    order = opened.execute_script(
        "return [...document.querySelectorAll('main > *')].filter((e) => e.checkVisibility())"
        ".map((e) => [e.id, e.tagName, e.open])"
    )
    assert [name for name, *_ in order[:3]] == ["verdict", "hero", "comparison"]
    assert {(tag, is_open) for _, tag, is_open in order[3:]} == {("DETAILS", False)}
    subtitle = opened.execute_script("return document.querySelector('.subtitle').textContent")
    for part in ("SmolLM2-135M", "2026-01-02", "torch 2.13.0", "leval-harness 0.1.0"):
        assert part in subtitle
    title = opened.execute_script("return by('hero-title').textContent")
    assert title == "GovReport: NLL by context length"
    sentences = opened.execute_script(
        "return [...document.querySelectorAll('#verdict li')].map((e) => e.textContent)"
    )
    assert any(text.startswith("YaRN against none: ") for text in sentences)


@pytest.mark.browser
def test_the_large_figure_shows_every_method_at_every_length(opened, sweep):
    drawn = opened.execute_script(
        "return [...document.querySelectorAll('#hero .point title')].map((t) => t.textContent)"
    )
    found = {name: float(value) for name, value in (each.split(": ") for each in drawn)}
    assert len(found) == 12
    for entry in analyse(load_results(sweep)).entries:
        if entry.score.family == "token_perplexity":
            title = {"yarn": "YaRN", "linear": "Linear scaling", "none": "none"}.get(entry.label)
            if title:
                loss = found[f"{title}, {entry.length // 1024}K"]
                assert loss == pytest.approx(math.log(entry.score.value), rel=1e-4)


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

    opened.find_element(By.CSS_SELECTOR, "thead button[data-key='0|4096']").click()
    values = numbers_of(opened, "Coursera 4K")
    assert len(values) == 4
    assert values == sorted(values, reverse=True)
    focused = opened.switch_to.active_element
    assert focused.get_attribute("data-key") == "0|4096"
    focused.send_keys(Keys.ENTER)
    assert numbers_of(opened, "Coursera 4K") == sorted(values)
    head = opened.find_element(By.CSS_SELECTOR, "th[aria-sort='ascending']")
    assert "4K" in head.text
    assert list(table(opened))[-1] == "Dynamic NTK"  # has no number


@pytest.mark.browser
def test_filtering(opened):
    look = "return document.querySelector('#hero .legend li:last-child span').className"
    legend = "return [...document.querySelectorAll('#hero .legend li')].map(i => i.innerText)"
    wait(opened, "view.compare !== null")
    names = [text.split(" ", 1)[1] for text in opened.execute_script(legend)]
    assert names == ["none", "Linear scaling", "YaRN", "Resonance YaRN"]
    before = opened.execute_script(look)
    choose(opened, "search", "resonance")
    assert set(table(opened)) == {"Resonance YaRN"}
    assert [text[2:] for text in opened.execute_script(legend)] == ["Resonance YaRN"]
    assert opened.execute_script(look) == before
    choose(opened, "search", "")
    choose(opened, "context", "4096")
    assert all(key.endswith(" 4K") for key in table(opened)["YaRN"])
    choose(opened, "tasks", "perplexity")
    assert list(table(opened)["YaRN"]) == ["GovReport token ppl ↓ 4K"]


@pytest.mark.browser
def test_another_baseline_gives_other_differences(opened):
    choose(opened, "show", "difference")
    wait(opened, "view.baseline === 'none' && view.compare !== null")
    assert table(opened)["none"]["Coursera 4K"] == "·"
    choose(opened, "baseline", "yarn")
    wait(opened, "view.baseline === 'yarn'")
    assert table(opened)["YaRN"]["Coursera 4K"] == "·"
    assert table(opened)["none"]["Coursera 4K"][0] in "-+"


@pytest.mark.browser
def test_drill_down_shows_both_answers_and_never_runs_them(opened, sweep):
    before = opened.execute_script("return document.scripts.length")
    opened.execute_script(
        'document.querySelector(\'#board button[aria-label^="TOEFL 8K"][aria-label*=", yarn:"]\')'
        ".click();"
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
def test_averages_lead_to_the_tasks_they_are_made_of(opened):
    averages = [cells["Avg. 8K"] for cells in table(opened).values()]
    assert sum(text != "–" for text in averages) == 4
    opened.execute_script(
        'document.querySelector(\'#board button[aria-label^="Avg. 8K"][aria-label*=", yarn:"]\')'
        ".click()"
    )
    buttons = "[...by('facts').querySelectorAll('dd button')]"
    assert opened.execute_script(f"return {buttons}.length") == 6
    assert not opened.execute_script("return by('compare').checkVisibility()")
    names = "return [...by('facts').querySelectorAll('dt')].map((name) => name.textContent)"
    place = opened.execute_script(names).index("QuALITY")
    opened.execute_script(f"{buttons}[{place}].click()")
    wait(opened, "by('compare-status').textContent.includes('shown')")
    title = opened.execute_script("return by('detail-title').textContent")
    assert title == "YaRN · QuALITY · 8K"


@pytest.mark.browser
@pytest.mark.parametrize(("share", "note"), [("cut", "truncated"), ("un", "unparsed")])
def test_shares_lead_to_the_answers_that_they_count(opened, sweep, share, note):
    path = next((sweep / "28192").glob("samples_leval_closed_quality_*"))
    logged = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    count = sum(Sample(row).notes[note] for row in logged)
    choose(opened, "show", share)
    assert table(opened)["YaRN"]["QuALITY 8K"] == f"{100 * count / len(logged):.1f}"
    name = "truncated" if share == "cut" else "no answer found"
    opened.execute_script(
        f'document.querySelectorAll(\'#board button[aria-label^="{name} 8K"]'
        '[aria-label*=", yarn:"]\')[2].click()'
    )
    wait(opened, "by('compare-status').textContent.includes('shown')")
    status = opened.execute_script("return by('compare-status').textContent")
    assert status.startswith("202 questions. ")
    assert status.endswith(f" of {count:g} shown.")


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
    assert set(table(opened)) == {"Resonance YaRN"}
    press(opened, *[Keys.BACKSPACE] * len("resonance"))
    assert len(table(opened)) == 5
    tab_to(opened, "#context")
    press(opened, "8K")  # type-ahead of a list
    assert all(key.endswith(" 8K") for key in table(opened)["YaRN"])
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
    named = opened.execute_script("return titled(view.baseline)")
    assert f"Against {named}" in opened.execute_script("return by('facts').textContent")
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
def test_rows_out_of_sight_are_found_and_printed(opened):
    """Many rows: all of them are in the page; on paper none is cut off."""
    opened.execute_script(
        "const one = LEVAL.board.rows.reduce((a, b) => Object.keys(b.cells).length >"
        "Object.keys(a.cells).length ? b : a);"
        "LEVAL.board.rows = Array.from({length: 1000}, (_, at) =>"
        "({...one, at, method: 'method ' + at, text: 'method ' + at}));"
        "view.heroKey = null; draw();"
    )
    wait(opened, "document.querySelectorAll('#board tbody tr').length === 1000")
    assert opened.execute_script("return window.find('method 987')")
    before = opened.execute_script("return Object.keys(leavesOf(linesShown())).length")
    opened.execute_script("dispatchEvent(new Event('beforeprint'))")
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    boxes = (
        "return [...document.querySelectorAll('#board .scroll')].map((box) =>"
        "[box.scrollHeight - box.clientHeight, box.scrollWidth - box.clientWidth,"
        "box.querySelectorAll('tbody tr').length,"
        "box.querySelectorAll('thead tr:last-child th').length])"
    )
    found = opened.execute_script(boxes)
    assert all(high <= 1 and wide <= 1 and rows == 1000 for high, wide, rows, _ in found)
    assert sum(columns for *_, columns in found) == before >= 7
    opened.execute_script("dispatchEvent(new Event('afterprint'))")
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


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
    differences = {name: analysis.differences_to(name) for name in analysis.titles}
    for method, compared in comparisons(leaderboard_table(analysis), analysis, differences).items():
        pairs = [block_of[place.split()[0]] for place in compared]
        assert sorted(pairs) == {"yarn": ["small"] * 2}.get(method, ["large"] + ["small"] * 2)


def test_script_files_are_harmless_wherever_they_are_pasted():
    text = script("x", {"a": "</script><!--\u2028&"})
    assert not set("<>&\u2028") & set(text)
    inner = text[text.index(",") + 1 : text.rindex(")")]
    assert json.loads(inner) == {"a": "</script><!--\u2028&"}
    assert script("x", "half a pair: \ud83d").encode("utf-8")
