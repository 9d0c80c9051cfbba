"""One evaluation as the leaderboard knows it, from a cell of ours or a plain lm-eval file."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leval_harness.cell_record import CellRecord
from leval_harness.results.fields import (
    LONGEST_NAME,
    ResultsError,
    digest,
    finite,
    open_regular,
    short_name,
)
from leval_harness.results.lm_eval import ResultsFile
from leval_harness.results.settings import (
    CELL_ASIDE,
    FILES,
    LENGTHS,
    METHOD,
    asked_settings,
    canonical,
    model_arguments,
    whole,
    without,
)
from leval_tasks.closed.catalog import OLD_NAMES, TASKS

TELEMETRY = (
    "peak_memory_bytes", "tokens_prefilled", "tokens_shared", "tokens_generated", "tokens_unique",
)  # fmt: skip
"""What our backends tell of a whole run."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One evaluation: a model under one method at one context length on some tasks.

    `status` is `done`, `failed`, `unfinished` or `malformed`; only `done` runs have numbers, and
    `reason` says why the others have none. `settings` holds what else decides the numbers (backend,
    dtype, seed, ...), so that runs that differ in it are never shown as one. `place` is its
    place in the config of its sweep, 0 where there is none; `checkpoint` is where its model lay.
    `results` are lm-eval's files, newest last; `content` is the digest of the file of a plain run,
    which has no id; `hashes` are the SHA-256 promised for each file's name.
    """

    run_id: str
    folder: Path
    status: str
    model: str
    method: str
    checkpoint: str = ""
    context_length: int | None = None
    tasks: tuple[str, ...] = ()
    reason: str = ""
    limit: float | None = None
    num_docs: float | None = None
    baseline: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    created: str = ""
    versions: Mapping[str, Any] = field(default_factory=dict)
    host: Mapping[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    telemetry: Mapping[str, float] = field(default_factory=dict)
    place: int = 0
    results: tuple[Path, ...] = ()
    content: str = ""
    hashes: Mapping[str, str] = field(default_factory=dict)

    def stopped(self, status: str, reason: str, tasks: tuple[str, ...] | None = None) -> "Run":
        """The same run, or some of its tasks, without numbers, and why."""
        tasks = self.tasks if tasks is None else tasks
        return dataclasses.replace(self, status=status, reason=reason[:LONGEST_NAME], tasks=tasks)

    def has_fewer_documents(self, task: str, stated: bool | None = None) -> bool:
        """Whether documents were left out, which older results do not state."""
        return self.num_docs is not None and task in TASKS if stated is None else stated

    def check_unaltered(self, path: Path) -> None:
        """Refuse a file of the run whose SHA-256 is not the one promised, if one was.

        Raises:
            ResultsError: it was altered after the run, or cannot be read.
        """
        if path.name not in self.hashes:
            return
        try:
            with open_regular(path) as content:
                digest = hashlib.file_digest(content, "sha256").hexdigest()
        except OSError as error:
            raise ResultsError(f"{path}: not readable ({error})") from error
        if digest != self.hashes[path.name]:
            raise ResultsError(f"{path.name}: altered after the run (SHA-256 differs)")

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens read and written, over the seconds that the backend measured or else all."""
        known = self.telemetry
        tokens = known.get("tokens_prefilled", 0.0) + known.get("tokens_generated", 0.0)
        seconds = known.get("seconds") or self.seconds
        return tokens / seconds if tokens and seconds else None


def run_of_cell(cell: CellRecord, folder: Path) -> Run:
    """A cell as a run, unfinished: the folder's marker files decide the status afterwards."""
    model, method, metadata = cell.model, cell.method, cell.metadata
    return Run(
        run_id=short_name(cell.cell_id),
        folder=folder,
        status="unfinished",
        model=short_name(model.name),
        method=short_name(method.name),
        checkpoint=model.path,
        context_length=cell.context_length,
        tasks=tuple(OLD_NAMES.get(name, name) for name in cell.tasks),
        limit=cell.limit,
        num_docs=finite(metadata.get("num_docs")),
        baseline=short_name(cell.baseline or "") or None,
        settings=canonical({**asked_settings(_by_content(cell)), **_decided(cell)}),
        command=cell.command[:LONGEST_NAME],
        created=cell.created[:LONGEST_NAME],
        versions=cell.versions,
        host=cell.host,
        place=cell.place,
    )


