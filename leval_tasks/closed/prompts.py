"""The prompts of L-Eval's closed-ended tasks, and documents that are cut to fit into them.

The documents are those of OpenLMLab/LEval cd34b050, `Baselines/llama2-chat-test.py` with `--metric
exam_eval`, misspellings included, because scores are comparable only with them. Lengths are counted
in the model's own tokens. All questions about a document get the same cut, that of the longest one,
so that their prompts share a prefix.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2.exceptions import TemplateError

from leval_tasks.closed.catalog import ClosedTask
from leval_tasks.closed.thinking import opens_thinking
from leval_tasks.common.errors import ContextLengthError
from resonance_vllm.common.errors import SettingError

CHAT_TEMPLATE = "chat_template"
MARK = "@@LEVAL-DOCUMENT@@"  # stands for the document while a template is rendered
ANSWER = "Answer:"
DIRECTLY = "Please directly give the answer without any additional output or explanation "

CONTENT = {
    "steps": ("", "\n\n{question}"),
    "record": ("", "\n\n{question}"),
    "question": ("Document is as follows. ", " \nQuestion: {question}.  " + DIRECTLY),
}
"""What a user asks in each form of `ClosedTask`: the text before a document and after it."""

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

    def argument(self, document: str, template: ChatTemplate | None = None) -> Any:
        """The backend's input with a document in it; messages go through a server's template."""
        if self.messages and template:
            sent = [m | {"content": m["content"].replace(MARK, document)} for m in self.messages]
            return template(sent)
        return self.before + document + self.after


@dataclass(frozen=True)
class QuestionPrompts:
    """A question's prompts, the first about the document, and the kept pieces of the document."""

    prompts: tuple[Prompt, ...]
    pieces: tuple[str, ...]

    def arguments(self, template: ChatTemplate | None) -> list[Any]:
        """The backend's input for each prompt."""
        kept = ("".join(self.pieces), "")  # a second prompt stands alone
        pairs = zip(self.prompts, kept, strict=False)
        return [prompt.argument(text, template) for prompt, text in pairs]


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
        system, (before, after) = self.system + task.system_prompt, CONTENT[task.form]
        after = after.replace("{question}", question)
        second = task.second_question(question) + SECOND if task.second_question else ""
        if self.template is None:
            head, tails = FRAMES[self.frame]
            before = head.replace("{system}", system) + before
            made = [Prompt(before, after + tails[task.form])]
            return [*made, Prompt(f"{second}\n{ANSWER}", "")] if second else made
        prefix = self.answer_prefix if task.form == "question" else ""
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


@dataclass(frozen=True)
class Cut:
    """What is kept of a document: its text, in two `pieces` around a cut in the middle.

    `head` and `tail` are the kept tokens at its beginning (all where nothing is cut) and its end.
    """

    pieces: tuple[str, ...]
    head: int
    tail: int
    truncated: bool


class TokenizedDocument:
    """A document with the character ranges `offsets` of its tokens."""

    def __init__(self, text: str, tokenizer: Any) -> None:
        self.text = text
        self.tokenizer = tokenizer
        encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        self.offsets = list(encoding["offset_mapping"])

    def __len__(self) -> int:
        return len(self.offsets)

    def keep(self, count: int, side: str) -> Cut:
        """Keep `count` tokens, 1 or more; `side` is where the cut is made: middle, right, left."""
        n = len(self)
        if count >= n:
            return Cut((self.text,), n, 0, truncated=False)
        head = {"right": count, "left": 0, "middle": (count + 1) // 2}[side]
        tail = count - head
        pieces = [self.text[: self.offsets[head - 1][1]]] if head else []
        pieces += [self.text[self.offsets[n - tail][0] :]] if tail else []
        return Cut(tuple(pieces), head, tail, truncated=True)


def count_tokens(tokenizer: Any, documents: Sequence[str]) -> list[int]:
    """Number of tokens of each text, with special tokens except for one that begins with BOS."""
    bos = getattr(tokenizer, "bos_token", None)
    special = not (bos and documents[0].startswith(bos))
    return [len(ids) for ids in tokenizer(list(documents), add_special_tokens=special)["input_ids"]]


def fit(
    document: TokenizedDocument, prompts: Sequence[Prompt], room: int, side: str
) -> tuple[Cut | None, list[int]]:
    """Cut a document so that every prompt about it, which begin alike, has at most `room` tokens.

    The longest question finds the cut, and all of them are counted once it is there. `side` is
    where the document is cut: `middle`, `right`, `left`; or `skip`.

    Returns:
        The cut, None where `skip` leaves the document out; and the length of each prompt in tokens.

    Raises:
        ContextLengthError: instructions and question alone do not fit.
    """
    endings = [prompt.after for prompt in prompts]

    def lengths(cut: Cut, endings: Sequence[str]) -> list[int]:
        shared = "".join([prompts[0].before, *cut.pieces])
        return count_tokens(document.tokenizer, [shared + ending for ending in endings])

    sizes = count_tokens(document.tokenizer, endings)
    longest = endings[sizes.index(max(sizes))]
    keep = len(document)
    cut, totals = document.keep(keep, side), list[int]()
    for asked in ([longest], endings):
        while (excess := max(totals := lengths(cut, asked)) - room) > 0:
            if side == "skip":
                return None, totals
            keep -= excess
            if keep < 1:
                frame = max(totals) - cut.head - cut.tail
                raise ContextLengthError(
                    f"The context is too small: instructions and question alone take {frame} "
                    f"tokens and {max(room, 0)} are left beside the answer. Give a larger "
                    "context_length or a smaller max_gen_toks."
                )
            cut = document.keep(keep, side)
    return cut, totals
