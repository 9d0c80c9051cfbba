"""lm-eval's transformers backend, which reads every shared text once."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeVar

import torch
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import (
    handle_stop_sequences,
    normalize_gen_kwargs,
    postprocess_generated_text,
)

from leval_harness.backends.answer_limits import AnswerEnds, hf_answer_end
from leval_harness.backends.arguments import (
    HFLongSettings,
    arguments_of,
    must_run_alone,
    no_such_argument,
    split_arguments,
    unknown_arguments_refused,
)
from leval_harness.backends.forward import Head
from leval_harness.backends.generation import Decoder, Question
from leval_harness.backends.loglikelihood import Passage, Scorer, Scores
from leval_harness.backends.path_reader import Setup
from leval_harness.backends.prefix_selfcheck import PrefixReuse, find_prefix_reuse
from leval_harness.backends.prompt_trie import divide
from leval_harness.backends.resources import Counters, attempt, free_bytes
from resonance_vllm.errors import SettingError, not_allowed
from resonance_vllm.hf import registration as hf
from resonance_vllm.settings import field_names

Result = TypeVar("Result")


@dataclass(frozen=True)
class NamedRequest:
    """A request that can be sent between processes, with its name in messages."""

    args: tuple[Any, ...]
    name: str

    @classmethod
    def of(cls, request: Any, index: int, args: Sequence[Any]) -> "NamedRequest":
        """Named by lm-eval's task, document and number, else by its place."""
        task = getattr(request, "task_name", None)
        document, number = getattr(request, "doc_id", "?"), getattr(request, "idx", 0)
        return cls(tuple(args), f"#{index}" if task is None else f"{task}/{document}/{number}")


