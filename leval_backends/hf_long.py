"""lm-eval's transformers backend, reading every shared text once."""

import inspect
import logging
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cached_property
from typing import Any, TypeVar

import torch
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import (
    handle_stop_sequences,
    normalize_gen_kwargs,
    postprocess_generated_text,
)

from leval_backends import parallel, precision
from leval_backends.generate import Decoder, Question
from leval_backends.head import Head, Scores
from leval_backends.loglikelihood import Passage, Scorer
from leval_backends.options import must_run_alone
from leval_backends.reuse import Reuse, examine
from leval_backends.settings import rejected_argument, split_arguments, unknown_argument
from leval_backends.telemetry import Counters
from leval_border.errors import SettingError, not_allowed

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class HFLong(HFLM):
    """lm-eval's `hf` with shared prefixes; every argument of `hf` is accepted.

    What it can read is `max_length`, as on `hf`: a prompt and what is generated after it together,
    or the tokens of a log-likelihood, take at most that many positions and are cut on the left
    beyond it. Prefixes are shared up to `reuse.max_length`, and longer requests run alone.

    Args:
        pretrained: As for `hf`.
        device: As for `hf`; without it CUDA if there is one, else the CPU.
        arguments: Those of `HFLongSettings`, of `hf` and of `from_pretrained`.

    Raises:
        SettingError: An argument that nobody knows, or an own one whose value is not allowed.
    """

    library = "transformers"
    reads_once = True

    def __init__(self, pretrained: Any, *, device: str | None = None, **arguments: Any) -> None:
        self.settings, for_hf = split_arguments(arguments)
        precision.prepare(self.settings.rope_precision)
        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        hf_arguments = inspect.signature(HFLM.__init__).parameters
        if not isinstance(pretrained, str):  # then nothing is built that could refuse one
            for name in for_hf.keys() - hf_arguments.keys():
                raise unknown_argument(name, hf_arguments)
        try:
            super().__init__(pretrained, device=device, **for_hf)
        except TypeError as error:
            if rejected := rejected_argument(error, for_hf):
                raise unknown_argument(rejected, hf_arguments) from error
            raise
        precision.apply(self.model, self.settings.rope_precision)
        if self.world_size == 1 and hasattr(self, "accelerator"):
            # lm-eval sets these on several GPUs only; processes on CPUs divide the work as well.
            self._rank = self.accelerator.process_index
            self._world_size = self.accelerator.num_processes
        self.counters = Counters()

    @cached_property
    def reuse(self) -> Reuse:
        """How this model's prefixes are shared; found on first use."""
        if not self.settings.share_prefix:
            return Reuse("none", "switched off")
        with self._autocast():
            found = examine(self.model, share_attention=self.settings.share_attention)
        if found.mode == "none":
            logger.warning("no prefix is shared: %s", found.reason)
        return found

    @cached_property
    def head(self) -> Head:
        """The model's last layer."""
        with self._autocast():
            return Head(self.model)

    @contextmanager
    def _autocast(self) -> Iterator[None]:
        dtype = self.mixed_precision_dtype
        with torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None):
            yield

    def telemetry(self) -> dict[str, Any]:
        """Tokens prefilled, shared, generated, unique; seconds; peak memory; failures by name."""
        return self.counters.telemetry(self.device)

    def get_model_info(self) -> dict[str, Any]:
        """What lm-eval writes into the results, with this backend's telemetry."""
        return {**super().get_model_info(), "hf_long": self.telemetry()}

    def _in_order(
        self,
        finished: Generator[tuple[int, Result], None, None],
        results: list[Result],
        title: str,
        disable_tqdm: bool,
        *,
        kind: str = "",
        keys: Sequence[Any] = (),
    ) -> list[Result]:
        """Draw results as they are finished: show progress, cache them, put them in their places.

        Args:
            finished: Place and result of each request for which memory sufficed, in any order.
            results: What stands for a request that has none; filled in.
            title: Of the progress bar.
            disable_tqdm: No progress bar.
            kind: Request type in lm-eval's response cache.
            keys: What each request is called there; None for one that is not cached.
        """
        hidden = disable_tqdm or self.rank != 0
        with (
            self.counters.timed(),
            self.counters.shown(title, disable=hidden),
            self._autocast(),
            closing(finished),
        ):
            for index, result in finished:
                results[index] = result
                if kind and keys[index] is not None:
                    self.cache_hook.add_partial(kind, keys[index], result)
        return results

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
        return parallel.exchange(
            parallel.named(requests),
            [request.args[0] for request in requests],
            self.rank,
            lambda share: self._answer(share, disable_tqdm),
        )

    def _answer(self, requests: Sequence[Any], disable_tqdm: bool) -> list[str]:
        questions: dict[int, Question] = {}
        alone: list[int] = []
        for index, request in enumerate(requests):
            question, reason = self._question(request, index)
            if reason:
                alone.append(index)
                self._count_alone(reason)
            else:
                questions[index] = question
        answers = [""] * len(requests)
        if questions:
            self._in_order(
                self._answered(questions),
                answers,
                "Reading and answering",
                disable_tqdm,
                kind="generate_until",
                keys=[request.args for request in requests],
            )
        if alone:
            with self.counters.timed():
                texts = super().generate_until([requests[i] for i in alone], disable_tqdm)
            for index, text in zip(alone, texts, strict=True):
                answers[index] = text
        return answers

    def _answered(self, questions: dict[int, Question]) -> Generator[tuple[int, str], None, None]:
        order = list(questions)
        decoder = Decoder(
            [questions[index] for index in order],
            self.model,
            self.tokenizer,
            self.reuse,
            self.counters,
            self.settings,
        )
        for place, tokens in decoder.answers():
            if tokens is not None:
                yield order[place], self._text(tokens, questions[order[place]].until)

    def _question(self, request: Any, index: int) -> tuple[Question, str]:
        """A request made ready, and why it must run alone, if it must."""
        context, given = request.args
        options = dict(normalize_gen_kwargs(given, self.max_gen_toks))
        eos = self.tok_decode(self.eot_token_id, skip_special_tokens=False)
        until = handle_stop_sequences(options.pop("until", None), eos=eos)
        budget = int(options.pop("max_gen_toks"))
        room = self.max_length - budget
        if room <= 0:
            allowed = f"less than max_length={self.max_length}, which leaves room for a prompt"
            raise SettingError(not_allowed("max_gen_toks", budget, allowed))
        ids, _ = self.tok_batch_encode(
            [context], left_truncate_len=room, truncation=self.truncation
        )
        tokens = ids[0].tolist()
        question = Question(parallel.name_of(request, index), tokens, tuple(until), budget, options)
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
            (*tuple(request)[:3], parallel.name_of(request, index))
            for index, request in enumerate(requests)
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
        passages = [
            self._passage(list(context), list(scored), name) for _, context, scored, name in asked
        ]
        sums = (
            (index, (float(scores.logprob.double().sum()), bool(scores.correct.all())))
            for index, scores in self._scored(passages, share=True)
        )
        return self._in_order(
            sums,
            [(float("nan"), False)] * len(asked),
            "Reading",
            disable_tqdm,
            kind="loglikelihood",
            keys=[key for key, _, _, _ in asked],
        )

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
            name = parallel.name_of(request, index)
            (tokens,) = getattr(request, "args", request)
            tokens = list(tokens)
            if not 2 <= len(tokens) <= self.max_length + 1:
                raise ValueError(
                    f"request {name}: {len(tokens)} tokens; a sequence needs 2 "
                    f"to max_length + 1 = {self.max_length + 1}"
                )
            passages.append(Passage(name, tokens[:-1], tokens[1:]))
        each = (
            (index, (scores.correct.tolist(), scores.logprob.tolist()))
            for index, scores in self._scored(passages, share=False)
        )
        return self._in_order(each, [([], []) for _ in passages], "Reading", disable_tqdm)

    def _scored(
        self, passages: Sequence[Passage], *, share: bool
    ) -> Generator[tuple[int, Scores], None, None]:
        sharing: list[int] = []
        alone: list[int] = []
        for index, passage in enumerate(passages):
            shares = share and not self._reason(len(passage.inputs))
            (sharing if shares else alone).append(index)
        for order, score in ((sharing, Scorer.shared), (alone, Scorer.alone)):
            if not order:
                continue
            scorer = Scorer(
                [passages[index] for index in order],
                self.head,
                self.reuse,
                self.counters,
                self.settings,
                batch_size=self.batch_size if isinstance(self.batch_size, int) else 1,
            )
            for place, scores in score(scorer):
                if scores is not None:
                    yield order[place], scores
