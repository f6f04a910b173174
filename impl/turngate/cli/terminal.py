"""Everything that a command prints goes through here, and is printed as plain text.

Run ids, file names and the output of a subject are untrusted. They may look
like markup, contain control characters of a terminal, or characters that the
encoding of standard output does not have. None of this may change the output or
stop it. If the reader of a pipe goes away, that is no error: the verdict is
still the exit code.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from rich.console import Console
from rich.style import Style
from rich.text import Text

from turngate.cli.endings import stop_if_interrupted
from turngate.cli.visible import visible


class Terminal(Console):
    """A console that prints a string on one line, without reading markup in it; only a Text has style."""

    def render_str(self, text: str, *, style: str | Style = "", **_: Any) -> Text:
        """Return the text to print for a string. Rich calls this for every string that it prints."""
        return Text(visible(text, self.encoding), style=style)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print, unless the reader is gone. After Ctrl-C, raise KeyboardInterrupt instead."""
        stop_if_interrupted()
        try:
            super().print(*objects, **options)
        except BrokenPipeError:  # pragma: no cover - since 13.8 rich makes the same call by itself
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        """Go on without printing: the exit code is still to come."""
        self.quiet = True
        stop_writing(self.stderr)


def stop_writing(to_stderr: bool = False) -> None:
    """Redirect a standard stream to nowhere, so that the interpreter does not complain of it at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2 if to_stderr else 1)
    os.close(nowhere)


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


out = Terminal(highlight=False, soft_wrap=True, width=None if _is_terminal() else 160)
err = Terminal(stderr=True, highlight=False, soft_wrap=True)


def print_json(result: dict[str, Any]) -> None:
    """Print one JSON object on standard output, in ASCII, so that every encoding can carry it."""
    for line in json.dumps(result, indent=2).replace("\x7f", r"\u007f").splitlines():
        out.print(line)
