"""The commands, and how every command ends.

A verdict has an exit code: 0 holds, 1 violated, 3 unknown. A command without a
verdict must end with another one: 2 after bad input, 70 after an error of
Turngate itself, whose traceback is printed. The caller of ``run`` handles Ctrl-C.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import os
import sys
import traceback

import click
from click.shell_completion import shell_complete

from turngate.cli.commands import ABOUT, find, help_text, registered, what_is_missing
from turngate.cli.endings import BAD_INPUT, INTERNAL_ERROR, BadInput
from turngate.cli.terminal import err, out, stop_writing


class _Commands(click.Group):
    """The commands by their names. To list them, none of their modules is imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*registered()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        registered_as = find(cmd_name)
        if registered_as is None:
            return None
        module, _, name = registered_as.target.partition(":")
        try:
            command: click.Command = getattr(importlib.import_module(module), name)
        except ModuleNotFoundError as missing:
            if (missing.name or "").startswith("turngate"):
                raise
            raise click.ClickException(what_is_missing(missing, cmd_name)) from None
        return command

    def get_help(self, ctx: click.Context) -> str:
        return help_text().rstrip("\n")


@click.group(cls=_Commands, help=ABOUT, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(importlib.metadata.version("turngate"), prog_name="turngate")
def turngate() -> None:
    """Call a command."""


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; answer bad input with one line on stderr."""
    try:
        code = _invoke(arguments)
        sys.stdout.flush()
    except click.ClickException as wrong:
        return _refuse(wrong.format_message())
    except BadInput as wrong:
        return _refuse(str(wrong))
    except BrokenPipeError:
        stop_writing()
        return 0
    except OSError as wrong:
        said = [wrong.strerror or str(wrong), *([str(wrong.filename)] if wrong.filename else [])]
        return _refuse(": ".join(said))
    except (Exception, SystemExit):  # a module that the user names may raise SystemExit
        return _report_internal_error()
    return code if isinstance(code, int) else 0


def _invoke(arguments: list[str]) -> object:
    """Do what click does, except that click would end the process with codes that look like a verdict."""
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
    with contextlib.suppress(OSError):  # the exit code is still there
        err.print("turngate: " + " ".join(message.split()))
    return BAD_INPUT


def _report_internal_error() -> int:
    told = traceback.format_exc().splitlines()
    told.append("turngate: this is an error in turngate itself, and says nothing about what it was checking")
    with contextlib.suppress(OSError):
        for line in told:
            err.print(line)
    return INTERNAL_ERROR
