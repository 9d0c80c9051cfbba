"""Forward passes of a transformers model over rows of tokens, with or without a cache before."""

import inspect
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from leval_harness.backends.attention import attending
from leval_harness.backends.cache import PrefixCache

logger = logging.getLogger(__name__)


def forward(
    model: Any,
    rows: Sequence[list[int]],
    past: PrefixCache | None = None,
    *,
    module: Any = None,
    **options: Any,
) -> Any:
    """One forward pass of rows, padded at the left to the longest.

    Args:
        model: A model of transformers.
        rows: New tokens of each row.
        past: Cache of the positions before. Rows whose first pass was padded keep that padding.
        module: The part of the model to call, by default the whole.
        options: Passed to the model.
    """
    device = input_device(model)
    tokens, pads = left_padded(rows, device)
    if past is None:
        return (module or model)(input_ids=tokens, use_cache=False, **options)
    if pads is not None:
        past.pads = pads
    before, width = past.get_seq_length(), tokens.shape[1]
    holes = torch.zeros_like(tokens[:, 0]) if past.pads is None else past.pads
    positions = before + torch.arange(width, device=device)[None] - holes[:, None]
    if past.pads is not None and not past.split:
        places = torch.arange(before + width, device=device)[None]
        options["attention_mask"] = (places >= holes[:, None]).long()
    with attending(past):
        return (module or model)(
            input_ids=tokens,
            position_ids=positions.clamp(min=0),
            past_key_values=past,
            use_cache=True,
            **options,
        )


def left_padded(
    rows: Sequence[list[int]], device: torch.device, pad: int = 0
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Token ids `[rows, longest]`, and each row's padding `[rows]`, None where there is none."""
    width = max(map(len, rows))
    pads = [width - len(row) for row in rows]
    tokens = [[pad] * size + row for size, row in zip(pads, rows, strict=True)]
    ids = torch.tensor(tokens, dtype=torch.long, device=device)
    return ids, torch.tensor(pads, device=device) if any(pads) else None


def rows_after(
    path: PrefixCache,
    parts: Sequence[list[int]],
    extra: int,
    read: Callable[[list[list[int]], PrefixCache], object],
) -> PrefixCache:
    """A cache for rows after a whole path, each with a part of its own, sorted by length.

    Where the path takes padding, nothing of the parts is read here. Else `read` reads all but their
    last tokens, parts of one length together. `extra` positions may be added after the parts.
    """
    widest = max(map(len, parts))
    if path.takes_padding or widest == 1:
        return path.fork(len(parts), widest + extra)
    groups = []
    for width, group in itertools.groupby(parts, len):
        beginnings = [part[:-1] for part in group]
        groups.append(path.fork(len(beginnings), width - 1))
        if width > 1:
            read(beginnings, groups[-1])
    past = PrefixCache.join(groups, extra + 1)
    _, past.pads = left_padded(parts, past.attention_layers[0].keys.device)
    return past


def keeps_logits(model: Any) -> bool:
    """Whether a model takes the number of positions whose logits are needed."""
    return "logits_to_keep" in inspect.signature(model.forward).parameters


def input_device(model: Any) -> torch.device:
    """The device of token ids: that of the embeddings, or to which accelerate moves them."""
    embeddings = model.get_input_embeddings()
    device = getattr(getattr(embeddings, "_hf_hook", None), "execution_device", None)
    return embeddings.weight.device if device is None else torch.device(device)


def decoder_layers(model: Any) -> Sequence[torch.nn.Module]:
    """The layers that a forward pass calls in turn: the longest list of modules."""
    lists = (each for each in model.modules() if isinstance(each, torch.nn.ModuleList))
    return max(lists, key=len, default=())


class Head:
    """Hidden states of a model, and its output layer applied only where logits are needed.

    The decoder and the output matrix are used directly if they give the model's own logits on a
    short text. A model that does more (soft caps, scaling) computes logits itself.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.decoder: Any = None
        self.output: Any = None
        self._keeps_logits = keeps_logits(model)
        try:
            decoder, output = model.get_decoder(), model.get_output_embeddings()
            tokens = [list(range(4, 12))]
            with torch.no_grad():
                hidden = forward(model, tokens, module=decoder).last_hidden_state
                same = torch.equal(output(hidden), forward(model, tokens).logits)
        # Other people's models may lack any of these methods; calling the whole model always works.
        except Exception as error:  # noqa: BLE001
            logger.info("logits come from the whole model: %s", error)
            return
        if same and decoder is not model:
            self.decoder, self.output = decoder, output

    def states(
        self, rows: list[list[int]], first: int = 0, past: PrefixCache | None = None
    ) -> torch.Tensor:
        """What `logits` takes, from position `first` on: `[rows, longest - first, ...]`."""
        if self.decoder is not None:
            output = forward(self.model, rows, past, module=self.decoder)
            return output.last_hidden_state[:, first:]
        keep = max(1, max(map(len, rows)) - first)
        options = {"logits_to_keep": keep} if self._keeps_logits else {}
        return forward(self.model, rows, past, **options).logits[:, -keep:]

    def read(self, rows: list[list[int]], past: PrefixCache) -> None:
        """Read tokens into a cache without their logits."""
        self.states(rows, max(map(len, rows)), past)

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """Logits `[positions, vocabulary]` in float32."""
        return (states if self.decoder is None else self.output(states)).float()
