"""Mutants of the dispatcher: a test must notice each, or it is listed as equivalent with the reason.

`python tools/mutants.py [MODULE ...] [LINE ...]`. Cosmic Ray makes the mutants. Each is tested by the tests
that reach the changed statement, the quickest first, in a fork of this process, which has the libraries
loaded and keeps them out of the garbage collector's way: one takes a second, and no file is ever changed.
What pytest said is in build/mutants.

What cannot be noticed is left out: a change of what is there for the type checkers alone (annotations, which
are never evaluated here, the imports and type variables for them, assertions that something is not None or
that there is no other case), and the removal of `__slots__`, which save memory. A mutant that cannot even be
imported is counted apart, for it takes no test to notice it.

The listed ones are in equivalent_mutants.md. The exit code is 1 when a mutant survives that is not listed, or
one is listed that there is not, or that does not survive.
"""

from __future__ import annotations

import ast
import collections
import contextlib
import difflib
import functools
import gc
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import re
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import hypothesis.stateful  # noqa: F401 - here once, instead of in every fork
import pytest
from coverage import CoverageData

from mutants_meaning import meaning

# They have no types, and are there for `make mutants` alone.
parso: Any = importlib.import_module("parso")
mutating: Any = importlib.import_module("cosmic_ray.mutating")
plugins: Any = importlib.import_module("cosmic_ray.plugins")

ROOT: Final = Path(__file__).resolve().parent.parent
EQUIVALENT: Final = ROOT / "tools" / "equivalent_mutants.md"
OUTPUT: Final = ROOT / "build" / "mutants"
SOURCES: Final = ROOT / "impl" / "turngate"
PLAIN: Final = [
    "-q",
    "--no-header",
    "-p",
    "no:cacheprovider",
    "-W",
    "ignore::pytest.PytestAssertRewriteWarning",
]
MODULES: Final = (
    *("_core", "_turn", "_settle", "_effects", "_dispatcher", "_close", "_deadlock", "_places", "_loop"),
    *("_completions", "_events", "_handles", "_prompt", "_messages", "_log"),
)
UNSEEN: Final = ("stacks", "stacks_context", "stacks_faulty", "stacks_logging", "stacks_threads", "costs")
"""Tests whose reach is not seen, in other people's loops and threads: asked about every statement, last."""
NOT_OF_THE_DISPATCHER: Final = (
    "tests/verify/drivers/test_lockstep.py::test_a_dispatcher_that_differs_is_found"
)
QUICK: Final = 25  # tests that are asked first: they are quick, and notice most
WORKERS: Final = 3  # one of them waits, most of the time
SECONDS: Final = 600.0  # for all tests of one mutant
CPU_SECONDS: Final = 10  # of the processor, for one test
HANG: Final = 10.0  # seconds after which one test counts as hung
HUNG: Final = re.compile(r"^E +TimeoutError$|^Timeout \(", re.MULTILINE)  # how that is said
BROKEN: Final = 77  # exit code: the mutant cannot be imported
KILLED: Final = 1  # exit code, of pytest too: a test failed
FAILED: Final = 78  # exit code: something went wrong here, not in the mutant
MEMORY: Final = 2 << 30  # bytes, for one that never stops making something
VERDICTS: Final = {
    0: "survived",
    KILLED: "killed",
    2: "killed",  # pytest: a module of tests could not be imported, or a KeyboardInterrupt got out
    3: "killed",  # pytest: something got out that it has no word for
    4: "killed",  # pytest: a module of tests that was named could not be imported
    BROKEN: "broken",
    -signal.SIGSEGV: "killed",  # the interpreter, out of memory
    -signal.SIGPROF: "timed out",
    -signal.SIGALRM: "timed out",
    -signal.SIGKILL: "timed out",
}

UNUSED: Final = {
    # What is compared by identity is None, a member of an enum or an object of ours: equal if it is the same.
    "core/ReplaceComparisonOperator_Is_Eq",
    "core/ReplaceComparisonOperator_IsNot_NotEq",
    # Whether two equal constants are one object is the interpreter's business.
    *(
        f"core/ReplaceComparisonOperator_{before}_{after}"
        for before in ("Eq", "NotEq", "Lt", "LtE", "Gt", "GtE")
        for after in ("Is", "IsNot")
    ),
    # They need to be told the names of variables.
    "core/VariableInserter",
    "core/VariableReplacer",
}


