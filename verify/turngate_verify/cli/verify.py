"""``turngate verify``: makes every check there is, each in a line, and prints the verdicts once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import click

from turngate_model import DURABLE_DESIGNS, EVERY_DESIGN, Property, model_only
from turngate_model.checker import Bounds, DurableBounds, Explorer, MemoryModel, Progress
from turngate_model.pictures import generate, refute, stale
from turngate_model.proof import PARTS, Proof, ProofThoroughness, prove, what_to_install
from turngate_model.proof import QUICK as QUICK_PROOF
from turngate_model.proof import WHOLE as WHOLE_PROOF
from turngate_verify.cli.durable import hold, refuted
from turngate_verify.cli.found import reasons
from turngate_verify.cli.show import EXIT_CODES, DriverLine, driver, err, print_json
from turngate_verify.cli.verification import CHECKED, OF_THE_LINE, Verification, as_object, print_verification
from turngate_verify.drivers.faults import inject_faults
from turngate_verify.drivers.faults.found import Faults
from turngate_verify.drivers.lockstep import IN_LINE, WITH_PLACES, Lockstep, compare
from turngate_verify.drivers.rules.reached import Tally
from turngate_verify.drivers.rules.search import run_rules
from turngate_verify.drivers.sabotage import EXAMPLES, SABOTAGES
from turngate_verify.drivers.schedules import MODES, SCENARIOS, explore_in_turn
from turngate_verify.report.pages import write_report
from turngate_verify.report.provenance import own_checkout
from turngate_verify.words import counted
from turngate_verify.world.stage import LoopMode


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


Lines: TypeAlias = Callable[[str], AbstractContextManager[DriverLine]]
"""Gives a driver its line, by its name."""
SMALL = tuple(name for name in SCENARIOS if not name.startswith("three"))
PLACES = (WITH_PLACES, IN_LINE)
LINE = Bounds(2, 1, 1, holds=1, moves=1, into=True)
"""Callers hold, move, edit and send now what waits, and send prompts for one turn alone."""
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
@click.option("--deep", is_flag=True, help="Use larger bounds and more of everything; takes minutes.")
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
    verification = Verification(command="turngate verify --deep" if deep else "turngate verify")
    run_drivers(verification, DEEP if deep else QUICK, quiet=as_json)
    verification.seconds = time.monotonic() - began
    if as_json:
        print_json(as_object(verification))
    else:
        print_verification(verification)
    if report:
        err.print(f"wrote {write_report(verification, report)}")
    return EXIT_CODES[verification.verdict]


def run_drivers(verification: Verification, thoroughness: Thoroughness, *, quiet: bool = False) -> None:
    """Ask every driver, one after the other. Each has a line; with ``quiet`` none is printed."""

    @contextmanager
    def line(name: str) -> Iterator[DriverLine]:
        with driver(name, quiet=quiet) as one:
            yield one
        verification.drivers.append(one)

    verification.unchecked.append(model_only.UNCHECKED)
    _explore_model(verification, thoroughness.model, line)
    _explore_line(verification, line)
    _prove(verification, thoroughness.proof, line)
    _compare_in_lockstep(verification, (thoroughness.lockstep, *thoroughness.places, LINE), line)
    _run_rules(verification, thoroughness.examples, line)
    _explore_schedules(verification, thoroughness.scenarios, line)
    _inject_faults(verification, line)
    _refute_designs(verification, line)
    _find_sabotages(verification, thoroughness.seeds, line)
    _explore_processes(verification, thoroughness.durable, line)
    _compare_diagrams(verification, line)


def _explore_model(verification: Verification, bounds: Bounds, line: Lines) -> None:
    with line("model") as told:
        within = f"{counted(bounds.prompts, 'prompt')}, {counted(bounds.cancels, 'cancel')}"
        explorer = Explorer(MemoryModel(bounds), progress=_states_shown(told, within))
        result = verification.model = explorer.run()
        extent = f"{counted(result.states, 'state')}, {counted(result.transitions, 'transition')}; {within}"
        told.counts = lambda: extent
    for each in [each for each in CHECKED if each not in OF_THE_LINE]:
        verification.checks[each]["model"] = {"states": result.states}
        if each in result.counterexamples:
            verification.violated[each] = result.counterexamples[each].what
        elif result.verdict == "unknown" and (result.gave_up or result.missed or each in result.unexercised):
            verification.unknown[each] = "; ".join(reasons(result))


def _explore_line(verification: Verification, line: Lines) -> None:
    """Explore holds, moves, edits and prompts for one turn, in smaller bounds."""
    with line("line") as told:
        within = "holds, moves, edits and prompts for one turn"
        result = Explorer(MemoryModel(LINE), progress=_states_shown(told, within)).run()
        extent = f"{counted(result.states, 'state')}, {counted(result.transitions, 'transition')}; {within}"
        told.counts = lambda: extent
    for each in CHECKED:
        verification.checks[each]["line"] = {"states": result.states}
        if each in result.counterexamples:
            verification.violated[each] = result.counterexamples[each].what
    if result.gave_up or result.missed:
        verification.untested += reasons(result)


def _states_shown(told: DriverLine, within: str) -> Callable[[Progress], None]:
    """Return what an explorer calls now and then, so that its line says how far it is."""

    def show(now: Progress) -> None:
        told.counts = lambda: f"{counted(now.states, 'state')}, {now.frontier:,} to go; {within}"

    return show


def _prove(verification: Verification, thoroughness: ProofThoroughness, line: Lines) -> None:
    with line("proof") as told:
        if lacking := what_to_install():
            verification.unchecked.append(f"the proof for any number of runs: {lacking}")
            told.counts = lambda: "not made here"
            return
        parts: list[str] = []
        told.counts = lambda: f"part {len(parts)}: {parts[-1]}" if parts else ""
        proof = prove(thoroughness, parts.append)
        proved = f"{sum(proof.conditions.values()):,} conditions, for any number of runs"
        told.counts = lambda: proved
    for each in CHECKED:
        if proof.conditions[each]:
            verification.checks[each]["proof"] = {"conditions": proof.conditions[each]}
    for part in PARTS:
        # The invariant and liveness are no properties of their own: they are there so that nothing is owed.
        each = Property.__members__.get(part, Property.EXACTLY_ONE_COMPLETE)
        why = f"the proof of {part}: {_first_problem(proof)}"
        if proof.verdict_of(part) == "violated":
            verification.violated.setdefault(each, why)
        elif proof.verdict_of(part) == "unknown":
            verification.unknown.setdefault(each, why)


def _first_problem(proof: Proof) -> str:
    return next(iter(proof.problems), "no condition was ever asked about")


def _compare_in_lockstep(verification: Verification, asked: tuple[Bounds, ...], line: Lines) -> None:
    with line("lockstep") as told:
        results: list[Lockstep] = []

        def extent() -> str:
            states, steps = (sum(getattr(each, of) for each in results) for of in ("states", "steps"))
            return f"{counted(states, 'state')}, {counted(steps, 'step')} beside the mechanism"

        told.counts = extent
        for bounds in asked:
            results.append(Lockstep())
            results[-1] = compare(bounds, result=results[-1])
    verification.count("lockstep", "states", sum(result.states for result in results), holds=True)
    for result in results:
        if result.violation:
            said = f"{result.violation.what}; after {', '.join(result.path)}"
            verification.broke(result.violation.property, said)
    if results[0].unseen and not results[0].violation:
        moves = ", ".join(" ".join(move) for move in sorted(results[0].unseen))
        verification.unknown[Property.DECLARED_MOVE] = f"never seen on the dispatcher: {moves}"


def _run_rules(verification: Verification, examples: int, line: Lines) -> None:
    with line("rules") as told:
        tally = Tally()
        told.counts = lambda: f"{tally.examples:,} of {examples:,} examples, {tally.steps:,} steps"
        result = run_rules(examples, tally=tally)
        told.counts = lambda: f"{counted(result.examples, 'example')}, {counted(result.steps, 'step')}"
    verification.seed = "none: the examples of the rules are the same every time"
    verification.count("rules", "examples", result.examples, holds=True)
    if result.violation:
        verification.broke(result.violation.property, f"{result.violation.what}; program:\n{result.program}")
    elif result.error:
        verification.problems.append(f"rules: {result.error}\n{result.program}")
    elif result.missed:
        verification.untested.append(f"rules never reached {', '.join(sorted(result.missed))}")


def _explore_schedules(verification: Verification, scenarios: tuple[str, ...], line: Lines) -> None:
    asked: list[tuple[str, LoopMode]] = [(scenario, mode) for scenario in scenarios for mode in MODES]
    with line("schedules") as told:
        done = total = 0
        told.counts = lambda: f"{total:,} schedules, {done} of {len(asked)} scenarios in their modes"
        for (scenario, mode), result in zip(asked, explore_in_turn(asked), strict=True):
            done, total = done + 1, total + result.schedules
            if result.failure:
                verification.broke(result.failure.broken, "; ".join(result.failure.told()))
            elif not result.complete:
                verification.untested.append(f"schedules of {scenario}, {mode}: not complete")
    verification.count("schedules", "schedules", total)


def _inject_faults(verification: Verification, line: Lines) -> None:
    with line("faults") as told:
        found = Faults()
        told.counts = lambda: counted(found.injections.total(), "injection")
        result = inject_faults(found=found)
        told.counts = lambda: f"{result.injections.total():,} injections, in {len(result.injections)} ways"
    verification.count("faults", "examples", result.injections.total())
    if result.failure:
        verification.broke(result.failure.broken, "; ".join(result.failure.told()))


def _refute_designs(verification: Verification, line: Lines) -> None:
    with line("designs") as told:
        found = verification.designs
        told.counts = lambda: (
            f"{sum(each.counterexample is not None for each in found.values())} of {len(EVERY_DESIGN)} "
            "known-bad designs refuted in the model"
        )
        for design in EVERY_DESIGN.values():
            found[design.name] = refute(design)


def _find_sabotages(verification: Verification, seeds: int, line: Lines) -> None:
    with line("sabotage") as told:
        worst = 0
        told.counts = lambda: (
            f"{len(verification.sabotaged)} of {len(SABOTAGES)} found on the dispatcher, "
            f"in at most {counted(worst, 'example')}"
        )
        for name, sabotage in SABOTAGES.items():
            found = [
                run_rules(EXAMPLES, make=sabotage.make, seed=seed, claimed=sabotage.breaks)
                for seed in range(seeds)
            ]
            broken = [result.violation.property for result in found if result.violation]
            if len(broken) < seeds:
                verification.problems.append(
                    f"{name} on the real dispatcher was not found in {EXAMPLES} examples"
                )
                continue
            longest = max(result.examples for result in found)
            worst = max(worst, longest)
            verification.sabotaged[name] = f"{broken[0]} in {counted(longest, 'example')}"


def _explore_processes(verification: Verification, bounds: tuple[DurableBounds, ...], line: Lines) -> None:
    durable = verification.durable
    with line("processes") as told:
        for each in bounds:
            show = _states_shown(
                told, f"{counted(each.processes, 'process', 'processes')}, on death {each.on_death}"
            )
            durable.models.append(hold(each, show))
        states = sum(result.states for result in durable.models)
        told.counts = lambda: (
            f"{states:,} states, processes that die; "
            f"{sum(each.counterexample is not None for each in durable.designs.values())} of "
            f"{len(DURABLE_DESIGNS)} designs refuted"
        )
        for name in DURABLE_DESIGNS:
            durable.designs[name] = refuted(name)


def _compare_diagrams(verification: Verification, line: Lines) -> None:
    with line("diagrams") as told:
        said = _diagrams_compared(verification)
        told.counts = lambda: said


def _diagrams_compared(verification: Verification) -> str:
    checkout = own_checkout()
    if checkout is None:
        verification.unchecked.append("the diagrams, which only a checkout of Turngate has")
        return "not compared here"
    if not all(found.counterexamples for found in verification.designs.values()):
        verification.unchecked.append("the diagrams, which show how each design is refuted")
        return "not compared"
    here = Path(os.path.relpath(checkout))
    generated = generate(refuted=verification.designs)
    out_of_date = stale(generated, here / "diagrams", here)
    verification.problems += out_of_date
    return f"{len(out_of_date)} stale" if out_of_date else "as the model draws them"
