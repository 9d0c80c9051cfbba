"""The prompts of L-Eval's closed-ended tasks: what stands around document and question.

The texts are those of OpenLMLab/LEval cd34b050, `Baselines/*-test.py` with `--metric exam_eval`,
misspellings included, because scores are comparable only with them. The default frame is that of
the Llama-2 script; where a chat template is applied, its content goes through the template.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from leval_tasks.closed.definition import ClosedTask
from resonance_vllm.errors import SettingError

STEPS = "{document}\n\n{question}"
QUESTION = "Document is as follows. {document} \nQuestion: {question} "
DIRECTLY = ".  Please directly give the answer without any additional output or explanation "
QUESTION_DIRECTLY = QUESTION.removesuffix(" ") + DIRECTLY
SECOND = "{question}\nAnswer:"
SECOND_DIRECTLY = "{question}Please directly answer without any additional output or explanation. "


@dataclass(frozen=True, kw_only=True)
class Frame:
    """How one script writes its prompts, with `{system}`, `{document}` and `{question}` in them.

    Attributes:
        source: the script; empty for a frame of ours.
        steps, record, question: the prompt of each `ClosedTask.form`.
        second: the prompt of SFiction's question about the real world, which stands alone.
        template: whether a chat template goes around it: `never`, because the text holds its own
            markers; `may`; `must`.
        system_message: the system prompt is a message of its own.
        second_follows: the second prompt is a further message after the first.
        opens_answer: `Answer:` is added to the rendered template, or to the user's message.
        cut: the side that the script cuts in every task; None where it is the task's.
    """

    source: str = ""
    steps: str
    record: str
    question: str
    second: str = SECOND
    template: Literal["never", "may", "must"] = "never"
    system_message: bool = False
    second_follows: bool = False
    opens_answer: bool = False
    cut: str | None = None


_LLAMA = "[INST]<<SYS>>\n{system}\n<</SYS>>\n\n"
_USER = (
    "A chat between a curious user and an artificial intelligence assistant."
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
    " USER: {system}"
)
_HUMAN = (
    "A chat between a curious human and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the human's questions.\n\n"
)
_TURBO = (
    "Document is as follows. {document} Question: {question} \n"
    "Please directly give answer without any additional output or explanation\n Answer: "
)
_CLAUDE = (
    "\n\nHuman: {system}" + QUESTION + " \nPlease directly give answer without any additonal "
    "output or explanation \nAnswer: \n\nAssistant:"
)
_VICUNA = Frame(
    source="vicuna-test.py",
    steps="{system}" + STEPS,
    record=_USER + STEPS + " \nASSISTANT: ",
    question=_USER + QUESTION + " \nAnswer:",
)

CHAT_TEMPLATE = "chat_template"
"""The frame that is the model's own template, around the content of `llama2`."""

FRAMES: dict[str, Frame] = {
    "llama2": Frame(
        source="llama2-chat-test.py",
        steps=_LLAMA + STEPS,
        record=_LLAMA + STEPS + "[/INST]",
        question=_LLAMA + QUESTION_DIRECTLY + "[/INST]\nAnswer:",
        second=SECOND_DIRECTLY + "\nAnswer:",
    ),
    "turbo": Frame(
        source="turbo16k-test.py",
        steps=STEPS,
        record=_TURBO,
        question=_TURBO,
        second="{question}\nPlease directly give answer without any additional output or "
        "explanation \nAnswer:",
        template="must",
        system_message=True,
        second_follows=True,
    ),
    "vicuna": _VICUNA,
    "longchat": replace(_VICUNA, source="longchat-test.py"),
    "chatglm2": Frame(
        source="chatglm2-test.py",
        steps=_HUMAN + "{system}" + STEPS,
        record=_HUMAN + "{system}" + QUESTION + " \nAnswer:",
        question=_HUMAN + "{system}" + QUESTION + " \nAnswer:",
        template="may",
    ),
    "xgen": Frame(
        source="xgen-test.py",
        steps="{system}" + STEPS,
        record=_HUMAN + " ### Human: {system}" + STEPS + " \n### Assistant:",
        question=_HUMAN + " ### Human: {system}" + QUESTION + "\nAnswer:",
    ),
    "mpt": Frame(
        source="mpt-test.py",
        steps="{system}" + STEPS + "\nThe answer is: ",
        record="{system}" + STEPS + "\nThe answer is: ",
        question="{system}" + QUESTION + "\nThe answer is: ",
        cut="right",
    ),
    "claude": Frame(
        source="claude-test.py",
        steps="\n\nHuman: {system}" + STEPS + " \n\nAssistant:",
        record=_CLAUDE,
        question=_CLAUDE,
        second="\n\nHuman: " + SECOND + " \n\nAssistant:",
    ),
    "plain": Frame(
        steps="{system}\n\n" + STEPS,
        record="{system}\n\n" + STEPS,
        question="{system}\n\n" + QUESTION_DIRECTLY + "\nAnswer:",
        second=SECOND_DIRECTLY + "\nAnswer:",
    ),
    CHAT_TEMPLATE: Frame(
        steps=STEPS,
        record=STEPS,
        question=QUESTION_DIRECTLY,
        second=SECOND_DIRECTLY,
        template="must",
        system_message=True,
        opens_answer=True,
    ),
}
"""The frames by the names of the setting `frame`; `plain` is for models that know no chat."""

