"""Whether a model's prefix cache may be reused, decided by its config and then by trying it.

A key/value cache of a prefix is right for every continuation only if nothing about the prefix
depends on what follows. Dynamic RoPE types rotate all positions by a base that depends on the
whole length. What a layer keeps of it, and whether rows after it may be padded, its cache says.
"""

import inspect
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from textwrap import shorten
from typing import Any

import torch
from transformers import AttentionInterface, DynamicCache

from leval_backends import attention
from leval_backends.cache import Footprint, PrefixCache
from resonance_vllm.core.method import Method
from resonance_vllm.core.spec import BASE_TYPES, PREFIX

logger = logging.getLogger(__name__)

_PROBE_OWN = 14  # tokens of the longer row after the shared prefix
_PROBE_SPLIT = 10  # tokens of that prefix, beyond the widest window
_PROBE_WINDOW = 8192  # windows above are not outgrown by the trial
# Mean difference of log-probabilities over their mean spread. Two right computations differ by
# rounding: on twelve layouts of random weights at three scales, and on SmolLM2-135M, by up to 1e-5,
# in float16 4e-3, in bfloat16 4e-2 (30 layers; 2e-2 with two); single steps of Nemotron-H by 2e-3
# from the same tokens together, on `hf` as well. A lost key, a position off by the padding or a
# state that was not brought back differ by 0.1 to 1 at most of these, however flat the distribution
# is. Four times the rounding leaves room for models of more layers.
_PROBE_TOLERANCE = {torch.float32: 5e-3, torch.float64: 5e-3, torch.float16: 2e-2}
_PROBE_TOLERANCE_OTHERS = 0.15


@dataclass(frozen=True)
class Reuse:
    """How prefixes are shared on one model.

    Attributes:
        mode: `split` (one copy for all rows), `copied` (the model's own attention, one copy of
            the prefix a row) or `none`.
        reason: Why it is not the mode before in that list; empty for `split`.
        max_length: Longest sequence for which reuse is right, None for any.
        footprint: What the cache takes.
        padded: Whether rows of unequal length may be read together, padded at the left; else they
            are read apart and joined where their ends are.
    """

    mode: str
    reason: str = ""
    max_length: int | None = None
    footprint: Footprint = field(default_factory=Footprint)
    padded: bool = True

    def refusal(self, length: int) -> str:
        """Why a sequence of this length cannot use a shared prefix; empty if it can."""
        if self.mode == "none":
            return self.reason
        if self.max_length is not None and length > self.max_length:
            return f"longer than {self.max_length} tokens, where the RoPE base changes"
        return ""


def rope_limit(config: Any) -> tuple[int | None, str]:
    """Longest sequence up to which cached keys do not depend on the final length, and why.

    (None, "") if they never do.
    """
    text = config.get_text_config(decoder=True)
    parameters = getattr(text, "rope_parameters", None) or {}
    # Models with several kinds of layers have one dictionary a kind.
    nested = [value for value in parameters.values() if isinstance(value, Mapping)]
    limits: list[tuple[int, str]] = []
    for rope in nested or [parameters]:
        kind = str(rope.get("rope_type", "default"))
        original = rope.get("original_max_position_embeddings")
        method, _ = BASE_TYPES.get(kind.removeprefix(PREFIX), (None, None))
        if method.follows_length if method else "dynamic" in kind:
            known = [text.max_position_embeddings, original]
            limits.append((min(int(value) for value in known if value), kind))
        elif switch := _switch_length(method, rope, text):
            limits.append((switch, kind))
    if not limits:
        return None, ""
    limit, kind = min(limits)
    return limit, f"rope type {kind!r} rotates anew beyond {limit} tokens"


def _switch_length(method: type[Method] | None, rope: Mapping[str, Any], text: Any) -> int | None:
    """The length beyond which a method has other frequencies, with a config's own keys."""
    if method is None:
        return None
    names = ("original_max_position_embeddings", "max_position_embeddings")
    original = next(filter(None, (getattr(text, name, None) for name in names)), None)
    known = {names[0]: original, **rope}
    taken = {key: known[key] for key in method.key_names() if known.get(key) is not None}
    return method.model_construct(**taken).switch_length


def obstacle(model: Any) -> str:
    """Why the model's cache cannot be cut at a prefix, from its config; empty if it can."""
    config = model.config
    if getattr(config, "is_encoder_decoder", False):
        return "encoder-decoder model"
    peft = getattr(model, "peft_config", None) or {}
    if isinstance(peft, Mapping) and any(
        getattr(entry, "is_prompt_learning", False) for entry in peft.values()
    ):
        return "prompt-learning adapter adds virtual tokens"
    return ""


