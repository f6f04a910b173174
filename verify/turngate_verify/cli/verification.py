"""What came of ``turngate verify``: the verdict on each property, and how it is printed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from turngate_model import EVERY_DESIGN, Property, model_only
from turngate_model.checker import Bounds, Exploration
from turngate_model.durable import JUDGED
from turngate_model.properties import DurableProperty
from turngate_verify.cli.durable import DurableVerification
from turngate_verify.cli.show import DriverLine, out, print_counterexample, styled
from turngate_verify.words import counted

CHECKED = tuple(Property)
"""The properties that the dispatcher is checked for."""
OF_THE_LINE = (Property.HELD, Property.AS_EDITED)
"""The properties that only a check which holds, moves and edits puts to the test."""
PROMISES = tuple(each for each in CHECKED if each not in (Property.DECLARED_MOVE, Property.REFINES))


@dataclass
class Verification:
    """The results of all checks."""

    checks: dict[Property, dict[str, dict[str, int]]] = field(
        default_factory=lambda: {each: {} for each in CHECKED}
    )
    violated: dict[Property, str] = field(default_factory=dict)
    unknown: dict[Property, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    """What is wrong and breaks no property, such as a stale diagram."""
    unchecked: list[str] = field(default_factory=list)
    """What could not be checked here, and why."""
    untested: list[str] = field(default_factory=list)
    """What a check should have reached and did not. Then every verdict is unknown."""
    designs: dict[str, Exploration[Bounds]] = field(default_factory=dict)
    sabotaged: dict[str, str] = field(default_factory=dict)
    """For each design, what refuted it on the real dispatcher."""
    model: Exploration[Bounds] | None = None
    durable: DurableVerification = field(default_factory=DurableVerification)
    """The model of processes that share a ledger, and its designs."""
    drivers: list[DriverLine] = field(default_factory=list)
    """What each driver has done, in the order in which they were asked."""
    seed: str = ""
    """Which random programs were drawn."""
    command: str = "turngate verify"
    """The command that does all this again."""
    seconds: float = 0.0

    def count(self, check: str, unit: str, number: int, *, holds: bool = False) -> None:
        """Note how much a check of the real dispatcher has done.

        It checks every property, but HELD and AS_EDITED only if it also holds, moves and edits.
        """
        for each in CHECKED if holds else [each for each in CHECKED if each not in OF_THE_LINE]:
            self.checks[each][check] = {unit: number}

    def broke(self, each: Property | None, what: str) -> None:
        """Note that a property is violated, or that something else is wrong."""
        if each is None:
            self.problems.append(what)
        else:
            self.violated.setdefault(each, what)

    def verdict_of(self, each: Property) -> str:
        """Return one of holds, violated and unknown; what was never checked is unknown."""
        if each in self.violated:
            return "violated"
        return "unknown" if each in self.unknown or self.untested or not self.checks[each] else "holds"

    @property
    def verdict(self) -> str:
        """The verdict on everything."""
        verdicts = {self.durable.verdict, *(self.verdict_of(each) for each in CHECKED)}
        refuted = all(result.counterexample for result in self.designs.values())
        if "violated" in verdicts or self.problems or not refuted:
            return "violated"
        return "unknown" if "unknown" in verdicts or set(self.designs) != set(EVERY_DESIGN) else "holds"


def as_object(verification: Verification) -> dict[str, Any]:
    """Return a verification as the object that ``--json`` prints."""
    return {
        "verdict": verification.verdict,
        "properties": {
            str(each): {"verdict": verification.verdict_of(each), "checks": verification.checks[each]}
            for each in PROMISES
        },
        "model": {str(each): verification.verdict_of(each) for each in CHECKED if each not in PROMISES},
        "designs": {
            name: {
                "refuted": result.counterexample is not None,
                "by": [str(each) for each in result.claimed if each in result.counterexamples],
                "steps": len(result.counterexample.steps) if result.counterexample else 0,
                "real": verification.sabotaged.get(name),
            }
            for name, result in verification.designs.items()
        },
        "durable": verification.durable.as_object(),
        "problems": [*verification.problems, *verification.untested],
        "unchecked": verification.unchecked,
        "seconds": round(verification.seconds, 3),
    }


def print_verification(verification: Verification) -> None:
    """Print the verdicts for people, each property once. The lines of the drivers are there already."""
    properties = Table("property", "verdict", box=None, pad_edge=False)
    for each in CHECKED:
        properties.add_row(str(each), styled(_of_both(verification, each)))
    for durable in DurableProperty:
        properties.add_row(str(durable), styled(verification.durable.verdict_of(durable)))
    designs = Table(
        "known-bad design", "verdict", "in the model", "on the dispatcher", box=None, pad_edge=False
    )
    for name, result in verification.designs.items():
        example = result.counterexample
        shown = styled("refuted" if example else "not refuted")
        in_model = f"{example.property} in {counted(len(example.steps), 'step')}" if example else ""
        on_dispatcher = "by the tests only" if name in model_only.DESIGNS else ""
        designs.add_row(name, shown, in_model, verification.sabotaged.get(name, on_dispatcher))
    out.print("", properties, "", designs, "", sep="\n")
    verification.durable.show_designs()
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


def _of_both(verification: Verification, each: Property) -> str:
    """Return the verdict on a property of one process, unless it does not hold with several of them."""
    durable = (
        verification.durable.verdict_of(each) if each in JUDGED and verification.durable.models else "holds"
    )
    worst = ("violated", "unknown", "holds")
    return min(verification.verdict_of(each), durable, key=worst.index)
