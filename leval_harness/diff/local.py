"""Readers of models that are loaded here: on transformers and in vLLM."""

from types import SimpleNamespace

import torch

from leval_harness.backends import backend_class, reading
from leval_harness.backends.forward import Head, Passage
from leval_harness.diff.reader import Messages, Reader
from leval_harness.diff.setups import Setup
from leval_tasks.common.token_logprobs import Logprobs, scored_requests
from resonance_vllm.common.errors import SettingError, UserError


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


class HFReader(LocalReader):
    """transformers. `prefill_chunk` tokens a forward pass, by default a whole text."""

    def __init__(self, setup: Setup) -> None:
        if "threads" in setup.arguments:
            torch.set_num_threads(int(setup.arguments["threads"]))
        super().__init__(setup, "hf")
        self.limit = self.lm.max_length
        with torch.no_grad(), self.lm.autocast():
            self.head = Head(self.lm.model)

    def read(self, tokens: list[int]) -> Logprobs:
        vocabulary = self.lm.model.get_input_embeddings().num_embeddings
        if (largest := max(tokens)) >= vocabulary:
            raise UserError(
                f"token {largest} is outside of the vocabulary of {vocabulary} tokens: the setups "
                "have different tokenizers"
            )
        chunk = self.setup.arguments.get("prefill_chunk")
        passage = Passage(tokens[:1], tokens[1:], len(tokens))
        self.lm.forget()
        with torch.no_grad(), self.lm.autocast():
            in_own_cache = reading.Reader(self.head, "copied", chunk or reading.CHUNK)
            list(reading.scored(self.head, in_own_cache, [passage], chunk))
        return passage.logprob.numpy()


class VLLMReader(LocalReader):
    """vLLM: log-probabilities of a prompt's tokens."""

    def __init__(self, setup: Setup) -> None:
        if int(setup.arguments.get("data_parallel_size", 1)) > 1:
            raise SettingError("data_parallel_size: allowed: 1, diff reads with one engine")
        super().__init__(setup, "vllm")
        # The engine generates one token after the prompt.
        self.limit = self.lm.model.llm_engine.model_config.max_model_len - 1

    def read(self, tokens: list[int]) -> Logprobs:
        asked = SimpleNamespace(token_parts=(None, tokens[:1], tokens[1:]))
        return scored_requests(self.lm, [asked])[0].logprobs

    def close(self) -> None:
        self.lm.close()
