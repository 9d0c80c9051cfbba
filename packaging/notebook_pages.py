"""A hook of mkdocs: every notebook below docs/ becomes a page with its inputs and outputs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page beside each notebook; the notebook itself stays a file to download."""
    for file in [each for each in files if each.src_uri.endswith(".ipynb")]:
        notebook = json.loads(Path(str(file.abs_src_path)).read_text(encoding="utf-8"))
        name = file.src_uri.removesuffix(".ipynb")
        files.append(File.generated(config, f"{name}.md", content=page(notebook)))
    return files


def page(notebook: dict[str, Any]) -> str:
    """Markdown of a notebook."""
    parts: list[str] = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts += [source] if cell["cell_type"] == "markdown" else [fenced(source, "python")]
        parts += shown(cell.get("outputs", []))
    return "\n\n".join(parts) + "\n"


def shown(outputs: list[dict[str, Any]]) -> Iterator[str]:
    """What cells printed, drew or returned."""
    for output in outputs:
        data = output.get("data", {})
        if png := data.get("image/png"):
            yield f'<img alt="figure" src="data:image/png;base64,{"".join(png).strip()}">'
        elif text := "".join(output.get("text", data.get("text/plain", ""))):
            yield fenced(text.rstrip("\n"), "text")


def fenced(text: str, kind: str) -> str:
    """A block of code or output."""
    return f"````{kind}\n{text}\n````"
