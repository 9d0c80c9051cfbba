"""lm-eval's transformers backend, which reads every shared text once."""

import logging
import resource
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cached_property
from itertools import chain
from typing import Any

import torch
from lm_eval.models.utils import normalize_gen_kwargs
from tqdm import tqdm
from transformers import StoppingCriteriaList

from leval_harness.backends.answers import SAMPLING, StopStrings, must_run_alone
from leval_harness.backends.documents import batches, sized
from leval_harness.backends.forward import Head, Passage
from leval_harness.backends.hf import HF
from leval_harness.backends.reading import CHUNK, Reader, Reuse, find_reuse, scored
from leval_tasks.common.token_logprobs import TokenScoring, score_by_own_sums
from resonance_vllm.common.errors import RunError, error_message

logger = logging.getLogger(__name__)


class HFLong(HF):
    """lm-eval's `hf` with shared documents; every argument of `hf` is accepted.

    It can read `max_length` positions, as `hf` can: a prompt and what is generated after it
    together, or the tokens of a log-likelihood. Longer ones are cut on the left.

    Args:
        pretrained: As for `hf`.
        prefill_chunk: Largest number of tokens in one forward pass. None: 2,048 of a text that
            several requests share, and a text that shares nothing in one pass.
        question_batch_size: Largest number of questions of one document answered together.
        arguments: Those of `HF` and of `from_pretrained`.
    """

    token_scoring = TokenScoring(score=score_by_own_sums)

    def __init__(
        self,
        pretrained: Any,
        *,
        prefill_chunk: int | None = None,
        question_batch_size: int = 64,
        **arguments: Any,
    ) -> None:
        super().__init__(pretrained, **arguments)
        self.prefill_chunk = prefill_chunk
        self.question_batch_size = question_batch_size
        self.chunk = prefill_chunk or CHUNK
        with torch.no_grad(), self.autocast():
            self.head = Head(self.model)
        self.tokens_generated = 0
        self._reasons: set[str] = set()  # for which requests ran alone
        self._shared: Reader | None = None  # has read what the prompts of now begin with

    @cached_property
    def reuse(self) -> Reuse:
        """Return how this model shares documents; found by a self-check on first use."""
        with self.autocast():
            return find_reuse(self.head)

    def set_rope(self, rope: Mapping[str, Any] | None, *others: Any, **more: Any) -> None:
        """Swap RoPE settings as `HF.set_rope` does, and repeat the self-check."""
        self.__dict__.pop("reuse", None)
        super().set_rope(rope, *others, **more)

    def telemetry(self) -> dict[str, Any]:
        """Return the counts of tokens, the peak memory, and generation settings that were set back.

        Returns:
            `tokens_prefilled` and `tokens_generated` since `count_anew`; `peak_memory_bytes`, of the
            device's tensors on CUDA, elsewhere of the whole process; `neutralized`, the settings of
            the checkpoint's generation config that do not apply.
        """
        unit = 1 if sys.platform == "darwin" else 1024
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        if self.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self.device)
        return {
            "tokens_prefilled": self.head.tokens_read,
            "tokens_generated": self.tokens_generated,
            "peak_memory_bytes": peak,
            "neutralized": self.neutralized,
        }

    def count_anew(self) -> None:
        """Set the counts of `telemetry` to zero."""
        self.head.tokens_read = self.tokens_generated = 0

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Return greedy answers, the questions of a document together."""
        read = dict(enumerate(map(self._prompt, requests)))
        together = {place: prompt for place, (prompt, shares) in read.items() if shares}
        alone = [place for place in read if place not in together]
        answers: dict[int, str] = {}
        # Closed at once where the cache raises: what runs a model is switched back.
        with (
            self._running(len(requests), "Answering", disable_tqdm) as bar,
            closing(self._portions(together)) as portions,
        ):
            for places in filter(None, chain(portions, [alone])):
                found = super().generate_until([requests[place] for place in places], True)
                answers.update(zip(places, found, strict=True))
                bar.update(len(places))
        return [answers[place] for place in range(len(requests))]

    def _portions(self, prompts: Mapping[int, list[int]]) -> Generator[list[int], None, None]:
        """Read what prompts share; yield the places of those that go on from what was read last."""
        if not prompts:
            return
        places = list(prompts)
        documents = list(prompts.values())
        reader = Reader(self.head, self.reuse.mode, self.chunk)
        # A cache that is copied holds one row. Options that look at earlier tokens, for which padding
        # would count, do not come here: `must_run_alone` sorts them out.
        most = 1 if reader.copied else self.question_batch_size
        before = self.batch_size_per_gpu
        self._shared = reader
        self.batch_size_per_gpu = most
        try:
            for prefix, asked in batches(documents, [len(text) - 1 for text in documents]):
                reader.read(prefix)
                reader.keep()
                widths = {row: len(documents[row]) - len(prefix) for row in asked}
                for rows in sized(widths, most, self.chunk):
                    # A long own part is read in chunks, too; it is that of a batch of one.
                    is_long = widths[rows[-1]] > self.chunk
                    reader.read(documents[rows[0]][:-1] if is_long else prefix)
                    yield [places[row] for row in rows]
        finally:
            self._shared = None
            self.batch_size_per_gpu = before

    def _prompt(self, request: Any) -> tuple[list[int], bool]:
        """Return the token ids of a request, cut as by `hf`, and whether it can share a document.

        The first that cannot is logged for each reason.
        """
        context, given = request.args
        options = normalize_gen_kwargs(given, self.max_gen_toks)
        new = options["max_gen_toks"]
        cut = {"left_truncate_len": self.max_length - new, "truncation": self.truncation}
        prompt: list[int] = self.tok_batch_encode([context], **cut)[0][0].tolist()
        too_long = self._too_long(len(prompt) + new)
        reason = too_long or must_run_alone(options) if prompt else "empty prompt"
        if reason and reason not in self._reasons:
            logger.warning("requests that share no text: %s", reason)
            self._reasons.add(reason)
        return prompt, not reason

    def _too_long(self, length: int) -> str:
        """Return why a sequence of this length cannot share a document; empty if it can."""
        if self.reuse.mode == "none":
            return self.reuse.reason
        if self.switch is not None and length > self.switch:
            return f"longer than {self.switch} tokens, where the RoPE base changes"
        return ""

    def _model_generate(
        self, context: torch.Tensor, max_length: int, stop: list[str], **options: Any
    ) -> torch.Tensor:
        """Return token ids `[rows, length]`: the prompts, padded on the left, and new tokens."""
        mask = options["attention_mask"]
        width = context.shape[1]
        pad = self.tokenizer.pad_token_id
        if self._shared is None:
            self.head.tokens_read += int(mask.sum())
            made: torch.Tensor = super()._model_generate(context, max_length, stop, **options)
        else:
            del options["attention_mask"]
            rows = [row[seen.bool()].tolist() for row, seen in zip(context, mask, strict=True)]
            while_decoding = self.stops_while_decoding(stop)
            stops = StopStrings(self.tokenizer, while_decoding, width, len(rows))
            more = {k: v for k, v in options.items() if k not in SAMPLING}
            more |= {"stopping_criteria": StoppingCriteriaList([stops]), "do_sample": False}
            found = self._shared.generate(rows, pad, max_length - width, **more)
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
        with closing(self._scored(passages, disable_tqdm)) as finished:
            for passage in finished:
                if passage.key is not None:
                    self.cache_hook.add_partial("loglikelihood", passage.key, passage.answer)
        return [passage.answer for passage in passages]

    def teacher_forced(
        self, requests: Iterable[Any], disable_tqdm: bool = False
    ) -> list[tuple[list[bool], list[float]]]:
        """Return correctness and log-probability of every token but the first, given those before.

        Requests are lm-eval instances with arguments `(token_ids,)`.

        Returns:
            `(correct, logprob)` for each request, each of `len(token_ids) - 1` items for positions
            1, 2, …; log-probabilities are natural and computed in float32.
        """
        asked = [request.args[0] for request in requests]
        passages = [Passage(tokens[:1], tokens[1:], self.max_length) for tokens in asked]
        list(self._scored(passages, disable_tqdm))
        return [(each.correct.tolist(), each.logprob.tolist()) for each in passages]

    def _scored(
        self, passages: Sequence[Passage], disable_tqdm: bool
    ) -> Generator[Passage, None, None]:
        """Score passages, and yield each as it is finished; those that run alone come last."""
        alone = [each for each in passages if self._too_long(len(each.inputs))]
        together = [each for each in passages if not self._too_long(len(each.inputs))]
        with self._running(len(passages), "Reading", disable_tqdm) as bar:
            if together:
                reader = Reader(self.head, self.reuse.mode, self.chunk)
                for passage in scored(self.head, reader, together, self.prefill_chunk):
                    yield passage
                    bar.update()
            for passage in alone:
                self.forget()
                passage.score_alone(self.head)
                yield passage
                bar.update()

    @contextmanager
    def _running(self, total: int, title: str, disable_tqdm: bool) -> Iterator[Any]:
        """Answer requests with progress, from the state in which the model was loaded."""
        from accelerate.utils.memory import should_reduce_batch_size

        self.forget()
        hidden = disable_tqdm or self.rank != 0
        try:
            with (
                torch.no_grad(),
                self.autocast(),
                tqdm(total=total, desc=title, disable=hidden) as bar,
            ):
                yield bar
        except (RuntimeError, MemoryError) as error:
            if not isinstance(error, MemoryError) and not should_reduce_batch_size(error):
                raise
            raise RunError(
                f"{error_message(error)}; set a smaller prefill_chunk (now {self.chunk}), "
                f"question_batch_size (now {self.question_batch_size}), batch_size (now "
                f"{self.batch_size}) or max_length"
            ) from error
