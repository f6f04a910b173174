"""Where a reader of the event stream has come to: the ids of the events, and what they mean.

An id has to say two things, for the log of events is short and the dispatcher's completions are long:

1. which event of which log it is: `epoch` names the log, `number` the event;
2. which RunCompletes are among the events up to there: all those up to `completions`, which is a cursor of
   `Dispatcher.completions`, and beyond it those that are `ahead`. In memory none is ever ahead. On a ledger
   RunCompletes of different sessions may reach this process in another order than the completions have.

The second is what makes a RunComplete come once and only once behind a gap, after a restart on a ledger, or
on another process of that ledger: it can be answered from the id alone.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

LOST: Final = "lost "
"""What stands for a cursor of the completions when these were forgotten before they could be read."""


class Cursor(NamedTuple):
    """A place in the event stream; its text is what clients see as the id of an event."""

    epoch: str
    number: int
    completions: str = ""
    ahead: frozenset[str] = frozenset()

    @property
    def is_lost(self) -> bool:
        """Whether the completions up to here were forgotten, so that there is no way back into them."""
        return self.completions.startswith(LOST)

    @property
    def suffix(self) -> str:
        """The part of the text behind the number."""
        ahead = f":{','.join(sorted(self.ahead))}" if self.ahead else ""
        return f":{quote(self.completions, safe='')}{ahead}"

    def __str__(self) -> str:
        return f"{self.epoch}:{self.number}{self.suffix}"


def parsed(text: str) -> Cursor | None:
    """Return the cursor that a client sends back; None if it is none."""
    parts = text.split(":")
    if not 3 <= len(parts) <= 4:
        return None
    epoch, number, completions = parts[:3]
    if not epoch or not (number.isascii() and number.isdecimal()) or len(number) > 18:
        return None
    ahead = frozenset(parts[3].split(",")) if len(parts) == 4 else frozenset()
    return Cursor(epoch, int(number), unquote(completions), ahead)


def mark(run_id: str) -> str:
    """Return what stands for a run that is ahead: short, and by chance another's once in 2**64."""
    digest = hashlib.blake2b(run_id.encode(errors="surrogatepass"), digest_size=8).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")
