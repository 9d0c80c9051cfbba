"""The prompts of L-Eval's closed-ended tasks.

Their texts, in `frames` and in the tasks' own files, are the official ones (OpenLMLab/LEval
cd34b050), misspellings included, because scores are comparable only with them. Where no frame is
named it is the one of the Llama-2 script; with a chat template, its content goes through that.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from leval_border.errors import SettingError
from leval_tasks.closed.frames import (
    ASKED_DIRECTLY,
    CHAT_TEMPLATE,
    FRAMES,
    SECOND_DIRECTLY,
    STEPS,
    Layout,
)

MARK = "@@LEVAL-DOCUMENT@@"  # stands for the document while a template is rendered
LEAD_IN = "Answer:"
Message = dict[str, str]
# what lm-eval hands to a task: messages in, the rendered prompt (or messages again) out
ChatTemplate = Callable[[Sequence[Message]], Any]


@dataclass(frozen=True)
class Frame:
    """How a task asks.

    Attributes:
        system: system prompt.
        framed: `Document is as follows. …` around the document and `Answer:` at the end; otherwise
            document and instruction stand alone.
        closed: whether the Llama-2 turn is closed with `[/INST]`; where it is not, the model goes
            on with the reasoning that the instruction has begun.
        second: makes the question of a second prompt, which stands alone, without system prompt and
            document, from the instruction.
    """

    system: str
    framed: bool
    closed: bool
    second: Callable[[str], str] | None = None

    @property
    def kind(self) -> str:
        """The name of its text in a `Layout`."""
        return "question" if self.framed else "record" if self.closed else "steps"

    def around(self, text: str, instruction: str, extra_system: str = "") -> tuple[str, str]:
        """A layout's text, filled in, before and after its document."""
        before, _, after = text.partition("{document}")
        system = extra_system + self.system
        return before.replace("{system}", system), after.replace("{question}", instruction)


@dataclass(frozen=True)
class Prompt:
    """A prompt around a document.

    Attributes:
        before: text before the document.
        after: text after the document.
        messages: for chat servers, the messages with `MARK` in place of the document; `before` and
            `after` are then what the server is expected to render, used for counting only.
        system_role: `system`, or `user` where the template has no system role; None without a
            chat template.
        lead_in: where `Answer:` stands: `assistant`, `user`, or `none` for tasks without it.
        has_document: False for a second prompt, which stands alone.
    """

    before: str
    after: str
    messages: tuple[tuple[str, str], ...] = ()
    system_role: str | None = None
    lead_in: str = "none"
    has_document: bool = True

    def text(self, document: str) -> str:
        """The prompt with a document in it."""
        return self.before + (document if self.has_document else "") + self.after

    def fill(self, document: str) -> list[Message]:
        """The messages with a document in them."""
        return [{"role": r, "content": c.replace(MARK, document)} for r, c in self.messages]


@dataclass(frozen=True)
class Asked:
    """A question's prompts, the first about the document, and the pieces kept of the document."""

    prompts: tuple[Prompt, ...]
    pieces: tuple[str, ...]

    def arguments(self, template: ChatTemplate | None) -> list[Any]:
        """What the backend is given, one item a prompt; for a chat server through its template."""
        kept = "".join(self.pieces)
        return [
            template(prompt.fill(kept)) if prompt.messages and template else prompt.text(kept)
            for prompt in self.prompts
        ]


def plain(
    frame: Frame, instruction: str, extra_system: str = "", layout: Layout = FRAMES["llama2"]
) -> list[Prompt]:
    """Prompts as text; the tokenizer adds its beginning-of-sequence token."""
    text = layout.text(frame.kind)
    before, after = frame.around(text, instruction, extra_system)
    made = [Prompt(before, after, lead_in="user" if LEAD_IN in text else "none")]
    if frame.second:  # about another world than the document's
        asked = layout.second.replace("{question}", frame.second(instruction))
        made.append(Prompt(asked, "", lead_in="user", has_document=False))
    return made


