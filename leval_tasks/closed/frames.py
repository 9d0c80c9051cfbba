"""The frames of L-Eval's own scripts, by name: what stands around document and question.

The texts are those of OpenLMLab/LEval cd34b050, `Baselines/*-test.py` with `--metric exam_eval`,
misspellings included: published rows were made with them.
"""

from dataclasses import dataclass, replace
from typing import Literal

STEPS = "{document}\n\n{question}"
ASKED = "Document is as follows. {document} \nQuestion: {question} "
DIRECTLY = ".  Please directly give the answer without any additional output or explanation "
ASKED_DIRECTLY = ASKED.removesuffix(" ") + DIRECTLY
SECOND = "{question}\nAnswer:"
SECOND_DIRECTLY = "{question}Please directly answer without any additional output or explanation. "


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How one script writes its prompts, with `{system}`, `{document}` and `{question}` in them.

    Attributes:
        source: the script.
        steps: of GSM and CodeU, whose question begins the reasoning.
        record: of topic retrieval.
        question: of all others.
        second: of SFiction's question about the real world, which stands alone; where `messages`
            it is a further message behind the first prompt.
        template: whether a chat template goes around it: `never`, for the markers of a chat are in
            the text; `may`; `must`.
        messages: the system prompt is a message of its own.
        cut: the side that the script cuts in every task; None where it is the task's.
    """

    source: str
    steps: str
    record: str
    question: str
    second: str = SECOND
    template: Literal["never", "may", "must"] = "never"
    messages: bool = False
    cut: str | None = None

    def text(self, kind: str) -> str:
        """The layout of a kind of task: `steps`, `record` or `question`."""
        return {"steps": self.steps, "record": self.record, "question": self.question}[kind]


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
    "\n\nHuman: {system}" + ASKED + " \nPlease directly give answer without any additonal output "
    "or explanation \nAnswer: \n\nAssistant:"
)
_VICUNA = Layout(
    source="vicuna-test.py",
    steps="{system}" + STEPS,
    record=_USER + STEPS + " \nASSISTANT: ",
    question=_USER + ASKED + " \nAnswer:",
)

FRAMES: dict[str, Layout] = {
    "llama2": Layout(
        source="llama2-chat-test.py",
        steps=_LLAMA + STEPS,
        record=_LLAMA + STEPS + "[/INST]",
        question=_LLAMA + ASKED_DIRECTLY + "[/INST]\nAnswer:",
        second=SECOND_DIRECTLY + "\nAnswer:",
    ),
    "turbo": Layout(
        source="turbo16k-test.py",
        steps=STEPS,
        record=_TURBO,
        question=_TURBO,
        second="{question}\nPlease directly give answer without any additional output or "
        "explanation \nAnswer:",
        template="must",
        messages=True,
    ),
    "vicuna": _VICUNA,
    "longchat": replace(_VICUNA, source="longchat-test.py"),
    "chatglm2": Layout(
        source="chatglm2-test.py",
        steps=_HUMAN + "{system}" + STEPS,
        record=_HUMAN + "{system}" + ASKED + " \nAnswer:",
        question=_HUMAN + "{system}" + ASKED + " \nAnswer:",
        template="may",
    ),
    "xgen": Layout(
        source="xgen-test.py",
        steps="{system}" + STEPS,
        record=_HUMAN + " ### Human: {system}" + STEPS + " \n### Assistant:",
        question=_HUMAN + " ### Human: {system}" + ASKED + "\nAnswer:",
    ),
    "mpt": Layout(
        source="mpt-test.py",
        steps="{system}" + STEPS + "\nThe answer is: ",
        record="{system}" + STEPS + "\nThe answer is: ",
        question="{system}" + ASKED + "\nThe answer is: ",
        cut="right",
    ),
    "claude": Layout(
        source="claude-test.py",
        steps="\n\nHuman: {system}" + STEPS + " \n\nAssistant:",
        record=_CLAUDE,
        question=_CLAUDE,
        second="\n\nHuman: " + SECOND + " \n\nAssistant:",
    ),
    "plain": Layout(
        source="",
        steps="{system}\n\n" + STEPS,
        record="{system}\n\n" + STEPS,
        question="{system}\n\n" + ASKED_DIRECTLY + "\nAnswer:",
        second=SECOND_DIRECTLY + "\nAnswer:",
    ),
}
"""Without `source`: a frame of ours, for models that know no chat."""

CHAT_TEMPLATE = "chat_template"
"""The frame that is the model's own template, around the content of `llama2`."""
FRAME_NAMES = (*FRAMES, CHAT_TEMPLATE)
TITLES = {"llama2": "llama-2", CHAT_TEMPLATE: "chat template"}
"""What results call the two frames that need not be named; the others go by their names."""
