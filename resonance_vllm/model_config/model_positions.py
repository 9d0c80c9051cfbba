"""A request completed by what a model's config says: the one reading of it. No torch."""

import logging
from collections.abc import Mapping
from typing import Any

from resonance_vllm.core.errors import RopeConfigError
from resonance_vllm.core.method import Method
from resonance_vllm.core.spec import (
    LENGTH,
    PREFIX,
    REPLACE,
    RESONANCE,
    RopeRequest,
    RopeSpec,
    RopeType,
)
from resonance_vllm.core.wavelengths import Resonance
from resonance_vllm.model_config.config_positions import ConfigPositions
from resonance_vllm.model_config.layer_types import global_layers
from resonance_vllm.model_config.shipped_scaling import (
    hiding,
    refusal,
    refuse_part_of_a_head,
    replaces,
    short,
)

logger = logging.getLogger(__name__)


class ModelPositions(ConfigPositions):
    """What a model's config says of its positions, and what a request is on that model."""

    def shipped(self) -> RopeSpec:
        """The checkpoint's own settings.

        Raises:
            RopeConfigError: it has no RoPE, or one that cannot be read.
        """
        kind = RopeType.read(self.rope["rope_type"])
        return self._spec(kind, {})

    def complete(self, rope: RopeRequest | Mapping[str, Any]) -> RopeSpec:
        """A request with what the model's config knows filled in: the one reading of it.

        Filled in: `rope_theta`, the trained length, `partial_rotary_factor`, and, where the model
        already uses the same method, that method's keys. `resonance` alone is Resonance on what
        the checkpoint ships.

        Raises:
            RopeConfigError: a key is unknown or missing, a value is not allowed, the model has no
                RoPE, or the request would replace what it ships without saying so, or does not fit
                the model.
        """
        request = rope if isinstance(rope, RopeRequest) else RopeRequest.from_dict(rope)
        spec = self._completed(request)
        refuse_part_of_a_head(self, spec)
        return spec

    def _completed(self, request: RopeRequest) -> RopeSpec:
        kind = request.type
        self._refuse_other_layers()
        if self.plain:
            return self._spec(kind, request.given)
        shipped = self._readable(request)
        if shipped is not None:
            if kind.name == RESONANCE and not request.replace:
                kind = _with_resonance(shipped.method)
            if not self.scaled or type(shipped.method) is kind.method:
                spec = self._spec(kind, request.given)
                if not replaces(spec, shipped):
                    return spec
        if not request.replace:
            raise refusal(self, request)
        return self._spec(kind, request.given, replaced=True)

    def check_override(self, overrides: Mapping[str, Any]) -> None:
        """Read overrides in a library's own form, which put one dictionary in place of another.

        What cannot be read is logged: what runs in place of the shipped settings is unknown.

        Raises:
            RopeConfigError: they hide something that is shipped, or do not fit the model.
        """
        seen = self.overridden(overrides)
        if seen.rope == self.rope:
            return
        try:
            asked, shipped = seen.shipped(), None if self.plain else self.shipped()
        except RopeConfigError as error:
            logger.warning(
                "rope_parameters: %s is given in place of the shipped %s, and what runs then is "
                "unknown: %s",
                short(seen.rope),
                short(self.rope),
                error,
            )
            return
        refuse_part_of_a_head(self, asked)
        if shipped is not None and replaces(asked, shipped):
            raise hiding(self, seen, asked)

    def _refuse_other_layers(self) -> None:
        """A dictionary of a layer type that a model has not would be used by no layer."""
        if self.by_layer_type:
            global_layers(self.rope_parameters or self.rope_scaling or {})

    def _readable(self, request: RopeRequest) -> RopeSpec | None:
        """What is shipped; None where that is nothing known, and is to be replaced anyway."""
        try:
            return self.shipped()
        except RopeConfigError as error:
            if request.replace:
                return None
            raise RopeConfigError(
                f"rope_type: {request.type.name!r} is asked of a {self.model_type!r} model that "
                f"ships {short(self.rope)}, which cannot be read ({error}); allowed: no method, "
                f"which runs it as shipped, or {REPLACE}: true to give that up"
            ) from error

    def _spec(
        self, kind: RopeType, written: Mapping[str, Any], *, replaced: bool = False
    ) -> RopeSpec:
        given = self._kept(kind, written)
        if "rope_theta" not in given:
            raise RopeConfigError(
                f"rope_theta: neither given nor in the config of this {self.model_type!r} "
                "model: it has no RoPE, or one that its code fixes; give rope_theta if its code "
                "reads one"
            )
        if kind.asks_length(given):
            if LENGTH not in given:
                given[LENGTH] = self._trained_length(kind.method, given, replaced)
            kind.method.fill(given, self.max_positions)
        return RopeSpec.of(kind, given)

    def _kept(self, kind: RopeType, written: Mapping[str, Any]) -> dict[str, Any]:
        """What was written, and the shipped keys that hold on beside it."""
        rope, keys = self.rope, [*Method.model_fields]
        try:
            shipped_kind = RopeType.read(rope["rope_type"])
        except RopeConfigError:
            pass
        else:
            keys += kind.method.key_names() if shipped_kind.method is kind.method else []
            keys += Resonance.model_fields if shipped_kind.resonance and kind.resonance else []
        shipped = {key: rope[key] for key in keys if key in rope}
        for key, sources in kind.method.derived.items():
            # An attention factor that is spelt out belongs to the factor beside it.
            if any(source in written and written[source] != rope.get(source) for source in sources):
                shipped.pop(key, None)
        return {**shipped, **written}

    def _trained_length(
        self, method: type[Method], given: Mapping[str, Any], replaced: bool
    ) -> int:
        """`L` of a request that does not say it."""
        extended = self.rope.get("factor")
        if self.stated_length or not self.scaled or extended is None or self._from_positions():
            return self.original_length
        if replaced:
            raise RopeConfigError(
                f"{LENGTH}: not in the config of this {self.model_type!r} model, which ships "
                f"{short(self.rope)} and has {self.max_positions} positions; give the length "
                "that it was trained on before that scaling"
            )
        factor = given.get("factor")
        if method.positions_multiplied and isinstance(factor, int | float) and factor >= 1:
            return max(int(self.max_positions / factor), 1)
        return self.max_positions

    def _from_positions(self) -> bool:
        """Whether `max_position_embeddings` is `L` of what is shipped: `dynamic` scales from it.

        Not where the model has a base of its own beside it (HunYuan's `alpha`).
        """
        try:
            follows = RopeType.read(self.rope["rope_type"]).method.follows_length
        except RopeConfigError:
            return False
        return follows and not self.model_keys


def _with_resonance(method: Method) -> RopeType:
    name = method.variant()
    return RopeType.read(RESONANCE if name == "default" else PREFIX + name)
