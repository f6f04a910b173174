"""The known-bad designs of client and server that callers can notice, each put into the real code.

The rules over a network find them, in addition to the checks in `limb_sabotage`. Two of them have a special
form for the server: a reader whose cursor is of another life, and a reader behind the events that are kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from turngate.client import _calls
from turngate.durable import _dispatcher
from turngate.durable.feed._feed import Feed
from turngate.server._event_log import EventLog, Ring
from turngate.server._streams import Streams
from turngate_verify.drivers.limb_sabotage import dies_at_a_failure
from turngate_verify.drivers.network_found import NetworkRules, Program
from turngate_verify.drivers.network_rules import play, run_network_rules

EXAMPLES = 600
"""How many programs a search for a design plays."""


class NetworkSabotage(NamedTuple):
    """The replaced code, a program that finds the design, and whether the server needs a ledger for it."""

    owner: Any
    name: str
    instead: Any
    program: Program
    has_ledger: bool = False


async def _any_life(self: Streams, session_id: str | None, after: str | None) -> Any:
    """Mistake a cursor of another life for one of this life."""
    place = None if after is None else ":".join((self.log.epoch, *after.split(":")[1:]))
    return await _ANSWER(self, session_id, place)


async def _looks_first(self: EventLog, session_id: str) -> Any:
    """Look at the session, and determine its place in the log only later."""
    _, session = await _LOOK_AT(self, session_id)
    for _ in range(20):
        await asyncio.sleep(0)
    return self.place, session


_ANSWER, _LOOK_AT = Streams.answer, EventLog.look_at

_ANSWER_LOST: Program = [
    (("look", 0, "s"), True),
    (("submit", 1, "s", "queue"), True),
    (("fault", "answer lost", 0), True),
    (("cancel", 0, "s", False), True),
    (("submit", 1, "s", "queue"), True),
    (("time", 0.5), True),
]
NETWORK_SABOTAGES = {
    "cancel-resent": NetworkSabotage(_calls, "_headers", lambda key, life: {}, _ANSWER_LOST),
    "key-forgotten": NetworkSabotage(_dispatcher, "_keyed", lambda *_: None, _ANSWER_LOST, has_ledger=True),
    "deaf-follower": NetworkSabotage(
        Feed,
        "_follow",
        dies_at_a_failure,
        [(("stream", 1, "s"), False), (("ledger", "odd", 6), True)],
        has_ledger=True,
    ),
    "cursor-of-another-life": NetworkSabotage(
        Streams,
        "answer",
        _any_life,
        [
            (("submit", 0, "s", "fold"), True),
            (("read", 1, None), True),
            (("restart", "stop"), True),
            (("again", 0, 0), True),
            (("stream", 1, "s"), True),
        ],
    ),
    "snapshot-then-subscribe": NetworkSabotage(
        EventLog,
        "look_at",
        _looks_first,
        [
            (("fault", "refused", 8), True),
            (("clear", 0, "s", False), False),
            (("submit", 0, "s", "interrupt"), True),
            (("read", 1, "s"), False),
            (("fault", "502 after", 365), True),
            (("submit", 0, "s", "queue"), True),
            (("time", 0.5), True),
        ],
    ),
    "purge-past-reader": NetworkSabotage(
        Ring,
        "floor",
        0,
        [
            (("read", 0, "s"), True),
            (("lines", None), False),
            *3 * [(("submit", 1, "s", "queue"), True), (("order", 0, "end"), True)],
            (("time", 0.5), True),
        ],
    ),
}
"""The designs by name."""


def find_network_sabotage(design: str, examples: int = EXAMPLES) -> NetworkRules:
    """Have the rules look for a design in the real client and server."""
    with _built_in(design) as sabotage:
        return run_network_rules(examples, has_ledger=sabotage.has_ledger)


def play_sabotage(design: str) -> tuple[list[str], list[str]]:
    """Play the program that finds a design, on the code as it is and with the design in it."""
    sabotage = NETWORK_SABOTAGES[design]
    without, _ = play(sabotage.program, has_ledger=sabotage.has_ledger)
    with _built_in(design):
        return without, play(sabotage.program, has_ledger=sabotage.has_ledger)[0]


@contextmanager
def _built_in(design: str) -> Iterator[NetworkSabotage]:
    sabotage = NETWORK_SABOTAGES[design]
    with patch.object(sabotage.owner, sabotage.name, sabotage.instead):
        yield sabotage
