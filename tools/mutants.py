"""Mutants: a test must notice each, or it is listed as equivalent with the reason.

`python tools/mutants.py [MODULE ...] [LINE ...]`, for the dispatcher itself unless modules of another layer
are named: `client/_calls`, or `server` for all of a folder. `--sample N` takes N of the mutants by chance,
the same ones each time. Cosmic Ray makes the mutants. Each is tested by the tests that reach the changed
statement, the quickest first, until they have taken BUDGET seconds together; no file is ever changed. Most
are put into a fork of a process that has collected the tests already (`mutants_warm.py`), the others into one
that imports them. Processes that a test starts load the mutant too. What pytest said is in build/mutants.

A test that has taken several times its time, in the processor or on the clock, has hung, and its process is
ended. So that a busy machine proves nothing, the same test must then pass in that time without the mutant; if
it does not, the mutant is tested again with twice the time.

What cannot be noticed is left out: a change of what is there for the type checkers alone (annotations, which
are never evaluated here, the imports and type variables for them, assertions that something is not None or
that there is no other case), and the removal of `__slots__`, which save memory. A mutant that cannot even be
imported is counted apart, for it takes no test to notice it.

The listed ones are in equivalent_mutants.md. The exit code is 1 when a mutant survives that is not listed, or
one is listed that there is not, or that does not survive.
"""

from __future__ import annotations

import argparse
import ast
import collections
import contextlib
import copy
import difflib
import functools
import gc
import importlib
import itertools
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import hypothesis.stateful  # noqa: F401 - here once, instead of in every fork
import pytest
from coverage import CoverageData

from mutants_meaning import meaning
from mutants_warm import Warm, is_replaceable, put_in_place

# They have no types, and are there for `make mutants` alone.
parso: Any = importlib.import_module("parso")
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


class Layer(NamedTuple):
    """Modules that the same tests are about."""

    tests: tuple[str, ...]
    """What is run once to see which of them reach which statement: files, folders, and what is left out."""
    libraries: tuple[str, ...] = ()
    """What the tests import, here once instead of in every fork."""


