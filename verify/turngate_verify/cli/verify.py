"""``turngate verify``: makes every check there is, and prints one table."""

from __future__ import annotations

import os
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import click
from rich.table import Table

import turngate_model
from turngate_model import DESIGNS, Property
from turngate_model.checker import Bounds, Exploration, Explorer
from turngate_model.durable import DURABLE_DESIGNS, DurableBounds
from turngate_model.pictures import generate, refute, stale
from turngate_model.proof import PARTS, Proof, ProofThoroughness, prove, what_to_install
from turngate_model.proof import QUICK as QUICK_PROOF
from turngate_model.proof import WHOLE as WHOLE_PROOF
from turngate_verify.cli.durable import DurableVerification, hold, refuted
from turngate_verify.cli.explore import reasons
from turngate_verify.cli.show import EXIT_CODES, err, out, print_counterexample, print_json, stages, styled
from turngate_verify.drivers.faults import inject_faults
from turngate_verify.drivers.lockstep import IN_LINE, WITH_PLACES, compare
from turngate_verify.drivers.rules.search import run_rules
from turngate_verify.drivers.sabotage import EXAMPLES, SABOTAGES
from turngate_verify.drivers.schedules import MODES, SCENARIOS, explore_in_turn
from turngate_verify.report.pages import write_report
from turngate_verify.world.stage import LoopMode

Begin: TypeAlias = Callable[[str], None]
PROMISES = tuple(each for each in Property if each not in (Property.DECLARED_MOVE, Property.REFINES))


