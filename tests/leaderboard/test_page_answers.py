"""What a reader of a small page gets: the answer, a link to any view, every number, its samples."""

import csv
import io
import re
import shutil
from pathlib import Path
from urllib.parse import unquote, urlparse

import fixture_results as make
import numpy as np
import pytest
from browser import chromium, ready, script, texts
from fixture_results import LENGTHS, STEPS, needles, perplexities

from leval_harness.analysis import analyse
from leval_harness.old_results import load_results
from leval_harness.page import write_page
from leval_harness.page.data import leaderboard
from leval_harness.old_tables import build_tables, details_table, leaderboard_table
from leval_harness.old_tables.formats import render


@pytest.fixture(scope="module")
def analysis(tmp_path_factory):
    """Two methods: a closed task at one length, perplexities at three; costs that differ."""
    root = tmp_path_factory.mktemp("small")
    for at, method in enumerate(STEPS):
        closed = {"leval_closed_gsm": make.closed_samples("leval_closed_gsm", 0.1, 3, limit=32)}
        closed["leval_closed_gsm"][0] |= {"exact_match": 1.0 - at, "reached_limit": 1.0}
        named = {"method": method, "baseline": "rope"}
        make.write_cell(root, f"c{at}", closed, **named)
        make.write_cell(root, f"l{at}", {"ppl_pg19": perplexities(method)}, **named)
    for length in LENGTHS[:2]:
        named = {"method": "rope", "baseline": "rope", "context_length": length}
        make.write_cell(root, f"n{length}", {"niah_single_1": needles(length)}, **named)
    return analyse(load_results(root))


@pytest.fixture(scope="module")
def opened(analysis, tmp_path_factory):
    assert shutil.which("chromium"), "the page's tests need chromium and chromium-driver"
    index = write_page(analysis, tmp_path_factory.mktemp("page") / "out")
    with chromium(tmp_path_factory.mktemp("profile"), width=1440) as driver:
        driver.get(index.as_uri())
        ready(driver)
        yield driver
        assert [e for e in driver.get_log("browser") if e["level"] != "INFO"] == []


def press(driver, method, column):
    """Click the number of a method whose label begins so; wait for its samples."""
    script(
        driver,
        "by('compare-status').textContent = '';"
        "[...document.querySelectorAll('#board td button')].find(b => b.ariaLabel.startsWith("
        "arguments[1]) && b.ariaLabel.includes(', ' + arguments[0] + ':')).click()",
        *(method, column),
    )
    ready(driver, "by('compare-status').textContent.includes('shown')")


def test_numbers_are_rounded_as_the_tables_round_them(tmp_path):
    """15.625 is 15.62 in one rounding and 15.63 in another: the page shows the table's text."""
    rows = make.closed_samples("leval_closed_gsm", 0.0, 1, limit=64)
    for at, row in enumerate(rows):
        row["exact_match"] = float(at < 10)
    make.write_cell(tmp_path, "a", {"leval_closed_gsm": rows}, method="rope")
    analysis = analyse(load_results(tmp_path))
    board = leaderboard(leaderboard_table(analysis), analysis)
    (cell,) = board["rows"][0]["cells"].values()
    assert cell["v"] == 15.625
    assert cell["t"] == "15.62"
    assert f"| {cell['t']} ± {cell['e']} |" in render(build_tables(analysis), "md")


@pytest.mark.browser
def test_what_leaves_no_choice_takes_no_room(opened):
    titles = texts(opened, "h2")
    assert titles[:3] == ["Verdict", "PG19: NLL by context length", "Results"]
    hidden = ["search", "published"]
    seen = "return Boolean(by(arguments[0]) && by(arguments[0]).checkVisibility())"
    assert not any(script(opened, seen, name) for name in hidden)
    heads = [text.removesuffix(" ↓") for text in texts(opened, "thead th.group")]
    assert heads == ["PG19 token ppl", "GSM", "niah_single_1"]
    lengths = texts(opened, "thead tr:last-child th")
    assert lengths == ["2K", "4K", "8K", "8K", "2K", "4K"]


@pytest.mark.browser
def test_two_clicks_from_a_loss_to_every_text_of_two_methods(opened, analysis):
    press(opened, "yarn", "PG19 token ppl 2K")
    lines = texts(opened, ".texts span")
    rows = [lines[at : at + 5] for at in range(0, len(lines), 5)]
    assert rows[0] == ["Text", "Tokens", "YaRN", "rope", "Difference"]
    given = [row["token_perplexity@2048"][0] / 512 for row in perplexities("yarn")]
    rows = rows[1:]
    assert [float(row[2]) for row in rows] == pytest.approx(given, abs=6e-4)
    assert [row[0] for row in rows] == [f"text {at}" for at in range(6)]
    press(opened, "rope", "GSM")
    assert "hit max tokens" in script(opened, "return by('questions').textContent")


