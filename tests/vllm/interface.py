"""The interface of vLLM that the plugin relies on, read from a source tree without importing it.

`python tests/vllm/interface.py SITE_PACKAGES` prints what a tree has, for `interface_*.json`.
"""

import ast
import json
import sys
from pathlib import Path

from resonance_vllm.vllm.plugin import HOOKS

ROPE = "vllm.model_executor.layers.rotary_embedding"
NAMES = [*HOOKS, (ROPE, "_ROPE_DICT"), (ROPE, "YaRNScalingRotaryEmbedding")]


def parameters(root: Path, module: str, name: str) -> list[str] | None:
    """Parameters of a function; [] for anything else of that name, None if nothing has it."""
    path = root / Path(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    body = ast.parse(file.read_text(encoding="utf-8")).body
    *owners, wanted = name.split(".")
    for owner in owners:
        body = next(n.body for n in body if isinstance(n, ast.ClassDef) and n.name == owner)
    for node in body:
        if isinstance(node, ast.FunctionDef) and node.name == wanted:
            arguments = node.args
            every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
            return [each.arg for each in every]
        names = [ast.unparse(t) for t in getattr(node, "targets", [getattr(node, "target", node)])]
        imported = [a.asname or a.name for a in getattr(node, "names", [])]
        if wanted in (*names, *imported):
            return []
    return None


def interface(root: Path) -> dict[str, list[str] | None]:
    """Dotted name -> its parameters."""
    return {f"{module}.{name}": parameters(root, module, name) for module, name in NAMES}


if __name__ == "__main__":
    print(json.dumps(interface(Path(sys.argv[1])), indent=1))  # noqa: T201
