"""Mutation testing: which of 300 small faults in the mathematics and the readers do tests notice?

    python benchmarks/mutation.py SOURCE TESTS OUT.csv --folder FOLDER
        --area AREA [--first EARLIER.csv]

SOURCE and TESTS are commits: FOLDER holds the packages of the first and the tests of the second.
Needs `pip install cosmic-ray coverage` beside the development environment, and `git`.

cosmic-ray makes the mutants, 60 in each of five areas, in the bodies of functions: a place is
drawn, then one of its mutants. With `--first`, the mutants are those of an earlier list that SOURCE
still has: the same function, line and operator, in whatever module. Others of SOURCE, drawn in the
same way, replace those that are gone.

The tests of an area are collected and run once, to learn which of them pass, how long they take and
which lines each executes. For each mutant a fork of that process exchanges the code of the module's
functions (and the file, for processes that a test starts) and runs tests until one fails: those
that execute the statement, the quickest first, then those that execute its function. OUT.csv has
one row a mutant; a run that was interrupted goes on behind the last one.
"""

import argparse
import ast
import collections
import contextlib
import csv
import functools
import gc
import importlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
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
LEFT_OUT = ("BinaryOperator_BitOr", "Decorator", "_Is_Eq", "_IsNot_NotEq", "_Eq_Is", "_NotEq_IsNot")
"""Parts of operators' names: annotations are no code, `is` and `==` differ for few values."""
MARKS = "not (slow or long or vllm or ray or browser or latex or hf)"
MOST_CASES = 3
"""Cases of a parametrised test that are measured; the others come last."""
LONGEST_TEST, MOST_SECONDS = 2.0, 4.0
"""Processor seconds of a test that is used, and of all tests that a mutant meets."""
LIBRARIES = {"core": "torch transformers", "results": "pandas"}
"""Area -> what its tests import late, imported once instead of in each fork."""
EXCHANGED = (FunctionType, functools._lru_cache_wrapper)
COLUMNS = ("area", "module", "line", "column", "function", "operator", "variant", "before",
           "after", "outcome", "test", "seconds")  # fmt: skip
AREAS: dict[str, tuple[str, str]] = {
    "core": (
        "resonance_vllm/core/**/*.py",
        "rope: carried maps methods resonance settings spec wavelengths",
    ),
    "closed": (
        "leval_tasks/closed/rules.py leval_tasks/closed/definition.py "
        "leval_tasks/closed/catalog/*.py",
        "closed: predictions prompts rules; tasks: metrics",
    ),
    "statistics": (
        "leval_tasks/statistics/*.py",
        "closed: statistics; parity: divergence equivalence; leaderboard: effective_statistics "
        "ranks retrieval skewed_t statistics",
    ),
    "identity": (
        "leval_harness/cell_record.py leval_harness/checkpoint_files.py "
        "leval_harness/sweep/identity.py leval_harness/sweep/cell_files.py "
        "leval_harness/sweep/cells.py leval_harness/sweep/task_files.py",
        "sweep: cell_files cell_record golden_cells identity identity_files task_names "
        "short_windows",
    ),
    "results": (
        "leval_harness/results/*.py",
        "leaderboard: effective_lines faults_folders faults_groups faults_plain foreign key_tokens "
        "posgen_pairs posgen_table results retrieval sample_lines verify",
    ),
}
"""Area -> patterns of its modules, the files of its tests."""


@dataclass(frozen=True)
class Mutant:
    """A place in a module and one of cosmic-ray's operators."""

    module: str
    line: int
    column: int
    function: str
    operator: str
    variant: int
    occurrence: int
    before: str

    @property
    def place(self) -> tuple[str, ...]:
        """What it keeps when its function moves."""
        return (self.function, self.operator, str(self.column), str(self.variant), self.before)


