"""The events by which everything is judged.

A mechanism, a real dispatcher and a recording all show the same events. The abstract session judges these
events and looks at nothing else. An event belongs to one session, and names its runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

from turngate_model.lifecycle import DeclaredState

FinishReason: TypeAlias = Literal["end_turn", "error", "canceled", "unwritten"]
"""What the messages of a run say about its end; ``unwritten`` when the store could not write them."""


class Accept(NamedTuple):
    """A caller's prompt was taken in as a new run."""

    run: str
    foldable: bool = True
    into: str = ""
    """A run of the one turn that the new run may join; empty if it may have a turn of its own."""


class Enter(NamedTuple):
    """An accepted run entered, and this is the state that it entered."""

    run: str
    state: DeclaredState


class Fold(NamedTuple):
    """A queued run joined the active turn that ``into`` leads."""

    run: str
    into: str


class Handoff(NamedTuple):
    """A queued run became active, because the turn before it ended, or because it was resumed."""

    run: str


class Cancel(NamedTuple):
    """A caller cancelled the whole session, or only the runs named here."""

    runs: frozenset[str] | None = None


class Clear(NamedTuple):
    """A caller cleared the queue, or only the queued runs named here were cleared."""

    runs: frozenset[str] | None = None


class Hold(NamedTuple):
    """A caller held every run of the session that waits, or only the runs named here."""

    runs: frozenset[str] | None = None


class Resume(NamedTuple):
    """A caller resumed every held run of the session, or only the runs named here."""

    runs: frozenset[str] | None = None
    unbinds: bool = False
    """Whether a run named here may have a turn of its own from now on, although it was for one turn alone."""


class Move(NamedTuple):
    """A caller put a waiting run before another one, or, if none is named, behind all that wait."""

    run: str
    before: str = ""


class Edit(NamedTuple):
    """A caller changed a waiting run, and the change was acknowledged.

    ``foldable`` is None if its ``when_busy`` stays.
    """

    run: str
    foldable: bool | None = None


class Called(NamedTuple):
    """The runner was called for the turn that this run leads.

    This event is shown only where the number of calls is limited. Elsewhere the runner is called as soon as
    the turn is active.
    """

    run: str


class Ended(NamedTuple):
    """The runner's call for the turn that this run leads is over."""

    run: str


class Wrote(NamedTuple):
    """The store wrote the messages of a run, or failed to."""

    run: str
    reason: FinishReason


class Complete(NamedTuple):
    """The RunComplete of a run was published."""

    run: str
    cancelled: bool
    error: str | None = None


Event: TypeAlias = (
    Accept
    | Enter
    | Fold
    | Handoff
    | Cancel
    | Clear
    | Hold
    | Resume
    | Move
    | Edit
    | Called
    | Ended
    | Wrote
    | Complete
)


def with_names(event: Event, name: Callable[[str], str]) -> Event:
    """Return an event in which every run has another name."""
    match event:
        case Cancel(runs) | Clear(runs) | Hold(runs) | Resume(runs):
            return event if runs is None else event._replace(runs=frozenset(map(name, runs)))
        case Accept(run, _, into):
            return event._replace(run=name(run), into=name(into) if into else "")
        case Fold(run, into):
            return Fold(name(run), name(into))
        case Move(run, before):
            return Move(name(run), name(before) if before else "")
        case _:
            return event._replace(run=name(event.run))
