"""The files that a Python module loads from its own folders, found in its source text."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

LONGEST_NAME = 200
"""Characters of a text that may name a file."""
_IMPORTING = ("import_module", "importlib.import_module", "__import__")
_PATTERN = re.compile(r"\*[^*/]*\.\w+$")
"""A pattern of file names with their ending: `*.json`, `docs/part-*.txt`."""


def module_files(module: str, task: Path) -> set[Path]:
    """The file of a module, of everything that it imports from here, and files that these name.

    An import is looked up in the folder of the importing file, in that of the task, and in the
    root of the package. Installed packages are not among them: they have versions. A file counts
    as named where texts in the source are its path, or a pattern of it, below the folder of the
    source: one text, or one for each part (`Path(__file__).parent / "data" / "words.json"`).

    Args:
        module: dotted name, as in `!function module.name`.
        task: folder of the task file.
    """
    found: set[Path] = set()
    waiting = [(task, module)]
    while waiting:
        for file in _sources(*waiting.pop()) - found:
            found.add(file)
            try:
                nodes = list(ast.walk(ast.parse(file.read_bytes())))
            except (SyntaxError, ValueError, RecursionError):
                continue  # lm-eval will say what is wrong with it
            waiting += [each for node in nodes for each in _imports(node, file, task)]
            texts = {node.value for node in nodes if isinstance(node, ast.Constant)}
            found |= _named({each for each in texts if _may_be_path(each)}, file.parent)
    return found


def _sources(folder: Path, module: str) -> set[Path]:
    """The existing files of a module and of the packages that it lies in."""
    parts = module.split(".")
    places = [folder.joinpath(*parts[: n + 1]) for n in range(len(parts))]
    files = [path for place in places for path in (place / "__init__.py", Path(f"{place}.py"))]
    return {path for path in files if path.is_file()}


def _imports(node: ast.AST, file: Path, task: Path) -> Iterator[tuple[Path, str]]:
    """Folder and dotted name of what an import may load."""
    level = 0
    if isinstance(node, ast.Import):
        names = [each.name for each in node.names]
    elif isinstance(node, ast.ImportFrom):
        level = node.level
        names = [f"{node.module or ''}.{each.name}".strip(".") for each in node.names]
    elif isinstance(node, ast.Call) and ast.unparse(node.func) in _IMPORTING:
        written = [each.value for each in node.args[:1] if isinstance(each, ast.Constant)]
        level = len(str(*written)) - len(str(*written).lstrip("."))
        names = [str(each).strip(".") for each in written]
    else:
        return
    root = file.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    relative = file.parents[min(level, len(file.parents)) - 1]
    for place in {relative} if level else {file.parent, task, root}:
        yield from ((place, name) for name in names if _may_be_path(name))


def _may_be_path(text: object) -> TypeGuard[str]:
    return isinstance(text, str) and 0 < len(text) <= LONGEST_NAME and text.isprintable()


def _named(texts: set[str], folder: Path) -> set[Path]:
    """Files below a folder that texts name, alone or below folders that other texts name."""
    found, folders, waiting = set[Path](), {folder}, [folder]
    while waiting:
        place = waiting.pop()
        for text in texts:
            pattern = _PATTERN.search(text) and not text.startswith("/")
            for path in place.glob(text) if pattern else [place / text]:
                if path.is_file():
                    found.add(path)
                elif path.is_dir() and folder in path.parents and path not in folders:
                    folders.add(path)
                    waiting.append(path)
    return found
