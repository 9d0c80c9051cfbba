"""One evaluation as the leaderboard knows it, from `cell.json` or from a plain lm-eval file."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leval_leaderboard.layout import SCHEMA_VERSION
from leval_leaderboard.results.fields import ResultsError, finite, mapping, text, whole

__all__ = ["SCHEMA_VERSION", "ResultsError", "Run", "run_from_cell", "run_from_lm_eval"]

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
        return dataclasses.replace(self, status=status, reason=reason, tasks=tasks)

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens read and written, over the seconds that the backend measured or else all."""
        tokens = sum(
            self.telemetry.get(f"tokens_{what}", 0.0) for what in ("prefilled", "generated")
        )
        seconds = self.telemetry.get("seconds") or self.seconds
        return tokens / seconds if tokens and seconds else None


def check_version(source: Mapping[str, Any], where: Path) -> None:
    """Refuse a layout that is newer than this reader.

    Raises:
        ResultsError: the version is missing, no whole number, or newer.
    """
    version = whole(source, "schema_version", where)
    if version is None or version < 1:
        raise ResultsError(f"{where}: field 'schema_version' is missing; expected 1")
    if version > SCHEMA_VERSION:
        raise ResultsError(
            f"{where}: schema_version {version} is newer than {SCHEMA_VERSION}, the newest this "
            "version of leval-harness reads; upgrade leval-harness"
        )


def _settings(**values: object) -> dict[str, str]:
    """Settings as short canonical strings; empty ones are left out."""
    return {
        name: value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        for name, value in values.items()
        if value not in (None, "", {}, [])
    }


def run_from_cell(cell: Mapping[str, Any], where: Path) -> Run:
    """Read `cell.json`; the folder's marker files decide the status afterwards.

    Raises:
        ResultsError: a field of the wrong type, or a newer schema.
    """
    check_version(cell, where)
    model, method = mapping(cell, "model", where), mapping(cell, "method", where)
    tasks = cell.get("tasks")
    if not isinstance(tasks, list) or not tasks or not all(isinstance(t, str) for t in tasks):
        raise ResultsError(f"{where}: field 'tasks' must be a list of task names")
    chat = cell.get("apply_chat_template")
    metadata = mapping(cell, "metadata", where)
    return Run(
        run_id=text(cell, "cell_id", where),
        folder=where.parent,
        status="unfinished",
        model=text(model, "name", where),
        method=text(method, "name", where),
        context_length=whole(cell, "context_length", where),
        tasks=tuple(tasks),
        limit=finite(cell.get("limit")),
        num_docs=finite(metadata.get("num_docs")),
        baseline=text(cell, "baseline", where, default="") or None,
        settings=_settings(
            backend=text(model, "backend", where, default=""),
            dtype=text(model, "dtype", where, default=""),
            revision=text(model, "revision", where, default=""),
            model_args=mapping(model, "args", where),
            rope=mapping(method, "rope_parameters", where),
            rope_precision=text(method, "rope_precision", where, default=""),
            num_docs=metadata.get("num_docs"),
            min_questions=metadata.get("min_questions"),
            truncation=metadata.get("truncation"),
            stride=metadata.get("stride"),
            num_fewshot=cell.get("num_fewshot"),
            gen_kwargs=mapping(cell, "gen_kwargs", where),
            task_gen_kwargs=mapping(cell, "task_gen_kwargs", where),
            seed=whole(cell, "seed", where),
            chat_template=chat if isinstance(chat, bool) else None,
        ),
        command=text(cell, "command", where, default=""),
        created=text(cell, "created", where, default=""),
        versions=mapping(cell, "versions", where),
        host=mapping(cell, "host", where),
        place=whole(cell, "place", where) or 0,
    )


def _model_args(config: Mapping[str, Any]) -> dict[str, Any]:
    """lm-eval writes `model_args` as a mapping or as `key=value,...`."""
    args = config.get("model_args")
    if isinstance(args, dict):
        return args
    if isinstance(args, str):
        return dict(part.split("=", 1) for part in args.split(",") if "=" in part)
    return {}


def run_from_lm_eval(results: Mapping[str, Any], where: Path) -> Run:
    """Read a plain lm-eval results file that no sweep of ours wrote.

    The method is the rope type found in `model_args` (`rope_parameters` or vLLM's `hf_overrides`),
    else `as shipped`.

    Raises:
        ResultsError: no `results` object, or a field of the wrong type.
    """
    tasks = mapping(results, "results", where)
    if not tasks:
        raise ResultsError(f"{where}: no 'results'; this is not a results file of lm-eval")
    groups = mapping(results, "groups", where)
    config = mapping(results, "config", where)
    args = _model_args(config)
    overrides = args.get("hf_overrides")
    rope = args.get("rope_parameters")
    if rope is None and isinstance(overrides, dict):
        rope = overrides.get("rope_parameters")
    rope = rope if isinstance(rope, dict) else {}
    method = str(rope.get("rope_type") or "as shipped")
    factor = finite(rope.get("factor"))
    model = results.get("model_name") or args.get("pretrained") or config.get("model") or "model"
    seconds = results.get("total_evaluation_time_seconds")
    try:
        duration = finite(float(seconds)) if isinstance(seconds, str | float | int) else None
    except (ValueError, OverflowError):
        duration = None
    length = finite(args.get("context_length") or results.get("max_length"))
    return Run(
        run_id=where.stem,
        folder=where.parent,
        status="done",
        model=str(model)[:300],
        method=(f"{method} x{factor:g}" if factor else method)[:300],
        context_length=int(length) if length and length > 0 else None,
        tasks=tuple(str(name) for name in tasks if name not in groups),
        limit=finite(config.get("limit")),
        settings=_settings(
            backend=config.get("model") if isinstance(config.get("model"), str) else "",
            rope=rope,
            gen_kwargs=config.get("gen_kwargs"),
            seed=finite(config.get("random_seed")),
        ),
        created=str(results.get("date", ""))[:40],
        versions={
            name: results[key]
            for name, key in (
                ("lm_eval", "lm_eval_version"),
                ("transformers", "transformers_version"),
                ("git", "git_hash"),
            )
            if isinstance(results.get(key), str)
        },
        seconds=duration,
    )
