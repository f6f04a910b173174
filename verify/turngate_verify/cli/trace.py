"""``turngate trace``: checks a recorded history."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import click

from turngate_verify.cli import interval_report
from turngate_verify.cli.pipeline import output_options, outputs_wanted, write_outputs
from turngate_verify.cli.pipeline import told as requirements_told
from turngate_verify.cli.show import EXIT_CODES, bold, err, out, print_but, print_json, styled
from turngate_verify.intervals import BadHistory, judge_files
from turngate_verify.monitor.judge import REMEMBERED
from turngate_verify.pipeline.situations import Situations, overheard
from turngate_verify.pipeline.telling import of_intervals, of_recording, requirements_of_recording
from turngate_verify.trace import NEVER_SHOWN, Checked, check
from turngate_verify.trace_history import history_before
from turngate_verify.trace_lines import BadRecording
from turngate_verify.words import counted


@click.command()
@click.argument("names", metavar="FILE...", nargs=-1, required=True, type=click.Path(allow_dash=True))
@click.option(
    "--intervals",
    is_flag=True,
    help="Judge lines with call and return times, from several files and in any order.",
)
@click.option("--follow", is_flag=True, help="Judge lines as they are appended, until Ctrl-C or SIGTERM.")
@click.option("--from-end", is_flag=True, help="With --follow: do not read what is in the file already.")
@click.option(
    "--window",
    metavar="N",
    type=click.IntRange(1, 1_000_000),
    help="With --follow: lines may be up to N lines late; --order-by says which number orders them.",
)
@click.option("--order-by", metavar="KEY", help="The key of that number in each line.")
@click.option(
    "--remember",
    metavar="N",
    type=click.IntRange(1),
    default=REMEMBERED,
    show_default=True,
    help="With --follow: remember at least N complete runs.",
)
@click.option(
    "--metrics-file",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="With --follow: keep Prometheus text in FILE, at most a second old.",
)
@click.option(
    "--metrics-port",
    metavar="N",
    type=click.IntRange(0, 65_535),
    help="With --follow: serve it at http://127.0.0.1:N/metrics.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object; with --follow, one per violation."
)
@click.option(
    "--report",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write one self-contained page that steps through the violation to DIR/index.html.",
)
@output_options
def trace(
    names: tuple[str, ...],
    intervals: bool,
    follow: bool,
    from_end: bool,
    window: int | None,
    order_by: str | None,
    remember: int,
    metrics_file: Path | None,
    metrics_port: int | None,
    as_json: bool,
    report: Path | None,
    junit: Path | None,
    markdown: Path | None,
) -> int:
    """Check a recorded history: JSON lines in FILE, '-' for standard input.

    With --intervals, lines say when a call began and when it returned, and the
    history holds if some order within these intervals breaks nothing.

    With --follow, FILE is judged while it is being written, in memory bounded
    by what is in flight. Each violation is printed at once, and judging goes on.

    Exit code 0: no property is violated; 1: one is, and the line is named; 2: the recording itself is
    invalid; 3: it shows nothing.
    """
    only_following = {
        "--from-end": from_end,
        "--window": window is not None,
        "--order-by": order_by is not None,
        "--metrics-file": metrics_file is not None,
        "--metrics-port": metrics_port is not None,
    }
    if follow:
        if intervals or report or junit or markdown:
            raise click.UsageError("--follow excludes --intervals, --report, --junit and --markdown")
        if len(names) != 1:
            raise click.UsageError("give one FILE to --follow")
        if (window is None) is not (order_by is None):
            raise click.UsageError(
                "--window and --order-by go together: without a number in each line, "
                "the order of late lines is not known"
            )
        from turngate_verify.cli.follow import trace_follow  # noqa: PLC0415 - only this form needs it

        return trace_follow(
            names[0],
            as_json=as_json,
            from_end=from_end,
            window=None if window is None or order_by is None else (window, order_by),
            remember=remember,
            metrics_file=metrics_file,
            metrics_port=metrics_port,
        )
    for option in (name for name, given in only_following.items() if given):
        raise click.UsageError(f"{option} is for --follow only")
    files = _opened(names)
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


def _opened(names: tuple[str, ...]) -> tuple[IO[bytes], ...]:
    """Open the files, which are closed when the command is over."""
    context = click.get_current_context()
    argument = next(each for each in context.command.params if each.name == "names")
    return tuple(click.File("rb").convert(name, argument, context) for name in names)


def _trace_intervals(
    files: tuple[IO[bytes], ...], junit: Path | None, markdown: Path | None, *, as_json: bool
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
