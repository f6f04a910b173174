"""``turngate verify``: runs every check, each with a line of its own, and prints the verdicts once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import click

from turngate_model import (
    DURABLE_DESIGNS,
    EVERY_DESIGN,
    LIMB_DESIGNS,
    LINE_DESIGNS,
    Property,
)
from turngate_model.checker import Bounds, DurableBounds, Exploration, Explorer, MemoryModel
from turngate_model.pictures import generate, refute, stale
from turngate_model.proof import PARTS, Proof, ProofThoroughness, prove, what_to_install
from turngate_model.proof import QUICK as QUICK_PROOF
from turngate_model.proof import WHOLE as WHOLE_PROOF
from turngate_verify.cli.durable import hold, refuted
from turngate_verify.cli.found import reasons
from turngate_verify.cli.show import EXIT_CODES, DriverLine, driver, err, print_json
from turngate_verify.cli.verification import CHECKED, OF_THE_LINE, Verification, as_object, print_verification
from turngate_verify.cli.workers import Job, Workers
from turngate_verify.drivers.faults import inject_faults
from turngate_verify.drivers.ledger_calls import search as fail_calls
from turngate_verify.drivers.ledger_faults import search as inject_ledger_faults
from turngate_verify.drivers.ledger_lockstep import compare_on_ledger
from turngate_verify.drivers.ledger_rules import LedgerRules, run_ledger_rules
from turngate_verify.drivers.ledger_sabotage import find_ledger_sabotage
from turngate_verify.drivers.ledger_scenarios import SMALL as LEDGER_SCENARIOS
from turngate_verify.drivers.ledger_schedules import Explored, Scenario
from turngate_verify.drivers.ledger_schedules import explore as explore_on_ledger
from turngate_verify.drivers.limb_sabotage import LimbFound, find_limb_sabotage
from turngate_verify.drivers.line_sabotage import LINE_SABOTAGES
from turngate_verify.drivers.lockstep import IN_LINE, WITH_PLACES, Lockstep, compare
from turngate_verify.drivers.network_check import NetworkChecked, check_network
from turngate_verify.drivers.rules.search import Rules, run_rules
from turngate_verify.drivers.sabotage import EXAMPLES, SABOTAGES
from turngate_verify.drivers.schedules import MODES, SCENARIOS, Schedules, explore_schedules
from turngate_verify.ledger_judge import property_named
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
    durable: tuple[DurableBounds, ...] = (DurableBounds(), DurableBounds(losses=0, on_death="retry"))
    """Bounds for the model of processes."""
    proof: ProofThoroughness = QUICK_PROOF
    ledger_lockstep: tuple[Bounds, ...] = ()
    ledger_examples: int = 300
    ledger_scenarios: tuple[Scenario, ...] = tuple(LEDGER_SCENARIOS)
    ledger_remembers: tuple[bool, ...] = (True,)
    """Whether processes remember what they have saved last, where faults are injected."""
    ledger_calls: int = 60
    """Every nth call to a ledger that could fail does fail."""
    network_examples: int = 80
    """Programs of clients over a network, with a ledger and without one each."""


SMALL = tuple(name for name in SCENARIOS if not name.startswith("three"))
PLACES = (WITH_PLACES, IN_LINE)
IN_MEMORY = SABOTAGES | LINE_SABOTAGES
"""The designs that are built into the dispatcher in memory."""
LINE_EXAMPLES = 800
SEARCHES = 5
"""How many examples a search for a design of the line has, and how many searches there may be."""
LINE = Bounds(2, 1, 1, holds=1, moves=1, into=True)
"""Callers hold, move, edit and send now what waits, and send prompts for one turn alone."""
QUICK = Thoroughness(
    Bounds(3, 2),
    Bounds(2, 1),
    examples=250,
    seeds=1,
    scenarios=SMALL,
    places=(WITH_PLACES,),
    ledger_lockstep=(Bounds(2, 1), LINE),
)
DEEP = Thoroughness(
    Bounds(4, 2),
    Bounds(3, 1),
    examples=5_000,
    seeds=10,
    scenarios=tuple(SCENARIOS),
    places=PLACES,
    durable=(
        DurableBounds(),
        DurableBounds(on_death="retry"),
        DurableBounds(processes=3),
        DurableBounds(prompts=3),
    ),
    proof=WHOLE_PROOF,
    ledger_lockstep=(Bounds(3, 1), LINE),
    ledger_examples=5_000,
    ledger_remembers=(True, False),
    ledger_calls=1,
    network_examples=1_000,
)


@click.command()
@click.option("--deep", is_flag=True, help="Use larger bounds and more examples; takes minutes.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--report",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write one self-contained page with verdicts and pictures to DIR/index.html.",
)
def verify(deep: bool, as_json: bool, report: Path | None) -> int:
    """Check every property, on the model and on the code, and every known-bad design.

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

    with Workers() as workers:
        drivers = _started(thoroughness, workers)
        for name, check in drivers.items():
            with line(name) as told:
                check(verification, told)
    with line("diagrams") as told:
        said = _diagrams_compared(verification)
        told.counts = lambda: said


