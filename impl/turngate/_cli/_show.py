"""What the commands print, and the exit codes that go with a verdict."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from turngate_model import Counterexample
from turngate_model import Progress as Explored

EXIT_CODES = {"holds": 0, "violated": 1, "unknown": 3}
STYLES = {"holds": "green", "violated": "red", "unknown": "yellow", "refuted": "green"}

out = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 160)
err = Console(stderr=True, highlight=False)


def print_json(result: dict[str, Any]) -> None:
    """Print one object, and nothing else, on standard output."""
    click.echo(json.dumps(result, indent=2, ensure_ascii=False))


def styled(verdict: str) -> str:
    """Return a verdict with its colour."""
    return f"[bold {STYLES[verdict]}]{verdict}[/]"


def print_counterexample(example: Counterexample) -> None:
    """Print who did what, in what order, and what should have been."""
    out.print(f"[bold]{example.property}[/]: {example.property.sentence}")
    for number, step in enumerate(example.told(), 1):
        out.print(f"  {number:2}  {step}", markup=False)
    out.print(f"  [red]but[/] {example.what}")


@contextlib.contextmanager
def progress_of(title: str) -> Iterator[Callable[[Explored], None] | None]:
    """Show states, frontier and rate on a terminal; be quiet in a pipe."""
    if not err.is_terminal:
        yield None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(title)

        def show(now: Explored) -> None:
            rate = now.states / now.seconds if now.seconds else 0
            told = (
                f"{now.states:,} states, frontier {now.frontier:,}, depth {now.depth}, {rate:,.0f} a second"
            )
            bar.update(task, description=f"{title}: {told}")

        yield show


@contextlib.contextmanager
def stages(total: int) -> Iterator[Callable[[str], None]]:
    """Show which of so many stages is running, on a terminal; be quiet in a pipe."""
    if not err.is_terminal:
        yield lambda _name: None
        return
    columns = (
        BarColumn(bar_width=24),
        TextColumn("{task.completed}/{task.total} {task.description}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task("", total=total)
        begun = 0

        def begin(name: str) -> None:
            nonlocal begun
            bar.update(task, description=name, completed=begun)
            begun += 1

        yield begin
