"""How setups are written."""

import re

import pytest

from leval_harness.parity.findings import compare_encodings, compare_templates
from leval_harness.parity.setups import Setup, kinds
from resonance_vllm.errors import SettingError


@pytest.mark.parametrize(
    ("text", "kind", "target", "arguments"),
    [
        ("model", "hf-long", "model", {}),
        ("org/model,dtype=float32", "hf-long", "org/model", {"dtype": "float32"}),
        ("hf:./m,attn_implementation=eager", "hf", "./m", {"attn_implementation": "eager"}),
        ("vllm:m,kv_cache_dtype=fp8_e4m3,enforce_eager=true", "vllm", "m",
         {"kv_cache_dtype": "fp8_e4m3", "enforce_eager": True}),
        ('vllm:m,hf_overrides={"rope_parameters": {"rope_theta": 1.0, "factor": 2}},seed=1', "vllm",
         "m", {"hf_overrides": {"rope_parameters": {"rope_theta": 1.0, "factor": 2}}, "seed": 1}),
        ("hf:m,rope=yarn:factor=2", "hf", "m", {"rope": "yarn:factor=2"}),
        ("http://host:8000/v1,model=a", "server", "http://host:8000/v1", {"model": "a"}),
        ("base.npz", "saved", "base.npz", {}),
        ("saved:base", "saved", "base", {}),
        ('{"backend": "vllm", "pretrained": "m", "dtype": "float32"}', "vllm", "m",
         {"dtype": "float32"}),
        ('{"pretrained": "m.npz"}', "saved", "m.npz", {}),
    ],
)  # fmt: skip
def test_a_setup_is_read(text, kind, target, arguments):
    setup = Setup.parse(text)
    assert (setup.kind, setup.target, setup.arguments) == (kind, target, arguments)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no model"),
        ("dtype=float32", "names no model"),
        ("vlm:m", "setup: 'vlm' is not allowed; allowed: hf, .*; did you mean 'vllm'"),
        ("m,dtype=float3", "dtype: 'float3' is not allowed; allowed: auto, .*; did you mean"),
        ("m,float32", "'float32' has no value; allowed: key=value"),
        ('{"backend": "vllm"}', "needs 'pretrained'"),
        ('{"backend": "tgi", "pretrained": "m"}', "backend: 'tgi' is not allowed; allowed: hf, "),
        ("hff:m", "setup: 'hff' is not allowed; allowed: hf, .*did you mean 'hf'"),
        ("m.npz,rope=yarn:factor=2", "rope: saved runs a model as it is; allowed with: hf, "),
    ],
)
def test_what_cannot_be_read_is_named(text, message):
    with pytest.raises(SettingError, match=message):
        Setup.parse(text)


@pytest.mark.parametrize("kind", kinds())
def test_every_kind_is_a_prefix(kind):
    assert Setup.parse(f"{kind}:there").kind == kind


def test_rope_becomes_arguments_of_the_backend(tmp_path, save_llama):
    folder = save_llama(tmp_path, vocab_size=64, max_position_embeddings=128)
    made = Setup.parse(str(folder), "yarn:factor=2").backend_arguments()
    assert made["rope_parameters"]["rope_type"] == "yarn"
    assert made["max_length"] == 256
    made = Setup.parse(f"vllm:{folder},rope=yarn:factor=2").backend_arguments()
    assert made["hf_overrides"]["rope_parameters"]["factor"] == 2.0
    assert made["max_model_len"] == 256
    with pytest.raises(SettingError, match="rope sets max_length: leave that out"):
        Setup.parse(f"{folder},max_length=64", "yarn:factor=2").backend_arguments()


def test_a_changed_file_changes_the_name_of_a_reading(tmp_path, save_llama):
    setup = Setup.parse(str(save_llama(tmp_path, vocab_size=64)))
    before = setup.key([1, 2, 3])
    assert before == setup.key([1, 2, 3])
    assert before != setup.key([1, 2, 4])
    (tmp_path / "config.json").write_text("{}")
    assert setup.key([1, 2, 3]) != before


@pytest.mark.parametrize(
    ("a", "b", "kind", "said"),
    [
        ([1, 7, 8, 9], [7, 8, 9, 10], "bos", "A puts token 1 before a text, B does not"),
        ([7, 8, 9], [1, 7, 8], "bos", "B puts token 1 before a text, A does not"),
        ([1, 7, 8], [2, 7, 8], "bos", "A begins a text with token 1, B with 2"),
        ([7, 8, 9, 10], [7, 8, 3, 10], "tokenizer", r"from token 2 of text on: A makes \[9, 10\]"),
    ],
)
def test_encodings_that_differ_are_named(a, b, kind, said):
    (found,) = compare_encodings({"text": a}, {"text": b})
    assert found.kind == kind
    assert re.search(said, found.sentence)


def test_equal_encodings_and_unknown_ones_are_no_finding():
    assert compare_encodings({"t": [1, 2, 3], "u": None}, {"t": [1, 2], "u": [3]}) == []
    assert compare_templates([1, 2], [1, 2]) == compare_templates(None, [1]) == []


def test_templates_that_differ_are_named():
    assert "from token 1 on" in compare_templates([1, 2], [1, 3])[0].sentence
    assert compare_templates([], [1])[0].sentence == "A has no chat template, B has one"