Check: TypeAlias = Callable[[Verification, DriverLine], None]
"""Waits for what a driver has started, and says the result."""


def _started(thoroughness: Thoroughness, workers: Workers) -> dict[str, Check]:
    """Start every check, the longest first; return the drivers in the order of their lines."""
    lacking = what_to_install()
    proving = None if lacking else workers.start(prove, thoroughness.proof)
    processes = _Processes(thoroughness.durable, workers)
    compared = (thoroughness.lockstep, *thoroughness.places, LINE)
    lockstep = [workers.start(compare, bounds) for bounds in compared]
    rules = workers.start(run_rules, thoroughness.examples)
    network = _rule_over_a_network(thoroughness.network_examples, workers)
    ledgers = {
        "ledger lockstep": _compare_ledgers(thoroughness.ledger_lockstep, workers),
        "ledger rules": _run_ledger_rules(thoroughness.ledger_examples, workers),
        "ledger faults": _inject_ledger_faults(thoroughness, workers),
        "ledger schedules": _explore_ledger_schedules(thoroughness.ledger_scenarios, workers),
    }
    schedules = _explore_schedules(thoroughness.scenarios, workers)
    return {
        "model": _explore_model(thoroughness.model, workers),
        "waiting": _explore_line(workers),
        "proof": _prove(proving, lacking),
        "lockstep": _compare_in_lockstep(lockstep),
        "rules": _run_rules(rules),
        "schedules": schedules,
        "faults": _inject_faults(workers),
        **ledgers,
        "designs": _refute_designs(workers),
        "sabotage": _find_sabotages(thoroughness.seeds, workers),
        "clients and feed": _find_limb_sabotages(workers),
        "network": network,
        "processes": processes.told,
    }


def _explore(bounds: Bounds) -> Exploration[Bounds]:
    return Explorer(MemoryModel(bounds)).run()


def _explore_model(bounds: Bounds, workers: Workers) -> Check:
    job = workers.start(_explore, bounds)

    def check(verification: Verification, told: DriverLine) -> None:
        within = f"{counted(bounds.prompts, 'prompt')}, {counted(bounds.cancels, 'cancel')}"
        told.counts = lambda: within
        result = verification.model = job.result()
        extent = f"{counted(result.states, 'state')}, {counted(result.transitions, 'transition')}; {within}"
        told.counts = lambda: extent
        for each in [each for each in CHECKED if each not in OF_THE_LINE]:
            verification.checks[each]["model"] = {"states": result.states}
            if each in result.counterexamples:
                verification.violated[each] = result.counterexamples[each].what
            elif result.verdict == "unknown" and (
                result.gave_up or result.missed or each in result.unexercised
            ):
                verification.unknown[each] = "; ".join(reasons(result))

    return check


def _explore_line(workers: Workers) -> Check:
    """Explore holds, moves, edits and prompts for one turn, in smaller bounds."""
    job = workers.start(_explore, LINE)

    def check(verification: Verification, told: DriverLine) -> None:
        within = "holds, moves, edits and prompts for one turn"
        told.counts = lambda: within
        result = job.result()
        extent = f"{counted(result.states, 'state')}, {counted(result.transitions, 'transition')}; {within}"
        told.counts = lambda: extent
        for each in CHECKED:
            verification.checks[each]["waiting"] = {"states": result.states}
            if each in result.counterexamples:
                verification.violated[each] = result.counterexamples[each].what
        if result.gave_up or result.missed:
            verification.untested += reasons(result)

    return check


