"""Results folders as a sweep writes them, made from a seed."""

import hashlib
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

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


def closed_samples(
    task: str, skill: float, seed: int, limit: int | None = None, evil: str = ""
) -> list[dict[str, Any]]:
    """Logged samples of one closed-ended task with correlated questions."""
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
            score = float(right)
            values = {
                "exact_match": score,
                "exact_match_strict": 0.0 if unparsed else score,
            }
            mark = "unparsed" if unparsed else "right" if right else "wrong"
            single = task in {"leval_closed_gsm", "leval_closed_codeu"}
            name = f"{task}-{document}"
            rows.append(
                {
                    "doc_id": len(rows),
                    "doc": {
                        "document_id": name,
                        "question_id": question,
                        "question": f"Question {question} of {name}? {evil}",
                        "gold": gold,
                        "cluster": f"{name}#{question}" if single else name,
                        "source": "data_dir",
                        "prompt": {
                            "prompt_tokens": 2000 + document,
                            "document_tokens": 1900,
                            "kept_head": 750 if document % 3 == 0 else 1900,
                            "kept_tail": 750 if document % 3 == 0 else 0,
                            "truncated": document % 3 == 0,
                        },
                    },
                    "target": gold,
                    "arguments": {"gen_args_0": {"arg_0": "prompt", "arg_1": {}}},
                    "resps": [[f"Answer: {answer}. {evil}"]],
                    "filtered_resps": [[answer, mark]],
                    "filter": "extract",
                    "metrics": list(values),
                    **values,
                }
            )
    return rows[:limit]


def perplexity_samples(
    lengths: Sequence[int], gain: float, seed: int, documents: int = 8
) -> list[dict[str, Any]]:
    """Logged samples of one perplexity task: `[nats, tokens]` at each context length."""
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
        rows.append(
            {
                "doc_id": document,
                "doc": {"document_id": f"d{document}", "cluster": f"d{document}", "source": "hub"},
                "target": "",
                "resps": [],
                "filtered_resps": [],
                "filter": "none",
                "metrics": list(values),
                **values,
            }
        )
    return rows


def logged(at: int, prefix: str, values: dict[str, Any]) -> dict[str, Any]:
    """A logged sample of one document of its own, with metrics of any names."""
    name = f"{prefix}{at}"
    doc = {"document_id": name, "cluster": name, "source": "data_dir"}
    return {"doc_id": at, "doc": doc, "target": "", "resps": [], "filtered_resps": [],
            "filter": "none", "metrics": list(values), **values}  # fmt: skip


