"""What the product gives now: `current_<part>()` for each part, rows of plain values.

Everything that knows how the product is asked stands here. Where an interface changes, its
function here follows; the numbers beside it do not.
"""

import csv
import hashlib
import io
import json
import math
import re
import tempfile
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

from at_hand import DOCUMENTS
from golden_access import HERE as GOLDEN
from golden_access import REPOSITORY, RESULTS, SAMPLE, TASKS, TOKENIZER, fine, run

Row = dict[str, Any]
Rows = dict[str, Row]

CONFIGS = REPOSITORY / "tests" / "families" / "configs"
LEADERBOARD = REPOSITORY / "tests" / "report"

# ------------------------------------------------------------------ RoPE in both libraries

REQUESTS = (
    "default", "linear:factor=4", "ntk_aware:factor=4", "yarn:factor=4", "resonance",
    "resonance_yarn:factor=4", "resonance_linear:factor=4",
)  # fmt: skip
REFUSED = {"refused": True}
# What a request is given where it is refused without: some models that ship a scaling do not state
# the length that they were trained on.
LENGTH = "original_max_position_embeddings"
FURTHER: tuple[Row, ...] = ({}, {LENGTH: 4096})
NEEDS_MORE = re.compile(f"{LENGTH}: not in the config")


def current_rope_in_transformers() -> Rows:
    """Every family with every request: what its rotary modules hold, and the longest sequence."""
    rows: Rows = {}
    for family in families():
        for request in REQUESTS:
            rows |= named(f"{family.name} {request}", *checked(family, request))
    return rows


def families() -> list[Path]:
    """Folders with the config.json of a published model."""
    return sorted(file.parent for file in CONFIGS.glob("*/config.json"))


def checked(family: Path, request: str) -> tuple[list[Row], int | None, bool]:
    """Modules and limit as `check` prints them, and whether a shipped scaling was replaced.

    No modules where it is refused.
    """
    for more in FURTHER:
        name, _, given = request.partition(":")
        keys = ",".join(filter(None, [given, *(f"{k}={v}" for k, v in more.items())]))
        text = f"{name}:{keys}" if keys else name
        ran = run("check", family, "--rope", text, "--library", "transformers", "--json")
        if ran.code == 0:
            side = json.loads(ran.out)["transformers"]
            return side["modules"], side["limit"], replaced_scaling(family, text)
        if not NEEDS_MORE.search(ran.err):
            break
    return [], None, False


def replaced_scaling(family: Path, request: str) -> bool:
    """Whether a request replaces a scaling that the model ships."""
    from resonance_vllm.checkpoint.positions import PositionConfig
    from resonance_vllm.core.spec import RopeRequest

    model = PositionConfig.from_checkpoint(str(family))
    return model.replaced_scaling(model.complete(RopeRequest.parse(request))) is not None


def current_rope_in_vllm() -> Rows:
    """The same in vLLM, whose modules are built without weights, all of them in one process."""
    from vllm_modules import looked_at

    asked = {(f, request): wanted_in_vllm(f, request) for f in families() for request in REQUESTS}
    jobs = {key: found for key, found in asked.items() if found is not None}
    answers = looked_at([job for job, _, _ in jobs.values()])
    held = dict(zip(jobs, answers, strict=True))
    rows: Rows = {}
    for (family, request), found in asked.items():
        modules = held[family, request].get("held", []) if found else []
        _, limit, replaced = found or (None, None, False)
        rows |= named(f"{family.name} {request}", modules, limit, replaced)
    return rows


def wanted_in_vllm(family: Path, request: str) -> tuple[Row, int | None, bool] | None:
    """What vLLM is asked to build, the longest sequence, and whether a scaling is replaced."""
    from resonance_vllm.check import limit_or_none
    from resonance_vllm.checkpoint.overrides import vllm_hf_overrides
    from resonance_vllm.checkpoint.positions import PositionConfig
    from resonance_vllm.common.errors import RopeConfigError
    from resonance_vllm.core.spec import RopeRequest

    model = PositionConfig.from_checkpoint(str(family))
    wanted = RopeRequest.parse(request)
    for more in FURTHER:
        try:
            spec = model.complete({**wanted.to_dict(), **more})
            overrides = vllm_hf_overrides(spec, model, None)
        except RopeConfigError as error:
            if not NEEDS_MORE.search(str(error)):
                break
        else:
            limit = limit_or_none(model, spec)
            job = {"model": str(family), "hf_overrides": overrides, "max_model_len": limit}
            return job, limit, model.replaced_scaling(spec) is not None
    return None


