"""GGUF files: what is written, read back, and what llama.cpp makes of it."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from naive_maps import MOVING
from scripts import script

from resonance_vllm.core.spec import ROPE_TYPES, RopeRequest, RopeType
from resonance_vllm.errors import RopeConfigError
from resonance_vllm.export.checkpoint import export_checkpoint
from resonance_vllm.export.gguf import export_gguf

TRAINED = 256
TEXT = "The pairs of a head turn, each by its own angle: 12 degrees, 3 turns a token."


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A tiny Llama with biases, grouped heads and a byte-level tokenizer of its own."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("llama")
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator([TEXT] * 4, vocab_size=300, special_tokens=["<s>", "</s>"])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=trained._tokenizer, bos_token="<s>", eos_token="</s>"
    )
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=TRAINED,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        attention_bias=True,
        initializer_range=0.3,
        bos_token_id=0,
        eos_token_id=1,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    model.save_pretrained(folder)
    return folder


def request(rope_type, **extra):
    method = RopeType.read(rope_type).method
    given = {**method.example(16), "factor": 4.0, **extra}
    for key in ("short_factor", "long_factor"):
        given[key] = [1.0 + j / 4 for j in range(8)]
    given.pop("original_max_position_embeddings", None)
    known = {key: value for key, value in given.items() if key in method.model_fields}
    return RopeRequest.from_dict({"rope_type": rope_type, **known, **extra})


def opened(file):
    from gguf import GGUFReader

    reader = GGUFReader(file)
    keys = {name: field.contents() for name, field in reader.fields.items()}
    return keys, {each.name: each for each in reader.tensors}


def written(source, tmp_path, rope):
    file = tmp_path / "model.gguf"
    limit = export_gguf(source, rope, file)
    return limit, *opened(file)


FIXED = [
    name
    for name in ROPE_TYPES
    if not RopeType.read(name).method.follows_length
    and name not in MOVING
    and not name.endswith("cope")  # a feature of it stands still
]


@pytest.mark.hf
@pytest.mark.parametrize("rope_type", ["cope", "resonance_cope"])
def test_features_that_stand_still_are_refused(source, tmp_path, rope_type):
    with pytest.raises(RopeConfigError, match="features of it stand still"):
        export_gguf(source, request(rope_type), tmp_path / "model.gguf")
    with pytest.raises(RopeConfigError, match="stands still"):
        export_checkpoint(Path(source), request(rope_type), tmp_path / "folder")


@pytest.mark.hf
@pytest.mark.parametrize("rope_type", FIXED)
def test_frequencies_and_attention_factor_are_those_of_the_method(source, tmp_path, rope_type):
    from resonance_vllm.config import ModelPositions
    from resonance_vllm.core import frequencies

    asked = request(rope_type)
    limit, keys, tensors = written(source, tmp_path, asked)
    spec = ModelPositions.of_checkpoint(source).complete(asked)
    plain = [10000.0 ** (-j / 8) for j in range(8)]
    found = [w / d for w, d in zip(plain, tensors["rope_freqs.weight"].data.tolist(), strict=True)]
    assert found == pytest.approx(frequencies.inv_freq(spec, 16).tolist(), rel=1e-6)
    assert keys["llama.rope.freq_base"] == 10000.0
    assert keys["llama.rope.scaling.type"] == "none"
    assert keys["llama.rope.scaling.attn_factor"] == pytest.approx(spec.method.scale(), rel=1e-6)
    assert keys["llama.context_length"] == limit == spec.method.length_limit(TRAINED)


@pytest.mark.hf
def test_resonance_yarn_in_closed_form(source, tmp_path):
    limit, keys, tensors = written(source, tmp_path, request("resonance_yarn"))
    assert limit == 4 * TRAINED
    expected = []
    for j in range(8):
        plain = 10000.0 ** (-j / 8)
        first, last = (
            16 * math.log(TRAINED / (turns * 2 * math.pi)) / (2 * math.log(10000.0))
            for turns in (32, 1)
        )
        low, high = max(math.floor(first), 0), min(math.ceil(last), 15)
        mix = min(max((j - low) / (high - low), 0.0), 1.0)
        wave = 2 * math.pi / (mix * plain / 4 + (1 - mix) * plain)
        expected.append(plain * round(wave) / (2 * math.pi))
    found = tensors["rope_freqs.weight"].data.tolist()
    assert found == pytest.approx(expected, rel=1e-6)
    factor = keys["llama.rope.scaling.attn_factor"]
    assert factor == pytest.approx(0.1 * math.log(4) + 1, rel=1e-6)


@pytest.mark.hf
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_weights_are_those_of_the_checkpoint(source, tmp_path, dtype):
    from gguf import GGMLQuantizationType, dequantize
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(source, dtype=getattr(torch, dtype))
    folder = tmp_path / "typed"
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    _, _, tensors = written(folder, tmp_path, request("yarn"))
    state = model.state_dict()
    assert len(tensors) == len(state) + 1  # rope_freqs.weight
    kind = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}[dtype]
    found = tensors["blk.1.attn_output.weight"]
    assert found.tensor_type == GGMLQuantizationType[kind]
    values = dequantize(found.data, found.tensor_type)
    assert (values == state["model.layers.1.self_attn.o_proj.weight"].float().numpy()).all()
    # llama.cpp turns neighbours, transformers the halves of a head
    for name, part, heads in (("attn_q", "q_proj", 4), ("attn_k", "k_proj", 2)):
        for suffix in ("weight", "bias"):
            stored = tensors[f"blk.0.{name}.{suffix}"]
            values = dequantize(stored.data, stored.tensor_type)
            original = state[f"model.layers.0.self_attn.{part}.{suffix}"].float().numpy()
            for head in range(heads):
                for i in range(8):
                    at = 16 * head
                    assert (values[at + 2 * i] == original[at + i]).all()
                    assert (values[at + 2 * i + 1] == original[at + 8 + i]).all()


@pytest.mark.hf
def test_the_tokenizer_is_written_by_ids(source, tmp_path):
    from transformers import AutoTokenizer

    _, keys, _ = written(source, tmp_path, request("linear"))
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokens = keys["tokenizer.ggml.tokens"]
    assert tokens[: len(tokenizer)] == tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    assert len(tokens) == keys["llama.vocab_size"] == 320
    assert tokens[-1] == "[PAD319]"
    assert keys["tokenizer.ggml.model"] == "gpt2"
    assert keys["tokenizer.ggml.pre"] == "gpt-2"
    assert keys["tokenizer.ggml.bos_token_id"] == 0
    assert keys["tokenizer.ggml.eos_token_id"] == 1
    assert keys["tokenizer.ggml.add_bos_token"] is False
    assert keys["tokenizer.ggml.token_type"][:3] == [3, 3, 1]
    merges = json.loads((source / "tokenizer.json").read_text())["model"]["merges"]
    assert keys["tokenizer.ggml.merges"] == [" ".join(merge) for merge in merges]


def changed(source, tmp_path, file, **content):
    folder = tmp_path / "changed"
    folder.mkdir()
    for each in source.iterdir():
        (folder / each.name).symlink_to(each)
    whole = json.loads((source / file).read_text()) | content
    (folder / file).unlink()
    (folder / file).write_text(json.dumps(whole))
    return folder


@pytest.mark.parametrize(
    ("file", "content", "rope", "words"),
    [
        ("config.json", {"model_type": "qwen3"}, "yarn:factor=4", "model_type: 'qwen3'.*'llama'"),
        ("config.json", {"hidden_act": "gelu"}, "yarn:factor=4", "hidden_act: 'gelu'.*'silu'"),
        ("config.json", {}, "dynamic:factor=1", "change with the length"),
        ("config.json", {}, "yarn:factor=4,partial_rotary_factor=0.5", "partial_rotary_factor"),
        ("tokenizer.json", {"pre_tokenizer": None}, "yarn:factor=4", "tokenizer.json: 'BPE'"),
    ],
)
def test_what_llama_cpp_would_run_otherwise_is_refused(
    source, tmp_path, file, content, rope, words
):
    folder, out = changed(source, tmp_path, file, **content), tmp_path / "x.gguf"
    with pytest.raises(RopeConfigError, match=words):
        export_gguf(folder, RopeRequest.parse(rope), out)
    assert not [path for path in tmp_path.iterdir() if "gguf" in path.name]


@pytest.mark.hf
@pytest.mark.slow
def test_llama_cpp_gives_the_log_probabilities_of_transformers(source, tmp_path):
    """Below the trained length and beyond it, in float32; a plain file gives others."""
    from transformers import AutoTokenizer

    parity = script("benchmarks/gguf_parity.py")
    tokenizer = AutoTokenizer.from_pretrained(source)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(2, 299, (900,), generator=generator).tolist()
    ends = [1, 2, 5, 40, 200, 255, 300, 500, 899]
    scores = {}
    for rope_type in ("default", "yarn", "resonance_yarn", "ntk_aware", "longrope"):
        file = tmp_path / f"{rope_type}.gguf"
        export_gguf(source, request(rope_type), file)
        parity.lengthen(file, 1024)
        scores[rope_type] = parity.of_llama_cpp(file, tokenizer, ids, ends)
        ours = parity.of_transformers(source, request(rope_type), ids, ends)
        np.testing.assert_allclose(scores[rope_type], ours, rtol=0, atol=1e-3)
        if rope_type != "default":
            assert np.abs(scores["default"] - ours).max() > 0.1
