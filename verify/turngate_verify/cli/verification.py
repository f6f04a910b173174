"""The result of ``turngate verify``: the verdict on each property, and how it is printed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rich.table import Table
from rich.text import Text

from turngate_model import DURABLE_DESIGNS, EVERY_DESIGN, LIMB_DESIGNS, Property
from turngate_model.checker import Bounds, Exploration
from turngate_model.durable import JUDGED
from turngate_model.properties import AnyProperty, DurableProperty
from turngate_verify.cli.durable import DurableVerification
from turngate_verify.cli.show import DriverLine, out, print_counterexample, styled
from turngate_verify.words import counted

CHECKED = tuple(Property)
"""The properties that the dispatcher is checked for."""
OF_THE_LINE = (Property.HELD, Property.AS_EDITED)
"""The properties that only a check which holds, moves and edits puts to the test."""
PROMISES = tuple(each for each in CHECKED if each not in (Property.DECLARED_MOVE, Property.REFINES))
EVERY: tuple[AnyProperty, ...] = (*CHECKED, *DurableProperty)
NOT_ON_LEDGERS = (Property.ISOLATION, Property.NO_RESIDUE)
"""What the checks of dispatchers on a ledger do not judge: they look at what is on record, and at callers."""
SEEN_BY_CALLERS: tuple[AnyProperty, ...] = (
    Property.NEVER_POISONED,
    Property.FULL_COVERAGE,
    Property.EXACTLY_ONE_COMPLETE,
    Property.ONE_TURN,
    Property.NO_STRAND,
    Property.FIFO,
    Property.LAST_WORD,
    Property.NO_RESIDUE,
    Property.TERMINAL_IS_FINAL,
    DurableProperty.DURABLE,
)
"""What the rules over a network judge."""
IN_THE_MODEL = frozenset(("model", "waiting", "proof", "processes"))
"""The checks that do not look at any code of a dispatcher."""


@dataclass
class Verification:
    """The results of all checks."""

    checks: dict[AnyProperty, dict[str, dict[str, int]]] = field(
        default_factory=lambda: {each: {} for each in EVERY}
    )
    violated: dict[AnyProperty, str] = field(default_factory=dict)
    unknown: dict[AnyProperty, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    """Problems that break no property, such as a stale diagram."""
    unchecked: list[str] = field(default_factory=list)
    """What could not be checked here, and why."""
    untested: list[str] = field(default_factory=list)
    """What a check should have reached but did not. If there is any, every verdict is unknown."""
    designs: dict[str, Exploration[Bounds]] = field(default_factory=dict)
    sabotaged: dict[str, str] = field(default_factory=dict)
    """For each design, what refuted it on the real dispatcher."""
    model: Exploration[Bounds] | None = None
    durable: DurableVerification = field(default_factory=DurableVerification)
    """The model of processes that share a ledger, and its designs."""
    of_the_limbs: list[str] = field(default_factory=list)
    """The designs of client, feed and ledger that were tried; the model has no such parts."""
    drivers: list[DriverLine] = field(default_factory=list)
    """What each driver has done, in the order in which they were started."""
    seed: str = ""
    """Which random programs were drawn."""
    command: str = "turngate verify"
    """The command that does all this again."""
    seconds: float = 0.0

    def count(self, check: str, unit: str, number: int, *, of_line: bool = False) -> None:
        """Note how much a check of the dispatcher in memory has done.

        It checks every property of one process; HELD and AS_EDITED only if it also holds, moves and edits.
        """
        for each in CHECKED if of_line else [each for each in CHECKED if each not in OF_THE_LINE]:
            self.checks[each][check] = {unit: number}

    def count_on_ledger(self, check: str, unit: str, number: int, *, deaths: bool = True) -> None:
        """Note how much a check of dispatchers on a ledger has done, with or without processes that die."""
        for each in [*CHECKED, *(DurableProperty if deaths else ())]:
            if each not in NOT_ON_LEDGERS and number:
                self.checks[each][check] = {unit: number}

    def count_over_network(self, examples: int) -> None:
        """Note how many programs of clients and a server were judged by what their callers saw."""
        for each in SEEN_BY_CALLERS:
            if examples:
                self.checks[each]["network"] = {"examples": examples}

    def count_processes(self) -> None:
        """Note how many states the model of processes has."""
        states = sum(result.states for result in self.durable.models)
        for each in DurableProperty:
            self.checks[each]["processes"] = {"states": states}

    def broke(self, each: AnyProperty | None, what: str) -> None:
        """Note that a property is violated, or that something else is wrong."""
        if each is None:
            self.problems.append(what)
        else:
            self.violated.setdefault(each, what)

    def verdict_of(self, each: AnyProperty) -> str:
        """Return one of holds, violated and unknown; what was never checked is unknown."""
        if each in self.violated:
            return "violated"
        unsure = each in self.unknown or self.untested or not self.checks[each]
        of_processes = self.durable.verdict_of(each) if each in JUDGED and self.durable.models else "holds"
        worst = ("violated", "unknown", "holds")
        return min("unknown" if unsure else "holds", of_processes, key=worst.index)

    def is_model_only(self, each: AnyProperty) -> bool:
        """Return whether no check of the property has looked at the code of a dispatcher."""
        return self.checks[each].keys() <= IN_THE_MODEL

    @property
    def every_design(self) -> dict[str, Exploration[Any]]:
        """The result for every known-bad design in the model: in memory, of the line, and of processes."""
        return {**self.designs, **self.durable.designs}

    @property
    def verdict(self) -> str:
        """The verdict on everything."""
        verdicts = {self.durable.verdict, *(self.verdict_of(each) for each in EVERY)}
        refuted = all(result.counterexample for result in self.every_design.values())
        if "violated" in verdicts or self.problems or not refuted:
            return "violated"
        tried = self.every_design.keys() == EVERY_DESIGN.keys() | DURABLE_DESIGNS.keys()
        return "unknown" if "unknown" in verdicts or not tried else "holds"


def as_object(verification: Verification) -> dict[str, Any]:
    """Return a verification as the object that ``--json`` prints."""
    return {
        "verdict": verification.verdict,
        "properties": {
            str(each): {"verdict": verification.verdict_of(each), "checks": verification.checks[each]}
            for each in (*PROMISES, *DurableProperty)
        },
        "model": {str(each): verification.verdict_of(each) for each in CHECKED if each not in PROMISES},
        "designs": {
            name: {
                "refuted": result.counterexample is not None,
                "by": [str(each) for each in result.claimed if each in result.counterexamples],
                "steps": len(result.counterexample.steps) if result.counterexample else 0,
                "real": verification.sabotaged.get(name),
            }
            for name, result in verification.every_design.items()
        }
        | {
            name: {
                "refuted": name in verification.sabotaged,
                "by": [str(each) for each in LIMB_DESIGNS[name].breaks],
                "steps": 0,
                "real": verification.sabotaged.get(name),
            }
            for name in verification.of_the_limbs
        },
        "durable": verification.durable.as_object(),
        "problems": [*verification.problems, *verification.untested],
        "unchecked": verification.unchecked,
        "seconds": round(verification.seconds, 3),
    }


def print_verification(verification: Verification) -> None:
    """Print the verdicts for people, each property once. The lines of the drivers are there already."""
    properties = Table("property", "verdict", box=None, pad_edge=False)
    for each in EVERY:
        model_only = ", model only" if verification.is_model_only(each) else ""
        properties.add_row(str(each), Text.assemble(styled(verification.verdict_of(each)), model_only))
    designs = Table("known-bad design", "verdict", "in the model", "in the code", box=None, pad_edge=False)
    for name, result in verification.every_design.items():
        example = result.counterexample
        shown = styled("refuted" if example else "not refuted")
        in_model = f"{example.property} in {counted(len(example.steps), 'step')}" if example else ""
        designs.add_row(name, shown, in_model, verification.sabotaged.get(name, ""))
    for name in verification.of_the_limbs:
        found = verification.sabotaged.get(name, "")
        designs.add_row(name, styled("refuted" if found else "not refuted"), "no such part", found)
    out.print("", properties, "", designs, "", sep="\n")
    verification.durable.show_problems()
    for problem in (*verification.problems, *verification.untested):
        for line in problem.splitlines():
            out.print(line, style="red")
    for broken, why in (*verification.violated.items(), *verification.unknown.items()):
        for line in f"{broken}: {why}".splitlines():
            out.print(line)
    for thing in verification.unchecked:
        out.print(f"not checked: {thing}")
    if verification.model:
        for example in verification.model.counterexamples.values():
            print_counterexample(example)
    out.print("verdict:", styled(verification.verdict), f"in {verification.seconds:.0f} s")
