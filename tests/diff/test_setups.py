"""How setups are written, what they read, and references that are saved."""

import numpy as np
import pytest

from leval_harness.backends import BACKENDS
from leval_harness.diff.compare import read_documents
from leval_harness.diff.result import input_differences
from leval_harness.diff.setups import Setup
from leval_harness.diff.side import Side
from leval_tasks.perplexity.documents import Document
from resonance_vllm.common.errors import SettingError


@pytest.mark.parametrize(
    ("text", "kind", "target", "arguments"),
    [
        ("model", "hf", "model", {}),
        ("vllm:m,kv_cache_dtype=fp8_e4m3,enforce_eager=true", "vllm", "m",
         {"kv_cache_dtype": "fp8_e4m3", "enforce_eager": True}),
        ('vllm:m,hf_overrides={"rope_parameters": {"rope_theta": 1.0, "factor": 2}},seed=1', "vllm",
         "m", {"hf_overrides": {"rope_parameters": {"rope_theta": 1.0, "factor": 2}}, "seed": 1}),
        ("hf:m,rope=yarn:factor=2", "hf", "m", {"rope": "yarn:factor=2"}),
        ("http://host:8000/v1,model=a", "server", "http://host:8000/v1", {"model": "a"}),
        ("base.npz", "saved", "base.npz", {}),
        *((f"{kind}:there", kind, "there", {}) for kind in BACKENDS),
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
        ("http://host/v1?api_key=x1x2x3,model=m", r"setup\.address: the parameter 'api_key' of an"),
        ("http://me:x1x2x3@host/v1", r"setup\.address: an address with a user or a password"),
        ("hf:m,token=x1x2x3", r"setup\.token: a credential does not belong"),
        ("m.npz,rope=yarn:factor=2", "rope: saved runs a model as it is; allowed with: hf, "),
    ],
)
def test_what_cannot_be_read_is_named(text, message):
    with pytest.raises(SettingError, match=message):
        Setup.parse(text)


def test_rope_becomes_arguments_of_the_backend(tmp_path, save_llama):
    folder = save_llama(tmp_path, vocab_size=64, max_position_embeddings=128)
    made = Setup.parse(f"{folder},rope=yarn:factor=2").backend_arguments()
    assert made["rope_parameters"]["rope_type"] == "yarn"
    assert made["max_length"] == 256
    made = Setup.parse(f"vllm:{folder},rope=yarn:factor=2,max_model_len=200").backend_arguments()
    assert made["hf_overrides"]["rope_parameters"]["factor"] == 2.0
    assert made["max_model_len"] == 200
    with pytest.raises(SettingError, match="context_length: 300 is above the limit of 256"):
        Setup.parse(f"{folder},max_length=300,rope=yarn:factor=2").backend_arguments()


def side(encoded, chat=None):
    return Side({"text": "m"}, [Document("one", "A text.")], [encoded], chat, [], [])


@pytest.mark.parametrize(
    ("a", "b", "kind", "said"),
    [
        ([1, 7, 8, 9], [7, 8, 9, 10], "bos", "A begins a text with tokens [1, 7], B with [7, 8]"),
        ([7, 8, 9], [1, 7, 8], "bos", "A begins a text with tokens [7, 8], B with [1, 7]"),
        ([1, 7, 8], [2, 7, 8], "bos", "B with [2, 7]"),
        ([7, 8, 9, 10], [7, 8, 3, 10], "tokenizer", "in one: from token 2 on A has [9, 10]"),
    ],
)
def test_encodings_that_differ_are_named(a, b, kind, said):
    (found,) = input_differences(side(a), side(b))
    assert (found.kind, said in found.sentence) == (kind, True)


def test_equal_encodings_and_unknown_ones_are_no_finding():
    assert list(input_differences(side([1, 2, 3]), side([1, 2]))) == []
    assert list(input_differences(side(None, [1, 2]), side([3], [1, 2]))) == []
    assert list(input_differences(side([1], None), side([1], [1]))) == []


def test_texts_of_every_source(tmp_path):
    pieces = read_documents("pydocs", 1024)
    assert len(pieces) > 50
    assert all(len(each.text) == 6144 for each in pieces)
    assert len({each.sha256 for each in pieces}) == len(pieces)
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n{"text": "one "}\n')
    assert [each.text for each in read_documents(str(tmp_path / "a.jsonl"), 8)] == ["one", "two"]
    (tmp_path / "b.txt").write_text("b")
    assert [each.name for each in read_documents(str(tmp_path), 8)] == ["a-1", "a-2", "b-4"]
    (tmp_path / "long.txt").write_text("".join(f"{n:04}\n" for n in range(100)))
    assert [len(each.text) for each in read_documents(str(tmp_path / "long.txt"), 16)] == [96] * 5
    with pytest.raises(
        SettingError, match="--documents: 'nowhere' is not allowed; allowed: pydocs, "
    ):
        read_documents("nowhere", 8)


def test_a_reference_comes_back_to_the_bit(tmp_path):
    rows = [list(range(at, at + 40)) for at in (0, 100)]
    logprobs = np.random.default_rng(0).normal(size=(2, 39)).astype(np.float32)
    documents = [Document("one", "A text."), Document("two", "Another.")]
    Side({"text": "m"}, documents, rows, [1, 2], rows, logprobs).save(tmp_path / "base.npz")
    assert [each.name for each in tmp_path.iterdir()] == ["base.npz"]
    found = Side.load(tmp_path / "base.npz")
    assert (found.documents, found.encoded, found.chat, found.rows) == (
        documents,
        rows,
        [1, 2],
        rows,
    )
    assert np.array_equal(found.logprobs, logprobs)
