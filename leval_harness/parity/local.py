"""Readers of models that are loaded here: on transformers and in vLLM."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from leval_harness.backends.arguments import arguments_of, refusing_unknown
from leval_harness.backends.registry import backend_class
from leval_harness.parity.reading import (
    TOP,
    Messages,
    Reader,
    Reading,
    joined,
    of_entries,
    of_logprobs,
)
from leval_harness.parity.setups import Setup
from resonance_vllm.errors import SettingError

SLICE = 256
"""Positions whose logits are held at once."""


class LocalReader(Reader):
    """What both libraries have in common: lm-eval's model of a setup.

    Args:
        setup: of a checkpoint.
        backend: `hf` or `vllm`.
        engine: further classes whose arguments the backend takes.
    """

    def __init__(self, setup: Setup, backend: str, *engine: type) -> None:
        self.setup = setup
        model, arguments = backend_class(backend), setup.backend_arguments()
        with refusing_unknown(setup.kind, arguments, arguments_of(model, *engine)):
            self.lm = model(**arguments)

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
        import torch

        from leval_harness.backends.forward import Head

        if "threads" in setup.arguments:
            torch.set_num_threads(int(setup.arguments["threads"]))
        super().__init__(setup, "hf")
        self.limit = self.lm.max_length
        with torch.no_grad():
            self.head = Head(self.lm.model)

    def read(self, rows: Sequence[list[int]]) -> Iterator[Reading]:
        import torch

        dtype = self.lm.mixed_precision_dtype
        for batch in self.batches(rows):
            self.lm.forget()
            device = self.lm.device.type
            with torch.no_grad(), torch.autocast(device, dtype=dtype, enabled=dtype is not None):
                found = self._batch(batch)
            yield from map(joined, found)

    def _batch(self, batch: list[list[int]]) -> list[list[Reading]]:
        """Of each text its parts; with a cache if the text is read in chunks."""
        from transformers import DynamicCache

        length = len(batch[0]) - 1
        chunk = int(self.setup.arguments.get("prefill_chunk") or length)
        cache = DynamicCache(config=self.lm.model.config) if chunk < length else None
        parts: list[list[Reading]] = [[] for _ in batch]
        for start in range(0, length, chunk):
            rows = [row[start : min(start + chunk, length)] for row in batch]
            states = self.head.states(rows, past=cache)
            for at in range(0, len(rows[0]), SLICE):
                for row, each, found in zip(batch, states, parts, strict=True):
                    logprob = self.head.logits(each[at : at + SLICE]).log_softmax(-1).cpu().numpy()
                    first = start + at + 1
                    found.append(of_logprobs(logprob, row[first : first + len(logprob)]))
        return parts

    def facts(self) -> dict[str, Any]:
        model = self.lm.model
        used = getattr(model, "rope_precision_used", "model")
        return {"dtype": str(model.dtype).removeprefix("torch."), "rotation": used}


class VLLMReader(LocalReader):
    """vLLM: log-probabilities of a prompt's tokens."""

    def __init__(self, setup: Setup) -> None:
        if int(setup.arguments.get("data_parallel_size", 1)) > 1:
            raise SettingError("data_parallel_size: allowed: 1, diff reads with one engine")
        from vllm import EngineArgs

        super().__init__(setup, "vllm", EngineArgs)
        # The engine generates one token after the prompt.
        self.limit = self.lm.model.llm_engine.model_config.max_model_len - 1

    def read(self, rows: Sequence[list[int]]) -> Iterator[Reading]:
        from vllm import SamplingParams

        asked = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=TOP)
        for batch in self.batches(rows):
            prompts = [{"prompt_token_ids": row} for row in batch]
            outputs = self.lm.model.generate(prompts, asked, use_tqdm=False)
            for output, row in zip(outputs, batch, strict=True):
                each = [
                    {token: entry.logprob for token, entry in found.items()}
                    for found in output.prompt_logprobs[1:]
                ]
                yield of_entries(each, row)

    def facts(self) -> dict[str, Any]:
        engine = self.lm.model.llm_engine
        cache = engine.vllm_config.cache_config
        return {
            "dtype": str(engine.model_config.dtype).removeprefix("torch."),
            "kv_cache_dtype": str(cache.cache_dtype),
            "prefix_caching": bool(cache.enable_prefix_caching),
        }

    def close(self) -> None:
        self.lm.model.llm_engine.engine_core.shutdown()