def all_mutants(source: Path, area: str) -> list[Mutant]:
    """Every mutant in the bodies of an area's functions."""
    found = []
    for path in modules_of(source, area):
        text, module = path.read_text(encoding="utf-8"), str(path.relative_to(source))
        lines, bodies = text.splitlines(), dict(_functions(ast.parse(text)))
        tree = get_ast(text)
        for name in sorted(operator_names()):
            operator_class = get_operator(name)
            if operator_class.arguments() or any(part in name for part in LEFT_OUT):
                continue
            operator = operator_class()
            starts = (s for n in ast_nodes(tree) for s, _ in operator.mutation_positions(n))
            variants: collections.Counter[tuple[int, int]] = collections.Counter()
            for occurrence, (line, at) in enumerate(starts):
                if line in bodies:
                    before = lines[line - 1].strip()
                    column = at - lines[line - 1].index(before)
                    variant = variants[line, at]
                    variants[line, at] += 1
                    place = (module, line, column, bodies[line], name, variant, occurrence, before)
                    found.append(Mutant(*place))
    return found


def drawn(mutants: Sequence[Mutant]) -> Iterator[Mutant]:
    """All places in an order that SEED decides, of each place one mutant."""
    places: dict[tuple[Any, ...], list[Mutant]] = collections.defaultdict(list)
    for each in mutants:
        places[each.module, each.line, each.column, each.operator.split("_")[0]].append(each)
    draw = random.Random(SEED)
    for name in draw.sample(sorted(places), len(places)):
        yield draw.choice(places[name])


def sample_of(mutants: Sequence[Mutant], first: Sequence[dict[str, Any]]) -> list[Mutant]:
    """The mutants of an earlier list that are still there, then further ones."""
    by_place: dict[tuple[str, ...], list[Mutant]] = collections.defaultdict(list)
    for each in mutants:
        by_place[each.place].append(each)
    chosen: dict[Mutant, None] = {}
    for row in first:
        place = (row[name] for name in ("function", "operator", "column", "variant", "before"))
        same = [each for each in by_place[tuple(place)] if each not in chosen]
        chosen |= dict.fromkeys(sorted(same, key=lambda each: each.module != row["module"])[:1])
    for each in drawn(mutants):
        if len(chosen) == PER_AREA:
            break
        chosen.setdefault(each)
    return list(chosen)


def _functions(node: ast.AST, name: str = "") -> Iterator[tuple[int, str]]:
    """Each line of a function's body, and the function's qualified name."""
    for child in ast.iter_child_nodes(node):
        inner = f"{name}.{child.name}".strip(".") if hasattr(child, "name") else name
        if isinstance(child, ast.FunctionDef):
            yield from ((n, inner) for n in range(child.body[0].lineno, child.end_lineno + 1))
        yield from _functions(child, inner)


