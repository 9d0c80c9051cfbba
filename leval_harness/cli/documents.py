"""Commands on L-Eval's files: `data` (there, from where, intact?) and `score` (predictions)."""

import json
from pathlib import Path
from typing import Any

import click

from leval_harness.cli.output import EXISTING_FILE, FOLDER, json_option
from leval_tasks import data as files
from leval_tasks.closed.catalog import TASKS, task_named
from leval_tasks.closed.definition import PREFIX, SCORES, ClosedTask
from leval_tasks.errors import DataError, HubUnreachableError
from leval_tasks.perplexity.documents import CORPORA, corpus_file, read_corpus
from leval_tasks.repetition import repeated_share
from resonance_vllm.errors import printable

MOST_REPEATED = 0.05
"""Share of repeated words above which texts measure copying."""

MOST_WORDS = 32_768
"""Words of a text that are looked at."""

_CHANGED = (
    f"the copy in {files.HUB_REPOSITORY} is not the published file any more; nothing of it was kept"
)


@click.group(
    epilog="Example: leval-harness data fetch --out DATA; leval-harness data verify --data-dir DATA"
)
def data() -> None:
    """List, fetch or verify the documents that the tasks read."""


data_dir_option = click.option(
    "--data-dir",
    help="Folder with L-Eval's files, or the word sample; default LEVAL_DATA_DIR, else the hub.",
)


@data.command("list", epilog="Example: leval-harness data list --data-dir DATA")
@data_dir_option
@json_option
def list_files(data_dir: str | None, as_json: bool) -> None:
    """List the files, their tasks, and whether the source has them."""
    source = files.resolve_source({"data_dir": data_dir})
    present = files.available(source)
    rows = [
        {
            "file": task.file.name,
            "task": task.name,
            "present": task in present,
            "published_documents": task.file.documents,
            "published_questions": task.file.questions,
        }
        for task in TASKS.values()
    ]
    if as_json:
        click.echo(json.dumps({"source": source.kind, "path": source.path, "files": rows}))
        return
    click.echo(f"Source: {source.kind} ({printable(str(source.path))})")
    there = "to be fetched" if source.kind == "hub" else "there"
    for row in rows:
        click.echo(
            f"  {row['file']:32s} {row['task']:24s} {there if row['present'] else 'missing':14s} "
            f"published: {row['published_documents']} documents, "
            f"{row['published_questions']} questions"
        )


@data.command(epilog="Example: leval-harness data verify --data-dir DATA")
@data_dir_option
@json_option
def verify(data_dir: str | None, as_json: bool) -> None:
    """Compare files with the published ones; measure repetition.

    Exit code 1 where a file is truncated, altered or unreadable.
    """
    source = files.resolve_source({"data_dir": data_dir})
    tasks = files.available(source)
    corpora = [each for each in CORPORA if source.folder and corpus_file(each, Path(source.path))]
    if not tasks and not corpora:
        raise files.missing_file(source, next(iter(TASKS.values())))
    rows = [_check(source, task) for task in tasks]
    rows += [_check_texts(each, str(source.path)) for each in corpora]
    for row in rows:
        if row.get("repeated_share", 0.0) > MOST_REPEATED:
            click.echo(
                f"Warning: {row['file']}: {row['repeated_share']:.1%} of the words start a passage "
                f"that was read before; a model predicts it from its first copy",
                err=True,
            )
    _report(rows, as_json)


@data.command(epilog="Example: leval-harness data fetch --out DATA")
@click.option("--out", required=True, type=FOLDER, help="Folder to write the files to.")
@json_option
def fetch(out: Path, as_json: bool) -> None:
    """Fetch all files from the hub data set L4NLP/LEval and check them.

    A file that is not the published one is not kept, and replaces nothing. Files that were fetched
    stay when another one fails. Exit code 1 where one failed or the hub cannot be reached.
    """
    out.mkdir(parents=True, exist_ok=True)
    rows = []
    for task in TASKS.values():
        content, row = b"", _check(files.Source("hub", files.HUB_REPOSITORY), task)
        if row["ok"]:
            content = files.hub_file(task).read_bytes()
            known = task.file.sha256 or task.file.git_blob
            if known and not task.file.is_same(content):
                row = {"file": task.file.name, "ok": False, "problem": _CHANGED}
        if row["ok"]:
            target = out / task.file.name
            partial = target.with_suffix(".part")
            partial.write_bytes(content)
            row["path"] = str(partial.replace(target))
        rows.append(row)
    _report(rows, as_json)


