"""`leval-harness prompt`: what a model is really asked."""

import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from leval_tasks.closed.prompts import Asked

SHOWN = 160  # characters of the document that are shown at each end of a kept piece


@click.command(
    epilog="Example: leval-harness prompt leval_toefl -n 1 --model MODEL --data-dir sample"
)
@click.argument("task")
@click.option("-n", "count", default=3, show_default=True, help="Number of questions.")
@click.option("--model", required=True, help="Checkpoint or tokenizer, a name or a path.")
@click.option("--data-dir", help="Folder with L-Eval's files, or the word sample.")
@click.option("--context-length", type=int, help="Default: the checkpoint's limit.")
@click.option("--max-gen-toks", default=512, show_default=True, help="Tokens left for the answer.")
@click.option("--truncation", help="middle, right, left or skip; default as the task's protocol.")
@click.option("--apply-chat-template", is_flag=True, help="Through the model's own template.")
@click.option("--full", is_flag=True, help="Print the document too, not only its ends.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON alone on stdout.")
def command(
    task: str,
    count: int,
    model: str,
    data_dir: str | None,
    context_length: int | None,
    max_gen_toks: int,
    truncation: str | None,
    apply_chat_template: bool,
    full: bool,
    as_json: bool,
) -> None:
    """Show the exact prompts of TASK for a model, their token counts and the cut."""
    from leval_tasks.closed.catalog import task_named
    from leval_tasks.closed.preview import preview

    task = task_named(task, "TASK").name
    metadata: dict[str, Any] = {"pretrained": model, "data_dir": data_dir, "truncation": truncation}
    if context_length:
        # nothing runs here, so there is no backend whose limit could be passed
        metadata |= {"context_length": context_length, "max_length": context_length}
    shown, about = preview(
        task, metadata, count, chat=apply_chat_template, max_gen_toks=max_gen_toks
    )
    if as_json:
        rows = [{**doc, "prompts": prompts} for doc, _, prompts in shown]
        click.echo(json.dumps({"about": about, "questions": rows}, ensure_ascii=False))
        return
    click.echo(
        f"{task}: context {about['context_length']} tokens ({about['context_length_from']}), "
        f"{about['generated_tokens']} of them for the answer; frame: {about['frame']}"
    )
    for doc, asked, prompts in shown:
        show(doc, asked, prompts, full)


def show(doc: dict[str, Any], asked: "Asked", prompts: list[str], full: bool) -> None:
    """Print one question's prompts."""
    cut = doc["prompt"]
    click.echo("")
    click.echo(
        f"=== document {doc['document_id']}, question {doc['question_id']}: "
        f"{cut['prompt_tokens']} tokens; document {cut['document_tokens']} tokens, kept "
        f"{cut['kept_head']} at the beginning and {cut['kept_tail']} at the end"
    )
    dropped = cut["document_tokens"] - cut["kept_head"] - cut["kept_tail"]
    mark = f"\n[... cut here: {dropped} tokens left out ...]\n" if cut["truncated"] else ""
    pieces = [piece if full else shorten(piece) for piece in asked.pieces]
    if cut["kept_tail"] and not cut["kept_head"]:
        pieces.insert(0, "")
    elif cut["truncated"] and len(pieces) == 1:
        pieces.append("")
    click.echo(asked.prompts[0].before + mark.join(pieces) + asked.prompts[0].after)
    for extra in prompts[1:]:
        click.echo("--- second prompt, without the document")
        click.echo(extra)


def shorten(text: str) -> str:
    """The ends of a text."""
    if len(text) <= 2 * SHOWN:
        return text
    return (
        f"{text[:SHOWN]}\n[... {len(text) - 2 * SHOWN} characters not shown ...]\n{text[-SHOWN:]}"
    )
