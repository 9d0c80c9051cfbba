"""Tokens that a model has processed, up to date while a forward pass runs.

A pass over a long document takes minutes. Its tokens are counted layer by layer, so that whoever
reads the counts meanwhile, such as the thread that reports the progress of a sweep, sees it move.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


class TokenCounts:
    """Counts of one model. Forward passes run inside of its contexts.

    Args:
        model: a model of transformers. It gets hooks while a pass runs, and loses them afterwards.

    Attributes:
        generated: tokens that were generated.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._layers = decoder_layers(model)
        self.reset()

    def reset(self) -> None:
        """Set all counts to zero."""
        self.generated = 0
        self._finished = 0
        self._tokens_in_pass = 0
        self._layers_done = 0

    @property
    def prefilled(self) -> int:
        """Return the tokens of prompts and documents that were computed.

        Of a pass that is running, they are its tokens times the share of its layers that are done.
        """
        layers = max(1, len(self._layers))
        share = min(self._layers_done, layers) / layers
        return self._finished + int(self._tokens_in_pass * share)

    @contextmanager
    def prefilling(self, tokens: int) -> Iterator[None]:
        """Count the tokens of a forward pass that runs inside; nothing is left of one that fails.

        Args:
            tokens: those of all rows, without padding.
        """

        def layer_done(*_: Any) -> None:
            self._layers_done += 1

        hooks = [layer.register_forward_hook(layer_done) for layer in self._layers]
        self._tokens_in_pass = tokens
        try:
            yield
            self._finished += tokens
        finally:
            self._tokens_in_pass = 0
            self._layers_done = 0
            for hook in hooks:
                hook.remove()

    @contextmanager
    def generating(self, rows: int, prompt_tokens: int) -> Iterator[None]:
        """Count what `generate` computes inside: its prompts, and a token per row and forward pass.

        A row that has ended is counted on until all have: the caller sets `generated` afterwards.
        """

        def pass_done(*_: Any) -> None:
            self.generated += rows

        hook = self._model.register_forward_hook(pass_done)
        try:
            with self.prefilling(prompt_tokens):
                yield
        finally:
            hook.remove()


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """Return the decoder layers of a model in their order; none if they are not found."""
    text = model.config.get_text_config(decoder=True)
    count = getattr(text, "num_hidden_layers", None)
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return list(module)
    return []
