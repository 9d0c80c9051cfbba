"""The static page: verdict, figures, tables, and every question with the answers to it.

It opens from disk and asks nobody on the network. Every text is escaped, and the page's policy
lets no script run but its own two files: what a model wrote cannot.
"""

import json
import shutil
from base64 import b64encode
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from leval_harness.report.effective_context import compared_frame
from leval_harness.report.figures import write_figures
from leval_harness.report.formats import html, render
from leval_harness.report.labels import length_label, task_label
from leval_harness.report.tables import build_tables
from leval_harness.report.verdict import TERMS, main_numbers, said
from leval_harness.results.lm_eval_samples import sample_lines, samples_file
from leval_harness.results.load import Results
from resonance_vllm.common.errors import UserError
from resonance_vllm.common.files import write_text

TEMPLATES = Path(__file__).parent / "templates"
MARKER = "leval-harness-page.txt"
LONGEST = 1_200
"""Letters of a text on a page of questions."""

NOTES = {"unparsed": "no answer found", "truncated": "document cut", "reached_limit": "hit limit"}


def write_page(results: Results, compared: pd.DataFrame, out: Path, title: str) -> Path:
    """Write a folder that opens from disk and from any web server; the path of its `index.html`.

    Args:
        results: what was read.
        compared: its compared frame.
        out: a new folder, or one with an earlier page, which is replaced.
        title: of the page.

    Raises:
        UserError: `out` holds something that is not a page of ours.
        OSError: it cannot be written.
    """
    from jinja2 import Environment, FileSystemLoader

    if out.exists() and any(out.iterdir()) and not (out / MARKER).is_file():
        raise UserError(
            f"--out: {out} is not empty and holds no leaderboard page; give a new folder"
        )
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    templates = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True)
    write_text(out / MARKER, "Written by leval-harness page; replaced when it is run again.\n")
    write_text(out / "numbers.csv", render([], compared, "csv"))
    _assets(out)
    questions = {}
    for at, (text, page) in enumerate(_questions(results, compared)):
        name = f"questions-{at:03d}.html"
        questions[name] = text
        content = templates.get_template("questions.html.j2").render(title=text, back=title, **page)
        write_text(out / name, content)
    several = compared["model"].nunique() > 1
    across = compared_frame(results, across="models") if several else compared[:0]
    index = templates.get_template("index.html.j2").render(
        title=title,
        sentences=[(label, text.split("`")) for label, text in said(compared)],
        terms=TERMS,
        figures=write_figures(compared, out / "figures"),
        tables=[html(table) for table in build_tables(compared)],
        across=[html(table) for table in build_tables(across)] if several else [],
        questions=questions,
        commands=list(dict.fromkeys(compared["command"].dropna())),
        excluded=results.excluded[:50],
    )
    write_text(out / "index.html", index)
    return out / "index.html"


def _assets(out: Path) -> None:
    """Styles, and DataTables as itables ships it: a module, which opens from disk as data alone."""
    from itables.utils import find_package_file

    bundle = Path(find_package_file("html/dt_bundle.js"))
    encoded = b64encode(bundle.read_bytes()).decode()
    script = f'window.datatables = "data:text/javascript;base64,{encoded}";'
    write_text(out / "datatables.js", script)
    shutil.copyfile(bundle.with_suffix(".css"), out / "datatables.css")
    for name in ("page.css", "page.js"):
        shutil.copyfile(TEMPLATES / name, out / name)


def _questions(results: Results, compared: pd.DataFrame) -> Iterator[tuple[str, dict[str, Any]]]:
    """A title and the content of a page for each block and task, methods side by side."""
    shown = compared[main_numbers(compared) & compared["status"].eq("done")]
    shown = shown[shown["kind"].eq("score")].drop_duplicates(["run", "task"])
    for (block, task), part in shown.groupby(["block", "task"], sort=False):
        rows: dict[str, dict[str, Any]] = {}
        names = []
        for number in part.itertuples():
            names.append(f"{number.label} at {length_label(number.context_length)}")
            for file in filter(None, (samples_file(path, str(task)) for path in number.files)):
                for line in sample_lines(file):
                    if line.get("filter", number.filter) == number.filter:
                        row = _asked(line)
                        same = rows.setdefault(json.dumps([*row.values()]), {**row, "answers": {}})
                        same["answers"][names[-1]] = _answer(line, number.name)
        if rows:
            yield f"{task_label(str(task))}, {block}", {"names": names, "rows": rows.values()}


def _asked(line: Mapping[str, Any]) -> dict[str, str]:
    """The question of a sample, its document and what was expected."""
    doc = line["doc"] if isinstance(line.get("doc"), dict) else {}
    document = doc.get("document_id", line.get("doc_id", ""))
    question = doc.get("question") or doc.get("query") or f"question {line.get('doc_id')}"
    expected = str(doc.get("gold", line.get("target")))
    choices = doc.get("choices")
    if isinstance(choices, list) and expected.isdecimal() and int(expected) < len(choices):
        expected = choices[int(expected)]
    return {"document": _cut(document), "question": _cut(question), "expected": _cut(expected)}


def _answer(line: Mapping[str, Any], metric: str) -> dict[str, str]:
    """What a model answered, its score, and whether it was right."""
    score = line.get(metric)
    shown = f"{score:g}" if isinstance(score, int | float) else ""
    return {
        "text": _cut(_response(line)),
        "score": shown,
        "grade": {"1": "right", "0": "wrong"}.get(shown, ""),
        "notes": ", ".join(text for name, text in NOTES.items() if line.get(name)),
    }


def _response(line: Mapping[str, Any]) -> str:
    """The text of an answer; of choices that were scored the likeliest one."""
    responses = line.get("resps") or []
    first = [each[0] if isinstance(each, list) and each else each for each in responses]
    if first and all(isinstance(e, list) and str(e[-1]) in ("True", "False") for e in first):
        requests = list((line.get("arguments") or {}).values())
        best = max(range(len(first)), key=lambda at: float(first[at][0]))
        return str(requests[best].get("arg_1", "")) if best < len(requests) else ""
    return "\n\n".join(map(str, first))


def _cut(value: object) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= LONGEST else text[:LONGEST] + " … (shortened)"
