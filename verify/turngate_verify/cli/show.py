"""What the commands print, and the exit codes that go with a verdict."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import click
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from turngate.cli.endings import stop_if_interrupted
from turngate.cli.terminal import err, out, print_json
from turngate.cli.visible import visible
from turngate_model.checker import Counterexample
from turngate_model.checker import Progress as Explored
from turngate_verify.words import counted

__all__ = [
    "EXIT_CODES",
    "SECONDS",
    "DriverLine",
    "bold",
    "driver",
    "err",
    "out",
    "print_but",
    "print_counterexample",
    "print_json",
    "progress_of",
    "stages",
    "styled",
]


class _Seconds(click.FloatRange):
    """A number of seconds above zero. Click would let NaN pass, which is in no range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = float(super().convert(value, param, ctx))
        if math.isnan(seconds):
            self.fail(f"{value} is not a number of seconds; give one above zero.", param, ctx)
        return seconds


SECONDS = _Seconds(0, 10_000_000, min_open=True)
EXIT_CODES = {"holds": 0, "violated": 1, "unknown": 3, "flaky": 3}
STYLES = {
    "holds": "green",
    "violated": "red",
    "unknown": "yellow",
    "flaky": "magenta",
    "refuted": "green",
    "not refuted": "red",
}


def styled(verdict: str) -> Text:
    """Return a verdict with its colour."""
    return Text(verdict, style=f"bold {STYLES[verdict]}")


def bold(name: str) -> Text:
    """Return a name in bold."""
    return Text(name, style="bold")


def print_but(what: str) -> None:
    """Print what went wrong, and what should have happened."""
    out.print("  ", Text("but", style="red"), f" {what}", sep="")


def print_counterexample(example: Counterexample) -> None:
    """Print the steps in order, and what should have happened instead."""
    out.print(bold(example.property), f": {example.property.sentence}", sep="")
    for number, step in enumerate(example.told(), 1):
        out.print(f"  {number:2}  {step}")
    print_but(example.what)


@contextlib.contextmanager
def progress_of(title: str) -> Iterator[Callable[[Explored], None] | None]:
    """Show states, frontier and rate on a terminal; in a pipe show nothing."""
    if not err.is_terminal:
        yield None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(visible(title))

        def show(now: Explored) -> None:
            rate = now.states / now.seconds if now.seconds else 0
            told = f"{counted(now.states, 'state')}, frontier {now.frontier:,}, depth {now.depth}"
            told += f", {rate:,.0f} a second"
            bar.update(task, description=visible(f"{title}: {told}"))

        yield show


@dataclass
class DriverLine:
    """The progress of a driver, in one line. ``counts`` may be called at any time."""

    name: str
    counts: Callable[[], str] = str
    seconds: float = 0.0

    def told(self, width: int = 100) -> str:
        """Return the line, with the seconds in a column where so wide a terminal has room for that."""
        room = min(72, width - 27)
        return f"{self.name:<16}  {self.counts():<{max(room, 1)}}  {self.seconds:5.1f} s"


class _Live(ProgressColumn):
    """The line of a driver while it is at work."""

    def __init__(self, line: DriverLine) -> None:
        super().__init__()
        self._line = line

    def render(self, task: Task) -> Text:
        return Text(visible(f"{self._line.name:<16}  {self._line.counts()}"))


@contextlib.contextmanager
def driver(name: str, *, quiet: bool = False) -> Iterator[DriverLine]:
    """Give a driver its line: live on a terminal; printed when the driver is done, in a pipe too.

    With ``quiet`` nothing is printed when it is done.
    """
    stop_if_interrupted()
    line, began = DriverLine(name), time.monotonic()
    if err.is_terminal:
        with Progress(SpinnerColumn(), _Live(line), TimeElapsedColumn(), console=err, transient=True) as bar:
            bar.add_task(name, total=None)
            yield line
    else:
        yield line
    line.seconds = time.monotonic() - began
    if not quiet:
        out.print(line.told(out.width))
        out.file.flush()


@contextlib.contextmanager
def stages(total: int) -> Iterator[Callable[[str], None]]:
    """Show on a terminal which stage is running; show nothing in a pipe."""
    if not err.is_terminal:
        yield lambda _name: stop_if_interrupted()
        return
    columns = (
        BarColumn(bar_width=24),
        TextColumn("{task.completed}/{task.total} {task.description}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task("", total=total)
        begun = 0

        def begin(name: str) -> None:
            nonlocal begun
            stop_if_interrupted()
            bar.update(task, description=visible(name), completed=begun)
            begun += 1

        yield begin
