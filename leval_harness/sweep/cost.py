"""What a run costs: tokens, floating-point operations and memory, from a model's config alone.

This is the only cost model: the dry run, the order of runs, progress and the tables of
docs/reference/million-tokens.md use it.

The counts are those of a decoder with gated feed-forward layers, of which every current family is
a variant. They leave out norms, activations and the rotation, which are below one percent.
Sources: Hoffmann et al. 2022, appendix F (2 FLOPs for each weight and token); Dao et al. 2022 (an
attention score and its use take 4 FLOPs for each pair of tokens and each dimension of a head).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from leval_harness.backends.prefill import CHUNK, activation_bytes

BYTES_OF_DTYPE = {"float32": 4, "float16": 2, "bfloat16": 2, "auto": 2, "": 2}
"""Bytes of a weight, and of an entry of the KV cache; `auto` is the checkpoint's, nearly always 2."""

FULL = "full_attention"
WINDOWED = "sliding_attention"


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
        """Return the number of layers."""
        return self.full_layers + self.windowed_layers

    @property
    def attention_weights(self) -> int:
        """Return the weights of the projections of queries, keys, values and output, in all layers."""
        query_and_output = 2 * self.hidden * self.heads * self.head_dim
        key_and_value = 2 * self.hidden * self.kv_heads * self.head_dim
        return self.layers * (query_and_output + key_and_value)

    @property
    def embedding_weights(self) -> int:
        """Return the weights of one embedding."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """Return all weights, without norms and biases."""
        embeddings = 2 * self.embedding_weights
        if self.has_shared_embedding:
            embeddings = self.embedding_weights
        feed_forward = self.feed_forward + self.idle_feed_forward
        return embeddings + self.attention_weights + feed_forward

    @property
    def weight_bytes(self) -> int:
        """Return the memory of the weights in bytes."""
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
    # tokens that the first and the last one attend to
    first = cached + 1
    last = cached + tokens
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
        hidden = int(text["hidden_size"])
        layers = int(text["num_hidden_layers"])
        heads = int(text["num_attention_heads"])
        vocabulary = int(text["vocab_size"])
    except (KeyError, TypeError, ValueError):
        return None
    windowed_layers = _windowed_layers(text, layers)
    window = 0
    if windowed_layers:
        window = int(text["sliding_window"])
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
        window=window,
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
    widths = text.get("intermediate_size") or 4 * hidden
    if isinstance(widths, list | tuple):  # one per layer
        return 3 * hidden * sum(widths), 0
    dense = 3 * hidden * int(widths)
    experts = (
        text.get("num_experts") or text.get("num_local_experts") or text.get("n_routed_experts")
    )
    if not experts:
        return layers * dense, 0
    width = _number(text, "moe_intermediate_size", "intermediate_size") or 4 * hidden
    expert = 3 * hidden * width
    used = _number(text, "num_experts_per_tok", "moe_topk") or 1
    always = _number(text, "n_shared_experts", "num_shared_expert")
    dense_layers = min(layers, int(text.get("first_k_dense_replace") or 0))
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
class Memory:
    """The most memory that reading and answering take at a time, in bytes.

    Attributes:
        weights: of the model.
        kv_cache: keys and values of the longest sequences that are read side by side.
        activations: hidden states of one forward pass, and its widest layer.
        logits: as many of them as exist at a time.
    """

    weights: int = 0
    kv_cache: int = 0
    activations: int = 0
    logits: int = 0

    @property
    def total(self) -> int:
        """Return the sum."""
        return self.weights + self.kv_cache + self.activations + self.logits

    def text(self) -> str:
        """Return the sum and its parts for people."""
        parts = [
            f"{self.weights / 1e9:,.1f} weights",
            f"{self.kv_cache / 1e9:,.1f} KV cache",
            f"{self.activations / 1e9:,.1f} activations",
            f"{self.logits / 1e9:,.1f} logits",
        ]
        return f"{self.total / 1e9:,.1f} GB ({', '.join(parts)})"

    def to_dict(self) -> dict[str, int]:
        """Return each part and the sum."""
        return {
            "weights_bytes": self.weights,
            "kv_cache_bytes": self.kv_cache,
            "activations_bytes": self.activations,
            "logits_bytes": self.logits,
            "memory_bytes": self.total,
        }


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What some passes cost together.

    Attributes:
        documents: documents, or questions with a prompt of their own.
        prefill_tokens: tokens of all forward passes over prompts and documents.
        decode_tokens: tokens that are generated one by one, at most.
        flops: floating-point operations of both.
        memory: most memory at a time; all 0 where it is not known.
    """

    documents: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    flops: float = 0.0
    memory: Memory = field(default_factory=Memory)

    def __add__(self, other: "Cost") -> "Cost":
        """Return the cost of one after the other: counts add up, memory is the larger one."""
        return replace(
            self,
            documents=self.documents + other.documents,
            prefill_tokens=self.prefill_tokens + other.prefill_tokens,
            decode_tokens=self.decode_tokens + other.decode_tokens,
            flops=self.flops + other.flops,
            memory=max(self.memory, other.memory, key=lambda memory: memory.total),
        )

    def hours(self, teraflops: float) -> float:
        """Return the hours on a device that reaches so many 10^12 operations per second."""
        return self.flops / (teraflops * 1e12) / 3600


