"""Many PosGen decoders as one module: every weight has a leading dimension, one row a model."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import cross_entropy

from leval_harness.training.decoder import Decoder
from leval_harness.training.posgen_settings import Architecture
from resonance_vllm.core.phase import cos_sin
from resonance_vllm.core.spec import RopeSpec

BODY = "model."
EMBEDDING = BODY + "embed_tokens.weight"
HEAD = "lm_head.weight"


def angle_table(ropes: Sequence[Mapping[str, Any]], head_dim: int, length: int) -> Tensor:
    """Cosine and sine of each model, `[2, models, length, head_dim / 2]` in float32."""
    positions = torch.arange(length)
    pairs = [cos_sin(RopeSpec.from_dict(r), head_dim, positions, torch.float32) for r in ropes]
    return torch.stack([torch.stack(parts) for parts in zip(*pairs, strict=True)])


class Stack(nn.Module):
    """Decoders of one architecture, trained side by side.

    The models share nothing but the step counter: the loss is the sum of their own losses, so each
    gets the gradient it would get alone, and AdamW treats every weight by itself. One batched
    matrix product a layer then trains seeds, encodings and sub-tasks together, which is what fills
    a GPU.

    Args:
        architecture: of every model.
        states: state dictionaries of the single models (names as in Llama).
        ropes: `rope_parameters` of each model.
        length: longest input in tokens.
        keep_best: hold a second copy of the weights, for `keep` and `restore_kept`; it is part of
            the state dictionary, so that a resumed run knows it.
    """

    def __init__(
        self,
        architecture: Architecture,
        states: Sequence[Mapping[str, Tensor]],
        ropes: Sequence[Mapping[str, Any]],
        length: int,
        keep_best: bool = False,
    ) -> None:
        super().__init__()
        self.architecture = architecture
        tied = {HEAD} if architecture.kind == "t5" else set()
        self.names = [name for name in states[0] if name not in tied]
        for name in self.names:
            feed_forward = ".mlp." in name or ".post_attention_layernorm." in name
            parameter = nn.Parameter(
                torch.stack([state[name].detach().float() for state in states]),
                requires_grad=not (architecture.freeze_feed_forward and feed_forward),
            )
            self.register_parameter(name.replace(".", "__"), parameter)
        # Only its computation is used; a tuple keeps its weights out of the stack's.
        with torch.device("meta"):
            self._single = (Decoder(architecture, states[0][EMBEDDING].shape[0]),)
        self.trained = {name: p for name, p in self.named_parameters() if p.requires_grad}
        if keep_best:
            models = len(states)
            self.register_buffer("kept_score", torch.full((models,), -1.0, dtype=torch.float64))
            self.register_buffer("kept_step", torch.zeros(models, dtype=torch.int64))
            for name, parameter in self.trained.items():
                self.register_buffer(f"kept__{name}", parameter.detach().clone())
        angles = angle_table(ropes, architecture.head_dim, length)
        self.register_buffer("angles", angles, persistent=False)
        self.last_losses: Tensor | None = None

    def rotate_by(self, ropes: Sequence[Mapping[str, Any]]) -> None:
        """Give each model another encoding, by its `rope_parameters`."""
        angles = self.get_buffer("angles")
        angles.copy_(angle_table(ropes, self.architecture.head_dim, angles.shape[2]))

    @torch.no_grad()
    def keep(self, scores: Sequence[float], step: int) -> None:
        """Copy the weights of those models whose score is above all their scores before."""
        highest = self.get_buffer("kept_score")
        new = torch.tensor(scores, dtype=torch.float64, device=highest.device)
        better = new > highest
        highest[better] = new[better]
        self.get_buffer("kept_step")[better] = step
        for name, parameter in self.trained.items():
            self.get_buffer(f"kept__{name}")[better] = parameter[better]

    @torch.no_grad()
    def restore_kept(self) -> list[int]:
        """Put the kept weights back; the step of each model's."""
        for name, parameter in self.trained.items():
            parameter.copy_(self.get_buffer(f"kept__{name}"))
        return cast(list[int], self.get_buffer("kept_step").tolist())

    def weights(self) -> dict[str, Tensor]:
        """Stacked weights by their names in the single model."""
        return {name: self.get_parameter(name.replace(".", "__")) for name in self.names}

    def state_of(self, index: int) -> dict[str, Tensor]:
        """State dictionary of one model, as its single class reads it."""
        state = {name: w[index].detach().cpu().clone() for name, w in self.weights().items()}
        return {HEAD: state[EMBEDDING], **state}

    def logits(self, input_ids: Tensor) -> Tensor:
        """`[models, batch, length, vocabulary]` of `[models, batch, length]`."""
        (decoder,) = self._single
        decoder.train(self.training)

        def one(weights: dict[str, Tensor], ids: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
            head = weights.get(HEAD)
            body = {n.removeprefix(BODY): w for n, w in weights.items() if n != HEAD}
            return cast(Tensor, functional_call(decoder, body, (ids, cos, sin, head)))

        cos, sin = self.get_buffer("angles")[:, :, : input_ids.shape[-1]]
        if self.training or input_ids.device.type != "cpu":
            many = vmap(one, randomness="different")
            return cast(Tensor, many(self.weights(), input_ids, cos, sin))
        # torch's fused attention for CPUs, which takes less memory, knows no vmap
        each = ({n: w[i] for n, w in self.weights().items()} for i in range(len(input_ids)))
        return torch.stack([one(*parts) for parts in zip(each, input_ids, cos, sin, strict=True)])

    def forward(self, input_ids: Tensor, first_target: int) -> dict[str, Tensor]:
        """Sum of the models' mean next-token losses.

        Of the whole sequences `[models, batch, length]`, what stands before the index
        `first_target` (prefix and seed) is only read.
        """
        logits = self.logits(input_ids[..., :-1])[:, :, first_target - 1 :]
        losses = token_losses(logits, input_ids[..., first_target:]).mean(dim=(1, 2))
        self.last_losses = losses.detach()
        return {"loss": losses.sum()}


def token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy in float32 of each target `[models, batch, length]`."""
    flat = cross_entropy(logits.float().flatten(0, 2), targets.flatten(), reduction="none")
    return flat.view(targets.shape)
