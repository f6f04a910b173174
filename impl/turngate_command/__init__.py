"""``turngate`` and ``python -m turngate``: the command line, from its first moment to its last.

It is a package of its own because to import anything of ``turngate`` is to
import asyncio first, and who presses Ctrl-C meanwhile should be answered like
anybody else. The dispatcher needs nothing but the standard library; the
commands need the extra ``verify``, and say so when it is missing.
"""

from __future__ import annotations

import os
import sys

BAD_INPUT = 2
INTERNAL_ERROR = 70
INTERRUPTED = 130


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        _open_what_is_closed()
        code = _run()
        _ignore_interrupts()
    except KeyboardInterrupt:
        _ignore_interrupts()
        sys.stderr.write("turngate: interrupted\n")
        code = INTERRUPTED
    _flush()
    sys.exit(code)


def _run() -> int:
    try:
        from turngate._cli import run  # noqa: PLC0415 - what it needs may not be installed
    except ModuleNotFoundError as missing:
        if not (missing.name or "").startswith("turngate"):
            sys.stderr.write(
                f"turngate: the commands need the package {missing.name}; install it with: "
                "pip install 'turngate[verify]'\n"
            )
            return BAD_INPUT
        return _own_up()
    except Exception:
        return _own_up()
    return run(sys.argv[1:])


def _own_up() -> int:
    """Say that turngate cannot even be imported."""
    import traceback  # noqa: PLC0415 - not needed unless something is wrong

    traceback.print_exc()
    return INTERNAL_ERROR


def _open_what_is_closed() -> None:
    """Have closed standard streams lead nowhere, or the next file to be opened would take their place."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - it stays
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # these are text files


def _ignore_interrupts() -> None:
    """Let nothing come between the end of a command and the end of the process."""
    import signal  # noqa: PLC0415 - until now nobody has needed it

    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _flush() -> None:
    """Write what is left, or let it go: the interpreter would end with a code of its own."""
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
