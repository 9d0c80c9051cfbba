"""Mutation testing: which of 300 small faults in the mathematics and the readers do tests notice?

    python benchmarks/mutation.py SOURCE TESTS OUT.csv [--area AREA] [--first EARLIER.csv]

SOURCE and TESTS are commits: mutants are made of the packages of the first and meet the tests of
the second. Needs `pip install cosmic-ray coverage` beside the development environment, and `git`.

cosmic-ray makes the mutants, 60 in each of five areas, in the bodies of functions: first a place is
drawn, then one of its mutants. A mutant meets the tests of its area that execute its statement, the
quickest first, then those that execute its function. All tests are collected once. A fork of that
process exchanges the code of the module's functions and runs the tests; the file is changed too,
for processes that a test starts. Rows of OUT.csv are kept: a run that was interrupted goes on.
"""

import argparse
import ast
import collections
import contextlib
import csv
import difflib
import functools
import gc
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

ROOT = Path(__file__).resolve().parents[1]
SEED = 27
PER_AREA = 60
MARKS = "not (slow or long or vllm or ray or browser or latex or hf)"
MOST_CASES = 5
"""Cases of a parametrised test that are measured; the others come last."""
LONGEST_TEST, MOST_SECONDS = 3.0, 15.0
"""Processor seconds of a test that is used, and of all tests that a mutant meets."""
COLUMNS = ("area", "module", "line", "operator", "before", "after", "outcome", "test", "seconds")
AREAS: dict[str, tuple[str, str]] = {
    "core": (
        "resonance_vllm/core/**/*.py",
        "rope: asked carried limits maps methods resonance settings shipped spec wavelengths; "
        "vectors: vectors",
    ),
    "closed": (
        "leval_tasks/closed/rules.py leval_tasks/closed/definition.py "
        "leval_tasks/closed/catalog/*.py",
        "closed: predictions rules task",
    ),
    "statistics": (
        "leval_tasks/statistics/*.py",
        "closed: statistics; parity: divergence equivalence; leaderboard: effective_statistics "
        "ranks retrieval skewed_t statistics blocks posgen_pairs",
    ),
    "identity": (
        "leval_harness/cell_record.py leval_harness/checkpoint_files.py "
        "leval_harness/sweep/identity.py leval_harness/sweep/cell_files.py "
        "leval_harness/sweep/file_hashes.py leval_harness/sweep/model_files.py "
        "leval_harness/sweep/module_files.py leval_harness/sweep/task_files.py",
        "sweep: cell_files cell_record every_setting golden_cells identity identity_files "
        "task_names short_windows; leaderboard: faults_plain",
    ),
    "results": (
        "leval_harness/results/*.py",
        "leaderboard: api apart blocks effective_lines faults_folders faults_groups "
        "faults_plain foreign key_tokens out_of_tokens posgen_pairs posgen_table results "
        "retrieval tables verify",
    ),
}
"""Area -> patterns of its modules, the files of its tests that are quick."""


@dataclass(frozen=True)
class Mutant:
    """A place in a module and one of cosmic-ray's operators."""

    area: str
    module: str
    line: int
    operator: str
    occurrence: int

    @property
    def key(self) -> tuple[str, ...]:
        """What names it in the list."""
        return (self.area, self.module, str(self.line), f"{self.operator}:{self.occurrence}")


def mutants_of(source: Path, areas: Sequence[str]) -> list[Mutant]:
    """The sample: the same for each run with the same packages, the areas in turn."""
    chosen = []
    for area in areas:
        patterns = AREAS[area][0]
        places: dict[tuple[Any, ...], list[Mutant]] = collections.defaultdict(list)
        for path in modules_of(patterns, source):
            text, module = path.read_text(encoding="utf-8"), str(path.relative_to(source))
            bodies = [(n.body[0].lineno, n.end_lineno) for n in _functions(text)]
            for operator, start, occurrence in _positions(get_ast(text)):
                if any(first <= start[0] <= (last or 0) for first, last in bodies):
                    mutant = Mutant(area, module, start[0], operator, occurrence)
                    places[module, start, operator.split("_")[0]].append(mutant)
        draw = random.Random(SEED)
        names = draw.sample(sorted(places), PER_AREA)
        chosen.append([draw.choice(places[name]) for name in names])
    return [mutant for turn in zip(*chosen, strict=True) for mutant in turn]