def named(name: str, modules: list[Row], limit: int | None, replaced: bool) -> Rows:
    """Rows of one request: one for each rotation that its modules hold, without repetition."""
    if not modules:
        return {name: REFUSED}
    rotations: list[Row] = []
    for module in modules:
        row = {"limit": limit, "replaced": replaced, **rotation(module)}
        if row not in rotations:
            rotations.append(row)
    names = [f"{name} {row['layer_type'] or 'all layers'}" for row in rotations]
    return {
        each if names.count(each) == 1 else f"{each} {at}": row
        for at, (each, row) in enumerate(zip(names, rotations, strict=True))
    }


def rotation(module: Row) -> Row:
    """Of one module: with Resonance the wavelengths are whole numbers of tokens."""
    row = {name: module[name] for name in ("layer_type", "attention_factor", "exact_phase")}
    turning = module["inv_freq"]
    row["inv_freq"] = list(map(float, turning))
    if module["exact_phase"]:
        row["wavelengths"] = [round(2 * math.pi / each) if each else 0 for each in turning]
    return row


# ------------------------------------------------------------------ RoPE without a model

METHODS = (
    "default", "linear", "ntk_aware", "dynamic", "yarn", "llama3", "longrope", "proportional",
    "self_extend", "dual_chunk",
)  # fmt: skip
SIZES = {
    "head 128": (),
    "head 64, long": ("--head-dim", 64, "--theta", 500000, "--original", 8192, "--factor", 16),
    "short": ("--head-dim", 16, "--original", 256, "--factor", 2, "--seq-len", 512),
}
SETTINGS = {
    "yarn, by wavelength": ("--method", "yarn", "--ramp", "wavelength"),
    "yarn, not rounded": ("--method", "yarn", "--truncate", "false"),
    "yarn, mscale": ("--method", "yarn", "--mscale", "0.707", "--mscale-all-dim", "1.0"),
    "ntk_aware, as printed": ("--method", "ntk_aware", "--base-scaling", "paper"),
}


def current_rope_methods() -> Rows:
    """`rope --json` of every method with and without Resonance, the gap of each feature too."""
    asked = {name: ("--method", name) for name in METHODS} | SETTINGS
    rows: Rows = {}
    for name, flags in asked.items():
        for size, more in SIZES.items():
            for resonance in ((), ("--resonance",)):
                facts = json.loads(fine("rope", *flags, *more, *resonance, "--json"))
                rows[f"{', '.join([name, size, *resonance])}"] = facts
    return rows


# ------------------------------------------------------------------ results

FOLDERS = {
    **{f"golden {name}": RESULTS / name for name in ("lm_eval", "perplexity", "posgen", "sweep")},
    "effective": LEADERBOARD / "effective",
    "real_runs": LEADERBOARD / "real_runs" / "results",
    "quickstart": Path(__file__).parent / "quickstart",
    **{f"foreign {each.name}": each for each in sorted((LEADERBOARD / "foreign").glob("*/"))},
}
KEYS = ("model", "method", "task", "metric", "length", "filter")
VALUES = (
    "value", "stderr", "low", "high", "interval", "n", "clusters", "unit", "baseline",
    "difference", "diff_low", "diff_high", "p", "filter", "rank", "chance", "unparsed", "p_holm",
    "smallest_p", "wins", "ties", "losses", "status", "mark", "truncated", "reached_limit",
)  # fmt: skip


def current_compared() -> Rows:
    """The compared numbers of every results folder, and of trained PosGen models."""
    rows: Rows = {}
    for name, folder in FOLDERS.items():
        rows |= unlike(name, frame_of(folder), KEYS)
    text = fine("posgen", "table", RESULTS / "posgen_train", "--format", "csv")
    trained = [plain(row) for row in csv.DictReader(io.StringIO(text))]
    return rows | unlike("golden posgen_train", trained, ("Encoding", "Tested with", "Sub-task"))


