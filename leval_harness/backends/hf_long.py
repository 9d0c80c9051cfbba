"""lm-eval's transformers backend, which reads every shared text once."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from lm_eval.models.utils import (
    handle_stop_sequences,
    normalize_gen_kwargs,
    postprocess_generated_text,
)
from tqdm import tqdm

from leval_harness.backends.answer_limits import AnswerEnds, hf_answer_end
from leval_harness.backends.answers import Decoder, Question
from leval_harness.backends.arguments import HFLongSettings, must_run_alone, split_arguments
from leval_harness.backends.counters import Counters, peak_memory_bytes
from leval_harness.backends.documents import unique_tokens
from leval_harness.backends.forward import Head
from leval_harness.backends.hf import HF
from leval_harness.backends.passages import Passage, Scorer
from leval_harness.backends.reading import CHUNK, Reader, Reuse, find_reuse
from resonance_vllm.errors import SettingError, UserError, not_allowed
from resonance_vllm.settings import field_names


class HFLong(HF):
    """lm-eval's `hf` with shared texts; every argument of `hf` is accepted.

    It can read `max_length` positions, as `hf` can: a prompt and what is generated after it
    together, or the tokens of a log-likelihood. Longer ones are cut on the left.

    Args:
        pretrained: As for `hf`.
        arguments: Those of `HFLongSettings`, of `HF` and of `from_pretrained`.

    Raises:
        SettingError: An argument is unknown or its value not allowed.
    """

    name = "hf-long"
    own_arguments = (*HF.own_arguments, *field_names(HFLongSettings))

    def __init__(self, pretrained: Any, **arguments: Any) -> None:
        self.settings, for_hf = split_arguments(arguments)
        super().__init__(pretrained, **for_hf)
        self.counters = Counters()
        self.answer_ends: AnswerEnds | None = None
        self.chunk = self.settings.prefill_chunk or CHUNK

    @cached_property
    def reuse(self) -> Reuse:
        """How this model shares texts; found on first use."""
        if not self.settings.share_prefix:
            return Reuse("none", "switched off")
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
        """As for `HF`. How the model shares texts is found anew."""
        self.__dict__.pop("reuse", None)
        super().set_rope(rope, precision, context_length)

    def telemetry(self) -> dict[str, Any]:
        """Tokens prefilled, shared, generated, unique; seconds; peak memory; requests alone."""
        return {
            **self.counters.work(),
            "peak_memory_bytes": peak_memory_bytes(self.device),
            "requests_alone": dict(self.counters.requests_alone),
        }

    def get_model_info(self) -> dict[str, Any]:
        """What lm-eval writes into the results."""
        used = getattr(self.model, "rope_precision_used", "model")
        own = {"hf_long": self.telemetry(), "rope_precision_used": used}
        return {**super().get_model_info(), **own}

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Greedy answers, the questions of a document together."""
        questions = [self._question(request) for request in requests]
        together = []
        for place, question in enumerate(questions):
            if reason := self._reason_alone(question):
                self.counters.alone(reason)
            else:
                together.append(place)
        self._count([each.tokens for each in questions])
        answers: dict[int, str] = {}
        with self._running(len(requests), "Answering", disable_tqdm) as bar:
            if together:
                asked = [questions[place] for place in together]
                decoder = Decoder(self._reader(), self.tokenizer, self.settings.question_batch_size)
                for number, tokens in decoder.answers(asked):
                    place = together[number]
                    answers[place] = self._answered(requests[place], asked[number], tokens)
                    bar.update()
            alone = [place for place in range(len(requests)) if place not in answers]
            if alone:
                texts = super().generate_until([requests[place] for place in alone], disable_tqdm)
                answers |= dict(zip(alone, texts, strict=True))
                self.counters.tokens_prefilled += sum(len(questions[at].tokens) for at in alone)
                self.counters.tokens_generated += sum(len(self.tok_encode(each)) for each in texts)
        return [answers[place] for place in range(len(requests))]

    def _question(self, request: Any) -> Question:
        """A request tokenised and cut."""
        context, given = request.args
        options = dict(normalize_gen_kwargs(given, self.max_gen_toks))
        eos = self.tok_decode(self.eot_token_id, skip_special_tokens=False)
        until = handle_stop_sequences(options.pop("until", None), eos=eos)
        limit = int(options.pop("max_gen_toks"))
        room = self.max_length - limit
        if room <= 0:
            allowed = f"less than max_length={self.max_length}, which leaves room for a prompt"
            raise SettingError(not_allowed("max_gen_toks", limit, allowed))
        cut = {"left_truncate_len": room, "truncation": self.truncation}
        tokens = self.tok_batch_encode([context], **cut)[0][0].tolist()
        return Question(tokens, tuple(until), limit, options)

    def _reason_alone(self, question: Question) -> str:
        """Why a question cannot share a text; empty if it can."""
        if not question.tokens:
            return "empty prompt"
        return self._too_long(question.length) or must_run_alone(question.options)

    def _too_long(self, length: int) -> str:
        """Why a sequence of this length cannot share a text; empty if it can."""
        if self.reuse.mode == "none":
            return self.reuse.reason
        if self.switch is not None and length > self.switch:
            return f"longer than {self.switch} tokens, where the RoPE base changes"
        return ""

    def _answered(self, request: Any, question: Question, tokens: list[int]) -> str:
        """The text of new tokens that lm-eval's `hf` returns; caches it as `hf` does."""
        prompt, think = request.args[0], self.think_end_token
        kept = tokens
        if isinstance(think, int) and think in tokens:
            kept = tokens[len(tokens) - tokens[::-1].index(think) :]
        text = self.tok_decode(kept)
        text = postprocess_generated_text(
            generation=text.lstrip() if isinstance(think, int) else text,
            stop=list(question.until),
            think_end_token=think if isinstance(think, str) else None,
        )
        if self.answer_ends is not None:
            end = hf_answer_end(self, tokens, question.max_new_tokens, question.until)
            self.answer_ends.add(str(prompt), text, end)
        self.cache_hook.add_partial("generate_until", request.args, text)
        return text

    def _loglikelihood_tokens(
        self, requests: Iterable[Any], disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[tuple[float, bool]]:
        """Sum of log-probabilities of given tokens, and whether greedy decoding would give them.

        A request unpacks to (cache key or None, context ids, scored ids). Softmax and sum are
        float32 or wider whatever the model's dtype is.
        """
        keys, passages = [], []
        for number, request in enumerate(requests):
            key, context, scored = request
            name = request_name(request, number)
            keys.append(key)
            passages.append(Passage.after_context(number, name, context, scored, self.max_length))
        answers: dict[int, tuple[float, bool]] = {}

        def finished(passage: Passage) -> None:
            answer = answers[passage.number] = passage.scores.answer
            if keys[passage.number] is not None:
                self.cache_hook.add_partial("loglikelihood", keys[passage.number], answer)

        self._score(passages, finished, disable_tqdm, share=True)
        return [answers[number] for number in range(len(passages))]

    def teacher_forced(
        self, requests: Iterable[Any], disable_tqdm: bool = False
    ) -> list[tuple[list[bool], list[float]]]:
        """Correctness and log-probability of every token but the first, given those before it.

        Requests are lm-eval instances with arguments `(token_ids,)`, or such tuples.

        Returns:
            `(correct, logprob)` for each request, each of `len(token_ids) - 1` items for positions
            1, 2, …; log-probabilities are natural and computed in float32.
        """
        passages = []
        for number, request in enumerate(requests):
            name, (tokens,) = request_name(request, number), getattr(request, "args", request)
            passages.append(Passage.whole(number, name, tokens, self.max_length))
        self._score(passages, lambda passage: None, disable_tqdm, share=False)
        scores = [passage.scores for passage in passages]
        return [(each.correct.tolist(), each.logprob.tolist()) for each in scores]

    def _score(
        self,
        passages: Sequence[Passage],
        finished: Callable[[Passage], None],
        disable_tqdm: bool,
        *,
        share: bool,
    ) -> None:
        """Score passages, and report each as it is finished; those that run alone come last."""
        self._count([passage.inputs for passage in passages])
        together = [each for each in passages if not self._too_long(len(each.inputs))]
        alone = [each for each in passages if self._too_long(len(each.inputs))]
        with self._running(len(passages), "Reading", disable_tqdm) as bar:
            size = self.batch_size if isinstance(self.batch_size, int) else 1
            reader = self._reader() if self.reuse.mode != "none" else None
            scorer = Scorer(
                self.head,
                reader,
                self.counters,
                most=self.settings.question_batch_size,
                tokens=self.chunk,
                size=size,
                chunk=self.settings.prefill_chunk,
            )
            for passage in scorer.together(together) if share else scorer.apart(together):
                finished(passage)
                bar.update()
            for passage in alone:
                self.forget()
                for each in scorer.apart([passage]):
                    finished(each)
                    bar.update()

    def _reader(self) -> Reader:
        return Reader(self.head, self.reuse.mode, self.chunk, self.counters)

    def _count(self, texts: Sequence[list[int]]) -> None:
        self.counters.tokens_prompt += sum(map(len, texts))
        self.counters.tokens_unique += unique_tokens(texts)

    def _autocast(self) -> torch.autocast:
        dtype = self.mixed_precision_dtype
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None)

    @contextmanager
    def _running(self, total: int, title: str, disable_tqdm: bool) -> Iterator[Any]:
        """Answer requests: timed, with progress, from the state in which the model was loaded.

        Raises:
            UserError: memory did not suffice.
        """
        from accelerate.utils.memory import should_reduce_batch_size

        _ = self.head, self.reuse  # which is not part of the time that answers take
        self.forget()
        hidden = disable_tqdm or self.rank != 0
        try:
            with (
                torch.no_grad(),
                self.counters.timed(),
                self._autocast(),
                tqdm(total=total, desc=title, disable=hidden) as bar,
            ):
                yield bar
        except (RuntimeError, MemoryError) as error:
            known = isinstance(error, MemoryError | torch.OutOfMemoryError)
            if not known and not should_reduce_batch_size(error):
                raise
            raise UserError(
                f"out of memory: {shortened(error)}; set a smaller prefill_chunk (now "
                f"{self.settings.prefill_chunk or f'{CHUNK}, and whole texts that share nothing'}) "
                f"or question_batch_size (now {self.settings.question_batch_size}), a smaller "
                f"batch_size (now {self.batch_size}) or max_length"
            ) from error


def request_name(request: Any, number: int) -> str:
    """lm-eval's task, document and number, else the place of a request."""
    task = getattr(request, "task_name", None)
    document, index = getattr(request, "doc_id", "?"), getattr(request, "idx", 0)
    return f"#{number}" if task is None else f"{task}/{document}/{index}"


def shortened(error: BaseException) -> str:
    """The first line of an error."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
