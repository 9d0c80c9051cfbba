"""Reader of a running server by its OpenAI-compatible completions with token ids (`vllm serve`)."""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any

from leval_harness.parity.reading import TOP, Messages, Reader, Reading, of_entries
from leval_harness.parity.setups import Setup
from resonance_vllm.errors import UserError, hint

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
            raise UserError(f"model: {self.root} does not serve {name!r} alone{hint(name, served)}")
        self.model = name
        longest = served[name].get("max_model_len")
        self.limit = longest - 1 if longest else None
        self.tokenizes = True
        self.tokenizes = self.encode("a") is not None

    def encode(self, text: str) -> list[int] | None:
        return self._tokens({"prompt": text, "add_special_tokens": True})

    def template(self, messages: Messages) -> list[int] | None:
        return self._tokens({"messages": messages, "add_generation_prompt": True})

    def _tokens(self, request: dict[str, Any]) -> list[int] | None:
        """Of vLLM's own `/tokenize`; None where a server has none or the model no template."""
        if not self.tokenizes:
            return None
        try:
            return list(self._call("/tokenize", {"model": self.model, **request})["tokens"])
        except (UserError, KeyError):
            return None if "prompt" in request else []

    def read(self, rows: Sequence[list[int]]) -> Iterator[Reading]:
        for row in rows:
            choice = self._complete(row, max_tokens=1, prompt_logprobs=TOP)
            if not choice.get("prompt_logprobs"):
                raise UserError(
                    f"{self.root} returns no prompt_logprobs, the log-probabilities of the given "
                    "tokens. vllm serve does; llama.cpp's server and chat endpoints do not"
                )
            entries = choice["prompt_logprobs"][1:]
            yield of_entries(
                [
                    {int(token): value["logprob"] for token, value in each.items()}
                    for each in entries
                ],
                row,
            )

    def facts(self) -> dict[str, Any]:
        try:
            return {"model": self.model, "server": self._call("/version").get("version", "")}
        except UserError:
            return {"model": self.model}

    def _complete(self, ids: Sequence[int], **options: Any) -> dict[str, Any]:
        request = {"model": self.model, "prompt": list(ids), "temperature": 0.0, **options}
        choices = self._call("/v1/completions", request).get("choices")
        if not choices:
            raise UserError(f"{self.root}/v1/completions answers without choices")
        return dict(choices[0])

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
            said = " ".join(error.read(2000).decode("utf-8", "replace").split())
            raise UserError(f"{self.root}{path} refuses ({error.code}): {said[:500]}") from None
        except (OSError, ValueError, TypeError) as error:
            reason = getattr(error, "reason", error)
            raise UserError(f"{self.root}{path} does not answer: {reason}") from None
