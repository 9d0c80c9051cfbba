"""What a run makes its model read and generate, from its tasks and a tokenizer, without a model."""

import json
import random
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from leval_harness.backends import BACKENDS
from leval_harness.sweep.cost import Pass
from leval_harness.sweep.identity import RUNNING_TEXT
from leval_harness.sweep.run_record import RunRecord
from leval_harness.sweep.task_registry import LENGTH_KEY, families_of, tasks_in_folder
from resonance_vllm.common.errors import UserError

SAMPLED_DOCUMENTS = 2
"""Documents of each closed-ended task that are tokenized; the others are taken to be alike."""
QUESTIONS_OF_RULER = 500
"""Questions that each RULER task makes of a length."""
TOKENS_OF_RULER = 128
"""Most tokens of an answer to one of them."""


class Workload(NamedTuple):
    """The passes of a run.

    Attributes:
        documents: documents that are scored, or questions that are answered.
        passes: what the model reads and generates, in any order.
        texts: different texts that are read, where several questions may be about one; 0 where each
            document is a text of its own.
    """

    documents: int
    passes: Sequence[Pass]
    texts: int = 0


class Workloads:
    """The workloads of runs; what runs have in common is tokenized once."""

    def __init__(self) -> None:
        self._known: dict[str, Workload | UserError | None] = {}

    def of(self, run: RunRecord) -> Workload | None:
        """Return what a run makes its model read and generate.

        Args:
            run: a planned run.

        Returns:
            The workload; None where it is not known before the run: models on servers, and tasks of
            lm-eval other than RULER.

        Raises:
            UserError: the tasks refuse their settings, or there is too little text.
        """
        key = _key(run)
        if key not in self._known:
            try:
                self._known[key] = workload_of(run)
            except UserError as error:
                self._known[key] = error
        known = self._known[key]
        if isinstance(known, UserError):
            raise known
        return known


def _key(run: RunRecord) -> str:
    """Return a key that is the same for runs which read the same: all methods of a model do."""
    shared = run.model_dump(
        mode="json",
        include={
            "tasks",
            "metadata",
            "gen_kwargs",
            "limit",
            "apply_chat_template",
            "context_length",
        },
    )
    of_model = [run.model.path, run.model.backend, run.model.args, _longest(run)]
    return json.dumps([shared, of_model], sort_keys=True, default=str)


def _longest(run: RunRecord) -> Any:
    return run.model_args.get("max_length") or run.model_args.get("max_model_len")


def workload_of(run: RunRecord) -> Workload | None:
    """Return the workload of one run, see `Workloads.of`."""
    if run.model.backend not in BACKENDS:
        return None
    families = families_of(run.tasks)
    state = random.getstate()
    try:
        if families <= RUNNING_TEXT:
            return _of_running_text(run)
        if families == {"closed"}:
            return _of_questions(run)
        if families == {"retrieval"}:
            return _of_needles(run)
        if families == {"mrcr"}:
            return _of_conversations(run)
    finally:
        random.setstate(state)
    return _of_ruler(run)


def _of_running_text(run: RunRecord) -> Workload:
    """Return the windows of perplexity and effective-context tasks."""
    documents = 0
    passes: list[Pass] = []
    shares = BACKENDS[run.model.backend].shares_documents
    for task in loaded_tasks(run):
        docs = task.test_docs()[: run.limit]
        documents += len(docs)
        for doc in docs:
            passes += _passes_of_windows(task.windows(doc), shares)
    return Workload(documents, passes)


def _passes_of_windows(windows: Sequence[Any], shares: bool) -> Iterator[Pass]:
    """Yield a pass for each window of a document.

    Windows of several lengths that begin at the same token share what the longer one does not
    score.
    """
    before = None
    for window in sorted(windows, key=lambda window: (window.start, window.end)):
        tokens = window.end - window.start + window.bos
        cached = 0
        if shares and before is not None and before.start == window.start:
            cached = min(before.end, window.score_start) - window.start
        yield Pass(tokens, cached=max(0, cached), scored=window.scored)
        before = window


