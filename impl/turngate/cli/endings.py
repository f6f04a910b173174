"""How a command ends: the exit codes that are no verdict, and Ctrl-C.

It imports nothing, because it is loaded before the command line handles Ctrl-C.
"""

from __future__ import annotations

BAD_INPUT = 2
INTERNAL_ERROR = 70
INTERRUPTED = 130

_pressed = False


class BadInput(Exception):
    """The input of a user is not valid; the message says what would be right."""


def note_interrupt() -> None:
    """Remember that Ctrl-C was pressed, whatever happens to the exception that it raises."""
    global _pressed  # noqa: PLW0603 - there is one keyboard
    _pressed = True


def stop_if_interrupted() -> None:
    """Raise what an earlier Ctrl-C has raised where it went no further.

    A dispatcher under test keeps a KeyboardInterrupt until its runs have settled, and what it does meanwhile
    says nothing about it. So commands call this before they print, and before they begin something.
    """
    if _pressed:
        raise KeyboardInterrupt
