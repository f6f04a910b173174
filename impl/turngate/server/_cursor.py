"""How far a reader of the event stream has read: the ids of the events, and what they mean.

An id has to say two things, because the log keeps few events and the dispatcher many completions:

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
import json
import re
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote, unquote

if TYPE_CHECKING:
    from turngate import RunComplete

NO_LOG: Final = "-"
"""The epoch of a place that is known by the completions alone: a reader there is behind a gap."""
_LONGEST: Final = 4_096
_MARK: Final = r"[A-Za-z0-9_-]{11}"
_CURSOR: Final = re.compile(
    rf"([A-Za-z0-9]{{1,32}}|-):([0-9]{{1,18}}):([A-Za-z0-9._~%-]*)(?::({_MARK}(?:,{_MARK})*))?", re.ASCII
)
_COMPLETIONS: Final = re.compile(r"[A-Za-z0-9._~-]*", re.ASCII)
"""The characters of a cursor of the completions; what they mean is the dispatcher's business."""


class Cursor(NamedTuple):
    """A place in the event stream; its text is what clients see as the id of an event."""

    epoch: str
    number: int
    completions: str = ""
    ahead: frozenset[str] = frozenset()

    def __str__(self) -> str:
        ahead = f":{','.join(sorted(self.ahead))}" if self.ahead else ""
        return f"{self.epoch}:{self.number}:{quote(self.completions, safe='')}{ahead}"


def parsed(text: str) -> Cursor | None:
    """Return the cursor that a client sends back; None if it is not one that a server has given.

    What is returned may go back into an event, so nothing but the characters of a cursor comes through.
    """
    if len(text) > _LONGEST or (found := _CURSOR.fullmatch(text)) is None:
        return None
    epoch, number, completions, ahead = found.groups()
    completions = unquote(completions)
    if _COMPLETIONS.fullmatch(completions) is None:
        return None
    return Cursor(epoch, int(number), completions, frozenset(ahead.split(",") if ahead else ()))


def mark(complete: RunComplete) -> str:
    """Return a short mark for a RunComplete that is ahead; two share one by chance once in 2**64.

    It is made of everything that a reader received: on a ledger that was restored, a run may complete again,
    with another outcome.
    """
    said = json.dumps(complete)
    digest = hashlib.blake2b(said.encode(), digest_size=8).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")
