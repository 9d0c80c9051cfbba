"""The prompts of L-Eval's closed-ended tasks, and documents that are cut to fit into them.

The texts are those of OpenLMLab/LEval cd34b050, `Baselines/llama2-chat-test.py` with `--metric
exam_eval`,
misspellings included, because scores are comparable only with them. Lengths are counted in the
model's own tokens.
All questions about a document get the same cut, that of the longest one, so that their prompts
share a prefix.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jinja2.exceptions import TemplateError

from leval_tasks.closed.catalog import ClosedTask
from leval_tasks.closed.thinking import opens_thinking
from leval_tasks.common.chat import ChatTemplate, Message, count_tokens
from leval_tasks.common.errors import ContextLengthError
from leval_tasks.common.model import tokenize_with_offsets
from resonance_vllm.common.errors import SettingError

CHAT_TEMPLATE = "chat_template"

DOCUMENT_MARK = "@@LEVAL-DOCUMENT@@"
"""Represents the document while a template is rendered."""

USER_PROBE = "USER-PROBE"
"""Message of the user by which a template is tried."""

SYSTEM_PROBE = "SYSTEM-PROBE"
"""System message by which a template is tried."""

ANSWER = "Answer:"
DIRECTLY = "Please directly give the answer without any additional output or explanation "

CONTENT = {
    "steps": ("", "\n\n{question}"),
    "record": ("", "\n\n{question}"),
    "question": ("Document is as follows. ", " \nQuestion: {question}.  " + DIRECTLY),
}
"""The user's message in each form of `ClosedTask`: the text before a document and after it."""

SECOND = "Please directly answer without any additional output or explanation. "
"""Follows SFiction's question about the real world, which has a prompt of its own."""

FRAMES = {
    "llama2": (
        "[INST]<<SYS>>\n{system}\n<</SYS>>\n\n",
        {"steps": "", "record": "[/INST]", "question": f"[/INST]\n{ANSWER}"},
    ),
    "plain": ("{system}\n\n", {"steps": "", "record": "", "question": f"\n{ANSWER}"}),
}
"""The frames of plain text: what precedes the user's message, and what follows it in each form."""


@dataclass(frozen=True)
class Prompt:
    """A prompt around a document.

    Attributes:
        before: text before the document.
        after: text after the document.
        messages: for chat servers, the messages with `DOCUMENT_MARK` in place of the document. The
            texts are then what the server is expected to render, and are used for counting only.
    """

    before: str
    after: str
    messages: tuple[Message, ...] = ()

    def argument(self, document: str, template: ChatTemplate | None = None) -> Any:
        """Return the backend's input with a document in it; messages go through a server's template."""
        if not self.messages or template is None:
            return self.before + document + self.after
        messages = []
        for message in self.messages:
            content = message["content"].replace(DOCUMENT_MARK, document)
            messages.append({**message, "content": content})
        return template(messages)


@dataclass(frozen=True)
class QuestionPrompts:
    """The prompts of one question.

    Attributes:
        prompts: the prompt about the document, and for some tasks a second one without it.
        pieces: the kept pieces of the document.
    """

    prompts: tuple[Prompt, ...]
    pieces: tuple[str, ...]

    def arguments(self, template: ChatTemplate | None) -> list[Any]:
        """Return the backend's input for each prompt."""
        about_document, *others = self.prompts
        arguments = [about_document.argument("".join(self.pieces), template)]
        arguments += [prompt.argument("", template) for prompt in others]
        return arguments