def aggregate(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What lm-eval writes under `results.<task>`."""
    name = rows[0]["filter"]
    out: dict[str, Any] = {"alias": "x", "sample_len": len(rows)}
    for metric in rows[0]["metrics"]:
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
    """lm-eval's own files for some tasks; the SHA-256 of each by name."""
    folder.mkdir(parents=True, exist_ok=True)
    sample = top.pop("sample", False)
    original = top.pop("original", {})
    data = {"source": "sample" if sample else "data_dir", "path": "x", "sample": sample,
            "files": {"x.jsonl": "00"}}  # fmt: skip
    results = {
        "results": {task: aggregate(rows) for task, rows in tasks.items()},
        "groups": {},
        "group_subtasks": {},
        "configs": {task: {"task": task, "metadata": {"data": data}} for task in tasks},
        "n-samples": {
            task: {"original": original.get(task, len(rows)), "effective": len(rows)}
            for task, rows in tasks.items()
        },
        "higher_is_better": {
            task: {m: re.search("nll|perplexity|loss", m) is None for m in rows[0]["metrics"]}
            for task, rows in tasks.items()
        },
        "config": {"model": "hf", "model_args": {"pretrained": "m"}, "limit": None},
        "lm_eval_version": "0.4.13",
        "total_evaluation_time_seconds": "12.5",
        **top,
    }  # fmt: skip
    files = {f"results_{stamp}.json": json.dumps(results)}
    for task, rows in tasks.items():
        files[f"samples_{task}_{stamp}.jsonl"] = "".join(json.dumps(row) + "\n" for row in rows)
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
    return {name: hashlib.sha256(content.encode()).hexdigest() for name, content in files.items()}


def identity_of(request: dict[str, Any]) -> dict[str, Any]:
    """What a sweep records as the identity of a requested cell, less files and versions."""
    asked = ("tasks", "metadata", "gen_kwargs", "task_gen_kwargs", "limit", "num_fewshot", "seed",
             "apply_chat_template", "environment", "context_length")  # fmt: skip
    return {
        "schema_version": 1,
        "model": {
            **{name: request["model"][name] for name in ("backend", "dtype", "args")},
            **({"commit": commit} if (commit := request["model"]["revision"]) else {}),
        },
        "rope_parameters": request["method"]["rope_parameters"],
        "rope_precision": request["method"]["rope_precision"],
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
    hashes = write_lm_eval(
        folder, tasks, "2026-01-02T03-04-05.000000", sample=sample, original=original or {}
    )
    if features is not None:
        text = json.dumps(features)
        (folder / "rope_features.json").write_text(text, encoding="utf-8")
        hashes["rope_features.json"] = hashlib.sha256(text.encode()).hexdigest()
    request = {
        "schema_version": 1,
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
        "seed": 0,
        "apply_chat_template": False,
        "baseline": "none",
        "versions": {"leval-harness": "0.1.0", "torch": "2.13.0"},
        "host": {"machine": "x86_64"},
        "command": f"leval-harness sweep test.yaml --only {cell_id}",
        "created": "2026-01-02T03:04:05+00:00",
        **cell,
    }  # fmt: skip
    request["identity"] = identity_of(request) | request.get("identity", {})
    (folder / "cell.json").write_text(json.dumps(request), encoding="utf-8")
    (folder / "log.txt").write_text("log\n", encoding="utf-8")
    done = {
        "schema_version": 1,
        "cell_id": cell_id,
        "seconds": 60.0,
        "telemetry": {"tokens_prefilled": 100000, "tokens_generated": 2000, "seconds": 50.0,
                      "peak_memory_bytes": 3 * 2**30},
        "files": hashes,
    }  # fmt: skip
    (folder / "done.json").write_text(json.dumps(done), encoding="utf-8")
    return folder


def rope_features(wavelengths: Sequence[float], context_length: int = 8192) -> dict[str, Any]:
    """What a cell writes about its RoPE settings."""
    gaps = {str(s): [s / 100 + at / 1000 for at in range(len(wavelengths))] for s in (2, 4)}
    return {"schema_version": 1, "head_dim": 2 * len(wavelengths), "context_length": context_length,
            "original_max_position_embeddings": 4096, "wavelengths": list(wavelengths),
            "feature_gap": gaps}  # fmt: skip


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
        rows.append(
            {"doc_id": text, "doc": {"document_id": f"text {text}", "cluster": f"text {text}"},
             "target": "", "resps": [], "filtered_resps": [], "filter": "none",
             "metrics": list(values), **values}
        )  # fmt: skip
    return rows


def needles(length):
    """RULER's questions: four needles in each tenth of the prompt; the deep ones are lost."""
    rows = []
    for at in range(40):
        before = "x" * (at % 10 * 100)
        prompt = before + "needle" + "x" * (982 - len(before)) + "\nWhat is it?"
        doc = {"index": at, "input": prompt, "outputs": ["needle"], "max_length": length}
        found = at % 10 < 5
        rows.append(
            {"doc_id": at, "doc": doc, "target": "", "resps": [["needle" if found else "?"]],
             "filtered_resps": [""], "filter": "none", "metrics": [f"{length}"],
             f"{length}": float(found)}
        )  # fmt: skip
    return rows
