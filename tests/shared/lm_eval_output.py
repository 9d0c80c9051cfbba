"""lm-eval's own output as small files: a results file and the samples beside it."""

import json

STAMP = "2026-01-02T03-04-05.000000"
ACC = {"acc,none": 0.5, "acc_stderr,none": 0.1}
ROPE = {"pretrained": "m", "rope_parameters": {"rope_type": "yarn", "factor": 2.0}}


def write(folder, values=None, task="arc", samples=None, stamp=STAMP, **top):
    """A results file of lm-eval 0.4 with one task; `config` and the task's `fields` are merged."""
    folder.mkdir(parents=True, exist_ok=True)
    values = mean_of(samples) if values is None else values
    better, fields = top.pop("better", {}), top.pop("fields", {})
    config = {"model": "hf", "model_args": {"pretrained": "m"}, "limit": None}
    questions = 20 if samples is None else len({row["doc_id"] for row in samples})
    content = {
        "results": {task: {"alias": task, **values}},
        "configs": {task: {"task": task, "metadata": {"version": 1.0}, **fields}},
        "n-samples": {task: {"original": questions, "effective": questions}},
        "higher_is_better": {task: better},
        "model_name": "org/model",
        "max_length": 8192,
        **top,
        "config": config | top.get("config", {}),
    }
    (folder / f"results_{stamp}.json").write_text(json.dumps(content))
    if samples is not None:
        rows = "".join(json.dumps(row) + "\n" for row in samples)
        (folder / f"samples_{task}_{stamp}.jsonl").write_text(rows)
    return folder


def mean_of(samples, metric="acc"):
    scores = [row[metric] for row in samples]
    return {f"{metric},none": sum(scores) / len(scores)}


def sample(at, score, metric="acc", chosen="none", asked=None, **more):
    asked = f"question {at}" if asked is None else asked
    hashes = {f"{part}_hash": f"{part} {asked}" for part in ("doc", "prompt", "target")}
    return {"doc_id": at, "doc": {}, "resps": [["x"]], "filter": chosen, "metrics": [metric],
            **hashes, metric: score, **more}  # fmt: skip


def answers(scores, first=0, **more):
    """Samples of so many questions with these scores."""
    return [sample(first + at, score, **more) for at, score in enumerate(scores)]


def run(folder, name="c1", **changes):
    """A finished run of `gsm` with three questions."""
    record = {
        "schema_version": 1,
        "run_id": name,
        "model": {
            "name": "SmolLM2",
            "path": "/models/smollm2",
            "backend": "hf",
            "dtype": "float32",
        },
        "method": {"name": "yarn", "rope_parameters": {"rope_type": "yarn", "factor": 2.0}},
        "tasks": ["leval_closed_gsm"],
        "context_length": 8192,
        "command": "leval-harness sweep x.yaml",
        "created": "2026-01-02T03:04:05+00:00",
        "identity": {"gen_kwargs": {"temperature": 0.0}},
        "seconds": 50.0,
        "telemetry": {"tokens_prefilled": 1000},
        **changes,
    }
    place = folder / "runs" / name
    rows = [
        sample(at, score, "exact_match",
               doc={"document_id": "a", "question_id": at, "cluster": f"a-{at}",
                    "prompt": {"kept_head": 3, "kept_tail": 4, "truncated": at == 0}},
               filtered_resps=[["A", ("right", "wrong", "unparsed")[at]]])
        for at, score in enumerate((1.0, 0.0, 0.0))
    ]  # fmt: skip
    write(place, mean_of(rows, "exact_match"), "leval_closed_gsm", rows)
    (place / "run.json").write_text(json.dumps(record))
    return place
