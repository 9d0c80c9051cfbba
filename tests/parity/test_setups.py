"""How setups are written, what they read, and references that are saved."""

import re

import numpy as np
import pytest

from leval_harness.parity.findings import compare_encodings, compare_templates
from leval_harness.parity.reading import Reading
from leval_harness.parity.saved import SavedReader
from leval_harness.parity.setups import Setup, kinds
from leval_harness.parity.texts import read_texts
from leval_tasks.perplexity.documents import Text
from resonance_vllm.errors import SettingError, UserError


@pytest.mark.parametrize(
    ("text", "kind", "target", "arguments"),
    [
        ("model", "hf", "model", {}),
        ("org/model,dtype=float32", "hf", "org/model", {"dtype": "float32"}),
        ("vllm:m,kv_cache_dtype=fp8_e4m3,enforce_eager=true", "vllm", "m",
         {"kv_cache_dtype": "fp8_e4m3", "enforce_eager": True}),
        ('vllm:m,hf_overrides={"rope_parameters": {"rope_theta": 1.0, "factor": 2}},seed=1', "vllm",
         "m", {"hf_overrides": {"rope_parameters": {"rope_theta": 1.0, "factor": 2}}, "seed": 1}),
        ("hf:m,rope=yarn:factor=2", "hf", "m", {"rope": "yarn:factor=2"}),
        ("http://host:8000/v1,model=a", "server", "http://host:8000/v1", {"model": "a"}),
        ("base.npz", "saved", "base.npz", {}),
        ('{"backend": "vllm", "pretrained": "m", "dtype": "float32"}', "vllm", "m",
         {"dtype": "float32"}),
        *((f"{kind}:there", kind, "there", {}) for kind in kinds()),
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
        ("m,float32", "'float32' has no value; allowed: key=value"),
        ('{"backend": "vllm"}', "needs 'pretrained'"),
        ('{"backend": "tgi", "pretrained": "m"}', "backend: 'tgi' is not allowed; allowed: hf, "),
        ("m.npz,rope=yarn:factor=2", "rope: saved runs a model as it is; allowed with: hf, "),
    ],
)
def test_what_cannot_be_read_is_named(text, message):
    with pytest.raises(SettingError, match=message):
        Setup.parse(text)


def test_rope_becomes_arguments_of_the_backend(tmp_path, save_llama):
    folder = save_llama(tmp_path, vocab_size=64, max_position_embeddings=128)
    made = Setup.parse(str(folder), "yarn:factor=2").backend_arguments()
    assert made["rope_parameters"]["rope_type"] == "yarn"
    assert made["max_length"] == 256
    made = Setup.parse(f"vllm:{folder},rope=yarn:factor=2,max_model_len=200").backend_arguments()
    assert made["hf_overrides"]["rope_parameters"]["factor"] == 2.0
    assert made["max_model_len"] == 200
    with pytest.raises(SettingError, match="context_length: 300 is above the limit of 256"):
        Setup.parse(f"{folder},max_length=300", "yarn:factor=2").backend_arguments()


@pytest.mark.parametrize(
    ("a", "b", "kind", "said"),
    [
        ([1, 7, 8, 9], [7, 8, 9, 10], "bos", "A puts token 1 before a text, B does not"),
        ([7, 8, 9], [1, 7, 8], "bos", "B puts token 1 before a text, A does not"),
        ([1, 7, 8], [2, 7, 8], "bos", "A begins a text with token 1, B with 2"),
        ([7, 8, 9, 10], [7, 8, 3, 10], "tokenizer", r"in text: from token 2 on A has \[9, 10\]"),
    ],
)
def test_encodings_that_differ_are_named(a, b, kind, said):
    (found,) = compare_encodings({"text": a}, {"text": b})
    assert found.kind == kind
    assert re.search(said, found.sentence)


def test_equal_encodings_and_unknown_ones_are_no_finding():
    assert compare_encodings({"t": [1, 2, 3], "u": None}, {"t": [1, 2], "u": [3]}) == []
    assert compare_templates([1, 2], [1, 2]) == compare_templates(None, [1]) == []


def test_texts_of_every_source(tmp_path):
    pieces = read_texts("pydocs", 1024)
    assert len(pieces) > 50
    assert all(len(each.text) == 6144 for each in pieces)
    assert len({each.sha256 for each in pieces}) == len(pieces)
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n{"text": "one "}\n')
    assert [each.text for each in read_texts(str(tmp_path / "a.jsonl"), 8)] == ["one", "two"]
    (tmp_path / "b.txt").write_text("b")
    assert [each.name for each in read_texts(str(tmp_path), 8)] == ["a-1", "a-2", "b-4"]
    (tmp_path / "long.txt").write_text("".join(f"{n:04}\n" for n in range(100)))
    assert [len(each.text) for each in read_texts(str(tmp_path / "long.txt"), 16)] == [96] * 5
    with pytest.raises(SettingError, match="--texts: 'nowhere' is not allowed; allowed: pydocs, "):
        read_texts("nowhere", 8)


@pytest.fixture
def reference():
    """Two texts at two lengths."""
    rng = np.random.default_rng(0)
    rows = [list(range(at, at + size)) for size in (20, 40) for at in (0, 100)]
    readings = [
        Reading(
            rng.normal(size=len(row) - 1).astype(np.float32),
            rng.integers(0, 99, (len(row) - 1, 20)).astype(np.int32),
            rng.normal(size=(len(row) - 1, 20)).astype(np.float32),
        )
        for row in rows
    ]
    texts = [Text("one", "A text."), Text("two", "Another.")]
    return SavedReader({"text": "m"}, texts, [1, 2], rows, readings)


def test_a_reference_comes_back_to_the_bit(reference, tmp_path):
    reference.save(tmp_path / "base.npz")
    assert [each.name for each in tmp_path.iterdir()] == ["base.npz"]
    reader = SavedReader.load(tmp_path / "base.npz")
    for found, written in zip(reader.read(reference.rows), reference.readings, strict=True):
        for name in ("logprob", "top_ids", "top"):
            assert np.array_equal(getattr(found, name), getattr(written, name))
    assert reader.encode("Another.") == list(range(100, 140))
    assert reader.encode("A third.") is None
    assert (reader.limit, reader.lengths, reader.template([])) == (40, [20, 40], [1, 2])


def test_the_beginning_of_a_saved_text_can_be_compared(reference):
    (found,) = reference.read([list(range(10))])
    assert found.logprob.shape == (9,)
    with pytest.raises(UserError, match="no reading of these 3 tokens"):
        list(reference.read([[1, 2, 3]]))


@pytest.mark.parametrize("content", [b"", b"{}", b"PK\x03\x04half"])
def test_what_is_no_reference_is_refused(tmp_path, content):
    path = tmp_path / "base.npz"
    path.write_bytes(content)
    with pytest.raises(UserError, match="is no reference saved by"):
        SavedReader.load(path)