class RemoveStatement:
    """Puts `pass` in the place of a simple statement: an operator as Cosmic Ray's are."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        """Yield the place of the statement, unless it is a docstring, an import or a `pass` already."""
        if node.type == "simple_stmt":
            statement = node.children[0]
            slots = statement.get_first_leaf().value == "__slots__"
            if not slots and statement.type not in {"string", "strings", "import_name", "import_from"}:
                yield statement.start_pos, statement.end_pos

    def mutate(self, node: Any, _index: int) -> Any:
        """Put `pass` there."""
        statement = node.children[0]
        passing = parso.parse("pass").children[0]
        passing.prefix = statement.get_first_leaf().prefix
        passing.parent = node
        node.children[0] = passing
        return node


@dataclass(frozen=True)
class Mutant:
    """One change of one module."""

    module: str
    line: int
    before: str
    after: str
    source: str
    lines: Sequence[int]
    """Those of the whole statement that was changed."""

    @property
    def change(self) -> tuple[str, str, str]:
        """What identifies it in the list, wherever the line has gone."""
        return self.module, self.before, self.after

    def __str__(self) -> str:
        return f"{self.module}.py:{self.line}: `{self.before}` → `{self.after}`"


def mutants_of(module: str) -> Iterator[Mutant]:
    """Make every mutant of the module that can be noticed."""
    source = (SOURCES / f"{module}.py").read_text()
    unchanged, seen = meaning(source), set[str]()
    operators: list[Any] = [RemoveStatement()]
    operators += [plugins.get_operator(name)() for name in plugins.operator_names() if name not in UNUSED]
    nodes = [*_nodes(parso.parse(source))]
    for operator in operators:
        for occurrence in range(sum(len([*operator.mutation_positions(node)]) for node in nodes)):
            mutated = mutating.mutate_code(source, operator, occurrence)
            if mutated is None or mutated in seen:
                continue
            seen.add(mutated)
            with contextlib.suppress(SyntaxError):
                if meaning(mutated) != unchanged:
                    yield _mutant(module, source, mutated)


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    for child in getattr(node, "children", ()):
        yield from _nodes(child)


def _mutant(module: str, source: str, mutated: str) -> Mutant:
    before, after = source.splitlines(), mutated.splitlines()
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    _, start, end, start_after, end_after = next(op for op in matcher.get_opcodes() if op[0] != "equal")
    was, became = _joined(before[start:end]), _joined(after[start_after:end_after])
    return Mutant(module, start + 1, was, became, mutated, _statement(source, start + 1))


def _statement(source: str, line: int) -> Sequence[int]:
    """Return the lines of the innermost statement that the line belongs to; of a compound one, its head."""
    found = range(line, line + 1)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0):
            inner = getattr(node, "body", None)
            end = inner[0].lineno - 1 if isinstance(inner, list) else node.end_lineno or line
            if line <= max(end, node.lineno):
                found = range(node.lineno, max(end, node.lineno) + 1)
    return found


def _joined(lines: Iterable[str]) -> str:
    return " ".join(line.strip() for line in lines)


class _Mutation(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads the mutant where its module is asked for."""

    def __init__(self, mutant: Mutant) -> None:
        self._name = f"turngate.{mutant.module}"
        self._source = mutant.source

    def find_spec(
        self, name: str, _path: object, _target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self) if name == self._name else None

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._source, f"<mutant of {self._name}>", "exec"), module.__dict__)


class Limits:
    """Gives each test so much time: one that spins or waits for ever ends with its process."""

    def pytest_runtest_setup(self) -> None:
        """Begin to count."""
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        signal.setitimer(signal.ITIMER_REAL, 2 * HANG)


class Reach:
    """Which tests reach a line of a module, the quickest first: found by running all of them once."""

    def __init__(self) -> None:
        data = CoverageData(str(OUTPUT / "reach"))
        data.read()
        seconds: dict[str, float] = json.loads((OUTPUT / "seconds.json").read_text())
        self._tests: dict[str, dict[int, set[str]]] = {}
        for module in MODULES:
            lines = data.contexts_by_lineno(str(SOURCES / f"{module}.py"))
            self._tests[module] = {
                line: {context.partition("|")[0] for context in contexts if "|" in context}
                for line, contexts in lines.items()
            }
        self._in_order = sorted(seconds, key=lambda test: (_file(test) in UNSEEN, seconds[test]))

    def tests(self, mutant: Mutant) -> list[str]:
        """Return the tests that reach the statement; all there are if it is carried out by importing."""
        reached = set[str]().union(*(self._tests[mutant.module].get(line, set()) for line in mutant.lines))
        return [test for test in self._in_order if not reached or test in reached or _file(test) in UNSEEN]


def _file(test: str) -> str:
    return Path(test.partition("::")[0]).stem.removeprefix("test_")


def measure_reach() -> None:
    """Run every test once and write down which lines it reaches, and how long it takes."""
    OUTPUT.mkdir(parents=True, exist_ok=True)
    seconds: dict[str, float] = {}

    class Stopwatch:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.when == "call" and report.passed:
                seconds[report.nodeid] = report.duration

    os.environ["COVERAGE_FILE"] = str(OUTPUT / "reach")
    options = ["--cov=turngate", "--cov-context=test", "--cov-report="]
    chosen = ["--deselect", NOT_OF_THE_DISPATCHER, "tests/impl", "tests/verify/drivers/test_lockstep.py"]
    if pytest.main([*PLAIN, "-p", "pytest_cov", *options, *chosen], plugins=[Stopwatch()]) != 0:
        raise SystemExit("the tests fail without any mutant")
    (OUTPUT / "seconds.json").write_text(json.dumps(seconds))


