"""The exact prompts of a task for a model, without running the model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from leval_tasks.tokenizer import load_tokenizer


@dataclass(frozen=True)
class Preview:
    """One question's prompts.

    Attributes:
        doc: the sample's `doc`: ids, question, reference, and how the document was cut.
        prompts: exactly what the backend is given, one text a generation.
        before: text before the document in the first prompt.
        pieces: the kept pieces of the document.
        after: text after the document in the first prompt.
    """

    doc: Mapping[str, Any]
    prompts: tuple[str, ...]
    before: str
    pieces: tuple[str, ...]
    after: str


def preview(
    task_name: str, metadata: Mapping[str, Any], count: int, *, chat: bool, max_gen_toks: int
) -> tuple[list[Preview], dict[str, Any]]:
    """Build the first prompts of a task.

    Args:
        task_name: a closed-ended task.
        metadata: the run's settings, as lm-eval would pass them.
        count: number of questions.
        chat: use the tokenizer's chat template.
        max_gen_toks: tokens to leave for the answer.

    Returns:
        The previews, and what the task records about its prompts.

    Raises:
        TaskError: a setting, the data or the tokenizer is not usable.
    """
    from leval_tasks.closed.catalog import task_named
    from leval_tasks.closed.task import LEvalClosedTask

    task = LEvalClosedTask(
        {
            "task": task_named(task_name).name,
            "metadata": dict(metadata),
            "generation_kwargs": {"max_gen_toks": max_gen_toks},
        }
    )
    template = chat_template(metadata) if chat else None
    task.prepare(template, "")
    shown = []
    for doc in task.test_docs()[:count]:
        asked = task.asked(doc)
        first = asked.prompts[0]
        texts = tuple(str(text) for text in asked.arguments(template))
        shown.append(Preview(doc, texts, first.before, asked.pieces, first.after))
    return shown, dict(task.config.metadata["prompt"])


def chat_template(metadata: Mapping[str, Any]) -> Any:
    """The tokenizer's chat template as lm-eval's backends hand it to tasks."""
    tokenizer = load_tokenizer(metadata)

    def render(messages: Any, add_generation_prompt: bool = True) -> str:
        return str(
            tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=add_generation_prompt
            )
        )

    return render
