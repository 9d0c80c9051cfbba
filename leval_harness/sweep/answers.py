"""What a cell has already been answered, so that a killed one goes on where it was.

Texts are kept by lm-eval's response cache, one file a cell; windows of tokens, which that does not
know, and how answers ended are kept in a file beside it. Requests are asked at most `MOST_REQUESTS`
at a time, so that no more are repeated.
"""

import contextlib
import hashlib
import json
import logging
import sqlite3
import time
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from leval_harness.cell_record import CellRecord
from leval_harness.layout import CELL, CELLS, LOSSES_OF
from leval_harness.sweep.claims import Folder
from leval_harness.sweep.identity import differences
from leval_tasks.token_logprobs import Logprobs, SumOfLogprobs, scored_requests
from resonance_vllm.files import json_lines, read_object

if TYPE_CHECKING:
    from leval_harness.sweep.evaluation import LoadedModel

log = logging.getLogger("leval_harness.sweep.worker")
TEXTS = ("generate_until", "loglikelihood", "loglikelihood_rolling")
"""Kinds of requests that lm-eval's response cache keeps."""
TOKENS = ("_loglikelihood_tokens", "token_logprobs")
"""Kinds of requests that are windows of tokens."""
MOST_REQUESTS = 64
MOST_TOKENS = 16_384
"""Tokens of windows that are asked at a time, where that is more than one window."""
Answer = Any
Asked = Callable[[Sequence[Any]], list[Answer]]


class Answers:
    """The answers of one cell; a context inside of which its model keeps them.

    Attributes:
        response_cache: lm-eval's `use_cache`; None where the file system has no locks.
    """

    def __init__(self, model: "LoadedModel", cell: CellRecord, place: Folder) -> None:
        self.model, self.cell, self.place = model, cell, place
        path = place.work / "cache" / cell.cell_id
        self.files = [path.with_name(f"{cell.cell_id}{end}") for end in ("_rank0.db", ".tokens.db")]
        self.response_cache: str | None = str(path)
        self.kept: MutableMapping[str, Any] = {}
        self.asked = self.answered = 0
        self.written = 0.0
        self.copies = dict(finished_losses(cell, place.path / CELLS))

    def __enter__(self) -> Self:
        """Take the place of the model's methods that answer requests."""
        from sqlitedict import SqliteDict

        lm = self.model.lm
        try:
            with contextlib.closing(sqlite3.connect(self.files[1])) as probe:
                probe.execute("create table if not exists probe (x)")
            self.kept = SqliteDict(str(self.files[1]), autocommit=True)
        except sqlite3.Error as error:
            log.warning(
                "a cell that is ended here begins anew: no database at its place: %s", error
            )
            self.response_cache = None
        if self.model.ends is not None:
            self.model.ends.known.clear()
        lm.set_cache_hook = self._hook
        for kind in (*TEXTS, *TOKENS):
            if (method := self._method(kind)) is not None:
                setattr(lm, kind, partial(self._ask, kind, method))
        return self

    def _method(self, kind: str) -> Asked | None:
        if kind == "token_logprobs":
            return partial(scored_requests, self.model.lm)
        return getattr(self.model.lm, kind, None)

    def __exit__(self, *_: object) -> None:
        """Give the model its own methods back: lm-eval's cache knows neither model nor rotation."""
        from lm_eval.api.model import CacheHook

        lm = self.model.lm
        self._hook(CacheHook(None))
        for name in ("set_cache_hook", *TEXTS, *TOKENS):
            vars(lm).pop(name, None)
        if close := getattr(self.kept, "close", None):
            close()

    def forget(self) -> None:
        """Remove what was kept: the cell is computed."""
        if close := getattr(self.kept, "close", None):
            close()
        for path in [*self.files, self.place.work / "progress" / self.cell.cell_id]:
            path.unlink(missing_ok=True)

    def _hook(self, hook: Any) -> None:
        """Set lm-eval's cache hook, which the model calls with every answer to a text."""
        counted = CountingHook(hook, self)
        if self.model.ends is not None:  # it stands in front of the hook
            self.model.ends.cache_hook = counted
        else:
            self.model.lm.cache_hook = counted

    def _ask(self, kind: str, method: Asked, requests: Sequence[Any], **options: Any) -> Any:
        """Answer requests of lm-eval's evaluator, some at a time; others pass."""
        if not all(hasattr(request, "args") for request in requests):
            return method(requests, **options)  # a backend calls its own method
        self.asked += len(requests)
        answers: dict[int, Answer] = {}
        windows = kind in TOKENS
        for at, request in enumerate(requests) if windows else ():
            if (known := self._known(kind, request)) is not None:
                answers[at] = known
        self._count(len(answers))
        todo = [(at, request) for at, request in enumerate(requests) if at not in answers]
        for part in portions(todo):
            before = self.answered
            found = method([request for _, request in part], **options)
            answers |= {at: answer for (at, _), answer in zip(part, found, strict=True)}
            if windows:
                for at, request in part:
                    self.kept[key_of(kind, request)] = answers[at]
            self._count(before + len(part) - self.answered)
        return [answers[at] for at in range(len(requests))]

    def _known(self, kind: str, request: Any) -> Answer | None:
        """The kept answer to a window, or one of a finished cell of fewer or more texts."""
        kept = self.kept.get(key_of(kind, request))
        window, doc = getattr(request, "window", None), request.doc
        if kept is not None or window is None or kind != "token_logprobs":
            return kept
        key = (request.task_name, doc.get("document_id"), doc.get("tokens_sha256"))
        if key not in self.copies:
            return None
        losses = self.copies[key]
        start = int(doc["document_tokens"]) - losses.size  # they run to the end of the text
        part = losses[window.score_start - start : window.end - start]
        whole = window.score_start >= start and part.size == window.end - window.score_start
        if not whole or np.isnan(part).any():
            return None
        return SumOfLogprobs(-float(part.sum(dtype=np.float64)), -part)

    def _count(self, number: int) -> None:
        """Note how many requests are answered."""
        self.answered += number
        if time.monotonic() - self.written > 1.0 or self.answered == self.asked:
            self.written = time.monotonic()
            progress = self.place.work / "progress" / self.cell.cell_id
            with contextlib.suppress(OSError):
                progress.write_text(f"{self.answered} {self.asked}")

    def ends_of(self, prompt: str, answer: str) -> list[bool]:
        """Whether the limit ended an answer to a prompt, in an earlier attempt at the cell too."""
        known = self.model.ends.of(prompt, answer) if self.model.ends else []
        return known or self.kept.get(key_of_end(prompt, answer), [])


