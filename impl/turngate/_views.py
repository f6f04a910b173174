"""What a session looks like at one moment."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from turngate._core import SessionCore
    from turngate._run import Run


class SessionView(NamedTuple):
    """A session at the moment of looking, taken in one step: it does not change afterwards, its runs do.

    `active` leads the turn that `folded` runs have joined; None when there is none. `text` is what the turn
    has written so far, `covered` says whether a cancel covers it, `since` when it became active (in seconds
    since the epoch), `phase` is "waiting" (for a place, see `turns_limit`), "starting", "running" or
    "settling".
    `accepted` have not entered, `settling` were cancelled on entry and are being written down.
    """

    session_id: str
    accepted: tuple[Run, ...] = ()
    settling: tuple[Run, ...] = ()
    queued: tuple[Run, ...] = ()
    active: Run | None = None
    folded: tuple[Run, ...] = ()
    text: str = ""
    covered: bool = False
    phase: str | None = None
    since: float | None = None


def view(core: SessionCore) -> SessionView:
    """Look at a session."""
    accepted = tuple(core.accepted.values())
    settling = tuple(turn.run for turn in core.settling.values())
    queued = tuple(core.queue.in_order())
    turn = core.turn
    if turn is None:
        return SessionView(core.session_id, accepted, settling, queued)
    if turn.since is None:  # it has become active in the step whose effects are just being performed
        turn.since = time.time()
    return SessionView(
        core.session_id,
        accepted,
        settling,
        queued,
        turn.run,
        tuple(turn._runs[1:]),
        "".join(turn.parts or ()),
        turn.covered,
        turn.phase.value,
        turn.since,
    )
