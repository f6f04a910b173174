"""What a session looks like at one moment."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from turngate._core import SessionCore
    from turngate._handles import Run
    from turngate._sessions import Sessions


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


def view(core: SessionCore, sessions: Sessions) -> SessionView:
    """Look at a session."""
    accepted = tuple(sessions.handles(sorted(core.accepted.values(), key=lambda run: run.rank)))
    settling = tuple(sessions.handles(turn.lead for turn in core.settling.values()))
    queued = tuple(sessions.handles(core.queue.in_order()))
    record = core.turn
    if record is None:
        return SessionView(core.session_id, accepted, settling, queued)
    if record.since is None:  # it has become active in the step whose effects are just being performed
        record.since = time.time()
    turn = sessions.turns.get(record)
    active, *folded = sessions.handles(record.runs)
    return SessionView(
        core.session_id,
        accepted,
        settling,
        queued,
        active,
        tuple(folded),
        "" if turn is None else "".join(turn.output.parts),
        record.covered,
        record.phase.value,
        record.since,
    )