def examine(model: Any, *, share_attention: bool = True) -> Reuse:
    """Find the best way to share prefixes that gives the answers of a loaded causal model.

    `share_attention=False` keeps the model's own attention function, whatever it costs.
    """
    limit, why = rope_limit(model.config)
    modes = ["split", "copied"]
    if failed := obstacle(model):
        modes = []
    elif not share_attention:
        failed, modes = "shared attention is switched off", ["copied"]
    if limit is not None and modes:
        logger.warning("prefixes are shared only among prompts up to %d tokens: %s", limit, why)
    for mode in modes:
        try:
            difference, path = _probe(model, split=mode == "split")
        # Whatever a foreign model raises here only means that this mode is not for it.
        except Exception as error:  # noqa: BLE001
            # A compiler's error carries all it printed.
            failed = shorten(f"{mode}: {type(error).__name__}: {error}", 200)
            continue
        tolerance = _PROBE_TOLERANCE.get(model.dtype, _PROBE_TOLERANCE_OTHERS)
        if difference <= tolerance:
            if failed:
                logger.warning("each row gets its own copy of the shared prefix (%s)", failed)
            return Reuse(mode, failed, limit, path.footprint, _padded(path))
        failed = f"{mode}: log-probabilities differ by {difference:.2g} of their spread from `hf`"
    logger.warning("no prefix is shared: %s", failed)
    return Reuse("none", failed)


def _padded(path: PrefixCache) -> bool:
    """Padding between a prefix and a row's own part shows in a state, and to a model's own mask."""
    return path.split and not path.has_states


@torch.no_grad()
def _probe(model: Any, *, split: bool) -> tuple[float, PrefixCache]:
    """Relative difference to the model's own way with a short text, and the path that was read.

    Two rows of unequal length after a shared prefix that is longer than the windows, then one
    decoding step: all that comes later. The path has gone back to a mark before.
    """
    config = model.config.get_text_config(decoder=True)
    path = PrefixCache.path(model.config, 1 << 30, split=split)
    windows = [layer.window.size for layer in path.attention_layers if layer.window]
    shared = max((size for size in windows if size <= _PROBE_WINDOW), default=0) + _PROBE_SPLIT
    tokens = _text(config.vocab_size, shared + _PROBE_OWN)
    rows = [tokens[:shared] + tokens[shared + 3 :], tokens]
    keep: dict[str, Any] = {"logits_to_keep": 1} if keeps_logits(model) else {}
    plain = [_as_on_hf(model, row, **keep) for row in rows]

    def read(parts: list[list[int]], past: PrefixCache) -> Any:
        return forward(model, parts, past, **keep)

    with shared_attention(model, split=split):
        path = PrefixCache.path(model.config, shared, split=split)
        half = shared - _PROBE_SPLIT // 2
        read([tokens[:half]], path)
        mark = path.mark()
        read([tokens[3 : 3 + shared - half]], path)
        path.restore(mark)
        read([tokens[half:shared]], path)
        padded, last = _padded(path), None
        parts = [row[shared:-1] for row in rows]
        past = rows_after(path, parts, 1, padded=padded, read=read)
        left = parts if padded else [part[-1:] for part in parts]
        first = read(left, past).logits[:, -1].float()
        last = read([row[-1:] for row in rows], past).logits[:, -1].float()
    difference = 0.0
    for logits, *pair in zip(plain, first, last, strict=True):
        expected, got = (each.double().log_softmax(-1) for each in (logits, torch.stack(pair)))
        spread = (expected - expected.mean(-1, keepdim=True)).abs().mean()
        gap = ((got - expected).abs().mean() / spread).item()
        difference = max(difference, gap if gap == gap else float("inf"))
    return difference, path


def _as_on_hf(model: Any, row: list[int], **options: Any) -> torch.Tensor:
    """Logits `[2, vocabulary]` after all but the last token, and after one step with the last."""
    tokens = torch.tensor([row], device=input_device(model))
    places = torch.arange(len(row), device=tokens.device)[None]
    past, logits = DynamicCache(config=model.config), []
    for part in (slice(0, -1), slice(-1, None)):
        output = model(
            input_ids=tokens[:, part],
            position_ids=places[:, part],
            past_key_values=past,
            use_cache=True,
            **options,
        )
        logits.append(output.logits[0, -1].float())
    return torch.stack(logits)


