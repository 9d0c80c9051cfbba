"""How reading results and writing table and page grow with the number of cells.

    python benchmarks/bench_results.py --cells 100 200 400 --samples 1000 [--browser]
    python benchmarks/bench_results.py --statistics

Prints milliseconds a cell at each size (which stay level where time grows linearly), the peak
memory of the process, and, with --browser, first paint and the time to sort and filter in headless
Chromium: to the next frame, and until every row stands.
"""

import argparse
import importlib.util
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TASKS = (
    "leval_closed_coursera",
    "leval_closed_quality",
    "leval_closed_toefl",
    "leval_closed_sfiction",
    "leval_closed_gsm",
)


def fixture(name):
    path = Path(__file__).parents[1] / "tests" / "leaderboard" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def make(folder, cells, samples):
    """Cells of one task each with `samples` questions; files are rewritten, not recomputed."""
    results = fixture("fixture_results")
    results.SHAPES = dict.fromkeys(TASKS, (50, samples))
    content = {task: results.closed_samples(task, 0.4, 1) for task in TASKS}
    for at in range(cells):
        task = TASKS[at % len(TASKS)]
        row = at // len(TASKS)
        results.write_cell(
            folder,
            f"c{at:05d}",
            {task: content[task]},
            method=f"method-{row % 12:02d}",
            model=f"model-{row // 24:03d}",
            context_length=4096 * (1 + row // 12 % 2),
            baseline="method-00",
        )


def measure(folder, out):
    """Run in a process of its own: seconds of each step and the peak memory."""
    from leval_harness.analysis import analyse
    from leval_harness.old_results import load_results
    from leval_harness.page import write_page
    from leval_harness.old_tables import build_tables, details_table, render

    steps = {}
    start = time.perf_counter()

    def lap(name):
        nonlocal start
        steps[name] = time.perf_counter() - start
        start = time.perf_counter()

    read = load_results(folder)
    lap("read")
    analysis = analyse(read)
    lap("analyse")
    render(build_tables(analysis), "md")
    render([details_table(analysis)], "csv")
    lap("table")
    write_page(analysis, out)
    lap("page")
    steps["cpu"] = time.process_time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(json.dumps({**steps, "peak_mib": peak}))


def statistics(methods=12):
    """Seconds for every interval and test of so many methods on the six closed-ended tasks."""
    from leval_harness.analysis import analyse
    from leval_harness.old_results import load_results

    made = fixture("fixture_results")
    with tempfile.TemporaryDirectory() as name:
        for at in range(methods):
            tasks = {t: made.closed_samples(t, 0.3 + 0.02 * at, at) for t in made.SHAPES}
            method = f"method-{at:02d}" if at else "none"
            made.write_cell(Path(name), f"c{at}", tasks, method=method)
        read = load_results(Path(name))
    analyse(read)  # imports and tables of signs
    start = time.perf_counter()
    tests = sum(entry.difference is not None for entry in analyse(read).entries)
    print(f"{methods} methods: {tests} comparisons in {time.perf_counter() - start:.2f} s")


def synthetic_rows(page, rows):
    """Repeat the page's own rows until it has so many: the browser's part of the work."""
    path = page / "data" / "leaderboard.js"
    text = path.read_text(encoding="utf-8")
    head, _, rest = text.partition(",")
    board = json.loads(rest.rstrip().removesuffix(");"))
    ours = board["rows"]
    board["rows"] = [
        {**ours[at % len(ours)], "method": f"method {at * 7919 % rows}"} for at in range(rows)
    ]
    path.write_text(f"{head},{json.dumps(board)});\n", encoding="utf-8")


def browse(page):
    """First paint, and for each step milliseconds to the next frame and until every row stands."""
    chromium = fixture("browser").chromium
    timed = """
      const done = arguments[1], start = performance.now();
      const seen = (then) => requestAnimationFrame(() => setTimeout(then));
      const since = () => Math.round(performance.now() - start);
      eval(arguments[0]);
      seen(() => {
        const first = since();
        const wait = () => view.whole ? seen(() => done([first, since()])) : setTimeout(wait);
        wait();
      });
    """
    with tempfile.TemporaryDirectory() as profile, chromium(Path(profile)) as driver:
        driver.get((page / "index.html").as_uri())
        paint = driver.execute_script(
            "return performance.getEntriesByName('first-contentful-paint')[0].startTime"
        )
        ready = driver.execute_script(
            "return performance.getEntriesByType('navigation')[0].loadEventEnd"
        )
        steps = {
            "sort": "document.querySelector(\"thead button[data-key='0']\").click()",
            "search": change("search", "99", "input"),
            "clear_search": change("search", "", "input"),
            "filter_context": change("context", "4096"),
            "clear_context": change("context", ""),
            "other_tasks": change("tasks", "0"),
            "usual_tasks": change("tasks", ""),
        }
        times = {name: [] for name in steps}
        for _ in range(5):
            for name, step in steps.items():
                times[name].append(driver.execute_async_script(timed, step))
        rows = driver.execute_script("return document.querySelectorAll('#board tbody tr').length")
    middle = {
        name: [sorted(ms)[2] for ms in zip(*each, strict=True)] for name, each in times.items()
    }
    return {"rows": rows, "first_paint_ms": round(paint), "load_ms": round(ready), **middle}


def change(control, value, event="change"):
    """Script that sets a control as a reader does."""
    return f"by('{control}').value = '{value}'; by('{control}').dispatchEvent(new Event('{event}'))"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cells", type=int, nargs="+", default=[50, 100, 200])
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=2000, help="rows of the page in the browser")
    parser.add_argument("--browser", action="store_true")
    parser.add_argument("--statistics", action="store_true", help="only those, of 12 methods")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.statistics:
        statistics()
        return
    if args.measure:
        measure(Path(args.measure[0]), Path(args.measure[1]))
        return
    for cells in args.cells:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            make(folder / "results", cells, args.samples)
            command = [sys.executable, __file__, "--measure", folder / "results", folder / "page"]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            steps = json.loads(done.stdout)
            peak, cpu = steps.pop("peak_mib"), steps.pop("cpu")
            laps = ", ".join(f"{step} {s:.1f} s" for step, s in steps.items())
            each = 1000 * sum(steps.values()) / cells
            each = f"{each:.0f} ms a cell ({1000 * cpu / cells:.0f} of one core)"
            print(f"{cells} cells: {laps}; {each}; peak {peak:.0f} MiB", flush=True)
            if args.browser and cells == args.cells[-1]:
                synthetic_rows(folder / "page", args.rows)
                print(browse(folder / "page"))
            shutil.rmtree(folder / "results")


if __name__ == "__main__":
    main()
