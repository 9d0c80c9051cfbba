"""llama.cpp by the package xllamacpp, which shows no frequencies: read from the logits of a model.

The model has one layer, one key head and two query heads a feature. The key of the first token
holds (1, 0) in every pair of dimensions, that of the second is 0; each query holds a number in one
pair. The weight of the first token after the second is then sigmoid(q*cos) or sigmoid(q*sin) of one
feature at position 1, and an identity as output matrix makes a logit of it. The settings are
written as convert_hf_to_gguf.py of llama.cpp writes them for Llama.
"""

import importlib.metadata
import math
import tempfile
from pathlib import Path

import numpy as np
import xllamacpp
from gguf import GGUFWriter, RopeScalingType, TokenType

GAIN = 0.3
"""Score of a right frequency: small, so that one 16 times as large can still be read."""


def version():
    """The library's version."""
    return importlib.metadata.version("xllamacpp")


def read(vector):
    """Frequencies and attention factor at position 1."""
    if vector["layer_type"]:
        raise NotImplementedError("one architecture is read, which has one rotation")
    own = "mscale" in vector["rope"] and vector["group"] == "published"
    if own or vector["config"]["model_type"] == "gpt_oss":
        raise NotImplementedError("an architecture that the converter writes in its own way")
    want = vector["inv_freq"]
    gains = [GAIN / math.sin(theta) if theta else 1.0 for theta in want]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "probe.gguf"
        _write(file, vector, gains)
        weights = _weights(file, _context(vector), 2 * len(want))
    scores = [math.log(weight / (1 - weight)) for weight in weights]
    sines, cosines = scores[: len(want)], scores[len(want) :]
    # score = scale^2 * sin(theta) * gain, and scale^2 * cos(theta)
    angles = [math.atan2(s / gain, c) for s, gain, c in zip(sines, gains, cosines)]
    slowest = len(want) - 1
    scale = math.sqrt(math.hypot(sines[slowest] / gains[slowest], cosines[slowest]))
    return {"inv_freq": angles, "attention_factor": scale}


def _context(vector):
    """The context size: short, but on the side of LongRoPE's switch that the vector is for."""
    if vector["method"] != "longrope":
        return 256
    original, served = vector["rope"]["original_max_position_embeddings"], vector["served_length"]
    return original + 256 if served > original else original


def _write(file, vector, gains):
    """The probe as a GGUF file of the architecture `llama`."""
    half, dim = len(gains), vector["rotary_dim"]
    heads, width = 2 * half, 2 * half + 3
    first, second, constant = width - 3, width - 2, width - 1
    writer = GGUFWriter(file, "llama")
    writer.add_context_length(vector["config"]["max_position_embeddings"])
    writer.add_vocab_size(width)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(1)
    writer.add_head_count(heads)
    writer.add_head_count_kv(1)
    writer.add_key_length(dim)
    writer.add_value_length(dim)
    writer.add_layer_norm_rms_eps(1e-12)
    writer.add_rope_dimension_count(dim)
    _add_rope(writer, vector)
    _add_tokens(writer, width)
    embedding = np.zeros((width, width), np.float32)
    embedding[first, [first, constant]] = embedding[second, [second, constant]] = 1
    normed = math.sqrt(width / 2)  # the size of a 1 after the norm
    query = np.zeros((heads, dim, width), np.float32)
    for j, gain in enumerate(gains):  # pairs are neighbours
        query[j, 2 * j + 1, constant] = -gain * math.sqrt(dim) / normed
        query[half + j, 2 * j, constant] = math.sqrt(dim) / normed
    key, value = np.zeros((2, dim, width), np.float32)
    key[0::2, first] = value[0, first] = 1 / normed
    output = np.zeros((width, heads, dim), np.float32)
    output[range(heads), range(heads), 0] = 1
    ones = np.ones(width, np.float32)
    for name, tensor in {
        "token_embd": embedding,
        "output": np.eye(width, dtype=np.float32),
        "output_norm": ones,
        "blk.0.attn_norm": ones,
        "blk.0.attn_q": query.reshape(-1, width),
        "blk.0.attn_k": key,
        "blk.0.attn_v": value,
        "blk.0.attn_output": output.reshape(width, -1),
        "blk.0.ffn_norm": ones,
        "blk.0.ffn_gate": np.zeros((1, width), np.float32),
        "blk.0.ffn_up": np.zeros((1, width), np.float32),
        "blk.0.ffn_down": np.zeros((width, 1), np.float32),
    }.items():
        writer.add_tensor(f"{name}.weight", tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_rope(writer, vector):
    """Keys and tensors of the settings."""
    rope, kind = vector["rope"], vector["method"]
    base, dim = rope["rope_theta"], vector["rotary_dim"]
    if "alpha" in rope:
        base *= rope["alpha"] ** (dim / (dim - 2))
    writer.add_rope_freq_base(base)
    if kind == "linear":
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif kind == "yarn":
        writer.add_rope_scaling_type(RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if "attention_factor" in rope:
            writer.add_rope_scaling_yarn_attn_factor(rope["attention_factor"])
        for name in ("beta_fast", "beta_slow"):
            if name in rope:
                getattr(writer, f"add_rope_scaling_yarn_{name}")(rope[name])
    elif kind == "llama3":
        plain = [base ** (-2 * j / dim) for j in range(dim // 2)]
        factors = [a / b for a, b in zip(plain, vector["inv_freq"])]
        writer.add_tensor("rope_freqs.weight", np.array(factors, np.float32))
    elif kind == "longrope":
        original = rope["original_max_position_embeddings"]
        ratio = vector["config"]["max_position_embeddings"] / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_type(RopeScalingType.LONGROPE)
        scale = math.sqrt(1 + math.log(ratio) / math.log(original)) if ratio > 1 else 1.0
        writer.add_rope_scaling_attn_factors(scale)
        for name in ("long", "short"):
            factors = np.array(rope[f"{name}_factor"], np.float32)
            writer.add_tensor(f"rope_factors_{name}.weight", factors)
    elif kind not in ("default", "dynamic"):  # the converter writes nothing for dynamic
        raise ValueError(f"GGUF has no keys for {kind}")


def _add_tokens(writer, count):
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"t{number}".encode() for number in range(count)])
    writer.add_token_types([TokenType.NORMAL] * count)
    writer.add_token_merges(["t 0"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)


def _weights(file, context, count):
    """Attention weights of the first token after two tokens, one a query head."""
    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    params.n_ctx, params.n_batch, params.n_ubatch, params.n_parallel = context, 32, 32, 1
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.warmup, params.verbosity = False, -1
    server = xllamacpp.Server(params)
    first, second, constant = count, count + 1, count + 2
    request = {"prompt": [first, second], "n_predict": 1, "n_probs": count + 3, "temperature": 0.0}
    answer = server.handle_completions(request)
    after = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    found = {each["id"]: each["logprob"] for each in after}
    zero = found[first]  # the first token's own channel is empty at the second
    return [(found[head] - zero) / (found[constant] - zero) for head in range(count)]