def _text(vocabulary: int, length: int) -> list[int]:
    """Token ids of no meaning, spread over a vocabulary."""
    step = max(1, int(vocabulary * 0.618) - 1)
    return [(4 + step * i) % vocabulary for i in range(1, length + 1)]


def keeps_logits(model: Any) -> bool:
    """Whether a model can be told which positions' logits to compute."""
    return "logits_to_keep" in inspect.signature(model.forward).parameters


def rows_after(
    path: PrefixCache,
    parts: Sequence[list[int]],
    extra: int,
    *,
    padded: bool,
    read: Callable[[list[list[int]], PrefixCache], object],
) -> PrefixCache:
    """A cache for rows after a whole path, each with a part of its own, sorted by their lengths.

    Padded, nothing of the parts has been read. Else all but their last tokens have, by `read`,
    those of one length together. `extra` positions may come after the parts.
    """
    widest = max(map(len, parts))
    if padded or widest == 1:
        return path.rows(len(parts), widest + extra)
    groups = []
    for width, group in itertools.groupby(parts, len):
        alike = [part[:-1] for part in group]
        groups.append(path.rows(len(alike), width - 1))
        if width > 1:
            read(alike, groups[-1])
    past = PrefixCache.joined(groups, extra + 1)
    _, past.pads = left_padded(parts, past.attention_layers[0].keys.device)
    return past


def forward(
    model: Any,
    rows: Sequence[list[int]],
    past: PrefixCache | None = None,
    *,
    run: Any = None,
    **options: Any,
) -> Any:
    """One forward pass of rows, padded at the left to the longest.

    Args:
        model: Of transformers.
        rows: New tokens of each row.
        past: Cache whose positions come before; rows whose first pass was padded keep those holes.
        run: The part of the model to call, the whole of it by default.
        options: Passed to the model.
    """
    device = input_device(model)
    tokens, pads = left_padded(rows, device)
    if past is None:
        return (run or model)(input_ids=tokens, use_cache=False, **options)
    if pads is not None:
        past.pads = pads
    before, width = past.get_seq_length(), tokens.shape[1]
    holes = torch.zeros_like(tokens[:, 0]) if past.pads is None else past.pads
    positions = before + torch.arange(width, device=device)[None] - holes[:, None]
    if past.pads is not None and not past.split:
        places = torch.arange(before + width, device=device)[None]
        options["attention_mask"] = (places >= holes[:, None]).long()
    with attention.attending(past):
        return (run or model)(
            input_ids=tokens,
            position_ids=positions.clamp(min=0),
            past_key_values=past,
            use_cache=True,
            **options,
        )


def left_padded(
    rows: Sequence[list[int]], device: torch.device, pad: int = 0
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Token ids `[rows, longest]`, and each row's padding `[rows]`; None where there is none."""
    width = max(map(len, rows))
    pads = [width - len(row) for row in rows]
    tokens = [[pad] * size + row for size, row in zip(pads, rows, strict=True)]
    ids = torch.tensor(tokens, dtype=torch.long, device=device)
    return ids, torch.tensor(pads, device=device) if any(pads) else None


def forget_positions(model: Any) -> None:
    """Drop what vision-language models keep of the batch before: how far text follows its images.

    They add it to the positions of any later batch that starts from a cache.
    """
    for module in model.modules():
        if getattr(module, "rope_deltas", None) is not None:
            module.rope_deltas = None


def input_device(model: Any) -> torch.device:
    """Where token ids go: beside the embeddings, or where accelerate brings them from elsewhere."""
    embeddings = model.get_input_embeddings()
    device = getattr(getattr(embeddings, "_hf_hook", None), "execution_device", None)
    return embeddings.weight.device if device is None else torch.device(device)


@contextmanager
def shared_attention(model: Any, *, split: bool) -> Iterator[None]:
    """Run a model with the shared-prefix attention, if it is split, and give back its own."""
    if not split:
        yield
        return
    before = model.config._attn_implementation
    AttentionInterface.register(attention.NAME, attention.shared_prefix_attention)
    model.set_attn_implementation(attention.NAME)
    if model.config._attn_implementation != attention.NAME:
        raise attention.UnsupportedAttentionError(
            f"{type(model).__name__} does not let its attention function be chosen"
        )
    try:
        yield
    finally:
        model.set_attn_implementation(before)
