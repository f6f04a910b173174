"""The commands, and what every command does with bad input."""

from __future__ import annotations

import importlib.metadata
import os
import sys

import click

from ._conform import conform
from ._diagrams import diagrams
from ._explore import explore
from ._faults import faults
from ._oracles import oracles
from ._schedules import schedules
from ._trace import trace
from ._verify import verify

BAD_INPUT = 2
INTERRUPTED = 130


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
    """Run one command; answer bad input with one line on stderr and exit code 2."""
    try:
        code = turngate.main(arguments, prog_name="turngate", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as help_asked_for:
        click.echo(help_asked_for.ctx.get_help() if help_asked_for.ctx else "")
        return BAD_INPUT
    except click.ClickException as wrong:
        return _refuse(wrong.format_message())
    except click.exceptions.Abort:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever reads our output has seen enough; let the interpreter not complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as wrong:
        return _refuse(f"{wrong.strerror}: {wrong.filename}")
    return code if isinstance(code, int) else 0


def _refuse(message: str) -> int:
    click.echo("turngate: " + " ".join(message.split()), err=True)
    return BAD_INPUT