def _of_questions(run: RunRecord) -> Workload | None:
    """Return the prompts of L-Eval's closed-ended tasks, estimated from a few documents of each."""
    counts = {}
    texts = 0
    for task in loaded_tasks(run):
        counts[task.task_name] = len(task.test_docs())
        texts += len({doc["document_id"] for doc in task.test_docs()[: run.limit]})
    few = {key: value for key, value in run.metadata.items() if key != "min_questions"}
    number = min(SAMPLED_DOCUMENTS, int(run.metadata.get("num_docs") or SAMPLED_DOCUMENTS))
    sample = run.model_copy(update={"metadata": {**few, "num_docs": number}})
    total = 0
    passes: list[Pass] = []
    for task in loaded_tasks(sample):
        task.config.generation_kwargs.update(run.gen_kwargs)
        try:
            task.prepare(_chat_template(run))
        except (UserError, OSError, ValueError):
            return None  # no tokenizer here: the run itself says what is missing
        sampled = list(_passes_of_questions(task, BACKENDS[run.model.backend].shares_documents))
        questions = min(counts[task.task_name], run.limit or counts[task.task_name])
        total += questions
        passes += _repeated(sampled, questions * len(sampled) // len(task.test_docs()))
    return Workload(total, passes, texts)


def _passes_of_questions(task: Any, shares: bool) -> Iterator[Pass]:
    """Yield a pass for each prompt of a prepared task, the document of the one before it cached."""
    before = None
    generated = int(task.config.generation_kwargs["max_gen_toks"])
    for doc in task.test_docs():
        prompt = doc["prompt"]
        in_common = prompt["kept_head"] + prompt["kept_tail"]
        for _ in task.prompts_of(doc).arguments(None):
            cached = 0
            if shares and before == doc["document_id"]:
                cached = min(in_common, prompt["prompt_tokens"] - 1)
            yield Pass(prompt["prompt_tokens"], cached=cached, generated=generated)
            before = doc["document_id"]


def _repeated(sample: Sequence[Pass], number: int) -> list[Pass]:
    """Return so many passes, which repeat those of a sample."""
    return [sample[index % len(sample)] for index in range(number)]


def _chat_template(run: RunRecord) -> Any:
    """Return the chat template that lm-eval will apply; None if it applies none."""
    if not run.apply_chat_template:
        return None
    from leval_tasks.common.model import find_tokenizer

    tokenizer = find_tokenizer({**run.model_args, **run.metadata})
    return partial(tokenizer.apply_chat_template, tokenize=False, add_generation_prompt=True)


def _of_needles(run: RunRecord) -> Workload:
    """Return the prompts of needle grids, which are as long as their context length."""
    passes: list[Pass] = []
    for task in loaded_tasks(run):
        task.config.generation_kwargs.update(run.gen_kwargs)
        docs = task.test_docs()[: run.limit]
        passes += _passes_of_needles(task, docs, BACKENDS[run.model.backend].shares_documents)
    return Workload(len(passes), passes)


def _passes_of_needles(task: Any, docs: Sequence[Any], shares: bool) -> Iterator[Pass]:
    """Yield a pass for each prompt.

    Prompts share the haystack before their first needle, which the one with the furthest needle
    reads. Those with a single needle at the beginning share all of a shorter prompt with the same.
    """
    generated = task.answer_tokens
    places = [(doc["length"] * doc["first_depth"] // 100, doc["length"]) for doc in docs]
    furthest = max(places, default=(0, 0))
    shorter = {length: before for before, length in pairwise((0, *task.lengths))}
    for doc, (before_needle, length) in zip(docs, places, strict=True):
        cached = 0
        if shares and doc["first_depth"] == 0 and task.variant.needles == 1:
            cached = shorter[length]
        elif shares and (before_needle, length) != furthest:
            cached = before_needle
        tokens = length - generated
        yield Pass(tokens, cached=min(cached, tokens - 1), generated=generated)
        if (before_needle, length) == furthest:
            furthest = (0, 0)  # it is read once


def _of_conversations(run: RunRecord) -> Workload:
    """Return the prompts of MRCR."""
    passes: list[Pass] = []
    for task in loaded_tasks(run):
        task.config.generation_kwargs.update(run.gen_kwargs)
        task.prepare(_chat_template(run))
        passes += [
            Pass(doc["prompt"]["prompt_tokens"], generated=task.answer_tokens)
            for doc in task.test_docs()[: run.limit]
        ]
    return Workload(len(passes), passes)


def _of_ruler(run: RunRecord) -> Workload | None:
    """Return the prompts of RULER tasks, which are nearly as long as the context."""
    lengths = run.metadata.get(LENGTH_KEY)
    if not isinstance(lengths, list):
        return None
    names = tasks_in_folder(run.tasks, "ruler")
    questions = len(names) * (run.limit or QUESTIONS_OF_RULER) * len(lengths)
    one = Pass(int(max(lengths)), generated=TOKENS_OF_RULER)
    return Workload(questions, [one] * questions)


def loaded_tasks(run: RunRecord) -> list[Any]:
    """Return the task objects of a run, those of groups one by one."""
    from leval_harness.sweep.evaluation import load_tasks

    _, objects = load_tasks(run)
    tasks: list[Any] = []
    for task_or_group in objects:
        if hasattr(task_or_group, "test_docs"):
            tasks.append(task_or_group)
        else:
            tasks += task_or_group.get_all_tasks()
    return tasks


def longest_pass(workload: Workload) -> int:
    """Return the tokens of the longest sequence, its answer included."""
    return max((one.tokens + one.generated for one in workload.passes), default=0)


def without_first_windows(workload: Workload) -> Workload:
    """Return a workload without the first pass of each document, all of which have as many passes."""
    of_document = len(workload.passes) // max(1, workload.documents)
    kept = [one for at, one in enumerate(workload.passes) if at % of_document]
    return workload._replace(passes=kept)