class Pass(NamedTuple):
    """One sequence that a model reads, and what it generates after it.

    Attributes:
        tokens: length of the sequence.
        cached: its first tokens whose keys and values are there from an earlier pass.
        scored: tokens whose logits are computed; 1 where the sequence is a prompt.
        generated: most tokens of the answer.
    """

    tokens: int
    cached: int = 0
    scored: int = 1
    generated: int = 0


def cost_of(size: ModelSize | None, passes: Sequence[Pass], documents: int) -> Cost:
    """Return the cost of some passes, without memory.

    Args:
        size: of the model; None if it is not known, which leaves the operations at 0.
        passes: what the model reads and generates.
        documents: how many documents, or questions with a prompt of their own, these passes are.
    """
    flops = 0.0
    if size is not None:
        flops = sum(flops_of_pass(size, one) for one in passes)
    return Cost(
        documents=documents,
        prefill_tokens=sum(one.tokens - one.cached for one in passes),
        decode_tokens=sum(one.generated for one in passes),
        flops=flops,
    )


def flops_of_pass(size: ModelSize, one: Pass) -> float:
    """Return the floating-point operations of reading a sequence and generating after it."""
    read = size.prefill_flops(one.tokens - one.cached, one.scored, one.cached)
    return read + one.generated * size.prefill_flops(1, cached=one.tokens)


class ComputedShare:
    """The share of a run that is computed once some tokens are, from 0 to 1.

    A token late in a long document takes several times the operations of an early one, so that the
    share of the tokens would promise too much in the first chunks. Within one forward pass the
    tokens are counted layer by layer, all of which take the same.

    Args:
        size: of the model; None if it is not known, which makes it the share of the tokens.
        passes: of the run, in the order in which they are read.
        chunk: most tokens of one forward pass.
    """

    def __init__(self, size: ModelSize | None, passes: Sequence[Pass], chunk: int) -> None:
        self.tokens = [0]
        self.work = [0.0]
        for one in passes:
            for start in range(one.cached, one.tokens, chunk):
                end = min(start + chunk, one.tokens)
                scored = max(0, end - max(start, one.tokens - one.scored))
                flops = 0.0
                if size is not None:
                    flops = size.prefill_flops(end - start, scored, start)
                self._add(end - start, flops)
            if one.generated:
                flops = 0.0
                if size is not None:
                    flops = one.generated * size.prefill_flops(1, cached=one.tokens)
                self._add(one.generated, flops)
        if size is None:
            self.work = [float(tokens) for tokens in self.tokens]

    def _add(self, tokens: int, flops: float) -> None:
        """Append what is computed at once."""
        self.tokens.append(self.tokens[-1] + tokens)
        self.work.append(self.work[-1] + flops)

    @property
    def total_tokens(self) -> int:
        """Return the tokens of the whole run, as far as they could be estimated."""
        return int(self.tokens[-1])

    def after(self, tokens: int) -> float:
        """Return the share after so many tokens that were prefilled or generated."""
        if tokens >= self.total_tokens:
            return 1.0
        return float(np.interp(tokens, self.tokens, self.work) / self.work[-1])


PASS_TOKENS = CHUNK
"""Tokens of one chunk of a long prefill, also that of vLLM's scheduler by default."""
LOGITS = 1 << 24
"""Logits that are made float32 at a time."""


def peak_memory(
    size: ModelSize, tokens: int, *, chunk: int, rows: int = 1, all_logits: bool = False
) -> Memory:
    """Return the most memory that reading and answering take.

    Args:
        size: of the model.
        tokens: length of the longest sequence, its answer included.
        chunk: most tokens of one forward pass.
        rows: sequences that are read side by side.
        all_logits: whether the logits of a whole chunk exist at a time.
    """
    in_pass = min(tokens, chunk) * rows
    width_of_feed_forward = size.feed_forward // max(1, 3 * size.hidden * size.layers)
    widths = SimpleNamespace(hidden_size=size.hidden, intermediate_size=width_of_feed_forward)
    activations = in_pass * activation_bytes(widths, size.bytes_per_value)
    logits = 4 * min(in_pass * size.vocabulary, LOGITS)
    if all_logits:
        logits += in_pass * size.vocabulary * size.bytes_per_value
    return Memory(
        weights=size.weight_bytes,
        kv_cache=rows * size.kv_cache_bytes(tokens),
        activations=activations,
        logits=logits,
    )