def _prove(job: Job[Proof] | None, lacking: str) -> Check:
    def check(verification: Verification, told: DriverLine) -> None:
        if job is None:
            verification.unchecked.append(f"the proof for any number of runs: {lacking}")
            told.counts = lambda: "not made here"
            return
        told.counts = lambda: "for any number of runs"
        proof = job.result()
        proved = f"{sum(proof.conditions.values()):,} conditions, for any number of runs"
        told.counts = lambda: proved
        for each in CHECKED:
            if proof.conditions[each]:
                verification.checks[each]["proof"] = {"conditions": proof.conditions[each]}
        for part in PARTS:
            # The invariant and liveness are no properties of their own: they see that nothing is owed.
            each = Property.__members__.get(part, Property.EXACTLY_ONE_COMPLETE)
            why = f"the proof of {part}: {_first_problem(proof)}"
            if proof.verdict_of(part) == "violated":
                verification.violated.setdefault(each, why)
            elif proof.verdict_of(part) == "unknown":
                verification.unknown.setdefault(each, why)

    return check


def _first_problem(proof: Proof) -> str:
    return next(iter(proof.problems), "no condition was ever asked about")


def _compare_in_lockstep(jobs: Sequence[Job[Lockstep]]) -> Check:
    def check(verification: Verification, told: DriverLine) -> None:
        results = _lockstep_told(jobs, told, "the mechanism")
        verification.count("lockstep", "states", sum(result.states for result in results), of_line=True)
        _judge_lockstep(verification, results)
        if results[0].unseen and not results[0].violation:
            moves = ", ".join(" ".join(move) for move in sorted(results[0].unseen))
            verification.unknown[Property.DECLARED_MOVE] = f"never seen on the dispatcher: {moves}"

    return check


def _lockstep_told(jobs: Sequence[Job[Lockstep]], told: DriverLine, beside: str) -> list[Lockstep]:
    results: list[Lockstep] = []

    def extent() -> str:
        states, steps = (sum(getattr(each, of) for each in results) for of in ("states", "steps"))
        return f"{counted(states, 'state')}, {counted(steps, 'step')} beside {beside}"

    told.counts = extent
    for job in jobs:
        results.append(job.result())  # noqa: PERF401 - the line says how far it is
    return results


def _judge_lockstep(verification: Verification, results: list[Lockstep]) -> None:
    for result in results:
        if result.violation:
            said = f"{result.violation.what}; after {', '.join(result.path)}"
            verification.broke(result.violation.property, said)


def _run_rules(job: Job[Rules]) -> Check:
    def check(verification: Verification, told: DriverLine) -> None:
        result = job.result()
        told.counts = lambda: f"{counted(result.examples, 'example')}, {counted(result.steps, 'step')}"
        verification.seed = "none: the examples of the rules are the same every time"
        verification.count("rules", "examples", result.examples, of_line=True)
        if result.violation:
            verification.broke(
                result.violation.property, f"{result.violation.what}; program:\n{result.program}"
            )
        elif result.error:
            verification.problems.append(f"rules: {result.error}\n{result.program}")
        elif result.missed:
            verification.untested.append(f"rules never reached {', '.join(sorted(result.missed))}")

    return check


def _explore_schedules(scenarios: tuple[str, ...], workers: Workers) -> Check:
    asked: list[tuple[str, LoopMode]] = [(scenario, mode) for scenario in scenarios for mode in MODES]
    jobs: list[Job[Schedules]] = [workers.start(explore_schedules, *each) for each in asked]

    def check(verification: Verification, told: DriverLine) -> None:
        done = total = 0
        told.counts = lambda: f"{total:,} schedules, {done} of {len(asked)} scenarios in their modes"
        for (scenario, mode), job in zip(asked, jobs, strict=True):
            result = job.result()
            done, total = done + 1, total + result.schedules
            if result.failure:
                verification.broke(result.failure.broken, "; ".join(result.failure.told()))
            elif not result.complete:
                verification.untested.append(f"schedules of {scenario}, {mode}: not complete")
        verification.count("schedules", "schedules", total)

    return check


def _inject_faults(workers: Workers) -> Check:
    job = workers.start(inject_faults)

    def check(verification: Verification, told: DriverLine) -> None:
        result = job.result()
        told.counts = lambda: f"{result.injections.total():,} injections, in {len(result.injections)} ways"
        verification.count("faults", "examples", result.injections.total())
        if result.failure:
            verification.broke(result.failure.broken, "; ".join(result.failure.told()))

    return check


# On ledgers.