def frame_of(folder: Path) -> list[Row]:
    """Rows of the compared frame; those of the effective context have a rule of their own."""
    import leval_harness as lh

    loaded = lh.load(folder)
    frame = loaded.to_pandas()[lambda rows: rows["task"] != "effective_context"]
    rows = frame[[*KEYS[:-1], *VALUES]].astype(object)
    return rows.where(rows.notna(), None).to_dict("records")


def unlike(name: str, rows: list[Row], keys: tuple[str, ...]) -> Rows:
    """Rows by their keys; several of the same keys are numbered in the order of their values."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        documents = ("-" if row[key] in (None, "") else str(row[key]) for key in keys)
        values = {key: value for key, value in row.items() if key not in keys}
        found.setdefault(" | ".join([name, *documents]), []).append(values)
    return {
        key if len(same) == 1 else f"{key} | {at}": row
        for key, same in found.items()
        for at, row in enumerate(sorted(same, key=str))
    }


def plain(row: dict[str, str]) -> Row:
    """A row of CSV with its numbers read."""
    return {key: number(text) for key, text in row.items()}


def number(text: str) -> Any:
    """The number that a text is; None of an empty one, else the text."""
    try:
        return float(text)
    except ValueError:
        return text or None


# ------------------------------------------------------------------ tables

RUN = re.compile(
    r"(?P<best>\*\*|<u>|)(?P<printed>[^*<?\\±(\[]*?)(?P<mark>\\\*|\?|)(?P<spread> [±(][^\[]*?|)"
    r"(\*\*|</u>|)(?P<note> \\\[.*|)"
)
BEST = {"**": "best", "<u>": "second", "": None}


def current_table_cells() -> Rows:
    """Runs of the tables of every results folder: number as printed, mark, what it is among its
    block, and the spread beside it.
    """
    rows: Rows = {}
    for name, folder in FOLDERS.items():
        with chdir(folder):
            rows |= runs_of(name, fine("table", ".", "--format", "md"))
    rows |= runs_of(
        "golden posgen_train", fine("posgen", "table", RESULTS / "posgen_train", "--format", "md")
    )
    return rows


def runs_of(name: str, text: str) -> Rows:
    """Runs of tables in Markdown."""
    rows: list[Row] = []
    title = block = ""
    header: list[str] = []
    for line in text.splitlines():
        if line.startswith("### "):
            title, block, header = line.removeprefix("### "), "", []
        elif line.startswith("|") and not line.startswith("| ---"):
            runs = [run.strip().replace(r"\_", "_") for run in line[1:-1].split(" | ")]
            if not header:
                header = runs
            elif not any(runs[1:]):
                block = runs[0].strip("*")
            else:
                rows += row_cells(title, block, dict(zip(header, runs, strict=True)))
    return unlike(name, rows, ("table", "block", "row", "column"))


def row_cells(table: str, block: str, row: dict[str, str]) -> Iterator[Row]:
    """One row's runs that hold something; the context length belongs to its name."""
    block = row.pop("Model", block)
    row = {name: run for name, run in row.items() if name not in ("Origin", "Experiment")}
    first = row.pop(next(iter(row)))
    length = row.pop("Ctx", "")
    name = first + (f" at {length}" if length not in ("", "–") else "")
    for column, cell in row.items():
        if cell.strip("*") in ("", "–"):
            continue
        italic = name in ("n/documents", "chance") or block.endswith("(published)")
        found = RUN.fullmatch(cell.strip("*") if italic else cell)
        parts = found.groupdict("") if found else {"printed": cell, "best": "", "mark": ""}
        yield {
            "table": table, "block": block, "row": name, "column": column,
            "printed": parts["printed"], "mark": parts["mark"].lstrip("\\") or None,
            "best": BEST[parts["best"]], "spread": parts.get("spread", "").strip() or None,
        }  # fmt: skip


def current_published() -> Rows:
    """The rows that the paper printed, as the product shows them beside its own."""
    with chdir(RESULTS):
        text = fine("table", "sweep", "--format", "md", "--published")
        text += fine("posgen", "table", "posgen_train", "--format", "md")
    found = runs_of("published", text).items()
    return {name: row for name, row in found if "(published)" in name}


