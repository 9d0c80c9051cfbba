"""Ask the product for its numbers: RoPE, prompts, scores and results, as named rows of values.

Where an interface changes, its function here follows; the stored numbers stay.
"""

import csv
import hashlib
import io
import json
import math
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from golden_access import HERE as GOLDEN
from golden_access import REPOSITORY, RESULTS, SAMPLE, TASKS, TOKENIZER, fine, run

Row = dict[str, Any]
Rows = dict[str, Row]

# ------------------------------------------------------------------ RoPE in both libraries

CONFIGS = REPOSITORY / "tests" / "families" / "configs"
REQUESTS = (
    "default", "linear:factor=4", "ntk_aware:factor=4", "yarn:factor=4", "resonance",
    "resonance_yarn:factor=4", "resonance_linear:factor=4",
)  # fmt: skip
REFUSED = {"refused": True}
ORIGINAL = "original_max_position_embeddings"
# Some models that ship a scaling do not state their native context length: the request states it.
COMPLETIONS: tuple[Row, ...] = ({}, {ORIGINAL: 4096})
LACKS_ORIGINAL = re.compile(f"{ORIGINAL}: not in the config")


def families() -> list[Path]:
    """Return the folders with the config.json of a published model."""
    return sorted(file.parent for file in CONFIGS.glob("*/config.json"))


def rope_in_transformers() -> Rows:
    """Return what the rotary modules of every family hold under every request, and the limit."""
    rows: Rows = {}
    for family in families():
        for request in REQUESTS:
            modules, limit, replaces = checked(family, request)
            rows |= rotations(f"{family.name} {request}", modules, limit, replaces)
    return rows


def checked(family: Path, request: str) -> tuple[list[Row], int | None, bool]:
    """Return modules and limit as `check` prints them, and whether a shipped scaling is replaced.

    There are no modules where the request is refused.
    """
    name, _, settings = request.partition(":")
    for completion in COMPLETIONS:
        keys = [settings, *(f"{key}={value}" for key, value in completion.items())]
        joined = ",".join(filter(None, keys))
        text = f"{name}:{joined}" if joined else name
        ran = run("check", family, "--rope", text, "--library", "transformers", "--json")
        if ran.code == 0:
            report = json.loads(ran.out)["transformers"]
            return report["modules"], report["limit"], replaces_scaling(family, text)
        if not LACKS_ORIGINAL.search(ran.err):
            break
    return [], None, False


def replaces_scaling(family: Path, request: str) -> bool:
    """Return whether a request replaces a scaling that the model ships."""
    from resonance_vllm.checkpoint.positions import PositionConfig
    from resonance_vllm.core.spec import RopeRequest

    model = PositionConfig.from_checkpoint(str(family))
    return model.replaced_scaling(model.complete(RopeRequest.parse(request))) is not None


def rope_in_vllm() -> Rows:
    """Return the same of vLLM, whose modules are built without weights, all in one process."""
    from vllm_modules import looked_at

    requests = [(family, request) for family in families() for request in REQUESTS]
    jobs = {key: vllm_job(*key) for key in requests}
    possible = {key: job for key, job in jobs.items() if job is not None}
    reports = looked_at([job for job, _, _ in possible.values()])
    held = dict(zip(possible, reports, strict=True))
    rows: Rows = {}
    for (family, request), job in jobs.items():
        name = f"{family.name} {request}"
        if job is None:
            rows[name] = REFUSED
            continue
        _, limit, replaces = job
        rows |= rotations(name, held[family, request].get("held", []), limit, replaces)
    return rows


def vllm_job(family: Path, request: str) -> tuple[Row, int | None, bool] | None:
    """Return what vLLM is asked to build, the limit, and whether a scaling is replaced.

    None where the request is refused before vLLM is asked.
    """
    from resonance_vllm.check import limit_or_none
    from resonance_vllm.checkpoint.overrides import vllm_hf_overrides
    from resonance_vllm.checkpoint.positions import PositionConfig
    from resonance_vllm.common.errors import RopeConfigError
    from resonance_vllm.core.spec import RopeRequest

    model = PositionConfig.from_checkpoint(str(family))
    requested = RopeRequest.parse(request).to_dict()
    for completion in COMPLETIONS:
        try:
            spec = model.complete({**requested, **completion})
            overrides = vllm_hf_overrides(spec, model, None)
        except RopeConfigError as error:
            if not LACKS_ORIGINAL.search(str(error)):
                break
        else:
            limit = limit_or_none(model, spec)
            job = {"model": str(family), "hf_overrides": overrides, "max_model_len": limit}
            return job, limit, model.replaced_scaling(spec) is not None
    return None


