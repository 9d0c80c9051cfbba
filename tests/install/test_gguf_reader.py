"""The faster GGUF reader gives what the reader of the `gguf` package gives."""

import gguf
import numpy as np
import pytest

from leval_harness.models.gguf_reader import ArrayReader, reading_arrays_at_once

TOKENS = ["<bos>", "", "▁static", "че", "世界", " \n\t"]
SCORES = [-1000.0, 0.0, -1.5, -2.0, -3.0, -4.0]


@pytest.fixture(params=[gguf.GGUFEndian.LITTLE, gguf.GGUFEndian.BIG], ids=["little", "big"])
def file(request, tmp_path):
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama", endianess=request.param)
    writer.add_token_list(TOKENS)
    writer.add_token_scores(SCORES)
    writer.add_token_types([3, 1, 1, 1, 4, 6])
    writer.add_context_length(32768)
    writer.add_array("empty.numbers.are.not.written", [True, False])
    writer.add_tensor("token_embd.weight", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_array_reader_equals_the_library(file):
    plain, fast = gguf.GGUFReader(file), ArrayReader(file)
    assert [*fast.fields] == [*plain.fields]
    for name, field in plain.fields.items():
        assert fast.fields[name].contents() == field.contents(), name
        assert fast.fields[name].types == field.types, name
    assert fast.fields["tokenizer.ggml.tokens"].contents() == TOKENS
    for fast_tensor, plain_tensor in zip(fast.tensors, plain.tensors, strict=True):
        assert fast_tensor.name == plain_tensor.name
        assert np.array_equal(fast_tensor.data, plain_tensor.data)


def test_array_reader_is_used_in_the_context_alone():
    original = gguf.GGUFReader
    with reading_arrays_at_once():
        assert gguf.GGUFReader is ArrayReader
    assert gguf.GGUFReader is original
