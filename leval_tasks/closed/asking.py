"""From questions and their documents to prompts that fit the context, in the frame of the run."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from leval_tasks.closed.definition import ClosedTask
from leval_tasks.closed.fitting import TokenizedDocument, fit
from leval_tasks.closed.frames import FRAMES, TITLES
from leval_tasks.closed.prompts import (
    Asked,
    ChatTemplate,
    Frame,
    Prompt,
    chat_frame,
    frame_name,
    plain,
)
from leval_tasks.context import Context, adds_bos, resolve_context
from leval_tasks.errors import ContextLengthError
from leval_tasks.metadata import ClosedSettings
from leval_tasks.tokenizer import find_tokenizer, tokenizer_name

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Asking:
    """How the questions of a run are asked.

    Attributes:
        asked: (document, question) -> its prompts; without those whose document is left out.
        context: the length, and what decided it.
        frame: the setting that names the frame.
        generated: tokens of an answer.
        about: what results say of the prompts.
    """

    asked: dict[tuple[str, int], Asked]
    context: Context
    frame: str
    generated: int
    about: dict[str, Any]


def ask(
    task: ClosedTask,
    questions: Iterable[tuple[str, list[dict[str, Any]]]],
    settings: ClosedSettings,
    run: Mapping[str, Any],
    *,
    template: ChatTemplate | None,
    system_instruction: str,
    generated: int,
) -> Asking:
    """Make the prompts of each document's questions, and fit the document.

    Args:
        task: the task.
        questions: text of a document and its questions, which get their counts under `prompt`.
        settings: of the task, `truncation` filled in.
        run: lm-eval's metadata.
        template: the chat template that is applied.
        system_instruction: goes before the system prompt.
        generated: tokens of an answer.

    Raises:
        TaskError: no tokenizer or context length is known, or the prompts do not fit.
        SettingError: the frame does not go with the template.
    """
    tokenizer, context = find_tokenizer(run), resolve_context(run)
    extra = f"{system_instruction}\n\n" if system_instruction else ""
    frame, prompts_of = _frame(settings, template, tokenizer)
    asked: dict[tuple[str, int], Asked] = {}
    longest = 0
    for text, docs in questions:
        prompts = [prompts_of(task.frame, doc["question"], extra) for doc in docs]
        further = [each for _, *rest in prompts for each in rest if each.has_document]
        document = TokenizedDocument(text, tokenizer)
        cut, lengths = fit(
            document,
            [*(first for first, *_ in prompts), *further],
            context.length - generated,
            side=str(settings.truncation),
            unit=settings.truncation_unit,
            add_bos=adds_bos(run),
        )
        if cut is None:
            continue
        longest = max(longest, *lengths)
        pieces = tuple(text[start:end] for start, end in cut.spans)
        for doc, each, tokens in zip(docs, prompts, lengths, strict=False):
            asked[doc["document_id"], doc["question_id"]] = Asked(tuple(each), pieces)
            doc["prompt"] = {
                "prompt_tokens": tokens,
                "document_tokens": len(document),
                "kept_head": cut.head,
                "kept_tail": cut.tail,
                "truncated": cut.truncated,
            }
    if context.limit is not None and longest + generated > context.limit:
        generated = _left_for_the_answer(longest, context, context.limit)
    example = next((each.prompts[0] for each in asked.values()), Prompt("", ""))
    about = {
        "context_length": context.length,
        "context_length_from": context.origin,
        "generated_tokens": generated,
        "tokenizer": tokenizer_name(run),
        "frame": TITLES.get(frame, frame),
        "system_role": example.system_role,
        "answer_prefix": example.lead_in,
    }
    return Asking(asked, context, frame, generated, about)


def _frame(
    settings: ClosedSettings, template: ChatTemplate | None, tokenizer: Any
) -> tuple[str, Callable[[Frame, str, str], list[Prompt]]]:
    """Name of the frame, and what makes a question's prompts in it."""
    name = frame_name(settings.frame, template)
    if template is None:
        return name, partial(plain, layout=FRAMES[name])
    lead_in = settings.answer_prefix
    return name, chat_frame(template, tokenizer, lead_in, FRAMES.get(name)).prompts


def _left_for_the_answer(longest: int, context: Context, limit: int) -> int:
    """Tokens of an answer where L-Eval's own cut, which counts the document alone, takes more.

    The scripts' positions ran past the model's limit there; a backend would cut the prompt.
    """
    if longest >= limit:
        raise ContextLengthError(
            f"max_length: {limit} is not enough for a prompt of {longest} tokens: L-Eval's own cut "
            f"gives document and answer alone the {context.length} tokens of context_length; give "
            f"max_length={longest + 1} or more (max_model_len for vllm) in --model_args, or a "
            "smaller context_length"
        )
    logger.warning(
        "truncation_unit words: frame and question leave %d tokens to an answer", limit - longest
    )
    return limit - longest
