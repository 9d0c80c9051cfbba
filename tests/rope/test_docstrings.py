"""Every public function and class describes its arguments, what it returns and what it raises."""

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGES = ("leval_harness", "resonance_vllm.hf", "resonance_vllm.vllm")
API_PAGE = Path(__file__).parents[2] / "docs" / "api.md"


def public_objects() -> dict[str, object]:
    """The names of `__all__` of each package and of the page of the API, with public methods."""
    objects = {}
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            objects[f"{package}.{name}"] = getattr(module, name)
    for path in re.findall(r"^::: (\S+)$", API_PAGE.read_text("utf-8"), re.MULTILINE):
        module_name, _, name = path.rpartition(".")
        objects[path] = getattr(importlib.import_module(module_name), name)
    del objects["leval_harness.__version__"]
    objects["leval_harness.diff"] = objects["leval_harness.diff.compare.diff"]
    for name, value in list(objects.items()):
        if isinstance(value, type):
            for key, member in vars(value).items():
                if not key.startswith("_"):
                    member = getattr(member, "__func__", member)
                    if inspect.isfunction(member):
                        objects[f"{name}.{key}"] = member
    return {name: value for name, value in objects.items() if name not in re_exported(objects)}


def re_exported(objects: dict[str, object]) -> set[str]:
    """Names of objects that have a shorter one."""
    shortest: dict[int, str] = {}
    for name in sorted(objects, key=len):
        shortest.setdefault(id(objects[name]), name)
    return objects.keys() - set(shortest.values())


OBJECTS = public_objects()


def sections(value: object) -> dict[str, str]:
    """The sections of a docstring by their titles."""
    text = inspect.getdoc(value) or ""
    parts = re.split(r"^(Args|Returns|Raises|Attributes):\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def described(section: str) -> set[str]:
    """The names that a section describes: each begins a line of its first level."""
    names = re.findall(r"^ {4}(\*{0,2}\w+(?:, \w+)*)(?: \([^)]*\))?: ", section, re.MULTILINE)
    return {name.strip("*") for line in names for name in line.split(", ")}


def raises(function: object) -> bool:
    """Whether the body of a function has a `raise` of its own."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    return any(isinstance(node, ast.Raise) for node in ast.walk(tree))


def parameters(function: object) -> Iterator[str]:
    for name in inspect.signature(function).parameters:
        if name not in ("self", "cls"):
            yield name


@pytest.mark.parametrize("name", OBJECTS)
def test_docstring_describes_its_object(name):
    value = OBJECTS[name]
    parts = sections(value)
    summary = (inspect.getdoc(value) or "").partition("\n")[0]
    assert summary.endswith((".", "…"))
    if isinstance(value, type):
        fields = getattr(value, "__dataclass_fields__", {})
        assert described(parts.get("Attributes", "")) >= set(fields)
        own_arguments = set(parameters(value)) - set(fields)
        if "__init__" in vars(value) and not fields:
            assert described(parts.get("Args", "")) == own_arguments
        return
    assert described(parts.get("Args", "")) == set(parameters(value))
    returned = inspect.signature(value).return_annotation
    if returned not in (None, "None"):
        assert "Returns" in parts or summary.startswith("Return ")
    if raises(value):
        assert "Raises" in parts
