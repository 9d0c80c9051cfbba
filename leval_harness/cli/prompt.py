"""`leval-harness prompt`: the prompts that a model gets."""

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from leval_harness.cli.output import examples, json_option, model_path
from leval_tasks.common.metadata import FRAMES
from resonance_vllm.common.hub import check_folder_exists

if TYPE_CHECKING:
    from leval_tasks.closed.prompts import QuestionPrompts

SETTINGS = ("data_dir", "truncation", "frame")
"""Options that are settings of the task."""
END_CHARACTERS = 160
"""Characters that are printed of each end of a piece of the document."""


@click.command(
    epilog=examples(
        "leval-harness prompt leval_closed_toefl --model smollm2 --data-dir sample -n 1"
    )
)
@click.argument("task")
@click.option(
    "-n", "count", type=click.IntRange(min=1), default=3, help="Number of questions to show."
)
@click.option(
    "--model",
    required=True,
    callback=model_path,
    help="Checkpoint or tokenizer: a folder, a name on the hub, or smollm2.",
)
@click.option(
    "--data-dir",
    help="Folder with L-Eval's files, or the word sample for the bundled sample.",
    show_default="LEVAL_DATA_DIR, else the hub",
)
@click.option(
    "--context-length",
    type=click.IntRange(min=1),
    help="Tokens of prompt and answer together; longer documents are cut.",
    show_default="the checkpoint's limit",
)
@click.option(
    "--max-gen-toks",
    type=click.IntRange(min=1),
    default=512,
    help="Tokens of the context that are reserved for the answer.",
)
@click.option(
    "--truncation",
    type=click.Choice(["middle", "right", "left", "skip"]),
    help="Side on which a document that is too long is cut; skip leaves its questions out.",
    show_default="the task's protocol",
)
@click.option(
    "--frame",
    type=click.Choice(FRAMES),
    help="Text around document and question.",
    show_default="chat_template with --apply-chat-template, else llama2",
)
@click.option(
    "--apply-chat-template",
    "--apply_chat_template",  # lm-eval's spelling, which the tasks' messages use
    "chat",
    is_flag=True,
    help="Render the prompt with the model's chat template.",
)
@json_option
def prompt(
    task: str, model: str, context_length: int | None, as_json: bool, **options: Any
) -> None:
    """Show the prompts of TASK for a model: token counts, and where documents are cut.

    TASK is one of L-Eval's closed-ended tasks. Documents are abbreviated; --json has the prompts in
    full.
    """
    from leval_tasks.closed.catalog import task_named
    from leval_tasks.closed.task import LEvalClosedTask
    from leval_tasks.common.model import find_tokenizer

    metadata = {name: options[name] for name in SETTINGS if options[name] is not None}
    metadata["pretrained"] = model
    task_name = task_named(task, "TASK").name
    check_folder_exists(model, "--model")
    # before data is fetched, so that a model that does not exist is reported at once
    tokenizer = find_tokenizer(metadata)
    if context_length:
        # nothing runs here, so there is no backend whose limit could be exceeded
        metadata["context_length"] = context_length
        metadata["max_length"] = context_length
    generation = {"max_gen_toks": options["max_gen_toks"]}
    closed = LEvalClosedTask(
        {"task": task_name, "metadata": metadata, "generation_kwargs": generation}
    )
    template = None
    if options["chat"]:
        template = partial(
            tokenizer.apply_chat_template, tokenize=False, add_generation_prompt=True
        )
    closed.prepare(template)
    summary = closed.config.metadata["prompt"]
    docs = closed.test_docs()[: options["count"]]
    if as_json:
        questions = [{**doc, "prompts": closed.prompts_of(doc).arguments(template)} for doc in docs]
        content = {"about": summary, "questions": questions}
        click.echo(json.dumps(content, ensure_ascii=False))
        return
    click.echo(
        f"{closed.task_name}: context {summary['context_length']} tokens, "
        f"{summary['generated_tokens']} of them for the answer; prompt template: {summary['frame']}"
    )
    for doc in docs:
        _print_question(doc, closed.prompts_of(doc), template)


def _print_question(doc: dict[str, Any], prompts: "QuestionPrompts", template: Any) -> None:
    """Print the token counts and the prompts of one question."""
    cut = doc["prompt"]
    click.echo(
        f"\n=== document {doc['document_id']}, question {doc['question_id']}: "
        f"{cut['prompt_tokens']} tokens; document {cut['document_tokens']} tokens, kept "
        f"{cut['kept_head']} at the beginning and {cut['kept_tail']} at the end"
    )
    click.echo(_first_prompt(prompts, cut))
    for text in prompts.arguments(template)[1:]:
        click.echo(f"--- second prompt, without the document\n{text}")


def _first_prompt(prompts: "QuestionPrompts", cut: dict[str, Any]) -> str:
    """Return the first prompt with its document abbreviated and the cut marked."""
    pieces = [_abbreviated(piece) for piece in prompts.pieces]
    if cut["truncated"]:
        dropped = cut["document_tokens"] - cut["kept_head"] - cut["kept_tail"]
        mark = f"\n[... cut here: {dropped} tokens dropped ...]\n"
        head = pieces[0] if cut["kept_head"] else ""
        tail = pieces[-1] if cut["kept_tail"] else ""
        pieces = [head, mark, tail]
    first = prompts.prompts[0]
    return first.before + "".join(pieces) + first.after


def _abbreviated(text: str) -> str:
    """Return a text, without its middle where it is long."""
    hidden = len(text) - 2 * END_CHARACTERS
    if hidden <= 0:
        return text
    head = text[:END_CHARACTERS]
    tail = text[-END_CHARACTERS:]
    return f"{head}\n[... {hidden} characters not shown ...]\n{tail}"