def modules_of(patterns: str, source: Path) -> list[Path]:
    """Files of an area."""
    return sorted({path for pattern in patterns.split() for path in source.glob(pattern)})


def _functions(text: str) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]


def _positions(tree: Any) -> Iterator[tuple[str, tuple[int, int], int]]:
    """Operator, start and number of each mutant; `int | None` and decorators are left alone."""
    for name in sorted(operator_names()):
        operator_class = get_operator(name)
        if operator_class.arguments() or "BinaryOperator_BitOr" in name or "Decorator" in name:
            continue
        operator = operator_class()
        starts = (s for node in ast_nodes(tree) for s, _ in operator.mutation_positions(node))
        for occurrence, start in enumerate(starts):
            yield name, start, occurrence


class Runner:
    """A plugin that, once all tests are collected, runs them against the mutants."""

    def __init__(self, source: Path, out: Path, first: Path | None, areas: Sequence[str]) -> None:
        self.source, self.out, self.areas = source, out, areas
        self.killers = {key_of(row): row["test"] for row in rows_of(first)}
        self.items: dict[str, pytest.Item] = {}
        self.measured: dict[str, Any] = {}
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep which tests fail, or are skipped."""
        if not report.passed:
            self.failed.append(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Measure the tests, then take one mutant after the other."""
        self.items = {item.nodeid: item for item in session.items}
        kept = self.source / f"measured-{'-'.join(self.areas)}.json"
        if not kept.is_file():
            kept.write_text(json.dumps(forked(self._measure, 1200)), encoding="utf-8")
        self.measured = json.loads(kept.read_text(encoding="utf-8"))
        places = {str(self.source / m) for m in self.measured["lines"]}
        self.functions = [
            each
            for each in gc.get_objects()
            if type(each) is FunctionType and each.__code__.co_filename in places
        ]
        self.caches = [e for e in gc.get_objects() if type(e) is functools._lru_cache_wrapper]
        gc.freeze()
        rows = rows_of(self.out)
        done = {key_of(row) for row in rows}
        with self.out.open("a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterm="\n")
            if not rows:
                writer.writeheader()
            for mutant in mutants_of(self.source, self.areas):
                if mutant.key not in done:
                    writer.writerow(self.outcome(mutant))
                    file.flush()
        return True

    def _measure(self) -> dict[str, Any]:
        """Seconds of some cases of each test that passed, and module -> line -> tests."""
        import coverage

        places = [str(p) for area in self.areas for p in modules_of(AREAS[area][0], self.source)]
        measuring = coverage.Coverage(data_file=None, include=places, config_file=False)
        seconds: dict[str, float] = {}
        measuring.start()
        tests = [case for cases in self._cases().values() for case in cases[0]]
        for test, following in zip(tests, [*tests[1:], None], strict=True):
            measuring.switch_context(test)
            before = sum(os.times()[:4])
            self.run(test, following)
            seconds[test] = round(sum(os.times()[:4]) - before, 3)
        measuring.stop()
        good = {t for t, s in seconds.items() if t not in self.failed and s < LONGEST_TEST}
        data, lines = measuring.get_data(), {}
        for file in data.measured_files():
            tests = {n: sorted(good & {*c}) for n, c in data.contexts_by_lineno(file).items()}
            lines[str(Path(file).relative_to(self.source))] = tests
        return {"seconds": {test: seconds[test] for test in sorted(good)}, "lines": lines}

    def _cases(self) -> dict[str, tuple[list[str], list[str]]]:
        """Test -> its cases that are measured, and the others."""
        found = collections.defaultdict(list)
        for name in self.items:
            found[name.split("[")[0]].append(name)
        chosen = {n: cases[:: -(-len(cases) // MOST_CASES)] for n, cases in found.items()}
        return {n: (chosen[n], sorted({*found[n]} - {*chosen[n]})) for n in found}

    def run(self, test: str, following: str | None) -> None:
        """Run a test; the fixtures that the following one needs too are kept."""
        item = self.items[test]
        later = self.items[following] if following else None
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=later)

    def outcome(self, mutant: Mutant) -> dict[str, Any]:
        """Mutate the module here and on disk, run the tests, put the file back."""
        path, start = self.source / mutant.module, time.monotonic()
        before, times = path.read_text(encoding="utf-8"), path.stat()
        after = mutate_code(before, get_operator(mutant.operator)(), mutant.occurrence)
        tests = self.chosen(mutant)
        with warnings.catch_warnings(action="ignore"):
            try:
                codes = dict(_codes(compile(after, str(path), "exec", dont_inherit=True)))
            except SyntaxError:  # cosmic-ray takes `**` in a call for a power
                codes, tests = {}, []

        def run() -> list[str]:
            for function in self.functions:
                code = function.__code__
                if code.co_filename == str(path) and (new := codes.get(_place(code))):
                    function.__code__ = new
            for cache in self.caches:
                if str(cache.__module__).startswith(("leval_", "resonance_")):
                    cache.cache_clear()
            for test, following in zip(tests, [*tests[1:], None], strict=True):
                if not self.failed:
                    self.run(test, following)
            return self.failed

        path.write_text(after, encoding="utf-8")
        try:
            seconds = sum(self.measured["seconds"].get(test, 0.1) for test in tests)
            failed = forked(run, 20 + 5 * seconds) if tests else [] if codes else None
        finally:
            path.write_text(before, encoding="utf-8")
            os.utime(path, (times.st_atime, times.st_mtime))
        diff = list(difflib.ndiff(before.splitlines(), after.splitlines()))
        result = {
            "before": " / ".join(line[2:].strip() for line in diff if line.startswith("- ")),
            "after": " / ".join(line[2:].strip() for line in diff if line.startswith("+ ")),
            "outcome": "survived" if failed == [] else "killed" if codes else "no program",
            "test": "did not end" if failed is None else (*failed, f"{len(tests)} tests")[0],
            "seconds": round(time.monotonic() - start, 1),
        }
        return dict(zip(COLUMNS, mutant.key, strict=False)) | result

    def chosen(self, mutant: Mutant) -> list[str]:
        """Tests that execute the statement, then the function, then further cases of these."""
        by_line = self.measured["lines"].get(mutant.module, {})
        known = self.measured["seconds"]
        earlier = self.killers.get(mutant.key, "")
        found = {earlier: None} if earlier in known else {}
        for first, last in _spans((self.source / mutant.module).read_text("utf-8"), mutant.line):
            tests = {t for n, ts in by_line.items() if first <= int(n) <= last for t in ts}
            found |= dict.fromkeys(sorted(tests, key=lambda test: (known[test], test)))
        cases, spent, tests = self._cases(), 0.0, []
        further = [t for n in dict.fromkeys(t.split("[")[0] for t in found) for t in cases[n][1]]
        for test in (*found, *further):
            spent += known.get(test, 0.1)
            if spent < MOST_SECONDS:
                tests.append(test)
        return tests


def _codes(code: CodeType) -> Iterator[tuple[tuple[str, int], CodeType]]:
    """Place -> code of everything that is compiled in a module."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield _place(each), each
            yield from _codes(each)


def _place(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def _spans(text: str, line: int) -> list[tuple[int, int]]:
    """Lines of the innermost statement around a line, and of the innermost function."""
    around = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.stmt)]
    around = [n for n in around if n.lineno <= line <= (n.end_lineno or 0)]
    around.sort(key=lambda n: (n.end_lineno or 0) - n.lineno)
    functions = [n for n in around if isinstance(n, ast.FunctionDef)]
    return [(n.lineno, n.end_lineno or 0) for n in (around[0], functions[0])]


def forked(function: Callable[[], Any], seconds: float) -> Any:
    """What a function returns in a fork; None if it takes more seconds of the processor."""
    with tempfile.NamedTemporaryFile(suffix=".json") as answer:
        child = os.fork()
        if child == 0:
            try:
                os.setsid()
                resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 5))
                Path(answer.name).write_text(json.dumps(function()), encoding="utf-8")
            finally:
                os._exit(0)
        deadline = time.monotonic() + 60 * seconds  # the machine may be busy
        while not os.waitpid(child, os.WNOHANG)[0]:
            if time.monotonic() > deadline:
                os.killpg(child, signal.SIGKILL)
            time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what its tests have started
        return json.loads(Path(answer.name).read_text(encoding="utf-8") or "null")


def checkout(folder: Path, source: str, tests: str) -> None:
    """The packages of one commit with the tests of another."""
    folder.mkdir(parents=True, exist_ok=True)
    for commit, *paths in ((source, ":!tests"), (tests, "tests")):
        archive = subprocess.run(
            ["git", "archive", commit, *paths], cwd=ROOT, check=True, capture_output=True
        )
        subprocess.run(["tar", "-x"], cwd=folder, input=archive.stdout, check=True)


def tests_of(source: Path, areas: Sequence[str]) -> list[str]:
    """Files of the areas' tests that are there: an older commit lacks some."""
    groups = [g.split(":") for area in areas for g in AREAS[area][1].split(";")]
    paths = {f"tests/{f.strip()}/test_{n}.py" for f, ns in groups for n in ns.split()}
    return sorted(path for path in paths if (source / path).is_file())


def rows_of(file: Path | None) -> list[dict[str, Any]]:
    """Rows of a list; none where there is no file."""
    if file is None or not file.is_file():
        return []
    with file.open(encoding="utf-8", newline="") as text:
        return list(csv.DictReader(text))


def key_of(row: dict[str, Any]) -> tuple[str, ...]:
    """What names the mutant of a row."""
    return tuple(row[name] for name in COLUMNS[:4])


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("source")
    parser.add_argument("tests")
    parser.add_argument("out", type=Path)
    parser.add_argument("--first", type=Path, help="an earlier list, whose tests are tried first")
    parser.add_argument("--folder", type=Path, help="where the two are put together; kept")
    parser.add_argument("--area", choices=AREAS, help="one of the areas; all without it")
    options = parser.parse_args()
    areas = [options.area] if options.area else list(AREAS)
    source = (options.folder or Path(tempfile.mkdtemp())).resolve()
    runner = Runner(source, options.out.resolve(), options.first, areas)
    if not (source / "tests").is_dir():
        checkout(source, options.source, options.tests)
    os.environ |= {"PYTHONPATH": str(source), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "PYTHONDONTWRITEBYTECODE": "1"}
    os.chdir(source)
    sys.path.insert(0, str(source))
    arguments = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:faulthandler",
        "--timeout=0",
        "-m",
        MARKS,
    ]
    arguments += ["--continue-on-collection-errors", f"--basetemp={source}/temporary"]
    pytest.main([*arguments, *tests_of(source, areas)], plugins=[runner])
    rows = rows_of(runner.out)
    for area in areas:
        own = [row for row in rows if row["area"] == area]
        counts = collections.Counter(row["outcome"] for row in own)
        print(f"{area}: {counts['killed']} of {counts['killed'] + counts['survived']} killed")


if __name__ == "__main__":
    main()