def rotations(name: str, modules: list[Row], limit: int | None, replaces: bool) -> Rows:
    """Return a row for each different rotation that the modules of one request hold."""
    if not modules:
        return {name: REFUSED}
    different: list[Row] = []
    for module in modules:
        row = {"limit": limit, "replaced": replaces, **rotation(module)}
        if row not in different:
            different.append(row)
    names = [f"{name} {row['layer_type'] or 'all layers'}" for row in different]
    rows: Rows = {}
    for position, (row_name, row) in enumerate(zip(names, different, strict=True)):
        is_unique = names.count(row_name) == 1
        rows[row_name if is_unique else f"{row_name} {position}"] = row
    return rows


def rotation(module: Row) -> Row:
    """Return the rotation of one module; with Resonance its wavelengths are whole tokens."""
    row = {name: module[name] for name in ("layer_type", "attention_factor", "exact_phase")}
    row["inv_freq"] = list(map(float, module["inv_freq"]))
    if module["exact_phase"]:
        row["wavelengths"] = [round(2 * math.pi / f) if f else 0 for f in module["inv_freq"]]
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
OPTIONS = {
    "yarn, by wavelength": ("--method", "yarn", "--ramp", "wavelength"),
    "yarn, not rounded": ("--method", "yarn", "--truncate", "false"),
    "yarn, mscale": ("--method", "yarn", "--mscale", "0.707", "--mscale-all-dim", "1.0"),
    "ntk_aware, as printed": ("--method", "ntk_aware", "--base-scaling", "paper"),
}


def rope_methods() -> Rows:
    """Return `rope --json` of every method, with and without Resonance."""
    methods = {name: ("--method", name) for name in METHODS} | OPTIONS
    rows: Rows = {}
    for name, flags in methods.items():
        for size, size_flags in SIZES.items():
            for resonance in ((), ("--resonance",)):
                printed = fine("rope", *flags, *size_flags, *resonance, "--json")
                rows[", ".join([name, size, *resonance])] = json.loads(printed)
    return rows


# ------------------------------------------------------------------ results

KEYS = ("model", "method", "task", "metric", "length", "filter", "baseline", "start", "end")
VALUES = (
    "value", "stderr", "low", "high", "interval", "n", "clusters", "unit",
    "difference", "diff_low", "diff_high", "p", "rank", "chance", "unparsed", "p_holm",
    "smallest_p", "wins", "ties", "losses", "status", "mark", "truncated", "reached_limit",
    "least", "most", "native_length",
)  # fmt: skip


def result_folders() -> dict[str, Path]:
    """Return the folders of results whose numbers are stored, by name."""
    tests = REPOSITORY / "tests"
    golden = ("lm_eval", "perplexity", "posgen", "sweep")
    foreign = sorted(path for path in (tests / "report" / "foreign").iterdir() if path.is_dir())
    return {
        **{f"golden_{name}": RESULTS / name for name in golden},
        "effective": tests / "report" / "effective",
        "real_runs": tests / "report" / "real_runs" / "results",
        **{f"foreign_{path.name}": path for path in foreign},
    }


def compared(folder: Path) -> Rows:
    """Return every number of a results folder as the compared DataFrame has it."""
    import leval_harness as lh

    frame = lh.load(folder).to_pandas()
    rows = frame[[*KEYS, *VALUES]].astype(object)
    return named_rows(rows.where(rows.notna(), None).to_dict("records"), KEYS)


def compared_posgen() -> Rows:
    """Return the numbers of trained PosGen models."""
    text = fine("posgen", "table", RESULTS / "posgen_train", "--format", "csv")
    rows = [
        {name: number_or_text(value) for name, value in row.items()}
        for row in csv.DictReader(io.StringIO(text))
    ]
    return named_rows(rows, ("Encoding", "Tested with", "Sub-task"))


