"""The answers that a run already has, so that a killed run continues where it was.

Each attempt at a run has a file of its own, with one JSON line per answer. The requests are passed on
part by part (`parts`), so that few are repeated even with a backend that returns its answers only at
the end, and so that other workers can take parts of the run. The worker after whose part all are
finished reads the answers of all files, and lm-eval scores them in the order of the documents, as if
one model had given them. A run of more documents reuses the answers of finished runs that differ from
it in nothing else.
"""

import contextlib
import hashlib
import json
import logging
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from leval_harness.backends.answer_limits import AnswerEnds
from leval_harness.results.layout import RUN_FILE, RUNS_FOLDER
from leval_harness.sweep.heartbeat import Heartbeat
from leval_harness.sweep.identity import differences
from leval_harness.sweep.not_finite import not_finite, refuse_not_finite
from leval_harness.sweep.parts import Numbered, Portion, divide, document_of
from leval_harness.sweep.parts_of_run import PartsOfRun
from leval_harness.sweep.run_progress import RunProgress, write_progress
from leval_harness.sweep.run_record import RunRecord
from leval_tasks.common.token_logprobs import REQUEST, SumOfLogprobs, scored_requests
from resonance_vllm.common.files import iter_json_lines, read_json_object

log = logging.getLogger("leval_harness.sweep.worker")
TEXT_REQUESTS = ("generate_until", "loglikelihood", "loglikelihood_rolling")
"""Kinds of requests whose answers lm-eval's models pass to their cache hook; `REQUEST` is not one."""


