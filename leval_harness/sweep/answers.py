"""What a run has already been answered, so that a killed one goes on where it was.

Each attempt at a run has a file of its own, a JSON line for each answer. Requests are asked at
most `MOST_REQUESTS` at a time, so that no more are repeated also where a backend tells its answers
at the end. A run of more documents finds the answers of finished ones that differ in nothing else.
"""

import contextlib
import hashlib
import json
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Self

import numpy as np

from leval_harness.backends.answer_limits import AnswerEnds
from leval_harness.results.layout import RUN_FILE, RUNS_FOLDER
from leval_harness.sweep.claims import Folder
from leval_harness.sweep.identity import differences
from leval_harness.sweep.run_record import RunRecord
from leval_tasks.common.token_logprobs import REQUEST, SumOfLogprobs, scored_requests
from resonance_vllm.common.files import iter_json_lines, read_json_object

log = logging.getLogger("leval_harness.sweep.worker")
TEXTS = ("generate_until", "loglikelihood", "loglikelihood_rolling")
"""Kinds of requests whose answers lm-eval's models pass to their cache hook; not so `REQUEST`."""
MOST_REQUESTS = 64
MOST_TOKENS = 16_384
"""Tokens of windows of several documents asked at a time; an engine reads many side by side."""
Numbered = tuple[int, Any]


class Answers:
    """The answers of one run in one attempt; a context inside of which its model keeps them.

    It is the cache hook of the model meanwhile: lm-eval's own cache knows neither model nor
    rotation, and two answers to one request are one to it.
    """

    def __init__(
        self, lm: Any, ends: AnswerEnds | None, run: RunRecord, place: Folder, attempt: str
    ) -> None:
        self.lm, self.ends, self.run, self.attempt = lm, ends, run, attempt
        self.progress, self.cache = place.work / "progress" / run.run_id, place.work / "cache"
        self.kept: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for name in (run.run_id, *alike(run, place.path / RUNS_FOLDER)):
            for path in sorted(self.cache.glob(f"{name}.*")):
                for _, line in iter_json_lines(path.read_text(encoding="utf-8", errors="replace")):
                    with contextlib.suppress(ValueError):  # of a process that was killed
                        row = json.loads(line)
                        self.kept[row["key"]].append(row)
        self.untold: Counter[str] = Counter()
        self.asked = self.answered = 0

    def __enter__(self) -> Self:
        """Take the place of the model's methods that answer requests."""
        self.handle = (self.cache / self.attempt).open("a", encoding="utf-8")
        self.handle.write("\n")  # after half a line of an attempt of the same name
        if self.ends is not None:
            self.ends.known.clear()
        (self.ends or self.lm).cache_hook = self  # what notes ends is in front
        for kind in (*TEXTS, REQUEST):
            method = getattr(self.lm, kind, partial(scored_requests, self.lm))
            setattr(self.lm, kind, partial(self._ask, kind, method))
        return self

    def __exit__(self, *_: object) -> None:
        """Give the model its own methods back."""
        from lm_eval.api.model import CacheHook

        (self.ends or self.lm).cache_hook = CacheHook(None)
        for name in (*TEXTS, REQUEST):
            vars(self.lm).pop(name, None)
        with contextlib.suppress(OSError):  # what a full disk refused once
            self.handle.close()

    def forget(self) -> None:
        """Remove what was kept, the run is computed; not of documents, which further runs take."""
        self.progress.unlink(missing_ok=True)
        if "reads" not in self.run.metadata:
            for path in self.cache.glob(f"{self.run.run_id}.*"):
                path.unlink(missing_ok=True)

    def _ask(
        self, kind: str, method: Callable[..., list[Any]], requests: Sequence[Any], **options: Any
    ) -> list[Any]:
        """Answer requests of lm-eval's evaluator, some at a time; others pass."""
        if not all(hasattr(request, "args") for request in requests):
            return method(requests, **options)  # a backend calls its own method
        self.asked += len(requests)
        answers = [self._known(kind, request) for request in requests]
        open_ = [(at, requests[at]) for at, answer in enumerate(answers) if answer is None]
        log.info("%d of %d answers are there already", len(answers) - len(open_), len(answers))
        self._count(len(answers) - len(open_))
        for part in portions(open_):
            self.untold = Counter(_key(kind, request.args) for _, request in part)
            found = method([request for _, request in part], **options)
            for (at, request), answer in zip(part, found, strict=True):
                answers[at] = answer
                self.add_partial(kind, request.args, answer)  # unless the backend has told it
        return answers

    def add_partial(self, kind: str, arguments: Sequence[Any], answer: Any) -> None:
        """Keep an answer, with how it ended; the name is that of lm-eval's hooks."""
        key = _key(kind, arguments)
        if not self.untold[key]:
            return
        self.untold[key] -= 1
        row: dict[str, Any] = {"key": key, "answer": answer}
        if kind == REQUEST:
            row["logprobs"] = answer.logprobs.tolist()
        elif kind == "generate_until" and self.ends is not None:
            ends = self.ends.of(str(arguments[0]), str(answer))
            row["end"] = ends[-1] if ends else None
        self.handle.write(json.dumps(row, default=lambda value: value.item()) + "\n")
        self.handle.flush()
        self._count(1)

    def _known(self, kind: str, request: Any) -> Any:
        """The answer of an earlier attempt; None where there is none."""
        if not (rows := self.kept[_key(kind, request.args)]):
            return None
        row = rows.pop(0)
        answer, end = row["answer"], row.get("end")
        if kind == REQUEST:
            return SumOfLogprobs(answer, np.array(row["logprobs"], np.float32))
        if end is not None and self.ends is not None:
            self.ends.known.setdefault((str(request.args[0]), answer), []).append(end)
        return tuple(answer) if isinstance(answer, list) else answer

    def _count(self, number: int) -> None:
        """Note how many requests are answered."""
        self.answered += number
        with contextlib.suppress(OSError):
            self.progress.write_text(f"{self.answered} {self.asked}")


def _key(kind: str, arguments: Sequence[Any]) -> str:
    """What an answer is kept under; that of a window names the digest of its tokens."""
    text = json.dumps([kind, *arguments], default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def alike(run: RunRecord, runs: Path) -> Iterator[str]:
    """Finished runs that read documents as this one does and differ in the number of documents alone."""
    for folder in sorted(runs.iterdir()) if "reads" in run.metadata else ():
        identity = (read_json_object(folder / RUN_FILE) or {}).get("identity", {})
        if set(differences(identity, run.identity)) == {"metadata.num_docs"}:
            yield folder.name


def portions(requests: Sequence[Numbered]) -> Iterator[list[Numbered]]:
    """Requests in portions, those about one document together."""
    portion: list[Numbered] = []
    for _, run in groupby(requests, _document):
        neighbours = list(run)
        for first in range(0, len(neighbours), MOST_REQUESTS):
            part = neighbours[first : first + MOST_REQUESTS]
            size = sum(map(_tokens, portion + part))
            if portion and (len(portion + part) > MOST_REQUESTS or size > MOST_TOKENS):
                yield portion
                portion = []
            portion = portion + part
    if portion:
        yield portion


def _tokens(numbered: Numbered) -> int:
    """Tokens of a window; 0 for other requests."""
    _, context, scored = getattr(numbered[1], "token_parts", (None, (), ()))
    return len(context) + len(scored)


def _document(numbered: Numbered) -> object:
    """The document of a request, which a backend may read once for several."""
    number, request = numbered
    return request.doc.get("document_id", number) if isinstance(request.doc, dict) else number
