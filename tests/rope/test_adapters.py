"""What the adapters for transformers and for vLLM both have under one name has one shape."""

import ast
from pathlib import Path

import resonance_vllm

ROOT = Path(resonance_vllm.__file__).parent


def defined(folder: Path) -> dict[str, tuple[list[str], str]]:
    """Parameters by place, and what is returned, of each public function of an adapter."""
    found = {}
    for path in sorted(folder.glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                function = node if isinstance(node, ast.FunctionDef) else None
                names = [each.arg for each in function.args.args] if function else ["class"]
                returned = ast.unparse(function.returns) if function and function.returns else ""
                found[node.name] = names, returned
    return found


def unlike(root: Path) -> list[str]:
    """Names that both have with other parameters at the first places, or another result."""
    ours, theirs = defined(root / "hf"), defined(root / "vllm")
    shapes = {name: (ours[name], theirs[name]) for name in sorted({*ours} & {*theirs})}
    assert {"register", "report_of_checkpoint", "requests_of", "rotary_report"} <= {*shapes}
    return [
        name
        for name, ((a, first), (b, second)) in shapes.items()
        if a == ["class"] or first != second or any(x != y for x, y in zip(a, b, strict=False))
    ]


def test_what_both_adapters_name_alike_has_one_shape():
    assert unlike(ROOT) == []
