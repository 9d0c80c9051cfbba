"""What `diff` compares: a setup, read from the text that a user writes.

MODEL                                         a checkpoint on transformers
hf:MODEL,dtype=float32,attn_implementation=eager
vllm:MODEL,kv_cache_dtype=fp8_e4m3
vllm:MODEL,hf_overrides={"rope_parameters": {...}}
hf:MODEL,rope=yarn:factor=2                   more keys of rope: as JSON, or by --rope-b
http://localhost:8000,model=NAME              a server that returns prompt log-probabilities
base.npz                                      saved by an earlier diff
{"backend": "vllm", "pretrained": "MODEL", "kv_cache_dtype": "fp8_e4m3"}
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from leval_harness.backends import libraries, library_of
from leval_harness.smollm2 import prepared
from resonance_vllm.config import ModelPositions, model_args
from resonance_vllm.core.spec import RopeRequest, parsed_value
from resonance_vllm.errors import SettingError, one_of, shown
from resonance_vllm.files import parse_json

SERVER, SAVED = "server", "saved"
PACKAGES = {
    "transformers": ("torch", "transformers", "lm-eval"),
    "vllm": ("torch", "vllm", "transformers", "lm-eval"),
}
OWN_ARGUMENTS = {"transformers": ("rope", "threads", "prefill_chunk"), "vllm": ("rope",)}
"""Arguments of a local setup that the backend does not get."""


def kinds() -> list[str]:
    """Prefixes of a setup."""
    return [*libraries(), SERVER, SAVED]


@dataclass(frozen=True)
class Setup:
    """One side of a comparison.

    Attributes:
        kind: one of `kinds()`; `hf-long` and `vllm-long` read given texts as `hf` and `vllm` do.
        target: checkpoint folder or hub name, URL, or path of a file.
        arguments: those of the backend, and `OWN_ARGUMENTS`.
        text: as the user wrote it.
    """

    kind: str
    target: str
    arguments: dict[str, Any] = field(default_factory=dict)
    text: str = ""

    @classmethod
    def parse(cls, text: str, rope: str | None = None) -> Self:
        """Read a setup.

        Args:
            text: see the module.
            rope: as for `--rope`; the same as the argument `rope`.

        Raises:
            SettingError: names the part that cannot be read and what is allowed.
        """
        if text.strip().startswith("{"):
            setup = cls._from_json(parse_json(text, "setup"))
        else:
            setup = cls._from_parts(list(_split(text)))
        arguments = setup.arguments if rope is None else {**setup.arguments, "rope": rope}
        if "rope" in arguments and setup.library is None:
            raise SettingError(f"rope: {setup.kind} runs a model as it is; allowed with: "
                               f"{', '.join(libraries())}")  # fmt: skip
        target = setup.target if setup.library is None else prepared(setup.target)
        return replace(setup, target=target, arguments=arguments, text=text)

    @classmethod
    def _from_json(cls, content: Any) -> Self:
        if not isinstance(content, dict) or not isinstance(content.get("pretrained"), str):
            raise SettingError("setup: a JSON object needs 'pretrained', a path or a name")
        arguments = dict(content)
        target = arguments.pop("pretrained")
        kind = arguments.pop("backend", None) or _kind_of(target)
        return cls(one_of("backend", kind, kinds()), target, arguments)

    @classmethod
    def _from_parts(cls, parts: list[str]) -> Self:
        target, rest = parts[0].strip(), parts[1:]
        prefix, colon, path = target.partition(":")
        kind = prefix if colon and prefix in kinds() else None
        if colon and not kind and "://" not in target and not Path(target).expanduser().exists():
            one_of("setup", prefix, kinds())
        target = path if kind else target
        if not target or "=" in target.partition("/")[0]:
            raise SettingError(
                f"setup: {shown(','.join(parts))} names no model; allowed: MODEL,key=value,... "
                f"with an optional prefix of {', '.join(f'{each}:' for each in kinds())}"
            )
        arguments = {}
        for item in rest:
            key, equals, value = item.partition("=")
            if not equals or not key.strip():
                raise SettingError(f"setup: {shown(item)} has no value; allowed: key=value")
            arguments[key.strip()] = parsed_value(value.strip())
        return cls(kind or _kind_of(target), target, arguments)

    @property
    def library(self) -> str | None:
        """`transformers` or `vllm` for a model that is loaded here."""
        return library_of(self.kind) if self.kind in libraries() else None

    def backend_arguments(self) -> dict[str, Any]:
        """Arguments of lm-eval's model, `pretrained` included and RoPE settings translated.

        Raises:
            RopeConfigError: the checkpoint does not allow the method.
        """
        assert self.library is not None
        own = OWN_ARGUMENTS[self.library]
        given = {k: v for k, v in self.arguments.items() if k not in own}
        rope = self.arguments.get("rope")
        if rope is None:
            return {"pretrained": self.target, **given}
        length = given.get("max_length", given.get("max_model_len"))
        model = ModelPositions.of_checkpoint(self.target)
        made = model_args(
            model.complete(RopeRequest.parse(rope if isinstance(rope, str) else json.dumps(rope))),
            model,
            library=self.library,
            model_path=self.target,
            context_length=None if length is None else int(length),
            rope_precision=given.get("rope_precision", "float32"),
        )
        return {**made, **given}

    def described(self) -> dict[str, Any]:
        """For the results: as it was written, its RoPE settings and versions."""
        packages = PACKAGES.get(self.library or "", ())
        return {
            "text": self.text,
            "kind": self.kind,
            "target": self.target,
            "arguments": self.arguments,
            "rope": self.rope(),
            "versions": {name: version(name) for name in packages},
        }

    def rope(self) -> dict[str, Any] | None:
        """The RoPE settings that it runs with, as far as they are known without loading it."""
        if self.library is None:
            return None
        arguments = self.backend_arguments()
        written = arguments.get("hf_overrides", arguments)
        asked = written.get("rope_parameters") if isinstance(written, Mapping) else None
        shipped = ModelPositions.of_checkpoint(self.target, self.arguments.get("revision")).rope
        return dict(asked or shipped)


def _kind_of(target: str) -> str:
    if target.startswith(("http://", "https://")):
        return SERVER
    return SAVED if target.endswith(".npz") else "hf"


def _split(text: str) -> Iterator[str]:
    """Parts between commas that stand outside of brackets and quotation marks."""
    depth, quoted, part = 0, False, ""
    for each in text:
        quoted ^= each == '"'
        depth += 0 if quoted else (each in "{[(") - (each in "}])")
        if each == "," and depth == 0 and not quoted:
            yield part
            part = ""
        else:
            part += each
    yield part
