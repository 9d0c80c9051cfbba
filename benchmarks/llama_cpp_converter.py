"""An adapter of the RoPE test vectors: what llama.cpp's convert_hf_to_gguf.py writes of a config.

    L=SDIST/vendor/llama.cpp
    export PYTHONPATH=.:$L:$L/gguf-py
    python resonance_vllm/vectors/rope_vectors.py benchmarks/llama_cpp_converter.py

SDIST is an unpacked source distribution of llama-cpp-python. The converter's class for the
architecture writes its keys and tensors of RoPE into a GGUF file, whose rotation is read as
`leval-harness check` reads it.
"""

import json
import re
import tempfile
from pathlib import Path

import conversion
import gguf
from conversion.base import ModelBase
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES

from resonance_vllm.shipped_files import held


def version():
    """That of llama-cpp-python."""
    text = (Path(conversion.__file__).parents[3] / "PKG-INFO").read_text(encoding="utf-8")
    return re.search(r"^Version: (.+)$", text, re.MULTILINE)[1]


def read(vector):
    """The rotation of the vector's layers in a GGUF file that the converter wrote."""
    name = CLASSES[vector["config"]["model_type"]]
    with tempfile.TemporaryDirectory() as folder:
        config = json.dumps({**vector["config"], "architectures": [name]})
        (Path(folder) / "config.json").write_text(config, encoding="utf-8")
        file = Path(folder) / "model.gguf"
        _convert(Path(folder), file, name)
        found = held(str(file), vector["served_length"])
    return found.get(vector["layer_type"], found.get(None))


def _convert(folder, file, name):
    """Keys and tensors that the converter derives from the config; there are no weights."""
    settings = ModelBase.load_hparams(folder, False)
    model = conversion.get_model_class(name)(
        folder, gguf.LlamaFileType.ALL_F32, file, hparams=settings
    )
    model.set_gguf_parameters()
    for key, tensor in model.generate_extra_tensors():
        model.gguf_writer.add_tensor(key, tensor.numpy())
    model.gguf_writer.write_header_to_file(file)
    model.gguf_writer.write_kv_data_to_file()
    model.gguf_writer.write_tensors_to_file()
    model.gguf_writer.close()
