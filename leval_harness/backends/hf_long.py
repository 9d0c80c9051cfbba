"""lm-eval's transformers backend, which reads every shared text once."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from lm_eval.models.utils import normalize_gen_kwargs
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from leval_harness.backends.answers import answer_length, decode
from leval_harness.backends.arguments import HFLongSettings, must_run_alone, split_arguments
from leval_harness.backends.counters import Counters, peak_memory_bytes
from leval_harness.backends.documents import batches
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
        self.chunk = self.settings.prefill_chunk or CHUNK
        # Of the requests that lm-eval answers now: their reader, and what they begin with.
        self._shared: tuple[Reader, list[int]] | None = None

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
        prompts = [self._prompt(request) for request in requests]
        self.counters.add_texts(prompts)
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

            texts = [prompts[place] for place in together]
            reader = self._reader()
            for batch in batches(texts, [len(text) - 1 for text in texts]):
                assert reader is not None
                text = texts[batch.source][: batch.shared]
                reader.read(text)
                reader.keep()
                with self._sharing(reader, text):
                    answer([together[row] for row in batch.rows])
            answer(sorted(set(range(len(requests))) - answers.keys()))
        return [answers[place] for place in range(len(requests))]

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
        """Whether a prompt cannot share a text, which is counted by its reason."""
        reason = "" if prompt else "empty prompt"
        reason = reason or self._too_long(len(prompt) + options["max_gen_toks"])
        if reason := reason or must_run_alone(options):
            self.counters.alone(reason)
        return bool(reason)

    def _too_long(self, length: int) -> str:
        """Why a sequence of this length cannot share a text; empty if it can."""
        if self.reuse.mode == "none":
            return self.reuse.reason
        if self.switch is not None and length > self.switch:
            return f"longer than {self.switch} tokens, where the RoPE base changes"
        return ""

    @contextmanager
    def _sharing(self, reader: Reader, text: list[int]) -> Iterator[None]:
        """Let lm-eval's `generate_until` answer prompts that begin with a text."""
        before = self.batch_size_per_gpu
        self._shared, self.batch_size_per_gpu = (reader, text), self.settings.question_batch_size
        try:
            yield
        finally:
            self._shared, self.batch_size_per_gpu = None, before

    def _model_generate(
        self, context: torch.Tensor, max_length: int, stop: list[str], **options: Any
    ) -> torch.Tensor:
        """Token ids `[rows, length]`: the prompts, padded on the left, and new tokens."""
        mask, width, pad = options["attention_mask"], context.shape[1], self.tokenizer.pad_token_id
        if self._shared is None:
            self.counters.tokens_prefilled += int(mask.sum())
            made = super()._model_generate(context, max_length, stop, **options)
            answers = made[:, width:].tolist()
        else:
            reader, text = self._shared
            del options["attention_mask"]
            prompts = [row[seen.bool()].tolist() for row, seen in zip(context, mask, strict=True)]
            limits = (max_length - width, stop, options, self.settings.question_batch_size)
            answers = decode(reader, self.tokenizer, text, prompts, *limits)
            new = pad_sequence(
                [torch.tensor(each, dtype=torch.long) for each in answers], True, pad
            )
            made = torch.cat([context, new.to(context)], dim=1)
        self.counters.tokens_generated += sum(answer_length(each, pad) for each in answers)
        return made

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
            answer = answers[passage.number] = passage.answer
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
        return [(each.correct.tolist(), each.logprob.tolist()) for each in passages]

    def _score(
        self,
        passages: Sequence[Passage],
        finished: Callable[[Passage], None],
        disable_tqdm: bool,
        *,
        share: bool,
    ) -> None:
        """Score passages, and report each as it is finished; those that run alone come last."""
        self.counters.add_texts([passage.inputs for passage in passages])
        alone = [each for each in passages if self._too_long(len(each.inputs))]
        together = [each for each in passages if not self._too_long(len(each.inputs))]
        most, chunk = self.settings.question_batch_size, self.settings.prefill_chunk
        with self._running(len(passages), "Reading", disable_tqdm) as bar:
            scorer = Scorer(self.head, self._reader(), self.counters, most, self.chunk, chunk)
            for passage in scorer.together(together) if share else scorer.apart(together):
                finished(passage)
                bar.update()
            for passage in alone:
                self.forget()
                finished(*scorer.apart([passage]))
                bar.update()

    def _reader(self) -> Reader | None:
        mode = self.reuse.mode
        return None if mode == "none" else Reader(self.head, mode, self.chunk, self.counters)

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
            first = (str(error).splitlines() or [type(error).__name__])[0][:200]
            raise UserError(
                f"out of memory: {first}; set a smaller prefill_chunk (now "
                f"{self.settings.prefill_chunk or f'{CHUNK}, and whole texts that share nothing'}) "
                f"or question_batch_size (now {self.settings.question_batch_size}), a smaller "
                f"batch_size (now {self.batch_size}) or max_length"
            ) from error


def request_name(request: Any, number: int) -> str:
    """lm-eval's task, document and number, else the place of a request."""
    task = getattr(request, "task_name", None)
    document, index = getattr(request, "doc_id", "?"), getattr(request, "idx", 0)
    return f"#{number}" if task is None else f"{task}/{document}/{index}"
