"""The solvers, behind one door: text of SMT-LIB in, an answer out.

Z3 and cvc5 are asked about the same text. Each has ways to be asked, tried one
after another until one gives a proof: with and without the clauses that say
that something exists, then with other settings. Less is assumed without them,
so ``unsat`` is a proof there too, and anything else is no answer. Effort is
limited by the solvers' own counts of what they do, never by a clock: a slow
machine comes to the same answers.

Nothing else in this package imports a solver, and both are imported when they
are first asked for: all that needs none works without them.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import time
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from turngate_model.proof.conditions import Condition
from turngate_model.proof.smtlib import document

Answer: TypeAlias = Literal["proved", "refuted", "unknown"]
_ANSWERS: dict[str, Answer] = {"unsat": "proved", "sat": "refuted"}
PACKAGES = {"z3": "z3-solver", "cvc5": "cvc5"}
"""Which package to install for which module."""


class SolverMissing(Exception):
    """A solver is not installed."""


class Way(NamedTuple):
    """One way to ask: with all that is assumed or without what says that something exists, and settings."""

    finding: bool
    settings: dict[str, str]


class Solved(NamedTuple):
    """What a solver says of a condition, and how long it took."""

    answer: Answer
    seconds: float


class Solver(Protocol):
    """A program that knows when formulas cannot all be true."""

    name: str
    ways: tuple[Way, ...]

    @property
    def version(self) -> str:
        """Which one it is."""
        ...

    def check(self, text: str, settings: dict[str, str]) -> str:
        """Return sat, unsat or unknown."""
        ...


class Z3:
    """Z3, by its package for Python."""

    name = "Z3"
    ways: tuple[Way, ...] = (
        Way(True, {"rlimit": "3000000", "auto_config": "false", "smt.mbqi": "false"}),
        Way(False, {"rlimit": "3000000"}),
        Way(True, {"rlimit": "10000000"}),
        Way(True, {"rlimit": "30000000", "random_seed": "3"}),
    )

    def __init__(self) -> None:
        self._z3: Any = _imported("z3")

    @property
    def version(self) -> str:
        """Which one it is."""
        return str(self._z3.get_version_string())

    def check(self, text: str, settings: dict[str, str]) -> str:
        """Return sat, unsat or unknown."""
        solver = self._z3.Solver()
        for name, value in settings.items():
            solver.set(name, {"false": False}.get(value, value if not value.isdigit() else int(value)))
        solver.from_string(text)
        return str(solver.check())

    def conversation(self) -> Conversation:
        """Begin a conversation, in which one question may build on another."""
        return Conversation(self._z3)


class Conversation:
    """Z3, told one thing after another."""

    def __init__(self, z3: Any) -> None:
        self._z3 = z3
        self._context = z3.Context()

    def tell(self, text: str) -> str:
        """Tell commands of SMT-LIB and return what is answered."""
        answer = str(self._z3.Z3_eval_smtlib2_string(self._context.ref(), text)).strip()
        if "error" in answer:
            raise ValueError(answer)
        return answer


class Cvc5:
    """The solver cvc5, by its package for Python."""

    name = "cvc5"
    ways: tuple[Way, ...] = (
        Way(False, {"rlimit-per": "2000000"}),
        Way(True, {"rlimit-per": "2000000"}),
        Way(True, {"rlimit-per": "5000000", "full-saturate-quant": "true"}),
        Way(True, {"rlimit-per": "5000000", "finite-model-find": "true"}),
    )

    def __init__(self) -> None:
        self._cvc5: Any = _imported("cvc5")

    @property
    def version(self) -> str:
        """Which one it is."""
        return importlib.metadata.version("cvc5")

    def check(self, text: str, settings: dict[str, str]) -> str:
        """Return sat, unsat or unknown."""
        solver = self._cvc5.Solver(self._cvc5.TermManager())
        for name, value in settings.items():
            solver.setOption(name, value)
        parser = self._cvc5.InputParser(solver)
        parser.setStringInput(self._cvc5.InputLanguage.SMT_LIB_2_6, text, "condition")
        symbols, said = parser.getSymbolManager(), ""
        while not (command := parser.nextCommand()).isNull():
            said += str(command.invoke(solver, symbols))
        return said.strip()


def missing() -> list[str]:
    """Return the packages of solvers that are not installed."""
    return [package for module, package in PACKAGES.items() if importlib.util.find_spec(module) is None]


def what_to_install() -> str:
    """Say in one line which solvers are missing, and how to get them; nothing if none is."""
    lacking = missing()
    names = " and ".join(lacking)
    return f"the proof needs {names}; install with: pip install {' '.join(lacking)}" if lacking else ""


def solvers() -> tuple[Z3, Cvc5]:
    """Return both solvers; raise SolverMissing if one is not installed."""
    return Z3(), Cvc5()


def solve(condition: Condition, solver: Solver) -> Solved:
    """Ask a solver about a condition, in one way after another."""
    began = time.perf_counter()
    answer: Answer = "unknown"
    for way in solver.ways:
        said = _ANSWERS.get(solver.check(document(condition, finding=way.finding), way.settings), "unknown")
        if said == "proved" or (said == "refuted" and way.finding):
            answer = said
            break
    return Solved(answer, time.perf_counter() - began)


def _imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise SolverMissing(what_to_install() or f"{module} cannot be imported") from None
