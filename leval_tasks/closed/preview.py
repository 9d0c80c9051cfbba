"""The exact prompts of a task for a model, without running the model."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from leval_tasks.closed.prompts import Asked
from leval_tasks.tokenizer import load_tokenizer


def preview(
    task_name: str, metadata: Mapping[str, Any], count: int, *, chat: bool, max_gen_toks: int
) -> tuple[list[tuple[dict[str, Any], Asked, list[str]]], dict[str, Any]]:
    """Build the first `count` prompts of a closed-ended task, `metadata` as lm-eval would pass it.

    Returns:
        For each question the sample's `doc`, how it is asked, and exactly what the backend is
        given, one text a generation; and what the task records about its prompts.

    Raises:
        TaskError: a setting, the data or the tokenizer is not usable.
    """
    from leval_tasks.closed.task import LEvalClosedTask

    config = {
        "task": task_name,
        "metadata": dict(metadata),
        "generation_kwargs": {"max_gen_toks": max_gen_toks},
    }
    task = LEvalClosedTask(config)
    template = None
    if chat:
        render = load_tokenizer(metadata).apply_chat_template
        template = partial(render, tokenize=False, add_generation_prompt=True)
    task.prepare(template, "")
    docs = task.test_docs()[:count]
    shown = [(doc, task.asked(doc), task.asked(doc).arguments(template)) for doc in docs]
    return shown, dict(task.config.metadata["prompt"])
