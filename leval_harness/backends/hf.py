"""lm-eval's transformers backend, with RoPE settings that can be swapped in the loaded model."""

import copy
import resource
import sys
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from lm_eval.models.huggingface import HFLM

from leval_harness.backends import CannotSwapError
from leval_harness.backends.answers import neutralize
from leval_harness.backends.token_counts import TokenCounts
from resonance_vllm import hf
from resonance_vllm.checkpoint.rope_dict import rope_by_layer_type
from resonance_vllm.common.errors import RopeConfigError
from resonance_vllm.common.hub import loading_errors
from resonance_vllm.core.spec import ORIGINAL_LENGTH_KEY

_LOADING_ARGUMENTS = {"dtype", "quantization_config"}
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
        if isinstance(pretrained, str):
            with loading_errors(pretrained):
                super().__init__(pretrained, device=device, **arguments)
        else:
            super().__init__(pretrained, device=device, **arguments)
            hf.apply_rope(self.model, rope_parameters, self._precision)
        self.neutralized = neutralize(self.model)
        # a task that removes the thinking itself takes `think_end_token` away while answers are made
        self._text_of_mark = self.think_end_token
        self._dropped_mark = dropped_ids(self.tokenizer, self.think_end_token)
        self.counts = TokenCounts(self.model)
        self._requested_batch_size: Any = self.batch_size_per_gpu
        self._limit_batch_size()

    def telemetry(self) -> dict[str, Any]:
        """Return the counts of tokens, the peak memory, and generation settings that were set back.

        Counts move while a forward pass runs; any thread may ask for them.

        Returns:
            `tokens_prefilled` and `tokens_generated` since `count_anew`; `peak_memory_bytes`, of the
            device's tensors on CUDA, elsewhere of the whole process; `neutralized`, the settings of
            the checkpoint's generation config that do not apply.
        """
        return {
            "tokens_prefilled": self.counts.prefilled,
            "tokens_generated": self.counts.generated,
            "peak_memory_bytes": self._peak_memory(),
            "neutralized": self.neutralized,
        }

    def get_model_info(self) -> dict[str, Any]:
        """Return what lm-eval's results file says of the model, with settings that were set back."""
        return {**super().get_model_info(), "neutralized": self.neutralized}

    def count_anew(self) -> None:
        """Set the counts of `telemetry` to zero."""
        self.counts.reset()

    def _peak_memory(self) -> int:
        """Return the peak memory in bytes: of tensors on CUDA, elsewhere of the process."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        unit = 1024
        if sys.platform == "darwin":
            unit = 1
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

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
            self._limit_batch_size()
        if context_length is not None:
            self._max_length = context_length

    def _create_model(self, pretrained: str, *args: Any, **arguments: Any) -> None:
        """Load the model as lm-eval does, but by `hf.load`, which sets and verifies its rotation.

        lm-eval calls `from_pretrained` of its attribute `AUTO_MODEL_CLASS`, which is replaced for
        the while.
        """
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
        for name in vars(config).keys() & arguments.keys() - _LOADING_ARGUMENTS:
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

    def _limit_batch_size(self) -> None:
        """Use batches of one where the rotation depends on the length: rows would change each other."""
        self.switch = switch_length(self.model.config)
        self.batch_size_per_gpu = 1
        if self.switch is None:
            self.batch_size_per_gpu = self._requested_batch_size

    def _model_call(self, inps: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the logits of one forward pass, `[batch, length, vocabulary]`, and count its tokens."""
        self.forget_last_request()
        with self.counts.prefilling(inps.numel()):
            return super()._model_call(inps, *args, **kwargs)

    def _model_generate(
        self, context: torch.Tensor, max_length: int, stop: list[str], **options: Any
    ) -> torch.Tensor:
        """Generate answers to a batch of prompts as lm-eval does, and count prompt and new tokens.

        Args:
            context: token ids of the prompts, `[rows, width]`, padded on the left.
            max_length: most tokens of a prompt with its answer, padding included.
            stop: strings that end an answer.
            **options: of `generate`, with the `attention_mask` of the prompts.

        Returns:
            Token ids `[rows, length]`: the prompts, then the answers.
        """
        self.forget_last_request()
        if options.get("do_sample"):
            # transformers samples from the 50 most probable tokens by default, vLLM from all.
            options.setdefault("top_k", 0)
        rows, width = context.shape
        prompt_tokens = int(options["attention_mask"].sum())
        generated_before = self.counts.generated
        # This shows progress while the batch runs, but counts a row until the longest answer ends.
        with self.counts.generating(rows, prompt_tokens):
            output: torch.Tensor = super()._model_generate(
                context, max_length, self.stops_while_decoding(stop), **options
            )
        self.counts.generated = generated_before + self._new_tokens(output, width)
        return output

    def _new_tokens(self, output: torch.Tensor, width: int) -> int:
        """Return the generated tokens of a batch, without padding.

        Args:
            output: token ids `[rows, length]`, prompts and answers.
            width: of the prompts.
        """
        return int((output[:, width:] != self.tokenizer.pad_token_id).sum())

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

    def tok_decode(self, tokens: Any, skip_special_tokens: bool = True) -> str:
        """Return the text of token ids, in which a mark that ends the thinking is always visible.

        A mark of special tokens would be dropped with them, and the thinking stay in the answer.
        """
        if not self._dropped_mark or not skip_special_tokens or isinstance(tokens, int):
            return str(super().tok_decode(tokens, skip_special_tokens=skip_special_tokens))
        mark = self._dropped_mark
        ids = [int(token) for token in tokens]
        for start in reversed(range(len(ids) - len(mark) + 1)):
            if ids[start : start + len(mark)] == mark:
                before = super().tok_decode(ids[:start])
                after = super().tok_decode(ids[start + len(mark) :])
                return f"{before}{self._text_of_mark}{after}"
        return str(super().tok_decode(tokens))

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
    def forget_last_request(self) -> None:
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
        """Score tokens; disable lm-eval's logits cache where equal tokens have different contexts.

        The cache's key is the tokens that the model reads. It would answer a request from the logits
        of another that is cut elsewhere.
        """
        requests = list(requests)
        read = set()
        read_and_cut = set()
        for _, context, scored in requests:
            tokens = (*context, *scored[:-1])
            read.add(tokens)
            read_and_cut.add((tokens, len(context)))
        before: bool = self.logits_cache  # type: ignore[has-type]
        self.logits_cache = before and len(read) == len(read_and_cut)
        try:
            return super()._loglikelihood_tokens(requests, *args, **kwargs)
        finally:
            self.logits_cache = before


