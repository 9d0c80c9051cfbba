"""The prompts of a run's questions, with the documents fitted into them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leval_tasks.closed import budget
from leval_tasks.closed.counting import Document
from leval_tasks.closed.definition import ClosedTask
from leval_tasks.closed.prompts import ChatTemplate, Prompt, chat_frame, plain
from leval_tasks.closed.settings import generation_tokens
from leval_tasks.context import is_chat_server, is_tokenized_api, resolve_context
from leval_tasks.metadata import ClosedSettings
from leval_tasks.tokenizer import find_tokenizer, tokenizer_name


@dataclass(frozen=True)
class Asked:
    """A question as the model is asked.

    Attributes:
        prompts: its prompts, the first about the document.
        pieces: what is kept of the document: one piece, two where its middle is cut.
        lengths: what a sample records of them, in tokens.
    """

    prompts: tuple[Prompt, ...]
    pieces: tuple[str, ...]
    lengths: dict[str, Any]

    def arguments(self, template: ChatTemplate | None) -> list[Any]:
        """What the backend is given, one item a prompt.

        Args:
            template: the backend's chat template; None for the Llama-2 frame.
        """
        kept = "".join(self.pieces)
        return [
            template(prompt.fill(kept)) if prompt.messages and template else prompt.text(kept)
            for prompt in self.prompts
        ]


class Asker:
    """Asks one task's questions as one run wants them asked.

    Args:
        task: the task.
        settings: what was asked for.
        run: lm-eval's metadata, which names model and tokenizer.
        generation: lm-eval's generation arguments.
        template: the backend's chat template; None for the Llama-2 frame.
        system_instruction: text to go before the task's own system prompt.

    Raises:
        TaskError: no tokenizer or context length is known.
    """

    def __init__(
        self,
        task: ClosedTask,
        settings: ClosedSettings,
        run: Mapping[str, Any],
        generation: Mapping[str, Any],
        template: ChatTemplate | None,
        system_instruction: str,
    ) -> None:
        self.task, self.settings, self.run = task, settings, run
        self.tokenizer = find_tokenizer(run)
        self.context = resolve_context(run)
        self.generated = generation_tokens(generation)
        self.extra = f"{system_instruction}\n\n" if system_instruction else ""
        self.chat = None
        if template is not None:
            self.chat = chat_frame(template, self.tokenizer, settings.answer_prefix)

    def ask(self, text: str, questions: Sequence[str]) -> list[Asked] | None:
        """All questions about a document, with one cut; None where `skip` leaves it out.

        Raises:
            ContextLengthError: instructions and question alone do not fit.
        """
        made = [self._prompts(question) for question in questions]
        document = Document(text, self.tokenizer)
        fitted = budget.fit(
            document,
            [first for first, *_ in made],
            self.context.length - self.generated,
            side=str(self.settings.truncation),
            unit=self.settings.truncation_unit,
            add_bos=self._add_bos(),
        )
        if fitted.cut is None:
            return None
        cut = fitted.cut
        pieces = tuple(text[start:end] for start, end in cut.spans)
        lengths = {
            "document_tokens": len(document),
            "kept_head": cut.head,
            "kept_tail": cut.tail,
            "truncated": cut.truncated,
        }
        return [
            Asked(tuple(each), pieces, {"prompt_tokens": tokens, **lengths})
            for each, tokens in zip(made, fitted.prompt_tokens, strict=True)
        ]

    def described(self, example: Prompt) -> dict[str, Any]:
        """What the results record about the prompts, of which one is an example."""
        return {
            "context_length": self.context.length,
            "context_length_from": self.context.origin,
            "generated_tokens": self.generated,
            "tokenizer": tokenizer_name(self.run),
            "frame": "llama-2" if self.chat is None else "chat template",
            "system_role": example.system_role,
            "answer_prefix": example.lead_in,
        }

    def _prompts(self, question: str) -> list[Prompt]:
        if self.chat is None:
            return plain(self.task.frame, question, self.extra)
        return self.chat.prompts(self.task.frame, question, self.extra)

    def _add_bos(self) -> bool | None:
        """Whether the backend adds the first token; None where it follows the tokenizer."""
        if is_chat_server(self.run):
            return False
        given = self.run.get("add_bos_token")
        if given is None and not is_tokenized_api(self.run):
            return None
        return str(given).lower() == "true"
