"""``turngate explore``: explores every reachable state of the model within bounds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from turngate_model import DESIGNS, DURABLE_DESIGNS, EVERY_DESIGN, EVERY_MECHANISM, LINE_DESIGNS
from turngate_model.checker import Bounds, Exploration, Explorer, MemoryModel, SearchLimits, bounds_of
from turngate_model.checker.memory_model import WorldStep
from turngate_verify.cli.durable import (
    OPTIONS,
    durable_bounds,
    durable_object,
    durable_options,
    explore_durable,
    print_durable_exploration,
)
from turngate_verify.cli.found import found, reasons
from turngate_verify.cli.show import (
    EXIT_CODES,
    SECONDS,
    bold,
    err,
    out,
    print_counterexample,
    print_json,
    progress_of,
    stages,
    styled,
)
from turngate_verify.report.play import BOUNDS, MOST_CANCELS, MOST_PROMPTS, space, write_play
from turngate_verify.words import counted

_NOT_IN_PROCESSES = {
    "turns_limit": "limit on turns",
    "into": "prompts for one turn",
}
"""The options that the model of processes does not have, each with what it is about."""
_NOT_ON_THE_PAGE = (*_NOT_IN_PROCESSES, "holds", "moves")


@click.command()
@click.option("--prompts", default=3, show_default=True, help="Number of prompts, 1 to 8.")
@click.option("--cancels", default=2, show_default=True, help="Number of cancels, 0 to 16.")
@click.option("--sessions", default=2, show_default=True, help="Number of sessions, 1 to 3.")
@click.option("--turns-limit", type=int, metavar="N", help="Runner calls at once over all sessions, 1 to 3.")
@click.option("--holds", default=0, help="Holds and stops that may be issued, 0 to 16 (default: none).")
@click.option("--moves", default=0, help="Moves, edits and send-nows, 0 to 16 (default: none).")
@click.option("--into", is_flag=True, help="Include prompts that are for one turn alone.")
@click.option("--design", metavar="NAME", help="Explore a known-bad design instead ('list' names them).")
@click.option(
    "--symmetry/--no-symmetry", default=True, help="Leave out renamed copies of states (the default)."
)
@click.option(
    "--max-seconds", default=600.0, show_default=True, type=SECONDS, help="Give up after this many seconds."
)
@click.option(
    "--max-memory",
    default=2048,
    show_default=True,
    type=click.IntRange(1),
    metavar="MIB",
    help="Give up at this much memory.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--html",
    metavar="FILE",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write one page to play with instead: every state of one session, the sound mechanism and every "
    "known-bad design (by default with three prompts and one cancel).",
)
@durable_options
def explore(
    prompts: int,
    cancels: int,
    sessions: int,
    turns_limit: int | None,
    holds: int,
    moves: int,
    into: bool,
    design: str | None,
    symmetry: bool,
    max_seconds: float,
    max_memory: int,
    as_json: bool,
    html: Path | None,
    durable: bool,
    **processes: Any,
) -> int:
    """Explore the model exhaustively within bounds.

    With --durable, or with one of its designs ('--durable --design list' names them), explore the model of
    processes that share a ledger and may die: one session, by default with two prompts and one cancel.

    Exit code 0: every property holds; 1: one is violated, and the shortest
    counterexample is printed; 3: a limit was reached or something was never
    tested.
    """
    if design == "list":
        for known in (DURABLE_DESIGNS if durable else EVERY_DESIGN).values():
            out.print(f"{known.name:22} {known.flaw}")
        return 0
    if html:
        return _write_page(html, as_json or durable or design is not None)
    try:
        limits = SearchLimits(max_seconds, max_memory)
        if durable or design in DURABLE_DESIGNS:
            return _explore_processes(design, limits, as_json)
        _refuse(processes)
        bounds = Bounds(
            prompts, cancels, sessions, turns_limit=turns_limit, holds=holds, moves=moves, into=into
        )
        explorer = _explorer(bounds, design, symmetry, limits)
    except ValueError as wrong:
        raise click.UsageError(str(wrong)) from None
    with progress_of(design or "exploring") as progress:
        explorer.progress = progress
        result = explorer.run()
    if as_json:
        print_json(as_object(result))
    else:
        print_exploration(result)
    return EXIT_CODES[result.verdict]


def _asked(name: str) -> Any:
    """Return the value of an option if it was given, else None."""
    context = click.get_current_context()
    given = context.get_parameter_source(name) is not ParameterSource.DEFAULT
    return context.params[name] if given else None


def _write_page(path: Path, has_more: bool) -> int:
    """Write the page to play with."""
    if has_more or any(_asked(name) is not None for name in (*_NOT_ON_THE_PAGE, *OPTIONS, "on_death")):
        raise click.UsageError("--html goes only with --prompts and --cancels: the page has every design")
    if _asked("sessions") not in (None, 1):
        raise click.UsageError("the page has one session")
    asked = {name: value for name in ("prompts", "cancels") if (value := _asked(name)) is not None}
    try:
        bounds = replace(BOUNDS, **asked)
    except ValueError as wrong:
        raise click.UsageError(str(wrong)) from None
    if bounds.prompts > MOST_PROMPTS or bounds.cancels > MOST_CANCELS:
        raise click.UsageError(
            f"the page has room for at most {MOST_PROMPTS} prompts and {MOST_CANCELS} cancels"
        )
    with stages(1 + len(DESIGNS)) as begin:
        held = space(bounds, begin)
    options = "".join(f" --{name} {value}" for name, value in asked.items())
    write_play(held, f"turngate explore{options} --html {path.name}", path)
    size = path.stat().st_size / 1_000_000
    err.print(
        f"wrote {path}: {counted(held.states, 'state')}, {counted(held.transitions, 'step')}, {size:.1f} MB"
    )
    return 0


def _refuse(processes: dict[str, Any]) -> None:
    """Refuse bounds that only the model of processes has."""
    for name, value in processes.items():
        if value is not None:
            raise ValueError(f"--{name.replace('_', '-')} is for --durable")


def _explore_processes(design: str | None, limits: SearchLimits, as_json: bool) -> int:
    """Explore processes that share a ledger, within the bounds that were asked for."""
    if _asked("sessions") not in (None, 1):
        raise ValueError("the model of processes has one session")
    for name, said in _NOT_IN_PROCESSES.items():
        if _asked(name) is not None:
            raise ValueError(f"the model of processes has no {said}: leave --{name.replace('_', '-')} out")
    names = ("prompts", "cancels", "holds", "moves", "on_death", *OPTIONS)
    bounds = durable_bounds({name: _asked(name) for name in names})
    symmetry = click.get_current_context().params["symmetry"]
    result = explore_durable(bounds, design, limits, symmetry=symmetry)
    if as_json:
        print_json(durable_object(result))
    else:
        print_durable_exploration(result)
    return EXIT_CODES[result.verdict]


def _explorer(
    bounds: Bounds, design: str | None, symmetry: bool, limits: SearchLimits
) -> Explorer[Bounds, int, WorldStep]:
    if design is None:
        return Explorer(MemoryModel(bounds, symmetry=symmetry), limits=limits)
    known = EVERY_DESIGN.get(design)
    if known is None:
        there_are = ", ".join([*EVERY_DESIGN, *DURABLE_DESIGNS])
        raise ValueError(f"there is no design {design!r}; there are {there_are}")
    if bounds.turns_limit is not None:
        raise ValueError("the known-bad designs have no limit on turns: leave --turns-limit or --design out")
    least = bounds_of(design)
    if design in LINE_DESIGNS:
        names = ("prompts", "cancels", "sessions", "holds", "moves", "into")
        asked = {name: value for name in names if (value := _asked(name)) is not None}
        bounds = replace(least, **asked)
    bounds = replace(bounds, without=least.without)
    model = MemoryModel(bounds, EVERY_MECHANISM[known.name], name=known.name, symmetry=symmetry)
    return Explorer(model, claimed=known.breaks, limits=limits)


def as_object(result: Exploration[Bounds]) -> dict[str, Any]:
    """Return an exploration as the object that ``--json`` prints."""
    return {
        "verdict": result.verdict,
        "design": result.design,
        "prompts": result.bounds.prompts,
        "cancels": result.bounds.cancels,
        "sessions": result.bounds.sessions,
        **({} if result.bounds.turns_limit is None else {"turns_limit": result.bounds.turns_limit}),
        **{name: value for name in ("holds", "moves", "into") if (value := getattr(result.bounds, name))},
        **found(result),
    }


def print_exploration(result: Exploration[Bounds]) -> None:
    """Print an exploration for people."""
    if result.design:
        out.print(bold(result.design), f": {EVERY_DESIGN[result.design].flaw}", sep="")
    bounds = result.bounds
    limited = "" if bounds.turns_limit is None else f", turns limit {bounds.turns_limit}"
    held = f", {counted(bounds.holds, 'hold')}" if bounds.holds else ""
    moved = f", {counted(bounds.moves, 'move')}" if bounds.moves else ""
    out.print(
        f"{counted(bounds.prompts, 'prompt')}, {counted(bounds.cancels, 'cancel')}, "
        f"{counted(bounds.sessions, 'session')}{limited}{held}{moved}{', into' if bounds.into else ''}: "
        f"{counted(result.states, 'state')}, {counted(result.transitions, 'transition')}, "
        f"depth {result.depth}, {result.seconds:.1f} s"
    )
    if bounds.without:
        out.print(f"without {', '.join(sorted(bounds.without))}, which the design does not have")
    if result.counterexample:
        print_counterexample(result.counterexample)
        others = {
            p: len(e.steps) for p, e in result.counterexamples.items() if p != result.counterexample.property
        }
        if others:
            out.print(
                "  on the way: "
                + ", ".join(f"{name} in {counted(steps, 'step')}" for name, steps in others.items())
            )
    for reason in reasons(result) if result.verdict == "unknown" else ():
        out.print(f"  {reason}")
    verdict = result.verdict
    if result.design:
        verdict = {"violated": "refuted"}.get(verdict, verdict)
    steps = f" in {counted(len(result.counterexample.steps), 'step')}" if result.counterexample else ""
    out.print("verdict: ", styled(verdict), steps, sep="")