class HFLong(HFLM):
    """lm-eval's `hf` with shared prefixes; every argument of `hf` is accepted.

    It can read `max_length` positions, as `hf` can: a prompt and what is generated after it
    together, or the tokens of a log-likelihood. Longer ones are cut on the left. Prefixes are
    shared up to `reuse.max_length` tokens; longer requests run alone.

    Args:
        pretrained: As for `hf`.
        device: As for `hf`; by default CUDA if there is one, else the CPU.
        arguments: Those of `HFLongSettings`, of `hf` and of `from_pretrained`.

    Raises:
        SettingError: An argument is unknown or its value not allowed.
    """

    def __init__(self, pretrained: Any, *, device: str | None = None, **arguments: Any) -> None:
        self.settings, for_hf = split_arguments(arguments)
        hf.register()
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        of_hf = arguments_of(HFLM)
        known = [*field_names(HFLongSettings), *of_hf]
        if not isinstance(pretrained, str):  # a loaded model takes no arguments
            for name in for_hf.keys() - set(of_hf):
                raise no_such_argument("hf-long", name, known)
        with unknown_arguments_refused("hf-long", for_hf, known):
            super().__init__(pretrained, device=device, **for_hf)
        if self.settings.rope_precision is not None:
            hf.set_rope_precision(self.model, self.settings.rope_precision)
        if self.world_size == 1 and hasattr(self, "accelerator"):
            # lm-eval sets these only on several GPUs; processes on CPUs divide the work as well.
            self._rank = self.accelerator.process_index
            self._world_size = self.accelerator.num_processes
        self.counters = Counters()
        self.answer_ends: AnswerEnds | None = None

    @cached_property
    def reuse(self) -> PrefixReuse:
        """How this model's prefixes are shared; found on first use."""
        if not self.settings.share_prefix:
            return PrefixReuse("none", "switched off")
        with self._autocast():
            return find_prefix_reuse(self.model, share_attention=self.settings.share_attention)

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

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Greedy answers, the questions of a document together.

        An answer is "" where memory did not suffice; log and `telemetry` name the request.
        """
        named = [NamedRequest.of(each, at, each.args) for at, each in enumerate(requests)]
        prompts = [each.args[0] for each in named]
        return exchange(self, named, prompts, partial(self._answers, disable_tqdm=disable_tqdm))

    def _answers(self, requests: Sequence[NamedRequest], disable_tqdm: bool) -> list[str]:
        """Answers of this process's requests: those that share a prefix, then the others."""
        questions: dict[int, Question] = {}
        alone: dict[int, int] = {}
        for index, request in enumerate(requests):
            question = self._question(request)
            if reason := self._reason_alone(question):
                alone[index] = question.length
                self.counters.alone(reason)
            else:
                questions[index] = question
        answers = [""] * len(requests)
        if questions:
            finished = self._shared_answers(requests, questions)
            keys = [request.args for request in requests]
            title = "Reading and answering"
            self._collect(finished, answers, title, disable_tqdm, "generate_until", keys)
        if alone:
            with self.counters.timed():
                for index, text in self._answers_alone(requests, list(alone), disable_tqdm):
                    answers[index] = text
        return answers

    def _question(self, request: NamedRequest) -> Question:
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
        return Question(request.name, tokens, tuple(until), limit, options)

    def _reason_alone(self, question: Question) -> str:
        """Why a question cannot share a prefix; empty if it can."""
        if not question.tokens:
            return "empty prompt"
        return self.setup.refusal(question.length) or must_run_alone(question.options)

    def _shared_answers(
        self, requests: Sequence[NamedRequest], questions: dict[int, Question]
    ) -> Generator[tuple[int, str]]:
        """Texts of questions by their places in `requests`; records how they ended if wanted."""
        places = list(questions)
        decoder = Decoder([questions[at] for at in places], self.setup, self.tokenizer)
        for number, tokens in decoder.answers():
            if tokens is None:
                continue
            question = decoder.questions[number]
            text = self._text(tokens, question.until)
            prompt = str(requests[places[number]].args[0])
            if self.answer_ends is not None:
                end = hf_answer_end(self, tokens, question.max_new_tokens, question.until)
                self.answer_ends.add(prompt, text, end)
            yield places[number], text

    def _answers_alone(
        self, requests: Sequence[NamedRequest], alone: list[int], disable_tqdm: bool
    ) -> Iterator[tuple[int, str]]:
        """Answers by `hf`; if memory does not suffice for all at once, one after the other."""
        ask = partial(super().generate_until, disable_tqdm=disable_tqdm)
        texts = attempt(ask, [requests[index] for index in alone])
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
        did not suffice. Softmax and sum are float32 or wider whatever the model's dtype is.
        """
        named = [NamedRequest.of(each, at, tuple(each)[:3]) for at, each in enumerate(requests)]
        tokens = [[*each.args[1], *each.args[2]] for each in named]
        return exchange(self, named, tokens, partial(self._likelihoods, disable_tqdm=disable_tqdm))

    def _likelihoods(
        self, requests: Sequence[NamedRequest], disable_tqdm: bool
    ) -> list[tuple[float, bool]]:
        """Sums of this process's requests, in their order."""
        passages = [
            Passage.after_context(each.name, each.args[1], each.args[2], self.max_length)
            for each in requests
        ]
        finished = (
            (index, (scores.total, bool(scores.correct.all())))
            for index, scores in self._scored(passages, share=True)
        )
        sums = [(float("nan"), False)] * len(requests)
        keys = [request.args[0] for request in requests]
        return self._collect(finished, sums, "Reading", disable_tqdm, "loglikelihood", keys)

    def teacher_forced(
        self, requests: Iterable[Any], disable_tqdm: bool = False
    ) -> list[tuple[list[bool], list[float]]]:
        """Correctness and log-probability of every token but the first, given those before it.

        Requests are lm-eval instances with arguments `(token_ids,)`, or such tuples.

        Returns:
            `(correct, logprob)` for each request, each of `len(token_ids) - 1` items for positions
            1, 2, …; log-probabilities are natural and computed in float32. Empty lists where
            memory did not suffice.
        """
        passages = []
        for at, each in enumerate(requests):
            request = NamedRequest.of(each, at, getattr(each, "args", each))
            passages.append(Passage.whole(request.name, list(request.args[0]), self.max_length))
        finished = (
            (index, (scores.correct.tolist(), scores.logprob.tolist()))
            for index, scores in self._scored(passages, share=False)
        )
        return self._collect(finished, [([], []) for _ in passages], "Reading", disable_tqdm)

    def _scored(self, passages: Sequence[Passage], *, share: bool) -> Generator[tuple[int, Scores]]:
        """Scores by place of the passages that fit into memory; those that run alone come last."""
        size = self.batch_size if isinstance(self.batch_size, int) else 1
        lengths = {place: len(passage.inputs) for place, passage in enumerate(passages)}
        sharing = [each for each in lengths if share and not self.setup.refusal(lengths[each])]
        alone = sorted(set(lengths) - set(sharing))
        for order in (sharing, alone):
            scorer = Scorer([passages[index] for index in order], self.setup, size)
            for place, scores in scorer.scores(share=order is sharing):
                if scores is not None:
                    yield order[place], scores

    def _collect(
        self,
        finished: Generator[tuple[int, Result]],
        results: list[Result],
        title: str,
        disable_tqdm: bool,
        kind: str = "",
        keys: Sequence[Any] = (),
    ) -> list[Result]:
        """Compute results one by one, with progress, and put each into its place in `results`.

        lm-eval's response cache knows the requests by `kind` and `keys`; a request whose key is
        None is not cached.
        """
        _ = self.setup  # the self-check is not part of the time that answers take
        with (
            self.counters.timed(),
            self.counters.progress(title, disable=disable_tqdm or self.rank != 0),
            self._autocast(),
            closing(finished),
        ):
            for index, result in finished:
                results[index] = result
                if kind and keys[index] is not None:
                    self.cache_hook.add_partial(kind, keys[index], result)
        return results


def exchange(
    lm: Any, items: Sequence[Any], prompts: Sequence[Any], run: Callable[[list[Any]], list[Any]]
) -> list[Any]:
    """Answer this process's items with the help of all processes; each must call this function.

    lm-eval deals requests to processes in turn, so that each would read nearly every document. Here
    the processes put their requests together, divide them between documents, and return the
    answers.

    Args:
        lm: lm-eval's model; its `rank` and `world_size` count.
        items: What the processes exchange.
        prompts: The text or token ids of each item, by which the work is divided.
        run: Answers a list of items.
    """
    if lm.world_size == 1:
        return run(list(items))
    from torch import distributed

    gathered: list[Any] = [None] * lm.world_size
    distributed.all_gather_object(gathered, list(zip(items, prompts, strict=True)))
    every = [pair for each in gathered for pair in each]
    share = divide([prompt for _, prompt in every], lm.world_size)[lm.rank]
    answers = run([every[index][0] for index in share])
    answered: list[Any] = [None] * lm.world_size
    distributed.all_gather_object(answered, list(zip(share, answers, strict=True)))
    known = dict(pair for each in answered for pair in each)
    first = sum(map(len, gathered[: lm.rank]))
    return [known[first + at] for at in range(len(items))]
