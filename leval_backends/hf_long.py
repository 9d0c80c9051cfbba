"""lm-eval's transformers backend, reading every shared text once."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import (
    handle_stop_sequences,
    normalize_gen_kwargs,
    postprocess_generated_text,
)
from tqdm import tqdm

from leval_backends import parallel, precision, reuse
from leval_backends.generate import Decoder, Question
from leval_backends.head import Head, Scores
from leval_backends.loglikelihood import Passage, Scorer
from leval_backends.options import must_run_alone
from leval_backends.reader import Counters

logger = logging.getLogger(__name__)

_GIB = 1 << 30


class HFLong(HFLM):
    """lm-eval's `hf` with shared prefixes; every argument of `hf` is accepted.

    Args:
        pretrained: As for `hf`.
        device: As for `hf`; without it CUDA if there is one, else the CPU.
        share_prefix: False asks every request by itself, for comparison.
        share_attention: False keeps the model's own attention function over copies of the prefix.
        prefill_chunk: Tokens in one forward pass over a shared prefix at most.
        question_batch_size: Questions of one document decoded together at most.
        kv_cache_gib: Bound on the key/value caches held at once, in GiB; a batch is made smaller
            until it fits.
        rope_precision: `float32` rotates queries and keys in float32 whatever the model's dtype,
            `model` in the model's own; None leaves the model as transformers loads it.
        kwargs: Arguments of `hf`.

    Raises:
        ValueError: An own argument is out of range.
    """

    library = "transformers"
    reads_once = True

    def __init__(
        self,
        pretrained: Any,
        *,
        device: str | None = None,
        share_prefix: bool = True,
        share_attention: bool = True,
        prefill_chunk: int = 2048,
        question_batch_size: int = 64,
        kv_cache_gib: float = 4.0,
        rope_precision: str | None = None,
        **kwargs: Any,
    ) -> None:
        for name, value in (
            ("prefill_chunk", prefill_chunk),
            ("question_batch_size", question_batch_size),
            ("kv_cache_gib", kv_cache_gib),
        ):
            if value <= 0:
                raise ValueError(f"{name}={value} must be greater than 0")
        precision.prepare(rope_precision)
        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        super().__init__(pretrained, device=device, **kwargs)
        precision.apply(self.model, rope_precision)
        if self.world_size == 1 and hasattr(self, "accelerator"):
            # lm-eval sets these on several GPUs only; processes on CPUs divide the work as well.
            self._rank = self.accelerator.process_index
            self._world_size = self.accelerator.num_processes
        self.chunk = int(prefill_chunk)
        self.max_rows = int(question_batch_size)
        self.budget_bytes = int(kv_cache_gib * _GIB)
        self.share_attention = share_attention
        self.counters = Counters()
        self._head: Head | None = None
        self._reuse: reuse.Reuse | None = None
        if not share_prefix:
            self._reuse = reuse.Reuse("none", "switched off")

    @property
    def reuse(self) -> reuse.Reuse:
        """How this model's prefixes are shared; found on first use."""
        if self._reuse is None:
            with self._autocast():
                self._reuse = reuse.examine(self.model, share_attention=self.share_attention)
            if self._reuse.mode == "none":
                logger.warning("no prefix is shared: %s", self._reuse.reason)
        return self._reuse

    @property
    def head(self) -> Head:
        """The model's last layer."""
        if self._head is None:
            with self._autocast():
                self._head = Head(self.model)
        return self._head

    @contextmanager
    def _autocast(self) -> Iterator[None]:
        kind = self.device.type
        wanted = self.mixed_precision_dtype
        with torch.autocast(kind, dtype=wanted, enabled=wanted is not None):
            yield

    def telemetry(self) -> dict[str, Any]:
        """Tokens prefilled, shared, generated, unique; seconds; peak memory; failures by name."""
        return self.counters.telemetry(self.device)

    def get_model_info(self) -> dict[str, Any]:
        """What lm-eval writes into the results, with this backend's telemetry."""
        return {**super().get_model_info(), "hf_long": self.telemetry()}

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Greedy answers, the questions of a document together.

        Args:
            requests: lm-eval instances whose arguments are (prompt, generation options).
            disable_tqdm: No progress bar.

        Returns:
            One text a request, in their order; "" for a request that memory did not suffice for
            (named in the log and in `telemetry`).
        """
        if self.world_size == 1:
            return self._answer(requests, disable_tqdm)
        asked = [_Request(request.args, _name(request, i)) for i, request in enumerate(requests)]
        return parallel.exchange(
            asked,
            [request.args[0] for request in requests],
            self.rank,
            lambda share: self._answer(share, disable_tqdm),
        )

    def _answer(self, requests: Sequence[Any], disable_tqdm: bool) -> list[str]:
        answers: list[str] = [""] * len(requests)
        questions: dict[int, Question] = {}
        alone: list[int] = []
        for index, request in enumerate(requests):
            question, reason = self._question(request, index)
            if reason:
                alone.append(index)
                self._count_alone(reason)
            else:
                questions[index] = question
        order = list(questions)

        def done(place: int, tokens: list[int] | None) -> None:
            index = order[place]
            if tokens is not None:
                answers[index] = self._text(tokens, questions[index].until)
                self.cache_hook.add_partial("generate_until", requests[index].args, answers[index])

        with self.counters.timed():
            if questions:
                with self._bar("Reading and answering", disable_tqdm) as (expect, progress):
                    decoder = Decoder(
                        self.model,
                        self.tokenizer,
                        self.reuse,
                        self.counters,
                        budget_bytes=self.budget_bytes,
                        max_rows=self.max_rows,
                        chunk=self.chunk,
                        progress=progress,
                        expect=expect,
                    )
                    with self._autocast():
                        decoder.answer([questions[index] for index in order], done)
            if alone:
                texts = super().generate_until([requests[i] for i in alone], disable_tqdm)
                for index, text in zip(alone, texts, strict=True):
                    answers[index] = text
        return answers

    def _question(self, request: Any, index: int) -> tuple[Question, str]:
        """A request made ready, and why it must run alone, if it must."""
        context, given = request.args
        options = dict(normalize_gen_kwargs(given, self.max_gen_toks))
        eos = self.tok_decode(self.eot_token_id, skip_special_tokens=False)
        until = handle_stop_sequences(options.pop("until", None), eos=eos)
        budget = int(options.pop("max_gen_toks"))
        room = self.max_length - budget
        if room <= 0:
            raise ValueError(
                f"max_gen_toks={budget} leaves no room for a prompt in {self.max_length} tokens; "
                "lower it or raise max_length"
            )
        ids, _ = self.tok_batch_encode(
            [context], left_truncate_len=room, truncation=self.truncation
        )
        tokens = ids[0].tolist()
        question = Question(_name(request, index), tokens, tuple(until), budget, options)
        reason = self._reason(len(tokens) + budget) or must_run_alone(options)
        if not tokens:
            reason = "empty prompt"
        return question, reason

    def _reason(self, length: int) -> str:
        """Why a sequence of this length cannot use a shared prefix; empty if it can."""
        if self.reuse.mode == "none":
            return self.reuse.reason
        if self.reuse.max_length is not None and length > self.reuse.max_length:
            return f"longer than {self.reuse.max_length} tokens, where the RoPE base changes"
        return ""

    def _count_alone(self, reason: str) -> None:
        if reason not in self.counters.requests_alone:
            logger.warning("requests that share no prefix: %s", reason)
            self.counters.requests_alone[reason] = 0
        self.counters.requests_alone[reason] += 1

    def _text(self, tokens: list[int], until: Sequence[str]) -> str:
        """New tokens as the text that lm-eval's `hf` returns."""
        think = self.think_end_token
        if isinstance(think, int) and think in tokens:
            tokens = tokens[len(tokens) - tokens[::-1].index(think) :]
        text = self.tok_decode(tokens)
        return postprocess_generated_text(
            generation=text.lstrip() if isinstance(think, int) else text,
            stop=list(until),
            think_end_token=think if isinstance(think, str) else None,
        )

    def _loglikelihood_tokens(
        self,
        requests: Iterable[Any],
        disable_tqdm: bool = False,
        override_bs: int | None = None,
    ) -> list[tuple[float, bool]]:
        """Sum of log-probabilities of given tokens, and whether greedy decoding would give them.

        Args:
            requests: Each unpacks to (cache key or None, context ids, scored ids).
            disable_tqdm: No progress bar.
            override_bs: Ignored: batches follow from lengths and shared prefixes.

        Returns:
            (sum in nats, all correct) a request; (nan, False) where memory did not suffice. The
            softmax and the sum are float32 or wider whatever the model's dtype.
        """
        asked = [
            (*tuple(request)[:3], _name(request, index)) for index, request in enumerate(requests)
        ]
        if self.world_size == 1:
            return self._likelihoods(asked, disable_tqdm)
        return parallel.exchange(
            asked,
            [[*context, *scored] for _, context, scored, _ in asked],
            self.rank,
            lambda share: self._likelihoods(share, disable_tqdm),
        )

    def _likelihoods(
        self, asked: list[tuple[Any, list[int], list[int], str]], disable_tqdm: bool
    ) -> list[tuple[float, bool]]:
        keys = [key for key, _, _, _ in asked]
        passages = [
            self._passage(list(context), list(scored), name) for _, context, scored, name in asked
        ]
        results: list[tuple[float, bool]] = [(float("nan"), False)] * len(asked)

        def done(index: int, scores: Scores | None) -> None:
            if scores is None:
                return
            total = float(scores.logprob.double().sum())
            results[index] = (total, bool(scores.correct.all()))
            if keys[index] is not None:
                self.cache_hook.add_partial("loglikelihood", keys[index], results[index])

        self._score(passages, done, disable_tqdm, share=True)
        return results

    def _passage(self, context: list[int], scored: list[int], name: str) -> Passage:
        if not context or not scored:
            what = "context" if not context else "scored part"
            raise ValueError(f"request {name}: the {what} has no tokens; it needs at least one")
        if len(scored) > self.max_length:
            raise ValueError(
                f"request {name}: {len(scored)} scored tokens do not fit max_length="
                f"{self.max_length}; raise max_length or score fewer tokens at a time"
            )
        whole = context + scored
        cut = len(whole) - (self.max_length + 1)
        if cut > 0:
            logger.warning("request %s: %d tokens cut from the left", name, cut)
            whole = whole[cut:]
        return Passage(name, whole[:-1], scored)

    def teacher_forced(
        self, requests: Iterable[Any], disable_tqdm: bool = False
    ) -> list[tuple[list[bool], list[float]]]:
        """Correctness and log-probability of every token but the first, given those before it.

        Args:
            requests: lm-eval instances with arguments `(token_ids,)`, or such tuples.
            disable_tqdm: No progress bar.

        Returns:
            `(correct, logprob)` a request, each of `len(token_ids) - 1` items for positions
            1, 2, …; log-probabilities are natural and computed in float32. Empty lists where
            memory did not suffice.
        """
        requests = list(requests)
        passages = []
        for index, request in enumerate(requests):
            (tokens,) = getattr(request, "args", request)
            tokens = list(tokens)
            if not 2 <= len(tokens) <= self.max_length + 1:
                raise ValueError(
                    f"request {_name(request, index)}: {len(tokens)} tokens; a sequence needs 2 "
                    f"to max_length + 1 = {self.max_length + 1}"
                )
            passages.append(Passage(_name(request, index), tokens[:-1], tokens[1:]))
        results: list[tuple[list[bool], list[float]]] = [([], []) for _ in passages]

        def done(index: int, scores: Scores | None) -> None:
            if scores is not None:
                results[index] = (scores.correct.tolist(), scores.logprob.tolist())

        self._score(passages, done, disable_tqdm, share=False)
        return results

    def _score(
        self,
        passages: list[Passage],
        done: Callable[[int, Scores | None], None],
        disable_tqdm: bool,
        *,
        share: bool,
    ) -> None:
        sharing = [i for i, p in enumerate(passages) if share and not self._reason(len(p.inputs))]
        chosen = set(sharing)
        alone = [index for index in range(len(passages)) if index not in chosen]
        with (
            self.counters.timed(),
            self._autocast(),
            self._bar("Reading", disable_tqdm) as (expect, progress),
        ):
            scorer = Scorer(
                self.head,
                self.reuse,
                self.counters,
                budget_bytes=self.budget_bytes,
                max_rows=self.max_rows,
                batch_size=self.batch_size if isinstance(self.batch_size, int) else 1,
                chunk=self.chunk,
                progress=progress,
                expect=expect,
            )
            for order, run in ((sharing, scorer.score), (alone, scorer.score_alone)):
                if order:
                    run(
                        [passages[index] for index in order],
                        lambda place, scores, order=order: done(order[place], scores),
                    )

    @contextmanager
    def _bar(
        self, title: str, disable: bool
    ) -> Iterator[tuple[Callable[[int], object], Callable[[int], object]]]:
        """A progress bar in tokens: what to expect, and what is done."""
        with tqdm(
            total=0, desc=title, unit="tok", unit_scale=True, disable=disable or self.rank != 0
        ) as bar:

            def expect(tokens: int) -> None:
                bar.total = (bar.total or 0) + tokens
                bar.refresh()

            yield expect, bar.update


@dataclass(frozen=True)
class _Request:
    """A request on its way between processes."""

    args: tuple[Any, ...]
    name: str


def _name(request: Any, index: int) -> str:
    """How a request is called in messages: task, document and number, else its place."""
    if isinstance(request, _Request):
        return request.name
    task = getattr(request, "task_name", None)
    if task is None:
        return f"#{index}"
    return f"{task}/{getattr(request, 'doc_id', '?')}/{getattr(request, 'idx', 0)}"
