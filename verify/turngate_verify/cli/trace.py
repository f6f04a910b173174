"""``turngate trace``: checks a recorded history."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import click

from turngate_verify.cli import interval_report
from turngate_verify.cli.pipeline import output_options, outputs_wanted, write_outputs
from turngate_verify.cli.pipeline import told as requirements_told
from turngate_verify.cli.show import EXIT_CODES, bold, err, out, print_but, print_json, styled
from turngate_verify.intervals import BadHistory, judge_files
from turngate_verify.pipeline.situations import Situations, overheard
from turngate_verify.pipeline.telling import of_intervals, of_recording, requirements_of_recording
from turngate_verify.trace import NEVER_SHOWN, Checked, check
from turngate_verify.trace_history import history_before
from turngate_verify.trace_lines import BadRecording
from turngate_verify.words import counted


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.File("rb"))
@click.option(
    "--intervals",
    is_flag=True,
    help="Judge lines with call and return times, from several files and in any order.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--report",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write one self-contained page that steps through the violation to DIR/index.html.",
)
@output_options
def trace(
    files: tuple[BinaryIO, ...],
    intervals: bool,
    as_json: bool,
    report: Path | None,
    junit: Path | None,
    markdown: Path | None,
) -> int:
    """Check a recorded history: JSON lines in FILE, '-' for standard input.

    With --intervals, lines say when a call began and when it returned, and the
    history holds if some order within these intervals breaks nothing.

    Exit code 0: nothing is broken; 1: a property is, and the line is named;
    2: the recording itself is broken; 3: it shows nothing.
    """
    if intervals:
        if report:
            raise click.UsageError("--report draws one recording; it cannot be used with --intervals")
        return _trace_intervals(files, junit, markdown, as_json=as_json)
    if len(files) != 1:
        raise click.UsageError("give one FILE; several can be judged together with --intervals")
    file = files[0]
    if report:
        report.mkdir(parents=True, exist_ok=True)
    lines: Iterable[bytes] = [*file] if report else file
    situations = Situations()
    wanted = outputs_wanted(junit, markdown)
    try:
        # Reading every line twice takes time, so it is done only for what shows the requirements.
        checked = check(overheard(lines, situations) if as_json or wanted else lines)
    except BadRecording as wrong:
        raise click.ClickException(f"{file.name}: {wrong}") from None
    if as_json:
        print_json(as_object(checked, situations))
    else:
        print_checked(checked)
    if report:
        from turngate_verify.report.pages import write_trace  # noqa: PLC0415 - a check without it needs no page

        history = history_before([*lines], checked.offence.line) if checked.offence else []
        err.print(f"wrote {write_trace(checked, history, file.name, report)}")
    if wanted:
        write_outputs(of_recording(checked, situations, file.name), junit, markdown)
    return EXIT_CODES[checked.verdict]


def _trace_intervals(
    files: tuple[BinaryIO, ...], junit: Path | None, markdown: Path | None, *, as_json: bool
) -> int:
    names = [file.name if len(files) > 1 else "" for file in files]
    try:
        judged = judge_files(zip(names, files, strict=True))
    except BadHistory as wrong:
        where = f"{files[0].name}: " if len(files) == 1 else ""
        raise click.ClickException(f"{where}{wrong}") from None
    if as_json:
        print_json(interval_report.as_object(judged))
    else:
        interval_report.print_judged(judged)
    write_outputs(of_intervals(judged, ", ".join(file.name for file in files)), junit, markdown)
    return EXIT_CODES[judged.verdict]


def as_object(checked: Checked, situations: Situations) -> dict[str, Any]:
    """Return the result as the object that ``--json`` prints."""
    told: dict[str, Any] = {"verdict": checked.verdict, "events": checked.events, "runs": checked.runs}
    if checked.offence:
        told["property"] = str(checked.offence.property)
        told["line"] = checked.offence.line
        told["expected"] = checked.offence.what
    told["unchecked"] = checked.unchecked
    told["never_shown"] = [str(each) for each in NEVER_SHOWN]
    told["requirements"] = requirements_told(requirements_of_recording(checked, situations))
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
