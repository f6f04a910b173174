"""The model of processes that share a ledger, for ``turngate explore`` and ``turngate verify``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import click

from turngate_model import DURABLE_DESIGNS
from turngate_model.checker import DurableBounds, Exploration, Explorer, Progress, SearchLimits
from turngate_model.durable import DURABLE_MECHANISMS, JUDGED, DurableMechanism, DurableModel, refute_durable
from turngate_model.properties import AnyProperty
from turngate_verify.cli.found import found, reasons
from turngate_verify.cli.show import bold, out, print_counterexample, progress_of, styled
from turngate_verify.words import counted

OPTIONS = {
    "processes": "Number of processes, 1 to 4.",
    "crashes": "Deaths of processes; the death of all at once counts as one.",
    "expiries": "Processes that may be given up for dead while they live.",
    "losses": "Answers of the ledger that may be lost.",
    "loads": "Loads after which another process may save first.",
}
"""The bounds that only this model has."""


def durable_options(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the options of this model."""
    for name, said in reversed(OPTIONS.items()):
        default = getattr(DurableBounds(), name)
        command = click.option(f"--{name}", type=int, help=f"{said} [default: {default}; with --durable]")(
            command
        )
    command = click.option(
        "--on-death",
        type=click.Choice(["fail", "retry"]),
        help="What happens to a turn whose process died. [default: fail; with --durable]",
    )(command)
    return click.option(
        "--durable", is_flag=True, help="Explore processes that share a ledger, and may die, instead."
    )(command)


def durable_bounds(asked: dict[str, Any]) -> DurableBounds:
    """Return the bounds that were asked for; the others have their defaults."""
    return DurableBounds(**{name: value for name, value in asked.items() if value is not None})


def explore_durable(
    bounds: DurableBounds, design: str | None, limits: SearchLimits, *, symmetry: bool
) -> Exploration[DurableBounds]:
    """Explore the durable mechanism, or one of its known-bad designs."""
    if design is not None and design not in DURABLE_DESIGNS:
        there_are = ", ".join(DURABLE_DESIGNS)
        raise ValueError(f"there is no design {design!r} with processes; there are {there_are}")
    known = DURABLE_DESIGNS[design] if design else None
    mechanism, claimed = (DURABLE_MECHANISMS[known.name], known.breaks) if known else (DurableMechanism, ())
    model = DurableModel(bounds, mechanism, name=design, symmetry=symmetry)
    with progress_of(design or "exploring processes") as progress:
        return Explorer(model, claimed=claimed, limits=limits, progress=progress).run()


def durable_object(result: Exploration[DurableBounds]) -> dict[str, Any]:
    """Return an exploration as the object that ``--json`` prints."""
    return {
        "verdict": result.verdict,
        "design": result.design,
        "prompts": result.bounds.prompts,
        "cancels": result.bounds.cancels,
        "sessions": 1,
        **{name: getattr(result.bounds, name) for name in OPTIONS},
        **{name: value for name in ("holds", "moves") if (value := getattr(result.bounds, name))},
        "on_death": result.bounds.on_death,
        **found(result),
    }


def print_durable_exploration(result: Exploration[DurableBounds]) -> None:
    """Print an exploration for people."""
    if result.design:
        out.print(bold(result.design), f": {DURABLE_DESIGNS[result.design].flaw}", sep="")
    bounds = result.bounds
    held = f"{counted(bounds.holds, 'hold')}, " if bounds.holds else ""
    moved = f"{counted(bounds.moves, 'move')}, " if bounds.moves else ""
    out.print(
        f"{counted(bounds.processes, 'process', 'processes')}, {counted(bounds.prompts, 'prompt')}, "
        f"{counted(bounds.cancels, 'cancel')}, {counted(bounds.crashes, 'crash', 'crashes')}, "
        f"{counted(bounds.expiries, 'expiry', 'expiries')}, {counted(bounds.losses, 'loss', 'losses')}, "
        f"{counted(bounds.loads, 'load')}, {held}{moved}on death {bounds.on_death}: "
        f"{counted(result.states, 'state')}, {counted(result.transitions, 'transition')}, "
        f"depth {result.depth}, {result.seconds:.1f} s"
    )
    example = result.counterexample
    if example:
        print_counterexample(example)
        others = [
            f"{p} in {counted(len(e.steps), 'step')}"
            for p, e in result.counterexamples.items()
            if e != example
        ]
        if others:
            out.print("  on the way: " + ", ".join(others))
    for reason in reasons(result) if result.verdict == "unknown" else ():
        out.print(f"  {reason}")
    refuted = result.design and result.verdict == "violated"
    steps = f" in {counted(len(example.steps), 'step')}" if example else ""
    out.print("verdict: ", styled("refuted" if refuted else result.verdict), steps, sep="")


# For ``turngate verify``.


_held: dict[DurableBounds, Exploration[DurableBounds]] = {}


def hold(
    bounds: DurableBounds, progress: Callable[[Progress], None] | None = None
) -> Exploration[DurableBounds]:
    """Explore the durable mechanism, once per process."""
    if bounds not in _held:
        _held[bounds] = Explorer(DurableModel(bounds), progress=progress).run()
    return _held[bounds]


@cache
def refuted(name: str) -> Exploration[DurableBounds]:
    """Refute a known-bad design, once per process."""
    return refute_durable(DURABLE_DESIGNS[name])


@dataclass
class DurableVerification:
    """The result of checking the model of processes."""

    models: list[Exploration[DurableBounds]] = field(default_factory=list)
    designs: dict[str, Exploration[DurableBounds]] = field(default_factory=dict)

    def verdict_of(self, each: AnyProperty) -> str:
        """Return one of holds, violated and unknown; what was never checked is unknown."""
        if any(each in result.counterexamples for result in self.models):
            return "violated"
        unsure = any(result.gave_up or result.missed or each in result.unexercised for result in self.models)
        return "unknown" if unsure or not self.models else "holds"

    @property
    def verdict(self) -> str:
        """The verdict on the model and its designs."""
        verdicts = {self.verdict_of(each) for each in JUDGED}
        if "violated" in verdicts or any(not result.counterexample for result in self.designs.values()):
            return "violated"
        return "unknown" if "unknown" in verdicts or set(self.designs) != set(DURABLE_DESIGNS) else "holds"

    def as_object(self) -> dict[str, Any]:
        """Return the result as part of the object that ``--json`` prints."""
        return {"verdict": self.verdict, "models": [durable_object(result) for result in self.models]}

    def show_problems(self) -> None:
        """Print for people what is wrong with the model."""
        for result in self.models:
            for reason in reasons(result) if result.verdict == "unknown" else ():
                out.print(f"on death {result.bounds.on_death}: {reason}")
            for example in result.counterexamples.values():
                print_counterexample(example)
