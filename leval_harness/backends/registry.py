"""Which backends there are, and what others must know of one before it is loaded.

The list is the entry points of the group `lm_eval.models` in pyproject.toml. What a backend is like
stands in the body of its class, for instance `library = "transformers"` and `reads_once = True`; it
is read from the source text, because importing a backend imports torch.
"""

import ast
import importlib.util
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from leval_border.errors import one_of

GROUP = "lm_eval.models"
DISTRIBUTION = "leval-harness"


@dataclass(frozen=True)
class Backend:
    """What is known of a backend without loading it.

    Attributes:
        target: `module:class`.
        library: The library that runs the model, `transformers` or `vllm`, in whose form RoPE
            settings are given to it; None for a model that runs as it is served.
        reads_once: Whether the text that several requests share is computed once.
    """

    target: str
    library: str | None = None
    reads_once: bool = False


# lm-eval's own backends whose RoPE settings we can write.
_STOCK = {
    "hf": Backend("lm_eval.models.huggingface:HFLM", "transformers"),
    "vllm": Backend("lm_eval.models.vllm_causallms:VLLM", "vllm", reads_once=True),
}


@cache
def own_backends() -> dict[str, Backend]:
    """Our backends by their names in lm-eval's model registry."""
    return {name: Backend(target, **_declared(target)) for name, target in _entry_points().items()}


def libraries() -> dict[str, str]:
    """The library that runs the model, for each backend whose RoPE settings we can write."""
    known = sorted((_STOCK | own_backends()).items())
    return {name: backend.library for name, backend in known if backend.library}


def library_of(backend: str) -> str:
    """The library that runs a backend's model.

    Raises:
        SettingError: RoPE settings cannot be given to this backend.
    """
    return libraries()[one_of("backend", backend, libraries())]


def reading_once() -> list[str]:
    """Names of the backends that compute what several requests share once."""
    return sorted(name for name, each in (_STOCK | own_backends()).items() if each.reads_once)


def register() -> None:
    """Make our backends known to lm-eval's registry; any number of times, no torch needed."""
    import lm_eval.models  # noqa: F401 - lm-eval adds its own only to an empty registry
    from lm_eval.api.registry import model_registry

    for name, backend in own_backends().items():
        if name not in model_registry:
            model_registry.register(name, target=backend.target)


def _entry_points() -> dict[str, str]:
    """Name -> target; a checkout's own pyproject.toml goes before what was once installed of it."""
    checkout = Path(__file__).parents[2] / "pyproject.toml"
    if checkout.is_file():
        project = tomllib.loads(checkout.read_text(encoding="utf-8")).get("project", {})
        if project.get("name") == DISTRIBUTION:
            return dict(project["entry-points"][GROUP])
    installed = metadata.distribution(DISTRIBUTION).entry_points.select(group=GROUP)
    return {point.name: point.value for point in installed}


def _declared(target: str) -> dict[str, Any]:
    """`library` and `reads_once` as a class states them, constants both; nothing is imported."""
    module, _, class_name = target.partition(":")
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{GROUP}: {target}: there is no module {module}")
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    declared: dict[str, Any] = {}
    for statement in [line for each in classes if each.name == class_name for line in each.body]:
        match statement:
            case ast.Assign([ast.Name(name)], value) | ast.AnnAssign(ast.Name(name), _, value) if (
                name in ("library", "reads_once") and value is not None
            ):
                declared[name] = ast.literal_eval(value)
    return declared