@dataclass
class Verification:
    """The results of all checks."""

    checks: dict[Property, dict[str, dict[str, int]]] = field(
        default_factory=lambda: {each: {} for each in Property}
    )
    violated: dict[Property, str] = field(default_factory=dict)
    unknown: dict[Property, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    """What is wrong and breaks no property, such as a stale diagram."""
    unchecked: list[str] = field(default_factory=list)
    """What could not be checked here, and why."""
    untested: list[str] = field(default_factory=list)
    """What a check should have reached and did not. Then every verdict is unknown."""
    designs: dict[str, Exploration] = field(default_factory=dict)
    sabotaged: dict[str, str] = field(default_factory=dict)
    """For each design, what refuted it on the real dispatcher."""
    model: Exploration | None = None
    durable: DurableVerification = field(default_factory=DurableVerification)
    """The model of processes that share a ledger, and its designs."""
    seconds: float = 0.0

    def count(self, check: str, unit: str, number: int) -> None:
        """Note how much a check of the real dispatcher has done. It checks every property."""
        for each in Property:
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
        verdicts = {self.durable.verdict, *(self.verdict_of(each) for each in Property)}
        refuted = all(result.counterexample for result in self.designs.values())
        if "violated" in verdicts or self.problems or not refuted:
            return "violated"
        return "unknown" if "unknown" in verdicts or set(self.designs) != set(DESIGNS) else "holds"


@dataclass(frozen=True)
class Thoroughness:
    """How much each check has to do."""

    model: Bounds
    lockstep: Bounds
    examples: int
    seeds: int
    scenarios: tuple[str, ...]
    places: tuple[Bounds, ...] = ()
    """Bounds with a limit on turns, for the lockstep."""
    durable: tuple[DurableBounds, ...] = (DurableBounds(), DurableBounds(on_death="retry"))
    """Bounds for the model of processes."""
    proof: ProofThoroughness = QUICK_PROOF


SMALL = tuple(name for name in SCENARIOS if not name.startswith("three"))
PLACES = (WITH_PLACES, IN_LINE)
QUICK = Thoroughness(Bounds(3, 2), Bounds(2, 1), examples=400, seeds=1, scenarios=SMALL, places=PLACES)
DEEP = Thoroughness(
    Bounds(4, 2),
    Bounds(3, 1),
    examples=5_000,
    seeds=10,
    scenarios=tuple(SCENARIOS),
    places=PLACES,
    durable=(*QUICK.durable, DurableBounds(processes=3), DurableBounds(prompts=3)),
    proof=WHOLE_PROOF,
)


@click.command()
@click.option("--deep", is_flag=True, help="Take minutes instead of one: larger bounds, more of everything.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--report",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write one self-contained page with verdicts and pictures to DIR/index.html.",
)
def verify(deep: bool, as_json: bool, report: Path | None) -> int:
    """Check everything: the main job.

    Exit code 0 only if every property holds and every known-bad design is
    refuted; 1 if something is violated; 3 if anything stayed unknown.
    """
    if report:
        report.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    verification = Verification()
    run_stages(verification, DEEP if deep else QUICK)
    verification.seconds = time.monotonic() - began
    if as_json:
        print_json(as_object(verification))
    else:
        print_verification(verification)
    if report:
        err.print(f"wrote {write_report(verification, report)}")
    return EXIT_CODES[verification.verdict]


def run_stages(verification: Verification, thoroughness: Thoroughness) -> None:
    """Run every stage. On a terminal, show which one is running."""
    schedules = len(thoroughness.scenarios) * len(MODES)
    durable = len(thoroughness.durable) + len(DURABLE_DESIGNS)
    with stages(6 + schedules + 2 * len(DESIGNS) + durable) as begin:
        _explore_model(verification, thoroughness.model, begin)
        _prove(verification, thoroughness.proof, begin)
        _compare_in_lockstep(verification, (thoroughness.lockstep, *thoroughness.places), begin)
        _run_rules(verification, thoroughness.examples, begin)
        _explore_schedules(verification, thoroughness.scenarios, begin)
        _inject_faults(verification, begin)
        _refute_designs(verification, begin)
        _find_sabotages(verification, thoroughness.seeds, begin)
        _explore_processes(verification, thoroughness.durable, begin)
        _compare_diagrams(verification, begin)


def _explore_model(verification: Verification, bounds: Bounds, begin: Begin) -> None:
    begin(f"the model, {bounds.prompts} prompts and {bounds.cancels} cancels")
    result = verification.model = Explorer(bounds).run()
    for each in Property:
        verification.checks[each]["model"] = {"states": result.states}
        if each in result.counterexamples:
            verification.violated[each] = result.counterexamples[each].what
        elif result.verdict == "unknown" and (result.gave_up or result.missed or each in result.unexercised):
            verification.unknown[each] = "; ".join(reasons(result))


def _prove(verification: Verification, thoroughness: ProofThoroughness, begin: Begin) -> None:
    begin("the proof, for any number of runs")
    if lacking := what_to_install():
        verification.unchecked.append(f"the proof for any number of runs: {lacking}")
        return
    proof = prove(thoroughness)
    for each in Property:
        verification.checks[each]["proof"] = {"conditions": proof.conditions[each]}
    for part in PARTS:
        # The invariant and liveness are no properties of their own: they are there so that nothing is owed.
        each = Property.__members__.get(part, Property.EXACTLY_ONE_COMPLETE)
        told = f"the proof of {part}: {_first_problem(proof)}"
        if proof.verdict_of(part) == "violated":
            verification.violated.setdefault(each, told)
        elif proof.verdict_of(part) == "unknown":
            verification.unknown.setdefault(each, told)


def _first_problem(proof: Proof) -> str:
    return next(iter(proof.problems), "no condition was ever asked about")


def _compare_in_lockstep(verification: Verification, asked: tuple[Bounds, ...], begin: Begin) -> None:
    begin("the dispatcher in lockstep with the mechanism")
    results = [compare(bounds) for bounds in asked]
    verification.count("lockstep", "states", sum(result.states for result in results))
    for result in results:
        if result.violation:
            told = f"{result.violation.what}; after {', '.join(result.path)}"
            verification.broke(result.violation.property, told)
    if results[0].unseen and not results[0].violation:
        moves = ", ".join(" ".join(move) for move in sorted(results[0].unseen))
        verification.unknown[Property.DECLARED_MOVE] = f"never seen on the dispatcher: {moves}"


def _run_rules(verification: Verification, examples: int, begin: Begin) -> None:
    begin(f"rules on the dispatcher, {examples:,} examples")
    result = run_rules(examples)
    verification.count("rules", "examples", result.examples)
    if result.violation:
        verification.broke(result.violation.property, f"{result.violation.what}; program:\n{result.program}")
    elif result.error:
        verification.problems.append(f"rules: {result.error}\n{result.program}")
    elif result.missed:
        verification.untested.append(f"rules never reached {', '.join(sorted(result.missed))}")


def _explore_schedules(verification: Verification, scenarios: tuple[str, ...], begin: Begin) -> None:
    asked: list[tuple[str, LoopMode]] = [(scenario, mode) for scenario in scenarios for mode in MODES]
    results = explore_in_turn(asked)
    total = 0
    for scenario, mode in asked:
        begin(f"schedules of {scenario}, {mode}")
        result = next(results)
        total += result.schedules
        if result.failure:
            verification.broke(result.failure.broken, "; ".join(result.failure.told()))
        elif not result.complete:
            verification.untested.append(f"schedules of {scenario}, {mode}: not complete")
    verification.count("schedules", "schedules", total)


def _inject_faults(verification: Verification, begin: Begin) -> None:
    begin("faults in the dispatcher")
    result = inject_faults()
    verification.count("faults", "examples", result.injections.total())
    if result.failure:
        verification.broke(result.failure.broken, "; ".join(result.failure.told()))


def _refute_designs(verification: Verification, begin: Begin) -> None:
    for design in DESIGNS.values():
        begin(f"the design {design.name} in the model")
        verification.designs[design.name] = refute(design)


def _find_sabotages(verification: Verification, seeds: int, begin: Begin) -> None:
    for name, sabotage in SABOTAGES.items():
        begin(f"the design {name} on the dispatcher")
        found = [
            run_rules(EXAMPLES, make=sabotage.make, seed=seed, claimed=sabotage.breaks)
            for seed in range(seeds)
        ]
        broken = [result.violation.property for result in found if result.violation]
        if len(broken) < seeds:
            verification.problems.append(
                f"{name} on the real dispatcher was not found in {EXAMPLES} examples"
            )
        else:
            worst = max(result.examples for result in found)
            verification.sabotaged[name] = f"{broken[0]} in {_counted(worst, 'example')}"


def _counted(number: int, unit: str) -> str:
    return f"{number} {unit}" if number == 1 else f"{number} {unit}s"


def _explore_processes(verification: Verification, bounds: tuple[DurableBounds, ...], begin: Begin) -> None:
    for each in bounds:
        begin(f"the model of {each.processes} processes, on death {each.on_death}")
        verification.durable.models.append(hold(each))
    for name in DURABLE_DESIGNS:
        begin(f"the design {name} in the model of processes")
        verification.durable.designs[name] = refuted(name)


def _compare_diagrams(verification: Verification, begin: Begin) -> None:
    begin("the diagrams")
    checkout = own_checkout()
    if checkout is None:
        verification.unchecked.append("the diagrams, which only a checkout of Turngate has")
        return
    if not all(found.counterexamples for found in verification.designs.values()):
        verification.unchecked.append("the diagrams, which show how each design is refuted")
        return
    here = Path(os.path.relpath(checkout))
    generated = generate(refuted=verification.designs)
    verification.problems += stale(generated, here / "diagrams", here / "SPEC.md")


def own_checkout() -> Path | None:
    """Return the checkout of Turngate that this code is imported from; None if it is installed.

    The current folder does not count: a folder called diagrams there may be anybody's.
    """
    model = Path(turngate_model.__file__).resolve()
    root = model.parents[2]
    try:
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
        is_ours = project["project"]["name"] == "turngate"
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return root if is_ours and model == root / "model" / "turngate_model" / "__init__.py" else None


def as_object(verification: Verification) -> dict[str, Any]:
    """Return a verification as the object that ``--json`` prints."""
    return {
        "verdict": verification.verdict,
        "properties": {
            str(each): {"verdict": verification.verdict_of(each), "checks": verification.checks[each]}
            for each in PROMISES
        },
        "model": {str(each): verification.verdict_of(each) for each in Property if each not in PROMISES},
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
    """Print a verification for people."""
    properties = Table(
        "property", "verdict", "checked how often", box=None, pad_edge=False, title_justify="left"
    )
    for each in Property:
        checks = ", ".join(
            f"{name}: {count:,} {unit}"
            for name, counts in verification.checks[each].items()
            for unit, count in counts.items()
        )
        properties.add_row(str(each), styled(verification.verdict_of(each)), checks)
    designs = Table(
        "known-bad design", "verdict", "in the model", "on the dispatcher", box=None, pad_edge=False
    )
    for name, result in verification.designs.items():
        example = result.counterexample
        shown = styled("refuted" if example else "not refuted")
        in_model = f"{example.property} in {len(example.steps)} steps" if example else ""
        designs.add_row(name, shown, in_model, verification.sabotaged.get(name, ""))
    out.print(properties, "", designs, "", sep="\n")
    verification.durable.show()
    for problem in (*verification.problems, *verification.untested):
        for line in problem.splitlines():
            out.print(line, style="red")
    for each, why in (*verification.violated.items(), *verification.unknown.items()):
        for line in f"{each}: {why}".splitlines():
            out.print(line)
    for thing in verification.unchecked:
        out.print(f"not checked: {thing}")
    if verification.model:
        for example in verification.model.counterexamples.values():
            print_counterexample(example)
    out.print("verdict:", styled(verification.verdict), f"in {verification.seconds:.0f} s")
