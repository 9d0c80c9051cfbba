"""lm-eval's vLLM backend, which runs the requests about a document side by side.

lm-eval sorts requests by length. That interleaves documents of about the same length, and a cache
for a document or two has dropped each again when its next question comes. Here the engine gets all
requests at once, sorted by their tokens. It admits them in that order, so that a document stays
cached from its first question to its last.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from lm_eval.models.vllm_causallms import VLLM

from leval_harness.backends import CannotSwapError, get_backend
from leval_harness.backends.answers import settings_that_change_answers
from leval_harness.backends.vllm_start import starting, with_cpu_cache, with_token_budget
from leval_tasks.common.token_logprobs import Logprobs, Request, TokenScoring, score_by_vllm
from resonance_vllm.checkpoint.overrides import vllm_hf_overrides
from resonance_vllm.checkpoint.positions import PositionConfig
from resonance_vllm.common.errors import SettingError
from resonance_vllm.core.spec import RopeSpec

WORKER = "resonance_vllm.vllm.RopeWorker"
"""Given to the engine's workers, whose RoPE tables it swaps."""


def score_given_tokens(lm: Any, requests: Sequence[Request]) -> Iterator[Logprobs]:
    """Score requests at the scored tokens alone, where vLLM can.

    Its V2 model runner returns the log-probabilities of given token ids from a position of the
    prompt on. With the V1 runner, which ranks the vocabulary at every position, requests are scored
    as with stock lm-eval.
    """
    if not scores_given_ids(lm.model):
        yield from score_by_vllm(lm, requests)
        return
    from vllm import SamplingParams

    prompts = [[*context, *scored] for context, scored in requests]
    params = [
        SamplingParams(
            temperature=0,
            max_tokens=1,
            detokenize=False,
            # Row i belongs to token `prompt_logprob_start + i + 1` of the prompt.
            prompt_logprob_token_ids=[[token] for token in scored],
            prompt_logprob_start=len(context) - 1,
        )
        for context, scored in requests
    ]
    for output in lm._model_generate(prompts, generate=True, sampling_params=params):
        yield np.asarray(output.prompt_token_id_logprobs, np.float32)[:, 0]


def scores_given_ids(engine: Any) -> bool:
    """Return whether an engine returns the log-probabilities of given ids of a prompt."""
    from vllm import SamplingParams

    uses_v2_runner = getattr(engine.llm_engine.vllm_config, "use_v2_model_runner", False)
    return uses_v2_runner and "prompt_logprob_token_ids" in SamplingParams.__struct_fields__


def ignored_settings(model: str, revision: str | None) -> dict[str, Any]:
    """Return the settings in a checkpoint's generation_config.json that would change answers.

    lm-eval's `vllm` gives the engine those of a request alone.
    """
    from transformers import GenerationConfig

    try:
        config = GenerationConfig.from_pretrained(model, revision=revision or "main")
    except (OSError, ValueError):  # no such file, or none that transformers reads
        return {}
    return settings_that_change_answers(config)


