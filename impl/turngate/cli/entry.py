"""``turngate`` and ``python -m turngate``: the command line, from its first moment to its last.

It imports next to nothing before it listens for Ctrl-C: whoever presses it while
the rest is being imported is answered like anybody else. The dispatcher,
``--help`` and ``--version`` need nothing but the standard library; each command
needs an extra, and says which when it is missing.
"""

from __future__ import annotations

import os
import sys

from turngate.cli.endings import (
    BAD_INPUT,
    INTERNAL_ERROR,
    INTERRUPTED,
    press,
    stop_if_interrupted,
)

TYPE_CHECKING = False  # as in typing, which takes a while to import
if TYPE_CHECKING:
    from sys import UnraisableHookArgs


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        _listen()
        _open_what_is_closed()
        code = _run()
        stop_if_interrupted()
        _listen_no_more()
    except KeyboardInterrupt:
        _listen_no_more()
        sys.stderr.write("turngate: interrupted\n")
        _flush()
        # Whatever was going on is only half done, and would have a lot to say when it is taken apart.
        _lead_nowhere(2)
        code = INTERRUPTED
    _flush()
    sys.exit(code)


def _listen() -> None:
    """Know that Ctrl-C was pressed, whatever becomes of the exception that it raises."""
    import signal  # noqa: PLC0415 - an interrupt of this import, too, should be answered

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGALRM, _press)
        signal.signal(signal.SIGINT, _press)
    sys.unraisablehook = _tell_unless_interrupted


def _press(_number: int, _frame: object) -> None:
    """Interrupt, and again every second for as long as it goes no further than where it came."""
    import signal  # noqa: PLC0415 - as above

    press()
    signal.setitimer(signal.ITIMER_REAL, 1.0)
    silence = getattr(sys.modules.get("logging"), "disable", None)  # which may be half imported
    if silence is not None:
        silence()  # what is broken off has nothing to report
    raise KeyboardInterrupt


def _tell_unless_interrupted(lost: UnraisableHookArgs) -> None:
    if not isinstance(lost.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(lost)


def _listen_no_more() -> None:
    """Let nothing come between the end of a command and the end of the process."""
    import signal  # noqa: PLC0415 - as above

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)


def _run() -> int:
    try:
        os.getcwd()
    except OSError:
        sys.stderr.write("turngate: the current folder is gone; change to one that is there\n")
        return BAD_INPUT
    from turngate.cli.commands import answer, what_is_missing  # noqa: PLC0415 - as above

    arguments = sys.argv[1:]
    if "_TURNGATE_COMPLETE" not in os.environ and (answered := answer(arguments)) is not None:
        text, code = answered
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except BrokenPipeError:  # nobody reads it
            _lead_nowhere(1)
        except OSError as wrong:
            _lead_nowhere(1)
            sys.stderr.write(f"turngate: {wrong.strerror}\n")
            return BAD_INPUT
        return code
    try:
        from turngate.cli.main import run  # noqa: PLC0415 - what it needs may not be installed
    except ModuleNotFoundError as missing:
        if not (missing.name or "").startswith("turngate"):
            sys.stderr.write(f"turngate: {what_is_missing(missing, ''.join(arguments[:1]))}\n")
            return BAD_INPUT
        return _own_up()
    except Exception:
        return _own_up()
    return run(arguments)


def _own_up() -> int:
    """Say that turngate cannot even be imported."""
    import traceback  # noqa: PLC0415 - not needed unless something is wrong

    traceback.print_exc()
    return INTERNAL_ERROR


def _open_what_is_closed() -> None:
    """Have closed standard streams lead nowhere, or the next file to be opened would take their place."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            _lead_nowhere(number)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - it stays
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # these are text files


def _flush() -> None:
    """Write what is left, or let it go: the interpreter would end with a code of its own."""
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            _lead_nowhere(number)


def _lead_nowhere(number: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere != number:
        os.dup2(nowhere, number)
        os.close(nowhere)
