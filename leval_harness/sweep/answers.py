"""What a cell has already been answered, so that a killed one goes on where it was.

Each attempt at a cell has a file of its own, a JSON line for each answer. Requests are asked at
most `MOST_REQUESTS` at a time, so that no more are repeated also where a backend tells its answers
at the end.
"""

import contextlib
import hashlib
import json
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from leval_harness.cell_record import CellRecord
from leval_harness.layout import CELL, CELLS, LOSSES_OF
from leval_harness.sweep.claims import Folder
from leval_harness.sweep.identity import differences
from leval_tasks.token_logprobs import REQUEST, Logprobs, SumOfLogprobs, scored_requests
from resonance_vllm.files import json_lines, read_object

if TYPE_CHECKING:
    from leval_harness.sweep.evaluation import LoadedModel

log = logging.getLogger("leval_harness.sweep.worker")
TEXTS = ("generate_until", "loglikelihood", "loglikelihood_rolling")
"""Kinds of requests whose answers lm-eval's models pass to their cache hook; not so `REQUEST`."""
MOST_REQUESTS = 64
MOST_TOKENS = 16_384
"""Tokens of windows of several texts asked at a time; an engine reads many side by side."""
Asked = Callable[[Sequence[Any]], list[Any]]
Numbered = tuple[int, Any]


class Answers:
    """The answers of one cell in one `attempt`; a context inside of which its model keeps them.

    It is the cache hook of the model meanwhile: lm-eval's own cache knows neither model nor
    rotation, and two answers to one request are one to it.
    """

    def __init__(self, model: "LoadedModel", cell: CellRecord, place: Folder, attempt: str) -> None:
        self.lm, self.ends = model.lm, model.ends
        self.progress = place.work / "progress" / cell.cell_id
        self.file = place.work / "cache" / attempt
        self.earlier = list(self.file.parent.glob(f"{cell.cell_id}.*"))
        self.kept: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.waiting: dict[str, list[str]] = defaultdict(list)
        self.copies = dict(finished_losses(cell, place.path / CELLS))
        self.asked = self.answered = 0
        self.written = 0.0

    def __enter__(self) -> Self:
        """Take the place of the model's methods that answer requests."""
        for path in self.earlier:
            for _, line in json_lines(path.read_text(encoding="utf-8", errors="replace")):
                with contextlib.suppress(ValueError):  # of a process that was killed
                    row = json.loads(line)
                    self.kept[row["key"]].append(row)
        self.file.parent.mkdir(exist_ok=True)
        self.handle = self.file.open("a", encoding="utf-8")
        self.handle.write("\n")  # after half a line of an attempt of the same name
        if self.ends is not None:
            self.ends.known.clear()
        self._hook(self)
        for kind in (*TEXTS, REQUEST):
            method = getattr(self.lm, kind, partial(scored_requests, self.lm))
            setattr(self.lm, kind, partial(self._ask, kind, method))
        return self

    def __exit__(self, *_: object) -> None:
        """Give the model its own methods back."""
        from lm_eval.api.model import CacheHook

        self._hook(CacheHook(None))
        for name in (*TEXTS, REQUEST):
            vars(self.lm).pop(name, None)
        with contextlib.suppress(OSError):  # what a full disk refused once
            self.handle.close()

    def forget(self) -> None:
        """Remove what was kept: the cell is computed."""
        for path in (*self.earlier, self.file, self.progress):
            path.unlink(missing_ok=True)

    def _hook(self, hook: Any) -> None:
        """Set what the model calls with every answer to a text; what notes ends is in front."""
        (self.lm if self.ends is None else self.ends).cache_hook = hook

    def _ask(self, kind: str, method: Asked, requests: Sequence[Any], **options: Any) -> Any:
        """Answer requests of lm-eval's evaluator, some at a time; others pass."""
        if not all(hasattr(request, "args") for request in requests):
            return method(requests, **options)  # a backend calls its own method
        self.asked += len(requests)
        known = ((at, self._known(kind, request)) for at, request in enumerate(requests))
        answers = {at: answer for at, answer in known if answer is not None}
        log.info("%d of %d answers are there already", len(answers), len(requests))
        self._count(len(answers))
        for part in portions([each for each in enumerate(requests) if each[0] not in answers]):
            self.waiting.clear()
            for _, request in part:
                self.waiting[_text(kind, request.args)].append(key_of(kind, request))
            found = method([request for _, request in part], **options)
            for (at, request), answer in zip(part, found, strict=True):
                answers[at] = answer
                self.add_partial(kind, request.args, answer)  # unless the backend has told it
        return [answers[at] for at in range(len(requests))]

    def add_partial(self, kind: str, arguments: Sequence[Any], answer: Any) -> None:
        """Keep an answer, with how it ended; the name is that of lm-eval's hooks."""
        if not (keys := self.waiting[_text(kind, arguments)]):
            return
        row: dict[str, Any] = {"key": keys.pop(0), "answer": answer}
        if kind == REQUEST:
            row["logprobs"] = answer.logprobs.tolist()
        elif kind == "generate_until" and self.ends is not None:
            ends = self.ends.of(str(arguments[0]), str(answer))
            row["end"] = ends[-1] if ends else None
        self.handle.write(json.dumps(row, default=lambda value: value.item()) + "\n")
        self.handle.flush()
        self._count(1)

    def _known(self, kind: str, request: Any) -> Any:
        """The answer of an earlier attempt, or the losses of a cell of fewer or more texts."""
        waiting = self.kept[key_of(kind, request)]
        if not waiting:
            return self._copied(request) if kind == REQUEST else None
        row = waiting.pop(0)
        answer = row["answer"]
        if kind == REQUEST:
            return SumOfLogprobs(answer, np.array(row["logprobs"], np.float32))
        end = row.get("end")
        if end is not None and self.ends is not None:
            self.ends.known.setdefault((str(request.args[0]), answer), []).append(end)
        return tuple(answer) if isinstance(answer, list) else answer

    def _copied(self, request: Any) -> SumOfLogprobs | None:
        """The answer to a window from the losses of a text that a finished cell has read."""
        window, doc = request.window, request.doc
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
            with contextlib.suppress(OSError):
                self.progress.write_text(f"{self.answered} {self.asked}")


def _text(kind: str, arguments: Sequence[Any]) -> str:
    """A request as a model's cache hook knows it."""
    return json.dumps([kind, *arguments], default=str)


def key_of(kind: str, request: Any) -> str:
    """What an answer is kept under: its task and question, the kind and the arguments."""
    text = f"{request.task_name} {request.doc_id} {request.idx} {_text(kind, request.args)}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


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


def finished_losses(
    cell: CellRecord, cells: Path
) -> Iterator[tuple[tuple[str, str, str], Logprobs]]:
    """Task, text and digest -> losses, from `cells` that differ in the number of texts alone."""
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
