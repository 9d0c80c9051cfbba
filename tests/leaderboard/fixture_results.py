"""Results folders derived from the real runs in `real_runs`, whose README has their command.

Every file begins as a real one of these runs: its fields, their types and its layout are real. A
function here replaces what a test is about (scores, documents, methods, settings) and says so.
"""

import hashlib
import json
import math
import re
from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

RUNS = Path(__file__).parent / "real_runs" / "results"
CELLS = {
    "leval_closed_quality": "f50ba9af55040560",
    "leval_closed_gsm": "f50ba9af55040560",
    "leval_closed_sfiction": "f50ba9af55040560",
    "ppl_pydocs": "8094834b20960273",
    "niah_single_1": "472e77ab5823d757",
}
"""Task -> the real cell that ran it."""
LIKE = {"leval_closed_codeu": "leval_closed_gsm", "leval_closed": "leval_closed_quality",
        "ppl": "ppl_pydocs"}  # fmt: skip
"""A task or the start of its name -> one that a real run has, whose files look the same."""
ARGUMENTS = ("pretrained", "rope_parameters", "max_position_embeddings", "max_length",
             "rope_precision", "dtype", "data_dir", "num_docs")  # fmt: skip
"""What lm-eval repeats of the model's arguments and the sweep's metadata."""
REQUESTED = ("generation_kwargs", "num_fewshot")
"""What a task's configuration repeats of a cell's request, which tests change alone."""

# documents, questions of each document
SHAPES = {
    "leval_closed_coursera": (15, 172),
    "leval_closed_gsm": (100, 100),
    "leval_closed_quality": (15, 202),
    "leval_closed_toefl": (15, 269),
    "leval_closed_codeu": (90, 90),
    "leval_closed_sfiction": (7, 64),
}
SKILL = {"none": 0.30, "linear": 0.33, "yarn": 0.45, "resonance_yarn": 0.48}

IDENTITY = {
    "backend": {"model": {"backend": "vllm"}},
    "dtype": {"model": {"dtype": "float16"}},
    "commit": {"model": {"commit": "abc"}},
    "adapter": {"model": {"args": {"peft": "x"}}},
    "gen_kwargs": {"gen_kwargs": {"temperature": 1.0}},
    "task_gen_kwargs": {"task_gen_kwargs": {"leval_closed_gsm": {"temperature": 1.0}}},
    "seed": {"seed": 7},
    "num_fewshot": {"num_fewshot": 3},
    "environment": {"environment": {"NVIDIA_TF32_OVERRIDE": "1"}},
    "apply_chat_template": {"apply_chat_template": True},
    "metadata": {"metadata": {"truncation": "left"}},
    "metadata of a family": {"metadata": {"perplexity": {"stride": 64}}},
    "rope_precision": {"rope_precision": "model"},
    "what no version knows": {"brand_new": 1},
}
"""What a setting that decides numbers is in the identity of a cell."""


