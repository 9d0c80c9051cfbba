"""`leval-harness prompt`: what a model is really asked."""

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from leval_harness.cli.output import json_option, model_path
from leval_tasks.common.metadata import FRAMES
from resonance_vllm.common.hub import check_folder_exists

if TYPE_CHECKING:
    from leval_tasks.closed.prompts import QuestionPrompts

SETTINGS = ("data_dir", "truncation", "frame")
SHOWN = 160  # characters of the document that are shown at each end of a kept piece


@click.command(
    epilog="Example: leval-harness prompt leval_closed_toefl -n 1 --model MODEL --data-dir sample"
)
@click.argument("task")
@click.option("-n", "count", type=click.IntRange(min=1), default=3, help="Number of questions.")
@click.option(
    "--model", required=True, callback=model_path,
    help="Checkpoint or tokenizer: a path, a name on the hub, or smollm2.",
)  # fmt: skip
@click.option("--data-dir", help="Folder with L-Eval's files, or the word sample.")
@click.option("--context-length", type=int, help="Default: the checkpoint's limit.")
@click.option("--max-gen-toks", default=512, help="Tokens left for the answer.")
@click.option("--truncation", help="middle, right, left or skip; default as the task's protocol.")
@click.option("--frame", help=f"{', '.join(FRAMES)}.")
@click.option("--apply-chat-template", "chat", is_flag=True, help="Through the model's template.")
@json_option
def prompt(
    task: str, model: str, context_length: int | None, as_json: bool, **options: Any
) -> None:
    """Show the prompts of TASK for a model, token counts and the cut; whole with --json."""
    from leval_tasks.closed.catalog import task_named
    from leval_tasks.closed.task import LEvalClosedTask
    from leval_tasks.common.model import find_tokenizer

    metadata = {name: options[name] for name in SETTINGS if options[name] is not None}
    metadata["pretrained"] = model
    named = task_named(task, "TASK").name
    check_folder_exists(model, "model")
    tokenizer = find_tokenizer(metadata)  # a model that is not there is said before data is fetched
    if context_length:
        # nothing runs here, so there is no backend whose limit could be passed
        metadata |= {"context_length": context_length, "max_length": context_length}
    answer = {"max_gen_toks": options["max_gen_toks"]}
    closed = LEvalClosedTask({"task": named, "metadata": metadata, "generation_kwargs": answer})
    rendered = partial(tokenizer.apply_chat_template, tokenize=False, add_generation_prompt=True)
    template = rendered if options["chat"] else None
    closed.prepare(template)
    about = closed.config.metadata["prompt"]
    docs = closed.test_docs()[: options["count"]]
    if as_json:
        rows = [{**doc, "prompts": closed.prompts_of(doc).arguments(template)} for doc in docs]
        click.echo(json.dumps({"about": about, "questions": rows}, ensure_ascii=False))
        return
    click.echo(
        f"{closed.task_name}: context {about['context_length']} tokens, "
        f"{about['generated_tokens']} of them for the answer; prompt template: {about['frame']}"
    )
    for doc in docs:
        cut, prompts = doc["prompt"], closed.prompts_of(doc)
        click.echo(
            f"\n=== document {doc['document_id']}, question {doc['question_id']}: "
            f"{cut['prompt_tokens']} tokens; document {cut['document_tokens']} tokens, kept "
            f"{cut['kept_head']} at the beginning and {cut['kept_tail']} at the end"
        )
        click.echo(_first_prompt(prompts, cut))
        for text in prompts.arguments(template)[1:]:
            click.echo(f"--- second prompt, without the document\n{text}")


def _first_prompt(prompts: "QuestionPrompts", cut: dict[str, Any]) -> str:
    """The prompt with the ends of its document, the cut marked where it is."""
    pieces = [_ends(piece) for piece in prompts.pieces]
    if cut["truncated"]:
        dropped = cut["document_tokens"] - cut["kept_head"] - cut["kept_tail"]
        head = pieces[0] if cut["kept_head"] else ""
        tail = pieces[-1] if cut["kept_tail"] else ""
        pieces = [head, f"\n[... cut here: {dropped} tokens left out ...]\n", tail]
    first = prompts.prompts[0]
    return first.before + "".join(pieces) + first.after


def _ends(text: str) -> str:
    hidden = len(text) - 2 * SHOWN
    shown = f"{text[:SHOWN]}\n[... {hidden} characters not shown ...]\n{text[-SHOWN:]}"
    return shown if hidden > 0 else text