@pytest.mark.browser
def test_points_of_the_figure_lead_to_the_texts_behind_them(opened):
    script(opened, "by('questions').replaceChildren(); by('compare-status').textContent = ''")
    script(opened, "document.querySelector('#hero svg .leads').dispatchEvent(new Event('click'))")
    ready(opened, "by('compare-status').textContent.includes('shown')")
    title = script(opened, "return by('detail-title').textContent")
    assert title == "rope · PG19 token ppl · 2K"
    assert "text 5" in script(opened, "return by('questions').textContent")


@pytest.mark.browser
def test_the_verdict_says_what_the_table_marks(opened, analysis):
    """One rule: a difference is in a sentence where the table marks it."""
    (told,) = (text for text in texts(opened, "#verdict li") if text.startswith("YaRN against"))
    compared = [e for e in analysis.entries if e.difference and e.score.primary]
    marks = [entry.mark for entry in compared]
    named = {
        (entry.length, round(abs(entry.difference.difference), 3))
        for entry in compared
        if entry.mark == "*"
    }
    found = re.findall(r"([\d.]+) nats/token \([^)]*\) (?:better|worse) on .*? at (\d+)K", told)
    assert {(int(length) * 1024, float(size)) for size, length in found} == named
    same, few = (re.search(text, told) for text in (r"found in (\d+)", r"(\d+) comparisons? inc"))
    assert int(same[1] if same else 0) == marks.count("")
    assert int(few[1] if few else 0) == marks.count("?")


@pytest.mark.browser
def test_no_two_methods_share_colour_and_mark(opened):
    looks = script(opened, "return unique(range.map((at) => at % COLOURS + markOf(at))).length"
                   .replace("range", "[...Array(49).keys()]"))  # fmt: skip
    assert looks == 49


@pytest.mark.browser
def test_an_interval_that_tells_beside_a_test_that_cannot_is_explained(opened):
    told = "return by('facts').textContent"
    script(
        opened,
        "const few = Object.entries(view.compare).find(([name]) => name.includes('GSM'))[1];"
        "few.splice(1, 4, 0.1, 0.2, 1, '?', ...few.slice(5, 9));",
    )
    press(opened, "yarn", "GSM")
    assert "the interval leaves out zero all the same: the sign-flip test" in script(opened, told)


@pytest.mark.browser
def test_a_link_shows_the_same_view_again(opened):
    script(
        opened,
        "const chosen = {context: '8192', show: 'difference', baseline: 'yarn'};"
        "for (const [id, value] of Object.entries(chosen))"
        "{ by(id).value = value; by(id).dispatchEvent(new Event('change')); }",
    )
    ready(opened, "view.baseline === 'yarn'")
    script(opened, "document.querySelector(\"thead button[data-key='1|8192']\").click()")
    press(opened, "rope", "GSM")
    script(opened, "by('which').value = 'win'; by('which').dispatchEvent(new Event('change'))")
    seen = (
        "return [location.hash, by('board').textContent, by('detail').textContent,"
        "by('which').value, view.sort]"
    )
    before = script(opened, seen)
    address = opened.current_url
    opened.get("about:blank")
    opened.get(address)
    ready(opened, "by('compare-status').textContent.includes('shown')")
    assert script(opened, seen) == before
    assert "context=8192" in before[0]
    opened.get("about:blank")
    opened.get(address.partition("#")[0])
    ready(opened)


@pytest.mark.browser
def test_the_numbers_can_be_taken_along(opened, analysis):
    page = Path(unquote(urlparse(opened.current_url).path)).parent
    told = list(csv.DictReader(io.StringIO((page / "numbers.csv").read_text(encoding="utf-8"))))
    assert len(told) == len(details_table(analysis).records()) > 6
    text = script(
        opened,
        "let kept; const [made, link] = [URL.createObjectURL, HTMLAnchorElement.prototype];"
        "const click = link.click; link.click = () => {};"
        "URL.createObjectURL = (blob) => { kept = blob; return '#'; };"
        "downloadView(); URL.createObjectURL = made; link.click = click; return kept.text();",
    )
    shown = list(csv.DictReader(io.StringIO(text)))
    rope = next(row for row in shown if row["method"] == "rope")
    entry = next(
        e
        for e in analysis.entries
        if e.label == "rope" and e.score.metric == "token_perplexity@8192"
    )
    assert float(rope["PG19 token ppl 8K"]) == pytest.approx(entry.score.value, rel=1e-5)
    (score,) = (
        entry.score.value
        for entry in analysis.entries
        if (entry.task, entry.label) == ("leval_closed_gsm", "rope")
        and entry.score.metric == "exact_match"
    )
    assert float(rope["GSM 8K"]) == pytest.approx(100 * score)


@pytest.mark.browser
def test_depth_against_length_shows_where_needles_were_found(opened):
    script(opened, "by('evidence').open = true; drawCharts()")
    drawn = "return [...document.querySelectorAll('rect.depth title')].map((t) => t.textContent)"
    cells = script(opened, drawn)
    assert len(cells) == 20
    for length in ("2K", "4K"):
        for part in range(10):
            found = f"{length}, {10 * part}% to {10 * part + 10}% of the prompt: "
            assert found + ("4 of 4" if part < 5 else "0 of 4") in cells


