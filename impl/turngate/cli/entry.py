"""``turngate`` and ``python -m turngate``: the command line, from its first moment to its last.

It handles Ctrl-C before it imports the commands, so that Ctrl-C while they are
being imported is answered, too. ``--help`` and ``--version`` need nothing but the
standard library; each command needs an extra, and says which when it is missing.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
from typing import TYPE_CHECKING, Any

from turngate.cli.endings import (
    BAD_INPUT,
    INTERNAL_ERROR,
    INTERRUPTED,
    note_interrupt,
    stop_if_interrupted,
)

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

before_exit: list[Any] = []
"""Functions that a command leaves to be called with the exit code, before the process ends."""


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        _handle_interrupts()
        _open_closed_streams()
        code = _run()
        stop_if_interrupted()
        _ignore_interrupts()
    except KeyboardInterrupt:
        _ignore_interrupts()
        sys.stderr.write("turngate: interrupted\n")
        _flush()
        # Whatever was going on is only half done, and would have a lot to say when it is taken apart.
        _redirect_to_null(2)
        code = INTERRUPTED
    _flush()
    for end in before_exit:
        end(code)
    sys.exit(code)


def _handle_interrupts() -> None:
    """Remember that Ctrl-C was pressed, whatever happens to the exception that it raises."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGALRM, _interrupt)
        signal.signal(signal.SIGINT, _interrupt)
    sys.unraisablehook = _report_unless_interrupted


def _interrupt(_number: int, _frame: object) -> None:
    """Interrupt, and again every second for as long as it goes no further than where it came."""
    note_interrupt()
    signal.setitimer(signal.ITIMER_REAL, 1.0)
    logging.disable()  # what is broken off has nothing to report
    raise KeyboardInterrupt


def _report_unless_interrupted(lost: UnraisableHookArgs) -> None:
    if not isinstance(lost.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(lost)


def _ignore_interrupts() -> None:
    """Ignore signals between the end of a command and the end of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)


def _run() -> int:
    try:
        os.getcwd()
    except OSError:
        sys.stderr.write("turngate: the current folder no longer exists; change to another one\n")
        return BAD_INPUT
    from turngate.cli.commands import answer, what_is_missing  # noqa: PLC0415 - Ctrl-C is handled by now

    arguments = sys.argv[1:]
    if "_TURNGATE_COMPLETE" not in os.environ and (answered := answer(arguments)) is not None:
        text, code = answered
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except BrokenPipeError:  # the reader is gone
            _redirect_to_null(1)
        except OSError as wrong:
            _redirect_to_null(1)
            sys.stderr.write(f"turngate: {wrong.strerror}\n")
            return BAD_INPUT
        return code
    if arguments[:1] == ["serve"]:
        from turngate.cli.acp import is_meant, run_acp  # noqa: PLC0415 - as above

        if is_meant(arguments[1:]):
            return run_acp(arguments[1:])
    try:
        from turngate.cli.main import run  # noqa: PLC0415 - what it needs may not be installed
    except ModuleNotFoundError as missing:
        if not (missing.name or "").startswith("turngate"):
            sys.stderr.write(f"turngate: {what_is_missing(missing, ''.join(arguments[:1]))}\n")
            return BAD_INPUT
        return _report_internal_error()
    except Exception:
        return _report_internal_error()
    return run(arguments)


def _report_internal_error() -> int:
    """Say that turngate cannot even be imported."""
    traceback.print_exc()
    return INTERNAL_ERROR


def _open_closed_streams() -> None:
    """Point closed standard streams to nowhere; otherwise the next file to be opened would replace them."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            _redirect_to_null(number)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - it stays
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # these are text files


def _flush() -> None:
    """Write what is buffered, or drop it; the interpreter would end with an exit code of its own."""
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            _redirect_to_null(number)


def _redirect_to_null(number: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere != number:
        os.dup2(nowhere, number)
        os.close(nowhere)
