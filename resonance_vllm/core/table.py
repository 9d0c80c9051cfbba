"""The documentation's table of methods, made from the classes."""

from collections.abc import Iterator

from resonance_vllm.core.method import Method
from resonance_vllm.core.spec import METHODS


def methods_table() -> str:
    """Markdown, a line a method; `leval-harness rope --help` describes the keys."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "| `rope_type` | frequency of feature j | keys | vLLM and transformers have it |"
    yield "|---|---|---|---|"
    for method in METHODS.values():
        own = [key for key in method.key_names() if key not in Method.model_fields]
        keys = ", ".join(f"`{key}`" for key in own)
        stock = "yes" if method.stock else "no"
        yield f"| `{method.name}` | {method.formula} | {keys} | {stock} |"
    names = "`resonance`, `resonance_<any of these>`"
    yield f"| {names} | wavelengths rounded to the nearest integer | those of the base | no |"
