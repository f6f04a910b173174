"""``turngate trace``: checks a recorded history."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import click

from turngate_verify.cli.show import EXIT_CODES, bold, err, out, print_but, print_json, styled
from turngate_verify.trace import NEVER_SHOWN, BadRecording, Checked, check
from turngate_verify.trace_history import history_before
from turngate_verify.words import counted


@click.command()
@click.argument("file", type=click.File("rb"))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--report",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write one self-contained page that steps through the violation to DIR/index.html.",
)
def trace(file: BinaryIO, as_json: bool, report: Path | None) -> int:
    """Check a recorded history: JSON lines in FILE, '-' for standard input.

    Exit code 0: nothing is broken; 1: a property is, and the line is named;
    2: the recording itself is broken; 3: it shows nothing.
    """
    if report:
        report.mkdir(parents=True, exist_ok=True)
    lines: Iterable[bytes] = [*file] if report else file
    try:
        checked = check(lines)
    except BadRecording as wrong:
        raise click.ClickException(f"{file.name}: {wrong}") from None
    if as_json:
        print_json(as_object(checked))
    else:
        print_checked(checked)
    if report:
        from turngate_verify.report.pages import write_trace  # noqa: PLC0415 - a check without it needs no page

        history = history_before([*lines], checked.offence.line) if checked.offence else []
        err.print(f"wrote {write_trace(checked, history, file.name, report)}")
    return EXIT_CODES[checked.verdict]


def as_object(checked: Checked) -> dict[str, Any]:
    """Return the result as the object that ``--json`` prints."""
    told: dict[str, Any] = {"verdict": checked.verdict, "events": checked.events, "runs": checked.runs}
    if checked.offence:
        told["property"] = str(checked.offence.property)
        told["line"] = checked.offence.line
        told["expected"] = checked.offence.what
    told["unchecked"] = checked.unchecked
    told["never_shown"] = [str(each) for each in NEVER_SHOWN]
    return told


def print_checked(checked: Checked) -> None:
    """Print the result for people."""
    extent = "a whole recording" if checked.whole else "a partial recording"
    extent = "up to the first violation" if checked.offence else extent
    out.print(f"{counted(checked.events, 'event')}, {counted(checked.runs, 'run')}, {extent}")
    if checked.offence:
        line, broken, what = checked.offence
        out.print(f"line {line}: ", bold(broken), f": {broken.sentence}", sep="")
        print_but(what)
    for each in checked.unchecked:
        out.print(f"not checked: {each}")
    out.print(f"never shown by a recording: {', '.join(NEVER_SHOWN)}")
    out.print("verdict:", styled(checked.verdict))
