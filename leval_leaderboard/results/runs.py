"""One evaluation as the leaderboard knows it, from a cell of ours or a plain lm-eval file."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leval_leaderboard.cell_record import CellRecord
from leval_leaderboard.results.fields import LONGEST_NAME, ResultsError, finite
from leval_leaderboard.results.lm_eval import ResultsFile

TELEMETRY = (
    "peak_memory_bytes", "tokens_prefilled", "tokens_shared", "tokens_generated", "tokens_unique",
)  # fmt: skip
"""What our backends tell of a whole run."""

TASK_SETTINGS = ("num_docs", "min_questions", "truncation", "stride")
"""What of a cell's `--metadata` decides the numbers."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One evaluation: a model under one method at one context length on some tasks.

    `status` is `done`, `failed`, `unfinished` or `malformed`; only `done` runs have numbers, and
    `reason` says why the others have none. `settings` holds what else decides the numbers (backend,
    dtype, seed, ...), so that runs that differ in it are never shown as one. `place` is its
    place in the config of its sweep, 0 where there is none.
    """

    run_id: str
    folder: Path
    status: str
    model: str
    method: str
    context_length: int | None
    tasks: tuple[str, ...]
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

    def stopped(self, status: str, reason: str, tasks: tuple[str, ...] | None = None) -> "Run":
        """The same run, or some of its tasks, without numbers, and why."""
        tasks = self.tasks if tasks is None else tasks
        return dataclasses.replace(self, status=status, reason=reason[:LONGEST_NAME], tasks=tasks)

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens read and written, over the seconds that the backend measured or else all."""
        tokens = sum(
            self.telemetry.get(f"tokens_{what}", 0.0) for what in ("prefilled", "generated")
        )
        seconds = self.telemetry.get("seconds") or self.seconds
        return tokens / seconds if tokens and seconds else None


def _settings(**values: object) -> dict[str, str]:
    """Settings as short canonical strings; empty ones are left out."""
    return {
        name: value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        for name, value in values.items()
        if value not in (None, "", {}, [])
    }


def run_of_cell(cell: CellRecord, folder: Path) -> Run:
    """A cell as a run, unfinished: the folder's marker files decide the status afterwards."""
    model, method, metadata = cell.model, cell.method, cell.metadata
    written = "apply_chat_template" in cell.model_fields_set  # older cells say nothing of it
    chat = cell.apply_chat_template if written else None
    return Run(
        run_id=cell.cell_id[:LONGEST_NAME],
        folder=folder,
        status="unfinished",
        model=model.name[:LONGEST_NAME],
        method=method.name[:LONGEST_NAME],
        context_length=cell.context_length,
        tasks=cell.tasks,
        limit=cell.limit,
        num_docs=finite(metadata.get("num_docs")),
        baseline=(cell.baseline or "")[:LONGEST_NAME] or None,
        settings=_settings(
            backend=model.backend[:LONGEST_NAME],
            dtype=model.dtype[:LONGEST_NAME],
            revision=(model.revision or "")[:LONGEST_NAME],
            model_args=model.args,
            rope=method.rope_parameters,
            rope_precision=method.rope_precision[:LONGEST_NAME],
            **{name: metadata.get(name) for name in TASK_SETTINGS},
            num_fewshot=cell.num_fewshot,
            gen_kwargs=cell.gen_kwargs,
            task_gen_kwargs=cell.task_gen_kwargs,
            seed=cell.seed,
            chat_template=chat if isinstance(chat, bool) else None,
        ),
        command=cell.command[:LONGEST_NAME],
        created=cell.created[:LONGEST_NAME],
        versions=cell.versions,
        host=cell.host,
        place=cell.place,
    )


def run_of_results(file: ResultsFile, where: Path) -> Run:
    """A plain lm-eval results file that no sweep of ours wrote.

    The method is the rope type found in `model_args` (`rope_parameters` or vLLM's `hf_overrides`),
    else `as shipped`.

    Raises:
        ResultsError: no `results` object.
    """
    if not file.results:
        raise ResultsError(f"{where}: no 'results'; this is not a results file of lm-eval")
    config = file.config
    args = config.arguments
    rope = config.rope
    method, factor = str(rope.get("rope_type") or "as shipped"), finite(rope.get("factor"))
    length = finite(args.get("context_length") or file.max_length)
    model = file.model_name or args.get("pretrained") or config.model or "model"
    return Run(
        run_id=where.stem,
        folder=where.parent,
        status="done",
        model=str(model)[:LONGEST_NAME],
        method=(f"{method} x{factor:g}" if factor else method)[:LONGEST_NAME],
        context_length=int(length) if length and length > 0 else None,
        tasks=tuple(name for name in file.results if name not in file.groups),
        limit=config.limit,
        settings=_settings(
            backend=config.model, rope=rope, gen_kwargs=config.gen_kwargs, seed=config.random_seed
        ),
        created=str(file.date or "")[:40],
        versions=file.versions,
        seconds=file.seconds,
    )
