"""What `diff` compares: a setup, read from the text that a user writes.

MODEL                                         a checkpoint on transformers
hf:MODEL,dtype=float32,attn_implementation=eager
vllm:MODEL,kv_cache_dtype=fp8_e4m3
vllm:MODEL,hf_overrides={"rope_parameters": {...}}
hf:MODEL,rope=yarn:factor=2                   more keys of rope: as JSON, or by --rope-b
http://localhost:8000,model=NAME              a server that returns prompt log-probabilities
base.npz                                      saved by an earlier diff
"""

import re
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from leval_harness.backends import BACKENDS
from leval_harness.models.prepare import local_path
from resonance_vllm.checkpoint.arguments import model_args, rope_from_model_args
from resonance_vllm.checkpoint.positions import PositionConfig
from resonance_vllm.common.credentials import refuse_credentials
from resonance_vllm.common.errors import SettingError, check_choice, short_repr
from resonance_vllm.core.spec import RopeRequest, parse_value

SERVER = "server"
SAVED = "saved"
DEFAULT_BACKEND = "hf"
"""The backend of a model without a prefix."""
_BETWEEN = re.compile(r",(?=\s*[A-Za-z_]\w*\s*=)")  # in JSON no name precedes "="
OWN_ARGUMENTS = ("rope", "threads", "prefill_chunk")
"""Arguments of a local setup that the backend does not get."""


def _kind_and_target(text: str) -> tuple[str, str]:
    """Return the kind of a setup, and its model, address or file, from the part before arguments."""
    prefix, colon, path = text.partition(":")
    if colon and "://" not in text and not Path(text).expanduser().exists():
        return check_choice("setup", prefix, BACKENDS), path
    if text.startswith(("http://", "https://")):
        return SERVER, text
    if text.endswith(".npz"):
        return SAVED, text
    return DEFAULT_BACKEND, text


@dataclass(frozen=True)
class Setup:
    """One side of a comparison, which the user wrote as `text`.

    Attributes:
        kind: one of `BACKENDS` (`-long` reads given documents as without it), `SERVER` or `SAVED`.
        target: checkpoint folder or hub name, URL, or path of a file.
        arguments: those of the backend, and `OWN_ARGUMENTS`.
    """

    kind: str
    target: str
    arguments: dict[str, Any] = field(default_factory=dict)
    text: str = ""

    @classmethod
    def parse(cls, text: str, rope: str | None = None) -> Self:
        """Read a setup from its text, see the module; `rope` is the same as the argument `rope`.

        Raises:
            SettingError: names the part that cannot be read and what is allowed, or that holds a
                credential, which `diff` would print and save.
        """
        first, *settings = [part.strip() for part in _BETWEEN.split(text)]
        kind, target = _kind_and_target(first)
        if not target or "=" in target.partition("/")[0]:
            raise SettingError(
                f"setup: {short_repr(text)} names no model; allowed: MODEL,key=value,..."
            )
        arguments: dict[str, Any] = {}
        for setting in settings:
            key, _, value = setting.partition("=")
            arguments[key.strip()] = parse_value(value.strip())
        refuse_credentials({"address": target, **arguments}, "setup")
        if rope is not None:
            arguments["rope"] = rope
        if kind in BACKENDS:
            return cls(kind, local_path(target), arguments, text)
        if "rope" in arguments:
            allowed = ", ".join(BACKENDS)
            raise SettingError(f"rope: {kind} runs a model as it is; allowed with: {allowed}")
        return cls(kind, target, arguments, text)

    @property
    def library(self) -> str | None:
        """Return `transformers` or `vllm` for a model that is loaded here, else None."""
        return BACKENDS[self.kind].library if self.kind in BACKENDS else None

    def backend_arguments(self) -> dict[str, Any]:
        """Return the arguments of lm-eval's model, with `pretrained` and translated RoPE settings.

        Raises:
            RopeConfigError: the checkpoint does not allow the method.
        """
        assert self.library is not None
        of_backend = {
            key: value for key, value in self.arguments.items() if key not in OWN_ARGUMENTS
        }
        rope = self.arguments.get("rope")
        if rope is None:
            return {"pretrained": self.target, **of_backend}
        length = of_backend.get(BACKENDS[self.kind].length_argument)
        model = PositionConfig.from_checkpoint(self.target)
        request = RopeRequest.parse(rope) if isinstance(rope, str) else rope
        translated = model_args(
            model.complete(request),
            model,
            library=self.library,
            model_path=self.target,
            context_length=None if length is None else int(length),
            rope_precision=of_backend.get("rope_precision", "float32"),
        )
        return {**translated, **of_backend}

    def described(self) -> dict[str, Any]:
        """Describe the setup for the results: its text, versions and RoPE settings.

        As far as they are known without loading it.
        """
        if self.library is None:
            return {"text": self.text, "rope": None, "versions": {}}
        rope = rope_from_model_args(self.backend_arguments())
        if rope is None:
            shipped = PositionConfig.from_checkpoint(self.target, self.arguments.get("revision"))
            rope = rope_from_model_args({"rope_parameters": shipped.rope})
        versions = {name: version(name) for name in ("torch", self.library)}
        return {"text": self.text, "rope": rope, "versions": versions}