class Runner:
    """A plugin of pytest: measures the collected tests, then runs them against the mutants."""

    def __init__(self, source: Path, area: str, out: Path, first: Path | None, most: int) -> None:
        self.source, self.area, self.out, self.most = source, area, out, most
        self.first = rows_of(first, area)
        self.items: dict[str, pytest.Item] = {}
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep which tests fail, or are skipped."""
        if not report.passed:
            self.failed.append(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Take one mutant after the other; those that have a row are done."""
        self.items = {item.nodeid: item for item in session.items}
        for name in LIBRARIES.get(self.area, "").split():
            importlib.import_module(name)
        kept = self.source / f"measured-{self.area}.json"
        if not kept.is_file():
            kept.write_text(json.dumps(forked(self.measure, 3600)), encoding="utf-8")
        self.measured = json.loads(kept.read_text(encoding="utf-8"))
        mutants = sample_of(all_mutants(self.source, self.area), self.first)[: self.most]
        self.objects = [each for each in gc.get_objects() if type(each) in EXCHANGED]
        gc.freeze()
        done = [row_key(row) for row in rows_of(self.out, self.area)]
        for mutant in mutants:
            row = {"area": self.area, **{name: str(v) for name, v in vars(mutant).items()}}
            if row_key(row) not in done:
                add_row(self.out, row | self.outcome(mutant))
        return True

    def measure(self) -> dict[str, Any]:
        """Test -> seconds of those that pass, and module -> line -> tests."""
        import coverage

        places = [str(path) for path in modules_of(self.source, self.area)]
        measuring = coverage.Coverage(data_file=None, include=places, config_file=False)
        seconds: dict[str, float] = {}
        measuring.start()
        for test, following in pairs([case for some, _ in self.cases() for case in some]):
            measuring.switch_context(test)
            before = sum(os.times()[:4])
            self.run(test, following)
            seconds[test] = round(sum(os.times()[:4]) - before, 3)
        measuring.stop()
        good = {t: s for t, s in seconds.items() if t not in self.failed and s < LONGEST_TEST}
        data, lines = measuring.get_data(), {}
        for file in data.measured_files():
            tests = {n: sorted({*good} & {*c}) for n, c in data.contexts_by_lineno(file).items()}
            lines[str(Path(file).relative_to(self.source))] = tests
        return {"seconds": good, "lines": lines, "failed": self.failed}

    def cases(self) -> list[tuple[list[str], list[str]]]:
        """Of each test the cases that are measured, and the others."""
        found = collections.defaultdict(list)
        for name in self.items:
            found[name.split("[")[0]].append(name)
        some = {name: cases[:: -(-len(cases) // MOST_CASES)] for name, cases in found.items()}
        return [(some[name], sorted({*found[name]} - {*some[name]})) for name in found]

    def run(self, test: str, following: str | None) -> None:
        """Run a test; the fixtures that the following one needs too are kept."""
        later = self.items[following] if following else None
        item = self.items[test]
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=later)

    def outcome(self, mutant: Mutant) -> dict[str, Any]:
        """Mutate the module here and on disk, run the tests, put the file back."""
        path, start = self.source / mutant.module, time.monotonic()
        text, times = path.read_text(encoding="utf-8"), path.stat()
        mutated = mutate_code(text, get_operator(mutant.operator)(), mutant.occurrence)
        result: dict[str, Any] = {"after": changed_lines(text, mutated), "test": "", "seconds": 0}
        try:
            code = compile(mutated, str(path), "exec", dont_inherit=True)
        except SyntaxError:  # cosmic-ray takes `**` in a call for a power
            return result | {"outcome": "no program"}
        tests = self.tests_for(mutant, text)

        def run() -> list[str]:
            exchange(self.objects, code)
            for test, following in pairs(tests):
                if not self.failed:
                    self.run(test, following)
            return self.failed

        path.write_text(mutated, encoding="utf-8")
        try:
            failed = forked(run, 20 + 5 * MOST_SECONDS) if tests else []
        finally:
            path.write_text(text, encoding="utf-8")
            os.utime(path, (times.st_atime, times.st_mtime))
        result["seconds"] = round(time.monotonic() - start, 1)
        if failed == []:
            return result | {"outcome": "survived", "test": f"{len(tests)} tests"}
        return result | {"outcome": "killed", "test": failed[0] if failed else "did not end"}

    def tests_for(self, mutant: Mutant, text: str) -> list[str]:
        """Tests that execute the statement, then the function, then further cases of these."""
        by_line, known = self.measured["lines"].get(mutant.module, {}), self.measured["seconds"]
        around = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.stmt)]
        around = [n for n in around if n.lineno <= mutant.line <= (n.end_lineno or 0)]
        around.sort(key=lambda n: (n.end_lineno or 0) - n.lineno)
        found: dict[str, None] = {}
        for node in (around[0], next(n for n in around if isinstance(n, ast.FunctionDef))):
            span = range(node.lineno, (node.end_lineno or 0) + 1)
            tests = {test for n, names in by_line.items() if int(n) in span for test in names}
            found |= dict.fromkeys(sorted(tests, key=lambda test: (known[test], test)))
        further = [test for some, others in self.cases() if {*some} & {*found} for test in others]
        spent, tests_taken = 0.0, []
        for test in (*found, *further):
            spent += known.get(test, 0.1)
            if spent < MOST_SECONDS:
                tests_taken.append(test)
        return tests_taken