_HTTP: Final = ("httpx2", "msgspec", "starlette.applications", "starlette.middleware.cors", "uvicorn")
_RULES: Final = ("rules", "stream_rules", "text_rules")
"""Tests of the client in virtual time: what those over sockets alone would notice counts as survived."""
_SLOW: Final = ("page", "client_faults", "server_conform", "server_load", "server_openapi")
"""Tests of the server that take a minute, or memory: what they alone would notice counts as survived."""
LAYERS: Final = {
    "": Layer(
        (
            *("tests/impl", "tests/verify/drivers/test_lockstep.py"),
            *("--deselect", "tests/verify/drivers/test_lockstep.py::test_a_dispatcher_that_differs_is_found"),
        ),
    ),
    "acp": Layer(("tests/acp", "--ignore=tests/acp/test_acp_npm_clients.py")),
    "cli": Layer(
        (
            *("tests/server/test_serve.py", "tests/server/test_serve_ledger.py"),
            *("tests/server/test_chat_command.py", "tests/server/test_unknown_options.py"),
            *("tests/acp/test_serve_acp.py", "tests/verify/cli/test_command.py"),
            *("tests/verify/cli/test_terminal.py", "tests/verify/cli/test_cli.py"),
        ),
        (*_HTTP, "click", "rich.console", "prompt_toolkit.application"),
    ),
    "client": Layer(tuple(f"tests/server/test_client_{each}.py" for each in _RULES), ("httpx2",)),
    "durable": Layer(("tests/durable",), ("asyncpg", "sqlite3")),
    "server": Layer(("tests/server", *(f"--ignore=tests/server/test_{each}.py" for each in _SLOW)), _HTTP),
}
"""The layers by their folders in impl/turngate; the dispatcher itself is in none."""
QUICK: Final = 25  # tests that are asked first: they are quick, and notice most
WORKERS: Final = 4  # most of them wait, most of the time
BUDGET: Final = 60.0  # seconds that the tests of one mutant take together without it; the rest is not asked
LOADING: Final = 120.0  # for importing a mutant
TIMES: Final = 5  # a test has hung after this many times the seconds that it takes without a mutant,
HANG: Final = 4.0  # and not before this many seconds; it may be less than a busy machine takes, see PATIENCE
PATIENCE: Final = 3  # a mutant is tried so often, with twice the time, where the clean test is as slow
SEED: Final = 24
HUNG: Final = re.compile(r"^E +TimeoutError$|^Timeout \(", re.MULTILINE)  # how that is said
BROKEN: Final = 77  # exit code: the mutant cannot be imported
KILLED: Final = 1  # exit code, of pytest too: a test failed
FAILED: Final = 78  # exit code: something went wrong here, not in the mutant
COLD: Final = 79  # exit code: the mutant has to be imported
MEMORY: Final = 2 << 30  # bytes, for one that never stops making something
VERDICTS: Final = {
    0: "survived",
    KILLED: "killed",
    2: "killed",  # pytest: a module of tests could not be imported, or a KeyboardInterrupt got out
    3: "killed",  # pytest: something got out that it has no word for
    4: "killed",  # pytest: a module of tests that was named could not be imported
    BROKEN: "broken",
    COLD: "cold",
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
    # They need the names of variables.
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

    @property
    def name(self) -> str:
        """What the module is called when it is imported."""
        return f"turngate.{self.module.replace('/', '.')}"

    def __str__(self) -> str:
        return f"{self.module}.py:{self.line}: `{self.before}` → `{self.after}`"


def mutants_of(module: str, order: random.Random | None = None) -> Iterator[Mutant]:
    """Make every mutant of the module that can be noticed, in a random order if one is given."""
    source = (SOURCES / f"{module}.py").read_text()
    unchanged, seen = meaning(source), set[str]()
    operators: list[Any] = [RemoveStatement()]
    operators += [plugins.get_operator(name)() for name in plugins.operator_names() if name not in UNUSED]
    nodes = [*_nodes(parso.parse(source))]
    lines = [0, *itertools.accumulate(map(len, source.splitlines(keepends=True)))]
    places = [
        (operator, node, index)
        for operator in operators
        for node in nodes
        for index, _ in enumerate(operator.mutation_positions(node))
    ]
    if order is not None:
        order.shuffle(places)
    for operator, node, index in places:
        try:
            changed = operator.mutate(copy.deepcopy(node, {id(node.parent): node.parent}), index)
        except AttributeError:  # it replaces names of exceptions, and cannot replace `a.b`
            continue
        start, end = (
            lines[line - 1] + column for line, column in (node.get_start_pos_of_prefix(), node.end_pos)
        )
        mutated = source[:start] + ("" if changed is None else changed.get_code()) + source[end:]
        if mutated in seen:
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


class Limits:
    """Gives each test a time limit: one that spins or hangs ends with its process."""

    def __init__(self, output: Path, seconds: dict[str, float]) -> None:
        self._output = output
        self._seconds = seconds

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Begin to count."""
        import dispatching  # noqa: PLC0415 - it imports turngate, the mutant

        dispatching.HANG = limit = self._seconds[item.nodeid]
        self._output.write_text(item.nodeid)
        signal.setitimer(signal.ITIMER_PROF, limit)
        signal.setitimer(signal.ITIMER_REAL, 2 * limit)


class Reach:
    """Which tests reach a line of a module, the quickest first: found by running all of them once."""

    def __init__(self, layer: str, modules: Iterable[str]) -> None:
        data = CoverageData(str(data_of(layer)))
        data.read()
        self._seconds: dict[str, float] = json.loads(data_of(layer).with_suffix(".json").read_text())
        measured = data_of(layer).stat().st_mtime
        for module in modules:
            if (source := SOURCES / f"{module}.py").stat().st_mtime > measured:
                raise SystemExit(f"{source} has changed since it was seen which test reaches what")
        self._contexts: dict[str, dict[int, list[str]]] = {  # all of them now: a fork would erase the file
            module: data.contexts_by_lineno(str(SOURCES / f"{module}.py")) for module in modules
        }
        self._in_order = sorted(self._seconds, key=lambda test: (_file(test) in UNSEEN, self._seconds[test]))

    def tests(self, mutant: Mutant) -> list[str]:
        """Return the tests that reach the statement; all there are if it is carried out by importing.

        Processes import too, each as part of a test: what this process has imported counts.
        """
        of_module = self._contexts[mutant.module]
        contexts = {context for line in mutant.lines for context in of_module.get(line, ())}
        reached = {context.partition("|")[0] for context in contexts if "|" in context}
        if "" in contexts or not reached:
            in_module = {each.partition("|")[0] for line in of_module.values() for each in line}
            chosen = sorted(self._in_order, key=lambda test: test not in in_module)  # these first
        else:
            chosen = [test for test in self._in_order if test in reached or _file(test) in UNSEEN]
        chosen = _of_one_kind_first(chosen)
        within = itertools.accumulate(self._seconds[test] for test in chosen)
        return [test for test, seconds in zip(chosen, within, strict=True) if seconds <= BUDGET]

    def quickest(self) -> list[str]:
        """Return the tests that are asked first about a statement that all of them reach."""
        return self._in_order[:QUICK]

    def limits(self, tests: Iterable[str], factor: int = 1) -> dict[str, float]:
        """Return after how many seconds each of these tests counts as hung."""
        return {test: factor * max(HANG, TIMES * self._seconds[test]) for test in tests}


def _of_one_kind_first(tests: Iterable[str]) -> list[str]:
    """Put last the tests that come again, with another ledger."""
    first, again = dict[str, str](), list[str]()
    for test in tests:
        if first.setdefault(re.sub(r"\b(memory|sqlite|postgres)\b", "", test), test) != test:
            again.append(test)
    return [*first.values(), *again]


def _file(test: str) -> str:
    return Path(test.partition("::")[0]).stem.removeprefix("test_")


def layer_of(module: str) -> str:
    """Return the layer that a module is part of."""
    folder = module.partition("/")[0]
    return folder if folder in LAYERS else ""


def data_of(layer: str) -> Path:
    """Return where it is written which tests of a layer reach what; layers with the same tests share it."""
    first = next(each for each in LAYERS if LAYERS[each].tests == LAYERS[layer].tests)
    return OUTPUT / f"reach-{first or 'dispatcher'}"


def measure_reach(layer: str) -> None:
    """Run every test of a layer once and write down which lines it reaches, and how long it takes."""
    OUTPUT.mkdir(parents=True, exist_ok=True)
    seconds: dict[str, float] = {}

    class Stopwatch:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.when == "call" and report.passed:
                seconds[report.nodeid] = report.duration
            elif report.failed:
                print(f"not asked, for it fails without any mutant: {report.nodeid}", flush=True)

    os.environ["COVERAGE_FILE"] = str(data_of(layer))
    os.environ["PYTHONPATH"] = str(ROOT / "tools")  # for the workers of xdist, to find the plug-in
    options = ["--cov=turngate", "--cov-context=test", "--cov-report=", "-p", "mutants_reach"]
    alone = layer in ("", "client")  # the tests of others wait, most of the time
    workers = [] if alone else ["-p", "xdist", "-n", str(WORKERS), "--dist", "worksteal"]
    chosen = [*workers, *LAYERS[layer].tests]
    code = pytest.main([*PLAIN, "-p", "pytest_cov", *options, *chosen], plugins=[Stopwatch()])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise SystemExit("the tests cannot be run without any mutant")
    data_of(layer).with_suffix(".json").write_text(json.dumps(seconds))


Run: TypeAlias = Callable[[Mutant | None, dict[str, float], Path], int]
"""Runs the tests that have these limits, on the mutant if there is one, in a process of its own."""


def warm_child(warm: Warm, mutant: Mutant | None, limits: dict[str, float], output: Path) -> int:
    """Run the tests on the mutant where they are collected already; return an exit code as pytest's are."""
    if mutant is not None:
        tell_processes(mutant, output.with_suffix(".py"))
        try:
            put_in_place(mutant.name, mutant.source)
        except ValueError:  # it has other free variables, or lacks a name
            return COLD
        except Exception as exc:
            print(f"cannot be imported: {exc!r}", flush=True)
            return BROKEN
    failure = warm.first_failure([*limits], Limits(output.with_suffix(".test"), limits))
    if failure is not None:
        output.write_text(f"{mutant}\n{failure}\n")
    return 0 if failure is None else KILLED


def in_warm_process(layer: str, mutants: Sequence[Mutant], reach: Reach) -> Iterator[tuple[Mutant, str]]:
    """Test the mutants in forks of one process that has collected the tests of the layer."""
    reader, writer = os.pipe()

    def work(warm: Warm) -> None:
        run = functools.partial(warm_child, warm)
        check_that_tests_pass(reach, run)
        numbers = {id(mutant): number for number, mutant in enumerate(mutants)}
        for mutant, verdict in outcomes(mutants, reach, run):
            os.write(writer, f"{numbers[id(mutant)]} {verdict}\n".encode())

    def collect() -> int:
        temporary = tempfile.mkdtemp(prefix="mutants-")
        try:
            return pytest.main([*PLAIN, "--basetemp", temporary, *LAYERS[layer].tests], plugins=[Warm(work)])
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    pid = in_a_fork(collect)
    os.close(writer)
    with open(reader, encoding="ascii") as lines:
        for line in lines:
            number, _, verdict = line.strip().partition(" ")
            yield mutants[int(number)], verdict
    if code := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        raise SystemExit(f"the tests of {layer or 'the dispatcher'} could not be collected ({code})")


def child(mutant: Mutant | None, limits: dict[str, float], output: Path) -> int:
    """Run the tests on the mutant, which is imported; return the exit code of pytest."""
    if mutant is not None:
        load_instead(mutant, output.with_suffix(".py"))
    sys.path[:0] = [str(ROOT / folder) for folder in ("impl", "model", "verify", "tests/support")]
    tests = [*limits]
    try:
        import turngate  # noqa: F401, PLC0415 - not before the mutant is in its place

        if mutant is not None:
            importlib.import_module(mutant.name)
    except Exception as exc:
        print(f"cannot be imported: {exc!r}", flush=True)
        return BROKEN
    for some in (tests[:QUICK], tests[QUICK:]):
        counting = Limits(output.with_suffix(".test"), limits)
        try:
            code = pytest.main([*PLAIN, "-x", "--tb=short", *some], plugins=[counting]) if some else 0
        except BaseException as exc:  # one that pytest has no word for, MemoryError for example
            print(f"got out of pytest: {exc!r}", flush=True)
            return KILLED
        if code != 0:
            return code
    return 0


STARTED: Final = str(ROOT / "tools" / "mutants_started")


def tell_processes(mutant: Mutant, source: Path) -> None:
    """Have the mutant loaded where its module is asked for, in every process that a test starts."""
    source.write_text(mutant.source)
    os.environ["TURNGATE_MUTANT"] = f"{mutant.name}={source}"
    os.environ["PYTHONPATH"] = STARTED


def load_instead(mutant: Mutant, source: Path) -> None:
    """Have it loaded there and here."""
    tell_processes(mutant, source)
    sys.path.insert(0, STARTED)
    importlib.import_module("mutant_in_place")


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


class Trial:
    """A mutant that is being tested, or the test that hung with it, which is tried without it."""

    def __init__(self, mutant: Mutant, reach: Reach, output: Path, run: Run) -> None:
        self.mutant = mutant
        self._reach = reach
        self._run = run
        self._output = output
        self._factor = 1
        self._hung: str | None = None
        """The test that is tried without the mutant."""
        self.pid = self._start()

    def _start(self) -> int:
        tests = self._reach.tests(self.mutant) if self._hung is None else [self._hung]
        limits = self._reach.limits(tests, self._factor)
        mutant, output = (
            (self.mutant, self._output) if self._hung is None else (None, self._output.with_suffix(".clean"))
        )
        return in_a_fork(functools.partial(limited, self._run, mutant, limits, output))

    def verdict(self, status: int) -> str | None:
        """Return what happened to the mutant; None if something more was started."""
        with contextlib.suppress(ProcessLookupError):  # what its tests have started
            os.killpg(self.pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(status)
        if code not in VERDICTS:
            raise SystemExit(f"no verdict ({code}), see {self._output}: {self.mutant}")
        verdict = VERDICTS[code]
        if self._hung is not None:
            if verdict == "survived":  # the test passes without the mutant, in the same time
                return "timed out"
            self._hung, self._factor = None, 2 * self._factor
            if self._factor > 2**PATIENCE:
                raise SystemExit(f"the test that hung is as slow without the mutant, see {self._output}")
        elif verdict == "timed out" or (
            verdict == "killed" and HUNG.search(self._output.read_text(errors="replace"))
        ):
            self._hung = self._output.with_suffix(".test").read_text()
        else:
            return verdict
        self.pid = self._start()
        return None


def limited(run: Run, mutant: Mutant | None, limits: dict[str, float], output: Path) -> int:
    """Run the tests on the mutant with so much memory and no more."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    stream = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    if mutant is not None:
        print(mutant, flush=True)
    signal.setitimer(signal.ITIMER_REAL, LOADING)
    return run(mutant, limits, output)


def outcomes(mutants: Iterable[Mutant], reach: Reach, run: Run) -> Iterator[tuple[Mutant, str]]:
    """Test every mutant and say what happened to it: killed, timed out, broken, cold or survived."""
    gc.collect()
    gc.freeze()
    pending, running = enumerate(mutants), list[Trial]()
    following = next(pending, None)
    while following or running:
        while following and len(running) < WORKERS:
            number, mutant = following
            output = OUTPUT / f"{mutant.module.replace('/', '.')}-{number}.txt"
            running.append(Trial(mutant, reach, output, run))
            following = next(pending, None)
        for trial in [*running]:
            ended, status = os.waitpid(trial.pid, os.WNOHANG)
            if ended and (verdict := trial.verdict(status)) is not None:
                running.remove(trial)
                yield trial.mutant, verdict
        time.sleep(0.01)


def listed() -> set[tuple[str, str, str]]:
    """Read the list of equivalent mutants."""
    changes, module = set(), ""
    for line in EQUIVALENT.read_text().splitlines():
        if heading := re.match(r"## ([\w/]+)\.py", line):
            module = heading[1]
        elif entry := re.match(r"- line \d+: `(.+?)` → `(.+?)`: \S", line):
            changes.add((module, entry[1], entry[2]))
        elif line.startswith("- line"):
            raise SystemExit(f"{EQUIVALENT.name}: cannot read {line!r}")
    return changes


def of(names: Sequence[str]) -> list[str]:
    """Return the modules that are named, by themselves or by their folders."""
    found: list[str] = []
    for name in names:
        folder = SOURCES / name
        inside = (
            [path.relative_to(SOURCES) for path in sorted(folder.rglob("*.py"))] if folder.is_dir() else []
        )
        found += [str(path.with_suffix("")) for path in inside if path.name != "__init__.py"] or [name]
    return found


def main(arguments: Sequence[str]) -> int:
    """Test the mutants of the modules, or of those lines alone, and print what happened to them."""
    os.chdir(ROOT)
    parser = argparse.ArgumentParser(description="Test mutants of modules.")
    parser.add_argument("chosen", nargs="*", help="modules, folders of modules, and lines")
    parser.add_argument("--sample", type=int, metavar="N", help="test N of their mutants, chosen at random")
    parser.add_argument("--each", type=int, metavar="N", help="test N of each module, chosen at random")
    parser.add_argument("--same-reach", action="store_true", help="which test reaches what has not changed")
    asked = parser.parse_args(arguments)
    lines = {int(each) for each in asked.chosen if each.isdigit()}
    modules = of([each for each in asked.chosen if not each.isdigit()]) or [*MODULES]
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # most of the time of a quick test goes there
    mutants = {
        module: [mutant for mutant in mutants_of(module) if not lines or mutant.line in lines]
        if asked.each is None
        else [*itertools.islice(mutants_of(module, random.Random(SEED)), asked.each)]
        for module in modules
    }
    if asked.sample is not None:
        every = [mutant for of_module in mutants.values() for mutant in of_module]
        drawn = random.Random(SEED).sample(every, min(asked.sample, len(every)))
        mutants = {module: [mutant for mutant in drawn if mutant.module == module] for module in modules}
    is_whole, bad = not lines and asked.sample is None and asked.each is None, 0
    reaches: dict[str, Reach] = {}
    for layer in dict.fromkeys(map(layer_of, modules)):
        of_layer = [module for module in modules if layer_of(module) == layer]
        measured = data_of(layer) in map(data_of, reaches) or asked.same_reach
        if not measured or not data_of(layer).with_suffix(".json").exists():
            measuring = in_a_fork(functools.partial(measure_reach, layer))
            if os.waitstatus_to_exitcode(os.waitpid(measuring, 0)[1]) != 0:
                return 2
        reaches[layer] = Reach(layer, of_layer)
        for library in LAYERS[layer].libraries:
            importlib.import_module(library)
        verdicts = judged([each for module in of_layer for each in mutants[module]], layer, reaches[layer])
        for module in of_layer:
            bad += report(module, [each for each in verdicts if each[0].module == module], is_whole)
    return 1 if bad else 0


def check_that_tests_pass(reach: Reach, run: Run) -> None:
    """See that the quickest tests pass as a mutant's do: if not, every mutant would seem to be noticed."""
    output = OUTPUT / "unchanged.txt"
    limits = reach.limits(reach.quickest(), 2**PATIENCE)
    trial = in_a_fork(functools.partial(limited, run, None, limits, output))
    if code := os.waitstatus_to_exitcode(os.waitpid(trial, 0)[1]):
        raise SystemExit(f"the tests do not pass without a mutant ({code}), see {output}")


def judged(mutants: Sequence[Mutant], layer: str, reach: Reach) -> list[tuple[Mutant, str]]:
    """Test the mutants of a layer; print those that no test fails on, and return what happened to each."""
    known, verdicts = listed(), list[tuple[Mutant, str]]()

    def cold() -> Iterator[Mutant]:
        yield from imported
        yield from [mutant for mutant, verdict in verdicts if verdict == "cold"]

    quick, imported = list[Mutant](), list[Mutant]()
    for each in mutants:
        source = (SOURCES / f"{each.module}.py").read_text()
        (quick if is_replaceable(source, each.line) else imported).append(each)
    warm = in_warm_process(layer, quick, reach) if quick else iter(())
    for mutant, verdict in itertools.chain(warm, outcomes(cold(), reach, child)):
        outcome = "equivalent" if verdict == "survived" and mutant.change in known else verdict
        verdicts.append((mutant, outcome))
        if outcome in {"survived", "timed out"}:
            print(f"  {outcome}: {mutant}", flush=True)
    return verdicts


def report(module: str, verdicts: Sequence[tuple[Mutant, str]], is_whole: bool) -> int:
    """Print the figures of a module, and return how many of its mutants are wrong."""
    count = collections.Counter(outcome for _, outcome in verdicts)
    alive = {mutant.change for mutant, outcome in verdicts if outcome in {"survived", "equivalent"}}
    gone = {change for change in listed() if change[0] == module} - alive if is_whole else set()
    for _, before, after in gone:
        print(f"  listed as equivalent, but is not there or does not survive: `{before}` → `{after}`")
    noticed = count["killed"] + count["timed out"]
    total = noticed + count["equivalent"] + count["survived"]
    print(
        f"| `{module}.py` | {total} | {noticed} | {count['equivalent']} | {count['survived']} |"
        f"  ({count['timed out']} by the time-out; {count['broken']} more cannot be imported)",
        flush=True,
    )
    return count["survived"] + len(gone)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
