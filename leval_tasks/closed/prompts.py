"""The prompts of L-Eval's closed-ended tasks: what stands around document and question.

The texts are those of OpenLMLab/LEval cd34b050, `Baselines/llama2-chat-test.py` with `--metric
exam_eval`, misspellings included, because scores are comparable only with them. Where a chat
template is applied, the same content goes through the template.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from jinja2.exceptions import TemplateError

from leval_tasks.closed.catalog import ClosedTask
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

SECOND = "Please directly answer without any additional output or explanation. "
"""Follows SFiction's question about the real world, which stands alone."""

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
    """A prompt: the text before a document and after it.

    For chat servers `messages` has the messages with `MARK` in place of the document; the text is
    then what the server is expected to render, used for counting only.
    """

    before: str
    after: str
    messages: tuple[Message, ...] = ()

    def text(self, document: str) -> str:
        """The prompt with a document in it."""
        return self.before + document + self.after

    def fill(self, document: str) -> list[Message]:
        """The messages with a document in them."""
        return [m | {"content": m["content"].replace(MARK, document)} for m in self.messages]


@dataclass(frozen=True)
class QuestionPrompts:
    """A question's prompts, the first about the document, and the kept pieces of the document."""

    prompts: tuple[Prompt, ...]
    pieces: tuple[str, ...]

    def arguments(self, template: ChatTemplate | None) -> list[Any]:
        """The backend's input for each prompt; messages go through a chat server's template."""
        kept = ("".join(self.pieces), "")  # a second prompt stands alone
        return [
            template(prompt.fill(text)) if prompt.messages and template else prompt.text(text)
            for prompt, text in zip(self.prompts, kept, strict=False)
        ]


class PromptWriter:
    """Writes the prompts of questions in one frame; a chat template is probed once.

    The tokenizer renders messages in place of a chat server's template, for counting. On a chat
    server, and where the template already opens the model's thinking, `Answer:` goes to the end of
    the user's message whatever `answer_prefix` says. A `system_instruction` goes before the system
    prompt.
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
        after = content.after.replace("{question}", question)
        second = task.second_question(question) + SECOND if task.second_question else ""
        if self.template is None:
            head, tails = FRAMES[self.frame]
            before = head.replace("{system}", system) + content.before
            made = [Prompt(before, after + tails[task.form])]
            return [*made, Prompt(f"{second}\n{ANSWER}", "")] if second else made
        prefix = self.answer_prefix if task.form == "question" else ""
        made = [self._rendered(system, content.before + MARK + after, prefix)]
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
        before, _, after = (text + ANSWER * (prefix == "assistant")).partition(MARK)
        return Prompt(before, after, tuple(messages) if self.server else ())

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