class PromptWriter:
    """Writes the prompts of questions in one frame.

    Args:
        frame: name of the frame.
        tokenizer: renders messages in place of a chat server's template, for counting.
        template: lm-eval's chat template; None for a frame of plain text. It is tried once here.
        answer_prefix: whether `Answer:` begins the assistant's message or ends the user's. It
            always ends the
            user's on a chat server, and where the template opens the model's thinking.
        system_instruction: precedes the system prompt.
    """

    def __init__(
        self,
        frame: str,
        tokenizer: Any = None,
        template: ChatTemplate | None = None,
        answer_prefix: str = "assistant",
        system_instruction: str = "",
    ) -> None:
        self.frame = frame
        self.tokenizer = tokenizer
        self.template = template
        self.system_instruction = system_instruction
        if template is not None:
            self._try_template(template, answer_prefix)

    def _try_template(self, template: ChatTemplate, answer_prefix: str) -> None:
        """Find out whether a template is a server's, keeps system messages, and opens the thinking."""
        message = {"role": "user", "content": USER_PROBE}
        self.for_server = not isinstance(template([message]), str)
        self.has_system_role = self._keeps_system_message(message)
        after_message = self._text([message]).rpartition(USER_PROBE)[2]
        thinks = opens_thinking(after_message, "</think>")
        self.answer_prefix = "user" if self.for_server or thinks else answer_prefix

    def _keeps_system_message(self, user_message: Message) -> bool:
        """Return whether a system message survives the template; lm-eval drops it where that fails."""
        system_message = {"role": "system", "content": SYSTEM_PROBE}
        try:
            text = self._text([system_message, user_message])
        except (TemplateError, ValueError):
            return False
        return SYSTEM_PROBE in text

    def prompts(self, task: ClosedTask, question: str) -> list[Prompt]:
        """Return the prompt about the document, and the second one for a task that has it.

        Raises:
            SettingError: the chat template refuses the messages.
        """
        system = task.system_prompt
        if self.system_instruction:
            system = f"{self.system_instruction}\n\n{system}"
        before, after = CONTENT[task.form]
        after = after.replace("{question}", question)
        second_question = None
        if task.second_question is not None:
            second_question = task.second_question(question) + SECOND
        if self.template is None:
            return self._plain_prompts(task, system, before, after, second_question)
        answer_prefix = self.answer_prefix if task.form == "question" else ""
        prompts = [self._rendered(system, before + DOCUMENT_MARK + after, answer_prefix)]
        if second_question is not None:
            prompts.append(self._rendered("", second_question, answer_prefix))
        return prompts

    def _plain_prompts(
        self, task: ClosedTask, system: str, before: str, after: str, second_question: str | None
    ) -> list[Prompt]:
        """Return the prompts of a question in a frame of plain text."""
        head, tails = FRAMES[self.frame]
        prompts = [Prompt(head.replace("{system}", system) + before, after + tails[task.form])]
        if second_question is not None:
            prompts.append(Prompt(f"{second_question}\n{ANSWER}", ""))
        return prompts

    def _rendered(self, system: str, user: str, answer_prefix: str) -> Prompt:
        """Return the prompt of a system prompt, which may be empty, and a user's message.

        Raises:
            SettingError: the chat template refuses the messages.
        """
        if answer_prefix == "user":
            user = f"{user}\n{ANSWER}"
        messages = []
        if system and self.has_system_role:
            messages.append({"role": "system", "content": system})
        elif system:
            user = f"{system}\n\n{user}"
        messages.append({"role": "user", "content": user})
        try:
            text = self._text(messages)
        except TemplateError as error:
            raise SettingError(
                f"frame: the model's chat template refuses ({error}); use plain or llama2 without "
                "--apply_chat_template"
            ) from error
        if answer_prefix == "assistant":
            text += ANSWER
        before, _, after = text.partition(DOCUMENT_MARK)
        return Prompt(before, after, tuple(messages) if self.for_server else ())

    def _text(self, messages: Sequence[Message]) -> str:
        """Return rendered messages; for a chat server what the tokenizer renders."""
        if not self.for_server and self.template is not None:
            return str(self.template(messages))
        if not getattr(self.tokenizer, "chat_template", None):
            return "\n".join(message["content"] for message in messages)
        render = self.tokenizer.apply_chat_template
        return str(render(messages, tokenize=False, add_generation_prompt=True))


