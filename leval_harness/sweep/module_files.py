"""The files that a Python module loads from its own folders, found in its source text."""

import ast
from collections.abc import Iterator
from pathlib import Path

LONGEST_NAME = 200
"""Characters of a text that may name a file."""


def module_files(module: str, task: Path) -> set[Path]:
    """The file of a module, of everything that it imports from here, and files that these name.

    An import is looked up in the folder of the importing file, in that of the task, and in the
    root of the package. Installed packages are not among them: they have versions. A file counts
    as named where a text in the source is its path below the folder of the source.

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
            found |= {path for text in texts for path in _named(text, file.parent)}
    return found


def _sources(folder: Path, module: str) -> set[Path]:
    """The existing files of a module and of the packages that it lies in."""
    parts = module.split(".")
    places = [folder.joinpath(*parts[: n + 1]) for n in range(len(parts))]
    files = [path for place in places for path in (place / "__init__.py", Path(f"{place}.py"))]
    return {path for path in files if path.is_file()}


def _imports(node: ast.AST, file: Path, task: Path) -> Iterator[tuple[Path, str]]:
    """Folder and dotted name of what an import may load."""
    if isinstance(node, ast.Import):
        level, names = 0, [each.name for each in node.names]
    elif isinstance(node, ast.ImportFrom):
        level = node.level
        names = [f"{node.module or ''}.{each.name}".strip(".") for each in node.names]
    else:
        return
    root = file.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    relative = file.parents[min(level, len(file.parents)) - 1]
    for place in {relative} if level else {file.parent, task, root}:
        yield from ((place, name) for name in names)


def _named(text: object, folder: Path) -> Iterator[Path]:
    if isinstance(text, str) and 0 < len(text) <= LONGEST_NAME and text.isprintable():
        path = folder / text
        if path.is_file():
            yield path