def split(total: int, parts: int) -> list[int]:
    """`total` questions over `parts` documents, as evenly as it goes."""
    return [total // parts + (at < total % parts) for at in range(parts)]


def real(task: str, pattern: str) -> Path:
    """A file of the real cell that ran a task, or one like it."""
    (path,) = (RUNS / CELLS[real_task(task)]).glob(pattern)
    return path


def real_task(task: str) -> str:
    """The task of the real runs whose files a task's are derived from."""
    alike = (real for start, real in LIKE.items() if task.startswith(start))
    return task if task in CELLS else next(alike, "niah_single_1")


@cache
def _content(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8").partition("\n{")[0])


def real_row(task: str) -> dict[str, Any]:
    """The first question that a real run logged of a task, without its long prompt."""
    row = deepcopy(_content(real(task, f"samples_{real_task(task)}_*.jsonl")))
    row["arguments"] = {"gen_args_0": row["arguments"]["gen_args_0"] | {"arg_0": "prompt"}}
    return row


def real_json(task: str, pattern: str) -> dict[str, Any]:
    """A JSON file of a real cell."""
    return deepcopy(_content(real(task, pattern)))


def with_hashes(row: dict[str, Any]) -> dict[str, Any]:
    """A row with the hashes of what stands in it, as lm-eval makes them."""
    parts = {"doc": row["doc"], "prompt": row["arguments"], "target": row["target"]}
    return row | {
        f"{name}_hash": hashlib.sha256(json.dumps(part).encode()).hexdigest()
        for name, part in parts.items()
    }


def closed_samples(
    task: str, skill: float, seed: int, limit: int | None = None, evil: str = ""
) -> list[dict[str, Any]]:
    """The real question of a closed-ended task, with other names, answers and correlated scores."""
    documents, questions = SHAPES[task]
    rng = np.random.default_rng([seed, len(task)])
    rows: list[dict[str, Any]] = []
    for document, count in enumerate(split(questions, documents)):
        share = float(np.clip(skill + rng.normal(0, 0.1), 0.02, 0.98))
        for question in range(count):
            right = bool(rng.random() < share)
            unparsed = bool(rng.random() < 0.03)
            gold = "ABCD"[(7 * document + 3 * question) % 4]  # the same whoever is asked
            answer = gold if right else "ABCD"[("ABCD".index(gold) + 1) % 4]
            row = real_row(task)
            name, single = f"{task}-{document}", documents == questions
            row["doc"] |= {
                "document_id": name,
                "question_id": question,
                "question": f"Question {question} of {name}? {evil}",
                "gold": gold,
                "cluster": f"{name}#{question}" if single else name,
                "source": "data_dir",
                "prompt": row["doc"]["prompt"]
                | {
                    "prompt_tokens": 2000 + document,
                    "document_tokens": 1900,
                    "kept_head": 750 if document % 3 == 0 else 1900,
                    "kept_tail": 750 if document % 3 == 0 else 0,
                    "truncated": document % 3 == 0,
                },
            }
            scores = {each: float(right) for each in row["metrics"]} | {
                "exact_match_stderr": [row["doc"]["cluster"], float(right)],
                "exact_match_strict": float(right and not unparsed),
            }
            mark = "unparsed" if unparsed else "right" if right else "wrong"
            row |= scores | {
                "doc_id": len(rows),
                "target": gold,
                "resps": [[f"Answer: {answer}. {evil}"]],
                "filtered_resps": [[answer, mark]],
                "reached_limit": 0.0,
            }
            rows.append(with_hashes(row))
    return rows[:limit]


def perplexity_samples(
    lengths: Sequence[int], gain: float, seed: int, documents: int = 8
) -> list[dict[str, Any]]:
    """Real rows with other losses: `[nats, tokens]` at each context length, one metric each."""
    rng = np.random.default_rng(seed)
    rows = []
    for document in range(documents):
        base = 2.6 + rng.normal(0, 0.15)
        values = {
            f"token_perplexity@{length}": [
                float((base + gain * math.log2(length / 1024)) * 4000),
                4000 + 10 * document,
            ]
            for length in lengths
        }
        name = {"document_id": f"d{document}", "cluster": f"d{document}", "source": "hub"}
        rows.append(measured("ppl_pydocs", document, name, values))
    return rows


def measured(
    task: str, at: int, doc: dict[str, Any], values: dict[str, Any], **further: Any
) -> dict[str, Any]:
    """A real row with another document and other metrics."""
    row = real_row(task)
    kept = {name: each for name, each in row.items() if name not in row["metrics"]}
    changed = {"doc_id": at, "doc": row["doc"] | doc, "metrics": list(values)}
    return with_hashes(kept | changed | further | values)


def logged(at: int, prefix: str, values: dict[str, Any]) -> dict[str, Any]:
    """A row of one document of its own, with metrics of any names."""
    name = f"{prefix}{at}"
    doc = {"document_id": name, "cluster": name, "source": "data_dir"}
    return measured("ppl_pydocs", at, doc, values)


def aggregate(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What lm-eval writes under `results.<task>`."""
    name = rows[0]["filter"]
    out: dict[str, Any] = {"alias": "x", "sample_len": len(rows)}
    for metric in rows[0]["metrics"]:
        if metric.endswith("_stderr"):
            continue  # written with its metric
        values = [row[metric] for row in rows if row[metric] is not None]
        if all(v == [0.0, 0] for v in values):
            continue  # a list; nothing was counted
        if isinstance(values[0], list):
            mean = sum(v[0] for v in values) / sum(v[1] for v in values)
            out[f"{metric},{name}"] = math.exp(mean) if "perplexity" in metric else mean
        else:
            out[f"{metric},{name}"] = sum(values) / len(values)
        out[f"{metric}_stderr,{name}"] = "N/A"
    return out


def write_lm_eval(
    folder: Path, tasks: dict[str, list[dict[str, Any]]], stamp: str, **top: Any
) -> dict[str, str]:
    """lm-eval's files, derived from a real run's, for some tasks; the SHA-256 of each by name."""
    folder.mkdir(parents=True, exist_ok=True)
    sample, cell = top.pop("sample", False), top.pop("cell", {})
    original = top.pop("original", {})
    results = real_json(next(iter(tasks)), "results_*.json")
    for name in ("model_name", "model_name_sanitized", "max_length", "task_hashes", "n-shot"):
        del results[name]
    results |= {
        "results": {task: aggregate(rows) for task, rows in tasks.items()},
        "groups": {},
        "configs": {task: config_of(task, rows, sample, cell) for task, rows in tasks.items()},
        "versions": dict.fromkeys(tasks, 1),
        "n-samples": {
            task: {"original": original.get(task, len(rows)), "effective": len(rows)}
            for task, rows in tasks.items()
        },
        "higher_is_better": {
            task: {m: re.search("nll|perplexity|loss", m) is None for m in rows[0]["metrics"]}
            for task, rows in tasks.items()
        },
        "config": {"model": "hf", "model_args": {"pretrained": "m"}, "limit": None},
        "total_evaluation_time_seconds": "12.5",
        **top,
    }
    files = {f"results_{stamp}.json": json.dumps(results)}
    for task, rows in tasks.items():
        files[f"samples_{task}_{stamp}.jsonl"] = "".join(json.dumps(row) + "\n" for row in rows)
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
    return {name: hashlib.sha256(content.encode()).hexdigest() for name, content in files.items()}


def config_of(
    task: str, rows: list[dict[str, Any]], sample: bool, cell: dict[str, Any]
) -> dict[str, Any]:
    """A task's configuration: all of its documents, and the settings that its cell requested."""
    config = real_json(task, "results_*.json")["configs"][real_task(task)]
    config = {name: each for name, each in config.items() if name not in REQUESTED}
    metadata = config["metadata"]
    metadata = {n: each for n, each in metadata.items() if n not in (*ARGUMENTS, "settings")}
    documents = len({json.dumps(row["doc"].get("document_id")) for row in rows})
    metadata |= {
        "data": {"source": "sample" if sample else "data_dir", "path": "x", "sample": sample,
                 "files": {"x.jsonl": "00"}},
        "documents": documents,
    }  # fmt: skip
    if "documents_in_file" in metadata:
        is_part = "num_docs" in cell.get("metadata", {})
        metadata |= {"documents_in_file": documents, "partial": is_part}
        metadata["prompt"] |= {"context_length": cell.get("context_length")}
    return config | {"task": task, "metadata": metadata}


def identity_of(request: dict[str, Any]) -> dict[str, Any]:
    """The real identity with what a cell requests in it."""
    identity = real_json(request["tasks"][0], "cell.json")["identity"]
    asked = ("tasks", "metadata", "gen_kwargs", "task_gen_kwargs", "limit", "num_fewshot", "seed",
             "apply_chat_template", "environment", "context_length")  # fmt: skip
    identity["model"] |= {name: request["model"][name] for name in ("backend", "dtype", "args")}
    if commit := request["model"]["revision"]:
        identity["model"]["commit"] = commit
    return identity | {
        "rope_parameters": request["method"]["rope_parameters"],
        "rope_precision": request["method"]["rope_precision"],
        "task_versions": dict.fromkeys(request["tasks"], "1"),
        "data": {},
        **{name: request[name] for name in asked if name in request},
    }


def write_cell(
    root: Path,
    cell_id: str,
    tasks: dict[str, list[dict[str, Any]]],
    *,
    model: str = "SmolLM2-135M",
    method: str = "yarn",
    context_length: int | None = 8192,
    sample: bool = False,
    original: dict[str, int] | None = None,
    features: dict[str, Any] | None = None,
    **cell: Any,
) -> Path:
    """One finished cell's folder; with a `limit` it asked half of the questions."""
    folder = root / cell_id
    if original is None and cell.get("limit"):
        original = {task: 2 * len(rows) for task, rows in tasks.items()}
    asked = {"context_length": context_length, **cell}
    stamp = "2026-01-02T03-04-05.000000"
    hashes = write_lm_eval(folder, tasks, stamp, sample=sample, original=original or {}, cell=asked)
    if features is not None:
        text = json.dumps(features)
        (folder / "rope_features.json").write_text(text, encoding="utf-8")
        hashes["rope_features.json"] = hashlib.sha256(text.encode()).hexdigest()
    request = real_json(next(iter(tasks)), "cell.json")
    del request["data"], request["identity"], request["model_args"]
    request |= {
        "cell_id": cell_id,
        "sweep": "test",
        "model": {"name": model, "path": "m", "revision": None, "backend": "hf-long",
                  "dtype": "float32", "args": {}},
        "method": {"name": method, "rope_parameters": {"rope_type": method},
                   "rope_precision": "float32"},
        "context_length": context_length,
        "tasks": list(tasks),
        "metadata": {},
        "gen_kwargs": {},
        "limit": None,
        "baseline": "none",
        "versions": {"leval-harness": "0.1.0", "torch": "2.13.0"},
        "host": {"machine": "x86_64"},
        "command": "leval-harness sweep test.yaml",
        "created": "2026-01-02T03:04:05+00:00",
        **cell,
    }  # fmt: skip
    request["identity"] = identity_of(request) | request.get("identity", {})
    (folder / "cell.json").write_text(json.dumps(request), encoding="utf-8")
    (folder / "log.txt").write_text("log\n", encoding="utf-8")
    done = real_json(next(iter(tasks)), "done.json")
    done |= {"cell_id": cell_id, "seconds": 60.0, "files": hashes}
    done["telemetry"] |= {"tokens_prefilled": 100000, "tokens_generated": 2000, "seconds": 50.0,
                          "peak_memory_bytes": 3 * 2**30}  # fmt: skip
    (folder / "done.json").write_text(json.dumps(done), encoding="utf-8")
    return folder


def rope_features(wavelengths: Sequence[float], context_length: int = 8192) -> dict[str, Any]:
    """The real record of RoPE's features, with other wavelengths and gaps."""
    gaps = {str(s): [s / 100 + at / 1000 for at in range(len(wavelengths))] for s in (2, 4)}
    return real_json("leval_closed_gsm", "rope_features.json") | {
        "head_dim": 2 * len(wavelengths), "context_length": context_length,
        "original_max_position_embeddings": 4096, "wavelengths": list(wavelengths),
        "feature_gap": gaps,
    }  # fmt: skip


def write_sweep(root: Path, methods: Sequence[str] = tuple(SKILL), evil: str = "") -> Path:
    """A whole sweep: closed tasks at two lengths, perplexity at three, one failed cell."""
    sweep = root / "test"
    for at, method in enumerate(methods):
        for length in (4096, 8192):
            skill = SKILL[method] + (0.02 if length == 8192 else 0)
            tasks = {task: closed_samples(task, skill, at * 100, evil=evil) for task in SHAPES}
            write_cell(sweep, f"{at}{length}", tasks, method=method, context_length=length)
        rows = perplexity_samples((1024, 2048, 4096), -0.02 * at, 7)
        write_cell(sweep, f"{at}ppl", {"ppl_govreport": rows}, method=method, context_length=4096)
    gsm = {"leval_closed_gsm": closed_samples("leval_closed_gsm", 0.3, 1)}
    failed = write_cell(sweep, "f00", gsm, method="dynamic")
    (failed / "done.json").unlink()
    (failed / "failed.json").write_text(
        json.dumps({"reason": "out of memory", "kind": "oom", "log_tail": ["x"], "attempts": 2})
    )
    return sweep


LENGTHS = (2048, 4096, 8192)
STEPS = {"rope": (-0.1, 0.9), "yarn": (-0.1, -0.05)}


def perplexities(method):
    """Six texts whose perplexity falls and, without a method, rises beyond the second length."""
    rows = []
    for text in range(6):
        level = 2.5 + text / 20
        values = {}
        for length, step in zip(LENGTHS, (0.0, *STEPS[method]), strict=True):
            level += step * (1 + text / 100)
            values[f"token_perplexity@{length}"] = [512 * level, 512]
        name = {"document_id": f"text {text}", "cluster": f"text {text}"}
        rows.append(measured("ppl_pydocs", text, name, values))
    return rows


def needles(length):
    """RULER's questions: four needles in each tenth of the prompt; the deep ones are lost."""
    rows = []
    for at in range(40):
        before = "x" * (at % 10 * 100)
        prompt = before + "needle" + "x" * (982 - len(before)) + "\nWhat is it?"
        doc = {"index": at, "input": prompt, "outputs": ["needle"], "max_length": length}
        found = at % 10 < 5
        value = {f"{length}": float(found)}
        answer = [["needle" if found else "?"]]
        rows.append(measured("niah_single_1", at, doc, value, resps=answer, filtered_resps=[""]))
    return rows