def _compare_ledgers(asked: tuple[Bounds, ...], workers: Workers) -> Check:
    jobs: list[Job[Lockstep]] = [workers.start(compare_on_ledger, bounds, processes=2) for bounds in asked]

    def check(verification: Verification, told: DriverLine) -> None:
        results = _lockstep_told(jobs, told, "the mechanism, of two processes")
        states = sum(result.states for result in results)
        verification.count_on_ledger("ledger lockstep", "states", states, deaths=False)
        _judge_lockstep(verification, results)

    return check


def _run_ledger_rules(examples: int, workers: Workers) -> Check:
    ways: tuple[Literal["fail", "retry"], ...] = ("fail", "retry")
    jobs: list[Job[LedgerRules]] = [workers.start(run_ledger_rules, examples, on_death=each) for each in ways]

    def check(verification: Verification, told: DriverLine) -> None:
        total = 0
        told.counts = lambda: f"{counted(total, 'example')}, three processes that die"
        for on_death, job in zip(ways, jobs, strict=True):
            result = job.result()
            total += result.examples
            for wrong in result.wrong[:1]:
                verification.broke(property_named(wrong), f"{wrong}; on death {on_death}: {result.program}")
            if result.missed:
                missed = ", ".join(sorted(result.missed))
                verification.untested.append(f"ledger rules, on death {on_death}, never reached {missed}")
        verification.count_on_ledger("ledger rules", "examples", total)

    return check


def _inject_ledger_faults(thoroughness: Thoroughness, workers: Workers) -> Check:
    jobs = [
        workers.start(inject_ledger_faults, remembers=remembers)
        for remembers in thoroughness.ledger_remembers
    ]
    calls = workers.start(fail_calls, every=thoroughness.ledger_calls)

    def check(verification: Verification, told: DriverLine) -> None:
        total = 0
        told.counts = lambda: f"{total:,} injections, in messages and calls of a ledger"
        for job in jobs:
            found = job.result()
            total += found.played
            if found.wrong:
                *_, about, wrong = ("", *found.wrong.split(": ", 1))
                verification.broke(property_named(wrong), f"{wrong}; {about}")
        failed = calls.result()
        total += failed.played
        for case, wrongs in failed.wrong.items():
            verification.broke(property_named(wrongs[0]), f"{wrongs[0]}; {case}")
        verification.count_on_ledger("ledger faults", "examples", total)

    return check


def _explore_ledger_schedules(scenarios: tuple[Scenario, ...], workers: Workers) -> Check:
    jobs: list[Job[Explored]] = [workers.start(explore_on_ledger, each) for each in scenarios]

    def check(verification: Verification, told: DriverLine) -> None:
        done = total = 0
        told.counts = lambda: f"{total:,} schedules of two processes, {done} of {len(jobs)} scenarios"
        for scenario, job in zip(scenarios, jobs, strict=True):
            result = job.result()
            done, total = done + 1, total + result.schedules
            for wrong in result.wrong[:1]:
                said = f"{wrong}; {scenario.name}: {'; '.join(result.choices)}"
                verification.broke(property_named(wrong), said)
            if not (result.exhausted or result.wrong):
                verification.untested.append(f"ledger schedules of {scenario.name}: not exhausted")
        verification.count_on_ledger("ledger schedules", "schedules", total)

    return check


# Known-bad designs.


def _refute_designs(workers: Workers) -> Check:
    jobs = {name: workers.start(refute, design) for name, design in EVERY_DESIGN.items()}

    def check(verification: Verification, told: DriverLine) -> None:
        found = verification.designs
        told.counts = lambda: (
            f"{sum(each.counterexample is not None for each in found.values())} of {len(EVERY_DESIGN)} "
            "known-bad designs refuted in the model"
        )
        for name, job in jobs.items():
            found[name] = job.result()

    return check


def look_for(name: str, seed: int) -> Rules:
    """Let the rules look for a design in the real dispatcher; search again after an unlucky search."""
    sabotage = IN_MEMORY[name]
    examples = LINE_EXAMPLES if name in LINE_DESIGNS else EXAMPLES
    for search in range(SEARCHES):
        found = run_rules(
            examples,
            make=sabotage.make,
            seed=seed + search * 1_000,
            claimed=sabotage.breaks,
            shrinks=False,
        )
        if found.violation is not None:
            break
    return found