def _check(source: files.Source, task: ClosedTask) -> dict[str, Any]:
    """Read a task's file; what was found, or why it could not be used."""
    try:
        file = files.load(source, task)
    except HubUnreachableError:
        raise
    except DataError as error:
        return {"file": task.file.name, "ok": False, "problem": str(error)}
    return {
        "file": file.name,
        "ok": True,
        "verified": file.verified,
        "documents": len(file.records),
        "questions": file.questions,
        "sha256": file.sha256,
    }


def _check_texts(corpus: str, folder: str) -> dict[str, Any]:
    """Read a file of texts; how many they are and what share of their words repeats a passage."""
    file = f"{corpus}.jsonl"
    try:
        texts, _ = read_corpus(corpus, folder)
    except DataError as error:
        return {"file": file, "ok": False, "problem": str(error)}
    words = [each.text.split()[:MOST_WORDS] for each in texts]
    total = sum(map(len, words))
    repeated = sum(repeated_share(each) * len(each) for each in words)
    share = repeated / total if total else 0.0
    return {"file": file, "ok": True, "documents": len(texts), "repeated_share": round(share, 6)}


def _report(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Print the rows; exit code 1 where one is not fine."""
    lines = [f"  {row['file']:32s} {_state(row)}" for row in rows]
    click.echo(json.dumps(rows) if as_json else "\n".join(lines))
    if not all(row["ok"] for row in rows):
        raise click.exceptions.Exit(1)


def _state(row: dict[str, Any]) -> str:
    if not row["ok"]:
        return f"FAILED: {row['problem']}"
    if "repeated_share" in row:
        return f"{row['documents']} texts, {row['repeated_share']:.1%} repeated"
    state = "as published" if row["verified"] else "not the published bytes"
    counts = f"{row['documents']} documents, {row['questions']} questions"
    return f"{state}: {counts}, SHA-256 {row['sha256'][:16]}"


*keys, last_key = (task.key for task in TASKS.values())


@click.command(epilog="Example: leval-harness score --task coursera coursera.pred.jsonl")
@click.option("--task", required=True, help=f"{', '.join(keys)} or {last_key}; also as {PREFIX}….")
@json_option
@click.argument("predictions", type=EXISTING_FILE)
def score(task: str, as_json: bool, predictions: Path) -> None:
    """Score PREDICTIONS with L-Eval's official rules, in percent.

    Each line is a JSON object with the reference under "gt" and the response under a key that
    contains "_pred". Lines that are not JSON are dropped and counted, and so are records whose
    "evaluation" is none that the official scorer takes (f1, rouge, exam).
    """
    from leval_tasks.closed.predictions import read

    chosen = task_named(task, "--task")
    found = read(predictions)
    judged = [chosen.rule.judge(response, gold) for response, gold in found.pairs]
    rows = [chosen.score_judged(each, at) for at, each in zip(found.places, judged, strict=True)]
    figures = chosen.aggregate(rows)
    shown = (*SCORES, "unparsed", *chosen.rule.parts)
    row = {
        "task": chosen.key,
        "n": len(rows),
        **{name: _percent(figures[name]) for name in shown if name in figures},
        "dropped_lines": found.dropped,
        **({"skipped_records": found.skipped} if found.skipped else {}),
    }
    if as_json:
        click.echo(json.dumps(row))
        return
    click.echo(f"{printable(str(predictions))} ({found.key}), {len(rows)} responses")
    if found.dropped:
        click.echo(f"{found.dropped} lines are not JSON and are left out.", err=True)
    if found.skipped:
        click.echo(f"{found.skipped} records are skipped for their 'evaluation'.", err=True)
    for name, value in row.items():
        if isinstance(value, float):
            click.echo(f"  {name:20s} {value:9.4f} %")


def _percent(fraction: float) -> float:
    return round(100 * fraction, 4)  # the official scorer's four decimals
