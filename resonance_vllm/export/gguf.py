"""A checkpoint of Llama's architecture as one GGUF file that llama.cpp runs with a fixed method.

llama.cpp divides the plain frequency of each feature by the tensor `rope_freqs.weight` and, with no
scaling type, multiplies cos and sin by `rope.scaling.attn_factor` alone (`llama-context.cpp`,
`ggml_rope_ext`): together they hold any fixed method. Its angle is a float32 product, so the exact
phase is lost.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resonance_vllm.config import ModelPositions, length_limit, loading, read_config
from resonance_vllm.core.spec import RopeRequest, RopeSpec
from resonance_vllm.errors import RopeConfigError, needs_extra
from resonance_vllm.export.checkpoint import check_fixed, check_there, divisors
from resonance_vllm.files import parse_json, sync_folder

if TYPE_CHECKING:
    from gguf import GGUFWriter
    from torch import Tensor

ARCHITECTURE = "llama"
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# How tokenizer.json cuts a text into words -> llama.cpp's name of it (its `llama-vocab.cpp`).
PRE_TOKENIZERS = {
    ("ByteLevel",): "gpt-2",
    ("Digits", "ByteLevel"): "smollm",
    (_WORDS % r"\p{N}{1,3}", "ByteLevel"): "llama-bpe",
    (_WORDS % r"\p{N}", "ByteLevel"): "qwen2",
}


def export_gguf(checkpoint: Path, request: RopeRequest, out: Path) -> int:
    """Write a checkpoint, its tokenizer and a fixed RoPE method into one new file.

    Matrices keep the dtype of the checkpoint, vectors are float32.

    Returns:
        Longest sequence in tokens, to be given to llama.cpp as `-c`.

    Raises:
        RopeConfigError: the method cannot be exported, or llama.cpp would run the model otherwise
            under the architecture `llama`.
        OSError: the checkpoint has no config.json, or `out` exists.
        ImportError: the extra `quickstart` is not installed.
    """
    if out.exists():
        raise FileExistsError(f"out: {out} exists; give a new file")
    check_there(checkpoint)
    _check_architecture(read_config(str(checkpoint)))
    model = ModelPositions.of_checkpoint(str(checkpoint))
    rope = model.complete(request)
    check_fixed(rope)
    if rope.method.partial_rotary_factor != 1.0:
        raise RopeConfigError(
            f"partial_rotary_factor: {rope.method.partial_rotary_factor} cannot be written as "
            "GGUF; allowed: 1, because llama.cpp turns whole heads of this architecture"
        )
    limit = length_limit(model, rope)
    try:
        from gguf import GGUFWriter
    except ImportError as error:
        raise ImportError(f"{error}: to write a GGUF file, {needs_extra('quickstart')}") from error
    from transformers import AutoModelForCausalLM

    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f".{out.name}.{os.getpid()}")
    writer = GGUFWriter(temporary, ARCHITECTURE)
    try:
        with loading(str(checkpoint)):
            weights = AutoModelForCausalLM.from_pretrained(checkpoint, dtype="auto")
        _add_sizes(writer, weights.config, rope, limit)
        _add_tokenizer(writer, checkpoint, weights.config.vocab_size)
        _add_tensors(writer, weights, rope)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        temporary.replace(out)
        sync_folder(out.parent)
    except BaseException:
        writer.close()
        temporary.unlink(missing_ok=True)
        raise
    return limit


def _check_architecture(config: Any) -> None:
    """Refuse what llama.cpp computes in another way, or cannot read, under this architecture."""
    known = config if isinstance(config, Mapping) else config.to_dict()
    for key, allowed in {"model_type": ARCHITECTURE, "hidden_act": "silu"}.items():
        if known.get(key) != allowed:
            raise RopeConfigError(
                f"{key}: {known.get(key)!r} cannot be written as GGUF; allowed: {allowed!r}, the "
                "architecture whose RoPE llama.cpp takes from the file"
            )


def _add_sizes(writer: "GGUFWriter", config: Any, rope: RopeSpec, limit: int) -> None:
    from gguf import RopeScalingType

    writer.add_name(Path(config.name_or_path).name)
    writer.add_context_length(limit)
    writer.add_vocab_size(config.vocab_size)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(rope.method.rope_theta)
    writer.add_rope_scaling_type(RopeScalingType.NONE)
    writer.add_rope_scaling_attn_factors(rope.method.scale())


def _add_tensors(writer: "GGUFWriter", model: Any, rope: RopeSpec) -> None:
    import torch
    from gguf import MODEL_ARCH, GGMLQuantizationType, get_tensor_name_map

    from resonance_vllm.core.frequencies import inv_freq

    config = model.config
    names = get_tensor_name_map(MODEL_ARCH.LLAMA, config.num_hidden_layers)
    state = model.state_dict()
    if config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    factors = divisors(rope, inv_freq(rope, config.head_dim).tolist())
    writer.add_tensor("rope_freqs.weight", torch.tensor(factors, dtype=torch.float32).numpy())
    for key, tensor in state.items():
        name = names.get_name(key, try_suffixes=(".weight", ".bias"))
        if name is None:
            raise RopeConfigError(
                f"{key}: {tuple(tensor.shape)} is no tensor of llama.cpp's architecture "
                f"{ARCHITECTURE!r}; allowed: checkpoints of Llama's layout"
            )
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        value = tensor.detach().contiguous()
        for part, count in heads.items():
            if f".{part}." in key:
                value = interleaved(value, count)
        if value.dim() < 2 or value.dtype == torch.float32:
            writer.add_tensor(name, value.float().numpy())
        elif value.dtype == torch.float16:
            writer.add_tensor(name, value.numpy())
        else:
            raw = value.to(torch.bfloat16).view(torch.uint8).numpy()
            writer.add_tensor(name, raw, raw_dtype=GGMLQuantizationType.BF16)


def interleaved(weight: "Tensor", heads: int) -> "Tensor":
    """Rows of a projection `[heads * d, ...]` with the pair (i, i + d/2) of a head side by side.

    transformers rotates halves of a head, llama.cpp's `llama` neighbours.
    """
    half = weight.shape[0] // heads // 2
    pairs = weight.reshape(heads, 2, half, *weight.shape[1:]).transpose(1, 2)
    return pairs.reshape(weight.shape).contiguous()


def _add_tokenizer(writer: "GGUFWriter", checkpoint: Path, vocab_size: int) -> None:
    """The tokenizer as llama.cpp reads it: byte-level BPE, or SentencePiece's own file."""
    from gguf.vocab import SpecialVocab
    from transformers import AutoTokenizer

    if (checkpoint / "tokenizer.model").is_file():
        _add_sentencepiece(writer, checkpoint, vocab_size)
    else:
        _add_byte_level(writer, checkpoint, vocab_size)
    special = SpecialVocab(checkpoint, load_merges=False, n_vocab=vocab_size)
    special.add_special_token = {}
    special.add_to_gguf(writer, quiet=True)
    with loading(str(checkpoint)):
        tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    begun = tokenizer("a")["input_ids"]
    writer.add_add_bos_token(bool(begun) and begun[0] == tokenizer.bos_token_id)


