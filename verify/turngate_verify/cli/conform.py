"""``turngate conform``: checks another dispatcher with the conformance kit."""

from __future__ import annotations

import os
import shlex
import threading
from pathlib import Path
from typing import Any, cast

import click
from click.core import ParameterSource
from rich.table import Table
from rich.text import Text

from turngate.cli import entry
from turngate.cli.targets import loaded
from turngate_model.checker import Counterexample
from turngate_model.properties import AnyProperty
from turngate_verify.acp import BadAgent, Setting, check_agent
from turngate_verify.cli.doubt import doubted
from turngate_verify.cli.pipeline import output_options, write_outputs
from turngate_verify.cli.pipeline import told as requirements_told
from turngate_verify.cli.show import (
    EXIT_CODES,
    SECONDS,
    err,
    out,
    print_counterexample,
    print_json,
    stages,
    styled,
)
from turngate_verify.conform import (
    BadProgram,
    Command,
    Conformance,
    Effort,
    SubjectFactory,
    SubjectFailed,
    Timing,
    check,
    parsed,
    replay,
)
from turngate_verify.pipeline.telling import of_conformance, requirements_of
from turngate_verify.report.pages import write_conformance
from turngate_verify.words import counted

_COMMAND = "turngate.conform.command"
_ENDS = 5.0
"""How many seconds the threads of a subject have to end."""
_ACP_EFFORT = Effort(programs=60, examples=6, seconds=600.0)
"""The effort for an agent unless the options say otherwise: each program takes about a second."""


