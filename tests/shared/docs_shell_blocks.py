"""Shell blocks of the documentation: their pages and lines, and whether tests run them."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [ROOT / "README.md", ROOT / "benchmarks" / "gpu" / "README.md", *ROOT.glob("docs/**/*.md")]
)
BLOCK = re.compile(r"^(?P<fence>```+)(?P<kind>\w*)\n(?P<text>.*?)^(?P=fence)", re.S | re.M)
MARK = re.compile(r"<!-- not run: (?P<why>[^\n]+?) -->\n+\Z")
SHELL = {"bash", "sh", "console", "shell"}
COMMANDS = ("leval-harness", "lm_eval", "lm-eval", "pip", "python", "make", "pytest", "vllm", "$")


@dataclass(frozen=True)
class Block:
    """One block; `why_not` is the reason why no test runs it, or empty."""

    page: str
    line: int
    text: str
    why_not: str
    output: bool

    @property
    def id(self) -> str:
        return f"{self.page}:{self.line}"

    def commands(self) -> Iterator[list[str]]:
        """The words of each command that starts with `leval-harness`."""
        text = self.text
        if self.output:
            kept: list[str] = []
            for line in text.splitlines():
                if line.startswith(("$ ", "> ")) or (kept and kept[-1].endswith("\\")):
                    kept.append(line.removeprefix("$ ").removeprefix("> "))
            text = "\n".join(kept)
        text = re.sub(r"(^|\s)#[^\n]*", r"\1", text.replace("\\\n", " "))
        for match in re.finditer(r"leval-harness [^\n;]*", text):
            words = shlex.split(match[0].split("&&")[0].split(" | ")[0].rstrip("\\"))
            yield words[1:]


def blocks() -> list[Block]:
    """Every shell block of every page."""
    found = []
    for page in PAGES:
        content = page.read_text("utf-8")
        for match in BLOCK.finditer(content):
            text = match["text"]
            bare = not match["kind"] and text.lstrip().startswith(COMMANDS)
            if match["kind"] not in SHELL and not bare:
                continue
            mark = MARK.search(content[: match.start()])
            found.append(
                Block(
                    str(page.relative_to(ROOT)),
                    content[: match.start()].count("\n") + 1,
                    text,
                    mark["why"] if mark else "",
                    match["kind"] == "console" or text.startswith("$ "),
                )
            )
    return found