@pytest.mark.browser
def test_a_depth_leads_to_the_questions_whose_needle_lies_there(opened):
    for part in (2, 7):
        script(
            opened,
            "[...document.querySelectorAll('g.leads')].find((cell) => cell.textContent.startsWith("
            "arguments[0])).dispatchEvent(new Event('click'))",
            f"4K, {10 * part}% to ",
        )
        ready(opened, "by('compare-status').textContent.includes('shown')")
        status = script(opened, "return by('compare-status').textContent")
        assert status == "40 questions. 4 of 4 shown."
        documents = texts(opened, ".question > small")
        assert [int(text.split()[-1]) % 10 for text in documents] == [part] * 4
        assert script(opened, "return by('which').selectedOptions[0].textContent").endswith(
            f"{10 * part}% to {10 * part + 10}%"
        )
        told = texts(opened, ".question")
        word = "right (1)" if part < 5 else "wrong (0)"
        assert all(word in text for text in told)
        assert all("What is it?Expected: needle" in text for text in told)
        script(opened, "by('compare-status').textContent = ''")


@pytest.mark.browser
def test_losses_are_drawn_against_the_baseline_that_is_chosen(opened):
    def drawn():
        figure = (
            "[...document.querySelectorAll('#charts figure')].find((each) =>"
            "each.textContent.startsWith('PG19: NLL'))"
        )
        title, *points = script(
            opened,
            f"const figure = {figure}; return [figure.querySelector('strong').textContent,"
            "...[...figure.querySelectorAll('.point title')].map((t) => t.textContent)]",
        )
        return title, dict(each.split(": ") for each in points)

    def choose(baseline):
        script(
            opened,
            "by('baseline').value = arguments[0];by('baseline').dispatchEvent(new Event('change'))",
            baseline,
        )
        ready(opened, f"view.baseline === '{baseline}'")

    means = {
        method: np.array(
            [
                [row[f"token_perplexity@{n}"][0] / 512 for n in LENGTHS]
                for row in perplexities(method)
            ]
        )
        for method in STEPS
    }
    apart = (means["yarn"] - means["rope"]).mean(axis=0)
    for baseline, method, sign in (("yarn", "rope", -1), ("rope", "yarn", 1)):
        script(opened, "by('evidence').open = true; by('chart-show').value = 'difference'")
        choose(baseline)
        title, points = drawn()
        titles = {"yarn": "YaRN", "rope": "rope"}
        assert title == f"PG19: NLL against {titles[baseline]}"
        names = [f"{titles[method]}, {length // 1024}K" for length in LENGTHS]
        assert list(points) == names
        assert [float(points[name]) for name in names] == pytest.approx(sign * apart, rel=1e-3)


@pytest.mark.browser
def test_small_differences_are_told_apart_beside_large_ones(opened):
    """The scale bends: 0.01 and 0.02 stay apart where others are 100 times as large."""
    heights = script(
        opened,
        "const sizes = [0.01, 0.02, -0.015, 2, -1.5];"
        "const points = sizes.map((y, at) => [2048 * 2 ** at, y, null, null]);"
        "const plot = {title: '', note: '', zero: true, lines: true, log: true, x: lengthLabel,"
        "series: [{method: 'yarn', points}]};"
        "return [...svgOf(plot, 400, 240).querySelectorAll('.point')]"
        ".map((mark) => Number(mark.getAttribute('y')));",
    )
    assert heights[0] - heights[1] > 6  # half a pixel where the scale is straight
    assert heights[3] < heights[1] - 30
    assert heights[4] > heights[2] + 30


@pytest.mark.browser
def test_charts_are_legible_where_they_stand(opened):
    """At both widths and in both themes: text as large as it says, contrast, nothing too wide."""
    drawn = """
        const light = (text) => { const [r, g, b] = text.match(/[\\d.]+/g).map(Number).map(
            (c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
          return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
        const back = light(getComputedStyle(document.body).backgroundColor);
        const contrast = (text) => { const [a, b] = [light(text), back].sort((x, y) => y - x);
          return (a + 0.05) / (b + 0.05); };
        return [...document.querySelectorAll('#charts svg')].map((svg) => {
          const looks = [...svg.querySelectorAll('text')].map((t) => getComputedStyle(t));
          return [svg.getBoundingClientRect().width / svg.viewBox.baseVal.width,
                  Math.min(...looks.map((look) => parseFloat(look.fontSize))),
                  Math.min(...looks.map((look) => contrast(look.fill)))];
        });
    """
    for width in (1440, 390):
        opened.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 700},
        )
        for theme in ("light", "dark"):
            script(opened, "document.documentElement.dataset.theme = arguments[0]", theme)
            script(opened, "by('evidence').open = true; drawCharts()")
            charts = script(opened, drawn)
            assert len(charts) >= 2
            for scale, size, contrast in charts:
                assert 0.97 <= scale <= 1.03
                assert size >= 12
                assert contrast >= 3
        assert script(opened, "return document.documentElement.scrollWidth") <= width
        wide = "return [...document.querySelectorAll('#board td')].filter("
        wide += "(td) => td.scrollWidth > td.clientWidth).map((td) => td.textContent)"
        assert script(opened, wide) == []