def _add_sentencepiece(writer: "GGUFWriter", checkpoint: Path, vocab_size: int) -> None:
    from gguf.vocab import SentencePieceVocab

    _add_tokens(writer, "llama", "default", SentencePieceVocab(checkpoint).all_tokens(), vocab_size)


def _add_byte_level(writer: "GGUFWriter", checkpoint: Path, vocab_size: int) -> None:
    from gguf import TokenType

    file = checkpoint / "tokenizer.json"
    content = parse_json(file.read_text(encoding="utf-8"), str(file))
    cut = tuple(_cuts(content.get("pre_tokenizer") or {}))
    bpe = content["model"]
    if bpe.get("type") != "BPE" or content.get("normalizer") or cut not in PRE_TOKENIZERS:
        raise RopeConfigError(
            f"tokenizer.json: {bpe.get('type')!r} over {cut!r} is not known to be a tokenizer of "
            f"llama.cpp; allowed: BPE over {', '.join(PRE_TOKENIZERS.values())}, or tokenizer.model"
        )
    types = dict.fromkeys(bpe["vocab"], TokenType.NORMAL)
    for added in content.get("added_tokens", ()):
        kind = TokenType.CONTROL if added["special"] else TokenType.USER_DEFINED
        types[added["content"]] = kind
        bpe["vocab"][added["content"]] = added["id"]
    by_id = sorted(bpe["vocab"], key=bpe["vocab"].__getitem__)
    tokens = ((text.encode(), 0.0, types[text]) for text in by_id)
    _add_tokens(writer, "gpt2", PRE_TOKENIZERS[cut], tokens, vocab_size)
    merges = (merge if isinstance(merge, str) else " ".join(merge) for merge in bpe["merges"])
    writer.add_token_merges(list(merges))


def _cuts(pre_tokenizer: Mapping[str, Any]) -> Iterator[str]:
    """The steps of a pre-tokenizer: the kind of each, of a Split its pattern."""
    kind = pre_tokenizer.get("type")
    if kind == "Sequence":
        for step in pre_tokenizer["pretokenizers"]:
            yield from _cuts(step)
    elif kind == "Split":
        yield str(pre_tokenizer["pattern"].get("Regex"))
    else:
        yield str(kind)


def _add_tokens(writer: "GGUFWriter", model: str, pre: str, tokens: Any, vocab_size: int) -> None:
    """Tokens in the order of their ids, filled up to the size of the embedding."""
    from gguf import TokenType

    known = list(tokens)
    missing = range(len(known), vocab_size)
    known += [(f"[PAD{number}]".encode(), -1000.0, TokenType.UNUSED) for number in missing]
    texts, scores, types = zip(*known, strict=True)
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(texts)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