def frame_name(requested: str | None, template: ChatTemplate | None) -> str:
    """Return the frame of a run: the requested one, else the chat template's or Llama-2's.

    Raises:
        SettingError: the frame needs a chat template and there is none, or excludes one.
    """
    default = "llama2" if template is None else CHAT_TEMPLATE
    name = requested or default
    if name == CHAT_TEMPLATE and template is None:
        raise SettingError(f"frame: {name!r} needs --apply_chat_template")
    if name != CHAT_TEMPLATE and template is not None:
        raise SettingError(f"frame: {name!r} is plain text; omit --apply_chat_template")
    return name


@dataclass(frozen=True)
class Cut:
    """What is kept of a document.

    Attributes:
        pieces: the kept text, in two pieces around a cut in the middle.
        head: tokens kept at the beginning; all of them where nothing is cut.
        tail: tokens kept at the end.
        truncated: whether anything was cut.
    """

    pieces: tuple[str, ...]
    head: int
    tail: int
    truncated: bool


class TokenizedDocument:
    """A document with the character ranges of its tokens.

    Attributes:
        text: the whole document.
        offsets: for each token, its first character and the one after its last.
    """

    def __init__(self, text: str, tokenizer: Any) -> None:
        self.text = text
        self.tokenizer = tokenizer
        _, self.offsets = tokenize_with_offsets(tokenizer, text)

    def __len__(self) -> int:
        return len(self.offsets)

    def keep(self, count: int, side: str) -> Cut:
        """Return a cut that keeps some tokens.

        Args:
            count: number of tokens to keep, at least 1.
            side: where the cut is made: `middle`, `right` or `left`.
        """
        tokens = len(self)
        if count >= tokens:
            return Cut((self.text,), tokens, 0, truncated=False)
        head = {"right": count, "left": 0, "middle": (count + 1) // 2}[side]
        tail = count - head
        pieces = []
        if head:
            head_end = self.offsets[head - 1][1]
            pieces.append(self.text[:head_end])
        if tail:
            tail_start = self.offsets[tokens - tail][0]
            pieces.append(self.text[tail_start:])
        return Cut(tuple(pieces), head, tail, truncated=True)


def fit(
    document: TokenizedDocument, prompts: Sequence[Prompt], room: int, side: str
) -> tuple[Cut | None, list[int]]:
    """Cut a document so that every prompt about it has at most `room` tokens.

    Tokens merge across the border between document and question, so that a length is known only
    once the whole
    prompt is tokenized. The cut is first found for the longest question alone, since tokenizing
    every prompt again and again is slow, and then checked for all of them.

    Args:
        document: the document.
        prompts: the prompts of all questions about it, which begin alike.
        room: tokens that a prompt may have.
        side: where the document is cut: `middle`, `right` or `left`; or `skip`.

    Returns:
        the cut, None where `skip` excludes the document; and the tokens of each prompt.

    Raises:
        ContextLengthError: instructions and question alone do not fit.
    """
    before = prompts[0].before
    endings = [prompt.after for prompt in prompts]
    ending_lengths = count_tokens(document.tokenizer, endings)
    longest_ending = endings[ending_lengths.index(max(ending_lengths))]

    cut = document.keep(len(document), side)
    for checked_endings in ([longest_ending], endings):
        while True:
            shared = "".join([before, *cut.pieces])
            lengths = count_tokens(
                document.tokenizer, [shared + ending for ending in checked_endings]
            )
            excess = max(lengths) - room
            if excess <= 0:
                break
            if side == "skip":
                return None, lengths
            kept = cut.head + cut.tail
            if kept - excess < 1:
                raise ContextLengthError(
                    f"The context is too small: instructions and question alone take "
                    f"{max(lengths) - kept} tokens and {max(room, 0)} are left beside the answer. "
                    "Give a larger context_length or a smaller max_gen_toks."
                )
            cut = document.keep(kept - excess, side)
    return cut, lengths
