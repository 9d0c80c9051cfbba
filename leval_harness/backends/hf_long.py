"""lm-eval's transformers backend, which reads every shared text once."""

import logging
import resource
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cached_property
from typing import Any

import torch
from lm_eval.models.utils import normalize_gen_kwargs
from tqdm import tqdm
from transformers import StoppingCriteriaList

from leval_harness.backends.answers import StopStrings, greedy, looks_back, must_run_alone
from leval_harness.backends.documents import batches, sized
from leval_harness.backends.forward import Head
from leval_harness.backends.hf import HF
from leval_harness.backends.passages import Passage, scored
from leval_harness.backends.reading import CHUNK, Reader, Reuse, find_reuse
from resonance_vllm.errors import RunError, SettingError, not_allowed

logger = logging.getLogger(__name__)

_BATCH_TOKENS = 1024
"""Own tokens of a batch may be this many whatever the chunk is."""


class HFLong(HF):
    """lm-eval's `hf` with shared texts; every argument of `hf` is accepted.

    It can read `max_length` positions, as `hf` can: a prompt and what is generated after it
    together, or the tokens of a log-likelihood. Longer ones are cut on the left.

    Args:
        pretrained: As for `hf`.
        prefill_chunk: Largest number of tokens in one forward pass. None: 2,048 of a text that
            several requests share, and a text that shares nothing in one pass.
        question_batch_size: Largest number of questions of one document answered together.
        arguments: Those of `HF` and of `from_pretrained`.
    """

    def __init__(
        self,
        pretrained: Any,
        *,
        prefill_chunk: int | None = None,
        question_batch_size: int = 64,
        **arguments: Any,
    ) -> None:
        super().__init__(pretrained, **arguments)
        self.prefill_chunk, self.question_batch_size = prefill_chunk, question_batch_size
        self.chunk = prefill_chunk or CHUNK
        self.tokens_generated = 0
        self._reasons: set[str] = set()  # for which requests ran alone
        self._shared: Reader | None = None  # has read what the prompts of now begin with

    @cached_property
    def reuse(self) -> Reuse:
        """How this model shares texts; found on first use."""
        with self._autocast():
            return find_reuse(self.head)

    @cached_property
    def head(self) -> Head:
        """Hidden states and logits of the model; made on first use."""
        with self._autocast():
            return Head(self.model)

    def set_rope(
        self, rope: Mapping[str, Any] | None, precision: str, context_length: int | None
    ) -> None:
        """As `registry.set_rope`. How the model shares texts is found anew."""
        self.__dict__.pop("reuse", None)
        super().set_rope(rope, precision, context_length)

    def telemetry(self) -> dict[str, Any]:
        """Tokens of prompts that were computed, tokens generated, peak memory."""
        return {
            "tokens_prefilled": self.head.tokens_read,
            "tokens_generated": self.tokens_generated,
            "peak_memory_bytes": peak_memory_bytes(self.device),
        }

    def count_anew(self) -> None:
        """Set the counts of `telemetry` to zero."""
        self.head.tokens_read = self.tokens_generated = 0

    def get_model_info(self) -> dict[str, Any]:
        """What lm-eval writes into the results."""
        used = getattr(self.model, "rope_precision_used", "model")
        own = {"hf_long": self.telemetry(), "rope_precision_used": used}
        return {**super().get_model_info(), **own}

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Greedy answers, the questions of a document together."""
        prompts = [self._prompt(request) for request in requests]
        together = [
            place
            for place, (prompt, request) in enumerate(zip(prompts, requests, strict=True))
            if not self._alone(prompt, normalize_gen_kwargs(request.args[1], self.max_gen_toks))
        ]
        answers: dict[int, str] = {}
        with self._running(len(requests), "Answering", disable_tqdm) as bar:

            def answer(places: Sequence[int]) -> None:
                asked = [requests[place] for place in places]
                found = super(HFLong, self).generate_until(asked, True) if asked else []
                answers.update(zip(places, found, strict=True))
                bar.update(len(places))

            if together:
                self._answer_together([prompts[place] for place in together], together, answer)
            answer(sorted(set(range(len(requests))) - answers.keys()))
        return [answers[place] for place in range(len(requests))]

    def _answer_together(
        self, texts: list[list[int]], places: list[int], answer: Callable[[Sequence[int]], None]
    ) -> None:
        """Read what prompts share, and let lm-eval's `generate_until` answer those that go on.

        `answer` takes the `places` of prompts whose token ids are `texts`.
        """
        reader = self._reader()
        # Padding would change answers that depend on earlier tokens.
        apart = reader.copied or looks_back(self.model.generation_config)
        most = 1 if apart else self.question_batch_size
        tokens = max(self.chunk, _BATCH_TOKENS)
        before = self.batch_size_per_gpu
        self._shared, self.batch_size_per_gpu = reader, most
        try:
            for batch in batches(texts, [len(text) - 1 for text in texts]):
                reader.read(batch.prefix)
                reader.keep()
                widths = {row: len(texts[row]) - len(batch.prefix) for row in batch.rows}
                for rows in sized(widths, most, tokens):
                    # A long own part is read in chunks, too; it is that of a batch of one.
                    is_long = widths[rows[-1]] > tokens
                    reader.read(texts[rows[0]][:-1] if is_long else batch.prefix)
                    answer([places[row] for row in rows])
        finally:
            self._shared, self.batch_size_per_gpu = None, before

    def _prompt(self, request: Any) -> list[int]:
        """The token ids of a request, cut as `hf` cuts them."""
        context, given = request.args
        limit = int(normalize_gen_kwargs(given, self.max_gen_toks)["max_gen_toks"])
        room = self.max_length - limit
        if room <= 0:
            allowed = f"less than max_length={self.max_length}, which leaves room for a prompt"
            raise SettingError(not_allowed("max_gen_toks", limit, allowed))
        cut = {"left_truncate_len": room, "truncation": self.truncation}
        tokens: list[int] = self.tok_batch_encode([context], **cut)[0][0].tolist()
        return tokens

    def _alone(self, prompt: list[int], options: Mapping[str, Any]) -> bool:
        """Whether a prompt cannot share a text; the first for each reason is logged."""
        too_long = self._too_long(len(prompt) + options["max_gen_toks"])
        reason = too_long or must_run_alone(options) if prompt else "empty prompt"
        if reason and reason not in self._reasons:
            logger.warning("requests that share no text: %s", reason)
            self._reasons.add(reason)
        return bool(reason)

    def _too_long(self, length: int) -> str:
        """Why a sequence of this length cannot share a text; empty if it can."""
        if self.reuse.mode == "none":
            return self.reuse.reason
        if self.switch is not None and length > self.switch:
            return f"longer than {self.switch} tokens, where the RoPE base changes"
        return ""

    def _model_generate(
        self, context: torch.Tensor, max_length: int, stop: list[str], **options: Any
    ) -> torch.Tensor:
        """Token ids `[rows, length]`: the prompts, padded on the left, and new tokens."""
        mask, width, pad = options["attention_mask"], context.shape[1], self.tokenizer.pad_token_id
        if self._shared is None:
            self.head.tokens_read += int(mask.sum())
            made: torch.Tensor = super()._model_generate(context, max_length, stop, **options)
        else:
            del options["attention_mask"]
            rows = [row[seen.bool()].tolist() for row, seen in zip(context, mask, strict=True)]
            criteria = StoppingCriteriaList([StopStrings(self.tokenizer, stop, width)])
            new = max_length - width
            more = {"stopping_criteria": criteria, **greedy(options)}
            found = self._shared.generate(rows, pad, new, **more)
            made = torch.cat([context, found[:, width:].to(context)], dim=1)
        self.tokens_generated += int((made[:, width:] != pad).sum())
        return made

    def _loglikelihood_tokens(
        self, requests: Iterable[Any], disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[tuple[float, bool]]:
        """Sum of log-probabilities of given tokens, and whether greedy decoding would give them.

        A request unpacks to (cache key or None, context ids, scored ids).
        """
        passages = [Passage(context, ids, self.max_length, key) for key, context, ids in requests]
        # Closed at once where the cache raises: what runs a model is switched back.
        with closing(self._scored(passages, disable_tqdm, share=True)) as finished:
            for passage in finished:
                if passage.key is not None:
                    self.cache_hook.add_partial("loglikelihood", passage.key, passage.answer)
        return [passage.answer for passage in passages]

    def teacher_forced(
        self, requests: Iterable[Any], disable_tqdm: bool = False
    ) -> list[tuple[list[bool], list[float]]]:
        """Correctness and log-probability of every token but the first, given those before it.

        Requests are lm-eval instances with arguments `(token_ids,)`, or such tuples.

        Returns:
            `(correct, logprob)` for each request, each of `len(token_ids) - 1` items for positions
            1, 2, …; log-probabilities are natural and computed in float32.
        """
        asked = [getattr(request, "args", request)[0] for request in requests]
        passages = [Passage(tokens[:1], tokens[1:], self.max_length) for tokens in asked]
        list(self._scored(passages, disable_tqdm, share=False))
        return [(each.correct.tolist(), each.logprob.tolist()) for each in passages]

    def _scored(
        self, passages: Sequence[Passage], disable_tqdm: bool, *, share: bool
    ) -> Generator[Passage, None, None]:
        """Score passages, and yield each as it is finished; those that run alone come last."""
        alone = [each for each in passages if self._too_long(len(each.inputs))]
        together = [each for each in passages if not self._too_long(len(each.inputs))]
        with self._running(len(passages), "Reading", disable_tqdm) as bar:
            reader = self._reader() if share and self.reuse.mode != "none" else None
            for passage in scored(self.head, reader, together, self.prefill_chunk):
                yield passage
                bar.update()
            for passage in alone:
                self.forget()
                yield from scored(self.head, None, [passage], None)
                bar.update()

    def _reader(self) -> Reader:
        return Reader(self.head, self.reuse.mode, self.chunk)

    def _autocast(self) -> torch.autocast:
        dtype = self.mixed_precision_dtype
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None)

    @contextmanager
    def _running(self, total: int, title: str, disable_tqdm: bool) -> Iterator[Any]:
        """Answer requests with progress, from the state in which the model was loaded."""
        from accelerate.utils.memory import should_reduce_batch_size

        self.forget()
        hidden = disable_tqdm or self.rank != 0
        try:
            with (
                torch.no_grad(),
                self._autocast(),
                tqdm(total=total, desc=title, disable=hidden) as bar,
            ):
                yield bar
        except (RuntimeError, MemoryError) as error:
            known = isinstance(error, MemoryError | torch.OutOfMemoryError)
            if not known and not should_reduce_batch_size(error):
                raise
            first = str(error).partition("\n")[0][:200]
            raise RunError(
                f"out of memory: {first}; set a smaller prefill_chunk (now "
                f"{self.prefill_chunk or f'{CHUNK}, and whole texts that share nothing'}) "
                f"or question_batch_size (now {self.question_batch_size}), a smaller "
                f"batch_size (now {self.batch_size}) or max_length"
            ) from error


def peak_memory_bytes(device: torch.device) -> int:
    """The peak of the device's tensors on CUDA, elsewhere that of the whole process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)