def _find_sabotages(seeds: int, workers: Workers) -> Check:
    jobs = {name: [workers.start(look_for, name, seed) for seed in range(seeds)] for name in IN_MEMORY}
    on_ledger = {name: workers.start(find_ledger_sabotage, name) for name in DURABLE_DESIGNS}

    def check(verification: Verification, told: DriverLine) -> None:
        worst, asked = 0, len(jobs) + len(on_ledger)
        told.counts = lambda: (
            f"{len(verification.sabotaged)} of {asked} found in the real code, "
            f"in at most {counted(worst, 'example')}"
        )
        for name, of_seeds in jobs.items():
            found = [job.result() for job in of_seeds]
            broken = [result.violation.property for result in found if result.violation]
            if len(broken) < seeds:
                verification.problems.append(f"{name} on the real dispatcher was not found by the rules")
                continue
            longest = max(result.examples for result in found)
            worst = max(worst, longest)
            verification.sabotaged[name] = f"{broken[0]} in {counted(longest, 'example')}"
        for name, ledger_job in on_ledger.items():
            explored = ledger_job.result()
            if explored.wrong:
                broken_by = property_named(explored.wrong[0]) or explored.wrong[0]
                verification.sabotaged[name] = f"{broken_by} in {counted(explored.schedules, 'schedule')}"
            else:
                verification.problems.append(f"{name} on ledgers was not found by the schedules")

    return check


def _find_limb_sabotages(workers: Workers) -> Check:
    """Look for the designs of client, feed and ledger, each with its check."""
    jobs: dict[str, Job[LimbFound]] = {name: workers.start(find_limb_sabotage, name) for name in LIMB_DESIGNS}

    def check(verification: Verification, told: DriverLine) -> None:
        told.counts = lambda: (
            f"{sum(name in verification.sabotaged for name in jobs)} of {len(jobs)} designs of client, feed "
            "and ledger found"
        )
        for name, job in jobs.items():
            found = job.result()
            if found.lacking:
                verification.unchecked.append(f"{name}, in the code: {found.lacking}")
                continue
            verification.of_the_limbs.append(name)
            for wrong in found.without[:1]:
                verification.broke(property_named(wrong), f"{wrong}; found by the check of {name}")
            for wrong in found.within[:1]:
                verification.sabotaged[name] = str(property_named(wrong) or wrong)
            if not found.within:
                verification.problems.append(f"{name} was not found in the real code")

    return check


# Clients and a server.


def _rule_over_a_network(examples: int, workers: Workers) -> Check:
    jobs: list[Job[NetworkChecked]] = [
        workers.start(check_network, examples, has_ledger=each) for each in (False, True)
    ]

    def check(verification: Verification, told: DriverLine) -> None:
        total, designs, lacking = 0, dict[str, str](), ""
        told.counts = lambda: (
            f"{counted(total, 'example')} of clients and a server, "
            f"{sum(map(bool, designs.values()))} of {counted(len(designs), 'design')} found"
        )
        for job in jobs:
            result = job.result()
            if result.rules is None:
                lacking = result.lacking
                continue
            total += result.rules.examples
            designs |= result.found
            for wrong in result.rules.wrong[:1]:
                verification.broke(property_named(wrong), f"{wrong}; over a network: {result.rules.program}")
            if result.rules.missed:
                missed = ", ".join(sorted(result.rules.missed))
                verification.untested.append(f"rules over a network never reached {missed}")
        if lacking:
            verification.unchecked.append(f"clients and a server over a network: {lacking}")
        verification.count_over_network(total)
        verification.problems += [
            f"{name} was not found over the network" for name, wrong in designs.items() if not wrong
        ]

    return check


class _Processes:
    """The model of processes and its designs."""

    def __init__(self, bounds: tuple[DurableBounds, ...], workers: Workers) -> None:
        self._models: list[Job[Exploration[DurableBounds]]] = [workers.start(hold, each) for each in bounds]
        self._designs = {name: workers.start(refuted, name) for name in DURABLE_DESIGNS}

    def told(self, verification: Verification, told: DriverLine) -> None:
        """Wait for both."""
        durable = verification.durable
        told.counts = lambda: (
            f"{sum(result.states for result in durable.models):,} states, processes that die; "
            f"{sum(each.counterexample is not None for each in durable.designs.values())} of "
            f"{len(DURABLE_DESIGNS)} designs refuted"
        )
        for model in self._models:
            durable.models.append(model.result())
        for name, design in self._designs.items():
            durable.designs[name] = design.result()
        verification.count_processes()


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