@dataclass(frozen=True)
class ChatFrame:
    """The model's own chat template and what is known about it.

    Attributes:
        template: renders messages to text; for chat servers, the local tokenizer's rendering.
        server: messages are sent as they are (chat servers).
        system_role: whether the template has a system role.
        lead_in: where `Answer:` goes, `assistant` or `user`.
        layout: the official frame whose messages are sent; None for the content of Llama-2's.
    """

    template: Callable[[Sequence[Message]], str]
    server: bool
    system_role: bool
    lead_in: str
    layout: Layout | None = None

    def prompts(self, frame: Frame, instruction: str, extra_system: str = "") -> list[Prompt]:
        """The prompt about the document, and the second one where the frame has it."""
        if self.layout is not None:
            return self._official(self.layout, frame, instruction, extra_system)
        text = ASKED_DIRECTLY if frame.framed else STEPS
        user = MARK.join(frame.around(text, instruction))
        made = [self._render(extra_system + frame.system, [user], framed=frame.framed)]
        if frame.second:
            asked = SECOND_DIRECTLY.replace("{question}", frame.second(instruction))
            made.append(self._render("", [asked], framed=True))
        return made

    def _official(
        self, layout: Layout, frame: Frame, instruction: str, extra_system: str
    ) -> list[Prompt]:
        """The messages of a script: the system prompt in the text, or a message of its own."""
        system = extra_system + frame.system if layout.messages else ""
        user = MARK.join(frame.around(layout.text(frame.kind), instruction, extra_system))
        made = [self._render(system, [user], framed=False)]
        if frame.second:
            asked = layout.second.replace("{question}", frame.second(instruction))
            said = [user, asked] if layout.messages else [asked]
            made.append(self._render(system, said, framed=False))
        return made

    def _render(self, system: str, said: Sequence[str], *, framed: bool) -> Prompt:
        """The prompt of one or more messages of the user's, one after the other."""
        first, *further = said
        lead_in = self.lead_in if framed else "none"
        if lead_in == "user":
            first = f"{first}\n{LEAD_IN}"
        if system and not self.system_role:
            first = f"{system}\n\n{first}"
        messages = [{"role": "user", "content": each} for each in (first, *further)]
        if system and self.system_role:
            messages.insert(0, {"role": "system", "content": system})
        rendered = self._rendered(messages)
        if lead_in == "assistant":
            rendered += LEAD_IN
        before, mark, after = rendered.partition(MARK)
        sent = tuple((m["role"], m["content"]) for m in messages) if self.server else ()
        role = "system" if self.system_role else "user"
        return Prompt(before, after, sent, role, lead_in, has_document=bool(mark))

    def _rendered(self, messages: Sequence[Message]) -> str:
        from jinja2.exceptions import TemplateError

        try:
            return self.template(messages)
        except TemplateError as error:
            roles = ", ".join(message["role"] for message in messages)
            raise SettingError(
                f"frame: the model's chat template refuses messages of {roles} ({error})"
            ) from error


def frame_name(asked: str | None, template: ChatTemplate | None) -> str:
    """The frame of a run: the one that is asked for, else the template's or Llama-2's.

    Raises:
        SettingError: a chat template is there, or is not, where the frame wants it otherwise.
    """
    if asked is None:
        return "llama2" if template is None else CHAT_TEMPLATE
    wants = FRAMES[asked].template if asked in FRAMES else "must"
    if template is None and wants == "must":
        raise SettingError(
            f"frame: {asked!r} is sent as messages; give --apply_chat_template, or a frame of text"
        )
    if template is not None and wants == "never":
        raise SettingError(
            f"frame: {asked!r} is text with its own markers; leave --apply_chat_template out"
        )
    return asked


def chat_frame(
    template: ChatTemplate,
    tokenizer: Any,
    lead_in: str = "assistant",
    layout: Layout | None = None,
) -> ChatFrame:
    """Find out what the backend's chat template does; the tokenizer's stands in for a server's.

    `lead_in` says where `Answer:` is wanted. On a chat server, and where the template has already
    opened the model's thinking, it goes to the end of the user message in any case.
    """
    probe_user = [{"role": "user", "content": "USER-PROBE"}]
    server = not isinstance(template(probe_user), str)

    def local(messages: Sequence[Message]) -> str:
        if not server:
            return str(template(messages))
        if not getattr(tokenizer, "chat_template", None):
            return "\n".join(m["content"] for m in messages)
        return str(
            tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        )

    opening = local(probe_user).rpartition("USER-PROBE")[2]
    thinks = opening.rfind("<think>") > opening.rfind("</think>")
    return ChatFrame(
        template=local,
        server=server,
        system_role=_has_system_role(local),
        lead_in="user" if server or thinks else lead_in,
        layout=layout,
    )


def _has_system_role(render: Callable[[Sequence[Message]], str]) -> bool:
    """Whether a system message survives the template (lm-eval drops it where that fails)."""
    from jinja2.exceptions import TemplateError

    messages = [
        {"role": "system", "content": "SYSTEM-PROBE"},
        {"role": "user", "content": "USER-PROBE"},
    ]
    try:
        return "SYSTEM-PROBE" in render(messages)
    except (TemplateError, ValueError):
        return False
