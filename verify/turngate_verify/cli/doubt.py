"""``turngate conform --doubt``: says which wrong behaviours the kit would find with this adapter."""

from __future__ import annotations

from typing import Any

import click
from rich.table import Table

from turngate_verify.cli.show import EXIT_CODES, out, print_json, stages, styled
from turngate_verify.conform import Effort, SubjectFactory
from turngate_verify.conform.doubting import Doubts, doubt
from turngate_verify.conform.flawed import FLAWS


def doubted(
    make: SubjectFactory, name: str, effort: Effort, *, as_json: bool, given: tuple[object, ...]
) -> int:
    """Doubt the kit with this subject, print what it finds, and return the exit code."""
    if any(each is not None for each in given):
        raise click.UsageError("--doubt cannot be used with --replay, --report, --junit or --markdown")
    with stages(1 + len(FLAWS)) as begin:
        result = doubt(make, name, effort=effort, begin=lambda what: begin(f"playing programs: {what}"))
    if as_json:
        print_json(as_object(result))
    else:
        print_doubts(result)
    return EXIT_CODES[result.verdict]


def as_object(result: Doubts) -> dict[str, Any]:
    """Return the result as the object that ``--json`` prints."""
    return {
        "verdict": result.verdict,
        "summary": result.summary,
        "subject": result.plain.subject,
        "features": result.plain.features.names,
        "as_it_is": result.plain.summary,
        "doubts": [
            {
                "name": each.name,
                "behaviour": each.sentence,
                "noticed": each.noticed,
                **({"property": str(each.property), "program": each.program} if each.property else {}),
                **({"why": each.why} if each.why else {}),
            }
            for each in result.doubts
        ],
    }


def print_doubts(result: Doubts) -> None:
    """Print the result for people."""
    table = Table("wrong behaviour", "", "found by, or why not", box=None, pad_edge=False)
    styles = {"found": "holds", "missed": "violated", "not tried": "unknown"}
    for each in result.doubts:
        told = f"{each.property}: {each.program}" if each.property else each.why
        noticed = styled(styles[each.noticed])
        noticed.plain = each.noticed
        table.add_row(each.sentence, noticed, told)
    out.print(table, "", sep="\n")
    out.print(f"as it is: {result.plain.summary}")
    out.print(f"doubt: {result.summary}")
    if result.plain.failed:
        out.print(f"the subject could not be judged to the end: {result.plain.failed.what}", style="red")
