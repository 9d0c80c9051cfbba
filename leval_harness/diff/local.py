"""Readers of models that are loaded here."""

from types import SimpleNamespace

import torch

from leval_harness.backends import get_backend, reading
from leval_harness.backends.forward import Head
from leval_harness.backends.prefill import CHUNK
from leval_harness.backends.scoring import Passage
from leval_harness.diff.reader import Messages, Reader
from leval_harness.diff.setups import Setup
from leval_tasks.common.token_logprobs import Logprobs, scored_requests, scoring_of
from resonance_vllm.common.errors import RunError


class LocalReader(Reader):
    """The model of any backend, which scores tokens as it does for tasks."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        model_class = get_backend(setup.kind).load_class()
        self.lm = model_class(**setup.backend_arguments())
        self.limit = self.lm.max_length - scoring_of(self.lm).generated

    def encode(self, text: str) -> list[int]:
        return list(self.lm.tok_encode(text))

    def template(self, messages: Messages) -> list[int]:
        tokenizer = self.lm.tokenizer
        if tokenizer.chat_template is None:
            return []
        options = {"add_generation_prompt": True, "return_dict": False}
        return list(tokenizer.apply_chat_template(messages, **options))

    def read(self, tokens: list[int]) -> Logprobs:
        request = SimpleNamespace(token_parts=(None, tokens[:1], tokens[1:]))
        (total,) = scored_requests(self.lm, [request])
        return total.logprobs

    def close(self) -> None:
        if hasattr(self.lm, "close"):
            self.lm.close()


class HFReader(LocalReader):
    """A model of transformers, which reads a document in one pass or in chunks.

    Logits are computed a slice at a time, so that long documents fit. Unlike `hf-long`, it shares
    nothing between documents and needs no self-check.
    """

    def __init__(self, setup: Setup) -> None:
        if "threads" in setup.arguments:
            torch.set_num_threads(int(setup.arguments["threads"]))
        super().__init__(setup)
        with torch.no_grad(), self.lm.autocast():
            self.head = Head(self.lm.model)

    def read(self, tokens: list[int]) -> Logprobs:
        """Return the log-probability of each token but the first, float32 `[tokens - 1]`.

        Raises:
            RunError: a token is outside of the model's vocabulary.
        """
        vocabulary = self.lm.model.get_input_embeddings().num_embeddings
        if (largest := max(tokens)) >= vocabulary:
            raise RunError(
                f"token {largest} is outside of the vocabulary of {vocabulary} tokens: the setups "
                "have different tokenizers"
            )
        chunk = self.setup.arguments.get("prefill_chunk")
        passage = Passage(tokens[:1], tokens[1:], len(tokens), with_correct=False)
        self.lm.forget_last_request()
        with torch.no_grad(), self.lm.autocast():
            in_own_cache = reading.Reader(self.head, reading.COPIED, chunk or CHUNK)
            list(reading.score_passages(self.head, in_own_cache, [passage], chunk))
        return passage.logprob.numpy()
