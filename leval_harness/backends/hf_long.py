"""lm-eval's transformers backend, reading every shared text once."""

import inspect
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cached_property, partial
from typing import Any, TypeVar

import torch
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import (
    handle_stop_sequences,
    normalize_gen_kwargs,
    postprocess_generated_text,
)

from leval_border.errors import SettingError, not_allowed
from leval_harness.backends import parallel
from leval_harness.backends.answer_limits import Ends, hf_end
from leval_harness.backends.generate import Answered, Decoder, Question
from leval_harness.backends.head import Head, Scores
from leval_harness.backends.loglikelihood import Passage, Scorer
from leval_harness.backends.memory import attempt, free_bytes
from leval_harness.backends.options import must_run_alone
from leval_harness.backends.reader import Setup
from leval_harness.backends.reuse import Reuse, examine
from leval_harness.backends.settings import naming_unknown, split_arguments, unknown_argument
from leval_harness.backends.sums import SumOfLogprobs
from leval_harness.backends.telemetry import Counters
from resonance_vllm.hf import registration as hf

Result = TypeVar("Result")


class HFLong(HFLM):
    """lm-eval's `hf` with shared prefixes; every argument of `hf` is accepted.

    What it can read is `max_length`, as on `hf`: a prompt and what is generated after it together,
    or the tokens of a log-likelihood, take at most that many positions and are cut on the left
    beyond it. Prefixes are shared up to `reuse.max_length`, and longer requests run alone.

    Args:
        pretrained: As for `hf`.
        device: As for `hf`; without it CUDA if there is one, else the CPU.
        arguments: Those of `HFLongSettings`, of `hf` and of `from_pretrained`; an unknown one is
            a `SettingError`.
    """

    library = "transformers"
    reads_once = True

    def __init__(self, pretrained: Any, *, device: str | None = None, **arguments: Any) -> None:
        self.settings, for_hf = split_arguments(arguments)
        hf.register()
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        of_hf = inspect.getfullargspec(HFLM.__init__).args[1:]
        if not isinstance(pretrained, str):  # then nothing is built that could refuse one
            for name in for_hf.keys() - set(of_hf):
                raise unknown_argument(name, of_hf)
        with naming_unknown(for_hf, of_hf):
            super().__init__(pretrained, device=device, **for_hf)
        if self.settings.rope_precision is not None:
            hf.set_rope_precision(self.model, self.settings.rope_precision)
        if self.world_size == 1 and hasattr(self, "accelerator"):
            # lm-eval sets these on several GPUs only; processes on CPUs divide the work as well.
            self._rank = self.accelerator.process_index
            self._world_size = self.accelerator.num_processes
        self.counters = Counters()
        self.ends: Ends | None = None

    @cached_property
    def reuse(self) -> Reuse:
        """How this model's prefixes are shared; found on first use."""
        if not self.settings.share_prefix:
            return Reuse("none", "switched off")
        with self._autocast():
            return examine(self.model, share_attention=self.settings.share_attention)

    @cached_property
    def setup(self) -> Setup:
        """What decoding and scoring need; made on first use."""
        with self._autocast():
            head = Head(self.model)
        bound = self.settings.kv_cache_bytes
        if bound is None:
            bound = free_bytes({weight.device for weight in self.model.parameters()})
        return Setup(self.model, self.reuse, head, self.settings, self.counters, bound)

    def _autocast(self) -> torch.autocast:
        dtype = self.mixed_precision_dtype
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None)

    def telemetry(self) -> dict[str, Any]:
        """Tokens prefilled, shared, generated, unique; seconds; peak memory; failures by name."""
        return self.counters.telemetry(self.device)

    def get_model_info(self) -> dict[str, Any]:
        """What lm-eval writes into the results."""
        used = getattr(self.model, "rope_precision_used", "model")
        own = {"hf_long": self.telemetry(), "rope_precision_used": used}
        return {**super().get_model_info(), **own}

    def _in_order(
        self,
        finished: Generator[tuple[int, Result]],
        results: list[Result],
        title: str,
        disable_tqdm: bool,
        kind: str = "",
        keys: Sequence[Any] = (),
    ) -> list[Result]:
        """Draw results as they are finished: show progress, cache them, put them in their places.

        `results` holds what stands for a request without one. lm-eval's response cache knows the
        requests by `kind` and `keys`; a key is None where a request is not to be cached.
        """
        _ = self.setup  # the trial of reuse is no part of the time that answers take
        with (
            self.counters.timed(),
            self.counters.shown(title, disable=disable_tqdm or self.rank != 0),
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

        The text is "" where memory did not suffice; the request is named in log and `telemetry`.
        """
        named = [parallel.Request(r.args, parallel.name_of(r, i)) for i, r in enumerate(requests)]
        prompts = [request.args[0] for request in requests]
        answer = partial(self._answer, disable_tqdm=disable_tqdm)
        return parallel.exchange(self, named, prompts, answer)

    def _answer(self, requests: Sequence[parallel.Request], disable_tqdm: bool) -> list[str]:
        """Answers of this process's requests: those that share a prefix, then the others."""
        questions: dict[int, Question] = {}
        alone = []
        for index, request in enumerate(requests):
            question, reason = self._question(request)
            if reason:
                alone.append(index)
                self.counters.alone(reason)
            else:
                questions[index] = question
        answers = [""] * len(requests)
        if questions:
            decoder = Decoder(list(questions.values()), self.setup, self.tokenizer)
            finished = self._finished(requests, questions, decoder.answers())
            keys = [request.args for request in requests]
            title = "Reading and answering"
            self._in_order(finished, answers, title, disable_tqdm, "generate_until", keys)
        if alone:
            with self.counters.timed():
                for index, text in self._alone(requests, alone, disable_tqdm):
                    answers[index] = text
        return answers

    def _alone(
        self, requests: Sequence[parallel.Request], alone: list[int], disable_tqdm: bool
    ) -> Iterator[tuple[int, str]]:
        """Answers as on `hf`; where memory does not suffice for all, those that it has."""
        ask = partial(super().generate_until, disable_tqdm=disable_tqdm)
        texts = attempt(ask, [requests[i] for i in alone])
        if texts is not None:
            yield from zip(alone, texts, strict=True)
            return
        for index in alone:
            text = attempt(ask, [requests[index]])
            if text is None:
                tokens = len(self.tok_encode(requests[index].args[0]))
                self.counters.failed(requests[index].name, tokens)
            else:
                yield index, text[0]

    def _question(self, request: parallel.Request) -> tuple[Question, str]:
        """A request tokenised and cut, and why it must run alone, if it must."""
        context, given = request.args
        options = dict(normalize_gen_kwargs(given, self.max_gen_toks))
        eos = self.tok_decode(self.eot_token_id, skip_special_tokens=False)
        until = handle_stop_sequences(options.pop("until", None), eos=eos)
        budget = int(options.pop("max_gen_toks"))
        room = self.max_length - budget
        if room <= 0:
            allowed = f"less than max_length={self.max_length}, which leaves room for a prompt"
            raise SettingError(not_allowed("max_gen_toks", budget, allowed))
        cut = {"left_truncate_len": room, "truncation": self.truncation}
        tokens = self.tok_batch_encode([context], **cut)[0][0].tolist()
        question = Question(request.name, tokens, tuple(until), budget, options)
        if not tokens:
            return question, "empty prompt"
        return question, self.setup.refusal(len(tokens) + budget) or must_run_alone(options)

    def _finished(
        self,
        requests: Sequence[parallel.Request],
        questions: Mapping[int, Question],
        answered: Iterable[Answered],
    ) -> Generator[tuple[int, str]]:
        """Texts of what was answered, by the places in `requests` that questions have as keys.

        How an answer ended is noted where somebody watches.
        """
        order = list(questions)
        for place, tokens in answered:
            if tokens is None:
                continue
            index, question = order[place], questions[order[place]]
            text = self._text(tokens, question.until)
            if self.ends is not None:
                end = hf_end(self, tokens, question.max_new_tokens, question.until)
                self.ends.note(str(requests[index].args[0]), text, end)
            yield index, text

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
        self, requests: Iterable[Any], disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[tuple[float, bool]]:
        """Sum of log-probabilities of given tokens, and whether greedy decoding would give them.

        A request unpacks to (cache key or None, context ids, scored ids); (nan, False) where memory
        did not suffice. Softmax and sum are float32 or wider whatever the model's dtype.
        """
        asked = [
            (*tuple(request)[:3], parallel.name_of(request, index))
            for index, request in enumerate(requests)
        ]
        tokens = [[*context, *scored] for _, context, scored, _ in asked]
        score = partial(self._likelihoods, disable_tqdm=disable_tqdm)
        return parallel.exchange(self, asked, tokens, score)

    def _likelihoods(
        self, asked: list[tuple[Any, list[int], list[int], str]], disable_tqdm: bool
    ) -> list[tuple[float, bool]]:
        """Sums of this process's requests, in their order."""
        passages = [
            Passage.cut(name, list(context), list(scored), self.max_length)
            for _, context, scored, name in asked
        ]
        finished = (
            (index, (_total(scores), bool(scores.correct.all())))
            for index, scores in self._scored(passages, share=True)
        )
        missing = [(float("nan"), False)] * len(asked)
        keys = [key for key, _, _, _ in asked]
        return self._in_order(finished, missing, "Reading", disable_tqdm, "loglikelihood", keys)

    def teacher_forced(
        self, requests: Iterable[Any], disable_tqdm: bool = False
    ) -> list[tuple[list[bool], list[float]]]:
        """Correctness and log-probability of every token but the first, given those before it.

        Requests are lm-eval instances with arguments `(token_ids,)`, or such tuples.

        Returns:
            `(correct, logprob)` a request, each of `len(token_ids) - 1` items for positions
            1, 2, …; log-probabilities are natural and computed in float32. Empty lists where
            memory did not suffice.
        """
        passages = []
        for index, request in enumerate(requests):
            (tokens,), name = getattr(request, "args", request), parallel.name_of(request, index)
            passages.append(Passage.whole(name, list(tokens), self.max_length))
        finished = (
            (index, (scores.correct.tolist(), scores.logprob.tolist()))
            for index, scores in self._scored(passages, share=False)
        )
        return self._in_order(finished, [([], []) for _ in passages], "Reading", disable_tqdm)

    def _scored(self, passages: Sequence[Passage], *, share: bool) -> Generator[tuple[int, Scores]]:
        """Scores by place, of what fits into memory; what cannot `share` a prefix comes last."""
        places = range(len(passages))
        sharing = [i for i in places if share and not self.setup.refusal(len(passages[i].inputs))]
        alone = sorted(set(places) - set(sharing))
        size = self.batch_size if isinstance(self.batch_size, int) else 1
        for order in (sharing, alone):
            scorer = Scorer([passages[index] for index in order], self.setup, size)
            for place, scores in scorer.scores(share=order is sharing):
                if scores is not None:
                    yield order[place], scores


def _total(scores: Scores) -> SumOfLogprobs:
    return SumOfLogprobs(float(scores.logprob.double().sum()), scores.logprob.tolist())
