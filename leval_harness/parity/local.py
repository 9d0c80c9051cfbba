"""Readers of models that are loaded here: on transformers and in vLLM."""

import itertools
from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import torch
from transformers import DynamicCache

from leval_harness.backends.forward import Head, token_scores
from leval_harness.backends.registry import backend_class
from leval_harness.parity.setups import Setup
from leval_harness.parity.side import Messages, Reader
from leval_tasks.token_logprobs import Logprobs, scored_requests
from resonance_vllm.errors import SettingError, UserError


class LocalReader(Reader):
    """What both libraries have in common: lm-eval's model of a setup, by its backend's name."""

    def __init__(self, setup: Setup, backend: str) -> None:
        self.setup = setup
        self.lm = backend_class(backend)(**setup.backend_arguments())

    def encode(self, text: str) -> list[int]:
        return list(self.lm.tok_encode(text))

    def template(self, messages: Messages) -> list[int]:
        tokenizer = self.lm.tokenizer
        if tokenizer.chat_template is None:
            return []
        options = {"add_generation_prompt": True, "return_dict": False}
        return list(tokenizer.apply_chat_template(messages, **options))

    def batches(self, rows: Sequence[list[int]]) -> Iterator[list[list[int]]]:
        """Texts that are read at once: of one length, `batch_size` of them, in their order."""
        size = self.lm.batch_size if isinstance(self.lm.batch_size, int) else 1
        for _, group in itertools.groupby(rows, len):
            alike = list(group)
            yield from (alike[start : start + size] for start in range(0, len(alike), size))


class HFReader(LocalReader):
    """transformers. `prefill_chunk` tokens a forward pass, by default a whole text."""

    def __init__(self, setup: Setup) -> None:
        if "threads" in setup.arguments:
            torch.set_num_threads(int(setup.arguments["threads"]))
        super().__init__(setup, "hf")
        self.limit = self.lm.max_length
        with torch.no_grad():
            self.head = Head(self.lm.model)

    def read(self, rows: Sequence[list[int]]) -> Iterator[Logprobs]:
        vocabulary = self.lm.model.get_input_embeddings().num_embeddings
        if (largest := max(map(max, rows))) >= vocabulary:
            raise UserError(
                f"token {largest} is outside of the vocabulary of {vocabulary} tokens: the setups "
                "have different tokenizers"
            )
        dtype = self.lm.mixed_precision_dtype
        device = self.lm.device.type
        for batch in self.batches(rows):
            self.lm.forget()
            with torch.no_grad(), torch.autocast(device, dtype=dtype, enabled=dtype is not None):
                chunks = list(self._chunks(batch))
            yield from (torch.cat(parts).numpy() for parts in zip(*chunks, strict=True))

    def _chunks(self, batch: list[list[int]]) -> Iterator[list[torch.Tensor]]:
        """Log-probabilities of one chunk after the other, of each text of a batch."""
        length = len(batch[0]) - 1
        chunk = int(self.setup.arguments.get("prefill_chunk") or length)
        cache = DynamicCache(config=self.lm.model.config) if chunk < length else None
        for start in range(0, length, chunk):
            end = min(start + chunk, length)
            states = self.head.states([row[start:end] for row in batch], past=cache)
            pairs = zip(states, batch, strict=True)
            yield [
                token_scores(self.head, each, row[start + 1 : end + 1])[0] for each, row in pairs
            ]


class VLLMReader(LocalReader):
    """vLLM: log-probabilities of a prompt's tokens."""

    def __init__(self, setup: Setup) -> None:
        if int(setup.arguments.get("data_parallel_size", 1)) > 1:
            raise SettingError("data_parallel_size: allowed: 1, diff reads with one engine")
        super().__init__(setup, "vllm")
        # The engine generates one token after the prompt.
        self.limit = self.lm.model.llm_engine.model_config.max_model_len - 1

    def read(self, rows: Sequence[list[int]]) -> Iterator[Logprobs]:
        for batch in self.batches(rows):
            asked = [SimpleNamespace(token_parts=(None, row[:1], row[1:])) for row in batch]
            yield from (found.logprobs for found in scored_requests(self.lm, asked))

    def close(self) -> None:
        self.lm.close()
