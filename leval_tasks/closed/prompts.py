"""The prompts of L-Eval's closed-ended tasks.

Their texts, here and in the tasks' own files, are the official ones (OpenLMLab/LEval cd34b050),
misspellings included, because scores are comparable only with them. Without a chat template the
frame is the one of the official Llama-2 script; with one, the same content goes through the model's
own template.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

MARK = "@@LEVAL-DOCUMENT@@"  # stands for the document while a template is rendered
LEAD_IN = "Answer:"
Message = dict[str, str]
# what lm-eval hands to a task: messages in, the rendered prompt (or messages again) out
ChatTemplate = Callable[[Sequence[Message]], Any]

DIRECTLY = ".  Please directly give the answer without any additional output or explanation "


@dataclass(frozen=True)
class Frame:
    """How a task asks.

    Attributes:
        system: system prompt.
        framed: `Document is as follows. …` around the document and `Answer:` at the end; otherwise
            document and instruction stand alone.
        closed: whether the Llama-2 turn is closed with `[/INST]`; where it is not, the model goes
            on with the reasoning that the instruction has begun.
        second: the text of a second prompt about the same instruction, which stands alone, without
            system prompt and document.
    """

    system: str
    framed: bool
    closed: bool
    second: Callable[[str], str] | None = None

    def around(self, instruction: str) -> tuple[str, str]:
        """The user's text before and after the document, without `Answer:`."""
        if not self.framed:
            return "", f"\n\n{instruction}"
        return "Document is as follows. ", f" \nQuestion: {instruction}{DIRECTLY}"


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


def plain(frame: Frame, instruction: str, extra_system: str = "") -> list[Prompt]:
    """Prompts in the Llama-2 frame; the tokenizer adds its beginning-of-sequence token."""
    before, after = frame.around(instruction)
    opening = f"[INST]<<SYS>>\n{extra_system}{frame.system}\n<</SYS>>\n\n"
    ending = "[/INST]" if frame.closed else ""
    if frame.framed:
        ending += f"\n{LEAD_IN}"
    lead_in = "user" if frame.framed else "none"
    made = [Prompt(opening + before, after + ending, lead_in=lead_in)]
    if frame.second:  # without chat markers
        text = f"{frame.second(instruction)}\n{LEAD_IN}"
        made.append(Prompt(text, "", lead_in="user", has_document=False))
    return made


@dataclass(frozen=True)
class ChatFrame:
    """The model's own chat template and what is known about it.

    Attributes:
        template: renders messages to text; for chat servers, the local tokenizer's rendering.
        server: messages are sent as they are (chat servers).
        system_role: whether the template has a system role.
        lead_in: where `Answer:` goes, `assistant` or `user`.
    """

    template: Callable[[Sequence[Message]], str]
    server: bool
    system_role: bool
    lead_in: str

    def prompts(self, frame: Frame, instruction: str, extra_system: str = "") -> list[Prompt]:
        """The prompt about the document, and the second one where the frame has it."""
        before, after = frame.around(instruction)
        made = [self._render(extra_system + frame.system, before + MARK + after, frame.framed)]
        if frame.second:
            made.append(self._render("", frame.second(instruction), framed=True))
        return made

    def _render(self, system: str, user: str, framed: bool) -> Prompt:
        lead_in = self.lead_in if framed else "none"
        if lead_in == "user":
            user = f"{user}\n{LEAD_IN}"
        if system and not self.system_role:
            user = f"{system}\n\n{user}"
        messages = [{"role": "user", "content": user}]
        if system and self.system_role:
            messages.insert(0, {"role": "system", "content": system})
        rendered = self.template(messages)
        if lead_in == "assistant":
            rendered += LEAD_IN
        before, mark, after = rendered.partition(MARK)
        sent = tuple((m["role"], m["content"]) for m in messages) if self.server else ()
        role = "system" if self.system_role else "user"
        return Prompt(before, after, sent, role, lead_in, has_document=bool(mark))


def chat_frame(template: ChatTemplate, tokenizer: Any, lead_in: str = "assistant") -> ChatFrame:
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
