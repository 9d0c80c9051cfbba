"""Reader of a GGUF file in llama.cpp, by llama-cpp-python."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy.special import log_softmax

from leval_harness.parity.local import joined, of_logprobs
from leval_harness.parity.reading import Messages, Reader, Reading, dense_positions
from leval_harness.parity.setups import Setup
from resonance_vllm.errors import UserError

BATCH = 256  # tokens a pass; their logits are all in memory


class GGUFReader(Reader):
    """A GGUF file, read in batches whose logits are all computed.

    Arguments are those of `llama_cpp.Llama`: `n_threads`, `type_k`, `rope_scaling_type`, …; `n_ctx`
    is the longest text unless it is given.
    """

    def __init__(self, setup: Setup, longest: int) -> None:
        try:
            import llama_cpp
        except ImportError:
            raise UserError(
                "a GGUF file is read by llama-cpp-python, which is not installed: "
                "pip install llama-cpp-python (built from source in about six minutes)"
            ) from None
        arguments = {"n_ctx": longest, "n_batch": BATCH, **setup.arguments}
        arguments.setdefault("n_ubatch", arguments["n_batch"])
        try:
            # logits_all reserves address space for the logits of all positions, of which none is
            # written: `read` takes them from the context, a batch at a time.
            self.model = llama_cpp.Llama(setup.target, logits_all=True, verbose=False, **arguments)
        except (ValueError, TypeError) as error:
            raise UserError(f"{setup.target}: {error}") from None
        self.library = llama_cpp
        self.limit = self.model.n_ctx()
        self.batch = int(arguments["n_batch"])

    def encode(self, text: str) -> list[int]:
        return list(self.model.tokenize(text.encode("utf-8"), add_bos=True, special=False))

    def template(self, messages: Messages) -> list[int]:
        from llama_cpp.llama_chat_format import Jinja2ChatFormatter

        template = self.model.metadata.get("tokenizer.chat_template")
        if not template:
            return []
        pieces = [
            self.model.detokenize([token], special=True).decode("utf-8", "replace")
            for token in (self.model.token_eos(), self.model.token_bos())
        ]
        chat: Any = messages
        prompt = Jinja2ChatFormatter(template, *pieces)(messages=chat).prompt
        return list(self.model.tokenize(prompt.encode("utf-8"), add_bos=False, special=True))

    def read(self, rows: Sequence[list[int]]) -> Iterator[Reading]:
        for row in rows:
            yield self._text(row)

    def _text(self, row: list[int]) -> Reading:
        size, dense, parts = self.model.n_vocab(), dense_positions(len(row)), []
        self.model._ctx.kv_cache_clear()
        inputs = row[:-1]
        for start in range(0, len(inputs), self.batch):
            tokens = inputs[start : start + self.batch]
            self.model._batch.set_batch(batch=tokens, n_past=start, logits_all=True)
            self.model._ctx.decode(self.model._batch)
            pointer = self.library.llama_get_logits(self.model._ctx.ctx)
            logits = np.ctypeslib.as_array(pointer, shape=(len(tokens) * size,))
            logprob = log_softmax(logits.reshape(len(tokens), size), axis=1)
            parts.append(of_logprobs(logprob, row[start + 1 :], dense - start))
        return joined(parts)

    def generate(self, ids: list[int], tokens: int) -> list[int]:
        made: list[int] = []
        for token in self.model.generate(ids, temp=0.0, top_k=1):
            made.append(token)
            if len(made) == tokens:
                break
        return made

    def facts(self) -> dict[str, Any]:
        names = ("general.name", "general.file_type", "general.quantization_version")
        return {name: self.model.metadata[name] for name in names if name in self.model.metadata}
