"""Every point of the answer leads, in two clicks, to the texts or questions that it is made of."""

import fixture_results as make
import pytest
from browser import chromium, ready, script, texts
from fixture_results import losses, needles

from leval_harness.analysis import analyse
from leval_harness.page import write_page
from leval_harness.results import load_results

TASKS = {"reach_pg19": "Reach on PG19 loss", "reach_proofpile": "Reach on Proof-pile loss"}
GAINS, KEYS = "What each step of context adds", "Loss on key tokens"
pytestmark = pytest.mark.browser


def with_keys(task, method):
    """Texts of a task, each with some key tokens but the first."""
    rows = losses(method)
    for at, row in enumerate(rows):
        row["doc"] = dict.fromkeys(row["doc"], f"{task} {at}")
        keys = {f"key_{name}": [(3 + at / 8) * at, at] for name in row["metrics"]}
        row |= {**keys, "metrics": [*row["metrics"], *keys]}
    return rows


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Two methods on texts of two tasks, and RULER's needles at two lengths."""
    root = tmp_path_factory.mktemp("traced")
    for method in ("rope", "yarn"):
        told = {"method": method, "baseline": "rope"}
        make.write_cell(root, method, {task: with_keys(task, method) for task in TASKS}, **told)
        for length in (2048, 4096):
            asked = {"niah_single_1": needles(length)}
            make.write_cell(root, f"{method}{length}", asked, **told, context_length=length)
    index = write_page(analyse(load_results(root)), tmp_path_factory.mktemp("page") / "out")
    with chromium(tmp_path_factory.mktemp("profile"), width=1440) as driver:
        driver.get(index.as_uri())
        ready(driver)
        yield driver
        assert [e for e in driver.get_log("browser") if e["level"] != "INFO"] == []


def press_point(driver, figure, point):
    """Click a point of a chart, both by how their texts begin."""
    script(
        driver,
        "by('compare-status').textContent = '';"
        "const figure = [...document.querySelectorAll('#charts figure')].find((each) =>"
        "each.textContent.startsWith(arguments[0]));"
        "[...figure.querySelectorAll('.leads')].find((mark) => mark.querySelector('title')"
        ".textContent.startsWith(arguments[1])).dispatchEvent(new Event('click'))",
        *(figure, point),
    )


def press_part(driver, label):
    """Click one of the tasks that a number is made of; what is told of its texts, by text."""
    script(
        driver,
        "[...document.querySelectorAll('#facts button')].find((each) => each.ariaLabel.startsWith("
        "arguments[0])).click()",
        label,
    )
    ready(driver, "by('compare-status').textContent.includes('shown')")
    told = texts(driver, ".texts span")
    wide = 5 if "Difference" in told else 3
    head, *lines = (told[at : at + wide] for at in range(0, len(told), wide))
    return head, {line[0]: line[1:] for line in lines}


@pytest.mark.parametrize("task", TASKS)
def test_a_gain_leads_to_the_losses_at_both_its_lengths(opened, task):
    press_point(opened, GAINS, "yarn, 8K")
    assert texts(opened, "#facts dt") == list(TASKS.values())
    head, lines = press_part(opened, TASKS[task])
    assert head == ["Text", "Tokens", "8K", "4K", "Difference"]
    for at, row in enumerate(with_keys(task, "yarn")):
        long, short = (row[f"loss@{length}"][0] / 512 for length in (8192, 4096))
        told = [float(each) for each in lines[f"{task} {at}"]]
        assert told == pytest.approx([512, long, short, long - short], abs=6e-4)


def test_a_loss_on_key_tokens_leads_to_these_alone_and_a_link_shows_the_same(opened):
    press_point(opened, KEYS, "yarn, 4K")
    head, lines = press_part(opened, TASKS["reach_proofpile"])
    assert head == ["Text", "Tokens", "Nats a token"]
    assert lines["reach_proofpile 0"] == ["–", "–"]
    assert lines["reach_proofpile 3"] == ["3", "3.375"]
    title = texts(opened, "#detail-title")
    assert title == ["yarn · Reach on Proof-pile loss on its own key tokens · 4K"]
    # other methods' own key tokens are other tokens
    others = script(opened, "return [...by('other').options].map((each) => each.textContent)")
    assert others == ["(this method alone)", "yarn · 2K", "yarn · 8K"]
    address = opened.current_url
    opened.get("about:blank")
    opened.get(address)
    ready(opened, "by('compare-status').textContent.includes('shown')")
    assert texts(opened, "#detail-title") == title
    assert "3.375" in texts(opened, ".texts span")


def test_how_far_it_retrieves_leads_to_the_questions(opened):
    script(
        opened,
        "by('compare-status').textContent = '';"
        "LEVAL.board.reach.forEach((line) => { line.retrieval.keptEnds = [4096, null]; });"
        "view.answered = null; drawAnswer();"
        "[...document.querySelectorAll('.reach button')].find((each) =>"
        "each.ariaLabel.endsWith('the probes at 4K')).click()",
    )
    ready(opened, "by('compare-status').textContent.includes('shown')")
    assert texts(opened, "#detail-title") == ["rope · niah_single_1 · 4K"]
    assert script(opened, "return by('compare-status').textContent").startswith("40 questions.")
