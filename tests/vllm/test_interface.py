"""What the plugin builds on is there in the versions of vLLM that the extra allows.

`interface_<version>.json` are facts read from released wheels by `interface.py`. VLLM_SOURCE may
name the site-packages of another version.
"""

import importlib.metadata
import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from resonance_vllm.vllm.plugin import HOOKS

HERE = Path(__file__).parent
_spec = importlib.util.spec_from_file_location("vllm_interface", HERE / "interface.py")
assert _spec is not None
assert _spec.loader is not None
sys.modules["vllm_interface"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sys.modules["vllm_interface"])
from vllm_interface import interface  # noqa: E402

KNOWN = {file.stem.removeprefix("interface_"): file for file in HERE.glob("interface_*.json")}


def lacking(found):
    """What a version lacks of what the plugin asks for."""
    missing = [name for name, parameters in found.items() if parameters is None]
    for (module, name), (needed, _) in HOOKS.items():
        there = found[f"{module}.{name}"] or []
        missing += [f"{name}({each})" for each in needed if each not in there]
    return missing


@pytest.mark.parametrize("version", KNOWN)
def test_a_known_version_has_what_the_plugin_needs(version):
    assert lacking(json.loads(KNOWN[version].read_text(encoding="utf-8"))) == []


def test_the_extra_allows_exactly_the_minor_versions_that_are_known():
    extra = [
        Requirement(line)
        for line in importlib.metadata.requires("leval-harness") or []
        if Requirement(line).name == "vllm"
    ]
    minors = [f"0.{minor}.0" for minor in range(50)]
    allowed = {v for v in minors if any(each.specifier.contains(v) for each in extra)}
    assert allowed <= set(KNOWN)


def test_a_parameter_that_is_gone_is_noticed():
    found = json.loads(next(iter(KNOWN.values())).read_text(encoding="utf-8"))
    changed = {name: list(values or []) for name, values in found.items()}
    changed["vllm.model_executor.layers.rotary_embedding.get_rope"].remove("rope_parameters")
    assert lacking(changed) == ["get_rope(rope_parameters)"]


@pytest.mark.vllm
def test_the_installed_version_is_as_its_facts_say():
    source = os.environ.get("VLLM_SOURCE")
    package = importlib.util.find_spec("vllm")
    root = Path(source) if source else Path(str(package and package.origin)).parents[1]
    found = interface(root)
    assert lacking(found) == []
    version = importlib.metadata.version("vllm").split("+")[0] if source is None else None
    if version in KNOWN:
        assert found == json.loads(KNOWN[version].read_text(encoding="utf-8"))