def child(mutant: Mutant, tests: Sequence[str], output: Path) -> int:
    """Run the tests on the mutant, in a process of its own; return the exit code of pytest."""
    stream = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    print(mutant, flush=True)
    sys.meta_path.insert(0, _Mutation(mutant))
    sys.path[:0] = [str(ROOT / folder) for folder in ("impl", "model", "verify", "tests/support")]
    try:
        import turngate  # noqa: F401, PLC0415 - not before the mutant is in its place
    except Exception as exc:
        print(f"cannot be imported: {exc!r}", flush=True)
        return BROKEN
    import dispatching  # noqa: PLC0415 - the same

    dispatching.HANG = HANG
    for some in (tests[:QUICK], tests[QUICK:]):
        try:
            code = pytest.main([*PLAIN, "-x", "--tb=short", *some], plugins=[Limits()]) if some else 0
        except BaseException as exc:  # one that pytest has no word for, MemoryError for example
            print(f"got out of pytest: {exc!r}", flush=True)
            return KILLED
        if code != 0:
            return code
    return 0


def in_a_fork(call: Callable[[], int | None]) -> int:
    """Start the call in a fork of this process that lives no longer than it may; return its process id."""
    sys.stdout.flush()
    if pid := os.fork():
        return pid
    code = FAILED
    try:
        os.setsid()
        code = int(call() or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def limited(mutant: Mutant, tests: Sequence[str], output: Path) -> int:
    """Run the tests on the mutant with so much memory and no more."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    return child(mutant, tests, output)


def outcomes(mutants: Iterable[Mutant], reach: Reach) -> Iterator[tuple[Mutant, str]]:
    """Test every mutant and say what became of it: killed, timed out, broken or survived."""
    gc.collect()
    gc.freeze()
    pending, running = enumerate(mutants), dict[int, tuple[Mutant, Path, float]]()
    following = next(pending, None)
    while following or running:
        while following and len(running) < WORKERS:
            number, mutant = following
            output = OUTPUT / f"{mutant.module}-{number}.txt"
            pid = in_a_fork(functools.partial(limited, mutant, reach.tests(mutant), output))
            running[pid] = mutant, output, time.monotonic() + SECONDS
            following = next(pending, None)
        for pid, (mutant, output, deadline) in [*running.items()]:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del running[pid]
                code = os.waitstatus_to_exitcode(status)
                if code not in VERDICTS:
                    raise SystemExit(f"no verdict ({code}), see {output}: {mutant}")
                hung = code == KILLED and HUNG.search(output.read_text(errors="replace"))
                yield mutant, "timed out" if hung else VERDICTS[code]
            elif time.monotonic() > deadline:
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                del running[pid]
                yield mutant, "timed out"
        time.sleep(0.01)


def listed() -> set[tuple[str, str, str]]:
    """Read the list of equivalent mutants."""
    changes, module = set(), ""
    for line in EQUIVALENT.read_text().splitlines():
        if heading := re.match(r"## (_\w+)\.py", line):
            module = heading[1]
        elif entry := re.match(r"- line \d+: `(.+?)` → `(.+?)`: \S", line):
            changes.add((module, entry[1], entry[2]))
        elif line.startswith("- line"):
            raise SystemExit(f"{EQUIVALENT.name}: cannot read {line!r}")
    return changes


def main(arguments: Sequence[str]) -> int:
    """Test the mutants of the modules, or of those lines alone, and print what became of them."""
    os.chdir(ROOT)
    lines = {int(argument) for argument in arguments if argument.isdigit()}
    modules = [argument for argument in arguments if not argument.isdigit()] or MODULES
    equivalent, bad = listed(), 0
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # most of the time of a quick test goes there
    if os.waitstatus_to_exitcode(os.waitpid(in_a_fork(measure_reach), 0)[1]) != 0:
        return 2
    reach = Reach()
    for module in modules:
        mutants = (mutant for mutant in mutants_of(module) if not lines or mutant.line in lines)
        print(f"{module}.py", flush=True)
        count, survived = collections.Counter[str](), set()
        for mutant, verdict in outcomes(mutants, reach):
            outcome = verdict
            if verdict == "survived":
                survived.add(mutant.change)
                outcome = "equivalent" if mutant.change in equivalent else verdict
            count[outcome] += 1
            if outcome in {"survived", "timed out"}:
                print(f"  {outcome}: {mutant}", flush=True)
        gone = {change for change in equivalent if change[0] == module} - survived
        for _, before, after in () if lines else gone:
            print(f"  listed as equivalent, but is not there or does not survive: `{before}` → `{after}`")
        bad += count["survived"] + (0 if lines else len(gone))
        noticed = count["killed"] + count["timed out"]
        total = noticed + count["equivalent"] + count["survived"]
        print(
            f"| `{module}.py` | {total} | {noticed} | {count['equivalent']} | {count['survived']} |"
            f"  ({count['timed out']} by the time-out; {count['broken']} more cannot be imported)",
            flush=True,
        )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
