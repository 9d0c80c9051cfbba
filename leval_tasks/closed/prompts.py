"""The prompts of L-Eval's closed-ended tasks: what stands around document and question.

The texts are those of OpenLMLab/LEval cd34b050, `Baselines/llama2-chat-test.py` with `--metric
exam_eval`, misspellings included, because scores are comparable only with them. Where a chat
template is applied, the same content goes through the template.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from jinja2.exceptions import TemplateError

from leval_tasks.closed.definition import ClosedTask
from leval_tasks.closed.thinking import opens_thinking
from resonance_vllm.errors import SettingError

CHAT_TEMPLATE = "chat_template"
MARK = "@@LEVAL-DOCUMENT@@"  # stands for the document while a template is rendered
ANSWER = "Answer:"
DIRECTLY = "Please directly give the answer without any additional output or explanation "


class Around(NamedTuple):
    """Text before a document and after it, with `{question}` in it."""

    before: str
    after: str


CONTENT = {
    "steps": Around("", "\n\n{question}"),
    "record": Around("", "\n\n{question}"),
    "question": Around("Document is as follows. ", " \nQuestion: {question}.  " + DIRECTLY),
}
"""What a user asks in each form of `ClosedTask`."""

SECOND = "{question}Please directly answer without any additional output or explanation. "
"""SFiction's question about the real world, which stands alone."""

FRAMES = {
    "llama2": (
        "[INST]<<SYS>>\n{system}\n<</SYS>>\n\n",
        {"steps": "", "record": "[/INST]", "question": f"[/INST]\n{ANSWER}"},
    ),
    "plain": ("{system}\n\n", {"steps": "", "record": "", "question": f"\n{ANSWER}"}),
}
"""The frames of text: what precedes the content, and what follows it in each form."""

Message = dict[str, str]
# what lm-eval passes to a task: messages in, the rendered prompt (or messages again) out
ChatTemplate = Callable[[Sequence[Message]], Any]


@dataclass(frozen=True)
class Prompt:
    """A prompt around a document.

    Attributes:
        before: text before the document.
        after: text after the document.
        messages: for chat servers, (role, content) of the messages with `MARK` in place of the
            document; `before` and `after` are then what the server is expected to render, used for
            counting only.
        system_role: `system`, or `user` where the template has no system role; None without a
            chat template.
        answer_prefix: where `Answer:` stands: `assistant`, `user`, or `none`.
        has_document: False for a second prompt, which stands alone.
    """

    before: str
    after: str
    messages: tuple[tuple[str, str], ...] = ()
    system_role: str | None = None
    answer_prefix: str = "none"
    has_document: bool = True

    def text(self, document: str) -> str:
        """The prompt with a document in it."""
        return self.before + (document if self.has_document else "") + self.after

    def fill(self, document: str) -> list[Message]:
        """The messages with a document in them."""
        return [{"role": r, "content": c.replace(MARK, document)} for r, c in self.messages]


@dataclass(frozen=True)
class QuestionPrompts:
    """A question's prompts, the first about the document, and the kept pieces of the document."""

    prompts: tuple[Prompt, ...]
    pieces: tuple[str, ...]

    def arguments(self, template: ChatTemplate | None) -> list[Any]:
        """The backend's input for each prompt; messages go through a chat server's template."""
        kept = "".join(self.pieces)
        return [
            template(prompt.fill(kept)) if prompt.messages and template else prompt.text(kept)
            for prompt in self.prompts
        ]


