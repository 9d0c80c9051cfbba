"""Time and memory of building all requests of the closed-ended tasks, without a model.

    python benchmarks/bench_requests.py --data-dir DATA --tokenizer MODEL

For each task: examples, seconds and milliseconds an example as the tasks build them, the seconds of
a plain loop that tokenises every prompt (best of three each), and their ratio; peak
memory is of the Python objects that building leaves and needs on its way.
"""

import argparse
import json
import time
import tracemalloc

from leval_tasks.closed.catalog import TASKS
from leval_tasks.closed.task import LEvalClosedTask
from leval_tasks.data import available, resolve_source
from leval_tasks.model import find_tokenizer

REPEATS = 3


def build(name: str, metadata: dict[str, object]) -> LEvalClosedTask:
    task = LEvalClosedTask({"task": name, "metadata": metadata})
    task.config.task = name
    task.build_all_requests(limit=None)
    return task


def measure(name: str, metadata: dict[str, object]) -> dict[str, object]:
    tokenizer = find_tokenizer(metadata)
    times: list[tuple[float, float]] = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        task = build(name, metadata)
        built = time.perf_counter() - start
        prompts = [str(instance.args[0]) for instance in task.instances]
        start = time.perf_counter()
        for prompt in prompts:
            tokenizer(prompt)
        times.append((built, time.perf_counter() - start))
        del task, prompts
    seconds, plain = (min(column) for column in zip(*times, strict=True))
    tracemalloc.start()
    build(name, metadata)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {"seconds": seconds, "plain_loop_seconds": plain, "peak_mib": peak / 2**20}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--context-length", type=int, default=16384)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    metadata: dict[str, object] = {
        "pretrained": options.tokenizer,
        "data_dir": options.data_dir,
        "context_length": options.context_length,
        "max_length": options.context_length,
    }
    tasks = available(resolve_source(metadata))
    rows = []
    find_tokenizer(metadata)("warm up")
    for name, closed in TASKS.items():
        if closed not in tasks:
            continue
        examples = len(LEvalClosedTask({"task": name, "metadata": metadata}).test_docs())
        row = {"task": name, "examples": examples, **measure(name, metadata)}
        row["ms_per_example"] = 1000 * float(row["seconds"]) / examples
        row["ratio_to_plain_loop"] = float(row["plain_loop_seconds"]) / float(row["seconds"])
        rows.append(row)
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    print("| task | examples | seconds | ms an example | plain loop, s | ratio | peak MiB |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['task']} | {row['examples']} | {row['seconds']:.2f} | "
            f"{row['ms_per_example']:.2f} | {row['plain_loop_seconds']:.2f} | "
            f"{row['ratio_to_plain_loop']:.1f} | {row['peak_mib']:.1f} |"
        )


if __name__ == "__main__":
    main()