class _AfterTwoDashes(click.Command):
    """Keeps the arguments after ``--`` apart: they are the command of a subject, not a target."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            args, ctx.meta[_COMMAND] = args[:at], args[at + 1 :]
        return super().parse_args(ctx, args)


@click.command(
    cls=_AfterTwoDashes, options_metavar="[OPTIONS]", epilog="Give either TARGET or '-- COMMAND...'."
)
@click.argument("target", required=False)
@click.option(
    "--programs",
    default=Effort().programs,
    show_default=True,
    type=click.IntRange(0),
    help="Short programs to play at most, in one session and again in two; a slow subject plays fewer.",
)
@click.option(
    "--examples",
    default=Effort().examples,
    show_default=True,
    type=click.IntRange(0),
    help="Random programs to play at most; a slow subject plays fewer.",
)
@click.option(
    "--max-seconds",
    default=Effort().seconds,
    show_default=True,
    type=SECONDS,
    help="Give up after this many seconds.",
)
@click.option("--seed", default=0, show_default=True, help="Which random programs.")
@click.option(
    "--timeout",
    default=10.0,
    show_default=True,
    type=SECONDS,
    help="Seconds for a command to answer one line.",
)
@click.option(
    "--grace",
    default=Timing().grace,
    show_default=True,
    type=SECONDS,
    help="Seconds for a command in real time to deliver what it owes.",
)
@click.option(
    "--workers",
    default=1,
    show_default=True,
    type=click.IntRange(1, 64),
    help="Instances of the subject that play at the same time.",
)
@click.option(
    "--mid-flight",
    default=Effort().mid_flight,
    show_default=True,
    type=click.IntRange(0),
    metavar="N",
    help="Longest program whose operations also arrive between two callbacks of an asyncio subject.",
)
@click.option(
    "--require-races",
    is_flag=True,
    help="Exit with 3 unless races were tried: operations called before the one ahead was at rest.",
)
@click.option(
    "--doubt",
    is_flag=True,
    help="Wrap the subject in each wrong behaviour that the port can show; say which are found.",
)
@click.option("--acp", is_flag=True, help="The command after '--' is an agent of the Agent Client Protocol.")
@click.option(
    "--stub-port",
    default=0,
    type=click.IntRange(0, 65535),
    metavar="N",
    help="With --acp: the port of the stub model on 127.0.0.1; any that is free if not given.",
)
@click.option(
    "--no-stub", is_flag=True, help="With --acp: let the agent ask its own model; only the wire is judged."
)
@click.option(
    "--home",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="With --acp: settings to copy into the agent's temporary home; $STUB in them is the stub's address.",
)
@click.option("--replay", "program", metavar="PROGRAM", help="Play one program and print what happens.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--report",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write one self-contained page with verdicts and pictures to DIR/index.html.",
)
@output_options
@click.pass_context
def conform(
    context: click.Context,
    target: str | None,
    programs: int,
    examples: int,
    max_seconds: float,
    seed: int,
    timeout: float,
    grace: float,
    workers: int,
    mid_flight: int,
    require_races: bool,
    doubt: bool,
    acp: bool,
    stub_port: int,
    no_stub: bool,
    home: Path | None,
    program: str | None,
    as_json: bool,
    report: Path | None,
    junit: Path | None,
    markdown: Path | None,
) -> int:
    """Check another dispatcher behind the port: TARGET is module:Class or path.py:Class.

    Exit code 0: everything that the subject can show holds; 1: a property is violated, and the shortest
    program found is printed; 3: something was never tested, or was broken once but not when it was replayed,
    or the subject failed before the end.

    The kit also calls operations between two callbacks of an asyncio subject; other subjects need the feature
    bursts for such races. The first line of the verdict says whether races were tried, and how far. In
    PROGRAM, a comma waits until the subject is at rest; 'finish a +2 cancel' calls cancel two callbacks after
    the finish.

    With --doubt, exit code 0 means that the kit found every wrong behaviour that the adapter's features can
    show, 3 that it missed one, 1 that the subject itself breaks something. The search for each takes up to
    --max-seconds.

    With --acp, the command is any agent of the Agent Client Protocol, on its standard streams. It gets a home
    directory of its own and a stub model in place of every provider, so it needs no adapter and no key.
    """
    command: list[str] | None = context.meta.get(_COMMAND)
    if (target is None) == (not command):
        raise click.UsageError("give either a target, module:Class, or '--' and a command")
    if report:
        report.mkdir(parents=True, exist_ok=True)
    name = target or shlex.join(command or ())
    if not acp and (stub_port or no_stub or home):
        raise click.UsageError("--stub-port, --no-stub and --home go with --acp")
    if acp and (target or workers > 1):
        raise click.UsageError("--acp takes '-- COMMAND...', and one worker")
    if acp and doubt:
        raise click.UsageError("--doubt wraps an adapter, so it does not go with --acp")
    if no_stub and (stub_port or home):
        raise click.UsageError("--stub-port and --home prepare a stub, so they do not go with --no-stub")
    timing = Timing(grace=grace)
    make: SubjectFactory = (
        Command(*(command or ()), timeout=timeout, timing=timing) if target is None else load(target)
    )
    effort = Effort(
        programs=programs,
        examples=examples,
        seed=seed,
        seconds=max_seconds,
        workers=workers,
        require_races=require_races,
        mid_flight=mid_flight,
    )
    if doubt:
        return doubted(make, name, effort, as_json=as_json, given=(program, report, junit, markdown))
    with stages(1) as begin:
        begin(f"playing programs on {name}")
        if acp:
            given = _is_given(context, "grace")
            effort = effort._replace(
                programs=programs if _is_given(context, "programs") else _ACP_EFFORT.programs,
                examples=examples if _is_given(context, "examples") else _ACP_EFFORT.examples,
                seconds=max_seconds if _is_given(context, "max_seconds") else _ACP_EFFORT.seconds,
            )
            setting = Setting(
                tuple(command or ()),
                stub_port,
                not no_stub,
                home,
                starts=6 * timeout,
                grace=grace if given else Setting(()).grace,
            )
            result = _checked_agent(setting, name, program, effort)
        elif program is None:
            result = check(make, name, effort=effort)
        else:
            result = _replayed(make, name, program, Effort(require_races=require_races))
    if as_json:
        print_json(as_object(result))
    else:
        print_conformance(result)
    if report:
        err.print(f"wrote {write_conformance(result, report)}")
    write_outputs(of_conformance(result), junit, markdown)
    entry.before_exit.append(_end_although_threads_hang)
    return EXIT_CODES[result.verdict]


def _end_although_threads_hang(code: int) -> None:
    """End the process in a few seconds, even if threads of the subject that was checked never end."""
    ending = threading.Timer(_ENDS, os._exit, (code,))
    ending.daemon = True
    ending.start()


def _is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is not ParameterSource.DEFAULT


def _checked_agent(setting: Setting, name: str, program: str | None, effort: Effort) -> Conformance:
    options = [
        *(["--stub-port", str(setting.stub_port)] if setting.stub_port else []),
        *([] if setting.has_stub else ["--no-stub"]),
        *(["--home", str(setting.home)] if setting.home else []),
    ]
    try:
        return check_agent(setting, name, effort=effort, options=tuple(options), program=program)
    except (BadAgent, BadProgram) as wrong:
        raise click.UsageError(str(wrong)) from None


def _replayed(make: SubjectFactory, name: str, program: str, effort: Effort) -> Conformance:
    try:
        return replay(make, name, parsed(program), effort=effort)
    except BadProgram as wrong:
        raise click.UsageError(str(wrong)) from None


def load(target: str) -> SubjectFactory:
    """Return the factory that a target names: the class of an adapter, or a function that makes one."""
    made = loaded(target, "module:Class or path.py:Class")
    if not callable(made):
        raise click.UsageError(f"{target} cannot make a subject: it is not callable")
    return cast("SubjectFactory", made)


def _told(example: Counterexample) -> dict[str, Any]:
    return {"steps": len(example.steps), "counterexample": example.told(), "expected": example.what}


def as_object(result: Conformance) -> dict[str, Any]:
    """Return the result as the object that ``--json`` prints."""
    told: dict[str, Any] = {
        "verdict": result.verdict,
        "races": result.races,
        "mid_flight": {
            "operations": result.mid_flight.operations,
            "executions": result.mid_flight.executions,
            "moments_cut": result.mid_flight.moments_cut,
            "undecided": result.undecided,
        },
        "summary": result.summary,
        "subject": result.subject,
        "features": result.features.names,
        "left_out": result.left_out,
        "notes": result.notes,
        "properties": {},
        "depths": {str(sessions): depth for sessions, depth in result.depths.items()},
        "seed": result.seed,
        "problems": problems(result),
        "conversation": result.failed.conversation if result.failed else [],
        "seconds": round(result.seconds, 3),
    }
    for each in result.judged:
        said: dict[str, Any] = {"verdict": result.verdict_of(each), "checks": result.checks(each)}
        if why := result.why_unknown(each):
            said["why"] = why
        if each in result.counterexamples:
            said |= _told(result.counterexamples[each])
            said |= {"program": result.replays[each], "replay": result.replay_command(each)}
        elif each in result.flaky:
            finding = result.flaky[each]
            said |= _told(finding.example) | {"program": finding.program, "again": finding.again}
            said |= {"replays": finding.replays, "replay": result.replay_command(each)}
        told["properties"][str(each)] = said
    told["requirements"] = requirements_told(requirements_of(result))
    return told


def problems(result: Conformance) -> list[str]:
    """Return why the suite stopped early."""
    failed = [f"the subject could not be judged to the end: {result.failed.what}"] if result.failed else []
    return failed + ([result.gave_up] if result.gave_up else [])


def print_conformance(result: Conformance) -> None:
    """Print the result for people: the verdict first, and again at the end."""
    out.print("verdict:", _summary(result))
    out.print("")
    properties = Table(
        "property", "verdict", "checked how often", box=None, pad_edge=False, title_justify="left"
    )
    for each in result.judged:
        checks = ", ".join(
            f"{name}: {counted(count, unit.removesuffix('s'))}"
            for name, counts in result.checks(each).items()
            for unit, count in counts.items()
        )
        properties.add_row(str(each), styled(result.verdict_of(each)), result.why_unknown(each) or checks)
    out.print(properties, "", sep="\n")
    for sessions, depth in result.depths.items():
        extent = "one session" if sessions == 1 else "two sessions"
        but = "except those that reach the same state in another order"
        out.print(f"every program of up to {counted(depth, 'operation')} in {extent}, {but}")
    if result.waits:
        out.print(f"every program of up to {counted(result.waits, 'operation')} in which time passes")
    if result.line:
        out.print(f"every program of up to {counted(result.line, 'operation')} on waiting prompts")
    for what, operations in result.mid_flight.operations.items():
        out.print(f"mid-flight: every program of up to {counted(operations, 'operation')} {what}")
    if result.mid_flight.moments_cut:
        out.print(
            f"mid-flight: {counted(result.mid_flight.moments_cut, 'moment')} left out, too many in a row"
        )
    for words in result.left_out:
        out.print(f"left out: {words}")
    for words in result.notes:
        out.print(f"noted: {words}")
    for each, example in result.counterexamples.items():
        out.print("")
        print_counterexample(example)
        out.print(f"  replay: {result.replay_command(each)}")
    for each in result.flaky:
        _print_flaky(result, each)
    if result.told and not result.counterexamples and not result.flaky:
        out.print("")
        for number, step in enumerate(result.told, 1):
            out.print(f"  {number:2}  {step}")
    if result.gave_up:
        out.print("")
        out.print(result.gave_up, style="yellow")
        if result.gave_up.startswith("time ran out"):
            out.print("give it more with --max-seconds, or use --workers if instances can play side by side")
    if result.failed:
        _print_failed(result.failed)
    out.print("")
    out.print("verdict:", _summary(result), f"({result.seconds:.0f} s)")


def _summary(result: Conformance) -> Text:
    """Return the verdict in one line, its first word in its colour."""
    words = result.summary.removeprefix(result.verdict)
    return styled(result.verdict) + Text(words)


def _print_flaky(result: Conformance, each: AnyProperty) -> None:
    """Print both transcripts of a property that was broken once, but not when the program was replayed."""
    finding = result.flaky[each]
    out.print("")
    print_counterexample(finding.example)
    times = "once" if finding.replays == 1 else f"{finding.replays} times"
    out.print(f"  flaky: played again {times}, the same program did not break it:", style="magenta")
    for number, step in enumerate(finding.again, 1):
        out.print(f"  {number:2}  {step}")
    out.print(f"  replay: {result.replay_command(each)}")


def _print_failed(failed: SubjectFailed) -> None:
    out.print("")
    out.print(f"the subject could not be judged to the end: {failed.what}", style="red")
    for line in failed.conversation:
        out.print(f"  {line}")