class Answers:
    """The answers of one attempt at a run; a context in which its model keeps them.

    Inside of the context it is the cache hook of the model. lm-eval's own cache cannot be used: its
    key knows neither model nor rotation, and it takes two answers to equal requests for one.

    Args:
        lm: the loaded model.
        ends: the record of which answers the generation limit ended; None without one.
        run: the run that is evaluated.
        heartbeat: is informed of every answer; it has the claim of this worker.
        attempt: name of this attempt's file.

    Attributes:
        tasks: the run's tasks, whose requests lm-eval makes before it asks for the first answer.
            Without them the first call has all requests.
    """

    def __init__(
        self, lm: Any, ends: AnswerEnds | None, run: RunRecord, heartbeat: Heartbeat, attempt: str
    ) -> None:
        self.lm = lm
        self.ends = ends
        self.run = run
        self.heartbeat = heartbeat
        self.attempt = attempt
        self.tasks: Sequence[Any] = ()
        self.methods: dict[str, Callable[..., list[Any]]] = {}
        self.is_divided = False
        self.progress_file = heartbeat.folder.work / "progress" / attempt
        self.cache = heartbeat.folder.work / "cache"
        self.stored: dict[str, list[dict[str, Any]]] = {}
        self._read_all()
        self.not_stored: Counter[str] = Counter()
        self.requests = 0
        self.answered = 0
        self.resumed = 0
        self.started: float | None = None

    def _read_all(self) -> None:
        """Read what attempts at the run, and runs of other numbers of documents, have stored."""
        self.stored = defaultdict(list)
        if self.ends is not None:
            self.ends.known.clear()
        for name in (
            self.run.run_id,
            *runs_with_other_num_docs(self.run, self.heartbeat.folder.path),
        ):
            self._read(name)

    def _read(self, run: str) -> None:
        """Read the answers that attempts at a run have stored."""
        for path in sorted(self.cache.glob(f"{run}.*")):
            for _, line in iter_json_lines(path.read_text(encoding="utf-8", errors="replace")):
                with contextlib.suppress(ValueError):  # half a line, of a process that was killed
                    row = json.loads(line)
                    if "logprobs" in row:
                        row["logprobs"] = np.array(row["logprobs"], np.float32)
                    self.stored[row["key"]].append(row)

    def __enter__(self) -> Self:
        """Replace the methods of the model that answer requests."""
        self.heartbeat.report = self.report
        self.handle = (self.cache / self.attempt).open("a", encoding="utf-8")
        (self.ends or self.lm).cache_hook = self  # what records the ends passes answers on
        for kind in (*TEXT_REQUESTS, REQUEST):
            method = getattr(self.lm, kind, partial(scored_requests, self.lm))
            self.methods[kind] = method
            setattr(self.lm, kind, partial(self._answer, kind, method))
        return self

    def __exit__(self, *_: object) -> None:
        """Give the model its own methods back."""
        from lm_eval.api.model import CacheHook

        self.heartbeat.report = None
        (self.ends or self.lm).cache_hook = CacheHook(None)
        for name in (*TEXT_REQUESTS, REQUEST):
            vars(self.lm).pop(name, None)
        with contextlib.suppress(OSError):  # a disk that was full when the answers were written
            self.handle.close()

    def _answer(
        self, kind: str, method: Callable[..., list[Any]], requests: Sequence[Any], **options: Any
    ) -> list[Any]:
        """Answer the requests of lm-eval's evaluator, part by part, those of every kind at once.

        Raises:
            PartsOfOthersError: other workers have parts of the run that they have not finished.
        """
        if not all(hasattr(request, "args") for request in requests):
            return method(requests, **options)  # a backend that calls its own method
        if not self.is_divided:
            self.is_divided = True
            self._compute_parts({kind: requests, **self._requests_of_tasks()})
            self._read_all()
        answers = [self._stored_answer(kind, request) for request in requests]
        missing = [(at, requests[at]) for at, answer in enumerate(answers) if answer is None]
        for at, answer in self._pass_on(Portion(kind, missing), options):
            answers[at] = answer
        self.heartbeat.progress("scoring the answers")
        return answers

    def _requests_of_tasks(self) -> dict[str, list[Any]]:
        """Return all requests of the run: lm-eval makes those of every task before the first answer."""
        requests: dict[str, list[Any]] = {}
        for task in self.tasks:
            for request in task.instances or ():  # none if lm-eval took another object of its name
                requests.setdefault(request.request_type, []).extend([request] * request.repeats)
        return requests

    def _compute_parts(self, requests: Mapping[str, Sequence[Any]]) -> None:
        """Answer the requests of one part after the other, until no part is free.

        Raises:
            PartsOfOthersError: other workers have parts that they have not finished.
        """
        parts = divide(requests, self.run.model.backend)
        work = PartsOfRun(self.heartbeat, len(parts), self.attempt)
        self.requests = sum(map(len, requests.values()))
        present = self._stored_number(requests)
        log.info("%d of %d answers are there already", present, self.requests)
        self.started = time.monotonic()
        self.resumed = present
        self._count(present)
        for number in work:
            for portion in parts[number]:
                missing = [
                    (at, request)
                    for at, request in portion.requests
                    if self._stored_answer(portion.kind, request) is None
                ]
                self._pass_on(Portion(portion.kind, missing))
            os.fsync(self.handle.fileno())  # before another machine counts on it
            work.finish(number, self.counts())

    def _stored_number(self, requests: Mapping[str, Sequence[Any]]) -> int:
        """Return how many requests have an answer already."""
        asked = Counter(
            _key(kind, one.args) for kind, of_kind in requests.items() for one in of_kind
        )
        return sum(min(number, len(self.stored.get(key, ()))) for key, number in asked.items())

    def _pass_on(
        self, portion: Portion, options: Mapping[str, Any] = MappingProxyType({})
    ) -> list[tuple[int, Any]]:
        """Let the model answer requests, store the answers, and return them with their places."""
        if not portion.requests:
            return []
        kind = portion.kind
        self.heartbeat.progress(f"answering {_named(portion.requests)}")
        self.not_stored = Counter(_key(kind, request.args) for _, request in portion.requests)
        fresh = self.methods[kind]([request for _, request in portion.requests], **options)
        answers = []
        for (at, request), answer in zip(portion.requests, fresh, strict=True):
            refuse_not_finite(request, answer)
            answers.append((at, answer))
            self.add_partial(kind, request.args, answer)  # does nothing if the backend did it
        return answers

    def counts(self) -> dict[str, Any]:
        """Return what this worker has done for the run: answers, seconds, and what the model counts."""
        seconds = 0.0
        if self.started is not None:
            seconds = time.monotonic() - self.started
        return {
            "answers": self.answered - self.resumed,
            "seconds": round(seconds, 3),
            "telemetry": self._telemetry(),
        }

    def _telemetry(self) -> dict[str, Any]:
        """Return what the model counts; someone else's backend may raise anything."""
        with contextlib.suppress(Exception):
            return dict(self.lm.telemetry())
        return {}

    def add_partial(self, kind: str, arguments: Sequence[Any] | None, answer: Any) -> None:
        """Store an answer, with how it ended; the name is that of lm-eval's hooks.

        Args:
            kind: of the request.
            arguments: of the request; None from lm-eval's concurrent models for a part of a
                request, which is not stored.
            answer: what the model answered.
        """
        if arguments is None:
            return
        key = _key(kind, arguments)
        if not self.not_stored[key] or not_finite(answer).any():
            return
        self.not_stored[key] -= 1
        row: dict[str, Any] = {"key": key, "answer": answer}
        if kind == REQUEST:
            row["logprobs"] = answer.logprobs.tolist()
        elif kind == "generate_until" and self.ends is not None:
            ends = self.ends.of(str(arguments[0]), str(answer))
            row["end"] = ends[-1] if ends else None
        self.handle.write(json.dumps(row, default=lambda value: value.item()) + "\n")
        self.handle.flush()
        self._count(1)
        self.heartbeat.progress(self.heartbeat.doing)

    def _stored_answer(self, kind: str, request: Any) -> Any:
        """Return the answer of an earlier attempt; None if there is none."""
        rows = self.stored[_key(kind, request.args)]
        if not rows:
            return None
        row = rows.pop(0)
        answer = row["answer"]
        if kind == REQUEST:
            return SumOfLogprobs(answer, row["logprobs"])
        end = row.get("end")
        if end is not None and self.ends is not None:
            self.ends.known.setdefault((str(request.args[0]), answer), []).append(end)
        return tuple(answer) if isinstance(answer, list) else answer

    def _count(self, number: int) -> None:
        """Record that so many more requests are answered."""
        self.answered += number
        self.report()

    def report(self) -> int:
        """Write how far the run is, and return the tokens that were computed for it so far.

        Called with every answer, and once a second by the thread of the heartbeat.
        """
        if self.started is None:
            return 0
        counts = self._telemetry()
        progress = RunProgress(
            requests=self.requests,
            answered=self.answered,
            resumed=self.resumed,
            prefilled=int(counts.get("tokens_prefilled") or 0),
            decoded=int(counts.get("tokens_generated") or 0),
            seconds=round(time.monotonic() - self.started, 1),
        )
        write_progress(self.progress_file, progress)
        return progress.tokens


def _named(portion: Sequence[Numbered]) -> str:
    """Return how messages call some requests."""
    _, first = portion[0]
    count = f"{len(portion)} request{'' if len(portion) == 1 else 's'}"
    return f"{count} of {first.task_name} from document {document_of(portion[0])} on"


def _key(kind: str, arguments: Sequence[Any]) -> str:
    """Return the key under which an answer is stored; of a window it holds the digest of its tokens."""
    text = json.dumps([kind, *arguments], default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def runs_with_other_num_docs(run: RunRecord, sweep: Path) -> Iterator[str]:
    """Yield finished runs that read documents as `run` does, and only differ in how many."""
    if "reads" not in run.metadata:
        return
    for folder in sorted((sweep / RUNS_FOLDER).iterdir()):
        identity = (read_json_object(folder / RUN_FILE) or {}).get("identity", {})
        if set(differences(identity, run.identity)) == {"metadata.num_docs"}:
            yield folder.name