def named_rows(rows: list[Row], keys: tuple[str, ...]) -> Rows:
    """Return rows by their keys; several of the same keys are numbered by their values."""
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        name = " | ".join("-" if row[key] in (None, "") else str(row[key]) for key in keys)
        values = {column: value for column, value in row.items() if column not in keys}
        by_name.setdefault(name, []).append(values)
    named: Rows = {}
    for name, same in by_name.items():
        for position, values in enumerate(sorted(same, key=str)):
            named[name if len(same) == 1 else f"{name} | {position}"] = values
    return named


def number_or_text(text: str) -> Any:
    """Return the number that a text is, None for an empty text, else the text."""
    try:
        return float(text)
    except ValueError:
        return text or None


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


def prompts_of_sample() -> Rows:
    """Return hash and lengths of the prompts of every task, in every frame, for the sample."""
    return prompts(SAMPLE, [*TASKS.values()], CUTS, 1000)


def prompts_of_published_documents(real_data: Path) -> Rows:
    """Return the same for some questions of each published file."""
    folder = real_data / "leval" / "closed"
    tasks = [task for file, task in TASKS.items() if (folder / file).is_file()]
    return prompts(folder, tasks, PUBLISHED_CUTS, 3)


def prompts(data: Path, tasks: list[str], cuts: dict[str, Any], count: int) -> Rows:
    """Return a row for each task, frame and context length."""
    rows: Rows = {}
    for task in tasks:
        for frame, frame_flags in FRAMES.items():
            for cut, cut_flags in cuts.items():
                source = ("--model", TOKENIZER, "--data-dir", data, "-n", count)
                ran = run("prompt", task, *source, *frame_flags, *cut_flags, "--json")
                row = prompt_row(json.loads(ran.out)) if ran.code == 0 else REFUSED
                rows[f"{task}, {frame}, {cut}"] = row
    return rows


def prompt_row(printed: Row) -> Row:
    """Return what is stored of the prompts of a task: counts, and one hash of all prompts."""
    questions = printed["questions"]
    texts = [text for question in questions for text in question["prompts"]]
    counts = ("prompt_tokens", "document_tokens", "kept_head", "kept_tail", "truncated")
    return {
        "questions": len(questions),
        "prompts": len(texts),
        "sha256": hashlib.sha256("\0".join(texts).encode()).hexdigest(),
        **{name: sum(question["prompt"][name] for question in questions) for name in counts},
    }


PREDICTIONS = GOLDEN / "predictions"
PUBLISHED_PREDICTIONS = {
    "coursera": "coursera.pred.jsonl",
    "gsm": "gsm100.pred.jsonl",
    "quality": "quality.pred.jsonl",
    "toefl": "tpo.pred.jsonl",
    "codeu": "codeU.pred.jsonl",
    "topic_retrieval": "topic_retrieval_longchat.pred.jsonl",
}


def scores_of_golden_predictions() -> Rows:
    """Return the score of each golden file, and of each of its answers alone."""
    rows: Rows = {}
    for file in sorted(PREDICTIONS.glob("*.jsonl")):
        rows |= scores_of_file(file.stem, file)
    return rows


def scores_of_published_predictions(real_data: Path) -> Rows:
    """Return the score of each published file, and of each of its answers alone."""
    folder = real_data / "leval" / "predictions" / "turbo-16k-0613"
    rows: Rows = {}
    for task, name in PUBLISHED_PREDICTIONS.items():
        rows |= scores_of_file(task, folder / name)
    return rows


def scores_of_file(task: str, file: Path) -> Rows:
    """Return the score of a prediction file, and of each answer alone: none hides another."""
    return {task: score(task, file), **{f"{task} {at}": row for at, row in single(task, file)}}


def single(task: str, file: Path) -> Iterator[tuple[int, Row]]:
    """Yield the score of each line of a prediction file, written to a file of its own."""
    lines = file.read_text(encoding="utf-8").split("\n")
    with tempfile.TemporaryDirectory() as folder:
        one_line = Path(folder) / "one.jsonl"
        for number, line in enumerate(lines):
            if line.startswith("{"):
                one_line.write_text(line + "\n", encoding="utf-8")
                yield number, score(task, one_line)


def score(task: str, file: Path) -> Row:
    """Return the scores in percent, as `score --json` prints them."""
    scores: Row = json.loads(fine("score", "--task", task, file, "--json"))
    return scores