class PromptWriter:
    """Writes the prompts of questions in one frame; a chat template is probed once.

    Args:
        frame: name of the frame.
        tokenizer: renders messages in place of a chat server's template, for counting.
        template: lm-eval's chat template, for the frame `chat_template`.
        answer_prefix: `assistant` or `user`. On a chat server, and where the template already opens
            the model's thinking, `Answer:` goes to the end of the user's message in any case.
        system_instruction: goes before the system prompt.
    """

    def __init__(
        self,
        frame: str,
        tokenizer: Any = None,
        template: ChatTemplate | None = None,
        answer_prefix: str = "assistant",
        system_instruction: str = "",
    ) -> None:
        self.frame, self.tokenizer, self.template = frame, tokenizer, template
        self.system = f"{system_instruction}\n\n" if system_instruction else ""
        if template is not None:
            probe = [{"role": "user", "content": "USER-PROBE"}]
            self.server = not isinstance(template(probe), str)
            self.system_role = self._has_system_role(probe)
            opening = self._text(probe).rpartition("USER-PROBE")[2]
            thinks = opens_thinking(opening, "</think>")
            self.answer_prefix = "user" if self.server or thinks else answer_prefix

    def prompts(self, task: ClosedTask, question: str) -> list[Prompt]:
        """The prompt about the document, and the second one for a task that has it.

        Raises:
            SettingError: the chat template refuses the messages.
        """
        system, content = self.system + task.system_prompt, CONTENT[task.form]
        before, after = content.before, content.after.replace("{question}", question)
        second = ""
        if task.second_question:
            second = SECOND.replace("{question}", task.second_question(question))
        if self.template is None:
            head, tails = FRAMES[self.frame]
            before, after = head.replace("{system}", system) + before, after + tails[task.form]
            prefix = "user" if after.endswith(ANSWER) else "none"
            made = [Prompt(before, after, answer_prefix=prefix)]
            if second:
                text = f"{second}\n{ANSWER}"
                made.append(Prompt(text, "", answer_prefix="user", has_document=False))
            return made
        prefix = self.answer_prefix if task.form == "question" else "none"
        made = [self._rendered(system, before + MARK + after, prefix)]
        return [*made, self._rendered("", second, prefix)] if second else made

    def _rendered(self, system: str, user: str, prefix: str) -> Prompt:
        """The prompt of a system prompt, perhaps an empty one, and a message of the user."""
        if prefix == "user":
            user = f"{user}\n{ANSWER}"
        if system and not self.system_role:
            user = f"{system}\n\n{user}"
        messages = [{"role": "user", "content": user}]
        if system and self.system_role:
            messages.insert(0, {"role": "system", "content": system})
        try:
            text = self._text(messages)
        except TemplateError as error:
            raise SettingError(
                f"frame: the model's chat template refuses ({error}); allowed: plain or llama2, "
                "without --apply_chat_template"
            ) from error
        before, mark, after = (text + ANSWER * (prefix == "assistant")).partition(MARK)
        sent = tuple((m["role"], m["content"]) for m in messages) if self.server else ()
        role = "system" if self.system_role else "user"
        return Prompt(before, after, sent, role, prefix, has_document=bool(mark))

    def _text(self, messages: Sequence[Message]) -> str:
        """Rendered messages; for a chat server the tokenizer's rendering."""
        if not self.server and self.template is not None:
            return str(self.template(messages))
        if not getattr(self.tokenizer, "chat_template", None):
            return "\n".join(m["content"] for m in messages)
        render = self.tokenizer.apply_chat_template
        return str(render(messages, tokenize=False, add_generation_prompt=True))

    def _has_system_role(self, user: Sequence[Message]) -> bool:
        """Whether a system message survives the template (lm-eval drops it where that fails)."""
        try:
            text = self._text([{"role": "system", "content": "SYSTEM-PROBE"}, *user])
        except (TemplateError, ValueError):
            return False
        return "SYSTEM-PROBE" in text


def frame_name(requested: str | None, template: ChatTemplate | None) -> str:
    """The frame of a run: the requested one, else the chat template's or Llama-2's.

    Raises:
        SettingError: the frame needs a chat template and there is none, or excludes one.
    """
    name = requested or ("llama2" if template is None else CHAT_TEMPLATE)
    if name == CHAT_TEMPLATE and template is None:
        raise SettingError(f"frame: {name!r} needs --apply_chat_template")
    if name != CHAT_TEMPLATE and template is not None:
        raise SettingError(f"frame: {name!r} is text; leave --apply_chat_template out")
    return name