# ------------------------------------------------------------------ prompts and scores

FRAMES = {
    "llama2": ("--frame", "llama2"),
    "plain": ("--frame", "plain"),
    "chat_template": ("--frame", "chat_template", "--apply-chat-template"),
}
CUTS = {
    "whole": ("--context-length", 16384),
    "cut": ("--context-length", 2048),
    "cut from the left": ("--context-length", 1800, "--truncation", "left"),
    "skipped": ("--context-length", 12000, "--truncation", "skip"),
}
PUBLISHED_CUTS = {"whole": ("--context-length", 131072), "cut": ("--context-length", 4096)}


def current_prompts() -> Rows:
    """Hash and lengths of the prompts of every task, in every frame, for the frozen sample."""
    return prompts_of(SAMPLE, [*TASKS.values()], CUTS, 1000)


def current_prompts_published() -> Rows:
    """The same for some questions of each published file."""
    there = DOCUMENTS / "leval" / "closed"
    tasks = [task for file, task in TASKS.items() if (there / file).is_file()]
    return prompts_of(there, tasks, PUBLISHED_CUTS, 3)


def prompts_of(data: Path, tasks: list[str], cuts: dict[str, Any], count: int) -> Rows:
    """A row for each task, frame and context length."""
    rows: Rows = {}
    for task in tasks:
        for frame, flags in FRAMES.items():
            for cut, more in cuts.items():
                asked = ("--model", TOKENIZER, "--data-dir", data, "-n", count)
                ran = run("prompt", task, *asked, *flags, *more, "--json")
                name = f"{task}, {frame}, {cut}"
                rows[name] = prompt_row(json.loads(ran.out)) if ran.code == 0 else REFUSED
    return rows


def prompt_row(shown: Row) -> Row:
    """What is kept of the prompts of a task."""
    questions = shown["questions"]
    documents = [text for question in questions for text in question["prompts"]]
    cut = [question["prompt"] for question in questions]
    numbers = ("prompt_tokens", "document_tokens", "kept_head", "kept_tail", "truncated")
    return {
        "questions": len(questions),
        "prompts": len(documents),
        "sha256": hashlib.sha256("\0".join(documents).encode()).hexdigest(),
        **{name: sum(each[name] for each in cut) for name in numbers},
    }


PREDICTIONS = GOLDEN / "predictions"
PUBLISHED = {
    "coursera": "coursera.pred.jsonl",
    "gsm": "gsm100.pred.jsonl",
    "quality": "quality.pred.jsonl",
    "toefl": "tpo.pred.jsonl",
    "codeu": "codeU.pred.jsonl",
    "topic_retrieval": "topic_retrieval_longchat.pred.jsonl",
}


def current_scores() -> Rows:
    """Scores of every answer of the golden files alone, and of each file."""
    rows: Rows = {}
    for file in sorted(PREDICTIONS.glob("*.jsonl")):
        rows[file.stem] = score(file.stem, file)
        lines = file.read_text(encoding="utf-8").split("\n")
        rows |= {f"{file.stem} {at}": each for at, each in alone(file.stem, lines)}
    return rows


def alone(task: str, lines: list[str]) -> Iterator[tuple[int, Row]]:
    """The score of each line of a file, so that one cannot hide behind another."""
    with tempfile.TemporaryDirectory() as folder:
        one = Path(folder) / "one.jsonl"
        for at, line in enumerate(lines):
            if line.startswith("{"):
                one.write_text(line + "\n", encoding="utf-8")
                yield at, score(task, one)


def current_scores_published() -> Rows:
    """Scores of the published predictions: each file, and each answer alone."""
    there = DOCUMENTS / "leval" / "predictions" / "turbo-16k-0613"
    rows: Rows = {}
    for task, name in PUBLISHED.items():
        rows[task] = score(task, there / name)
        lines = (there / name).read_text(encoding="utf-8").split("\n")
        rows |= {f"{task} {at}": each for at, each in alone(task, lines)}
    return rows


def score(task: str, file: Path) -> Row:
    """Percent, as `score --json` prints them."""
    found: Row = json.loads(fine("score", "--task", task, file, "--json"))
    return found