class CountingHook:
    """Counts the answers that lm-eval's response cache is given."""

    def __init__(self, hook: Any, answers: Answers) -> None:
        self.hook, self.answers = hook, answers

    def add_partial(self, kind: str, request: Any, answer: Any) -> None:
        """Count an answer and keep it, with how it ended."""
        if kind == "generate_until" and (ends := self.answers.ends_of(request[0], answer)):
            self.answers.kept[key_of_end(request[0], answer)] = ends
        self.hook.add_partial(kind, request, answer)
        if self.answers.answered < self.answers.asked:
            self.answers._count(1)


def key_of(kind: str, request: Any) -> str:
    """What a request is kept under, as lm-eval does it: kind and arguments."""
    text = json.dumps([kind, *request.args])
    return hashlib.sha256(text.encode()).hexdigest()


def key_of_end(prompt: str, answer: str) -> str:
    """What the end of an answer is kept under."""
    return "end " + hashlib.sha256(json.dumps([prompt, answer]).encode()).hexdigest()


def portions(requests: Sequence[tuple[int, Any]]) -> Iterator[list[tuple[int, Any]]]:
    """Requests in portions, those about one document together where they fit into one."""
    portion: list[tuple[int, Any]] = []
    for document in _by_document(requests):
        size = sum(_tokens(request) for _, request in portion + document)
        full = len(portion) + len(document) > MOST_REQUESTS or size > MOST_TOKENS
        if portion and full:
            yield portion
            portion = []
        portion += document
    if portion:
        yield portion


def _by_document(requests: Sequence[tuple[int, Any]]) -> Iterator[list[tuple[int, Any]]]:
    """Neighbours about one document, at most `MOST_REQUESTS`; windows of tokens one by one."""
    run: list[tuple[int, Any]] = []
    for each in requests:
        doc = each[1].doc
        name = doc.get("document_id") if isinstance(doc, dict) else None
        alone = name is None or _tokens(each[1]) > 0
        if run and (
            alone or name != run[-1][1].doc.get("document_id") or len(run) == MOST_REQUESTS
        ):
            yield run
            run = []
        if alone:
            yield [each]
        else:
            run.append(each)
    if run:
        yield run


def _tokens(request: Any) -> int:
    """Tokens of a window; 0 for a text, which a backend may share with others."""
    _, context, scored = getattr(request, "token_parts", (None, (), ()))
    return len(context) + len(scored)


def finished_losses(
    cell: CellRecord, cells: Path
) -> Iterator[tuple[tuple[str, str, str], Logprobs]]:
    """Task, text and digest -> losses of its tokens, from cells that differ in the number of texts.

    Args:
        cell: that is computed; its `metadata.reads` says which read.
        cells: folder of the finished ones.
    """
    read = cell.metadata.get("reads")
    for folder in sorted(cells.iterdir()) if read else ():
        record = read_object(folder / CELL) or {}
        if set(differences(record.get("identity", {}), cell.identity)) != {"metadata.num_docs"}:
            continue
        for samples in folder.glob("samples_*.jsonl"):
            for _, line in json_lines(samples.read_text(encoding="utf-8")):
                doc = json.loads(line)["doc"]
                task = samples.name.removeprefix("samples_").rpartition("_20")[0]
                name = LOSSES_OF.format(task=task, document=doc.get("document_id"), read=read)
                if (folder / name).is_file():
                    losses = np.load(folder / name, allow_pickle=False)
                    yield (task, doc["document_id"], doc["tokens_sha256"]), losses
