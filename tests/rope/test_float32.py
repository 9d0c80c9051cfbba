"""Which model code can be given float32 cos and sin: all that turns q and k by functions."""

import importlib.util

import pytest

from resonance_vllm.hf.float32 import _turned_elsewhere

CODE = """
def apply_rotary_pos_emb(q, cos, sin):
    return q * cos + q.flip(-1) * sin

def forward(q, cos, sin, keep, several):
    {line}
"""
FUNCTIONS = frozenset({"apply_rotary_pos_emb"})


def reason(line, folder):
    file = folder / "modeling_made.py"
    file.write_text(CODE.format(line=line))
    spec = importlib.util.spec_from_file_location(f"made_{abs(hash(line))}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return _turned_elsewhere(module, FUNCTIONS)


@pytest.mark.parametrize(
    "line",
    [
        "return apply_rotary_pos_emb(q, cos, sin)",
        "return apply_rotary_pos_emb(q, cos[:, keep], sin[:, keep])",
        "return {k: (cos[:, keep, :], sin[:, keep, :]) for k, (cos, sin) in several.items()}",
        "cos, sin = cos[0][1], sin[0][1]",
    ],
)
def test_what_is_handed_on_is_turned_by_a_function(line, tmp_path):
    assert reason(line, tmp_path) is None


@pytest.mark.parametrize(
    "line", ["return q * cos", "return q * cos[:, keep]", "return q[cos]", "return sin[0] + 1"]
)
def test_code_that_turns_by_itself_is_named(line, tmp_path):
    assert reason(line, tmp_path) == "forward turns q and k by itself"
