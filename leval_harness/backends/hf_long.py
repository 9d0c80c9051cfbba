"""lm-eval's transformers backend, which prefills every shared document once."""

import logging
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
from leval_harness.backends.documents import WORTH_A_BATCH, batches, sized
from leval_harness.backends.forward import ForwardPass, Head
from leval_harness.backends.hf import HF
from leval_harness.backends.prefill import CHUNK, one_pass_tokens
from leval_harness.backends.read_memory import ReadMemory, is_scored_by
from leval_harness.backends.reading import SHARED, Reader, score_passages
from leval_harness.backends.reuse import NONE, Reuse, find_reuse
from leval_harness.backends.scoring import Passage
from leval_tasks.common.token_logprobs import Logprobs, TokenScoring, score_by_own_method
from resonance_vllm.checkpoint.rope_dict import rope_by_layer_type
from resonance_vllm.common.errors import RunError, error_message

logger = logging.getLogger(__name__)


class HFLong(HF):
    """lm-eval's `hf` with shared documents; every argument of `hf` is accepted.

    It can read `max_length` positions, as `hf` can: a prompt and what is generated after it
    together, or the tokens of a log-likelihood. Longer ones are cut on the left.

    Args:
        pretrained: as for `hf`.
        prefill_chunk: most tokens in one forward pass. None: 2,048 of a document that several
            requests share; of one that shares nothing, as many as `one_pass_tokens` says.
        question_batch_size: most questions of one document answered together.
        arguments: those of `HF` and of `from_pretrained`.
    """

    token_scoring = TokenScoring(score=score_by_own_method)

    def __init__(
        self,
        pretrained: Any,
        *,
        prefill_chunk: int | None = None,
        question_batch_size: int = 64,
        **arguments: Any,
    ) -> None:
        super().__init__(pretrained, **arguments)
        self.question_batch_size = question_batch_size
        self.chunk = prefill_chunk or CHUNK
        bytes_per_value = torch.empty((), dtype=self.model.dtype).element_size()
        self.one_pass = prefill_chunk or one_pass_tokens(self.model.config, bytes_per_value)
        with torch.no_grad(), self.autocast():
            self.head = Head(self.model, self.counts)
        self._memory = ReadMemory()
        self._logged_reasons: set[str] = set()  # why requests share nothing
        # The reader of the document that the prompts of the present batch begin with.
        self._shared: Reader | None = None

    @cached_property
    def reuse(self) -> Reuse:
        """Return how this model shares documents; found by a self-check on first use."""
        with self.autocast():
            return find_reuse(self.head)

    def set_rope(self, rope: Mapping[str, Any] | None, *others: Any, **more: Any) -> None:
        """Swap RoPE settings as `HF.set_rope` does, and repeat the self-check."""
        self.__dict__.pop("reuse", None)
        super().set_rope(rope, *others, **more)

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Return greedy answers, the questions of a document together."""
        sharing: dict[int, list[int]] = {}
        alone: list[int] = []
        for index, request in enumerate(requests):
            prompt, shares = self._prompt(request)
            if shares:
                sharing[index] = prompt
            else:
                alone.append(index)
        answers: dict[int, str] = {}
        # The generator is closed at once where the response cache raises, which sets the model back.
        with (
            self._running(len(requests), "Answering", disable_tqdm) as bar,
            closing(self._batches(sharing)) as shared_batches,
        ):
            for batch in filter(None, chain(shared_batches, [alone])):
                batch_answers = super().generate_until([requests[index] for index in batch], True)
                answers.update(zip(batch, batch_answers, strict=True))
                bar.update(len(batch))
        return [answers[index] for index in range(len(requests))]

    def _batches(self, prompts: Mapping[int, list[int]]) -> Generator[list[int], None, None]:
        """Read what prompts share; yield the requests that continue what was read last."""
        if not prompts:
            return
        requests = list(prompts)
        documents = list(prompts.values())
        reader = Reader(self.head, self.reuse.mode, self.chunk)
        # Padding would count for options that look at earlier tokens; `must_run_alone` excludes them.
        most_rows = 1
        worth_a_batch = 0
        if reader.mode == SHARED and self.question_batch_size > 1:
            most_rows = self.question_batch_size
            worth_a_batch = WORTH_A_BATCH
        longest_prefix = [len(prompt) - 1 for prompt in documents]
        before = self.batch_size_per_gpu
        self._shared = reader
        self.batch_size_per_gpu = most_rows
        try:
            for prefix, rows in batches(documents, longest_prefix, reader.least, worth_a_batch):
                reader.read(prefix)
                reader.keep()
                own_tokens = {row: len(documents[row]) - len(prefix) for row in rows}
                for batch in sized(own_tokens, most_rows, self.chunk):
                    start = prefix
                    if own_tokens[batch[-1]] > self.chunk:
                        # A batch of one, whose own part is long enough to be read in chunks.
                        start = documents[batch[0]][:-1]
                    reader.read(start)
                    yield [requests[row] for row in batch]
        finally:
            self._shared = None
            self.batch_size_per_gpu = before

    def _prompt(self, request: Any) -> tuple[list[int], bool]:
        """Return the token ids of a request, cut as by `hf`, and whether it can share a document.

        The first request that cannot is logged for each reason.
        """
        context, options = request.args
        options = normalize_gen_kwargs(options, self.max_gen_toks)
        new_tokens = options["max_gen_toks"]
        limits = {"left_truncate_len": self.max_length - new_tokens, "truncation": self.truncation}
        prompt: list[int] = self.tok_batch_encode([context], **limits)[0][0].tolist()
        reason = "empty prompt"
        if prompt:
            reason = self._too_long(len(prompt) + new_tokens) or must_run_alone(options)
        if reason and reason not in self._logged_reasons:
            logger.warning("requests that share no text: %s", reason)
            self._logged_reasons.add(reason)
        return prompt, not reason

    def _too_long(self, length: int) -> str:
        """Return why a sequence of this length cannot share a document; empty if it can."""
        if self.reuse.mode == NONE:
            return self.reuse.reason
        if self.switch is not None and length > self.switch:
            return f"longer than {self.switch} tokens, where the RoPE base changes"
        return ""

    def _model_generate(
        self, context: torch.Tensor, max_length: int, stop: list[str], **options: Any
    ) -> torch.Tensor:
        """Generate answers, for prompts that share a text by continuing it from its KV cache.

        Args:
            context: token ids of the prompts, `[rows, width]`, padded on the left.
            max_length: most tokens of a prompt with its answer, padding included.
            stop: strings that end an answer.
            **options: of `generate`, with the `attention_mask` of the prompts.

        Returns:
            Token ids `[rows, length]`: the prompts as in `context`, then the answers.
        """
        width = context.shape[1]
        if self._shared is None:
            description = f"answering prompts of up to {width:,} tokens by themselves"
            self.head.last_pass = ForwardPass(description, "batch_size", len(context))
            return super()._model_generate(context, max_length, stop, **options)
        mask = options.pop("attention_mask")
        rows = []
        for row, is_token in zip(context, mask.bool(), strict=True):
            rows.append(row[is_token].tolist())
        stop = self.stops_while_decoding(stop)
        criteria = StopStrings(self.tokenizer, stop, width, len(rows))
        greedy = {name: value for name, value in options.items() if name not in SAMPLING}
        generated_before = self.counts.generated
        output = self._shared.generate(
            rows,
            pad=self.tokenizer.pad_token_id,
            new=max_length - width,
            stopping_criteria=StoppingCriteriaList([criteria]),
            do_sample=False,
            **greedy,
        )
        # `output` is padded in another place, but as wide as `context` before the new tokens.
        answered = torch.cat([context, output[:, width:].to(context)], dim=1)
        # Until here a row was counted until the longest answer had ended.
        self.counts.generated = generated_before + self._new_tokens(answered, width)
        return answered

    def _loglikelihood_tokens(
        self, requests: Iterable[Any], disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[tuple[float, bool]]:
        """Return the sum of log-probabilities of given tokens, and whether all are the greedy ones.

        A request unpacks to (cache key or None, context ids, scored ids).
        """
        passages = [Passage(context, ids, self.max_length, key) for key, context, ids in requests]
        # The generator is closed at once where the response cache raises, which sets the model back.
        with closing(self._scored(passages, disable_tqdm)) as finished:
            for passage in finished:
                if passage.key is not None:
                    self.cache_hook.add_partial("loglikelihood", passage.key, passage.answer)
        return [passage.answer for passage in passages]

    def score_token_ids(
        self, requests: Iterable[tuple[Sequence[int], Sequence[int]]]
    ) -> list[Logprobs]:
        """Return the log-probability of each given token; which token is the greedy one is not found.

        Args:
            requests: ids of the context, and ids of the tokens to score.

        Returns:
            Natural logarithms of each request, float32 `[scored tokens]`.
        """
        passages = []
        for context, scored in requests:
            passages.append(Passage(context, scored, self.max_length, with_correct=False))
        if self.switch is None:
            self._score_with_memory(passages)
        else:  # log-probabilities depend on the length of what is read
            self._score(passages)
        return [passage.logprob.numpy() for passage in passages]

    def _score(self, passages: Sequence[Passage], disable_tqdm: bool = False) -> None:
        """Score passages."""
        for _ in self._scored(passages, disable_tqdm):
            pass

    def _score_with_memory(self, passages: Sequence[Passage]) -> None:
        """Score passages; what begins another one, read now or before, gets its numbers."""
        rotation = self._rotation()
        unread = []
        beginnings = []
        for passage in passages:
            if self._memory.recall(rotation, passage):
                continue
            if any(is_scored_by(passage, other) for other in passages):
                beginnings.append(passage)
            else:
                unread.append(passage)
        self._score(unread)
        for passage in unread:
            self._memory.add(rotation, passage)
        self._score(
            [beginning for beginning in beginnings if not self._memory.recall(rotation, beginning)]
        )

    def _rotation(self) -> str:
        """Return what distinguishes the present RoPE settings from others of this model."""
        text = self.model.config.get_text_config(decoder=True)
        precision = getattr(self.model, "rope_precision_used", "model")
        return f"{rope_by_layer_type(text)} in {precision}"

    def teacher_forced(
        self, requests: Iterable[Any], disable_tqdm: bool = False
    ) -> list[tuple[list[bool], list[float]]]:
        """Return correctness and log-probability of every token but the first, given those before.

        Requests are lm-eval instances with arguments `(token_ids,)`.

        Returns:
            `(correct, logprob)` for each request, each of `len(token_ids) - 1` items for positions
            1, 2, …; log-probabilities are natural and computed in float32.
        """
        passages = []
        for request in requests:
            tokens = request.args[0]
            passages.append(Passage(tokens[:1], tokens[1:], self.max_length))
        self._score(passages, disable_tqdm)
        return [(passage.correct.tolist(), passage.logprob.tolist()) for passage in passages]

    def _scored(
        self, passages: Sequence[Passage], disable_tqdm: bool
    ) -> Generator[Passage, None, None]:
        """Score passages, and yield each as it is finished; those that run alone come last."""
        sharing = []
        alone = []
        for passage in passages:
            if self._too_long(len(passage.inputs)):
                alone.append(passage)
            else:
                sharing.append(passage)
        with self._running(len(passages), "Reading", disable_tqdm) as bar:
            if sharing:
                reader = Reader(self.head, self.reuse.mode, self.chunk)
                for passage in score_passages(self.head, reader, sharing, self.one_pass):
                    yield passage
                    bar.update()
            for passage in alone:
                self.forget_last_request()
                passage.score_alone(self.head)
                yield passage
                bar.update()

    @contextmanager
    def _running(self, total: int, title: str, disable_tqdm: bool) -> Iterator[Any]:
        """Answer requests with progress, from the state in which the model was loaded.

        Raises:
            RunError: memory ran out; the message names the pass and the setting that helps.
        """
        from accelerate.utils.memory import should_reduce_batch_size

        self.forget_last_request()
        is_hidden = disable_tqdm or self.rank != 0
        try:
            with (
                torch.no_grad(),
                self.autocast(),
                tqdm(total=total, desc=title, disable=is_hidden) as bar,
            ):
                yield bar
        except (RuntimeError, MemoryError) as error:
            if not isinstance(error, MemoryError) and not should_reduce_batch_size(error):
                raise
            raise RunError(f"{error_message(error)}; {self._memory_advice()}") from error

    def _memory_advice(self) -> str:
        """Return which pass did not fit into memory, and what would make it smaller."""
        failed = self.head.last_pass
        place = f"memory ran out in {failed.description}"
        can_be_smaller = failed.size > 1
        is_in_one_pass = failed.setting == "prefill_chunk" and self._too_long(failed.size)
        if not can_be_smaller or is_in_one_pass:
            return f"{place}; set a smaller max_length (now {self.max_length})"
        smaller = failed.size // 2
        return f"{place}; set {failed.setting}={smaller} or less (now {failed.size})"
