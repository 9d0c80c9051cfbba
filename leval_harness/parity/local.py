"""Readers of models that run in this process: lm-eval's transformers and vLLM backends."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from leval_harness.backends.arguments import arguments_of, refusing_unknown
from leval_harness.backends.registry import register
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
from resonance_vllm.config import read_config
from resonance_vllm.errors import SettingError

SLICE = 256
"""Positions whose logits are held at once."""


def load(setup: Setup) -> Any:
    """lm-eval's model of a setup."""
    from lm_eval.api.registry import get_model

    register()
    if not Path(setup.target).expanduser().exists():  # says that the hub is asked, and what it says
        read_config(setup.target, setup.arguments.get("revision"))
    arguments = setup.backend_arguments()
    model: Any = get_model(setup.kind)
    if setup.kind == "hf":
        from leval_harness.backends.hf import HF

        model = HF
    if setup.library == "transformers" and (to := arguments.pop("quantization_config", None)):
        model = _quantizing(model, to)
    with refusing_unknown(setup.kind, arguments, _known(setup, model)):
        return model(**arguments)


def _known(setup: Setup, model: type) -> list[str]:
    """Arguments of a backend, and of vLLM's engine."""
    if setup.library == "transformers":
        return arguments_of(model)
    from vllm import EngineArgs

    return arguments_of(model, EngineArgs)


def _quantizing(model: Any, settings: dict[str, Any]) -> Any:
    """lm-eval's class, which quantizes as a checkpoint says, with settings of the user."""
    from transformers.quantizers import AutoQuantizationConfig

    class Quantizing(model):
        def _create_model(self, pretrained: str, **arguments: Any) -> None:
            arguments["quantization_config"] = AutoQuantizationConfig.from_dict(dict(settings))
            super()._create_model(pretrained, **arguments)

    return Quantizing


class _Local(Reader):
    """What both libraries have in common: lm-eval's tokenizer."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.lm = load(setup)

    def encode(self, text: str) -> list[int]:
        return list(self.lm.tok_encode(text))

    def template(self, messages: Messages) -> list[int]:
        tokenizer = self.lm.tokenizer
        if tokenizer.chat_template is None:
            return []
        rendered = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        return list(tokenizer.encode(rendered, add_special_tokens=False))


class HFReader(_Local):
    """`hf` and `hf-long`. `batch_size` texts a forward pass; `prefill_chunk` tokens a pass."""

    def __init__(self, setup: Setup) -> None:
        import torch

        from leval_harness.backends.forward import Head

        if "threads" in setup.arguments:
            torch.set_num_threads(int(setup.arguments["threads"]))
        super().__init__(setup)
        self.model = self.lm.model
        self.limit = self.lm.max_length
        with torch.no_grad():
            self.head = Head(self.model)

    def read(self, rows: Sequence[list[int]]) -> Iterator[Reading]:
        size = self.lm.batch_size if isinstance(self.lm.batch_size, int) else 1
        at = 0
        while at < len(rows):
            batch = [row for row in rows[at : at + size] if len(row) == len(rows[at])]
            yield from self._batch(batch)
            at += len(batch)

    def _batch(self, batch: list[list[int]]) -> list[Reading]:
        import torch

        dtype = getattr(self.lm, "mixed_precision_dtype", None)
        device = self.model.device.type
        with torch.no_grad(), torch.autocast(device, dtype=dtype, enabled=dtype is not None):
            states = self._states([row[:-1] for row in batch])
            return [self._reading(each, row) for each, row in zip(states, batch, strict=True)]

    def _states(self, rows: list[list[int]]) -> Any:
        """What `Head.logits` takes, `[rows, T - 1, ...]`; in chunks with a cache if asked to."""
        import torch
        from transformers import DynamicCache

        chunk = self.setup.arguments.get("prefill_chunk")
        if chunk is None or int(chunk) >= len(rows[0]):
            return self.head.states(rows)
        cache, parts = DynamicCache(config=self.model.config), []
        for start in range(0, len(rows[0]), int(chunk)):
            batch = [row[start : start + int(chunk)] for row in rows]
            parts.append(self.head.states(batch, past=cache))
        return torch.cat(parts, dim=1)

    def _reading(self, states: Any, row: list[int]) -> Reading:
        parts = []
        for start in range(0, len(states), SLICE):
            logprob = self.head.logits(states[start : start + SLICE]).log_softmax(-1).cpu().numpy()
            parts.append(of_logprobs(logprob, row[start + 1 : start + 1 + len(logprob)]))
        return joined(parts)

    def facts(self) -> dict[str, Any]:
        used = getattr(self.model, "rope_precision_used", "model")
        return {"dtype": str(self.model.dtype).removeprefix("torch."), "rotation": used}


class VLLMReader(_Local):
    """`vllm` and `vllm-long`: log-probabilities of a prompt's tokens."""

    def __init__(self, setup: Setup) -> None:
        if int(setup.arguments.get("data_parallel_size", 1)) > 1:
            raise SettingError("data_parallel_size: allowed: 1, diff reads with one engine")
        super().__init__(setup)
        # The engine generates one token after the prompt.
        self.limit = self.lm.model.llm_engine.model_config.max_model_len - 1

    def read(self, rows: Sequence[list[int]]) -> Iterator[Reading]:
        from vllm import SamplingParams

        asked = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=TOP)
        for output, row in zip(self._run(rows, asked), rows, strict=True):
            each = [
                {token: entry.logprob for token, entry in found.items()}
                for found in output.prompt_logprobs[1:]
            ]
            yield of_entries(each, row)

    def close(self) -> None:
        self.lm.model.llm_engine.engine_core.shutdown()

    def _run(self, rows: Sequence[list[int]], asked: Any) -> list[Any]:
        prompts = [{"prompt_token_ids": list(row)} for row in rows]
        return list(self.lm.model.generate(prompts, asked, use_tqdm=False))

    def facts(self) -> dict[str, Any]:
        engine = self.lm.model.llm_engine
        cache = engine.vllm_config.cache_config
        return {
            "dtype": str(engine.model_config.dtype).removeprefix("torch."),
            "kv_cache_dtype": str(cache.cache_dtype),
            "prefix_caching": bool(cache.enable_prefix_caching),
        }
