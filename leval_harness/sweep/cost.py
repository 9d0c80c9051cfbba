"""What a run costs: tokens, floating-point operations and memory, from a model's config alone.

The counts are those of a decoder with gated feed-forward layers, of which every current family is
a variant. They leave out norms, activations and the rotation, which are below one percent.
Sources: Hoffmann et al. 2022, appendix F (2 FLOPs for each weight and token); Dao et al. 2022 (an
attention score and its use take 4 FLOPs for each pair of tokens and each dimension of a head).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

BYTES_OF_DTYPE = {"float32": 4, "float16": 2, "bfloat16": 2, "auto": 2, "": 2}
"""Bytes of a weight, and of an entry of the KV cache; `auto` is the checkpoint's, nearly always 2."""

FULL, WINDOWED = "full_attention", "sliding_attention"


@dataclass(frozen=True, kw_only=True)
class ModelSize:
    """The sizes that decide what a forward pass costs.

    Attributes:
        hidden: width of the residual stream.
        heads: attention heads of a layer.
        kv_heads: heads of keys and values of a layer.
        head_dim: dimensions of a head.
        vocabulary: number of tokens.
        full_layers: layers in which a token attends to all tokens before it.
        windowed_layers: layers in which it attends to the last `window` tokens.
        window: tokens of a sliding window; 0 without such layers.
        feed_forward: weights of all feed-forward layers that one token passes through.
        idle_feed_forward: weights of experts that a token does not pass through.
        has_shared_embedding: whether input and output embedding are the same weights.
        bytes_per_value: bytes of a weight and of an entry of the KV cache.
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    full_layers: int
    windowed_layers: int
    window: int
    feed_forward: int
    idle_feed_forward: int
    has_shared_embedding: bool
    bytes_per_value: int

    @property
    def layers(self) -> int:
        """Number of layers."""
        return self.full_layers + self.windowed_layers

    @property
    def attention_weights(self) -> int:
        """Weights of the projections of queries, keys, values and output, in all layers."""
        query_and_output = 2 * self.hidden * self.heads * self.head_dim
        key_and_value = 2 * self.hidden * self.kv_heads * self.head_dim
        return self.layers * (query_and_output + key_and_value)

    @property
    def embedding_weights(self) -> int:
        """Weights of one embedding."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All weights, without norms and biases."""
        embeddings = self.embedding_weights * (1 if self.has_shared_embedding else 2)
        feed_forward = self.feed_forward + self.idle_feed_forward
        return embeddings + self.attention_weights + feed_forward

    @property
    def weight_bytes(self) -> int:
        """Memory of the weights."""
        return self.parameters * self.bytes_per_value

    def kv_cache_bytes(self, tokens: int) -> int:
        """Return the memory of the keys and values of one sequence.

        Args:
            tokens: length of the sequence. Windowed layers keep the last `window` tokens.
        """
        entries = self.full_layers * tokens + self.windowed_layers * min(tokens, self.window)
        return 2 * self.kv_heads * self.head_dim * self.bytes_per_value * entries

    def prefill_flops(self, tokens: int, scored: int = 1, cached: int = 0) -> float:
        """Return the floating-point operations of one forward pass.

        Args:
            tokens: tokens of the pass.
            scored: tokens whose logits are computed: 1 before decoding, all of them for losses.
            cached: tokens before them whose keys and values are in the cache.
        """
        weights = self.attention_weights + self.feed_forward
        matrices = 2.0 * weights * tokens + 2.0 * self.embedding_weights * scored
        pairs = self.full_layers * attended_pairs(tokens, cached)
        pairs += self.windowed_layers * attended_pairs(tokens, cached, self.window)
        return matrices + 4.0 * self.heads * self.head_dim * pairs


def attended_pairs(tokens: int, cached: int = 0, window: int | None = None) -> float:
    """Return the number of pairs of a token and one that it attends to, itself included.

    Args:
        tokens: tokens of the pass.
        cached: tokens before them.
        window: most tokens that one attends to; None for all.
    """
    first, last = cached + 1, cached + tokens  # tokens that the first and the last one attend to
    if window is None or last <= window:
        return (first + last) * tokens / 2
    growing = max(0, window - cached)
    return attended_pairs(growing, cached) + (tokens - growing) * float(window)