def exchange(objects: Sequence[Any], code: CodeType) -> None:
    """Give the functions of a module, wherever they are referred to, the code of a mutant."""
    codes = {(c.co_qualname, c.co_firstlineno): c for c in _codes(code)}
    for each in objects:
        if isinstance(each, functools._lru_cache_wrapper):
            if str(each.__module__).startswith(("leval_", "resonance_")):
                each.cache_clear()
        elif each.__code__.co_filename == code.co_filename:
            place = (each.__code__.co_qualname, each.__code__.co_firstlineno)
            each.__code__ = codes.get(place, each.__code__)


def _codes(code: CodeType) -> Iterator[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _codes(each)


def pairs(tests: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Each test and the following one."""
    return zip(tests, [*tests[1:], None], strict=True)


def changed_lines(text: str, mutated: str) -> str:
    """The lines that a mutant changes, as they are afterwards."""
    pairs = zip(text.splitlines(), mutated.splitlines(), strict=False)
    return " / ".join(after.strip() for before, after in pairs if before != after)


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
        deadline = time.monotonic() + 40 * seconds  # the machine may be busy
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
    subprocess.run(
        [sys.executable, "-m", "compileall", "-q", "-x", "temporary", folder], check=True
    )


def modules_of(source: Path, area: str) -> list[Path]:
    """Files of an area."""
    return sorted({path for pattern in AREAS[area][0].split() for path in source.glob(pattern)})


def tests_of(source: Path, area: str) -> list[str]:
    """Files of an area's tests that are there: an older commit lacks some."""
    groups = [group.split(":") for group in AREAS[area][1].split(";")]
    paths = {f"tests/{folder.strip()}/test_{n}.py" for folder, ns in groups for n in ns.split()}
    return sorted(path for path in paths if (source / path).is_file())


def rows_of(file: Path | None, area: str) -> list[dict[str, Any]]:
    """Rows of an area in a list; none where there is no file."""
    if file is None or not file.is_file():
        return []
    with file.open(encoding="utf-8", newline="") as text:
        return [row for row in csv.DictReader(text) if row["area"] == area]


def row_key(row: dict[str, Any]) -> tuple[str, ...]:
    """What names the mutant of a row."""
    return tuple(row[name] for name in ("module", "line", "column", "operator", "variant"))


def add_row(file: Path, row: dict[str, Any]) -> None:
    """Write a row at the end."""
    with file.open("a", encoding="utf-8", newline="") as text:
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n", extrasaction="ignore")
        if not text.tell():
            writer.writeheader()
        writer.writerow(row)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("source")
    parser.add_argument("tests")
    parser.add_argument("out", type=Path)
    parser.add_argument("--folder", type=Path, required=True, help="where the two are put together")
    parser.add_argument("--first", type=Path, help="an earlier list, whose mutants are taken")
    parser.add_argument("--area", choices=AREAS, required=True)
    parser.add_argument("--most", type=int, default=PER_AREA, help="mutants of an area")
    options = parser.parse_args()
    source, out = options.folder.resolve(), options.out.resolve()
    first = options.first and options.first.resolve()
    checkout(source, options.source, options.tests)  # always: an interrupted run leaves a mutant
    os.environ |= {"PYTHONPATH": str(source), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "PYTHONDONTWRITEBYTECODE": "1"}
    sys.dont_write_bytecode = True
    os.chdir(source)
    sys.path.insert(0, str(source))
    fixed = ("-q", "-p", "no:cacheprovider", "-p", "no:faulthandler", "--timeout=0", "-m", MARKS)
    fixed += ("--continue-on-collection-errors", f"--basetemp={source}/temporary")
    runner = Runner(source, options.area, out, first, options.most)
    pytest.main([*fixed, *tests_of(source, options.area)], plugins=[runner])
    counts = collections.Counter(row["outcome"] for row in rows_of(out, options.area))
    print(options.area, dict(counts))


if __name__ == "__main__":
    main()
