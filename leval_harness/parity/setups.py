"""What `diff` compares: a setup, read from the text that a user writes.

MODEL                                         a checkpoint on hf-long
hf:MODEL,dtype=float32,attn_implementation=eager
vllm:MODEL,kv_cache_dtype=fp8_e4m3
vllm:MODEL,hf_overrides={"rope_parameters": {...}}
hf:MODEL,rope=yarn:factor=2                   more keys of rope: as JSON, or by --rope-b
http://localhost:8000,model=NAME              a server that returns prompt log-probabilities
base.npz                                      saved by an earlier diff
{"backend": "vllm", "pretrained": "MODEL", "kv_cache_dtype": "fp8_e4m3"}
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

from leval_harness.backends import libraries, library_of
from leval_harness.smollm2 import prepared
from resonance_vllm.config import ModelPositions, model_args
from resonance_vllm.core.spec import RopeRequest, parsed_value
from resonance_vllm.errors import SettingError, one_of, shown
from resonance_vllm.files import parse_json

DEFAULT_KIND = "hf-long"
SERVER, SAVED = "server", "saved"
PACKAGES = {
    "transformers": ("torch", "transformers", "lm-eval"),
    "vllm": ("torch", "vllm", "transformers", "lm-eval"),
}
DTYPES = ("auto", "float32", "float", "float64", "double", "bfloat16", "float16", "half")
OWN_ARGUMENTS = {
    **dict.fromkeys(("vllm", "vllm-long"), ("rope", "context_length")),
    "hf-long": ("rope", "context_length", "threads"),
    "hf": ("rope", "context_length", "threads", "prefill_chunk"),
}
"""Arguments of a local setup that the backend does not get."""


def kinds() -> list[str]:
    """Prefixes of a setup."""
    return [*libraries(), SERVER, SAVED]


@dataclass(frozen=True)
class Setup:
    """One side of a comparison.

    Attributes:
        kind: one of `kinds()`.
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
        if setup.library is not None:
            setup = replace(setup, target=prepared(setup.target))
            one_of("dtype", str(setup.arguments.get("dtype", "auto")), DTYPES)
        if rope is not None:
            setup = replace(setup, arguments={**setup.arguments, "rope": rope})
        if "rope" in setup.arguments and setup.library is None:
            raise SettingError(f"rope: {setup.kind} runs a model as it is; allowed with: "
                               f"{', '.join(libraries())}")  # fmt: skip
        return replace(setup, text=text)

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
        """`transformers` or `vllm` for a model that runs in this process."""
        return library_of(self.kind) if self.kind in libraries() else None

    @property
    def batch_size(self) -> int:
        """Texts that it is given at once; 1 where the backend chooses (`auto`)."""
        size = self.arguments.get("batch_size", 1)
        return size if isinstance(size, int) and size > 0 else 1

    def backend_arguments(self) -> dict[str, Any]:
        """Arguments of lm-eval's model, `pretrained` included and RoPE settings translated.

        Raises:
            RopeConfigError: the checkpoint does not allow the method.
        """
        own = OWN_ARGUMENTS[self.kind]
        given = {k: v for k, v in self.arguments.items() if k not in own}
        rope = self.arguments.get("rope")
        if rope is None:
            return {"pretrained": self.target, **given}
        text = rope if isinstance(rope, str) else json.dumps(rope)
        model = ModelPositions.of_checkpoint(self.target)
        length = self.arguments.get("context_length")
        made = model_args(
            model.complete(RopeRequest.parse(text)),
            model,
            library=library_of(self.kind),
            model_path=self.target,
            context_length=None if length is None else int(length),
            rope_precision=given.pop("rope_precision", "float32"),
        )
        if clash := sorted(made.keys() & given.keys()):
            raise SettingError(f"rope sets {', '.join(clash)}: leave that out of the setup")
        return {**made, **given}

    def identity(self) -> dict[str, Any]:
        """What decides the readings, as far as it is known here: arguments, files, versions."""
        path = Path(self.target).expanduser()
        found = sorted(path.iterdir()) if path.is_dir() else [path] if path.is_file() else []
        facts = {each.name: each.stat() for each in found if each.is_file()}
        return {
            "kind": self.kind,
            "target": str(path.resolve()) if found else self.target,
            "arguments": self.arguments,
            "files": {name: [stat.st_size, stat.st_mtime_ns] for name, stat in facts.items()},
            "versions": self.versions(),
        }

    def versions(self) -> dict[str, str]:
        """Installed packages that compute the readings."""
        found = {}
        for name in PACKAGES.get(self.library or self.kind, ()):
            try:
                found[name] = version(name)
            except PackageNotFoundError:
                found[name] = "not installed"
        return found

    def rope(self) -> dict[str, Any] | None:
        """The RoPE settings that it runs with, as far as they are known without loading it."""
        if self.library is None:
            return None
        arguments = self.backend_arguments()
        written = arguments.get("hf_overrides", arguments)
        asked = written.get("rope_parameters") if isinstance(written, Mapping) else None
        shipped = ModelPositions.of_checkpoint(self.target, self.arguments.get("revision")).rope
        return dict(asked or shipped)

    def stated_limit(self) -> int | None:
        """The most tokens of a text, where the user has set them."""
        given = (self.arguments.get(key) for key in ("max_length", "max_model_len"))
        return next((int(each) for each in given if each is not None), None)

    def key(self, ids: list[int]) -> str:
        """Name of a reading of these tokens by this setup."""
        text = json.dumps([self.identity(), ids], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def _kind_of(target: str) -> str:
    if target.startswith(("http://", "https://")):
        return SERVER
    return SAVED if target.endswith(".npz") else DEFAULT_KIND


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
