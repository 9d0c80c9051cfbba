"""Reader of a running server by its OpenAI-compatible completions with token ids (`vllm serve`)."""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Collection
from typing import Any

import numpy as np

from leval_harness.diff.reader import Messages, Reader
from leval_harness.diff.setups import Setup
from leval_tasks.common.token_logprobs import Logprobs
from resonance_vllm.common.errors import RunError, UserError, choices_hint

KEY_VARIABLE = "OPENAI_API_KEY"
TIMEOUT = 600.0
"""Seconds; one request reads a whole document."""
ROUTES = ("/completions", "/chat", "/v1")
"""Ends of an address that people copy, in this order."""


class ServerReader(Reader):
    """`vllm serve`, or another server that returns `prompt_logprobs` for token ids.

    It sends one request per document. The key is read from `OPENAI_API_KEY`. Arguments of the setup:
    `model`, the served name, which is needed where the server serves several; `timeout` of a request
    in seconds.
    """

    def __init__(self, setup: Setup) -> None:
        self.root = setup.target.rstrip("/")
        for route in ROUTES:
            self.root = self.root.removesuffix(route)
        self.timeout = float(setup.arguments.get("timeout", TIMEOUT))
        models = self._call("/v1/models").get("data", [])
        served = {model["id"]: model for model in models}
        self.model = self._name(served, setup.arguments.get("model"))
        longest = served[self.model].get("max_model_len")
        self.limit = None
        if longest:
            self.limit = longest - 1  # a token is generated after the prompt

    def _name(self, served: Collection[str], requested: str | None) -> str:
        """Return the name of the model that is asked.

        Raises:
            UserError: the server does not serve it, or serves several and none was requested.
        """
        if requested is None and len(served) == 1:
            return next(iter(served))
        if requested is None:
            raise RunError(
                f"model: {self.root} serves {len(served)} models; add model=NAME to its address"
                f"{choices_hint('', served)}"
            )
        if requested not in served:
            raise RunError(
                f"model: {self.root} does not serve {requested!r}{choices_hint(requested, served)}"
            )
        return requested

    def encode(self, text: str) -> list[int] | None:
        return self._tokens({"prompt": text, "add_special_tokens": True})

    def template(self, messages: Messages) -> list[int] | None:
        tokens = self._tokens({"messages": messages, "add_generation_prompt": True})
        if tokens is None and self.encode("a") is not None:
            return []  # it has the route, and no template
        return tokens

    def _tokens(self, request: dict[str, Any]) -> list[int] | None:
        """Return token ids from vLLM's `/tokenize`; None without that route or without a template."""
        try:
            return list(self._call("/tokenize", {"model": self.model, **request})["tokens"])
        except (UserError, KeyError):
            return None

    def read(self, tokens: list[int]) -> Logprobs:
        """Return the log-probability of each token but the first, float32 `[tokens - 1]`.

        Raises:
            RunError: the server does not return those of given tokens.
        """
        request = {
            "model": self.model,
            "prompt": tokens,
            "temperature": 0.0,
            "max_tokens": 1,
            "prompt_logprobs": 1,
        }
        choices = self._call("/v1/completions", request).get("choices") or [{}]
        entries = choices[0].get("prompt_logprobs") or []
        if len(entries) != len(tokens):
            raise RunError(
                f"{self.root} returns prompt_logprobs, the log-probabilities of given tokens, "
                f"of {len(entries)} of {len(tokens)} tokens; `vllm serve` returns all"
            )
        by_token = zip(tokens[1:], entries[1:], strict=True)
        logprobs = [candidates[str(token)]["logprob"] for token, candidates in by_token]
        return np.array(logprobs, np.float32)

    def _call(self, path: str, content: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the server's answer to a request: POST with content, else GET.

        Raises:
            RunError: the server does not answer, or refuses.
        """
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(self.root + path, data)
        request.add_header("Content-Type", "application/json")
        if key := os.environ.get(KEY_VARIABLE):
            request.add_header("Authorization", f"Bearer {key}")
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as error:
            reason = " ".join(error.read(500).decode("utf-8", "replace").split())
            raise RunError(f"{self.root}{path} refuses ({error.code}): {reason}") from None
        except (OSError, ValueError, TypeError) as error:
            cause = getattr(error, "reason", error)
            raise RunError(f"{self.root}{path} does not answer: {cause}") from None
