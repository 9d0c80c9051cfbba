"""lm-eval's transformers backend, with RoPE settings that can be swapped in the loaded model."""

import copy
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from lm_eval.models.huggingface import HFLM

from leval_harness.backends import CannotSwapError
from leval_harness.backends.answers import neutralize
from resonance_vllm import hf
from resonance_vllm.checkpoint.rope_dict import rope_by_layer_type
from resonance_vllm.common.errors import RopeConfigError
from resonance_vllm.common.hub import loading_errors
from resonance_vllm.core.spec import NATIVE_LENGTH_KEY

_OF_LOADING = {"dtype", "quantization_config"}
"""Arguments of `from_pretrained` that a config has as well."""


class HF(HFLM):
    """lm-eval's `hf`: an answer depends on its request alone, whatever the RoPE method is.

    Methods that follow the length of a sequence (`dynamic`, LongRoPE) read one request at a time,
    each from the state in which the model was loaded.

    Args:
        pretrained: as for `hf`.
        device: as for `hf`; by default CUDA if there is one, else the CPU.
        rope_parameters: complete RoPE settings; None runs the checkpoint unmodified.
        rope_precision: `float32` or `model`, of the rotation; None leaves it as transformers does.
        quantization_config: settings of transformers; None is what the checkpoint says.
        arguments: those of `hf` and of `from_pretrained`.

    Raises:
        UserError: the checkpoint cannot be loaded with these arguments.
    """

    AUTO_MODEL_CLASS: Any = None

    def __init__(
        self,
        pretrained: Any,
        *,
        device: str | None = None,
        rope_parameters: Mapping[str, Any] | None = None,
        rope_precision: str | None = None,
        quantization_config: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> None:
        self._quantization = quantization_config
        self._rope = rope_parameters
        self._precision = rope_precision or "model"
        self._limit = arguments.get("max_length")
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        loaded = not isinstance(pretrained, str)
        with nullcontext() if loaded else loading_errors(pretrained):
            super().__init__(pretrained, device=device, **arguments)
        if loaded:
            hf.apply_rope(self.model, rope_parameters, self._precision)
        self.neutralized = neutralize(self.model)
        self._asked_for: Any = self.batch_size_per_gpu
        self._one_at_a_time()

    def set_rope(
        self,
        rope: Mapping[str, Any] | None,
        precision: str = "float32",
        context_length: int | None = None,
    ) -> None:
        """Swap the RoPE settings of the loaded model.

        Args:
            rope: complete settings; None is the checkpoint as it was loaded.
            precision: `float32` or `model`, of the rotation.
            context_length: longest sequence in tokens; None leaves it.

        Raises:
            CannotSwapError: the model has to be loaded again.
        """
        try:
            hf.apply_rope(self.model, rope, precision)
        except RopeConfigError as error:
            raise CannotSwapError(str(error)) from error
        finally:
            self._one_at_a_time()
        if context_length is not None:
            self._max_length = context_length

    def _create_model(self, pretrained: str, *args: Any, **arguments: Any) -> None:
        if self._quantization is not None:
            arguments["quantization_config"] = dict(self._quantization)
        auto_class = self.AUTO_MODEL_CLASS
        loader = partial(self._load, auto_class)
        self.AUTO_MODEL_CLASS = SimpleNamespace(from_pretrained=loader)
        try:
            super()._create_model(pretrained, *args, **arguments)
        finally:
            self.AUTO_MODEL_CLASS = auto_class

    def _load(self, auto_class: Any, path: str, **arguments: Any) -> Any:
        """Load the model; arguments that are settings of its config go there, as in transformers."""
        config = copy.deepcopy(self.config)
        for name in vars(config).keys() & arguments.keys() - _OF_LOADING:
            setattr(config, name, arguments.pop(name))
        return hf.load(
            path,
            self._rope,
            precision=self._precision,
            limit=self._limit,
            auto_class=auto_class,
            config=config,
            **arguments,
        )

    def _one_at_a_time(self) -> None:
        """Use batches of one where the rotation depends on the length: rows would change each other."""
        self.switch = switch_length(self.model.config)
        self.batch_size_per_gpu = self._asked_for if self.switch is None else 1

    def _model_call(self, inps: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        self.forget()
        return super()._model_call(inps, *args, **kwargs)

    def _model_generate(
        self, context: torch.Tensor, max_length: int, stop: list[str], **options: Any
    ) -> torch.Tensor:
        self.forget()
        if options.get("do_sample"):
            # transformers samples from the 50 most probable tokens by default, vLLM from all.
            options.setdefault("top_k", 0)
        return super()._model_generate(
            context, max_length, self.stops_while_decoding(stop), **options
        )

    def stops_while_decoding(self, stop: list[str]) -> list[str]:
        """Return the stop strings that end decoding.

        A model that thinks first writes blank lines and the like in its thoughts. With a mark for the
        end of thinking, only the end-of-sequence token ends decoding, as in lm-eval's `vllm`; the
        other stop strings cut the answer after the mark (`postprocess_generated_text` of lm-eval).
        """
        if self.think_end_token is None:
            return stop
        end_of_sequence = self.tok_decode(self.eot_token_id, skip_special_tokens=False)
        return [string for string in stop if string == end_of_sequence]

    def _after_thinking(self, row: list[int]) -> str:
        """Return the text of generated token ids after the end of thinking, empty without an end."""
        mark = self.think_end_token
        if mark is None:
            return str(self.tok_decode(row))
        if isinstance(mark, int):
            if mark not in row:
                return ""
            last = len(row) - 1 - row[::-1].index(mark)
            return str(self.tok_decode(row[last + 1 :]))
        _, end, answer = self.tok_decode(row).rpartition(mark)
        return answer if end else ""

    def autocast(self) -> torch.autocast:
        """Return a context with the precision of lm-eval's argument `mixed_precision_dtype`."""
        dtype = self.mixed_precision_dtype
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None)

    def ends_of_batch(
        self,
        output: torch.Tensor,
        context: torch.Tensor,
        max_length: int,
        stop: list[str],
        **_: Any,
    ) -> list[bool]:
        """Return for each row of `_model_generate` whether the generation limit ended it.

        The limit ended a row that has all its tokens, none that ends an answer, and no stop string;
        stop strings within the thinking do not count.
        """
        width = context.shape[1]
        ids = getattr(self.model.generation_config, "eos_token_id", None)
        ends = {*(ids if isinstance(ids, list | tuple) else [ids]), self.tokenizer.eos_token_id}
        ended_by_limit = []
        for row in output[:, width:].tolist():
            answer = self._after_thinking(row)
            has_stop = any(string and string in answer for string in stop)
            is_full = len(row) >= max_length - width
            ended_by_limit.append(is_full and not has_stop and ends.isdisjoint(row))
        return ended_by_limit

    @torch.no_grad()
    def forget(self) -> None:
        """Undo what the last request left in the model.

        Dynamic rotations keep the frequencies of the longest sequence until a short one comes;
        vision-language models keep the offset of text after images.
        """
        if self.switch is not None:
            self.model(torch.ones(1, 1, dtype=torch.long, device=self.device))
        for module in self.model.modules():
            if getattr(module, "rope_deltas", None) is not None:
                module.rope_deltas = None

    def _loglikelihood_tokens(self, requests: Any, *args: Any, **kwargs: Any) -> Any:
        """Score tokens; disable lm-eval's logits cache where equal tokens have different contexts."""
        requests = list(requests)
        cut = {((*context, *scored[:-1]), len(context)) for _, context, scored in requests}
        before: bool = self.logits_cache  # type: ignore[has-type]
        self.logits_cache = before and len({text for text, _ in cut}) == len(cut)
        try:
            return super()._loglikelihood_tokens(requests, *args, **kwargs)
        finally:
            self.logits_cache = before


def switch_length(config: Any) -> int | None:
    """Return the length beyond which a model rotates all positions again; None if it never does.

    Keys that were read at another length are wrong beyond it.
    """
    text = config.get_text_config(decoder=True)
    found = []
    for rope in rope_by_layer_type(text).values():
        lists = rope.get("short_factor"), rope.get("long_factor")  # of LongRoPE
        if "dynamic" in str(rope.get("rope_type")) or lists[0] != lists[1]:
            known = (
                rope.get(NATIVE_LENGTH_KEY),
                getattr(text, NATIVE_LENGTH_KEY, None),
                text.max_position_embeddings,
            )
            found.append(min(int(length) for length in known if length))
    return min(found, default=None)
