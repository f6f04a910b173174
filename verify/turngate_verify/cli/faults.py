"""``turngate faults``: injects faults around the real dispatcher, one at every point."""

from __future__ import annotations

from typing import Any

import click

from turngate import Dispatcher
from turngate_verify.cli.schedules import imported
from turngate_verify.cli.show import EXIT_CODES, out, print_json, styled
from turngate_verify.drivers.faults import KINDS, SPOILED, FaultFound, Faults, inject_faults, replay_fault


@click.command()
@click.option("--scenario", metavar="NAME", help="Only this one ('list' names them); all unless given.")
@click.option("--replay", metavar="NUMBER", type=int, help="Make one injection of the scenario again.")
@click.option("--dispatcher", metavar="MODULE:CLASS", help="Use another dispatcher instead of Turngate's.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def faults(scenario: str | None, replay: int | None, dispatcher: str | None, as_json: bool) -> int:
    """Inject every kind of fault at every point of small scenarios on the real dispatcher.

    Exit code 0: everything holds after every injection; 1: something is violated after one, which is printed
    with the command that repeats it.
    """
    if scenario == "list":
        for name, known in SPOILED.items():
            out.print(f"{name:14} {known.about}")
        return 0
    if scenario is not None and scenario not in SPOILED:
        raise click.UsageError(f"there is no scenario {scenario!r}; there are {', '.join(SPOILED)}")
    make = Dispatcher if dispatcher is None else imported(dispatcher)
    if replay is None:
        found = inject_faults([scenario] if scenario else SPOILED, make=make)
    elif scenario is None:
        raise click.UsageError("--replay needs --scenario")
    else:
        found = _replayed(scenario, replay, make)
    verdict = "violated" if found.failure else "holds"
    if as_json:
        told: dict[str, Any] = {"verdict": verdict, "injections": dict(found.injections)}
        print_json({**told, **(_failure_as_object(found.failure) if found.failure else {})})
    else:
        _print_faults(found, verdict)
    return EXIT_CODES[verdict]


def _replayed(scenario: str, number: int, make: type[Dispatcher]) -> Faults:
    try:
        return replay_fault(scenario, number, make=make)
    except ValueError as wrong:
        raise click.UsageError(str(wrong)) from None


def _failure_as_object(failure: FaultFound) -> dict[str, Any]:
    return {
        "property": failure.broken and str(failure.broken),
        "expected": failure.what,
        "kind": failure.kind,
        "scenario": failure.scenario,
        "where": failure.where,
        "replay": failure.replay,
    }


def _print_faults(found: Faults, verdict: str) -> None:
    for kind, number in found.injections.items():
        out.print(f"{number:4}  {KINDS[kind]}")
    for line in found.failure.told() if found.failure else ():
        out.print(f"  {line}")
    out.print("verdict:", styled(verdict))
