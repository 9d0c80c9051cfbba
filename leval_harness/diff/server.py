"""Reader of a running server by its OpenAI-compatible completions with token ids (`vllm serve`)."""

import json
import os
import urllib.error
import urllib.request
from typing import Any

import numpy as np

from leval_harness.diff.reader import Messages, Reader
from leval_harness.diff.setups import Setup
from leval_tasks.common.token_logprobs import Logprobs
from resonance_vllm.common.errors import RunError, UserError, choices_hint

KEY_VARIABLE = "OPENAI_API_KEY"
TIMEOUT = 600.0  # seconds; one request reads a whole text


class ServerReader(Reader):
    """`vllm serve`, or another server that returns `prompt_logprobs` for token ids.

    One request a text. The key is read from `OPENAI_API_KEY`. Arguments: `model`, the served name,
    which is needed where the server serves several; `timeout` of a request in seconds.
    """

    def __init__(self, setup: Setup) -> None:
        self.root = setup.target.rstrip("/").removesuffix("/completions").removesuffix("/v1")
        self.timeout = float(setup.arguments.get("timeout", TIMEOUT))
        served = {each["id"]: each for each in self._call("/v1/models").get("data", [])}
        name = setup.arguments.get("model") or next(iter(served), None)
        if name not in served or (len(served) > 1 and "model" not in setup.arguments):
            raise UserError(
                f"model: {self.root} does not serve {name!r} alone{choices_hint(name, served)}"
            )
        self.model = name
        longest = served[name].get("max_model_len")
        self.limit = longest - 1 if longest else None

    def encode(self, text: str) -> list[int] | None:
        return self._tokens({"prompt": text, "add_special_tokens": True})

    def template(self, messages: Messages) -> list[int] | None:
        made = self._tokens({"messages": messages, "add_generation_prompt": True})
        return [] if made is None and self.encode("a") is not None else made

    def _tokens(self, request: dict[str, Any]) -> list[int] | None:
        """Return token ids from vLLM's `/tokenize`; None without that route or without a template."""
        try:
            return list(self._call("/tokenize", {"model": self.model, **request})["tokens"])
        except (UserError, KeyError):
            return None

    def read(self, tokens: list[int]) -> Logprobs:
        asked = {"model": self.model, "temperature": 0.0, "max_tokens": 1, "prompt_logprobs": 1}
        choices = self._call("/v1/completions", {**asked, "prompt": tokens}).get("choices") or [{}]
        entries = choices[0].get("prompt_logprobs") or []
        if len(entries) != len(tokens):
            raise UserError(
                f"{self.root} returns prompt_logprobs, the log-probabilities of given tokens, "
                f"of {len(entries)} of {len(tokens)} tokens; `vllm serve` returns all"
            )
        found = zip(tokens[1:], entries[1:], strict=True)
        return np.array([each[str(token)]["logprob"] for token, each in found], np.float32)

    def _call(self, path: str, content: dict[str, Any] | None = None) -> dict[str, Any]:
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(self.root + path, data)
        request.add_header("Content-Type", "application/json")
        if key := os.environ.get(KEY_VARIABLE):
            request.add_header("Authorization", f"Bearer {key}")
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as error:
            said = " ".join(error.read(500).decode("utf-8", "replace").split())
            raise RunError(f"{self.root}{path} refuses ({error.code}): {said}") from None
        except (OSError, ValueError, TypeError) as error:
            reason = getattr(error, "reason", error)
            raise RunError(f"{self.root}{path} does not answer: {reason}") from None
