"""The events by which everything is judged.

A mechanism, a real dispatcher and a recording all show the same events. The abstract session judges these
events and looks at nothing else. An event belongs to one session, and names its runs.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from turngate_model.lifecycle import DeclaredState

FinishReason: TypeAlias = Literal["end_turn", "error", "canceled", "unwritten"]
"""What the messages of a run say about its end; ``unwritten`` when the store could not write them."""


class Accept(NamedTuple):
    """A caller's prompt was taken in as a new run."""

    run: str
    foldable: bool = True


class Enter(NamedTuple):
    """An accepted run entered, and this is the state that it entered."""

    run: str
    state: DeclaredState


class Fold(NamedTuple):
    """A queued run joined the active turn that ``into`` leads."""

    run: str
    into: str


class Handoff(NamedTuple):
    """A queued run became active, because the turn before it ended."""

    run: str


class Cancel(NamedTuple):
    """A caller cancelled the whole session, or only the runs named here."""

    runs: frozenset[str] | None = None


class Clear(NamedTuple):
    """A caller cleared the queue."""


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


Event: TypeAlias = Accept | Enter | Fold | Handoff | Cancel | Clear | Called | Ended | Wrote | Complete
