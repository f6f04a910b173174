"""The commands, and how every command ends.

A verdict has an exit code: 0 holds, 1 violated, 3 unknown. Nothing else may
end with one of these. Bad input is 2; an error of Turngate's own is 70, with
its traceback; an interrupt is the caller's to deal with.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
import traceback

import click
from click.shell_completion import shell_complete

from turngate_command import BAD_INPUT, INTERNAL_ERROR

from ._conform import conform
from ._diagrams import diagrams
from ._explore import explore
from ._faults import faults
from ._oracles import oracles
from ._schedules import schedules
from ._terminal import err, out, stop_writing
from ._trace import trace
from ._verify import verify


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(importlib.metadata.version("turngate"), prog_name="turngate")
def turngate() -> None:
    """Check the promises of Turngate: one turn at a time, exact cancels, one RunComplete per run."""


turngate.add_command(verify)
turngate.add_command(explore)
turngate.add_command(schedules)
turngate.add_command(faults)
turngate.add_command(trace)
turngate.add_command(diagrams)
turngate.add_command(oracles)
turngate.add_command(conform)


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; answer bad input with one line on stderr."""
    try:
        code = _invoke(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except click.ClickException as wrong:
        return _refuse(wrong.format_message())
    except BrokenPipeError:
        stop_writing()
        return 0
    except OSError as wrong:
        said = [wrong.strerror or str(wrong), *([str(wrong.filename)] if wrong.filename else [])]
        return _refuse(": ".join(said))
    except (Exception, SystemExit):  # also one that somebody's module wants to leave by
        return _own_up()
    return code if isinstance(code, int) else 0


def _invoke(arguments: list[str]) -> object:
    """Do what click does, but for ending the process in ways that look like a verdict."""
    if asked := os.environ.get("_TURNGATE_COMPLETE"):
        return shell_complete(turngate, {}, "turngate", "_TURNGATE_COMPLETE", asked)
    try:
        with turngate.make_context("turngate", [*arguments]) as context:
            return turngate.invoke(context)
    except click.exceptions.NoArgsIsHelpError as help_asked_for:
        for line in help_asked_for.format_message().splitlines():
            out.print(line)
        return BAD_INPUT
    except click.exceptions.Exit as done:
        return done.exit_code


def _refuse(message: str) -> int:
    err.print("turngate: " + " ".join(message.split()))
    return BAD_INPUT


def _own_up() -> int:
    for line in traceback.format_exc().splitlines():
        err.print(line)
    err.print("turngate: this is an error of turngate itself, and says nothing of what was to be checked")
    return INTERNAL_ERROR
