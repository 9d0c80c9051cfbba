"""lm-eval's vLLM backend, which runs the requests about a document side by side.

lm-eval sorts requests by length. That interleaves documents of about the same length, and a cache
for a document or two has dropped each again when its next question comes. Here the engine gets all
requests at once, sorted by their tokens. It admits them in that order, so that a document stays
cached from its first question to its last.
"""

from collections.abc import Mapping
from typing import Any

from lm_eval.models.vllm_causallms import VLLM

from leval_harness.backends import CannotSwapError, get_backend
from leval_harness.backends.vllm_start import starting, with_cpu_cache
from resonance_vllm.checkpoint.overrides import vllm_hf_overrides
from resonance_vllm.checkpoint.positions import PositionConfig
from resonance_vllm.common.errors import SettingError
from resonance_vllm.core.spec import RopeSpec

WORKER = "resonance_vllm.vllm.RopeWorker"
"""Given to the engine's workers, whose RoPE tables it swaps."""


class RopeVLLM(VLLM):
    """lm-eval's `vllm`, which starts on a CPU and whose RoPE settings can be swapped.

    Raises:
        SettingError: an argument is not supported.
        RunError: the engine does not start; the message is the last exception of its log.
    """

    def __init__(self, pretrained: str, **arguments: Any) -> None:
        for problem in get_backend("vllm").argument_problems(arguments):
            raise SettingError(f"model_args.{problem}")
        engine = {"worker_extension_cls": WORKER, **with_cpu_cache(arguments)}
        self._shipped, self._loaded_with = pretrained, engine.get("revision")
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

    def ends_of_batch(self, output: list[Any], generate: bool = False, **_: Any) -> list[bool]:
        """Return how each answer ended; nothing where documents were scored."""
        return [each.outputs[0].finish_reason == "length" for each in output if generate]

    def close(self) -> None:
        """End the engine."""
        self.model.llm_engine.engine_core.shutdown()


def _rope_parameters(written: Mapping[str, Any]) -> dict[str, Any]:
    """Return the RoPE settings in overrides, nested where the config of the model is."""
    inner = [value for value in written.values() if isinstance(value, Mapping)]
    found = written.get("rope_parameters") or next(map(_rope_parameters, inner))
    return {key: value for key, value in found.items() if value is not None}


class VLLMLong(RopeVLLM):
    """lm-eval's `vllm` with requests grouped by document; every argument of `vllm` is accepted.

    It can read `max_length` positions, the engine's `max_model_len`: a prompt and what is generated
    after it together. A log-likelihood takes one token less, because vLLM generates one after it.
    `batch_size` has no effect: the engine gets all requests, and `max_num_seqs` bounds them.
    """

    def __init__(self, pretrained: str, **arguments: Any) -> None:
        super().__init__(pretrained, **{**arguments, "batch_size": "auto"})
        self.counted = {"tokens_prefilled": 0, "tokens_generated": 0}

    def telemetry(self) -> dict[str, int]:
        """Return the prompt tokens computed and the tokens generated, as the engine counts them."""
        return dict(self.counted)

    def count_anew(self) -> None:
        """Set the counts of `telemetry` to zero."""
        self.counted = dict.fromkeys(self.counted, 0)

    def _model_generate(
        self, requests: list[list[int]], generate: bool = False, sampling_params: Any = None
    ) -> list[Any]:
        """Run the requests in the order of their tokens; outputs are in that of `requests`."""
        order = sorted(range(len(requests)), key=requests.__getitem__)
        if isinstance(sampling_params, list):
            sampling_params = [sampling_params[index] for index in order]
        outputs = super()._model_generate(
            [requests[index] for index in order], generate, sampling_params
        )
        by_index = dict(zip(order, outputs, strict=True))
        answers = [by_index[index] for index in range(len(requests))]
        cached = sum(answer.num_cached_tokens or 0 for answer in answers)
        self.counted["tokens_prefilled"] += sum(map(len, requests)) - cached
        if generate:
            made = (output.token_ids for answer in answers for output in answer.outputs)
            self.counted["tokens_generated"] += sum(map(len, made))
        return answers