class RopeVLLM(VLLM):
    """lm-eval's `vllm`, which starts on a CPU and whose RoPE settings can be swapped.

    Raises:
        SettingError: an argument is not supported.
        RunError: the engine does not start; the message is the last exception of its log.
    """

    token_scoring = TokenScoring(score=score_given_tokens, generated=1)
    neutralized: Mapping[str, Any] = {}
    """Generation settings of the checkpoint that lm-eval's `vllm` does not read."""

    def __init__(self, pretrained: str, **arguments: Any) -> None:
        for problem in get_backend("vllm").argument_problems(arguments):
            raise SettingError(f"model_args.{problem}")
        engine = with_token_budget(pretrained, with_cpu_cache(arguments))
        engine = {"worker_extension_cls": WORKER, **engine}
        self._shipped, self._loaded_with = pretrained, engine.get("revision")
        self.neutralized = ignored_settings(pretrained, engine.get("revision"))
        with starting():
            super().__init__(pretrained, **engine)
        self._engine_length: int | None = self._max_length

    def set_rope(
        self,
        rope: Mapping[str, Any] | None,
        precision: str = "model",
        context_length: int | None = None,
    ) -> None:
        """Swap RoPE settings as `HF.set_rope` does; the precision is always the model's own."""
        if rope is not None:
            model = PositionConfig.from_checkpoint(self._shipped, self._loaded_with)
            written = vllm_hf_overrides(RopeSpec.from_dict(dict(rope)), model, context_length)
            rope = _rope_parameters(written)
        try:
            self.model.collective_rpc("set_rope", args=(rope,))
        except Exception as error:  # of a worker's process, which names its type in the text alone
            raise CannotSwapError(str(error)) from error
        self._max_length = context_length or self._engine_length

    def telemetry(self) -> dict[str, Any]:
        """Return the generation settings of the checkpoint that would change answers, and do not."""
        return {"neutralized": dict(self.neutralized)}

    def get_model_info(self) -> dict[str, Any]:
        """Return what lm-eval writes into its results file, beside its own entries."""
        return self.telemetry()

    def ends_of_batch(self, output: list[Any], generate: bool = False, **_: Any) -> list[bool]:
        """Return how each answer ended; nothing where documents were scored."""
        if not generate:
            return []
        return [request.outputs[0].finish_reason == "length" for request in output]

    def close(self) -> None:
        """End the engine."""
        self.model.llm_engine.engine_core.shutdown()


def _rope_parameters(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the RoPE settings in overrides, which are nested where the config of the model is."""
    rope = overrides.get("rope_parameters")
    if rope is None:
        nested = [value for value in overrides.values() if isinstance(value, Mapping)]
        return _rope_parameters(nested[0])
    return {key: value for key, value in rope.items() if value is not None}


class VLLMLong(RopeVLLM):
    """lm-eval's `vllm` with requests grouped by document; every argument of `vllm` is accepted.

    It can read `max_length` positions, the engine's `max_model_len`: a prompt and what is generated
    after it together. A log-likelihood takes one token less, because vLLM generates one after it.
    `batch_size` has no effect: the engine gets all requests, and `max_num_seqs` bounds them.
    """

    def __init__(self, pretrained: str, **arguments: Any) -> None:
        super().__init__(pretrained, **{**arguments, "batch_size": "auto"})
        self.counted = {"tokens_prefilled": 0, "tokens_generated": 0}

    def telemetry(self) -> dict[str, Any]:
        """Return in addition the prompt tokens computed and the tokens generated, by the engine."""
        return {**super().telemetry(), **self.counted}

    def count_anew(self) -> None:
        """Set the counts of `telemetry` to zero."""
        self.counted = dict.fromkeys(self.counted, 0)

    def _model_generate(
        self, requests: list[list[int]], generate: bool = False, sampling_params: Any = None
    ) -> list[Any]:
        """Run the requests in the order of their tokens; outputs are in that of `requests`."""
        order = sorted(range(len(requests)), key=requests.__getitem__)
        in_order = [requests[index] for index in order]
        if isinstance(sampling_params, list):
            sampling_params = [sampling_params[index] for index in order]
        outputs = super()._model_generate(in_order, generate, sampling_params)
        by_index = dict(zip(order, outputs, strict=True))
        answers = [by_index[index] for index in range(len(requests))]
        self._count(answers, sum(map(len, requests)), generate)
        return answers

    def _count(self, answers: Sequence[Any], prompt_tokens: int, generate: bool) -> None:
        """Add to the counts what the engine says of its answers to prompts of so many tokens."""
        for answer in answers:
            prompt_tokens -= answer.num_cached_tokens or 0
            if generate:
                for output in answer.outputs:
                    self.counted["tokens_generated"] += len(output.token_ids)
        self.counted["tokens_prefilled"] += prompt_tokens