def model_size(config: Mapping[str, Any], dtype: str = "") -> ModelSize | None:
    """Return the sizes of a language model from its config.

    Args:
        config: content of config.json. A nested `text_config` is the language model's.
        dtype: data type that the model is loaded in.

    Returns:
        The sizes, or None where the config does not have the usual keys (state-space models).
    """
    text = config.get("text_config") or config
    try:
        hidden, layers = int(text["hidden_size"]), int(text["num_hidden_layers"])
        heads, vocabulary = int(text["num_attention_heads"]), int(text["vocab_size"])
    except (KeyError, TypeError, ValueError):
        return None
    windowed_layers = _windowed_layers(text, layers)
    feed_forward, idle = _feed_forward(text, hidden, layers)
    shared = text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))
    return ModelSize(
        hidden=hidden,
        heads=heads,
        kv_heads=int(text.get("num_key_value_heads") or heads),
        head_dim=int(text.get("head_dim") or hidden // heads),
        vocabulary=vocabulary,
        full_layers=layers - windowed_layers,
        windowed_layers=windowed_layers,
        window=int(text.get("sliding_window") or 0) if windowed_layers else 0,
        feed_forward=feed_forward,
        idle_feed_forward=idle,
        has_shared_embedding=bool(shared),
        bytes_per_value=BYTES_OF_DTYPE.get(dtype, 2),
    )


def _windowed_layers(text: Mapping[str, Any], layers: int) -> int:
    """Return how many layers attend to a sliding window."""
    window = text.get("sliding_window")
    if not window or text.get("use_sliding_window") is False:
        return 0
    kinds = text.get("layer_types")
    if kinds:
        return sum(kind == WINDOWED for kind in kinds)
    return layers


def _feed_forward(text: Mapping[str, Any], hidden: int, layers: int) -> tuple[int, int]:
    """Return the feed-forward weights that a token passes through, and those of idle experts."""
    dense = 3 * hidden * int(text.get("intermediate_size") or 4 * hidden)
    experts = (
        text.get("num_experts") or text.get("num_local_experts") or text.get("n_routed_experts")
    )
    if not experts:
        return layers * dense, 0
    width = _number(text, "moe_intermediate_size", "intermediate_size") or 4 * hidden
    expert = 3 * hidden * width
    used = _number(text, "num_experts_per_tok", "moe_topk") or 1
    always = _number(text, "n_shared_experts", "num_shared_expert")
    dense_layers = int(text.get("first_k_dense_replace") or 0)
    sparse_layers = layers - dense_layers
    active = dense_layers * dense + sparse_layers * (used + always) * expert
    return active, sparse_layers * (int(experts) - used) * expert


def _number(text: Mapping[str, Any], *names: str) -> int:
    """Return the first of some settings that is set, 0 without any; of a list per layer, the last."""
    for name in names:
        value = text.get(name)
        if isinstance(value, list | tuple) and value:
            return int(value[-1])
        if value:
            return int(value)
    return 0


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What some passes cost together.

    Attributes:
        documents: documents, or questions with a prompt of their own.
        prefill_tokens: tokens of all forward passes over prompts and documents.
        decode_tokens: tokens that are generated one by one, at most.
        flops: floating-point operations of both.
        memory_bytes: most memory at a time: weights, KV cache, and the logits and activations of a
            pass. 0 where it is not known.
    """

    documents: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    flops: float = 0.0
    memory_bytes: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        """Return the cost of one after the other: counts add up, memory is the larger one."""
        return replace(
            self,
            documents=self.documents + other.documents,
            prefill_tokens=self.prefill_tokens + other.prefill_tokens,
            decode_tokens=self.decode_tokens + other.decode_tokens,
            flops=self.flops + other.flops,
            memory_bytes=max(self.memory_bytes, other.memory_bytes),
        )

    def hours(self, teraflops: float) -> float:
        """Return the hours on a device that reaches so many 10^12 operations per second."""
        return self.flops / (teraflops * 1e12) / 3600


def scoring_cost(size: ModelSize, lengths: list[int], passes: int = 1) -> Cost:
    """Return the cost of the losses of documents.

    Args:
        size: of the model.
        lengths: tokens of each sequence that is read; windows are sequences of their own.
        passes: documents that these sequences are.
    """
    flops = sum(size.prefill_flops(length, scored=length) for length in lengths)
    longest = max(lengths, default=0)
    return Cost(
        documents=passes,
        prefill_tokens=sum(lengths),
        flops=flops,
        memory_bytes=peak_memory(size, longest),
    )


def answering_cost(size: ModelSize, prompts: list[int], shared: list[int], generated: int) -> Cost:
    """Return the cost of answers to questions about documents.

    Args:
        size: of the model.
        prompts: tokens of each prompt.
        shared: of each prompt, tokens that an earlier prompt has prefilled already.
        generated: most tokens of an answer.
    """
    total = Cost(documents=len(prompts))
    for prompt, before in zip(prompts, shared, strict=True):
        flops = size.prefill_flops(prompt - before, cached=before)
        flops += generated * size.prefill_flops(1, cached=prompt)
        total += Cost(
            prefill_tokens=prompt - before,
            decode_tokens=generated,
            flops=flops,
            memory_bytes=peak_memory(size, prompt + generated),
        )
    return total


PASS_TOKENS = 2048
"""Tokens of one chunk of a long prefill, and of one slice of logits."""


def peak_memory(size: ModelSize, tokens: int) -> int:
    """Return the most memory that reading one sequence in chunks takes, in bytes.

    Weights, the KV cache, and of one chunk the hidden states, the widest layer and float32 logits.
    """
    chunk = min(tokens, PASS_TOKENS)
    widest = max(size.hidden * 8, 3 * size.feed_forward // max(1, 3 * size.hidden * size.layers))
    activations = chunk * (8 * size.hidden + widest) * size.bytes_per_value
    logits = min(chunk, 512) * size.vocabulary * 4
    return size.weight_bytes + size.kv_cache_bytes(tokens) + activations + logits
