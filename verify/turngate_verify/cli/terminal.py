"""The one way out: everything that a command prints goes through here, as text and nothing but text.

Run ids, file names and what a subject says come from strangers. They may look
like markup, hold what a terminal would act on, or not be writable in the
encoding of standard output; none of it may change the output or stop it. A
reader who goes away is no error either: the verdict is still the exit code.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from rich.console import Console
from rich.style import Style
from rich.text import Text

from turngate_verify.endings import stop_if_interrupted
from turngate_verify.visible import visible


class Terminal(Console):
    """A console that prints a string as it is, on one line; only a Text has style."""

    def render_str(self, text: str, *, style: str | Style = "", **_: Any) -> Text:
        """Return a string as what is printed of it: rich asks for this wherever it meets one."""
        return Text(visible(text, self.encoding), style=style)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print, unless nobody reads any more; after Ctrl-C there is nothing to be said."""
        stop_if_interrupted()
        try:
            super().print(*objects, **options)
        except BrokenPipeError:
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        """Go on without printing: whoever reads has seen enough, and the exit code is still to come."""
        self.quiet = True
        stop_writing(self.stderr)


def stop_writing(to_stderr: bool = False) -> None:
    """Let a standard stream go nowhere, so that the interpreter does not complain of it at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2 if to_stderr else 1)
    os.close(nowhere)


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


out = Terminal(highlight=False, soft_wrap=True, width=None if _is_terminal() else 160)
err = Terminal(stderr=True, highlight=False, soft_wrap=True)


def print_json(result: dict[str, Any]) -> None:
    """Print one object, and nothing else, on standard output; in ASCII, so that it arrives anywhere."""
    for line in json.dumps(result, indent=2).replace("\x7f", r"\u007f").splitlines():
        out.print(line)