def _decided(cell: CellRecord) -> dict[str, Any]:
    """What decides a cell's numbers, beside the settings of our tasks."""
    model, fields = cell.model, type(cell).model_fields
    written = "apply_chat_template" in cell.model_fields_set  # older cells say nothing of it
    return {
        **{name: getattr(cell, name) for name in fields if name not in CELL_ASIDE},
        "backend": model.backend,
        "dtype": model.dtype,
        "revision": model.revision,
        "model_args": model_arguments(without(model.args, _named_by_arguments(cell))),
        METHOD: whole(cell.method.rope_parameters),
        "task_gen_kwargs": {
            OLD_NAMES.get(name, name): given for name, given in cell.task_gen_kwargs.items()
        },
        "rope_precision": cell.method.rope_precision,
        **_files(cell),
        "chat_template": cell.apply_chat_template if written else None,
    }


def _files(cell: CellRecord) -> dict[str, str]:
    """Digests of what names alone do not tell: the model's files, adapters, tasks given as files.

    Two sweeps may call two checkpoints alike. A served model has no files: its method is what
    the server was started with.
    """
    of_model, tasks = _object(cell.identity, "model"), _object(cell.identity, "task_versions")
    found = {
        FILES: {name: of_model[name] for name in ("files", "hub") if name in of_model},
        "argument_files": _named_by_arguments(cell),
        "task_files": sorted(
            (Path(name).name, f"{each}")  # wherever they lie
            for name, each in tasks.items()
            if name.endswith((".yaml", ".yml"))
        ),
    }
    return {name: digest(json.dumps(each, sort_keys=True)) for name, each in found.items() if each}


def _named_by_arguments(cell: CellRecord) -> dict[str, Any]:
    """Arguments of the model that name files or folders -> the hashes of these."""
    known = _object(_object(cell.identity, "model"), "args")
    return {name: each for name, each in known.items() if each != cell.model.args.get(name)}


def _by_content(cell: CellRecord) -> dict[str, Any]:
    """Settings of the tasks, with the hashes of files that they name where the cell knows them."""
    known = cell.identity.get("metadata")
    return cell.metadata | (known if isinstance(known, dict) else {})


def _object(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = content.get(name)
    return found if isinstance(found, dict) else {}


def _called(rope: Mapping[str, Any]) -> str:
    """A method by its type and factor, where layers have their own by each."""
    kind, factor = rope.get("rope_type") or rope.get("type"), finite(rope.get("factor"))
    if kind:
        return f"{kind} x{factor:g}" if factor else f"{kind}"
    layers = [_called(each) for each in rope.values() if isinstance(each, dict) and each]
    return " / ".join(dict.fromkeys(layers)) or f"rope #{digest(json.dumps(rope, sort_keys=True))}"


def run_of_results(file: ResultsFile, where: Path) -> Run:
    """A plain lm-eval results file that no sweep of ours wrote.

    The method is the rope type found in `model_args` (`rope_parameters` or vLLM's `hf_overrides`),
    else `as shipped`.

    Raises:
        ResultsError: no `results` object.
    """
    if not file.results:
        raise ResultsError(f"{where}: no 'results'; this is not a results file of lm-eval")
    args, rope = file.called.arguments, file.called.rope
    lengths = (finite(each) for each in (*map(args.get, LENGTHS), file.max_length))
    length = next((each for each in lengths if each and each > 0), None)
    return Run(
        run_id=where.stem,
        folder=where.parent,
        status="done",
        model=short_name(file.model),
        method=short_name(_called(rope)) if rope else "as shipped",
        context_length=int(length) if length else None,
        tasks=tuple(name for name in file.results if name not in file.groups),
        limit=file.called.questions,
        settings=canonical({**file.deciding(), METHOD: whole(rope)}),
        created=str(file.date or "")[:40],
        versions=file.packages,
        seconds=file.seconds,
        results=(where,),
    )
