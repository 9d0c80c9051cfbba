"""`leval-harness data`: which documents are there, from where, intact or not."""

import json
from pathlib import Path
from typing import Any

import click

from leval_border.errors import printable
from leval_harness.cli.output import FOLDER, json_option
from leval_tasks import data
from leval_tasks.closed.catalog import TASKS
from leval_tasks.closed.definition import ClosedTask
from leval_tasks.errors import DataError, HubUnreachableError
from leval_tasks.perplexity.documents import CORPORA, corpus_file, read_corpus
from leval_tasks.repetition import repeated_share

MOST_REPEATED = 0.05
"""Share of repeated words above which texts measure copying."""

MOST_WORDS = 32_768
"""Words of a text that are looked at."""

_CHANGED = (
    f"the copy in {data.HUB_REPOSITORY} is not the published file any more; nothing of it was kept"
)


@click.group(
    epilog="Example: leval-harness data fetch --out DATA; leval-harness data verify --data-dir DATA"
)
def command() -> None:
    """List, fetch or verify the documents that the tasks read."""


data_dir_option = click.option(
    "--data-dir",
    help="Folder with L-Eval's files, or the word sample; default LEVAL_DATA_DIR, else the hub.",
)


@command.command("list", epilog="Example: leval-harness data list --data-dir DATA")
@data_dir_option
@json_option
def list_files(data_dir: str | None, as_json: bool) -> None:
    """List the files, their tasks, and whether the source has them."""
    source = data.resolve_source({"data_dir": data_dir})
    present = data.available(source)
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


@command.command(epilog="Example: leval-harness data verify --data-dir DATA")
@data_dir_option
@json_option
def verify(data_dir: str | None, as_json: bool) -> None:
    """Compare files with the published ones; measure repetition.

    Exit code 1 where a file is truncated, altered or unreadable.
    """
    source = data.resolve_source({"data_dir": data_dir})
    tasks = data.available(source)
    corpora = [each for each in CORPORA if source.folder and corpus_file(each, Path(source.path))]
    if not tasks and not corpora:
        raise data.missing_file(source, next(iter(TASKS.values())))
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


@command.command(epilog="Example: leval-harness data fetch --out DATA")
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
        content, row = b"", _check(data.Source("hub", data.HUB_REPOSITORY), task)
        if row["ok"]:
            content = data.hub_file(task).read_bytes()
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


def _check(source: data.Source, task: ClosedTask) -> dict[str, Any]:
    """Read a task's file; what was found, or why it could not be used."""
    try:
        file = data.load(source, task)
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
