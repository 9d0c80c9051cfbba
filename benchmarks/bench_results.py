"""Seconds and memory to read and compare the results of many runs of all of L-Eval.

    python benchmarks/bench_results.py [--runs 120] [--prompt 8000]

Runs are written with random answers, all questions of the six closed-ended tasks each; prompts have
so many characters. Reading happens in a process of its own.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SHAPES = {"coursera": (15, 172), "gsm": (100, 100), "quality": (15, 202), "toefl": (15, 269),
          "codeu": (90, 90), "sfiction": (7, 64)}  # fmt: skip
"""Task -> documents and questions."""

STAMP = "2026-01-01T00-00-00.000000"


def line(task, at, document, right, prompt):
    """A sample as lm-eval logs it."""
    kept = {"kept_head": 4000, "kept_tail": 4000, "document_tokens": 9000, "truncated": True}
    doc = {"document_id": f"{document}", "question_id": at, "cluster": f"{document}",
           "question": "?", "prompt": kept}  # fmt: skip
    scores = {"exact_match": right, "exact_match_strict": right}
    return {"doc_id": at, "doc": doc, "target": "A",
            "arguments": {"gen_args_0": {"arg_0": prompt, "arg_1": {"max_gen_toks": 8}}},
            "resps": [["A"]], "filtered_resps": [["A", "right" if right else "wrong"]],
            "filter": "none", "metrics": [*scores], "doc_hash": f"{task}{at:08d}",
            "prompt_hash": f"{task}{at:060d}", "target_hash": "0" * 64, **scores}  # fmt: skip


def write(folder, run, prompt):
    """One finished run."""
    rng, names = random.Random(run), [f"leval_closed_{task}" for task in SHAPES]
    folder.mkdir(parents=True)
    results, counts = {}, {}
    for name, (documents, questions) in zip(names, SHAPES.values(), strict=True):
        rights = [float(rng.random() < 0.4 + 0.02 * (run % 12)) for _ in range(questions)]
        lines = (line(name, at, at % documents, r, prompt) for at, r in enumerate(rights))
        text = "\n".join(map(json.dumps, lines))
        (folder / f"samples_{name}_{STAMP}.jsonl").write_text(text, encoding="utf-8")
        mean = sum(rights) / questions
        results[name] = {"exact_match,none": mean, "exact_match_strict,none": mean}
        counts[name] = {"original": questions, "effective": questions}
    file = {"results": results, "n-samples": counts, "configs": {name: {} for name in names}}
    (folder / f"results_{STAMP}.json").write_text(json.dumps(file), encoding="utf-8")
    run = {"schema_version": 1, "run_id": folder.name, "tasks": names, "place": run,
            "model": {"name": f"model-{run // 24}"}, "method": {"name": f"method-{run % 12}"},
            "context_length": 4096 * (1 + run // 12 % 2), "baseline": "method-0"}  # fmt: skip
    (folder / "run.json").write_text(json.dumps(run), encoding="utf-8")


def measure(folder):
    """Seconds of each step and the peak memory of this process."""
    start = time.perf_counter()
    import leval_harness as lh

    loaded = lh.load(folder)
    read = time.perf_counter()
    compared = lh.compare(loaded)
    done = time.perf_counter()
    print(f"{len(loaded.samples):,} rows of samples, {len(compared):,} numbers, "
          f"{compared['p'].notna().sum():,} comparisons: read {read - start:.1f} s, "
          f"compare {done - read:.1f} s, peak "
          f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=120)
    parser.add_argument("--prompt", type=int, default=8000, help="characters")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure(args.measure)
        return
    with tempfile.TemporaryDirectory() as name:
        prompt = ("word " * args.prompt)[: args.prompt]
        for run in range(args.runs):
            write(Path(name) / "sweep" / "runs" / f"c{run:04d}", run, prompt)
        subprocess.run([sys.executable, __file__, "--measure", name], check=True)


if __name__ == "__main__":
    main()