def dropped_ids(tokenizer: Any, mark: Any) -> list[int]:
    """Return the token ids of a text that decoding drops in part or whole; else an empty list.

    Args:
        tokenizer: of transformers.
        mark: the text; anything else, such as a token id, has no such ids.
    """
    if not isinstance(mark, str) or not mark:
        return []
    ids = list(tokenizer(mark, add_special_tokens=False)["input_ids"])
    kept = tokenizer.decode(ids, skip_special_tokens=True)
    return [] if kept == tokenizer.decode(ids, skip_special_tokens=False) else ids


def switch_length(config: Any) -> int | None:
    """Return the length beyond which a model rotates all positions again; None if it never does.

    Keys that were computed at another length are wrong beyond it.
    """
    text = config.get_text_config(decoder=True)
    switch_lengths = []
    for rope in rope_by_layer_type(text).values():
        is_dynamic = "dynamic" in str(rope.get("rope_type"))
        # LongRoPE divides frequencies by one list up to the native length, by the other beyond.
        has_two_lists = rope.get("short_factor") != rope.get("long_factor")
        if is_dynamic or has_two_lists:
            known = (
                rope.get(ORIGINAL_LENGTH_KEY),
                getattr(text, ORIGINAL_LENGTH_KEY, None),
                text.max_position_embeddings,
            )
            switch_lengths.append(min(int(length) for length in known if length))
    return min(switch_lengths, default=None)
