"""``turngate schedules``: executes small scenarios on the real dispatcher in every possible order."""

from __future__ import annotations

import importlib
import time
from typing import Any

import click

from turngate import Dispatcher
from turngate_verify.cli.show import EXIT_CODES, out, print_json, stages, styled
from turngate_verify.drivers.schedules import (
    MODES,
    SCENARIOS,
    Failure,
    Schedules,
    explore_in_turn,
    replay_schedule,
)
from turngate_verify.words import counted
from turngate_verify.world.stage import LoopMode


@click.command()
@click.option("--scenario", metavar="NAME", help="Only this one ('list' names them); all unless given.")
@click.option(
    "--mode", type=click.Choice([*MODES]), help="Which orders: any, or stock order; both unless given."
)
@click.option("--replay", metavar="CHOICES", help="Execute one schedule: its choices, as 0,2,0,1.")
@click.option(
    "--reduce/--no-reduce", default=True, help="Stop at a moment that was met before (the default)."
)
@click.option("--limit", type=click.IntRange(1), help="Give up after this many executions.")
@click.option(
    "--workers",
    type=click.IntRange(1, 256),
    help="Processes that share the work; else one for each processor.",
)
@click.option("--dispatcher", metavar="MODULE:CLASS", help="Explore another dispatcher than Turngate's.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def schedules(
    scenario: str | None,
    mode: LoopMode | None,
    replay: str | None,
    reduce: bool,
    limit: int | None,
    workers: int | None,
    dispatcher: str | None,
    as_json: bool,
) -> int:
    """Execute small scenarios on the real dispatcher in every possible order.

    Exit code 0: everything holds in every schedule; 1: something is violated in one, which is printed with
    the command that replays it; 3: the limit was reached.
    """
    if scenario == "list":
        for name, known in SCENARIOS.items():
            out.print(f"{name:14} {known.about}")
        return 0
    if scenario is not None and scenario not in SCENARIOS:
        raise click.UsageError(f"there is no scenario {scenario!r}; there are {', '.join(SCENARIOS)}")
    make = Dispatcher if dispatcher is None else imported(dispatcher)
    if replay is not None:
        if scenario is None or mode is None:
            raise click.UsageError("--replay needs --scenario and --mode")
        return _replay(scenario, mode, _choices(replay), make, as_json)
    modes: list[LoopMode] = [mode] if mode else [*MODES]
    asked: list[tuple[str, LoopMode]] = [
        (name, each) for name in ([scenario] if scenario else SCENARIOS) for each in modes
    ]
    if scenario:
        workers = workers or 1  # it takes longer to start another than to do it
    began = time.monotonic()
    found: list[Schedules] = []
    with stages(len(asked)) as begin:
        results = explore_in_turn(asked, workers=workers, make=make, reduce=reduce, limit=limit)
        for name, each in asked:
            begin(f"{name}, {each} order")
            found.append(next(results))
    seconds = time.monotonic() - began
    if as_json:
        print_json(as_object(found, seconds))
    else:
        _print_schedules(found, seconds)
    return EXIT_CODES[_verdict(found)]


def _verdict(found: list[Schedules]) -> str:
    if any(result.failure for result in found):
        return "violated"
    return "holds" if all(result.complete for result in found) else "unknown"


def _choices(replay: str) -> list[int]:
    try:
        return [int(choice) for choice in replay.split(",")]
    except ValueError:
        raise click.UsageError(f"--replay takes numbers like 0,2,0,1, not {replay!r}") from None


def imported(path: str) -> type[Dispatcher]:
    """Return the class of dispatchers that an option names."""
    module, _, name = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as wrong:  # whatever a module does when it is imported
        raise click.UsageError(f"there is no dispatcher {path!r}: {wrong!r}") from None
    if not (isinstance(found, type) and issubclass(found, Dispatcher)):
        raise click.UsageError(f"{path!r} is not a dispatcher class")
    return found


def _replay(scenario: str, mode: LoopMode, choices: list[int], make: type[Dispatcher], as_json: bool) -> int:
    try:
        failure = replay_schedule(scenario, mode, choices, make=make)
    except ValueError as wrong:
        raise click.UsageError(str(wrong)) from None
    verdict = "violated" if failure else "holds"
    if as_json:
        told: dict[str, Any] = {"verdict": verdict, "scenario": scenario, "mode": mode, "choices": choices}
        print_json({**told, **(failure_as_object(failure) if failure else {})})
        return EXIT_CODES[verdict]
    if failure:
        _print_failure(failure)
    out.print("verdict:", styled(verdict))
    return EXIT_CODES[verdict]


def as_object(found: list[Schedules], seconds: float) -> dict[str, Any]:
    """Return the results as the object that ``--json`` prints."""
    schedules, executed = _in_all(found)
    return {
        "verdict": _verdict(found),
        "seconds": round(seconds, 3),
        "schedules_per_second": round(schedules / seconds),
        "executed_per_second": round(executed / seconds),
        "scenarios": [
            {
                "scenario": result.scenario,
                "mode": result.mode,
                "schedules": result.schedules,
                "executed": result.executed,
                "outcomes": len(result.outcomes),
                "complete": result.complete,
                "seconds": round(result.seconds, 3),
                **(failure_as_object(result.failure) if result.failure else {}),
            }
            for result in found
        ],
    }


def _in_all(found: list[Schedules]) -> tuple[int, int]:
    """Return the number of schedules, and how many of them were executed, at least in part."""
    return sum(result.schedules for result in found), sum(result.executed for result in found)


def failure_as_object(failure: Failure) -> dict[str, Any]:
    """Return a failing schedule as part of the object that ``--json`` prints."""
    return {
        "property": failure.broken and str(failure.broken),
        "expected": failure.what,
        "deviations": failure.deviations,
        "counterexample": [step.said() for step in failure.steps],
        "replay": failure.replay,
    }


def _print_schedules(found: list[Schedules], seconds: float) -> None:
    for result in found:
        whole = "" if result.complete or result.failure else ", not all: the limit was reached"
        out.print(
            f"{result.scenario}, {result.mode} order: {counted(result.schedules, 'schedule')} in "
            f"{counted(result.executed, 'execution')}, {counted(len(result.outcomes), 'outcome')}, "
            f"{result.seconds:.1f} s{whole}"
        )
        if result.failure:
            _print_failure(result.failure)
    schedules, executed = _in_all(found)
    out.print(
        f"{counted(schedules, 'schedule')} in {seconds:.1f} s, {schedules / seconds:,.0f} a second; "
        f"{executed:,} of them executed, {executed / seconds:,.0f} a second",
    )
    out.print("verdict:", styled(_verdict(found)))


def _print_failure(failure: Failure) -> None:
    for line in failure.told():
        out.print(f"  {line}")