FRAME_NAMES = tuple(FRAMES)
TITLES = {"llama2": "llama-2", CHAT_TEMPLATE: "chat template"}
"""What results call the two default frames; the others go by their names."""

MARK = "@@LEVAL-DOCUMENT@@"  # stands for the document while a template is rendered
ANSWER = "Answer:"
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
        has_document: False for a second prompt that stands alone.
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
    """Writes the prompts of questions in one frame, through the chat template where there is one.

    The template is probed once: whether it belongs to a chat server (`server`), whether it has a
    system role (`system_role`), and where `Answer:` goes (`answer_prefix`).

    Args:
        frame: name of the frame.
        tokenizer: renders messages in place of a chat server's template, for counting.
        template: lm-eval's chat template; None where none is applied.
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
        self.frame = FRAMES[frame]
        self.tokenizer, self.template = tokenizer, template
        self.system = f"{system_instruction}\n\n" if system_instruction else ""
        if template is not None:
            probe = [{"role": "user", "content": "USER-PROBE"}]
            self.server = not isinstance(template(probe), str)
            self.system_role = self._has_system_role(probe)
            opening = self._text(probe).rpartition("USER-PROBE")[2]
            thinks = opening.rfind("<think>") > opening.rfind("</think>")
            self.answer_prefix = "user" if self.server or thinks else answer_prefix

    def prompts(self, task: ClosedTask, question: str) -> list[Prompt]:
        """The prompt about the document, and the second one for a task that has it.

        Raises:
            SettingError: the chat template refuses the frame's messages.
        """
        frame, system = self.frame, self.system + task.system_prompt
        text: str = getattr(frame, task.form)
        before, _, after = text.partition("{document}")
        before, after = before.replace("{system}", system), after.replace("{question}", question)
        second = ""
        if task.second_question:
            second = frame.second.replace("{question}", task.second_question(question))
        if self.template is None:
            made = [Prompt(before, after, answer_prefix="user" if ANSWER in text else "none")]
            if second:
                made.append(Prompt(second, "", answer_prefix="user", has_document=False))
            return made
        prefix = self.answer_prefix if frame.opens_answer and task.form == "question" else "none"
        system, user = system if frame.system_message else "", before + MARK + after
        made = [self._rendered(system, [user], prefix)]
        if second and frame.second_follows:
            made.append(self._rendered(system, [user, second], prefix))
        elif second:
            made.append(self._rendered("", [second], prefix))
        return made

    def _rendered(self, system: str, user: Sequence[str], prefix: str) -> Prompt:
        """The prompt of a system prompt and one or more messages of the user."""
        from jinja2.exceptions import TemplateError

        first, *further = user
        if prefix == "user":
            first = f"{first}\n{ANSWER}"
        if system and not self.system_role:
            first = f"{system}\n\n{first}"
        messages = [{"role": "user", "content": each} for each in (first, *further)]
        if system and self.system_role:
            messages.insert(0, {"role": "system", "content": system})
        try:
            text = self._text(messages)
        except TemplateError as error:
            roles = ", ".join(message["role"] for message in messages)
            raise SettingError(
                f"frame: the model's chat template refuses messages of {roles} ({error})"
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
        from jinja2.exceptions import TemplateError

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
    if template is None and FRAMES[name].template == "must":
        raise SettingError(
            f"frame: {name!r} is sent as messages; give --apply_chat_template, or a frame of text"
        )
    if template is not None and FRAMES[name].template == "never":
        raise SettingError(
            f"frame: {name!r} is text with its own markers; leave --apply_chat_template out"
        )
    return name
